"""What the figures of measured steps say is what the journals say."""

import csv
import dataclasses
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the extra 'simulate' is not installed")

from benchmarks import stage_figures
from greentrain.errors import ConfigError
from greentrain.types import LedgerEntry
from tests.report.run_folders import CPU, GPU, T0_S, Folder, device, entry, one_rank, sensor

STEP_S = 10


def run_of_steps(root: Path, name: str, *, power_w: float, steps: int = 6) -> Path:
    """Steps of 10 s, a second an entry: 4 s of generation, 2 s of reward at a tenth of the power, 4 s of training."""
    entries: list[LedgerEntry] = []
    for i in range(steps * STEP_S):
        phase = "generate" if i % STEP_S < 4 else "reward" if i % STEP_S < 6 else "train"
        joules = power_w * (0.1 if phase == "reward" else 1.0) + (i // STEP_S)  # a watt more in each step
        ends = i % STEP_S == STEP_S - 1
        booked = entry(
            T0_S + i, T0_S + i + 1, {"GPU-0": device(joules, phases={phase: 1.0})}, steps=int(ends),
            tokens=100 * ends, step_groups=[(1, T0_S + i + 1, joules, 100)] if ends else (),
        )  # fmt: skip
        entries.append(dataclasses.replace(booked, phase_s={phase: 1.0}, phase_inclusive_j={}))
    card = sensor("card", "fpga", "Alveo U55C", "missing")
    return Folder(root, name, name=name, parameters=10**6).rank(0, [GPU, card], entries).path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[stage_figures.Run]:
    root = tmp_path_factory.mktemp("runs")
    folders = [run_of_steps(root, "home", power_w=100.0), run_of_steps(root, "away", power_w=200.0)]
    return [stage_figures.Run.read(folders[0], offloads=False), stage_figures.Run.read(folders[1])]


def test_a_run_with_a_card_offloads_and_waits_for_it(runs: list[stage_figures.Run]) -> None:
    assert [run.offloads for run in runs] == [False, True]
    rows = stage_figures.utilisation(runs).rows
    found = {run.name: [row for row in rows if row["run"] == run.name] for run in runs}
    for run, bubbles in zip(runs, (0.0, 0.2), strict=True):
        assert [row["step"] for row in found[run.name]] == [1, 2, 3, 4, 5, 6]
        for row in found[run.name]:
            assert row["bubbles"] == pytest.approx(bubbles) and row["computes"] == pytest.approx(1 - bubbles)
    assert all(row["kernels"] == "" for row in rows), "no driver told"


def test_watts_and_joules_a_token_are_those_of_the_stages(runs: list[stage_figures.Run]) -> None:
    rows = {(row["run"], row["stage"]): row for row in stage_figures.watts(runs).rows}
    home, away = (run.name for run in runs)
    assert home == "home (1.00 M)"
    assert rows[home, "train"]["W"] == pytest.approx(102.5) and rows[away, "reward"]["W"] == pytest.approx(22.5)
    assert rows[home, "train"]["low"] < 102.5 < rows[home, "train"]["high"]
    density = {(row["run"], row["stage"]): row for row in stage_figures.density(runs).rows}
    assert density[home, "generate"]["J/token"] == pytest.approx(4 * 102.5 / 100)
    assert {row["provenance"] for row in density.values()} == {"measured"}


def test_the_course_of_a_step_has_its_stages_in_their_order(runs: list[stage_figures.Run]) -> None:
    rows = [row for row in stage_figures.timeline(runs).rows if row["run"] == runs[0].name]
    for stage, begin_s, end_s in (("generate", 0, 4), ("reward", 4, 6), ("train", 6, 10)):
        course = {row["t_s"]: row["share"] for row in rows if row["stage"] == stage}
        assert all(share == pytest.approx(float(begin_s < t_s < end_s), abs=1e-6) for t_s, share in course.items())


def test_power_has_a_band_over_steps(runs: list[stage_figures.Run]) -> None:
    (panel,) = stage_figures.power(runs).panels
    home = panel.lines[0]
    middle = np.array(home.y)
    # Of the steps after the first, which began before anything was seen: 101 to 105 W.
    assert middle[1] == pytest.approx(103) and middle[20] == pytest.approx(13)
    assert np.array(home.high) - middle == pytest.approx(np.std([1, 2, 3, 4, 5], ddof=1))


def test_unknown_is_no_bar(tmp_path: Path) -> None:
    card = sensor("GPU-0", "gpu", "H100", "missing")
    quiet = entry(T0_S, T0_S + 10, {"cpu": device(500.0)}, tokens=10)
    run = stage_figures.Run.read(Folder(tmp_path).rank(0, [card, CPU], [quiet]).path)
    sheet = stage_figures.density([run])
    assert {row["device"] for row in sheet.rows} == {"cpu"}
    with pytest.raises(ConfigError, match=r"0 steps .* set run\.book_s to"):
        stage_figures.power([run])


def test_figures_of_two_runs_are_files(
    runs: list[stage_figures.Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(run.record.folder) for run in runs]
    assert stage_figures.main([*folders, "--figure", "watts", "--figure", "power", "--out", str(tmp_path)]) == 0
    assert "### Watts in the course of a step" in capsys.readouterr().out
    for name in ("watts", "power"):
        assert (tmp_path / f"{name}.png").stat().st_size > 5000
        lines = [line for line in (tmp_path / f"{name}.csv").read_text("utf-8").splitlines() if line[:1] != "#"]
        assert {row["provenance"] for row in csv.DictReader(lines)} == {"measured"}


def test_a_journal_too_coarse_for_the_course_of_a_step_leaves_it_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(one_rank(tmp_path))
    assert stage_figures.main([folder]) == 0
    told = capsys.readouterr()
    assert "Joules a token" in told.out and "timeline: " in told.err and "run.book_s" in told.err
    with pytest.raises(ConfigError, match="the course of a step"):
        stage_figures.main([folder, "--figure", "power"])
    with pytest.raises(SystemExit):
        stage_figures.main([])
