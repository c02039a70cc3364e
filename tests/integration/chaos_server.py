"""A Prometheus server that knows a PUE, and falls ill."""

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

PUE: Final = 1.15
MODES: Final = ("well", "dead", "hangs", "garbage", "error", "nonsense")


class PueServer:
    """Serves until it is closed; ``mode`` says how."""

    def __init__(self) -> None:
        self.mode = "well"
        self.answers = 0
        self._ended = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                return

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = False
        self._http.handle_error = lambda *_: None  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.1})
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer as the mode says."""
        mode = self.mode
        if mode == "dead":
            with contextlib.suppress(OSError):
                request.connection.close()
            return
        if mode == "hangs":
            self._ended.wait(5.0)
            return
        value: Any = {"nonsense": "-7", "well": str(PUE)}.get(mode, "NaN")
        found = [{"metric": {}, "value": [time.time(), value]}]
        body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": found}}).encode()
        if mode == "garbage":
            body = b"\x00<html>" + body[::-1]
        with contextlib.suppress(OSError):
            request.send_response(503 if mode == "error" else 200)
            request.send_header("Content-Type", "application/json")
            request.send_header("Content-Length", str(len(body)))
            request.end_headers()
            request.wfile.write(body)
            self.answers += mode == "well"

    def close(self) -> None:
        """End it. Idempotent."""
        self._ended.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(10.0)
