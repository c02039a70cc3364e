"""The routes: the page, its files, and the runs as JSON. All of them only read.

Who may see the runs has a link that opens once, a session that it made, or the token of a file. A guard before the
routes turns away all others, and gives every answer the headers that keep a browser in bounds. A run's summary and
report are read, or made in memory: nothing is written into a run folder.
"""

import hmac
import json
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from greentrain.errors import ConfigError, RunFolderError
from greentrain.ledger.fleet_state import FleetStateError
from greentrain.ledger.run_folder import ESTIMATE
from greentrain.report import RunReport
from greentrain.report.cluster import Cluster
from greentrain.report.fleet.find import is_raw
from greentrain.report.fleet.row import RunRow
from greentrain.report.fleet.totals import RunSelection, parse_where
from greentrain.report.ui.watching import Watching, row_json
from greentrain.utils.http_access import Access, HostNames
from greentrain.utils.version import __version__

MOST_SESSIONS: Final = 64
"""Browsers at once; the oldest is forgotten."""
Headers = Iterable[tuple[bytes, bytes]]


class LinkAuth:
    """Lets in who has the link's word, a session or the token.

    A session is a cookie that no script can read and no other site can send. A word is in the fragment of a link,
    which browsers keep to themselves, and is worth nothing once it was used.

    Args:
        cookie: Name of the cookie.
        token: Token of a file, sent as ``Authorization: Bearer TOKEN``; None: the link is the only way in.
        used: Function that is called with the next word when one was used.

    Raises:
        ConfigError: The token is too short.
    """

    def __init__(self, cookie: str, token: str | None = None, used: Callable[[str], None] | None = None) -> None:
        self.cookie = cookie
        self._token = None if token is None else Access(token)
        self._used = used
        self._lock = threading.Lock()
        self._sessions: list[str] = []
        self.word = secrets.token_urlsafe(32)
        """Of the next link."""

    def enter(self, headers: Headers) -> str | None:
        """Return a new session for who sends the word or the token as Bearer; None for others."""
        headers = list(headers)
        with self._lock:
            with_word = Access(self.word).allows(headers)
            if not with_word and not self._has_token(headers):
                return None
            if with_word:
                self.word = secrets.token_urlsafe(32)
            session = secrets.token_urlsafe(32)
            self._sessions = [*self._sessions[1 - MOST_SESSIONS :], session]
        if with_word and self._used is not None:
            self._used(self.word)
        return session

    def knows(self, headers: Headers) -> bool:
        """Return True for a request with a session or the token."""
        headers = list(headers)
        given = _cookie(dict(headers).get(b"cookie", b""), self.cookie)
        with self._lock:
            known = [hmac.compare_digest(given, session.encode("ascii")) for session in self._sessions]
        return any(known) or self._has_token(headers)

    def _has_token(self, headers: Headers) -> bool:
        return self._token is not None and self._token.allows(headers)


def is_own(headers: Mapping[bytes, bytes]) -> bool:
    """Return False for what a page of another origin asks for, be it another port of this machine."""
    origin = headers.get(b"origin")
    if origin is not None and origin.partition(b"://")[2] != headers.get(b"host"):
        return False
    return headers.get(b"sec-fetch-site", b"none") in (b"none", b"same-origin")


def _cookie(header: bytes, name: str) -> bytes:
    wanted = name.encode("ascii")
    pairs = (part.strip().partition(b"=") for part in header.split(b";"))
    return next((value for key, _, value in pairs if key == wanted), b"")


REPORT: Final = "report.html"
MOST_BYTES: Final = 32 * 2**20
"""Of a report that is passed on: GreenTrain's own have less than 1 MB."""
_GUARDED: Final = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"))
"""Flags of ``open`` that Windows lacks."""


def summary_of(folder: Path) -> dict[str, Any]:
    """Return the summary of a run.

    Raises:
        RunFolderError: It cannot be read.
    """
    return RunReport.read(folder).summary


def report_of(folder: Path) -> bytes:
    """Return report.html: the folder's, if no book and no estimate is newer, else one that is made.

    Raises:
        RunFolderError: The run cannot be read.
    """
    found = _existing(folder)
    if found is not None:
        return found
    return RunReport.read(folder).page().encode("utf-8", "replace")


def _existing(folder: Path) -> bytes | None:
    """Return the report in a folder; None if it is older than its sources, too large, a link or no file."""
    try:
        with os.scandir(folder) as listing:
            sources = [entry for entry in listing if is_raw(entry.name) or entry.name == ESTIMATE]
        newest_ns = max(entry.stat().st_mtime_ns for entry in sources)
        handle = os.open(folder / REPORT, os.O_RDONLY | _GUARDED)
    except (OSError, ValueError):
        return None
    status = os.fstat(handle)
    if not (stat.S_ISREG(status.st_mode) and status.st_mtime_ns >= newest_ns and status.st_size <= MOST_BYTES):
        os.close(handle)
        return None
    with os.fdopen(handle, "rb") as file:
        return file.read(MOST_BYTES)


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


class PageGuard:
    """An ASGI application around another one.

    Args:
        app: The routes.
        door: Check of who may see the runs.
        names: Names under which the server is asked.
    """

    def __init__(self, app: ASGIApp, door: LinkAuth, names: HostNames) -> None:
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


FORMAT: Final = 1
"""Of the JSON documents."""
PAGE: Final = "page.html"
STYLE: Final = "report.css"
"""The report's: one look for both."""
KINDS: Final = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}


def application(watching: Watching, cluster: Cluster, door: LinkAuth, names: HostNames) -> PageGuard:
    """Return the ASGI application.

    Args:
        watching: The runs.
        cluster: The cluster, where there is one.
        door: Check of who may see the runs.
        names: Names under which the server is asked.
    """
    app = FastAPI(title="GreenTrain runs", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    static = _static()

    @app.get("/")
    async def page() -> Response:
        """The page, without a run in it."""
        return _file(*static[PAGE])

    @app.get("/static/{name}")
    async def file(name: str) -> Response:
        """A file of the page."""
        if name not in static:
            raise HTTPException(404, "there is no such file")
        return _file(*static[name])

    @app.get("/session")
    async def session(request: Request) -> Response:
        """Give a session for the word of a link, or for the token."""
        made = door.enter(request.scope["headers"])
        if made is None:
            raise HTTPException(401, "this link was used, or the token is wrong")
        answer = _json({"ok": True})
        answer.set_cookie(door.cookie, made, httponly=True, samesite="strict", path="/")
        return answer

    @app.get("/api/runs")
    async def runs(after: int | None = None, epoch: str | None = None) -> Response:
        """All runs; those that changed after a version of this epoch. And what the cluster's version is now."""
        version = await run_in_threadpool(cluster.version, time.time())
        changes = watching.changes(after if epoch == watching.epoch else None)
        return _json({"format": FORMAT, "cluster": version, **changes})

    @app.get("/api/cluster")
    async def plan() -> Response:
        """The plan of the cluster in this folder, what its jobs do and wait for, and its prices."""
        now = await run_in_threadpool(cluster.now, time.time())
        if now is None:
            raise HTTPException(404, "there is no plan of a cluster in this folder")
        return _json({"format": FORMAT, **await run_in_threadpool(now.to_dict)})

    @app.get("/api/totals")
    async def totals(
        by: str = "",
        since: str | None = None,
        until: str | None = None,
        where: Annotated[list[str] | None, Query()] = None,
    ) -> Response:
        """Totals by keys, as ``greentrain report --all --by`` has them."""
        keys = [key.strip() for key in by.split(",") if key.strip()]
        only = RunSelection(since=since or None, until=until or None, where=parse_where(where or []))
        found = await run_in_threadpool(watching.totals, keys, only)
        return _json({"format": FORMAT, "by": keys, "totals": [total.to_dict() for total in found]})

    @app.get("/api/runs/{key}")
    async def run(key: str) -> Response:
        """One run: its row and its summary."""
        row = _known(watching, key)
        summary = await run_in_threadpool(summary_of, row.folder)
        return _json({"format": FORMAT, "run": row_json(row, watching.root, time.time()), "summary": summary})

    @app.get("/runs/{key}/report.html")
    async def report(key: str) -> Response:
        """A run's report."""
        found = await run_in_threadpool(report_of, _known(watching, key).folder)
        return Response(found, media_type="text/html", headers={"content-security-policy": REPORT_POLICY})

    for kind, status in (
        *((ConfigError, 400), (RunFolderError, 409), (FleetStateError, 409)),
        *((RequestValidationError, 400), (HTTPException, 0)),
    ):
        app.add_exception_handler(kind, _told(status))
    app.add_middleware(GZipMiddleware, minimum_size=4096, compresslevel=1)
    return PageGuard(app, door, names)


def _known(watching: Watching, key: str) -> RunRow:
    row = watching.run(key)
    if row is None:
        raise HTTPException(404, "there is no such run")
    return row


def _static() -> dict[str, tuple[bytes, str]]:
    found = [*files("greentrain.report.ui").iterdir(), files("greentrain.report").joinpath(STYLE)]
    return {
        item.name: (item.read_bytes(), KINDS[suffix])
        for item in found
        if (suffix := "." + item.name.rpartition(".")[2]) in KINDS
    }


def _file(content: bytes, kind: str) -> Response:
    return Response(content, media_type=kind)  # a new one each time: compression changes its headers


def _json(value: Any, status: int = 200) -> Response:
    return Response(json.dumps(value, allow_nan=False), status_code=status, media_type="application/json")


def _told(status: int) -> Any:
    async def answer(_: Request, error: Any) -> Response:
        text = getattr(error, "detail", None) or str(error)
        if isinstance(error, RequestValidationError):
            text = "; ".join(f"{item['loc'][-1]}: {item['msg']}" for item in error.errors())
        return _json({"error": text}, status or error.status_code)

    return answer
