"""A server of grid data on loopback: answers of each provider in their recorded shapes, and all that goes wrong."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from greentrain.carbon.client import Timeouts
from greentrain.carbon.source import iso, unix_s

HOUR_S = 3600.0


class GridTime:
    """The machine's time, moved to 20 minutes past the hour when a server starts: no test sees an hour change."""

    def __init__(self) -> None:
        self._offset_s = 0.0

    def anchor(self) -> None:
        self._offset_s = 1210.0 - time.time() % HOUR_S

    def unix_s(self) -> float:
        return time.time() + self._offset_s

    def monotonic_s(self) -> float:
        return time.monotonic()


CLOCK = GridTime()
now = CLOCK.unix_s
QUICK = Timeouts(
    connect_s=30.0,
    silence_s=30.0,
    answer_s=60.0,
    tries=2,
    pause_s=0.01,
    rest_s=0.15,
    longest_rest_s=3600.0,
    poll_s=0.02,
)
"""Limits for tests: quick where they rest, patient with a server that a busy machine lets wait."""


@dataclass(kw_only=True)
class Request:
    """What was asked."""

    path: str
    query: dict[str, str]
    headers: dict[str, str]
    t_s: float = field(default_factory=time.monotonic)


@dataclass(kw_only=True)
class Reply:
    """What to answer."""

    data: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    """Instead of the data."""
    silent_s: float = 0.0
    """Before the first byte (s)."""
    cut: bool = False
    """Announce the whole, send half."""


Answer = Callable[[Request], Reply]


class GridServer:
    """Answers with what ``answer`` says, and remembers what was asked."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        self.skew_s = 0.0
        self.ended = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                url = urlsplit(self.path)
                request = Request(path=url.path, query=dict(parse_qsl(url.query)), headers=dict(self.headers))
                server.requests.append(request)
                reply = server.answer(request)
                body = json.dumps(reply.data).encode() if reply.body is None else reply.body
                server.ended.wait(reply.silent_s)
                try:
                    self.send_response_only(reply.status)
                    self.send_header("Date", formatdate(now() + server.skew_s, usegmt=True))
                    for name, value in reply.headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body[: len(body) // 2] if reply.cut else body)
                except OSError:
                    pass
                self.close_connection = True

            def log_message(self, *args: Any) -> None: ...

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = False
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, name="server")
        self._thread.start()

    def close(self) -> None:
        self.ended.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def paths(self, ending: str = "") -> list[str]:
        return [r.path for r in self.requests if r.path.endswith(ending)]


@contextmanager
def serving(answer: Answer) -> Iterator[GridServer]:
    CLOCK.anchor()
    server = GridServer(answer)
    try:
        yield server
    finally:
        server.close()


# -- what the providers answer; shapes from their documentation and from recordings of others' tests, 2026-11-21 ----


def grid_g(t_unix_s: float) -> int:
    """The grid of these servers: a sawtooth over the day (g/kWh)."""
    return 100 + 10 * int(t_unix_s // HOUR_S % 24)


def em_hour(t0_s: float, *, value: Any = None, zone: str = "DE", estimated: bool = False) -> dict[str, Any]:
    return {
        "zone": zone,
        "carbonIntensity": grid_g(t0_s) if value is None else value,
        "datetime": iso(t0_s).replace("Z", ":00.000Z"),
        "updatedAt": iso(t0_s + HOUR_S).replace("Z", ":54.012Z"),
        "createdAt": iso(t0_s - 3 * 24 * HOUR_S).replace("Z", ":49.346Z"),
        "emissionFactorType": "lifecycle",
        "isEstimated": estimated,
        "estimationMethod": "TIME_SLICER_AVERAGE" if estimated else None,
    }


def electricity_maps(request: Request) -> Reply:
    """A key of a paid plan, zone DE."""
    zone = request.query.get("zone", "FR")  # without a zone it locates the caller
    hour_s = now() // HOUR_S * HOUR_S
    if request.path.endswith("/history"):
        hours = [em_hour(hour_s - (23 - i) * HOUR_S, zone=zone, estimated=i > 21) for i in range(24)]
        return Reply(data={"zone": zone, "history": hours, "temporalGranularity": "hourly"})
    if request.path.endswith("/forecast"):
        hours = [
            {"carbonIntensity": grid_g(hour_s + i * HOUR_S), "datetime": iso(hour_s + i * HOUR_S)} for i in range(73)
        ]
        return Reply(data={"zone": zone, "forecast": hours, "updatedAt": iso(hour_s), "temporalGranularity": "hourly"})
    if request.path.endswith("/past-range"):
        start_s, end_s = unix_s(request.query["start"]), unix_s(request.query["end"])
        assert end_s - start_s <= 240 * HOUR_S
        count = round((min(end_s, hour_s) - start_s) / HOUR_S)  # nobody has measured what is still to come
        return Reply(data={"data": [em_hour(start_s + i * HOUR_S, zone=zone) for i in range(count)]})
    return Reply(status=404, data={"message": "not found"})


def watttime(request: Request) -> Reply:
    """A subscriber, as of the OpenAPI document's examples."""
    if request.path == "/login":
        return Reply(data={"token": "jwt-of-the-day"})
    meta: dict[str, Any] = {
        "data_point_period_seconds": 300,
        "region": request.query["region"],
        "signal_type": request.query["signal_type"],
        "units": "lbs_co2_per_mwh",
        "model": {"date": "2023-03-01", "type": "binned_regression"},
        "warnings": [],
    }
    now_s = now() // 300 * 300
    if request.path == "/v3/forecast":
        meta["generated_at"] = iso(now_s)
        start_s, end_s = now_s, now_s + 72 * HOUR_S
    else:
        start_s, end_s = unix_s(request.query["start"]), unix_s(request.query["end"]) + 300
        assert end_s - start_s <= 32 * 24 * HOUR_S
    points = [
        {"point_time": iso(start_s + i * 300), "value": 1000 + grid_g(start_s + i * 300)}
        for i in range(round((end_s - start_s) / 300))
    ]
    return Reply(data={"data": points, "meta": meta})


def gb(request: Request) -> Reply:
    """The whole country and its regions."""
    parts = request.path.strip("/").split("/")
    regional = parts[0] == "regional"
    start, end = parts[parts.index("intensity") + 1 :][:2]
    start_s = unix_s(start)
    end_s = start_s + 48 * HOUR_S if end == "fw48h" else unix_s(end)
    assert end_s - start_s <= 14 * 24 * HOUR_S
    halves = []
    for i in range(round((end_s - start_s) / 1800) + 1):  # bounds are inclusive
        t1_s = start_s + i * 1800
        over = t1_s <= now() and not regional
        values = {"forecast": grid_g(t1_s - 1800) + 3, "actual": grid_g(t1_s - 1800) if over else None, "index": "low"}
        values = {k: v for k, v in values.items() if not (regional and k == "actual")}
        halves.append({"from": iso(t1_s - 1800), "to": iso(t1_s), "intensity": values})
    if not regional:
        return Reply(data={"data": halves})
    number = int(parts[-1])
    return Reply(data={"data": {"regionid": number, "dnoregion": "UKPN London", "shortname": "London", "data": halves}})
