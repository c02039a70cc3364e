"""benchmarks/scheduling.py stays alive, and its tables know their place; what it measures is not judged here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "scheduling.py"
DOCS = ROOT / "docs" / "scheduling-benchmarks.md"


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.slow
def test_a_quick_case_gives_a_figure_in_every_cell(tmp_path: Path, traces: Path) -> None:
    out = tmp_path / "out.json"
    done = _run("--quick", "--only", "bars", "--traces", str(traces), "--json", str(out))
    assert done.returncode == 0, done.stderr
    table = json.loads(out.read_text())["tables"][0]
    assert table["case"] == "bars" and table["passed"] + table["missed"] == 24
    for row in table["rows"]:
        assert all(float(cell) >= 0 for cell in row[2:8])
    assert "| us_pjm_2022_eia | bar | 36.7 |" in done.stdout


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    done = _run("--traces", str(tmp_path / "nowhere"))
    assert done.returncode == 2 and "--traces" in done.stderr


def test_every_case_has_its_place_in_the_documentation() -> None:
    from benchmarks.marks import replaced
    from benchmarks.scheduling import CASES

    text = DOCS.read_text(encoding="utf-8")
    for case in CASES:
        changed = replaced(text, "THE TABLE", case)
        assert changed.count("THE TABLE") == 1 and replaced(changed, "THE TABLE", case) == changed
    with pytest.raises(SystemExit, match="the text lacks <!-- results: bars -->"):
        replaced("nothing", "", "bars")


def test_savings_by_hand() -> None:
    import numpy as np

    from benchmarks.scheduling_common import percent, score
    from greentrain.simulator.simulate import References
    from greentrain.simulator.world import Track

    track = Track(
        tokens_left=np.array([0.0, 0.0, 0.0, 1.0]),
        grams=np.array([50.0, 100.0, 60.0, 60.0]),
        joules=np.zeros(4),
        end_s=np.full(4, 86400.0),
        switches=np.array([1, 2, 3, 4]),
        shielded=np.zeros(4, np.int64),
        decisions=4,
        history=None,
    )
    known = References(
        static_g=np.array([100.0, 300.0, 100.0, 100.0]),
        blind_g=np.zeros(4),
        oracle_g=np.array([50.0, 50.0, 60.0, 40.0]),
    )
    found = score(track, known, slacks=(1.0, 2.0))
    assert found.mean.tolist() == pytest.approx([(50 + 200 / 3) / 2, 40.0])
    assert found.total.tolist() == pytest.approx([62.5, 40.0])
    assert found.excess.tolist() == pytest.approx([50.0, 20.0])
    assert (found.misses, found.switches.tolist()) == (1, [1.5, 3.5])
    assert [percent(value) for value in (-0.01, 40.06)] == ["0.0", "40.1"]


def test_five_minutes_change_nothing_for_who_does_not_look_and_only_help_the_best_plan() -> None:
    from benchmarks.held_traces import unpacked
    from benchmarks.scheduling_common import Grid, menu
    from benchmarks.scheduling_periods import FineGrid
    from greentrain.policy.baselines import StaticSchedule
    from greentrain.policy.decision_kernel import DecisionKernel
    from greentrain.simulator.simulate import references

    grid, full = Grid(unpacked() / "us_caiso_2022_eia.csv", "production", 1), menu()
    fine = FineGrid(grid)
    assert fine.label == "us_caiso_2022_eia (interpolated)"
    jobs = fine.jobs(full)
    often, hourly = (fine.world(s).run(DecisionKernel(StaticSchedule(full), full), jobs) for s in (300.0, 3600.0))
    assert often.grams == pytest.approx(hourly.grams) and often.decisions > 11 * hourly.decisions
    by_hour = references(grid.trace, jobs, full).oracle_g
    assert (fine.references(full).oracle_g < by_hour).all()


def test_a_hand_over_waits_until_it_pays() -> None:
    import numpy as np

    from benchmarks.scheduling_common import menu
    from benchmarks.scheduling_regions import planned

    full, h = menu("T4"), 12
    g = np.stack([np.full(h, 500.0), np.where(np.arange(h) < 6, 900.0, 100.0)])[None]  # the second is clean later
    tokens = np.array([float(full.tokens_per_s.max()) * 3600.0 * 5])
    stays, moves, free = (planned(g, tokens, np.array([0]), full, lost).bound_g[0] for lost in (np.inf, 600.0, 0.0))
    watts = float(full.power_w[full.fastest])
    near = 5e-3  # a bound: a little below the best plan
    assert stays == pytest.approx(500.0 * 5 * watts / 1e3, rel=near)  # five hours at home
    carried_g = 182.0 * 0.0053 * (500.0 + 100.0) / 2
    assert moves == pytest.approx(100.0 * 5 * watts / 1e3 + carried_g, rel=near) and free == pytest.approx(
        moves, rel=near
    )


def test_first_come_first_served_gives_way_to_who_came_before() -> None:
    import numpy as np

    from benchmarks.held_traces import unpacked
    from benchmarks.scheduling_common import Grid, menu
    from benchmarks.scheduling_queue import SIZES, Arrivals, run
    from greentrain.policy.baselines import StaticSchedule

    full = menu("T2")
    menus = {size: full.only(np.flatnonzero(np.isin(full.width, (0, size)))) for size in SIZES}
    at_h, size, static_h = [0, 0, 0, 0, 0, 1], [8, 8, 8, 4, 8, 4], [5.0, 5.0, 5.0, 2.0, 3.0, 1.0]
    jobs = Arrivals(at_h=np.array(at_h, float), size=np.array(size), static_h=np.array(static_h))
    ran = run(Grid(unpacked() / "us_pjm_2022_eia.csv", "production", 1), jobs, menus, StaticSchedule)
    # 28 of 32 nodes are taken by the first four; the fifth waits for the fourth, the last is let past it.
    assert ran.end_h.tolist() == pytest.approx([5.0, 5.0, 5.0, 2.0, 5.0, 1.0])
    assert (ran.asked[:2].tolist(), ran.power_w[0]) == ([36.0, 40.0], pytest.approx(28 * 7800.0))
