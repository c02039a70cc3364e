"""From a configuration and grids to a table of savings."""

from pathlib import Path
from typing import Any

import pytest

from greentrain.config.schema import SCHEDULERS, GreenConfig
from greentrain.errors import ConfigError, TraceError
from greentrain.policy.action_sources import reference_table
from greentrain.simulator.grid_trace import GridTrace
from greentrain.simulator.jobs import HISTORY_H
from greentrain.simulator.simulate import SimulationResult, simulate
from greentrain.types import CarbonBasis
from tests.simulator.grids import HOUR, START, daily, moments, trace, wandering

TABLE = reference_table()
TOKENS = 0.7e6 * 36 * HOUR


def config(**policy: Any) -> GreenConfig:
    given = {"name": "mpc", "tokens": TOKENS, "deadline_h": 72.0} | policy
    return GreenConfig.load({"policy": {key: value for key, value in given.items() if value is not None}})


def small(**more: Any) -> SimulationResult:
    grid = trace(wandering(600))
    given: dict[str, Any] = {"table": TABLE, "history_h": 48.0, "count": 4, "forecaster": daily} | more
    traces = given.pop("traces", [grid])
    return simulate(given.pop("config", config()), traces, **given)


def test_savings_are_those_of_the_grams() -> None:
    result = small()
    assert [one.policy for one in result.outcomes] == ["static", "carbon_blind", "mpc"]
    static, blind, mpc = result.outcomes
    known = mpc.references
    assert static.saving == pytest.approx(0.0, abs=1e-12)
    assert static.grams == pytest.approx(known.static_g.sum())
    assert blind.saving == pytest.approx(1 - known.blind_g.sum() / known.static_g.sum(), abs=0.02)
    assert mpc.saving == 1 - mpc.track.grams.sum() / known.static_g.sum()
    assert mpc.mean_saving == pytest.approx((1 - mpc.track.grams / known.static_g).mean())
    assert blind.saving < mpc.saving and 0 < mpc.excess < 0.2 and mpc.saving_over_blind > 0
    assert mpc.kwh == pytest.approx(mpc.track.joules.sum() / 3.6e6)
    assert mpc.switches_per_day == pytest.approx(mpc.track.switches.sum() / (mpc.track.end_s.sum() / 86400))
    assert (known.oracle_g < known.blind_g).all() and (known.blind_g < known.static_g).all()
    assert result.of("mpc") is mpc
    with pytest.raises(KeyError, match="'carl' on None was not simulated"):
        result.of("carl")


def test_the_table_says_what_it_is_of() -> None:
    text = str(small())
    assert "mpc" in text and "4 jobs a trace" in text
    assert "8 nodes of 8 x H100, width and caps, BF16 or FP8: watts and speeds assumed" in text


def test_the_same_arguments_give_the_same_result() -> None:
    a, b = small(), small()
    assert [one.track.grams.tolist() for one in a.outcomes] == [one.track.grams.tolist() for one in b.outcomes]


def test_every_policy_of_a_configuration_can_be_simulated() -> None:
    result = small(policies=("static", *SCHEDULERS), seeds=2, history=True)
    for one in result.outcomes:
        assert one.misses == 0 and len(one.track.grams) == 8
        assert one.track.history is not None
        assert one.track.history.grams.sum() == pytest.approx(one.grams)


def test_starts_may_be_given() -> None:
    result = small(starts_unix_s=moments(["2022-01-05T12:00Z"]))
    assert result.jobs[0].start_unix_s.tolist() == [START + 108 * HOUR]


def test_progress_is_told() -> None:
    said: list[tuple[int, int]] = []
    small(progress=lambda done, of: said.append((done, of)))
    assert said == [(1, 3), (2, 3), (3, 3)]


def test_perfect_foresight_is_better_than_a_forecast() -> None:
    assert small(forecaster=None).of("mpc").excess < small().of("mpc").excess


def test_ranks_that_are_held_leave_little_to_gain() -> None:
    free, held = small(), small(config=config(released=False, idle_w=2100.0))
    assert held.of("mpc").saving < free.of("mpc").saving
    assert held.of("mpc").excess < 0.05


def test_a_declared_table_is_read(tmp_path: Path) -> None:
    path = tmp_path / "actions.yaml"
    path.write_text("- {gear: bf16, tokens_per_s: 7.0e5, power_w: 62400}\n", encoding="utf-8")
    result = small(table=None, config=config(actions=str(path)))
    assert result.table == "declared in actions.yaml" and len(result.menu) == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"config": config(name="static", tokens=None)}, r"policy\.tokens must be set to simulate"),
        ({"table": None}, r"name it with policy\.actions"),
        ({"traces": []}, "there is no trace"),
        ({"config": config(deadline_h=6.0)}, r"cannot be done in the 6 h.*earliest feasible deadline is"),
        ({"config": config(released=False)}, "idle_w"),
        ({"policies": ("thresold",)}, "policy.name is 'thresold'.*Did you mean 'threshold'"),
    ],
)
def test_what_cannot_be_simulated(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        small(**given)


def test_bases_are_not_mixed() -> None:
    grid = trace(wandering(600), name="a")
    other = trace(wandering(600), basis=CarbonBasis.MARGINAL, name="b")
    with pytest.raises(ConfigError, match=r"mix bases.*'a' is average, unspecified; 'b' is marginal, unspecified"):
        small(traces=[grid, other])


def test_a_trace_shorter_than_history_and_horizon() -> None:
    with pytest.raises(TraceError, match="covers 600 h, which is shorter than 1000 h of history"):
        small(history_h=1000.0)


def test_a_usual_training_that_outlasts_the_trace() -> None:
    slow = config(tokens=0.7e6 * 60 * HOUR, deadline_h=50.0)
    with pytest.raises(TraceError, match=r"the usual training from .* would end at"):
        small(config=slow, traces=[trace(wandering(100))], count=1)


@pytest.mark.parametrize("name", ["us_caiso_2022_eia", "gb_2023_em"])
def test_savings_on_a_recorded_grid(traces: Path, name: str) -> None:
    """As the issue has them, within what another forecast changes: 24 windows of 14 days, slack 1.5."""
    grid = GridTrace.read(traces / f"{name}.csv")
    asked = config(tokens=7.01754386e5 * 336 * HOUR / 1.5, deadline_h=336.0)
    result = simulate(asked, [grid], table=TABLE, policies=("mpc",))
    assert len(result.jobs[0].tokens) == 24 and (result.jobs[0].start_unix_s[0] - START) % HOUR == 0
    assert result.jobs[0].start_unix_s[0] == grid.start_unix_s + HISTORY_H * HOUR
    mpc = result.of("mpc")
    assert mpc.misses == 0
    assert mpc.mean_saving == pytest.approx({"us_caiso_2022_eia": 0.476, "gb_2023_em": 0.491}[name], abs=0.01)
    assert mpc.excess < {"us_caiso_2022_eia": 0.03, "gb_2023_em": 0.08}[name]
