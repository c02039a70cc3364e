"""Values of a cluster's plan: what they refuse, how they are carried, and that JSON brings them back."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from greentrain.errors import ConfigError
from greentrain.policy.cluster.problem import OFF, ClusterJob, Plan, Pool, Prices, Problem, Row, Site


def small(h: int = 4) -> Problem:
    """Return a problem of two jobs in one pool."""
    site = Site(name="here", g_per_kwh=np.full(h, 100.0), power_cap_w=np.full(h, 5000.0), pue=np.full(h, 1.25))
    pool = Pool(name="a100", site="here", nodes=np.full(h, 3.0))
    rows = (
        Row(name="bf16 on 1", pool="a100", nodes=1, tokens_per_s=10.0, power_w=1000.0),
        Row(name="bf16 on 2", pool="a100", nodes=2, tokens_per_s=18.0, power_w=2000.0),
    )
    job = ClusterJob(name="one", release_s=0.0, deadline_s=h * 3600.0, tokens=70_000.0, rows=rows)
    return Problem(
        edges_s=np.arange(h + 1, dtype=np.float64) * 3600.0,
        sites=(site,),
        pools=(pool,),
        jobs=(job, replace(job, name="two", release_s=1800.0, deadline_s=3 * 3600.0 - 1.0)),
    )


def test_a_window_is_of_whole_steps() -> None:
    problem = small()
    assert problem.window(problem.jobs[0]) == (0, 4)
    assert problem.window(problem.jobs[1]) == (1, 2)


def test_a_watt_emits_by_pue_and_hour() -> None:
    assert small().g_per_w == pytest.approx(np.full((1, 4), 100 * 1.25 / 1000))
    assert small().cap_w == pytest.approx(np.full((1, 4), 4000.0))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"edges_s": np.array([0.0, 1.0, 1.0, 2.0, 3.0])}, "each later"),
        ({"pools": (Pool(name="a100", site="there", nodes=np.full(4, 1.0)),)}, "'there'"),
        ({"pools": (Pool(name="a100", site="here", nodes=np.full(3, 1.0)),)}, "steps needs"),
        ({"budget_g": -1.0}, "budget_g"),
        ({"jobs": (replace(small().jobs[0], tokens=0.0),)}, "tokens"),
        ({"jobs": (small().jobs[0], small().jobs[0])}, "two jobs"),
        ({"jobs": (replace(small().jobs[0], rows=()),)}, "no row"),
        ({"jobs": (replace(small().jobs[0], site="moon"),)}, "'moon'"),
        ({"jobs": (replace(small().jobs[0], current=2),)}, "row 2 of 2"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(small(), **change)  # type: ignore[arg-type]


def test_unknown_intensity_is_refused_with_its_step() -> None:
    site = replace(small().sites[0], g_per_kwh=np.array([1.0, np.nan, 1.0, 1.0]))
    with pytest.raises(ConfigError, match="step 1"):
        replace(small(), sites=(site,))


def test_a_plan_goes_through_json() -> None:
    problem = replace(small(), budget_g=math.inf)
    rows = np.array([[0, 0, OFF, OFF], [OFF, 1, OFF, OFF]])
    prices = replace(Prices.zero(problem), nodes=np.array([[0.0, 12.5, 0.0, 0.0]]), tokens=np.array([0.25, 0.5]))
    plan = Plan(problem=problem, rows=rows, prices=prices, bound_g=1.5, grams=2.0, missed=("two",))
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict(), allow_nan=False)))
    assert again.to_dict() == plan.to_dict()
    assert (again.rows == rows).all()
    assert again.problem.jobs == problem.jobs
    assert again.gap == pytest.approx(1 / 3)


def test_usage_and_rows_of_a_plan() -> None:
    problem = small()
    rows = np.array([[0, 0, OFF, OFF], [OFF, 1, OFF, OFF]])
    plan = Plan(problem=problem, rows=rows, prices=Prices.zero(problem), bound_g=0.0, grams=0.0)
    assert plan.used_nodes().tolist() == [[1.0, 3.0, 0.0, 0.0]]
    assert plan.used_w().tolist() == [[1000.0, 3000.0, 0.0, 0.0]]
    assert plan.row("two", 3600.0) is problem.jobs[1].rows[1]
    assert plan.row("two", 0.0) is None
    assert list(plan.runs(0)) == [(0, 2, 0)]


def test_prices_are_carried_by_name_and_time() -> None:
    old = small()
    prices = Prices(
        nodes=np.array([[1.0, 2.0, 3.0, 4.0]]), watts=np.array([[0.1, 0.2, 0.3, 0.4]]), tokens=np.array([5.0, 6.0])
    )
    later = small(5)
    new = replace(
        later,
        edges_s=np.array([1, 1.5, 2, 3, 4, 5]) * 3600.0,
        jobs=(replace(old.jobs[1]), replace(old.jobs[0], name="new")),
    )
    found = prices.carried(old, new)
    assert found.nodes.tolist() == [[1.0, 1.0, 3.0, 4.0, 0.0]]
    assert found.watts[0] == pytest.approx([0.1, 0.1, 0.3, 0.4, 0.0])
    assert found.tokens.tolist() == [6.0, 0.0]


def test_rows_are_carried_by_name_and_time_into_windows_and_only_of_the_same_rows() -> None:
    old, other = small(), small().jobs[1]
    rows = np.array([[0, 0, OFF, 1], [OFF, 1, 0, OFF]])
    plan = Plan(problem=old, rows=rows, prices=Prices.zero(old), bound_g=0.0, grams=0.0)
    jobs = (
        replace(other, release_s=1.5 * 3600, deadline_s=3 * 3600.0),
        replace(other, name="new"),
        replace(old.jobs[0], rows=other.rows[:1], current=None),
        replace(old.jobs[0], release_s=0.0, deadline_s=5 * 3600.0),
    )
    new = replace(small(5), edges_s=np.array([1, 1.5, 2, 3, 4, 5]) * 3600.0, jobs=jobs[:3])
    assert plan.carried(new).tolist() == [[OFF, 1, 0, OFF, OFF], [OFF] * 5, [OFF] * 5]
    assert plan.carried(replace(new, jobs=jobs[3:])).tolist() == [[0, 0, OFF, 1, OFF]]
