"""What a row has beside the sums: plan, estimate, gears, devices and how the run ended."""

import json
import os
from pathlib import Path

import pytest

from greentrain.ledger.reader import read_run
from greentrain.ledger.totals import Totals
from greentrain.report.fleet.reading import read_folder
from greentrain.report.summary import summarize
from tests.report.planned_run import planned
from tests.report.run_folders import CPU, GPU, T0_S, Folder, device, entry, one_rank, two_gears

ENTRY = entry(T0_S, T0_S + 10, {"GPU-0": device(1000.0)}, tokens=5)


def test_what_a_plan_saved(tmp_path: Path) -> None:
    path = planned(tmp_path)
    plan = summarize(read_run(path))["plan"]
    row = read_folder(path).row
    assert row.saved_g == pytest.approx(plan["static_g"] - plan["actual_g"])
    assert row.saved_g == pytest.approx(plan["saving_vs_static"] * plan["static_g"])


def test_a_plan_that_makes_no_sense_costs_its_saving_and_no_books(tmp_path: Path) -> None:
    path = planned(tmp_path)
    run = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**run, "plan": {"rows": 3}}))
    row = read_folder(path).row
    assert (row.saved_g, row.error) == (None, None)
    assert row.energy_j


def test_the_ratio_to_an_estimate(tmp_path: Path) -> None:
    path = one_rank(tmp_path)
    bounds = {"low": 0.5, "mid": 1.0, "high": 2.0}
    said = {
        "format": 1, "method": "m", "count": 1, "inputs": {"workload": {"tokens": 180_000}}, "duration_h": bounds,
        "energy_kwh": {"it": {"low": 0.01, "mid": 0.02, "high": 0.04}}, "operational_g": {"location": bounds},
    }  # fmt: skip
    assert read_folder(path).row.estimate_ratio is None
    (path / "estimate.json").write_text(json.dumps(said))
    assert read_folder(path).row.error is None
    assert read_folder(path).row.estimate_ratio == pytest.approx(63_000 / (0.02 * 3.6e6 / 2))  # half the tokens
    (path / "estimate.json").write_text("{")
    assert read_folder(path).row.estimate_ratio is None


def test_gears_devices_and_frameworks(tmp_path: Path) -> None:
    row = read_folder(two_gears(tmp_path)).row
    assert row.gears == {"bf16": pytest.approx(1 / 3), "fp8": pytest.approx(2 / 3)}
    assert row.devices == ("NVIDIA H100 80GB HBM3", "AMD EPYC 9654")
    assert row.frameworks == ("torch 2.13.0",)
    assert (row.policy, row.signal, row.zone) == ("static", "constant", "FRA")


@pytest.mark.parametrize(
    ("reasons", "reason", "state"),
    [
        (("finished", "finished"), "finished", "finished"),
        (("finished", "exit"), "exit", "exit"),
        (("exit", "sigterm"), "sigterm", "sigterm"),
        (("exception", None), "exception", "exception"),
        (("exit", None), None, "killed"),
        ((None, None), None, "killed"),
    ],
)
def test_how_a_run_ended(tmp_path: Path, reasons: tuple[str | None, str | None], reason: str, state: str) -> None:
    folder = Folder(tmp_path, world_size=2)
    for rank, word in enumerate(reasons):
        folder.rank(rank, [GPU, CPU], [ENTRY], reason=word)
    row = read_folder(folder.path).row
    assert (row.reason, row.state(T0_S + 1e6)) == (reason, state)
    assert row.state(T0_S + 20) == (reason or "running")


def test_a_run_that_has_booked_nothing_yet_is_running(tmp_path: Path) -> None:
    row = read_folder(Folder(tmp_path).rank(0, [GPU], [], reason=None).path).row
    assert row.created_unix_s is not None
    assert row.state(row.created_unix_s + 20) == "running"
    assert row.state(row.created_unix_s + 1e6) == "killed"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
@pytest.mark.parametrize("name", ["run.json", "rank-00000.jsonl"])
def test_a_pipe_holds_nobody_up(tmp_path: Path, name: str) -> None:
    path = one_rank(tmp_path)
    (path / name).unlink()
    os.mkfifo(path / name)
    assert read_folder(path).row.error == f"{name} is no regular file"


def test_nothing_known_is_none(tmp_path: Path) -> None:
    path = Folder(tmp_path, world_size=3).rank(0, [GPU], []).path
    row = read_folder(path).row
    assert (row.energy_j, row.measured_j, row.operational_g, row.total_g, row.tokens, row.wall_s) == (None,) * 6
    assert (row.missing_ranks, row.missing_s, row.reason) == (2, 0.0, "finished")


def test_a_carried_part_is_in_the_row(tmp_path: Path) -> None:
    carried = Totals.of(entry(T0_S - 100, T0_S - 50, {"GPU-9": device(5000.0)}, steps=3, embodied_g=1.0))
    row = read_folder(Folder(tmp_path).rank(0, [GPU], [ENTRY], carried=carried).path).row
    assert (row.energy_j, row.wall_s, row.steps, row.embodied_g) == (6000.0, 60.0, 13, 1.0)
