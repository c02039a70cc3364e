"""The application of a server, ready for any ASGI server or an in-process client.

A guard holds clients to access and limits before a route sees them, and answers for a route that is too slow.
Prometheus reads requests, batches, the engine's sums and the devices' joules.
"""

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Security
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPBearer
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from greentrain.fpga_backend.device import OffloadDevice
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.serve.coalescer import Coalescer, Scorer, TooLong
from greentrain.rlhf.serve.dialects import reference_routes, reward_routes
from greentrain.rlhf.serve.limits import ServeLimits
from greentrain.rlhf.serve.requests import Refusal, busy, documented, refusal_of
from greentrain.rlhf.text import TextEncoder
from greentrain.utils.http_access import Access
from greentrain.utils.version import __version__

OPEN = "/health"
"""Answered without a token: it says nothing but whether the server works."""
MOST_DIGITS = 18
"""Of a body's length."""
GONE = "closed"
"""In the place of a status: the client went away before it was answered."""


class ServeGuard:
    """An ASGI application around another one. Bodies are read here, up to their bound.

    Args:
        app: The routes.
        access: Says who may ask.
        limits: Bounds of what clients may ask for.
        seen: Is told path, status and seconds of each request.
    """

    def __init__(
        self, app: ASGIApp, *, access: Access, limits: ServeLimits, seen: Callable[[str, str, float], None]
    ) -> None:
        self._app = app
        self._access = access
        self._limits = limits
        self._seen = seen
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send, functools.partial(self._seen, scope["path"]))
        body = bytearray()
        try:
            self._check(scope)
            if scope["path"] != OPEN:  # a body of somebody without a token is not held
                await self._read(receive, body)
            await self._run(scope, receive, answer, bytes(body))
        except Refusal as refused:
            await refused.answer()(scope, receive, answer)
        except _ClientGoneError:
            pass
        finally:
            self._held_bytes -= len(body)
            answer.count()

    def _check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        if scope["path"] != OPEN and not self._access.allows(scope["headers"]):
            raise _not_allowed(self._access)
        length = headers.get(b"content-length", b"")
        if length.isdigit() and (len(length) > MOST_DIGITS or int(length) > self._limits.body_bytes):
            raise self._too_large()
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if scope["method"] == "POST" and kind != b"application/json":
            raise Refusal(415, f"content-type is {kind.decode('latin-1')!r}: send application/json")

    async def _read(self, receive: Receive, body: bytearray) -> None:
        try:
            async with asyncio.timeout(self._limits.receive_s):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _ClientGoneError
                    part = message.get("body", b"")
                    if len(body) + len(part) > self._limits.body_bytes:
                        raise self._too_large()
                    if self._held_bytes + len(part) > self._limits.held_bytes:
                        raise busy(f"bodies of {self._limits.held_bytes} bytes are held already: come again")
                    self._held_bytes += len(part)
                    body += part
                    more = message.get("more_body", False)
        except TimeoutError:
            raise Refusal(408, f"the body did not arrive within {self._limits.receive_s:g} s") from None

    def _too_large(self) -> Refusal:
        return Refusal(413, f"the body has more than {self._limits.body_bytes} bytes: send fewer sequences a request")

    async def _run(self, scope: Scope, receive: Receive, answer: "_Answer", body: bytes) -> None:
        """Run the route until it answers, the client goes away, or it is late."""
        sent = False

        async def again() -> Message:
            nonlocal sent
            if sent:
                await asyncio.Event().wait()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        route = asyncio.ensure_future(self._app(scope, again, answer))
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            await asyncio.wait({route, gone}, timeout=self._limits.request_s, return_when=asyncio.FIRST_COMPLETED)
            if route.done():
                route.result()
            elif gone.done():
                raise _ClientGoneError
            elif not answer.begun:
                raise Refusal(504, f"no answer within {self._limits.request_s:g} s: the device is too slow or hangs")
        finally:
            for task in (route, gone):
                task.cancel()
            await asyncio.wait({route, gone})
            for task in (route, gone):
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    task.result()


class _ClientGoneError(Exception):
    """Nobody is there to be answered."""


class _Answer:
    """Remembers what was sent, and counts it before its last part is: who has read it finds it in the metrics."""

    def __init__(self, send: Send, seen: Callable[[str, float], None]) -> None:
        self._send = send
        self._seen: Callable[[str, float], None] | None = seen
        self._begun_s = time.perf_counter()
        self._status = GONE
        self.begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            self._status = str(message["status"])
        elif not message.get("more_body", False):
            self.count()
        await self._send(message)

    def count(self) -> None:
        """Count the request, once."""
        seen, self._seen = self._seen, None
        if seen is not None:
            seen(self._status, time.perf_counter() - self._begun_s)


def _not_allowed(access: Access) -> Refusal:
    if access.is_open:
        return Refusal(403, "without a token the server answers only requests to localhost or 127.0.0.1")
    return Refusal(
        401,
        "send the server's token: Authorization: Bearer TOKEN, or http://any:TOKEN@host in the URL",
        {"WWW-Authenticate": 'Bearer, Basic realm="greentrain"'},
    )


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
OTHER = "other"
"""The route of every path that is none: clients do not make up labels."""


class Metrics:
    """Counts of one server, in a registry of its own.

    Args:
        engine: Engine whose sums are shown.
    """

    def __init__(self, engine: OffloadEngine) -> None:
        self.registry = CollectorRegistry()
        self.routes: frozenset[str] = frozenset()
        own, by_pass = self.registry, ["offload_pass"]
        self._requests = Counter("greentrain_serve_requests", "Requests.", ["route", "status"], registry=own)
        self._seconds = Histogram(
            "greentrain_serve_request_seconds", "Time of a request.", ["route"], buckets=SECONDS, registry=own
        )
        self.batches = Histogram(
            "greentrain_serve_batch_sequences", "Sequences of a device batch.", by_pass, buckets=SEQUENCES, registry=own
        )
        self._waiting = Gauge(
            "greentrain_serve_waiting_sequences", "Sequences whose batch has not begun.", by_pass, registry=own
        )
        self._running = Gauge("greentrain_serve_running_batches", "Batches that the engine has.", by_pass, registry=own)
        self.truncated = Counter("greentrain_serve_truncated_texts", "Texts that lost tokens.", by_pass, registry=own)
        own.register(_Sums(engine))

    def request(self, path: str, status: str, seconds: float) -> None:
        """Count a request."""
        route = path if path in self.routes else OTHER
        self._requests.labels(route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def watch(self, coalescer: Coalescer) -> None:
        """Show a queue."""
        kind = str(coalescer.kind)
        self._waiting.labels(kind).set_function(lambda: coalescer.waiting)
        self._running.labels(kind).set_function(lambda: coalescer.running)

    def text(self) -> bytes:
        """Return everything in Prometheus's text format. It may wait for a device to say its joules."""
        return generate_latest(self.registry)


class _Sums(Collector):
    """The engine's sums, and joules where somebody knows them: a device without a meter has no sample, never 0."""

    def __init__(self, engine: OffloadEngine) -> None:
        self._engine = engine

    def describe(self) -> Iterator[Metric]:
        """Return nothing: registering must not ask the devices."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield what is known now."""
        named = {
            "calls": "Batches given to the engine.", "sequences": "Sequences of them.", "tokens": "Tokens of them.",
            "redone": "Parts that were redone at home.", "busy_s": "Seconds that devices computed.",
            "wait_s": "Seconds that batches were waited for.",
        }  # fmt: skip
        stats = self._engine.stats()
        for name, text in named.items():
            shown = f"{name.removesuffix('_s')}_seconds" if name.endswith("_s") else name
            family = CounterMetricFamily(f"greentrain_offload_{shown}", text, labels=["offload_pass"])
            for kind, sums in stats.items():
                family.add_metric([str(kind)], float(getattr(sums, name)))
            yield family
        energy = CounterMetricFamily(
            "greentrain_device_energy_joules",
            "Energy since the device was opened; no sample where nobody knows.",
            labels=["device", "name", "provenance"],
        )
        for uid, device in devices_of(self._engine).items():
            reading = device.energy()
            if reading.energy_j is not None:
                energy.add_metric([uid, device.probe().name, str(reading.provenance)], reading.energy_j)
        yield energy


def devices_of(engine: OffloadEngine) -> Mapping[str, OffloadDevice]:
    """Return the devices of all passes by uid."""
    placements = [place for one in engine.passes.values() for place in (one.device, one.home) if place is not None]
    return {place.handle.device: place.device for place in placements}


ASKING_S = 5.0
"""How long a device may take to say how it is."""
GUARDED = (401, 403, 408, 413, 415, 500, 503, 504)


@dataclass(kw_only=True)
class Application:
    """What is served, and what must be closed behind it."""

    guarded: ServeGuard
    """The ASGI application."""
    routes: FastAPI
    """Without the guard: for its OpenAPI document."""
    metrics: Metrics
    coalescers: Mapping[PassKind, Coalescer]
    threads: list[ThreadPoolExecutor]
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
        engine: Runs the passes; reward and reference are served.
        text: Encoder of texts for each pass.
        token: Token that clients must have, or None.
        limits: Bounds of what clients may ask for.
        too_long: ``refuse`` texts of more tokens than the model takes, or ``truncate`` them.

    Raises:
        ConfigError: The token is too short.
    """
    metrics = Metrics(engine)
    aside = [ThreadPoolExecutor(1, thread_name_prefix=f"greentrain-serve-{name}") for name in ("text", "asking")]
    scorers: dict[PassKind, Scorer] = {}
    for kind in (PassKind.REWARD, PassKind.REFERENCE):
        if kind not in engine.passes:
            continue
        coalescer = Coalescer(engine, kind, limits, metrics.batches.labels(str(kind)).observe)
        metrics.watch(coalescer)
        scorers[kind] = Scorer(
            coalescer,
            encoder=text.get(kind),
            tokenizing=aside[0],
            too_long=too_long,
            truncated=metrics.truncated.labels(str(kind)).inc,
        )

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
        exception_handlers=dict.fromkeys((Refusal, HTTPException, Exception), _told),
    )
    secured = [] if token is None else [Security(HTTPBearer(auto_error=False))]  # for the document: the guard looks
    if reward := scorers.get(PassKind.REWARD):
        routes.include_router(reward_routes(reward), dependencies=secured)
    if reference := scorers.get(PassKind.REFERENCE):
        routes.include_router(reference_routes(reference), dependencies=secured)
    access = Access(token)

    async def ask(question: Callable[[], Any]) -> Any:
        """Ask devices in a thread: a remote one may take its time."""
        try:
            async with asyncio.timeout(ASKING_S):
                return await asyncio.get_running_loop().run_in_executor(aside[1], question)
        except TimeoutError:
            raise busy(f"a device did not say within {ASKING_S:g} s how it is") from None

    @routes.get("/v1/models", response_model=None, dependencies=secured)
    async def models() -> JSONResponse:
        """The passes, as OpenAI lists models."""
        same = {"object": "model", "created": 0, "owned_by": "greentrain"}
        data = [
            {"id": str(kind), **same, "max_model_len": one.frozen.program.max_tokens} for kind, one in scorers.items()
        ]
        return JSONResponse({"object": "list", "data": data})

    @routes.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
        dependencies=secured,
    )
    async def scraped() -> Response:
        """Everything for Prometheus."""
        return Response(await ask(metrics.text), media_type="text/plain; version=1.0.0; charset=utf-8")

    @routes.get(OPEN, response_model=None)
    async def health(request: Request) -> JSONResponse:
        """Whether each pass has a device that can be used."""
        if down := await ask(lambda: _down(engine)):
            told = access.allows(request.scope["headers"])
            raise busy(down if told else "a pass has no device: ask with the server's token which, and why")
        return JSONResponse({"status": "ok"})

    metrics.routes = frozenset(routes.openapi()["paths"])
    guarded = ServeGuard(routes, access=access, limits=limits, seen=metrics.request)
    coalescers = {kind: one.coalescer for kind, one in scorers.items()}
    made = Application(guarded=guarded, routes=routes, metrics=metrics, coalescers=coalescers, threads=aside)
    return made


def _down(engine: OffloadEngine) -> str:
    """Return why a pass cannot be run, or ""."""
    found = {uid: device.probe() for uid, device in devices_of(engine).items()}
    for kind, one in engine.passes.items():
        places = [place for place in (one.device, one.home) if place is not None]
        if not any(found[place.handle.device].available for place in places):
            reasons = ", ".join(f"{found[p.handle.device].name}: {found[p.handle.device].reason}" for p in places)
            return f"the {kind} pass has no device ({reasons})"
    return ""


async def _told(request: Request, error: Any) -> JSONResponse:
    if isinstance(error, HTTPException):
        return Refusal(error.status_code, str(error.detail), dict(error.headers or {})).answer()
    return refusal_of(error).answer()
