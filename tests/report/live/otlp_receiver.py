"""A collector's OTLP/HTTP receiver for metrics, on this machine."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)


class Receiver:
    """Keeps what it is sent.

    Args:
        status: What it answers.
        hang: True: it answers when it is closed.
    """

    def __init__(self, status: int = 200, hang: bool = False) -> None:
        self.requests: list[Any] = []
        self.paths: list[str] = []
        self._go = threading.Event()
        if not hang:
            self._go.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer._go.wait(60)
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                outer.paths.append(self.path)
                outer.requests.append(ExportMetricsServiceRequest.FromString(body))
                data = ExportMetricsServiceResponse().SerializeToString()
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/x-protobuf")
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    return

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._go.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> "Receiver":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def points(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        """Return the points of the last request by metric, with their attributes."""
        out: dict[str, list[tuple[dict[str, str], float]]] = {}
        for resource in self.requests[-1].resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    data = metric.sum if metric.HasField("sum") else metric.gauge
                    out[metric.name] = [
                        (
                            {a.key: a.value.string_value for a in p.attributes},
                            p.as_double if p.HasField("as_double") else float(p.as_int),
                        )
                        for p in data.data_points
                    ]
        return out
