"""Turns away what a route should not see, and gives every answer the headers that keep a browser in bounds."""

import json
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from greentrain.report.ui.link_auth import LinkAuth, Names, is_own

OPEN: Final = ("/", "/session")
"""Paths without a session: the empty page, and the one that makes a session. ``/static/`` too: the same for all."""
PAGE_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
REPORT_POLICY: Final = (
    "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""A report has its script in it, and may be anybody's file: it gets an origin of its own and no network."""
_HEADERS: Final = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cache-control": b"no-store",
    b"cross-origin-resource-policy": b"same-origin",
    b"x-frame-options": b"DENY",
}
_OF_THE_PAGE: Final = {
    b"content-security-policy": PAGE_POLICY.encode("ascii"),
    b"cross-origin-opener-policy": b"same-origin",
}
"""Not of a report: a sandbox and an opener policy are a network error together (HTML, "create navigation params by
fetching", https://html.spec.whatwg.org/multipage/browsing-the-web.html, read 2026-11-22)."""


class Guard:
    """An ASGI application around another one.

    Args:
        app: The routes.
        door: Who may come in.
        names: Under which the server is asked.
    """

    def __init__(self, app: ASGIApp, door: LinkAuth, names: Names) -> None:
        self._app = app
        self._door = door
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", []))
                more = {**_HEADERS} if b"content-security-policy" in dict(headers) else {**_HEADERS, **_OF_THE_PAGE}
                message = {**message, "headers": [*headers, *more.items()]}
            await send(message)

        refused = self._refused(scope)
        if refused is None:
            await self._app(scope, receive, answer)
            return
        status, text = refused
        body = json.dumps({"error": text}).encode("utf-8")
        kind = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode("ascii"))]
        allow = [(b"allow", b"GET")] if status == 405 else []
        await answer({"type": "http.response.start", "status": status, "headers": [*kind, *allow]})
        await answer({"type": "http.response.body", "body": body})

    def _refused(self, scope: Scope) -> tuple[int, str] | None:
        headers = dict(scope["headers"])
        path = scope["path"]
        if not self._names.allow(headers):
            return 421, "the server is not known by this name: open it as localhost or by its address"
        if scope["method"] != "GET":
            return 405, "everything here is only read: use GET"
        if path == "/" or path.startswith("/static/"):
            return None  # a link from elsewhere may lead to the page, which is empty
        if not is_own(headers):
            return 403, "pages of other origins get no answer"
        if path not in OPEN and not self._door.knows(scope["headers"]):
            return 401, "open the link that greentrain ui printed; each link opens once"
        return None
