"""PUE that a Prometheus server tells: what holds, what falls back, and what is said about it."""

import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx", reason="the extra 'prometheus' is not installed")

import httpx

from greentrain import GreenSession
from greentrain.carbon.constant import ConstantSignal
from greentrain.config.schema import CarbonConfig
from greentrain.errors import ConfigError
from greentrain.ledger.pue import PrometheusPue, PuePoint, open_facility
from greentrain.ledger.reader import read_run
from greentrain.report.summary import summarize
from greentrain.types import PueSource
from tests.helpers.flat_meter import FlatMeter
from tests.helpers.hand_clock import HandClock
from tests.helpers.ports import free_port

PROMETHEUS = shutil.which("prometheus")
LIVE, FALLBACK = PueSource.PROMETHEUS, PueSource.FALLBACK


class Server:
    """A transport whose answer a test changes on the way."""

    def __init__(self, *values: Any) -> None:
        self.values: tuple[Any, ...] = values
        self.down = False
        self.hands = HandClock(unix_offset_s=1e9)
        self.told: list[str] = []
        self.facility = PrometheusPue(
            "http://user:secret@prometheus:9090/", "site_pue", constant=1.5, tell=self.told.append, poll_s=10.0,
            stale_s=60.0, transport=httpx.MockTransport(self._answer), clock=self.hands,
        )  # fmt: skip

    def _answer(self, request: httpx.Request) -> httpx.Response:
        assert (request.url.path, request.url.params["query"]) == ("/api/v1/query", "site_pue")
        if self.down:
            raise httpx.ConnectError("connection refused")
        result = [{"metric": {"site": str(i)}, "value": [1.0, str(v)]} for i, v in enumerate(self.values)]
        return httpx.Response(200, json={"status": "success", "data": {"resultType": "vector", "result": result}})

    def ask(self, t_s: float, *values: Any) -> None:
        """Let it be asked at a time."""
        self.hands.now_s, self.values = t_s, values
        self.facility._ask()

    def pue(self, t0_s: float, t1_s: float) -> tuple[object, PueSource]:
        point = self.facility.pue(1e9 + t0_s, 1e9 + t1_s)
        return pytest.approx(point.value, abs=1e-9), point.source


def test_answers_are_averaged_over_the_interval() -> None:
    server = Server()
    server.ask(1000, 1.2)
    server.ask(1010, 1.6)
    server.ask(1020, 1.4)
    assert server.pue(1000, 1010) == (1.2, LIVE)
    assert server.pue(1005, 1015) == (1.4, LIVE)
    assert server.pue(1000, 1030) == (1.4, LIVE)
    assert server.pue(1012, 1012) == (1.6, LIVE)
    assert server.facility.pue(1e9 + 1000, 1e9 + 1001).provenance == "measured"
    assert not server.told and not server.facility.covers(1e9 + 1000, 1e9 + 1010)
    server.facility.close()


def test_before_the_first_answer_it_holds_for_one_question_more() -> None:
    server = Server()
    assert server.pue(990, 1000) == (1.5, FALLBACK)
    server.ask(1000, 1.2)
    assert server.pue(990, 1000) == (1.2, LIVE)
    assert server.pue(980, 1000) == ((1.5 + 1.2) / 2, FALLBACK)
    server.facility.close()


def test_an_answer_holds_while_the_server_is_silent_but_not_for_ever() -> None:
    server = Server()
    server.ask(1000, 1.2)
    server.down = True
    server.ask(1050)
    assert server.pue(1050, 1060) == (1.2, LIVE)
    assert not server.told
    server.ask(1061)
    assert server.pue(1060, 1070) == (1.5, FALLBACK)
    assert server.pue(1055, 1065) == ((1.2 + 1.5) / 2, FALLBACK)
    server.ask(1071)
    (text,) = server.told
    assert "no answer (connection refused)" in text and "carbon.pue = 1.5" in text
    assert "http://prometheus:9090" in text and "secret" not in text
    server.down = False
    server.ask(1080, 1.3)
    assert server.pue(1080, 1090) == (1.3, LIVE)
    assert server.pue(1072, 1079) == (1.3, LIVE)
    assert server.pue(1061, 1069) == (1.5, FALLBACK)
    server.facility.close()


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([], "has no data for the query"),
        ([0.99], r"says 0\.99, which is no PUE \(it is between 1 and 5\)"),
        ([5.01], r"says 5\.01, which"),
        (["NaN"], "says nan, which"),
        (["+Inf"], "says inf, which"),
        ([1.2, 1.3], "gives 2 series where one is wanted"),
        (["lots"], "not that of a Prometheus server"),
    ],
)
def test_what_is_no_pue_counts_as_none_at_once_with_one_warning(values: list[Any], text: str) -> None:
    server = Server()
    server.ask(1000, 1.2)
    server.ask(1010, *values)
    server.ask(1080, *values)
    assert server.pue(1000, 1010) == (1.2, LIVE)
    assert server.pue(1080, 1090) == (1.5, FALLBACK)
    (said,) = server.told
    assert re.search(text, said)
    if text != "not that of a Prometheus server":
        assert server.pue(1010, 1020) == (1.5, FALLBACK)
        assert server.pue(1005, 1015) == ((1.2 + 1.5) / 2, FALLBACK)
    server.ask(1090, 1.3)
    assert server.pue(1090, 1100) == (1.3, LIVE)
    assert len(server.told) == 1
    server.facility.close()


def test_a_scalar_is_one_number_and_a_range_is_none() -> None:
    for kind, result, expected in (("scalar", [1.0, "1.25"], (1.25, LIVE)), ("matrix", [], (1.5, FALLBACK))):
        told: list[str] = []
        data = {"status": "success", "data": {"resultType": kind, "result": result}}
        transport = httpx.MockTransport(lambda _, data=data: httpx.Response(200, json=data))
        facility = PrometheusPue(
            "http://p:9090",
            "scalar(x)",
            constant=1.5,
            tell=told.append,
            transport=transport,
            clock=(hands := HandClock(unix_offset_s=1e9)),
        )
        facility._ask()
        point = facility.pue(hands.unix_s(), hands.unix_s() + 1)
        assert (point.value, point.source) == expected
        assert [("a range of values" in text) for text in told] == ([True] if kind == "matrix" else [])
        facility.close()


def test_a_fault_of_ours_does_not_end_the_thread() -> None:
    server = Server(1.2)
    server.facility._query = object()  # type: ignore[assignment]
    server.facility._poll_s = 0.01
    server.facility.start()
    _until(lambda: bool(server.told))
    server.facility._query = "site_pue"
    _until(lambda: server.pue(1000, 1000) == (1.2, LIVE))
    server.facility.close()
    assert "failed with" in server.told[0]


@pytest.mark.parametrize("url", ["prometheus:9090", "ftp://prometheus", "http://", "http://[bad", ""])
def test_a_wrong_url_is_an_error_before_training(url: str) -> None:
    with pytest.raises(ConfigError, match=r"carbon\.pue_prometheus_url is .*http://prometheus:9090"):
        open_facility(CarbonConfig(pue_prometheus_url=url, pue_prometheus_query="x"), pytest.fail)


def test_an_empty_query_is_an_error_before_training() -> None:
    with pytest.raises(ConfigError, match=r"carbon\.pue_prometheus_query is empty"):
        open_facility(CarbonConfig(pue_prometheus_url="http://p:9090", pue_prometheus_query=" "), pytest.fail)


def _until(check: Callable[[], bool], limit_s: float = 60.0) -> None:
    end_s = time.monotonic() + limit_s
    while not check():
        assert time.monotonic() < end_s
        time.sleep(0.02)


class Exporter:
    """A page of metrics on localhost that a test may let hang."""

    def __init__(self, page: Callable[[], str]) -> None:
        self.goes_on = threading.Event()
        self.goes_on.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.goes_on.wait(60)
                data = page().encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self.goes_on.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_proxy")
def test_a_hanging_server_delays_neither_questions_nor_the_end() -> None:
    page = {"status": "success", "data": {"resultType": "scalar", "result": [1.0, "1.25"]}}
    server = Exporter(lambda: json.dumps(page))
    told: list[str] = []
    facility = PrometheusPue(
        f"http://{server.address}", "x", constant=1.5, tell=told.append, poll_s=0.05, stale_s=0.5, timeout_s=0.3
    )
    try:
        facility.start()
        _until(lambda: facility.pue(time.time(), time.time()).source is LIVE)
        server.goes_on.clear()
        _until(lambda: facility.pue(time.time(), time.time()).source is FALLBACK)
        _until(lambda: len(told) == 1)
        took_s = []
        for _ in range(1000):
            start_s = time.perf_counter()
            facility.pue(time.time() - 10, time.time())
            took_s.append(time.perf_counter() - start_s)
        assert sorted(took_s)[950] < 0.1, "none waits for an answer, but the machine may do something else"
        start_s = time.monotonic()
        facility.close()
        assert time.monotonic() - start_s < 20.0, "the server hangs for longer"
    finally:
        server.close()
        facility.close()


@dataclass
class Building:
    """A real Prometheus that scrapes a building of a PUE."""

    url: str
    server: "subprocess.Popen[bytes]"
    pue: list[float]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Building]:
    """Start it once: its first scrape takes seconds."""
    if PROMETHEUS is None:
        pytest.skip("no prometheus binary on PATH (Debian: apt install prometheus)")
    pue, folder = [1.25], tmp_path_factory.mktemp("prometheus")

    def page() -> str:
        return f'facility_watts{{meter="main"}} {1e6 * pue[0]}\nfacility_watts{{meter="it"}} 1e6\n'

    exporter = Exporter(page)
    port = free_port()
    config = folder / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
        f"scrape_configs: [{{job_name: building, static_configs: [{{targets: ['{exporter.address}']}}]}}]\n"
    )
    command = [
        PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
    ]  # fmt: skip
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield Building(f"http://127.0.0.1:{port}", server, pue)
    finally:
        server.kill()
        server.wait()
        exporter.close()


@pytest.fixture
def building(started: Building, no_proxy: None) -> Building:
    """The building, once its PUE can be asked for."""
    ready = PrometheusPue(started.url, RATIO, constant=1.5, tell=lambda _: None, poll_s=0.1)
    ready.start()
    _until(lambda: ready.pue(time.time(), time.time()) == PuePoint(value=1.25, source=LIVE))
    ready.close()
    return started


RATIO = 'sum(facility_watts{meter="main"}) / sum(facility_watts{meter="it"})'


def test_a_wrong_query_is_told_in_the_servers_words(building: Building) -> None:
    told: list[str] = []
    facility = PrometheusPue(building.url, "sum(", constant=1.5, tell=told.append, poll_s=0.1)
    facility.start()
    _until(lambda: bool(told))
    facility.close()
    assert "HTTP 400" in told[0] and "parse error" in told[0] and "carbon.pue_prometheus_query" in told[0]


def test_a_run_is_booked_with_what_a_real_prometheus_says(building: Building, tmp_path: Path) -> None:
    config = {
        "run": {"dir": str(tmp_path / "runs"), "report": False, "book_s": 0.1, "live": False},
        "carbon": {"pue": 1.5, "pue_prometheus_url": building.url, "pue_prometheus_query": RATIO},
    }
    green = GreenSession(config, meter=FlatMeter(), signal=ConstantSignal(360.0, zone="test", source="test"))
    with green:
        time.sleep(0.6)
    run = read_run(green.folder or "")
    assert {(entry.pue, entry.pue_source) for entry in run.ranks[0].entries} == {(1.25, LIVE)}
    figures = summarize(run)
    assert figures["energy"]["pue"] == 1.25
    assert figures["carbon"]["cue_kg_per_kwh"] == pytest.approx(0.45)
    (row,) = [row for row in figures["assumptions"] if row["name"].startswith("PUE")]
    assert row["source"] == f"measured by the facility: {RATIO} of Prometheus at 127.0.0.1"


def test_a_real_prometheus_tells_the_pue_until_it_is_gone(building: Building) -> None:
    pue = building.pue
    told: list[str] = []
    facility = PrometheusPue(building.url, RATIO, constant=1.5, tell=told.append, poll_s=0.1, stale_s=1.0)

    def now() -> tuple[float, PueSource]:
        point = facility.pue(time.time(), time.time())
        return round(point.value, 9), point.source

    facility.start()
    try:
        _until(lambda: now() == (1.25, LIVE))
        changed_s = time.time()
        pue[0] = 1.75
        _until(lambda: now() == (1.75, LIVE))
        assert 1.25 <= facility.pue(changed_s, time.time()).value < 1.75
        pue[0] = 0.5
        _until(lambda: now() == (1.5, FALLBACK))
        pue[0] = 1.25
        _until(lambda: now() == (1.25, LIVE))
        building.server.kill()
        _until(lambda: now() == (1.5, FALLBACK))
    finally:
        facility.close()
    assert len(told) == 1
