"""The reference benchmark of a fleet, at its quick size: it runs with a policy of one's own, and reaches its bars."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import fleet_bench
from benchmarks.held_traces import unpacked
from greentrain.simulator.cluster.planned import hindsight
from greentrain.simulator.cluster.policies import Fcfs
from greentrain.simulator.cluster.world import Choice, View


def test_sizes_bring_their_load_and_only_policies_that_know_no_grid_are_asked_twice() -> None:
    bench = fleet_bench.Fleet(size=fleet_bench.SIZES["quick"], folder=Path(), seed=0)
    known, shipped = (
        [name for name, _ in bench.policies(forecast)] for forecast in (fleet_bench.KNOWN, fleet_bench.SHIPPED)
    )
    assert known[0] == shipped[0] == "fcfs" and set(shipped) - set(known) == {"planned_2x"}


class Idle(Fcfs):
    """Runs nothing."""

    name = "planned"

    def decide(self, view: View) -> Choice:
        return replace(super().decide(view), rows=np.zeros(len(view.job), np.int64))


@pytest.mark.parametrize(("missed", "word"), [((), "MISSED"), (("0",), "MISSED"), (("0", "1"), "reached")])
def test_a_miss_counts_unless_the_plan_in_hindsight_misses_that_job_too(
    missed: tuple[str, ...], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    makers = [(name, Fcfs) for name in ("fcfs", *fleet_bench.PAPERS)]
    monkeypatch.setattr(fleet_bench.Fleet, "policies", lambda *_: [*makers, ("planned", Idle)])
    monkeypatch.setattr(fleet_bench, "hindsight", lambda world: replace(hindsight(world), missed=missed))
    size = replace(fleet_bench.SIZES["quick"], jobs=2, gpus=8, days=0.1, longest_h=8)
    bench = fleet_bench.Fleet(size=size, folder=unpacked(), seed=0)
    (table,) = fleet_bench.fleet(bench, "full_known", (fleet_bench.KNOWN,))
    assert f"{word}: no deadline is missed that the plan in hindsight meets" in table.notes
    assert table.case == "full_known" and any("of one core at most" in note for note in table.notes)


@pytest.mark.long
def test_the_quick_one_reaches_its_bars(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from greentrain.simulator.cluster.policies import Fcfs\nclass Mine(Fcfs):\n    name = 'mine'\npolicy = Mine\n",
        encoding="utf-8",
    )
    page = tmp_path / "page.md"
    marks = "".join(f"<!-- results: {case} -->\n<!-- end of {case} -->\n" for case in ("fleet", "sites"))
    page.write_text(marks, encoding="utf-8")
    assert fleet_bench.main(["--quick", "--policy", str(mine), "--into", str(page)]) == 0
    told = capsys.readouterr().out
    assert told.count("- reached:") >= 7
    # Sixteen jobs are whole things: what the bound has in parts is more than the 3 % of a cluster of many.
    # What a move pays is known only of the jobs that are there.
    allowed = ("of the bound on", "the fewer moves", "save grams")
    assert all(any(words in line for words in allowed) for line in told.splitlines() if "MISSED:" in line)
    text = page.read_text("utf-8")
    assert "| 0.06 kWh/GB (2015) |" in text
    assert "| mine | 0.0 % |" in text and "| planned_2x |" in text
