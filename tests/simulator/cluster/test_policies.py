"""Policies of a fleet: what each promises."""

from pathlib import Path

import numpy as np
import pytest

from greentrain.cli import fleet as cli_fleet
from greentrain.errors import ConfigError
from greentrain.simulator.cluster.policies import PLANNED, POLICIES, CarbonBlind, Fcfs, GaiaLike, PcapsLike, open_policy
from greentrain.simulator.cluster.workload import Workload
from greentrain.simulator.cluster.world import Choice, View
from tests.simulator.cluster.fleets import drawn, fleet, jobs
from tests.simulator.grids import HOUR, trace

WAVE = 250.0 - 180.0 * np.sin(np.arange(120 * 24) * 2 * np.pi / 24)
DAY = np.tile(np.where((np.arange(24) >= 10) & (np.arange(24) < 16), 60.0, 400.0), 120)


class NoBackfill(Fcfs):
    """First come, first served, and nobody passes."""

    def decide(self, view: View) -> Choice:
        choice = super().decide(view)
        rows = choice.rows
        waiting = np.flatnonzero((rows == 0) & (view.row == 0))
        if waiting.size:
            rows = np.where((np.arange(len(rows)) > waiting[0]) & (view.row == 0), 0, rows)
        return Choice(rows=rows, pools=choice.pools, order=choice.order)


def test_a_short_job_is_backfilled_and_a_long_one_is_not() -> None:
    work = jobs((0, 50, 32, 4), (0, 50, 64, 2), (0, 50, 32, 3), (0, 50, 32, 9))
    run = fleet(work, gpus=64, switch_s=0.0).run(Fcfs())
    assert run.first_s.tolist() == [0.0, 4 * HOUR, 0.0, 6 * HOUR]


@pytest.mark.parametrize("seed", range(2))
def test_backfill_delays_nobody_who_waits_at_the_front(seed: int) -> None:
    work = Workload.drawn(count=60, days=2, gpus=64, load=1.2, seed=seed, widest=32)
    world = fleet(work, gpus=64, switch_s=0.0)
    eager, plain = world.run(Fcfs()), world.run(NoBackfill())
    assert (eager.first_s < plain.first_s).any()
    assert eager.first_s.sum() < plain.first_s.sum()
    heads = np.flatnonzero(plain.first_s > work.release_s + HOUR)
    assert (eager.first_s[heads[0]] <= plain.first_s[heads[0]]).all()


def test_the_blind_one_takes_the_least_energy_that_the_deadline_allows() -> None:
    work = jobs((0, 41, 64, 10), (0, 12, 64, 10))
    run = fleet(work, gpus=128).run(CarbonBlind())
    assert (run.end_s <= work.deadline_s).all()
    assert run.joules[0] < 0.9 * run.joules[1]


def test_a_gaia_job_waits_for_the_clean_hours_and_runs_through() -> None:
    work = jobs((0, 60, 8, 6.0))
    run = fleet(work, grid=trace(DAY), forecaster=None).run(GaiaLike())
    assert 9 * HOUR <= run.first_s[0] <= 11 * HOUR
    assert run.starts[0] == 1
    at_once = fleet(work, grid=trace(DAY), forecaster=None).run(GaiaLike(waits_h=(0.0, 0.0)))
    assert at_once.first_s[0] == 0.0 and run.grams[0] < 0.4 * at_once.grams[0]


def test_a_pcaps_job_that_is_urgent_runs_in_dirty_hours_and_gamma_0_does_not_look() -> None:
    work = jobs((0, 30, 8, 6.0), (0, 9, 8, 6.0))
    world = fleet(work, grid=trace(DAY), forecaster=None)
    run = world.run(PcapsLike())
    assert run.first_s[1] < 3 * HOUR < 9 * HOUR < run.first_s[0]
    assert world.run(PcapsLike(gamma=0.0)).first_s.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ["suspend_resume", "gaia_like", "carbonflex_like", "pcaps_like", "each_alone"])
def test_each_saves_grams_over_fcfs_and_makes_jobs_wait_as_its_paper_says(name: str) -> None:
    work = jobs(*[(3 * i, 3 * i + 40, 8, 5.0 + i % 4) for i in range(15)])
    world = fleet(work, gpus=64, grid=trace(WAVE), forecaster=None)
    first, run = world.run(Fcfs()), world.run(open_policy(name))
    assert run.grams.sum() < 0.97 * first.grams.sum()
    assert np.mean(run.end_s - first.end_s) > 0
    assert run.joules.sum() < 1.02 * first.joules.sum()


def test_nobody_is_late_where_there_is_room_and_estimates_are_right() -> None:
    work = drawn(12, days=1.0)
    for name in POLICIES:
        run = fleet(work, gpus=1024, forecaster=None).run(open_policy(name))
        assert (run.end_s <= work.deadline_s).all(), name


def test_a_policy_of_ones_own_is_a_file(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(
        "import numpy as np\n"
        "from greentrain.simulator.cluster.policies import Fcfs\n"
        "class Mine(Fcfs):\n"
        "    name = 'mine'\n"
        "def policy():\n"
        "    return Mine()\n",
        encoding="utf-8",
    )
    work = jobs((0, 50, 32, 4))
    assert fleet(work).run(open_policy(str(mine))).policy == "mine"
    with pytest.raises(ConfigError, match="no policy 'best': name one of fcfs, carbon_blind"):
        open_policy("best")
    (tmp_path / "none.py").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"none.py has no function policy\(\)"):
        open_policy(str(tmp_path / "none.py"))


def test_the_policy_in_the_documentation_runs_as_it_stands(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/cluster.md").read_text(encoding="utf-8")
    (tmp_path / "mine.py").write_text(page.split("```python file=mine.py\n")[1].split("```")[0], encoding="utf-8")
    work = jobs((0, 40, 32, 4), (1, 9, 32, 4))
    world = fleet(work)
    run = world.run(open_policy(str(tmp_path / "mine.py")))
    hour = (world.start_unix_s + run.first_s) / HOUR % 24
    assert run.policy == "night_only" and (run.end_s <= work.deadline_s).all()
    assert hour[0] < 6 and run.first_s[1] < 5 * HOUR, "one waits for the night, one for its deadline"


def test_the_names_of_the_command_line_are_all_there() -> None:
    assert (*POLICIES, PLANNED) == cli_fleet.POLICIES
