"""What Prometheus reads of a running job: the books' figures, no sample for what nobody knows, and only who may."""

import http.client
import json
import re
import shutil
import stat
import subprocess
import sys
import textwrap
import time
import urllib.error
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_client", reason="the extra 'export' is not installed")

from greentrain.config.schema import PrometheusConfig
from greentrain.errors import ConfigError, GreenTrainWarning
from greentrain.ledger.fleet_state import FleetJob, FleetSample, FleetState
from greentrain.ledger.journal import entry_to_json
from greentrain.report.cluster import Cluster
from greentrain.report.live.exporting import Exporter, Exporting
from greentrain.report.live.prometheus import FleetMetrics, Page, SnapshotMetrics, Textfile
from greentrain.report.live.rank_state import RankState
from greentrain.report.live.snapshot import DeviceNow, Snapshot, snapshot_of
from greentrain.types import CarbonPoint, Topology
from tests.helpers.flat_meter import FlatMeter
from tests.helpers.hand_clock import HandClock
from tests.helpers.ports import free_port
from tests.report.cluster_plans import controlled
from tests.report.live.shown import page, planned, samples, session, until, value
from tests.report.run_folders import GPU, T0_S, device, entry

PROMTOOL = shutil.which("promtool")
BARE = Snapshot(run_id="r", name="n", rank=0, world_size=1, host="h", t_unix_s=0.0)


def test_the_page_says_what_the_books_say(tmp_path: Path) -> None:
    port = free_port()
    with planned(tmp_path, {"prometheus": {"port": port}}) as green:
        green.gear("fp8")
        for _ in range(20):
            time.sleep(0.05)
            green.step(tokens=20)
        until(lambda: (value(samples(page(port)), "steps_total") or 0) >= 20)
        text = page(port)
    found, totals = samples(text), green.totals()
    gpu = value(found, "energy_joules_total", device="GPU-a", kind="gpu", provenance="measured")
    cpu = value(found, "energy_joules_total", device="model:cpu", kind="cpu", provenance="modelled")
    assert gpu is not None and cpu is not None
    assert 0.1 * totals.energy_j < gpu + cpu <= totals.energy_j
    assert gpu == pytest.approx(4 * cpu, rel=0.05)
    assert value(found, "power_watts", device="GPU-a") == pytest.approx(200.0, rel=0.05)
    assert value(found, "power_watts", device="model:cpu") == pytest.approx(50.0, rel=0.05)
    grams = value(found, "emissions_grams_total", scope="location")
    assert grams is not None and grams == pytest.approx((gpu + cpu) / 1e4)
    assert value(found, "emissions_grams_total", scope="market") == pytest.approx(grams * 50 / 360)
    assert value(found, "carbon_intensity_grams_per_kwh", zone="test") == 360.0
    assert (value(found, "steps_total"), value(found, "tokens_total")) == (20, 400)
    assert (value(found, "gear", gear="fp8"), value(found, "gear", gear="bf16")) == (1, 0)
    assert value(found, "pue_ratio", source="constant") == 1.0
    assert value(found, "plan_paused") == 0 and value(found, "plan_tokens") == 1e6
    assert value(found, "budget_grams") == 1000.0 and value(found, "up") == 1
    assert "greentrain_samples_total{" not in text and "greentrain_power_limit_watts{" not in text
    assert green.folder is not None and f'run="{green.folder.name}"' in text
    if PROMTOOL is not None:
        done = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_nobody_knows_has_no_sample(tmp_path: Path) -> None:
    class Unknown:
        def mean(self, t0_unix_s: float, t1_unix_s: float) -> CarbonPoint:
            return CarbonPoint(t0_unix_s=t0_unix_s, t1_unix_s=t1_unix_s, g_per_kwh=None, zone="XX", source="nobody")

        def describe(self) -> dict[str, str]:
            return {"zone": "XX"}

    def lost() -> None:
        raise OSError("no driver")

    port, meter = free_port(), FlatMeter()
    meter.fail = lost
    with (
        pytest.warns(GreenTrainWarning),
        session(tmp_path, {"prometheus": {"port": port}}, meter, signal=Unknown()) as green,
    ):
        until(lambda: (value(samples(page(port)), "sensor_missing_seconds_total", device="GPU-a") or 0) > 1)
        found = samples(page(port))
        meter.fail = lambda: None
        until(lambda: value(samples(page(port)), "unpriced_energy_joules_total") != 0)
        later = samples(page(port))
    names = {name for name, _ in found}
    for name in ("power_watts", "energy_joules_total", "saved_grams", "plan_paused"):
        assert f"greentrain_{name}" not in names, name
    assert value(found, "emissions_grams_total", scope="location") is None, "0 g would be a lie"
    assert "greentrain_carbon_intensity_grams_per_kwh" not in {name for name, _ in later}
    assert value(later, "emissions_grams_total", scope="location") is None
    assert value(found, "steps_total") == 0 and green.totals().energy_j > 0


def test_counters_go_on_where_the_run_goes_on(tmp_path: Path) -> None:
    port = free_port()

    def part(state: Any, folder: Path) -> tuple[dict[Any, float], Any]:
        green = session(folder, {"prometheus": {"port": port}})
        if state is not None:
            green.load_state_dict(json.loads(json.dumps(state)))
        with green:
            before = 0.0 if state is None else state["totals"]["steps"]
            green.step(tokens=10)
            time.sleep(0.3)
            until(lambda: (value(samples(page(port)), "steps_total") or 0) > before)
            found = samples(page(port))
            return found, green.state_dict()

    first, state = part(None, tmp_path)
    again, _ = part(state, tmp_path)  # the folder is still there
    moved, _ = part(state, tmp_path / "elsewhere")  # only the checkpoint is
    for later, provenance in ((again, "measured"), (moved, "mixed")):
        assert value(later, "steps_total") == 2 and value(later, "tokens_total") == 20
        energy = [v for (name, _), v in later.items() if name == "greentrain_energy_joules_total"]
        assert sum(energy) >= state["totals"]["energy_j"]
        known = value(later, "energy_joules_total", device="GPU-a", provenance=provenance)
        assert known is not None and known >= state["totals"]["by_device"]["GPU-a"] * 0.99
        for (name, labels), before in first.items():
            if name in ("greentrain_emissions_grams_total", "greentrain_sensor_missing_seconds_total"):
                assert later[name, labels] >= before


def test_time_that_a_late_reading_takes_back_stays_counted() -> None:
    figures = SnapshotMetrics()
    gpu = DeviceNow(uid="g", name="G", kind="gpu", provenance="measured", energy_j=1.0)
    for missing_s in (7.0, 2.0):
        figures.update(replaced(devices=[DeviceNow(**{**fields_of(gpu), "missing_s": missing_s})]))
        (family,) = (f for f in figures.collect() if f.name == "greentrain_sensor_missing_seconds")
        assert [sample.value for sample in family.samples] == [7.0]


def fields_of(device: DeviceNow) -> dict[str, Any]:
    return {name: getattr(device, name) for name in DeviceNow.__dataclass_fields__}


def replaced(**fields: Any) -> Snapshot:
    return Snapshot(**{**{name: getattr(BARE, name) for name in Snapshot.__dataclass_fields__}, **fields})


def test_a_token_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    file.chmod(0o600)
    shown = Page(PrometheusConfig(port=0, host="0.0.0.0", token_file=str(file)), 0)
    try:
        assert isinstance(shown, Exporter)
        shown.update(BARE)
        for wrong in (None, "0123456789abcdeg"):
            with pytest.raises(urllib.error.HTTPError) as error:
                page(shown.port, wrong)
            assert error.value.code == 401 and b"greentrain_up" not in error.value.read()
            error.value.close()
        assert "greentrain_up" in page(shown.port, "0123456789abcdef")
    finally:
        shown.close()
        shown.close()
    with pytest.raises(OSError):
        page(shown.port, "0123456789abcdef")


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [(None, 0o600, "cannot be read"), ("short", 0o600, "5 characters"), ("0123456789abcdef", 0o644, "chmod 600")],
)
def test_a_wrong_token_file_fails_before_training(tmp_path: Path, text: str | None, mode: int, words: str) -> None:
    file, meter = tmp_path / "token", FlatMeter()
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    green = session(tmp_path, {"prometheus": {"port": 0, "token_file": str(file)}}, meter)
    with pytest.raises(ConfigError, match=words):
        green.start()
    assert meter.closed == 1 and not (tmp_path / "runs").exists()


def test_a_port_in_use_is_one_warning(tmp_path: Path) -> None:
    holder = Page(PrometheusConfig(port=0), 0)
    try:
        green = session(tmp_path, {"prometheus": {"port": holder.port}})
        with pytest.warns(GreenTrainWarning, match=rf"127\.0\.0\.1:{holder.port}.*export\.prometheus\.port") as said:
            green.start()
        time.sleep(0.1)
        green.step()
        green.close()
        assert len(said) == 1 and green.totals().steps == 1
    finally:
        holder.close()


def test_a_rank_beyond_the_last_port_is_one_warning(tmp_path: Path) -> None:
    place = Topology(rank=1, world_size=2, local_rank=1, local_world_size=2, host="h")
    with (
        pytest.warns(GreenTrainWarning, match=r"127\.0\.0\.1:65536"),
        session(tmp_path, {"prometheus": {"port": 65535}}, topology=place) as green,
    ):
        green.step()
    assert green.totals().steps == 1


def test_each_local_rank_has_a_port_of_its_own(tmp_path: Path) -> None:
    port = free_port()
    place = Topology(rank=5, world_size=8, local_rank=1, local_world_size=4, host="h")
    with session(tmp_path, {"prometheus": {"port": port - 1}}, topology=place):
        until(lambda: 'rank="5"' in page(port))


def test_a_forked_child_does_not_keep_the_port(tmp_path: Path) -> None:
    """As a data loader's worker does that outlives the session."""
    code = """
        import os, signal, time
        from greentrain.config.schema import PrometheusConfig
        from greentrain.report.live.prometheus import Page
        first = Page(PrometheusConfig(port=0), 0)
        child = os.fork()
        if not child:
            time.sleep(30)
            os._exit(0)
        first.close()
        second = Page(PrometheusConfig(port=first.port), 0)
        second.close()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_child_that_closes_ends_at_once_and_the_page_stays() -> None:
    code = """
        import os, signal, urllib.request
        from greentrain.config.schema import PrometheusConfig
        from greentrain.report.live.prometheus import Page
        page = Page(PrometheusConfig(port=0), 0)
        child = os.fork()
        if not child:
            signal.alarm(60)
            page.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        urllib.request.urlopen(f"http://127.0.0.1:{page.port}/metrics", timeout=60).close()
        page.close()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_textfile_is_whole_and_gone_at_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "textfiles"
    with session(tmp_path, {"prometheus": {"textfile": str(folder)}}, run={"id": "job"}) as green:
        file = folder / "greentrain-job-0.prom"
        green.step()
        until(lambda: file.exists() and value(samples(file.read_text()), "up") == 1)
        assert [path.name for path in folder.iterdir()] == [file.name]
        assert stat.S_IMODE(file.stat().st_mode) & 0o044, "node_exporter is another user"
    assert list(folder.iterdir()) == []


def test_a_textfile_that_cannot_be_written_fails_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    green = session(tmp_path, {"prometheus": {"textfile": str(tmp_path / "file" / "folder")}})
    with pytest.raises(ConfigError, match=r"export\.prometheus\.textfile"):
        green.start()


def test_a_disk_that_goes_away_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("greentrain.report.live.prometheus.TEXTFILE_S", 0.5)
    folder = tmp_path / "textfiles"
    with (
        pytest.warns(GreenTrainWarning, match="figures cannot be exported") as said,
        session(tmp_path, {"prometheus": {"textfile": str(folder)}}, run={"id": "job"}) as green,
    ):
        until(lambda: (folder / "greentrain-job-0.prom").exists())
        shutil.rmtree(folder)
        green.step()
        until(lambda: any("exported" in str(w.message) for w in said))
    assert len([w for w in said if "exported" in str(w.message)]) == 1
    assert green.totals().steps == 1


def test_a_broken_exporter_harms_neither_the_run_nor_the_others(tmp_path: Path) -> None:
    class Broken:
        def update(self, snapshot: Snapshot) -> None:
            raise ValueError("it is broken")

        def close(self) -> None:
            raise ValueError("for good")

    green, folder = session(tmp_path, {}), tmp_path / "t"
    with pytest.warns(GreenTrainWarning) as said, green:
        green._viewers._exporting = Exporting([Broken(), Textfile(folder, "other")])
        until(lambda: (folder / "other.prom").exists())
        green.step()
    texts = [str(w.message) for w in said]
    assert sum("it is broken" in text for text in texts) == sum("for good" in text for text in texts) == 1
    assert green.totals().steps == 1 and not (folder / "other.prom").exists()


def test_without_the_section_nothing_is_opened_or_read(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        green = session(tmp_path, {})
        with green:
            time.sleep(0.1)
            assert green._viewers._exporting._tail is None


@dataclass(frozen=True)
class SetTo:
    """Power limits of some GPUs."""

    uuids: tuple[str, ...]
    fraction: float
    limit_w: float


def test_a_power_limit_is_shown_where_the_run_sets_one() -> None:
    rank = RankState()
    gpu = {"kind": "gpu", "name": "G", "provenance": "measured"}
    place = {"run_id": "r", "rank": 0, "world_size": 1, "host": "h", "pid": 1, "t": 0.0}
    sensors = [{**gpu, "uid": "GPU-a"}, {**gpu, "uid": "GPU-b"}]
    rank.add({"kind": "open", "format": 1, **place, "sensors": sensors, "carried": None})
    one = snapshot_of(rank, {}, t_unix_s=0.0, caps=SetTo(("GPU-a",), 0.8, 700.0))
    assert [(d.limit_share, d.limit_w) for d in one.devices] == [(0.8, pytest.approx(560.0)), (None, None)]
    both = snapshot_of(rank, {}, t_unix_s=0.0, caps=SetTo(("GPU-a", "GPU-b"), 0.8, 1400.0))
    assert [(d.limit_share, d.limit_w) for d in both.devices] == [(0.8, None)] * 2, "whose watts is not known"
    figures = SnapshotMetrics()
    figures.update(one)
    found = {f.name: {s.labels.get("device", ""): s.value for s in f.samples} for f in figures.collect()}
    assert found["greentrain_power_limit_ratio"] == {"GPU-a": 0.8}
    assert found["greentrain_power_limit_watts"] == pytest.approx({"GPU-a": 560.0})


@pytest.mark.parametrize(
    ("module", "export", "extra"),
    [("prometheus_client", {"prometheus": {}}, "export"), ("opentelemetry", {"otel": {}}, "otel")],
)
def test_a_missing_extra_is_named_before_training(tmp_path: Path, module: str, export: Any, extra: str) -> None:
    code = f"""
        import sys
        sys.modules[{module!r}] = None
        from greentrain import GreenSession
        from greentrain.errors import MissingExtraError
        GreenSession({{"run": {{"dir": "runs", "report": False}}}}).start().close()
        try:
            GreenSession({{"run": {{"dir": {str(tmp_path / "x")!r}}}, "export": {export!r}}}).start()
        except MissingExtraError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        capture_output=True, text=True, timeout=240, cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert f"greentrain-torch[{extra}]" in done.stdout and not (tmp_path / "x").exists()


def test_it_says_what_a_sensor_sees_and_how_phases_are_told() -> None:
    state = RankState()
    phases = {"forward": {"how": "regressed", "error": 0.01, "w": 300.0}}
    event = {"kind": "event", "name": "attribution", "t": 1.0, "text": "x", "device": "GPU-0", "phases": phases}
    state.add(event | {"tick_s": 0.1, "sees_s": 0.025, "late_s": 0.003})
    state.add(event | {"tick_s": 0.1, "sees_s": float("nan"), "late_s": 0.003})  # damaged: the one before holds
    card = DeviceNow(uid="GPU-0", name="H100", kind="gpu", provenance="measured", told=state.books.told["GPU-0"])
    model = DeviceNow(uid="cpu", name="CPU", kind="cpu", provenance="modelled")
    metrics = SnapshotMetrics()
    metrics.update(replaced(devices=[card, model]))
    found = {sample.name: (sample.labels, sample.value) for family in metrics.collect() for sample in family.samples}
    assert found["greentrain_sensor_seen_seconds"] == (
        {"run": "r", "rank": "0", "device": "GPU-0", "kind": "gpu"},
        0.025,
    )
    assert found["greentrain_sensor_tick_seconds"][1] == 0.1 and found["greentrain_sensor_late_seconds"][1] == 0.003
    labels, error = found["greentrain_phase_error_ratio"]
    assert (labels["device"], labels["phase"], labels["attribution"], error) == ("GPU-0", "forward", "regressed", 0.01)


def test_it_says_what_a_driver_tells_beside_power() -> None:
    state = RankState()
    state.add({"kind": "open", "rank": 0, "run_id": "r", "world_size": 1, "host": "h", "sensors": [GPU]})
    told = {"forward": {"util_s": 4.0, "sm_s": 2.0, "temp_s": 4.0, "c_s": 200.0, "clocks_s": 4.0, "thermal_s": 1.0}}
    for i in range(2):
        part = replace(device(1000.0), states=told if i else {"data": {"clocks_s": 2.0, "thermal_s": 2.0}})
        state.add(entry_to_json(entry(T0_S + 10 * i, T0_S + 10 * i + 10, {"GPU-0": part})))
    metrics = SnapshotMetrics()
    metrics.update(snapshot_of(state, {}, t_unix_s=T0_S + 21))
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in metrics.collect()
        for sample in family.samples
        if re.search("utilisation|temperature|slowed", sample.name)
    }
    assert found == {
        ("greentrain_utilisation_ratio", "0", "GPU-0", "forward", "r", "sm"): 0.5,
        ("greentrain_utilisation_ratio", "0", "GPU-0", "forward", "memory", "r"): 0.0,
        ("greentrain_temperature_celsius", "0", "GPU-0", "gpu", "r"): 50.0,
        ("greentrain_slowed_seconds_total", "0", "GPU-0", "r", "thermal"): 3.0,
        ("greentrain_slowed_seconds_total", "0", "GPU-0", "power", "r"): 0.0,
        ("greentrain_slowed_seconds_total", "0", "GPU-0", "brake", "r"): 0.0,
    }


def test_a_fleets_page_says_what_its_state_says(tmp_path: Path) -> None:
    clock = HandClock(time.time() - HandClock.unix_offset_s)  # by that of this machine a controller is alive or not
    now_s = clock.unix_s()
    cluster = Cluster(tmp_path)
    took: list[float | None] = [None]
    figures = FleetMetrics(cluster, lambda: took[-1])
    with controlled(tmp_path / "fleet.db", clock) as state:
        shown = Page(PrometheusConfig(port=0), 0, figures)
        try:
            text = page(shown.port)
            found = samples(text)
            assert "fleet_replan_seconds" not in text, "nobody has said it"
            assert value(found, "fleet_power_watts", fleet="green", site="oslo", provenance="measured") == 4500.0
            assert value(found, "fleet_planned_power_watts", site="oslo") == 5000.0
            assert value(found, "fleet_power_cap_watts", site="oslo") == 6000.0
            assert value(found, "fleet_carbon_intensity_grams_per_kwh", site="oslo") == 400.0
            assert value(found, "fleet_watt_price_grams_per_kwh", site="oslo") == pytest.approx(50.0)
            assert value(found, "fleet_node_price_grams_per_hour", pool="gpu") == 250.0
            assert (value(found, "fleet_nodes", pool="gpu"), value(found, "fleet_planned_nodes", pool="gpu")) == (4, 4)
            assert value(found, "fleet_jobs", state="running") == 1 and value(found, "fleet_jobs", state="queued") == 0
            assert value(found, "fleet_jobs", state="gone") == 1 and value(found, "fleet_jobs", state="done") is None
            assert value(found, "fleet_emissions_grams_total", site="oslo") == 4000.0
            assert value(found, "fleet_bound_gap_ratio") == pytest.approx(0.04)
            assert value(found, "fleet_budget_grams") == 20_000.0
            assert value(found, "fleet_heartbeat_timestamp_seconds") == now_s
            assert value(found, "fleet_actions_total", verb="hold", outcome="done") == 1
            assert value(found, "fleet_actions_total", verb="release") is None, "nobody knows what came of it"
            assert value(found, "fleet_predicted_misses", reachable="yes") == 0
            (cut,) = state.unknown()
            state.conclude(cut.seq, "refused: no such job")
            late = [
                FleetJob(name="vision", state="held", late=True),
                FleetJob(name="rest", state="held", late=True),
                FleetJob(name="night", state="done", late=True),
            ]
            more = FleetSample(t_s=now_s + 20, site="oslo", power_w=3000.0, basis="measured", cap_w=5500.0, grams=7.0)
            state.write(jobs=late, samples=[more])
            took.append(2.5)
            for _ in range(2):
                found = samples(page(shown.port))
                assert value(found, "fleet_emissions_grams_total", site="oslo") == 4007.0, "each sample once"
                assert value(found, "fleet_actions_total", verb="release", outcome="refused") == 1
                assert value(found, "fleet_actions_total", verb="hold", outcome="done") == 1
            assert value(found, "fleet_power_watts", site="oslo", provenance="measured") == 3000.0
            assert value(found, "fleet_power_cap_watts", site="oslo") == 5500.0, "demand response"
            assert value(found, "fleet_replan_seconds") == 2.5
            misses = [value(found, "fleet_predicted_misses", reachable=which) for which in ("yes", "no")]
            assert misses == [1, 1], "one could be met alone, one is hopeless, one has ended"
            state.write(samples=[FleetSample(t_s=now_s + 40, site="oslo", power_w=None, basis="missing")])
            assert "fleet_power_watts" not in page(shown.port), "unknown is no sample"
            state.write(samples=[replace(more, t_s=now_s + 60)])
            assert "fleet_power_watts" in page(shown.port)
            state.release()
            assert "fleet_power_watts" not in page(shown.port), "nobody knows of now"
            assert value(samples(page(shown.port)), "fleet_controller_alive") == 0
            if PROMTOOL is not None:
                text = page(shown.port)
                done = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True)
                assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        finally:
            shown.close()
            cluster.close()


def test_a_fleet_without_a_plan_or_without_a_state(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    shown = Page(PrometheusConfig(port=0), 0, FleetMetrics(cluster))
    try:
        with pytest.raises((urllib.error.URLError, ConnectionError, http.client.HTTPException)):
            page(shown.port)
        FleetState(tmp_path / "fleet.db").close()
        found = samples(page(shown.port))
        assert value(found, "fleet_controller_alive") == 0 and value(found, "fleet_jobs", state="held") == 0
        assert "greentrain_fleet_heartbeat_timestamp_seconds" not in {name for name, _ in found}
    finally:
        shown.close()
        cluster.close()
