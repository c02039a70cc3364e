import json
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx", reason="the extra 'prometheus' is not installed")

import httpx

from greentrain.errors import MeterError
from greentrain.power.prometheus import PrometheusMeter
from greentrain.testing.meter_contract import MeterContract
from greentrain.types import DeviceKind, PowerMeter, PowerSample, Provenance
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


def wait_for(meter: PowerMeter, check: Callable[[list[PowerSample]], bool], limit_s: float = 10.0) -> list[PowerSample]:
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
    meter = Server(replies((PACKAGE, [(time.time() - 1.25, 5.0)]))).open()
    (sample,) = meter.read()
    assert time.monotonic() - sample.t_s == pytest.approx(1.25, abs=0.2)
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
                outer.hang.wait(30)
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
        meter = PrometheusMeter(server.url, node="node-a", timeout_s=0.3)
        server.hang.clear()
        took_s = []
        for _ in range(100):
            start_s = time.monotonic()
            meter.read()
            took_s.append(time.monotonic() - start_s)
            time.sleep(0.01)
        assert sorted(took_s)[90] < 0.01, "all but those at which the machine did something else"
        (sample,) = wait_for(meter, lambda samples: samples[0].missing)
        assert "no answer" in sample.note
        start_s = time.monotonic()
        meter.close()
        assert time.monotonic() - start_s < 1.5
    finally:
        server.close()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("no_proxy")
@pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus binary on PATH (Debian: apt install prometheus)")
def test_real_prometheus_scraping_kepler_format(tmp_path: Path) -> None:
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
            server.kill()
            (sample, _) = wait_for(meter, lambda samples: all(s.missing for s in samples))
            assert "no answer" in sample.note
        finally:
            meter.close()
    finally:
        server.kill()
        server.wait()
        exporter.close()


def _open_when_ready(url: str) -> PrometheusMeter:
    end_s = time.monotonic() + 20
    while True:
        try:
            meter = PrometheusMeter(url, node="node-a")
            if meter.sensors[0].period_s < 1:
                return meter
            meter.close()
        except MeterError:
            if time.monotonic() > end_s:
                raise
        time.sleep(0.2)
