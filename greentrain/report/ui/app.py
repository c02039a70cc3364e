"""The routes: the page, its files, and the runs as JSON. All of them only read."""

import json
import time
from importlib.resources import files
from typing import Annotated, Any, Final

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware

from greentrain.errors import ConfigError, RunFolderError
from greentrain.report.fleet.row import RunRow
from greentrain.report.fleet.totals import Selection, parse_where
from greentrain.report.ui.documents import report_of, summary_of
from greentrain.report.ui.guard import REPORT_POLICY, Guard
from greentrain.report.ui.link_auth import LinkAuth, Names
from greentrain.report.ui.rows import row_json, total_json
from greentrain.report.ui.watching import Watching
from greentrain.utils.version import __version__

FORMAT: Final = 1
"""Of the JSON documents."""
PAGE: Final = "page.html"
STYLE: Final = "report.css"
"""The report's: one look for both."""
KINDS: Final = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}


def application(watching: Watching, door: LinkAuth, names: Names) -> Guard:
    """Return the ASGI application.

    Args:
        watching: The runs.
        door: Who may see them.
        names: Under which the server is asked.
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
        """All runs; those that changed after a version of this epoch."""
        found = watching.changes(after if epoch == watching.epoch else None)
        return _json(
            {
                "format": FORMAT,
                "epoch": watching.epoch,
                "version": found.version,
                "root": watching.root.name or str(watching.root),
                "every_s": watching.every_s,
                "whole": found.whole,
                "reading": None if found.reading is None else {"done": found.reading[0], "of": found.reading[1]},
                "trouble": found.trouble,
                "runs": found.runs,
                "gone": found.gone,
            }
        )

    @app.get("/api/totals")
    async def totals(
        by: str = "",
        since: str | None = None,
        until: str | None = None,
        where: Annotated[list[str] | None, Query()] = None,
    ) -> Response:
        """Totals by keys, as ``greentrain report --all --by`` has them."""
        keys = [key.strip() for key in by.split(",") if key.strip()]
        only = Selection(since=since or None, until=until or None, where=parse_where(where or []))
        found = await run_in_threadpool(watching.totals, keys, only)
        return _json({"format": FORMAT, "by": keys, "totals": [total_json(total) for total in found]})

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

    for kind, status in ((ConfigError, 400), (RunFolderError, 409), (RequestValidationError, 400), (HTTPException, 0)):
        app.add_exception_handler(kind, _told(status))
    app.add_middleware(GZipMiddleware, minimum_size=4096, compresslevel=1)
    return Guard(app, door, names)


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
