"""What OpenTelemetry gets of a running job, and what happens where nobody takes it."""

import logging
import os
import subprocess
import sys
import textwrap
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra 'otel' is not installed")

from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from greentrain.config.schema import OtelConfig
from greentrain.errors import GreenTrainWarning
from greentrain.report.live.exporting import Exporter
from greentrain.report.live.otel import CLOSE_S, Otel
from greentrain.types import Topology
from tests.helpers.ports import free_port
from tests.report.live.otlp_receiver import Receiver
from tests.report.live.shown import planned, session, until
from tests.report.live.test_monitoring import FULL

PLACE = Topology(rank=3, world_size=8, host="node-a")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


def read(reader: InMemoryMetricReader) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return resource attributes, and metrics by name."""
    data = reader.get_metrics_data()
    if data is None:
        return {}, {}
    (resource,) = data.resource_metrics
    return dict(resource.resource.attributes), {m.name: m for scope in resource.scope_metrics for m in scope.metrics}


def test_instruments_have_units_and_the_resource_names_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InMemoryMetricReader()
    otel = Otel(OtelConfig(), PLACE, "job", reader)
    assert isinstance(otel, Exporter) and read(reader) == ({}, {})
    otel.update(FULL)
    resource, metrics = read(reader)
    assert (resource["service.name"], resource["host.name"]) == ("greentrain", "node-a")
    assert (resource["greentrain.run.id"], resource["service.instance.id"]) == ("job", "job/3")
    assert {name.removeprefix("greentrain."): metric.unit for name, metric in metrics.items()} == {
        "energy": "J", "power": "W", "power.limit": "W", "sensor.missing": "s", "emissions": "g", "saved": "g",
        "carbon.intensity": "g/(kW.h)", "pue": "1", "gear": "1", "plan.paused": "1", "steps": "{step}",
        "tokens": "{token}", "samples": "{sample}", "sensor.tick": "s", "sensor.seen": "s", "sensor.late": "s",
        "phase.error": "1", "phase.energy_per_token": "J/{token}", "utilisation": "1", "temperature": "Cel",
        "slowed": "s", "cost": "1",
    }  # fmt: skip
    (point,) = metrics["greentrain.energy"].data.data_points
    assert metrics["greentrain.energy"].data.is_monotonic and point.value == 1.0
    assert point.attributes["greentrain.provenance"] == "measured" and point.attributes["greentrain.rank"] == "3"
    errors = {p.attributes["greentrain.phase"]: p for p in metrics["greentrain.phase.error"].data.data_points}
    told = next(iter(FULL.by_uid.values())).told
    assert {name: p.value for name, p in errors.items()} == {n: row["error"] for n, row in told["phases"].items()}
    assert errors["forward"].attributes["greentrain.attribution"] == told["phases"]["forward"]["how"]
    (density,) = metrics["greentrain.phase.energy_per_token"].data.data_points  # what nobody knows has no point
    assert density.value == 0.25 and density.attributes["greentrain.device.kind"] == "gpu"
    assert density.attributes["greentrain.phase"] == "forward"
    assert density.attributes["greentrain.provenance"] == "measured"
    (seen,) = metrics["greentrain.sensor.seen"].data.data_points
    assert seen.value == told["sees_s"] and seen.attributes["greentrain.device.kind"] == "gpu"
    busy = {p.attributes["greentrain.utilisation"]: p.value for p in metrics["greentrain.utilisation"].data.data_points}
    assert busy == {"sm": 0.5, "memory": 0.4}
    otel.close()
    otel.close()
    monkeypatch.setenv("OTEL_SERVICE_NAME", "llm")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "host.name=cloud,team=a")
    reader = InMemoryMetricReader()
    otel = Otel(OtelConfig(), PLACE, "job", reader)
    otel.update(FULL)
    resource, _ = read(reader)
    assert (resource["service.name"], resource["host.name"], resource["team"]) == ("llm", "cloud", "a")
    otel.close()


def test_what_nobody_knows_has_no_point() -> None:
    from greentrain.report.live.snapshot import Snapshot

    reader = InMemoryMetricReader()
    otel = Otel(OtelConfig(), PLACE, "job", reader)
    otel.update(Snapshot(run_id="job", name="n", rank=3, world_size=8, host="node-a", t_unix_s=0.0))
    assert {name for name, metric in read(reader)[1].items() if metric.data.data_points} == {"greentrain.steps"}
    otel.close()


def test_time_that_a_late_reading_takes_back_stays_counted() -> None:
    reader = InMemoryMetricReader()
    otel = Otel(OtelConfig(), PLACE, "job", reader)
    (gpu, *_) = FULL.devices
    for missing_s in (7.0, 2.0):
        otel.update(replace(FULL, devices=[replace(gpu, missing_s=missing_s)]))
        (point,) = read(reader)[1]["greentrain.sensor.missing"].data.data_points
        assert point.value == 7.0, "the instrument is monotonic"
    otel.close()


def test_a_collector_gets_the_last_figures(tmp_path: Path) -> None:
    with Receiver() as collector:
        with planned(tmp_path, {"otel": {"endpoint": collector.url, "interval_s": 1.0}}) as green:
            green.gear("fp8")
            for _ in range(10):
                time.sleep(0.03)
                green.step(tokens=10)
            until(lambda: len(collector.requests) > 0)
        assert set(collector.paths) == {"/v1/metrics"}
        points, totals = collector.points(), green.totals()
    joules = {(a["greentrain.device"], a["greentrain.provenance"]): value for a, value in points["greentrain.energy"]}
    wanted = {
        ("GPU-a", "measured"): totals.by_device["GPU-a"],
        ("model:cpu", "modelled"): totals.by_device["model:cpu"],
    }
    assert joules == pytest.approx(wanted)
    grams = {a["greentrain.scope"]: value for a, value in points["greentrain.emissions"]}
    assert grams["location"] == pytest.approx(totals.operational_g)
    assert [value for _, value in points["greentrain.steps"]] == [10]
    assert {a["greentrain.gear"]: value for a, value in points["greentrain.gear"]} == {"bf16": 0, "fp8": 1}


def test_the_environment_names_the_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Receiver() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        with session(tmp_path, {"otel": {}}):
            time.sleep(0.1)
        assert collector.points()["greentrain.steps"][0][1] == 0


def test_a_collector_that_is_not_there_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "1")  # else it tries again for 5 s
    url = f"http://127.0.0.1:{free_port()}"
    green = session(tmp_path, {"otel": {"endpoint": url, "interval_s": 1.0}})
    with warnings.catch_warnings(record=True) as said, caplog.at_level(logging.INFO, "opentelemetry"):
        warnings.simplefilter("always")
        with green:
            until(lambda: bool(said))
            green.step()
            time.sleep(2.0)
            start_s = time.monotonic()
        assert time.monotonic() - start_s < CLOSE_S + 20
    texts = [str(w.message) for w in said if issubclass(w.category, GreenTrainWarning)]
    assert len(texts) == 1 and url in texts[0] and "export.otel.endpoint" in texts[0]
    assert not [r for r in caplog.records if "metric_exporter" in r.name], "the SDK logs each attempt otherwise"
    assert green.totals().steps == 1


@pytest.mark.filterwarnings("ignore::greentrain.errors.GreenTrainWarning")
def test_a_collector_that_hangs_does_not_hold_the_end(tmp_path: Path) -> None:
    with Receiver(hang=True) as collector:
        green = session(tmp_path, {"otel": {"endpoint": collector.url, "interval_s": 1.0}}).start()
        time.sleep(1.3)
        start_s = time.monotonic()
        green.close()
        assert time.monotonic() - start_s < CLOSE_S + 20, "the collector hangs for longer"


@pytest.mark.long
def test_a_provider_that_the_program_has_set_is_used(tmp_path: Path) -> None:
    """In a process of its own, as a provider can be set only once; twice in a row is no conflict."""
    code = f"""
        import logging, time, warnings
        warnings.simplefilter("error")
        logging.basicConfig(level="WARNING")
        from pathlib import Path
        from opentelemetry import metrics
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from tests.report.live.shown import session
        reader = InMemoryMetricReader()
        metrics.set_meter_provider(MeterProvider([reader]))
        seen = []
        for part in "ab":
            with session(Path({str(tmp_path)!r}), {{"otel": {{"endpoint": "http://127.0.0.1:9"}}}}, run={{"id": part}}):
                end_s = time.monotonic() + 60.0
                while (data := reader.get_metrics_data()) is None and time.monotonic() < end_s:
                    time.sleep(0.1)
                seen.append({{p.attributes["greentrain.run.id"] for r in data.resource_metrics for s in r.scope_metrics
                             for m in s.metrics for p in m.data.data_points}})
        assert seen == [{{"a"}}, {{"b"}}], seen
        metrics.get_meter_provider().shutdown()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
