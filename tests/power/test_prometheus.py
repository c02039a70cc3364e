import contextlib
import json
import math
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("httpx", reason="the extra 'prometheus' is not installed")

import httpx

from greentrain.errors import MeterError
from greentrain.power.prometheus import (
    KEPLER_POD,
    PrometheusClient,
    PrometheusMeter,
    ReplyError,
    SampleSeries,
    pick_node,
)
from greentrain.testing.meter_contract import MeterContract
from greentrain.types import DeviceKind, PowerMeter, PowerSample, Provenance
from greentrain.utils.http_client import HttpError
from tests.helpers.hand_clock import HandClock
from tests.helpers.ports import free_port

PROMETHEUS = shutil.which("prometheus")

NEW = {"__name__": "kepler_node_cpu_joules_total", "node_name": "node-a", "job": "kepler", "instance": "10.0.0.1:28282"}
PACKAGE = {**NEW, "zone": "package", "path": "/sys/class/powercap/intel-rapl:0"}
DRAM = {**NEW, "zone": "dram", "path": "/sys/class/powercap/intel-rapl:0:0"}
GPU = {
    "__name__": "kepler_node_gpu_joules_total",
    "node_name": "node-a",
    "gpu": "0",
    "gpu_uuid": "GPU-1234",
    "gpu_name": "NVIDIA H100",
    "vendor": "nvidia",
}


def old(
    name: str, mode: str, package: str = "0", instance: str = "node-a", source: str = "intel_rapl"
) -> dict[str, str]:
    return {
        "__name__": f"kepler_node_{name}_joules_total",
        "package": package,
        "mode": mode,
        "source": source,
        "exported_instance": instance,
        "instance": "10.0.0.1:9102",
    }


def matrix(series: list[tuple[dict[str, str], list[tuple[float, float]]]]) -> dict[str, Any]:
    result = [{"metric": m, "values": [[t, str(v)] for t, v in points]} for m, points in series]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


def ramp(
    labels: dict[str, str], power_w: float, *, step_s: float = 0.5
) -> tuple[dict[str, str], list[tuple[float, float]]]:
    now = time.time()
    times = [now - step_s * k for k in range(4, -1, -1)]
    return labels, [(t, power_w * (t % 100_000)) for t in times]


class Server:
    """A transport whose behaviour a test changes on the way."""

    def __init__(self, answer: Callable[[], httpx.Response]) -> None:
        self.answer = answer
        self.queries: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.queries.append(request.url.params["query"])
        return self.answer()

    def open(self, query: str | None = None, node: str | None = "node-a") -> PrometheusMeter:
        transport = httpx.MockTransport(self)
        return PrometheusMeter("http://prometheus:9090/", query, node=node, transport=transport, timeout_s=0.5)


def replies(*series: tuple[dict[str, str], list[tuple[float, float]]]) -> Callable[[], httpx.Response]:
    return lambda: httpx.Response(200, json=matrix(list(series)))


def wait_for(meter: PowerMeter, check: Callable[[list[PowerSample]], bool], limit_s: float = 60.0) -> list[PowerSample]:
    end_s = time.monotonic() + limit_s
    while True:
        samples = list(meter.read())
        if check(samples):
            return samples
        assert time.monotonic() < end_s, samples
        time.sleep(0.02)


class TestPrometheusContract(MeterContract):
    @pytest.fixture
    def meter(self) -> Iterator[PowerMeter]:
        self.server = Server(lambda: httpx.Response(200, json=matrix([ramp(PACKAGE, 100), ramp(DRAM, 10)])))
        meter = self.server.open()
        yield meter
        meter.close()

    def advance(self) -> None:
        time.sleep(0.1)

    def vanish(self) -> None:
        self.server.answer = lambda: httpx.Response(500, text="gone")


def test_kepler_zones_and_gpus_become_devices() -> None:
    meter = Server(replies(ramp(PACKAGE, 1), ramp(DRAM, 1), ramp(GPU, 1))).open()
    found = {s.device.uid: s for s in meter.sensors}
    assert set(found) == {"kepler:package:intel-rapl:0", "kepler:dram:intel-rapl:0:0", "GPU-1234"}
    assert found["kepler:dram:intel-rapl:0:0"].device.kind is DeviceKind.DRAM
    assert found["GPU-1234"].device.kind is DeviceKind.GPU
    assert all(
        s.provenance is Provenance.MEASURED and s.period_s == pytest.approx(0.5, rel=0.01) for s in found.values()
    )
    meter.close()


def test_old_kepler_adds_idle_and_dynamic_and_marks_models() -> None:
    now = time.time()
    idle = (old("package", "idle"), [(now - 1, 100.0)])
    dynamic = (old("package", "dynamic"), [(now - 1, 40.0)])
    other = (old("package", "dynamic", package="1", source="trained_power_model"), [(now - 1, 7.0)])
    meter = Server(replies(idle, dynamic, other)).open()
    assert [s.device.uid for s in meter.sensors] == ["kepler:package:0", "kepler:package:1"]
    assert [s.provenance for s in meter.sensors] == [Provenance.MEASURED, Provenance.MODELLED]
    assert [s.energy_j for s in meter.read()] == [140.0, 7.0]
    meter.close()


def test_sample_time_is_the_scrape_time() -> None:
    scraped_s, offset_s = time.time() - 1.25, time.time() - time.monotonic()
    meter = Server(replies((PACKAGE, [(scraped_s, 5.0)]))).open()
    (sample,) = meter.read()
    assert sample.t_s == pytest.approx(scraped_s - offset_s, abs=0.2)
    meter.close()


def test_other_nodes_are_left_out() -> None:
    there = {**PACKAGE, "node_name": "node-b"}
    server = Server(replies(ramp(there, 999), ramp(PACKAGE, 1)))
    meter = server.open(node="node-a.example.org")
    (sensor,) = meter.sensors
    assert "node-a" in sensor.note
    assert server.queries[0].endswith("[300s]")
    meter.close()
    with pytest.raises(MeterError, match=r"2 nodes \(node-a, node-b\).*NODE_NAME"):
        server.open(node="node-c")


def test_own_query_and_instant_vectors() -> None:
    vector = {
        "status": "success",
        "data": {"resultType": "vector", "result": [{"metric": {"host": "x"}, "value": [time.time(), "12.5"]}]},
    }
    server = Server(lambda: httpx.Response(200, json=vector))
    meter = server.open("sum by (host) (ipmi_joules_total)")
    assert server.queries[0] == "sum by (host) (ipmi_joules_total)"
    (sensor,) = meter.sensors
    assert (sensor.device.uid, sensor.device.kind) == ("prometheus:host=x", DeviceKind.NODE)
    assert [s.energy_j for s in meter.read()] == [12.5]
    meter.close()


def test_counter_reset_keeps_the_total_monotone() -> None:
    now = time.time()
    server = Server(replies((PACKAGE, [(now - 1, 800.0), (now - 0.5, 900.0)])))
    meter = server.open()
    assert [s.energy_j for s in meter.read()] == [900.0]
    server.answer = replies((PACKAGE, [(now - 0.1, 30.0)]))
    wait_for(meter, lambda samples: samples[0].energy_j == 930.0)
    meter.close()


def test_stale_series_become_missing_and_recover() -> None:
    server = Server(replies(ramp(PACKAGE, 100, step_s=0.1)))
    meter = server.open()
    assert not meter.read()[0].missing
    server.answer = lambda: httpx.Response(503, json={"status": "error", "error": "shutting down"})
    (sample,) = wait_for(meter, lambda samples: samples[0].missing)
    assert "shutting down" in sample.note
    server.answer = lambda: httpx.Response(200, json=matrix([ramp(PACKAGE, 100, step_s=0.1)]))
    wait_for(meter, lambda samples: not samples[0].missing)
    meter.close()


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (httpx.Response(500, text="<html>oops"), "HTTP 500, and the answer is not that of a Prometheus server"),
        (httpx.Response(200, content=b"\xff\xfe garbage"), "not that of a Prometheus server"),
        (httpx.Response(200, json=[1, 2]), "not that of a Prometheus server"),
        (httpx.Response(400, json={"status": "error", "error": "parse error"}), "parse error"),
        (
            httpx.Response(200, json={"status": "success", "data": {"resultType": "scalar", "result": [1, "2"]}}),
            "gives a scalar",
        ),
        (httpx.Response(200, json=matrix([])), "no series for Kepler's node counters"),
        (httpx.Response(200, content=b" " * 8_100_000), "longer than"),
    ],
)
def test_wrong_answers_are_errors_at_construction(response: httpx.Response, text: str) -> None:
    with pytest.raises(MeterError, match=text):
        Server(lambda: response).open()
    assert not [t for t in threading.enumerate() if t.name == "greentrain-prometheus"]


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_proxy")
@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}", "no-scheme", "http://[bad"])
def test_unreachable_server_is_an_error_that_names_the_url(url: str) -> None:
    url = url.format(port=free_port())
    with pytest.raises(MeterError, match=r"power\.prometheus_url") as error:
        PrometheusMeter(url)
    assert url in str(error.value)


class HttpServer:
    """A real server on localhost whose handler a test swaps."""

    def __init__(self, body: Callable[[], bytes], content_type: str) -> None:
        self.body = body
        self.hang = threading.Event()
        self.hang.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.hang.wait(60)
                data = outer.body()
                self.send_response(200)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = False
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    def close(self) -> None:
        self.hang.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.mark.usefixtures("no_proxy")
def test_hanging_server_blocks_neither_read_nor_close() -> None:
    server = HttpServer(lambda: json.dumps(matrix([ramp(PACKAGE, 100, step_s=0.1)])).encode(), "application/json")
    try:
        meter = _open_when_ready(server.url, timeout_s=0.3)
        server.hang.clear()
        took_s = []
        for _ in range(100):
            start_s = time.monotonic()
            meter.read()
            took_s.append(time.monotonic() - start_s)
            time.sleep(0.01)
        assert sorted(took_s)[90] < 0.3, "none waits for an answer, but the machine may do something else"
        (sample,) = wait_for(meter, lambda samples: samples[0].missing)
        assert "no answer" in sample.note
        start_s = time.monotonic()
        meter.close()
        assert time.monotonic() - start_s < 20.0, "the server hangs for longer"
    finally:
        server.close()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("no_proxy")
@pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus binary on PATH (Debian: apt install prometheus)")
def test_real_prometheus_scraping_kepler_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert PROMETHEUS is not None
    start_s = time.time()

    def metrics() -> bytes:
        lines = ["# TYPE kepler_node_cpu_joules_total counter", "# TYPE kepler_process_cpu_joules_total counter"]
        elapsed_s = time.time() - start_s
        for zone, path, power_w in (
            ("package", "intel-rapl:0", 120.0),
            ("dram", "intel-rapl:0:0", 20.0),
            ("core", "intel-rapl:0:1", 80.0),
        ):
            labels = f'node_name="node-a",path="/sys/class/powercap/{path}",zone="{zone}"'
            lines.append(f"kepler_node_cpu_joules_total{{{labels}}} {5000 + power_w * elapsed_s}")
        lines.append('kepler_process_cpu_joules_total{pid="7",zone="package"} 1')
        for pod, state, power_w in (
            ("train-0", "running", 40.0),
            ("train-0", "terminated", 0.0),
            ("web", "running", 70.0),
        ):
            for zone, share in (("package", 1.0), ("dram", 0.1), ("core", 0.5)):
                labels = f'pod_id="{pod}",pod_name="{pod}",pod_namespace="ml",state="{state}",zone="{zone}"'
                lines.append(f"kepler_pod_cpu_joules_total{{{labels}}} {900 + share * power_w * elapsed_s}")
        return ("\n".join(lines) + "\n").encode()

    exporter = HttpServer(metrics, "text/plain; version=0.0.4")
    port = free_port()
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
        "scrape_configs:\n"
        f"  - {{job_name: kepler, static_configs: [{{targets: ['{exporter.url.removeprefix('http://')}']}}]}}\n"
    )
    command = [
        PROMETHEUS,
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        meter = _open_when_ready(f"http://127.0.0.1:{port}")
        try:
            assert [s.device.uid for s in meter.sensors] == [
                "kepler:dram:intel-rapl:0:0",
                "kepler:package:intel-rapl:0",
            ]
            assert meter.sensors[0].period_s == pytest.approx(0.2, abs=0.05)
            first = {s.device_uid: s for s in meter.read()}
            second = {
                s.device_uid: s
                for s in wait_for(meter, lambda samples: samples[0].t_s - first[samples[0].device_uid].t_s > 1.5)
            }
            for uid, power_w in (("kepler:package:intel-rapl:0", 120.0), ("kepler:dram:intel-rapl:0:0", 20.0)):
                a, b = first[uid], second[uid]
                assert a.energy_j is not None and b.energy_j is not None
                assert (b.energy_j - a.energy_j) / (b.t_s - a.t_s) == pytest.approx(power_w, rel=0.05)
            monkeypatch.setenv("POD_NAME", "train-0")
            with contextlib.closing(PrometheusMeter(meter._url, KEPLER_POD)) as pod:
                assert [s.device.uid for s in pod.sensors] == ["kepler:ml/train-0:dram", "kepler:ml/train-0:package"]
                assert {s.provenance for s in pod.sensors} == {Provenance.MODELLED}
                (_, a) = pod.read()
                (_, b) = wait_for(pod, lambda samples: samples[1].t_s - a.t_s > 1.0)
                assert a.energy_j is not None and b.energy_j is not None
                assert (b.energy_j - a.energy_j) / (b.t_s - a.t_s) == pytest.approx(40.0, rel=0.05)
            server.kill()
            (sample, _) = wait_for(meter, lambda samples: all(s.missing for s in samples))
            assert "no answer" in sample.note
        finally:
            meter.close()
    finally:
        server.kill()
        server.wait()
        exporter.close()


def _open_when_ready(url: str, timeout_s: float = 2.0) -> PrometheusMeter:
    end_s = time.monotonic() + 60
    while True:
        try:
            meter = PrometheusMeter(url, node="node-a", timeout_s=timeout_s)
            if meter.sensors[0].period_s < 1:
                return meter
            meter.close()
        except MeterError:
            if time.monotonic() > end_s:
                raise
        time.sleep(0.2)


UNIX_S = 1.7e9


def opened(
    *series: tuple[dict[str, str], list[tuple[float, float]]], query: str | None = None
) -> tuple[PrometheusMeter, HandClock, Server]:
    """Open a meter on a clock that stands at 50 s, of points whose times are of that clock; its thread has ended."""
    clock = HandClock(50.0)
    server = Server(replies(*((labels, [(t_s + UNIX_S, j) for t_s, j in points]) for labels, points in series)))
    transport = httpx.MockTransport(server)
    meter = PrometheusMeter("http://prometheus:9090", query, node="node-a", transport=transport, clock=clock)
    meter._stop.set()
    meter._thread.join()
    meter._stop.clear()
    return meter, clock, server


def taken(meter: PrometheusMeter, *series: tuple[dict[str, str], list[tuple[float, float]]]) -> None:
    """Hand the meter what a later answer would."""
    found = [SampleSeries(labels, [(t_s + UNIX_S, j) for t_s, j in points]) for labels, points in series]
    meter._take(meter._select(found))


def test_a_sample_is_believed_for_three_scrapes_and_what_an_answer_takes() -> None:
    meter, clock, _ = opened((PACKAGE, [(29.0, 1.0), (39.0, 2.0), (49.0, 3.0)]))
    believed_s = 3 * 10.0 + 5.0 + 2.0  # three scrapes, the time to the next question, and to its answer
    clock.now_s = 49.0 + believed_s - 0.1
    (sample,) = meter.read()
    assert (sample.energy_j, sample.t_s) == pytest.approx((3.0, 49.0))
    clock.now_s += 0.2
    (sample,) = meter.read()
    assert sample.missing and sample.t_s == clock.now_s and sample.note == "last sample 37 s ago; the target is down"
    assert meter._thread.daemon, "a server that hangs keeps no training alive"
    meter.close()
    assert meter.read()[0].note == "the meter is closed"
    meter.close()


def test_a_device_that_has_never_had_a_value_says_so() -> None:
    meter, _, _ = opened((PACKAGE, [(49.0, math.nan)]), (DRAM, [(49.0, 0.0)]))
    memory, package = meter.read()
    assert package.missing and package.note == "last sample never; the target is down"
    assert memory.energy_j == 0.0, "a counter that begins is no gap"
    meter.close()


def test_what_went_wrong_is_told_until_it_goes_well() -> None:
    meter, clock, _ = opened((PACKAGE, [(49.0, 1.0)]))
    asked: list[Callable[[], Any]] = [lambda: 1 / 0, lambda: (_ for _ in ()).throw(TimeoutError()), lambda: []]
    notes = []
    clock.now_s = 1000.0

    def wait(timeout: float | None = None) -> bool:
        notes.append(meter.read()[0].note.removeprefix("last sample 951 s ago; "))
        return not asked

    meter._stop.wait = wait  # type: ignore[method-assign]
    meter._ask = lambda window_s: asked.pop(0)()  # type: ignore[method-assign]
    meter._run()
    assert notes == ["the target is down", "division by zero", "TimeoutError()", "the target is down"]
    meter.close()


@pytest.mark.parametrize(
    ("kind", "told"), [("late", "no complete answer within 2 s"), ("unreachable", "no answer (gone)")]
)
def test_a_server_that_is_slow_is_told_from_one_that_is_gone(kind: Any, told: str) -> None:
    client = PrometheusClient(
        "http://prometheus:9090", transport=httpx.MockTransport(lambda request: httpx.Response(200))
    )

    def ask(*args: object, **how: object) -> None:
        raise HttpError(kind, "gone")

    client._http.ask = ask  # type: ignore[assignment, method-assign]
    with pytest.raises(ReplyError) as error:
        client.query("x", threading.Event())
    assert str(error.value) == told
    client.close()


class Closing(httpx.MockTransport):
    """A transport that knows whether it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("answer", [replies(ramp(PACKAGE, 1)), replies(), lambda: httpx.Response(500)])
def test_a_connection_lives_as_long_as_its_meter(answer: Callable[[], httpx.Response]) -> None:
    transport = Closing(lambda request: answer())
    with contextlib.suppress(MeterError):
        meter = PrometheusMeter("http://prometheus:9090", node="node-a", transport=transport, timeout_s=0.5)
        assert not transport.closed
        meter.close()
    assert transport.closed


def test_an_answer_that_hangs_is_waited_for_a_little_longer_than_the_timeout_and_left_its_connection() -> None:
    meter, _, _ = opened((PACKAGE, [(49.0, 1.0)]))
    closed, waited = list[bool](), list[float]()
    close = meter._client.close
    meter._client.close = lambda: closed.append(True)
    meter._thread = SimpleNamespace(join=waited.append, is_alive=lambda: True)  # type: ignore[assignment]
    meter.close()
    assert not closed and len(waited) == 1 and 2.0 < waited[0] <= 4.0
    close()


def test_the_only_node_of_a_server_is_this_one_whatever_it_is_called() -> None:
    meter = Server(replies(ramp(PACKAGE, 1))).open(node="another-name")
    assert len(meter.sensors) == 1
    meter.close()


def test_the_series_of_one_device_count_where_all_were_scraped_at_one_time() -> None:
    idle, dynamic = old("package", "idle"), old("package", "dynamic")
    meter, clock, _ = opened((idle, [(40.0, 100.0)]), (dynamic, [(40.0, 40.0)]))
    assert [s.energy_j for s in meter.read()] == [140.0]
    clock.now_s = 60.0
    taken(meter, (idle, [(59.0, 200.0)]), (dynamic, [(40.0, 40.0)]))
    assert [s.energy_j for s in meter.read()] == [140.0], "one of them is older: their sum is of no time"
    taken(meter, (idle, [(59.0, 200.0)]), (dynamic, [(59.005, 80.0)]))
    assert [s.energy_j for s in meter.read()] == [140.0], "two scrapes"
    taken(meter, (idle, [(59.0, 200.0)]), (dynamic, [(59.0, float("nan"))]))
    assert [s.energy_j for s in meter.read()] == [140.0]
    taken(meter, (idle, [(59.0, 200.0)]), (dynamic, [(59.0005, 80.0)]))
    (sample,) = meter.read()
    assert (sample.energy_j, sample.t_s) == pytest.approx((280.0, 59.0005))
    taken(meter, (idle, [(50.0, 900.0)]), (dynamic, [(50.0, 900.0)]))
    assert [s.energy_j for s in meter.read()] == [280.0], "an old answer that comes late"
    meter.close()


def test_a_counter_that_starts_over_twice_loses_nothing() -> None:
    meter, clock, _ = opened((PACKAGE, [(40.0, 900.0)]))
    for t_s, value_j, total_j in ((50.0, 900.0, 900.0), (60.0, 30.0, 930.0), (70.0, 80.0, 980.0), (80.0, 10.0, 990.0)):
        clock.now_s = t_s
        taken(meter, (PACKAGE, [(t_s, value_j)]))
        assert [s.energy_j for s in meter.read()] == [total_j]
    meter.close()


def test_no_sample_is_of_a_time_to_come_or_before_the_one_before() -> None:
    meter, clock, _ = opened((PACKAGE, [(53.0, 1.0)]))  # the server's clock is ahead
    assert [s.t_s for s in meter.read()] == [50.0]
    taken(meter, (PACKAGE, [(54.0, 2.0)]))
    clock.now_s = 49.0  # and this machine's is set back
    taken(meter, (PACKAGE, [(55.0, 3.0)]))
    assert [s.t_s for s in meter.read()] == [50.0]
    meter.close()


@pytest.mark.parametrize(
    ("times_s", "scrape_s"), [([0], 60.0), ([0, 15, 30, 60], 15.0), ([0, 10, 20, 50, 80], 30.0), ([49.98, 49.99], 0.1)]
)
def test_how_often_is_scraped_is_seen_in_the_samples(times_s: list[float], scrape_s: float) -> None:
    meter, _, server = opened((PACKAGE, [(t_s - 15.0, float(t_s)) for t_s in times_s]))
    assert meter.sensors[0].period_s == pytest.approx(scrape_s)
    assert server.queries[0].endswith("[300s]"), "as far as Prometheus looks back"
    assert meter._poll_s == pytest.approx(min(max(scrape_s / 2, 0.25), 15.0))
    assert meter._window_s >= 2 * meter._poll_s + 2 * scrape_s, "so that no scrape falls between two questions"
    assert meter._window_s <= max(10.0, 5 * scrape_s), "and no answer grows"
    meter.close()


@pytest.mark.parametrize(
    ("labels", "uid", "kind"),
    [
        ({"__name__": "node_gpu_joules", "gpu": "1"}, "prometheus:gpu=1", DeviceKind.GPU),
        ({"__name__": "gpu_package_joules"}, "prometheus:gpu_package_joules", DeviceKind.GPU),
        ({"__name__": "dram_joules"}, "prometheus:dram_joules", DeviceKind.DRAM),
        ({"__name__": "rapl_joules", "zone": "0"}, "prometheus:zone=0", DeviceKind.CPU),
        ({"host": "b", "chassis": "a", "job": "ipmi"}, "prometheus:chassis=a,host=b", DeviceKind.NODE),
        ({}, "prometheus:query", DeviceKind.NODE),
    ],
)
def test_the_labels_of_an_own_query_name_its_device(labels: dict[str, str], uid: str, kind: DeviceKind) -> None:
    meter, _, _ = opened((labels, [(49.0, 1.0)]), query="some_joules_total")
    (sensor,) = meter.sensors
    assert (sensor.device.uid, sensor.device.kind, sensor.method) == (uid, kind, "PromQL query")
    assert sensor.uncertainty is None and sensor.provenance is Provenance.MEASURED
    meter.close()


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        ("a:b_total", "a:b_total[300s]"),
        (' x{zone="package"} ', 'x{zone="package"}[300s]'),
        ('{__name__="x"}', '{__name__="x"}[300s]'),
        ("rate(x[60s])", "rate(x[60s])"),
        ("x * 1000", "x * 1000"),
    ],
)
def test_a_selector_is_asked_for_its_scrapes_and_any_other_query_as_it_is(query: str, asked: str) -> None:
    meter, _, server = opened(({"host": "x"}, [(49.0, 1.0)]), query=query)
    assert server.queries == [asked]
    meter.close()


@pytest.mark.parametrize("source", ["trained_power_model_1", "estimator", "dummy", "fake_acpi"])
def test_what_kepler_has_modelled_is_not_called_measured(source: str) -> None:
    meter, _, _ = opened((old("package", "idle", source=source), [(49.0, 1.0)]), (old("dram", "idle"), [(49.0, 1.0)]))
    memory, package = meter.sensors
    assert (package.provenance, package.uncertainty) == (Provenance.MODELLED, None)
    assert memory.provenance is Provenance.MEASURED and memory.uncertainty
    meter.close()


def test_a_gpu_is_named_by_its_uuid_and_one_without_is_none() -> None:
    unnamed = {key: value for key, value in GPU.items() if key != "gpu_name"}
    anonymous = {key: value for key, value in GPU.items() if key != "gpu_uuid"}
    meter, _, _ = opened((unnamed, [(49.0, 1.0)]), (anonymous, [(49.0, 1.0)]))
    (sensor,) = meter.sensors
    assert (sensor.device.uid, sensor.device.name) == ("GPU-1234", "GPU-1234")
    meter.close()


@pytest.mark.parametrize(
    ("nodes", "host", "found"),
    [
        (["node-a", "node-b"], "NODE-B.cluster.local", "node-b"),
        (["10.0.0.1:9102", "10.0.0.2:9102"], "10.0.0.2", "10.0.0.2:9102"),
        (["10.0.0.1", "10.1.2.3"], "10.9.9.9", None),
        (["node-a.example:28282"], "node-a", "node-a.example:28282"),
    ],
)
def test_a_node_is_found_by_its_short_name_or_its_whole_address(nodes: list[str], host: str, found: str | None) -> None:
    assert pick_node(nodes, host) == found


def test_a_pod_is_its_containers_where_kepler_is_old_and_its_name_alone_may_not_tell_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POD_NAME", "p")
    monkeypatch.delenv("POD_NAMESPACE", raising=False)

    def container(name: str, what: str, joules: float, namespace: str = "ml") -> tuple[dict[str, str], Any]:
        labels = {"pod_name": "p", "container_namespace": namespace, "container_name": name, "mode": "dynamic"}
        return {"__name__": f"kepler_container_{what}_joules_total", **labels}, [(49.0, joules)]

    own = [container("a", "package", 10.0), container("b", "package", 5.0), container("a", "dram", 2.0)]
    meter, _, server = opened(*own, query=KEPLER_POD)
    assert {sample.device_uid: sample.energy_j for sample in meter.read()} == {
        "kepler:ml/p:package": 15.0,
        "kepler:ml/p:dram": 2.0,
    }
    assert 'pod_name="p"' in server.queries[0] and server.queries[0].endswith("[300s]")
    meter.close()
    with pytest.raises(MeterError, match="2 pods of this name in several namespaces: set POD_NAMESPACE"):
        opened(*own, container("a", "package", 7.0, "dev"), query=KEPLER_POD)
    monkeypatch.setenv("POD_NAMESPACE", "dev")
    meter, *_ = opened(*own, container("a", "package", 7.0, "dev"), query=KEPLER_POD)
    assert [(sample.device_uid, sample.energy_j) for sample in meter.read()] == [("kepler:dev/p:package", 7.0)]
    meter.close()
