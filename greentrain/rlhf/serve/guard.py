"""Holds clients to access and limits before a route sees them, and answers for a route that is too slow."""

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from greentrain.rlhf.serve.limits import ServeLimits
from greentrain.rlhf.serve.requests import Refusal, busy
from greentrain.utils.http_access import Access

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
        access: Who may ask.
        limits: Bounds.
        seen: Told path, status and seconds of each request.
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
