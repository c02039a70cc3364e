"""When and where to start: against brute force, and what cannot be planned."""

import io
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from greentrain.carbon.gb import GreatBritain
from greentrain.carbon.polled import PolledSignal
from greentrain.config.schema import CarbonConfig, GreenConfig, PolicyConfig
from greentrain.errors import CarbonSignalError, ConfigError, TraceError, UnknownZoneError
from greentrain.simulator import grids as module
from greentrain.simulator.advice import Advice, advise, most_tokens, render, sentence
from greentrain.simulator.grid_trace import Array
from greentrain.simulator.grids import ZoneGrid, next_hour, recorded_grid, zone_grids
from greentrain.simulator.jobs import terms_of
from greentrain.types import CarbonPoint
from tests.carbon.grid_server import CLOCK, QUICK, gb, grid_g, now, serving
from tests.simulator.grids import HOUR, START, trace, wandering
from tests.simulator.planning import ACTIONS, TABLE, integral, write_csv

TOKENS = 8.5 * HOUR * 1000.0
"""Those of 8.5 hours of the usual training."""


def _grid(values: Array, name: str = "here") -> ZoneGrid:
    return ZoneGrid(zone=name, trace=trace(values, name=name), label=f"{name}: made up")


def _advise(*grids: ZoneGrid, hours: float = 36.0, tokens: float = TOKENS, **policy: Any) -> Advice:
    return advise(
        grids,
        tokens=tokens,
        start_s=START,
        deadline_s=START + hours * HOUR,
        actions=ACTIONS,
        policy=GreenConfig.load({"policy": policy}).policy,
    )


# -- what is best ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_the_best_plain_start_is_that_of_brute_force(seed: int) -> None:
    grid = _grid(wandering(36, seed))
    (zone,) = _advise(grid).zones
    grams = {h: 0.4 * integral(grid.trace, START + h * HOUR, 8.5 * HOUR) for h in range(28)}
    best = min(grams, key=lambda h: grams[h])
    assert zone.best is not None and zone.best.start_s == START + best * HOUR
    assert zone.best.grams == pytest.approx(grams[best], rel=1e-9)
    assert zone.now is not None and zone.now.grams == pytest.approx(grams[0], rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_the_plan_lies_between_the_optimum_and_the_constant_pace(seed: int) -> None:
    (zone,) = _advise(_grid(wandering(36, seed))).zones
    assert zone.optimum_g <= zone.plan_g <= zone.blind_g
    assert zone.best is not None and zone.plan_g < zone.best.grams
    assert zone.plan_g == pytest.approx(zone.optimum_g, rel=0.02)
    worked = TABLE.costs[1].tokens_per_s
    assert worked is not None and zone.work_s == pytest.approx(TOKENS / worked.mean, rel=1e-9)
    assert START <= zone.first_s < zone.end_s <= START + 36 * HOUR


def test_a_constant_grid_has_no_best_moment() -> None:
    advice = _advise(_grid(np.full(36, 250.0)))
    (zone,) = advice.zones
    assert zone.best == zone.now and zone.now is not None
    assert zone.saving(zone.blind_g) == pytest.approx(0.0, abs=1e-9)
    assert zone.saving() == pytest.approx(1 - 450 / 1500 / (400 / 1000), rel=1e-9)
    assert "best begun at once" in sentence(advice)


def test_the_cleanest_zone_is_named_whatever_the_order() -> None:
    grids = [_grid(wandering(36), "dirty"), _grid(wandering(36) / 2, "clean")]
    for order in (grids, grids[::-1]):
        advice = _advise(*order)
        assert advice.best.grid.zone == "clean"
        text = sentence(advice)
        assert text.startswith("Train in clean, planned by mpc from ") and text.endswith(".") and text.count(". ") == 0
        assert "50.0 % less than the plan in dirty" in text


def test_pauses_and_work_are_counted() -> None:
    values = np.full(36, 500.0)
    values[[3, 4, 6, 11, 20, 21]] = 100.0
    (zone,) = _advise(_grid(values)).zones
    assert zone.first_s == START + 3 * HOUR and zone.pauses == 3


def test_a_plain_run_that_is_too_slow() -> None:
    advice = _advise(_grid(wandering(8)), hours=8.0)
    (zone,) = advice.zones
    assert zone.now is None and zone.best is None and zone.saving() is None
    assert "would miss the deadline" in sentence(advice)
    assert advice.to_dict()["zones"][0]["static_now_kg"] is None


def test_a_deadline_within_an_hour() -> None:
    (zone,) = _advise(_grid(wandering(9)), hours=8.6).zones
    assert zone.best is not None and zone.best.start_s == START
    assert zone.end_s <= START + 8.6 * HOUR


def test_the_earliest_feasible_deadline_is_one() -> None:
    grid = _grid(wandering(36))
    with pytest.raises(ConfigError, match=r"needs 5\.667 h\. The earliest feasible deadline is 2022") as caught:
        _advise(grid, hours=5.0)
    found = re.search(r"deadline is (\S+) \(--deadline (\S+)\)", str(caught.value))
    assert found is not None
    for text in found.groups():
        terms = terms_of(TOKENS, text, "2022-01-01T00:00Z")
        advise(
            [grid], tokens=TOKENS, start_s=START, deadline_s=terms.deadline_s, actions=ACTIONS, policy=PolicyConfig()
        )
        with pytest.raises(ConfigError, match="earliest"):
            _advise(grid, hours=(terms.deadline_s - START) / HOUR - 0.02)


def test_the_configured_policy_plans_and_switching_costs_count() -> None:
    values = np.where(np.arange(36) % 2, 500.0, 100.0)
    free, dear = (_advise(_grid(values), switch_s=switch_s, released=True) for switch_s in (0.0, 1800.0))
    assert dear.zones[0].plan_g > free.zones[0].plan_g
    rule = PolicyConfig(name="threshold", tokens=1.0, deadline_h=1.0)
    keys: dict[str, Any] = {"tokens": TOKENS, "start_s": START, "deadline_s": START + 36 * HOUR, "actions": ACTIONS}
    assert advise([_grid(values)], policy=rule, **keys).zones[0].plan.name == "threshold"


def test_gears_that_may_not_be_used_do_not_plan() -> None:
    keys: dict[str, Any] = {"tokens": TOKENS, "start_s": START, "deadline_s": START + 36 * HOUR, "actions": ACTIONS}
    grids = [_grid(wandering(36))]
    plans = [
        advise(grids, policy=PolicyConfig(), precision=GreenConfig.load({"precision": said}).precision, **keys)
        for said in ({}, {"gears": ["bf16", "fp8"], "fp8_max_share": 0.4}, {"gears": ["bf16"]})
    ]
    assert plans[0].zones[0].plan_g < plans[1].zones[0].plan_g < plans[2].zones[0].plan_g
    assert any("At most 40% of the steps" in note for note in plans[1].notes())


def test_held_ranks_cost() -> None:
    held = _advise(_grid(wandering(36)), released=False, idle_w=100.0)
    free = _advise(_grid(wandering(36)))
    assert held.zones[0].plan_g > free.zones[0].plan_g
    assert any("held, at 100 W each" in note for note in held.notes())


def test_the_table_and_the_json_say_what_is_assumed() -> None:
    advice = _advise(_grid(wandering(36), "US-CAL-CISO"), _grid(wandering(36) * 2, "US-MIDW-MISO"))
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render(advice))
    text = console.export_text()
    assert "Watts and speeds assumed: declared in a test" in text and "US-CAL-CISO: made up" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    data = json.loads(json.dumps(advice.to_dict(), allow_nan=False))
    assert data["best_zone"] == "US-CAL-CISO" and data["actions"]["provenance"] == "assumed"
    zone = data["zones"][0]
    assert zone["plan_kg"] * 1000 == advice.zones[0].plan_g and len(zone["hourly_g_per_kwh"]) == 36
    assert {hour["action"] for hour in zone["hours"]} <= {"off", "fp8", "bf16"}


# -- what somebody writes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "deadline", "start", "said"),
    [
        (0.0, "36", None, "--tokens is 0; a job has 1 or more"),
        (-2.0, "36", None, "--tokens is -2"),
        (float("nan"), "36", None, "--tokens is nan"),
        (float("inf"), "36", None, "--tokens is inf"),
        (1e9, "0", None, "--deadline is '0'; it must be hours above 0"),
        (1e9, "-1", None, "--deadline is '-1'"),
        (1e9, "nan", None, "--deadline is 'nan'"),
        (1e9, "1e9", None, "up to 8784"),
        (1e9, "soon", None, "--deadline is 'soon'; write it as ISO 8601"),
        (1e9, "2020-01-01T00:00Z", None, r"--deadline is '2020-01-01T00:00Z', \d+ d.* before the start at"),
        (1e9, "2022-01-01T00:00Z", "2022-01-01T00:00Z", "choose a time after it"),
        (1e9, "2030-01-01T00:00", None, "--deadline is '2030-01-01T00:00', without a time zone"),
        (1e9, "36", "2022-01-01T00:00", "--start is '2022-01-01T00:00', without a time zone"),
        (1e9, "36", "now", "--start is 'now'"),
    ],
)
def test_terms_that_cannot_be(tokens: float, deadline: str, start: str | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        terms_of(tokens, deadline, start)


def test_terms() -> None:
    assert terms_of(5.0, "1.5", "2022-01-01T01:00+01:00").deadline_s == START + 1.5 * HOUR
    assert terms_of(5.0, "2022-01-01T02:00Z", "2022-01-01T00:00Z").deadline_s == START + 2 * HOUR
    assert terms_of(5.0, "1", None, [trace(np.ones(5))]).start_s == START
    assert terms_of(5.0, "1").start_s % HOUR == 0 and next_hour(START) == START
    assert next_hour(START + 1.0) == START + HOUR


# -- grids -------------------------------------------------------------------------------------------------------------


def test_typical_zones_of_a_configuration_or_by_name() -> None:
    named = zone_grids(CarbonConfig(), ["CISO", "US-MIDA-PJM"], [], START, START + 5.5 * HOUR)
    assert [grid.zone for grid in named] == ["US-CAL-CISO", "US-MIDA-PJM"]
    assert len(named[0].trace.g_per_kwh) == 6 and "off by 16%" in named[0].label
    (own,) = zone_grids(CarbonConfig(signal="typical", zone="PJM"), [], [], START, START + HOUR)
    assert own.zone == "US-MIDA-PJM"


def test_a_recording_is_cut_to_the_plan(tmp_path: Path) -> None:
    grid = recorded_grid(str(write_csv(tmp_path / "x.csv", np.arange(1.0, 11.0))))
    (found,) = zone_grids(CarbonConfig(), [], [grid], START + 1.5 * HOUR, START + 10 * HOUR)
    assert found.trace.g_per_kwh == pytest.approx([2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5, 10.0])
    with pytest.raises(TraceError, match=r"but trace 'x' covers 2022-01-01T00:00Z to 2022-01-01T10:00Z"):
        zone_grids(CarbonConfig(), [], [grid], START, START + 10.5 * HOUR)


def test_zones_that_cannot_be(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "x.csv", np.arange(1.0, 11.0))
    span = (START, START + HOUR)
    with pytest.raises(ConfigError, match="no zone is named: say --zones"):
        zone_grids(CarbonConfig(), [], [], *span)
    with pytest.raises(UnknownZoneError, match="nearest are US-CAL-CISO"):
        zone_grids(CarbonConfig(), ["US-CAL-CISOO"], [], *span)
    with pytest.raises(ConfigError, match="'US-CAL-CISO' is named twice"):
        zone_grids(CarbonConfig(), ["CISO", "US-CAL-CISO"], [], *span)
    with pytest.raises(ConfigError, match=r"basis \(US-CAL-CISO is average; x is marginal\)"):
        zone_grids(CarbonConfig(), ["CISO"], [recorded_grid(f"{path}@marginal")], *span)
    with pytest.raises(ConfigError, match=r"accounting \(US-CAL-CISO is production; x is consumption\)"):
        zone_grids(CarbonConfig(), ["CISO"], [recorded_grid(f"{path}@average:consumption")], *span)


class _Live:
    """Stands in for a signal that asks a network: 200 g/kWh now, its own forecast for six hours, or nothing."""

    def __init__(self, known: bool) -> None:
        self.zone, self.known, self.calls = "GB", known, list[str]()
        self.problem = "" if known else "the server is silent"

    def start(self) -> None:
        self.calls.append("start")

    def wait(self, timeout_s: float) -> bool:
        self.calls.append("wait")
        return self.known

    def close(self) -> None:
        self.calls.append("close")

    def mean(self, t0_unix_s: float, t1_unix_s: float) -> CarbonPoint:
        return self._point(t0_unix_s, t1_unix_s, 200.0 if self.known else None)

    def forecast(self, t0_unix_s: float, t1_unix_s: float) -> list[CarbonPoint]:
        edges = [t0_unix_s + i * HOUR for i in range(6)]
        return [self._point(t, t + HOUR, 100.0 + i) for i, t in enumerate(edges)] if self.known else []

    def describe(self) -> dict[str, str]:
        return {"signal": "gb", "zone": "GB", "source": "made-up server, 2026"}

    def _point(self, t0_s: float, t1_s: float, value: float | None) -> CarbonPoint:
        return CarbonPoint(t0_unix_s=t0_s, t1_unix_s=t1_s, g_per_kwh=value, zone="GB", source="made-up")


def test_a_live_signal_tells_its_forecast_and_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    live = _Live(True)
    monkeypatch.setattr(module, "open_signal", lambda config: live)
    monkeypatch.setattr(module, "QUIET_S", 0.1)
    carbon = CarbonConfig(signal="gb", zone="GB")
    (found,) = zone_grids(carbon, [], [], START, START + 8 * HOUR)
    assert found.trace.g_per_kwh[:6].tolist() == [100.0, 101.0, 102.0, 103.0, 104.0, 105.0]
    assert len(found.trace.g_per_kwh) == 8 and np.isfinite(found.trace.g_per_kwh).all()
    assert "made-up server, 2026: the source's own forecast for 6 h" in found.label
    assert live.calls == ["start", "wait", "close"]


def test_a_live_signal_that_knows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    live = _Live(False)
    monkeypatch.setattr(module, "open_signal", lambda config: live)
    monkeypatch.setattr(module, "QUIET_S", 0.1)
    with pytest.raises(
        CarbonSignalError, match=r"cannot say what 'GB' .*: the server is silent\. Leave carbon\.signal"
    ):
        zone_grids(CarbonConfig(signal="gb", zone="GB"), [], [], START, START + 8 * HOUR)
    assert live.calls[-1] == "close"


def test_a_server_is_asked_for_its_forecast(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(gb) as server:
        source = GreatBritain("GB", base_url=server.url)
        signal = PolledSignal(source, cache_dir=tmp_path, patience=QUICK, clock=CLOCK)
        monkeypatch.setattr(module, "open_signal", lambda config: signal)
        start_s = now() // HOUR * HOUR + HOUR
        (found,) = zone_grids(CarbonConfig(signal="gb", zone="GB"), [], [], start_s, start_s + 30 * HOUR)
    assert found.trace.g_per_kwh.tolist() == [grid_g(start_s + h * HOUR) + 3 for h in range(30)]
    assert found.trace.accounting == "consumption, direct" and "own forecast for 30 h" in found.label


# -- most tokens for grams ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_the_dual_gives_back_the_tokens_that_a_plan_took_its_grams_for(seed: int) -> None:
    grids = [_grid(wandering(36, seed), "one"), _grid(wandering(36, seed + 10), "two")]
    plan = _advise(*grids)
    found = most_tokens(lambda tokens: _advise(*grids, tokens=tokens), plan.best.plan_g)
    assert found.best.plan_g <= plan.best.plan_g and found.best.grid.zone == plan.best.grid.zone
    assert found.tokens == pytest.approx(TOKENS, rel=2e-4)
    less = most_tokens(lambda tokens: _advise(*grids, tokens=tokens), plan.best.plan_g / 2)
    assert TOKENS / 2 < less.tokens < TOKENS, "the second half of the tokens takes the dearer hours"
    assert _advise(*grids, tokens=less.tokens * 1.001).best.plan_g > plan.best.plan_g / 2


def test_where_grams_are_plenty_the_deadline_ends_the_tokens() -> None:
    grid = _grid(wandering(36, 1))
    found = most_tokens(lambda tokens: _advise(grid, hours=12.0, tokens=tokens), 1e12)
    fastest = float(found.menu.tokens_per_s[found.menu.fastest]) * 12 * HOUR
    assert found.tokens == pytest.approx(fastest, rel=2e-4) and found.tokens <= fastest
    for grams in (0.0, -1.0, math.nan):
        with pytest.raises(ConfigError, match=r"--grams is .*: give more"):
            most_tokens(lambda tokens: _advise(grid, tokens=tokens), grams)
