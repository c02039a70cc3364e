"""The routes of a server, ready for any ASGI server or an in-process client."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import APIRouter, FastAPI, Security
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPBearer
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request

from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.serve.coalescer import Coalescer
from greentrain.rlhf.serve.dialects import completion_routes, openrlhf_routes, pooling_routes
from greentrain.rlhf.serve.guard import ServeGuard
from greentrain.rlhf.serve.limits import ServeLimits
from greentrain.rlhf.serve.metrics import Metrics, devices_of
from greentrain.rlhf.serve.requests import Refusal, busy, documented, refusal_of
from greentrain.rlhf.serve.scorer import Scorer, TooLong
from greentrain.rlhf.text import TextEncoder
from greentrain.utils.http_access import Access
from greentrain.utils.version import __version__

ASKING_S = 5.0
"""How long a device may take to say how it is."""
Answered = TypeVar("Answered")
GUARDED = (401, 403, 408, 413, 415, 500, 503, 504)


class Health(BaseModel):
    """That every pass has a device."""

    status: str


class Model(BaseModel):
    """A pass, as vLLM lists models."""

    id: str
    object: str
    created: int
    owned_by: str
    max_model_len: int


class Models(BaseModel):
    """All passes."""

    object: str
    data: list[Model]


@dataclass(kw_only=True)
class Application:
    """What is served, and what must be closed behind it."""

    guarded: ServeGuard
    """The ASGI application."""
    routes: FastAPI
    """Without the guard: for its OpenAPI document."""
    metrics: Metrics
    coalescers: Mapping[PassKind, Coalescer]
    threads: list[ThreadPoolExecutor] = field(default_factory=list)

    loop: asyncio.AbstractEventLoop | None = None
    """That it runs in."""

    def give_up(self) -> None:
        """Answer whoever still waits for a device that the server is being closed. From any thread."""
        if self.loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended meanwhile
                self.loop.call_soon_threadsafe(self._fail)

    def _fail(self) -> None:
        for one in self.coalescers.values():
            one.close()
            one.fail_running()

    def close(self) -> None:
        """Refuse what waits and let the threads end. Idempotent."""
        for one in self.coalescers.values():
            one.close()
        for pool in self.threads:
            pool.shutdown(wait=False, cancel_futures=True)


def application(
    engine: OffloadEngine,
    text: Mapping[PassKind, TextEncoder],
    *,
    token: str | None,
    limits: ServeLimits,
    too_long: TooLong = "refuse",
) -> Application:
    """Return the application of an engine.

    Args:
        engine: What runs the passes; reward and reference are served.
        text: How each pass reads texts.
        token: That clients must have, or None.
        limits: Bounds.
        too_long: What is done with texts that are.

    Raises:
        ConfigError: The token is too short.
    """
    metrics = Metrics(engine)
    aside = [ThreadPoolExecutor(1, thread_name_prefix=f"greentrain-serve-{name}") for name in ("text", "asking")]
    coalescers = {
        kind: Coalescer(engine, kind, limits, functools.partial(metrics.batch, str(kind)))
        for kind in (PassKind.REWARD, PassKind.REFERENCE)
        if kind in engine.passes
    }
    scorers = {
        kind: Scorer(
            engine,
            kind,
            coalescer,
            encoder=text.get(kind),
            tokenizing=aside[0],
            most=limits.request_sequences,
            too_long=too_long,
            truncated=functools.partial(metrics.truncated, str(kind)),
        )
        for kind, coalescer in coalescers.items()
    }
    for kind, coalescer in coalescers.items():
        metrics.watch(str(kind), coalescer)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        made.loop = asyncio.get_running_loop()
        yield
        made.close()

    routes = FastAPI(
        title="GreenTrain",
        version=__version__,
        description="Frozen passes of reinforcement learning: rewards and log-probabilities.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses=documented(*GUARDED),
        exception_handlers={
            Refusal: _refused,
            HTTPException: _unknown,
            Exception: _broken,
        },
    )
    secured = [] if token is None else [Security(HTTPBearer(auto_error=False))]  # for the document: the guard looks
    if reward := scorers.get(PassKind.REWARD):
        routes.include_router(openrlhf_routes(reward), dependencies=secured)
        routes.include_router(pooling_routes(reward), dependencies=secured)
    if reference := scorers.get(PassKind.REFERENCE):
        routes.include_router(completion_routes(reference), dependencies=secured)
    routes.include_router(_about(scorers, metrics, _Asking(aside[1])), dependencies=secured)
    access = Access(token)
    routes.include_router(_health(engine, _Asking(aside[1]), access))
    metrics.routes = frozenset(routes.openapi()["paths"])
    guarded = ServeGuard(routes, access=access, limits=limits, seen=metrics.request)
    made = Application(guarded=guarded, routes=routes, metrics=metrics, coalescers=coalescers, threads=aside)
    return made


class _Asking:
    """Asks devices in a thread: a remote one may take its time."""

    def __init__(self, thread: ThreadPoolExecutor) -> None:
        self._thread = thread

    async def __call__(self, question: Callable[[], Answered]) -> Answered:
        try:
            async with asyncio.timeout(ASKING_S):
                return await asyncio.get_running_loop().run_in_executor(self._thread, question)
        except TimeoutError:
            raise busy(f"a device did not say within {ASKING_S:g} s how it is") from None


def _health(engine: OffloadEngine, ask: _Asking, access: Access) -> APIRouter:
    router = APIRouter()

    @router.get("/health", response_model=Health)
    async def health(request: Request) -> JSONResponse:
        """Whether each pass has a device that can be used."""
        if down := await ask(lambda: _down(engine)):
            told = access.allows(request.scope["headers"])
            raise busy(down if told else "a pass has no device: ask with the server's token which, and why")
        return JSONResponse({"status": "ok"})

    return router


def _about(scorers: Mapping[PassKind, Scorer], metrics: Metrics, ask: _Asking) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/models", response_model=Models)
    async def models() -> JSONResponse:
        """The passes, as OpenAI lists models."""
        data = [
            {
                "id": str(kind),
                "object": "model",
                "created": 0,
                "owned_by": "greentrain",
                "max_model_len": scorer.program.max_tokens,
            }
            for kind, scorer in scorers.items()
        ]
        return JSONResponse({"object": "list", "data": data})

    @router.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def scraped() -> Response:
        """Everything for Prometheus."""
        return Response(await ask(metrics.text), media_type="text/plain; version=1.0.0; charset=utf-8")

    return router


def _down(engine: OffloadEngine) -> str:
    """Return why a pass cannot be run, or ""."""
    found = {uid: device.probe() for uid, device in devices_of(engine).items()}
    for kind, one in engine.passes.items():
        places = [place for place in (one.device, one.home) if place is not None]
        if not any(found[place.handle.device].available for place in places):
            reasons = ", ".join(f"{found[p.handle.device].name}: {found[p.handle.device].reason}" for p in places)
            return f"the {kind} pass has no device ({reasons})"
    return ""


async def _refused(request: Request, error: Any) -> JSONResponse:
    answer: JSONResponse = error.answer()
    return answer


async def _unknown(request: Request, error: Any) -> JSONResponse:
    return Refusal(error.status_code, str(error.detail), dict(error.headers or {})).answer()


async def _broken(request: Request, error: Exception) -> JSONResponse:
    return refusal_of(error).answer()
