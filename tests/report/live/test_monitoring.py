"""The dashboard and the alerts that come with the package, held against a real Prometheus that scrapes real runs."""

import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("prometheus_client", reason="the extra 'export' is not installed")
pytest.importorskip("httpx", reason="the extra 'prometheus' is not installed")

import httpx

from greentrain.config.schema import PrometheusConfig
from greentrain.ledger.totals import StageUse
from greentrain.report.cluster import Cluster
from greentrain.report.live.prometheus import FleetMetrics, Page, SnapshotMetrics
from greentrain.report.live.rank_state import SavedGrams
from greentrain.report.live.snapshot import DeviceNow, PlanNow, Snapshot
from greentrain.report.summary import state_figures
from tests.helpers.hand_clock import HandClock
from tests.helpers.ports import free_port
from tests.report.cluster_plans import controlled
from tests.report.live.shown import planned, until

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
FILES = resources.files("greentrain.report.live")
DASHBOARD = json.loads(FILES.joinpath("dashboard.json").read_text(encoding="utf-8"))
ALERTS = FILES.joinpath("alerts.yaml").read_text(encoding="utf-8")
RULES = {rule["alert"]: rule for group in yaml.safe_load(ALERTS)["groups"] for rule in group["rules"]}
BUSY = state_figures([{"util_s": 10.0, "sm_s": 9.0, "memory_s": 4.0, "temp_s": 1.0, "c_s": 61.0, "max_c": 61.0}])
FULL = Snapshot(
    cost={"EUR": 1.0}, per_kwh=0.3,
    run_id="full", name="full", rank=0, world_size=2, host="h", t_unix_s=1.0, booked_unix_s=1.0, duration_s=1.0,
    devices=(
        DeviceNow(uid="g", name="G", kind="gpu", provenance="measured", energy_j=1.0, power_w=1.0, limit_share=0.8,
                  limit_w=560.0, slowed_s={"power": 2.0},
                  states={"": BUSY, "forward": {**BUSY, "sm_utilisation": 0.5}},
                  told={"tick_s": 0.1, "sees_s": 0.025, "late_s": 0.003,
                        "phases": {"forward": {"how": "regressed", "error": 0.01, "w": 300.0}}}),
    ),
    operational_g=1.0, market_g=1.0, embodied_g=1.0, steps=1, tokens=1, samples=1, g_per_kwh=1.0, zone="z",
    kind="actual", basis="average", pue=1.1, pue_source="constant", gear="bf16", gears=("bf16",), budget_g=1.0,
    saved=SavedGrams(grams=1.0, provenance="measured", against="bf16"),
    stages=(StageUse(stage="forward", kind="gpu", energy_j=1.0, provenance="measured", missing_share=0.0, tokens=4),
            StageUse(stage="forward", kind="cpu")),
    plan=PlanNow(action="bf16", paused=False, reason="", done=False, next_unix_s=2.0, resume_unix_s=2.0,
                 deadline_unix_s=3.0, tokens=2.0),
)  # fmt: skip
"""A snapshot in which everything is known."""


@contextmanager
def fleet_page(folder: Path) -> Iterator[Page]:
    """Serve the metrics of a fleet of which everything is known."""
    clock = HandClock(time.time() - HandClock.unix_offset_s)
    cluster = Cluster(folder)
    with controlled(folder / "fleet.db", clock):
        page = Page(PrometheusConfig(port=0), 0, FleetMetrics(cluster, lambda: 1.0))
        try:
            yield page
        finally:
            page.close()
            cluster.close()


@lru_cache
def exported() -> frozenset[str]:
    """Return the names of all metrics."""
    figures = SnapshotMetrics()
    figures.update(FULL)
    names = {sample.name for family in figures.collect() for sample in family.samples}
    with tempfile.TemporaryDirectory() as folder, fleet_page(Path(folder)) as page:
        text = httpx.get(f"http://127.0.0.1:{page.port}/metrics", trust_env=False).text
    return frozenset(names | set(re.findall(r"^(greentrain_fleet_\w+){", text, re.MULTILINE)))


def expressions() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for name, rule in RULES.items():
        yield name, rule["expr"]


def filled(expr: str) -> str:
    """Return an expression with what Grafana fills in."""
    out = expr.replace("$run", ".+").replace("$rank", ".+").replace("$__rate_interval", "10s")
    assert "$" not in out.replace("$labels", ""), expr
    return out


def test_the_dashboard_and_the_alerts_name_what_is_exported() -> None:
    named = {name for _, expr in expressions() for name in re.findall(r"\bgreentrain_\w+", expr)}
    named |= {name for item in DASHBOARD["templating"]["list"] for name in re.findall(r"greentrain_\w+", str(item))}
    assert named <= exported()
    shown = {name for panel in DASHBOARD["panels"] for name in re.findall(r"greentrain_\w+", str(panel["targets"]))}
    unseen = {name for name in exported() - shown if not re.search(r"_info$|timestamp|plan_tokens|budget", name)}
    assert unseen <= {
        "greentrain_samples_total",
        "greentrain_booked_seconds_total",
        "greentrain_unpriced_energy_joules_total",
        "greentrain_sensor_tick_seconds",
        "greentrain_sensor_seen_seconds",
        "greentrain_sensor_late_seconds",
        "greentrain_phase_error_ratio",
    }, unseen


def test_the_dashboard_is_whole() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert DASHBOARD["templating"]["list"][0]["type"] == "datasource"
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["datasource"]["uid"] == "${datasource}" and panel["fieldConfig"]["defaults"]["unit"]
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells


def ask(url: str, expr: str) -> list[Any]:
    answer = httpx.get(f"{url}/api/v1/query", params={"query": expr}, timeout=10, trust_env=False)
    found = answer.json()
    assert found["status"] == "success", (expr, found)
    return list(found["data"]["result"])


OF_A_DRIVER = ("Power limits", "GPU utilisation by phase", "Temperature", "Clocks held down")
"""Panels of what a GPU's driver does or tells."""


@contextmanager
def prometheus(tmp_path: Path, *ports: int) -> Iterator[str]:
    assert PROMETHEUS is not None
    port, config = free_port(), tmp_path / "prometheus.yml"
    (tmp_path / "alerts.yaml").write_text(ALERTS, encoding="utf-8")
    targets = [f"127.0.0.1:{one}" for one in ports]
    config.write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "1s"},
                "rule_files": ["alerts.yaml"],
                "scrape_configs": [{"job_name": "greentrain", "static_configs": [{"targets": targets}]}],
            }
        )
    )
    command = [
        PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
    ]  # fmt: skip
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def knows(url: str, expr: str) -> bool:
    try:
        return bool(ask(url, expr))
    except (httpx.TransportError, ValueError):
        return False


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus binary on PATH (Debian: apt install prometheus)")
def test_a_real_prometheus_knows_every_panel_of_a_running_job(tmp_path: Path) -> None:
    """A planned run is scraped; what a driver does and tells, as no card is here, comes from a page beside it."""
    port, caps = free_port(), Page(PrometheusConfig(port=0), 0)
    caps.update(FULL)
    try:
        with (
            fleet_page(tmp_path) as fleet,
            prometheus(tmp_path, port, caps.port, fleet.port) as url,
            planned(tmp_path, {"prometheus": {"port": port}}) as green,
        ):
            run = "" if green.folder is None else green.folder.name
            end_s, next_s = time.monotonic() + 150, 0.0
            green.gear("fp8")
            unknown = {title: filled(expr) for title, expr in expressions() if title not in RULES}
            while unknown and time.monotonic() < end_s:
                time.sleep(0.05)
                green.step(tokens=20)
                if time.monotonic() >= next_s:
                    next_s = time.monotonic() + 0.5
                    unknown = {title: expr for title, expr in unknown.items() if not knows(url, expr)}
            assert not unknown
            for title, expr in expressions():
                ask(url, filled(expr))
                elsewhere = title in RULES or any(name in title for name in (*OF_A_DRIVER, "Fleet: "))
                assert elsewhere or ask(url, filled(expr).replace('run=~".+"', f'run="{run}"')), title
            until(lambda: bool(ask(url, f'greentrain_saved_grams{{run="{run}"}}')))
            (saved,) = ask(url, f'greentrain_saved_grams{{run="{run}"}}')
            assert saved["metric"]["provenance"] == "assumed" and saved["metric"]["against"] == "bf16"
            power = sum(float(one["value"][1]) for one in ask(url, f'greentrain_power_watts{{run="{run}"}}'))
            assert power == pytest.approx(250.0, rel=0.1)
            firing = {one["metric"]["alertname"] for one in ask(url, f'ALERTS{{run="{run}",alertstate="firing"}}')}
            assert not firing, "a job that is well has no alert"
            groups = httpx.get(f"{url}/api/v1/rules", trust_env=False).json()["data"]["groups"]
            rules = {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
            assert rules == dict.fromkeys(RULES, "ok")
    finally:
        caps.close()


CASES: dict[str, tuple[list[tuple[str, str]], list[tuple[str, str]], str]] = {
    "GreenTrainSensorGone": (
        [('greentrain_sensor_missing_seconds_total{run="r",rank="0",device="g",kind="gpu"}', "0+15x80")],
        [('greentrain_sensor_missing_seconds_total{run="r",rank="0",device="g",kind="gpu"}', "7+0x80")],
        'run="r",rank="0",device="g",kind="gpu"',
    ),
    "GreenTrainJobStalled": (
        [('greentrain_steps_total{run="r",rank="0"}', "50+0x80")],
        [
            ('greentrain_steps_total{run="moves",rank="0"}', "0+3x80"),
            ('greentrain_steps_total{run="paused",rank="0"}', "50+0x80"),
            ('greentrain_steps_total{run="paused",rank="1"}', "50+0x80"),
            ('greentrain_plan_paused{run="paused",rank="0"}', "1+0x80"),
        ],
        'run="r",rank="0"',
    ),
    "GreenTrainBudgetNearlySpent": (
        [
            ('greentrain_emissions_grams_total{run="r",rank="0",scope="location"}', "40+0x80"),
            ('greentrain_emissions_grams_total{run="r",rank="1",scope="embodied"}', "45+0x80"),
            ('greentrain_budget_grams{run="r",rank="0"}', "100+0x80"),
            ('greentrain_budget_grams{run="r",rank="1"}', "100+0x80"),
        ],
        [
            ('greentrain_emissions_grams_total{run="r",rank="0",scope="location"}', "40+0x80"),
            ('greentrain_emissions_grams_total{run="r",rank="0",scope="market"}', "90+0x80"),
            ('greentrain_budget_grams{run="r",rank="0"}', "100+0x80"),
            ('greentrain_emissions_grams_total{run="none",rank="0",scope="location"}', "900+0x80"),
        ],
        'run="r"',
    ),
    "GreenTrainBudgetSpent": (
        [
            ('greentrain_emissions_grams_total{run="r",rank="0",scope="location"}', "100+0x80"),
            ('greentrain_budget_grams{run="r",rank="0"}', "100+0x80"),
        ],
        [
            ('greentrain_emissions_grams_total{run="r",rank="0",scope="location"}', "99+0x80"),
            ('greentrain_budget_grams{run="r",rank="0"}', "100+0x80"),
        ],
        'run="r"',
    ),
    "GreenTrainNoIntensity": (
        [('greentrain_unpriced_energy_joules_total{run="r",rank="0"}', "0+900x80")],
        [('greentrain_unpriced_energy_joules_total{run="r",rank="0"}', "5+0x80")],
        'run="r",rank="0"',
    ),
    "GreenTrainRanksMissing": (
        [('greentrain_up{run="r",rank="0"}', "1+0x80"), ('greentrain_world_size{run="r",rank="0"}', "2+0x80")],
        [
            ('greentrain_up{run="r",rank="0"}', "1+0x80"),
            ('greentrain_up{run="r",rank="1"}', "1+0x80"),
            ('greentrain_world_size{run="r",rank="0"}', "2+0x80"),
        ],
        'run="r"',
    ),
    "GreenTrainExporterDown": (
        [('up{job="greentrain",instance="a:9464"}', "0+0x80")],
        [('up{job="greentrain",instance="a:9464"}', "1+0x80"), ('up{job="other",instance="b:1"}', "0+0x80")],
        'job="greentrain",instance="a:9464"',
    ),
    "GreenTrainNotBooking": (
        [('greentrain_last_booking_timestamp_seconds{run="r",rank="0"}', "0+0x80")],
        [('greentrain_last_booking_timestamp_seconds{run="r",rank="0"}', "0+15x80")],
        'run="r",rank="0"',
    ),
    "GreenTrainFleetControllerDead": (
        [('greentrain_fleet_controller_alive{fleet="f"}', "0+0x80")],
        [
            ('greentrain_fleet_controller_alive{fleet="f"}', "1+0x80"),
            ('greentrain_fleet_heartbeat_timestamp_seconds{fleet="f"}', "0+15x80"),
        ],
        'fleet="f"',
    ),
    "GreenTrainFleetCapExceeded": (
        [
            ('greentrain_fleet_power_watts{fleet="f",site="a",provenance="measured"}', "101+0x80"),
            ('greentrain_fleet_power_cap_watts{fleet="f",site="a"}', "100+0x80"),
        ],
        [
            ('greentrain_fleet_power_watts{fleet="f",site="a",provenance="measured"}', "100+0x80"),
            ('greentrain_fleet_power_cap_watts{fleet="f",site="a"}', "100+0x80"),
            ('greentrain_fleet_power_watts{fleet="f",site="b",provenance="measured"}', "900+0x80"),
        ],
        'fleet="f",site="a",provenance="measured"',
    ),
    "GreenTrainFleetDeadlineAtRisk": (
        [('greentrain_fleet_predicted_misses{fleet="f",reachable="yes"}', "1+0x80")],
        [
            ('greentrain_fleet_predicted_misses{fleet="f",reachable="yes"}', "0+0x80"),
            ('greentrain_fleet_predicted_misses{fleet="f",reachable="no"}', "3+0x80"),
        ],
        'fleet="f",reachable="yes"',
    ),
    "GreenTrainFleetBudgetNearlyUsed": (
        [
            ('greentrain_fleet_planned_grams{fleet="f"}', "96+0x80"),
            ('greentrain_fleet_budget_grams{fleet="f"}', "100+0x80"),
        ],
        [
            ('greentrain_fleet_planned_grams{fleet="f"}', "94+0x80"),
            ('greentrain_fleet_budget_grams{fleet="f"}', "100+0x80"),
            ('greentrain_fleet_planned_grams{fleet="none"}', "900+0x80"),
        ],
        'fleet="f"',
    ),
}
"""Series in which each alert fires, and some in which it does not, a value every 15 s for 20 min; and its labels."""


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool on PATH (Debian: apt install prometheus)")
def test_each_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    assert CASES.keys() == RULES.keys()
    (tmp_path / "alerts.yaml").write_text(ALERTS, encoding="utf-8")
    tests: list[dict[str, Any]] = []
    for name, (firing, quiet, labels) in CASES.items():
        rule = RULES[name]
        own = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        for series, alerts in ((firing, [{"exp_labels": {**own, **rule["labels"]}}]), (quiet, [])):
            inputs = [{"series": one, "values": values} for one, values in series]
            tests.append(
                {
                    "interval": "15s",
                    "input_series": inputs,
                    "alert_rule_test": [{"eval_time": "20m", "alertname": name, "exp_alerts": alerts}],
                }
            )
    bare = [{**rule, "annotations": {}} for rule in RULES.values()]  # texts for people; promtool compares them, too
    (tmp_path / "bare.yaml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": bare}]}))
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["bare.yaml"], "tests": tests}))
    checked = _promtool("check", "rules", str(tmp_path / "alerts.yaml"))
    assert checked.returncode == 0 and f"{len(RULES)} rules found" in checked.stdout
    done = _promtool("test", "rules", str(tmp_path / "tests.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool on PATH (Debian: apt install prometheus)")
def test_the_scrape_configuration_of_the_documentation_is_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "monitoring.md").read_text(encoding="utf-8")
    found = re.search(r"```yaml\n(# prometheus\.yml\n.*?)```", page, re.DOTALL)
    assert found is not None
    (tmp_path / "token").write_text("0123456789abcdef")
    (tmp_path / "greentrain-alerts.yaml").write_text(ALERTS, encoding="utf-8")
    text = found[1].replace("/etc/prometheus/greentrain.token", "token")
    (tmp_path / "prometheus.yml").write_text(text, encoding="utf-8")
    done = _promtool("check", "config", str(tmp_path / "prometheus.yml"))
    assert done.returncode == 0 and "1 rule files found" in done.stdout, done.stdout + done.stderr
    assert [job["job_name"] for job in yaml.safe_load(text)["scrape_configs"]] == re.findall(r'job="(\w+)"', ALERTS)


def test_every_metric_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[3] / "docs" / "monitoring.md").read_text(encoding="utf-8")
    for name in exported():
        short = re.sub(r"greentrain_plan_(\w+?)_timestamp_seconds", r"..._\1_...", name)
        assert f"`{name}`" in page or f"`{short}`" in page, name
    assert set(re.findall(r"`(greentrain_\w+)`", page)) <= exported()


def _promtool(*words: str) -> "subprocess.CompletedProcess[str]":
    assert PROMTOOL is not None
    return subprocess.run([PROMTOOL, *words], capture_output=True, text=True, timeout=240, check=False)
