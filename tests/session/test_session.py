"""GreenSession: books what was used, survives what can go wrong, and never touches the training."""

import copy
import io
import json
import math
import os
import pickle
import shutil
import signal
import time
import types
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from greentrain import GreenSession
from greentrain.carbon.constant import ConstantSignal
from greentrain.errors import ConfigError, GreenTrainWarning, RunFolderError, SessionError
from greentrain.ledger.journal import read_journal
from greentrain.ledger.reader import read_run
from greentrain.ledger.totals import Totals
from greentrain.report.live.prometheus import Textfile
from greentrain.session import session
from greentrain.types import CarbonPoint, DeviceWindow, Phase, Provenance, Topology, WindowEnergy
from tests.helpers.flat_meter import T0_S, FlatMeter
from tests.helpers.hanging import Hanging
from tests.helpers.interrupts import interrupted

SIGNAL = ConstantSignal(360.0, zone="test", source="test")


def _session(tmp_path: Path, meter: FlatMeter | None = None, **run: Any) -> GreenSession:
    config = {"run": {"dir": str(tmp_path), "report": False, **run}, "power": {"sample_s": 0.02}}
    return GreenSession(config, meter=meter or FlatMeter(), signal=SIGNAL)


def test_totals_phases_and_grams_add_up(tmp_path: Path) -> None:
    green = _session(tmp_path)
    before_s = time.monotonic()
    with green:
        t0_s = time.monotonic()
        for _ in range(5):
            with green.phase("forward"):
                time.sleep(0.02)
                with green.phase("attention"):
                    time.sleep(0.01)
            with green.phase("backward"):
                time.sleep(0.03)
            green.step(tokens=100)
        wall_s = time.monotonic() - t0_s
    totals = green.totals()
    assert totals.energy_j == pytest.approx(250.0 * totals.duration_s, rel=0.02)
    assert wall_s < totals.duration_s < time.monotonic() - before_s
    assert sum(totals.by_phase.values()) == pytest.approx(totals.energy_j, rel=1e-9)
    assert sum(totals.by_device.values()) == pytest.approx(totals.energy_j, rel=1e-9)
    assert totals.by_provenance["measured"] == pytest.approx(4 * totals.by_provenance["modelled"], rel=0.05)
    assert totals.phase_s["backward"] >= 5 * 0.03
    assert totals.by_phase["backward"] == pytest.approx(250 * totals.phase_s["backward"], rel=0.05)
    forward_j = totals.by_phase["forward"] + totals.by_phase["attention"]
    assert totals.by_phase_inclusive["forward"] == pytest.approx(forward_j, rel=1e-6)
    assert (totals.steps, totals.tokens) == (5, 500)
    assert totals.operational_g == pytest.approx(totals.energy_j / 1e4)
    entries = read_run(green.folder or "").ranks[0].entries
    steps_j = sum(group[2] for entry in entries for group in entry.step_groups)
    assert 250 * wall_s * 0.98 <= steps_j <= totals.energy_j  # the first step counts from the start of the run
    metrics = green.metrics()
    assert metrics["green/energy_j"] == totals.energy_j
    assert metrics["green/tokens_per_j"] == pytest.approx(500 / totals.energy_j)


def test_joules_steps_and_tokens_belong_to_their_gear(tmp_path: Path) -> None:
    """100 W in one gear, then 200 W in the next, and a CPU of 50 W all the time."""
    meter, read_s, changed_s = FlatMeter(), list[float](), list[float]()

    def drawn(t_s: float) -> float:
        read_s.append(t_s)
        return 100.0 * (t_s - T0_S) + sum(100.0 * max(0.0, t_s - one_s) for one_s in changed_s)

    meter.gpu_j = drawn
    green = _session(tmp_path / "a", meter, book_s=0.1)
    with green:
        early_s = time.monotonic()
        green.gear("bf16")
        begun_s = time.monotonic()
        for _ in range(4):
            time.sleep(0.05)
            green.step(tokens=10)
        change_s = time.monotonic()
        changed_s.append(change_s)
        green.gear("fp8")
        late_s = time.monotonic()
        for _ in range(6):
            time.sleep(0.05)
            green.step(tokens=10, samples=1)
        active, end_s = green.active(), time.monotonic() + 60.0
        assert active is not None
        while active.last_entry is None or "fp8" not in active.last_entry.gears:
            assert time.monotonic() < end_s, "the books do not go on"
            time.sleep(0.01)
    gears = green.totals().by_gear
    bf16, fp8 = gears["bf16"], gears["fp8"]
    assert (bf16.steps, bf16.tokens, fp8.steps, fp8.tokens, fp8.samples) == (4, 40, 6, 60, 6)
    assert change_s - begun_s <= bf16.seconds <= late_s - early_s and fp8.seconds >= 0.3
    blind_s = min(t_s for t_s in read_s if t_s >= change_s) - max(t_s for t_s in read_s if t_s <= change_s)
    held_j = 100 * (late_s - change_s + blind_s)  # before the gear was told, and between two readings of the counter
    assert bf16.energy_j == pytest.approx(150 * bf16.seconds, rel=0.12, abs=held_j)
    assert fp8.energy_j == pytest.approx(250 * fp8.seconds, rel=0.12, abs=held_j)
    assert fp8.modelled_j == pytest.approx(50 * fp8.seconds, rel=0.05)
    assert bf16.device_s == pytest.approx(2 * bf16.seconds)
    run = read_run(green.folder or "")
    assert run.totals.by_gear["fp8"].energy_j == pytest.approx(fp8.energy_j)
    assert sum("fp8" in entry.gears for entry in run.ranks[0].entries) >= 2, "the gear goes on in the next entry"
    later = _session(tmp_path / "b")
    later.load_state_dict(json.loads(json.dumps(green.state_dict())))
    with later:
        later.gear("fp8")
        later.step(tokens=10)
    assert later.totals().by_gear["fp8"].tokens == 70
    assert read_run(later.folder or "").totals.by_gear["bf16"].energy_j == pytest.approx(bf16.energy_j)


def test_a_checkpoint_that_takes_plain_types_alone_takes_its_state(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with _session(tmp_path) as green:
        for phase in (Phase.PAUSED, Phase.CHECKPOINT, "mine"):
            with green.phase(phase):
                green.step(tokens=10)
    state, file = green.state_dict(), io.BytesIO()
    assert {Phase.PAUSED, "mine"} <= set(state["totals"]["phase_s"])
    torch.save({"green": state}, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == {"green": state}


def test_what_is_read_back_is_what_was_booked(tmp_path: Path) -> None:
    with _session(tmp_path, tags={"team": "a"}) as green:
        time.sleep(0.05)
    assert green.folder is not None
    run = read_run(green.folder)
    assert run.totals.energy_j == pytest.approx(green.totals().energy_j)
    assert run.run["tags"] == {"team": "a"}
    assert run.ranks[0].close is not None and run.ranks[0].close["reason"] == "finished"
    assert run.ranks[0].sensors["GPU-a"]["provenance"] == "measured"


def test_two_runs_in_a_row_are_separate(tmp_path: Path) -> None:
    meter = FlatMeter()
    green = _session(tmp_path, meter)
    folders = set()
    for _ in range(2):
        begun_s = time.monotonic()
        with green:
            time.sleep(0.1)
        folders.add(green.folder)
        totals = green.totals()
        assert 0.1 <= totals.duration_s <= time.monotonic() - begun_s
        assert totals.energy_j == pytest.approx(250.0 * totals.duration_s, rel=0.05)
    assert len(folders) == 2
    assert meter.closed == 2


@pytest.mark.parametrize("made", [copy.deepcopy, lambda session: pickle.loads(pickle.dumps(session))])
def test_a_copy_has_the_figures_and_no_run(tmp_path: Path, made: Callable[[GreenSession], GreenSession]) -> None:
    green = _session(tmp_path)
    never = made(green)
    assert never.folder is None and never.totals() == Totals() and never.config == green.config
    with green:
        green.parameters = 7
        running = made(green)
        green.step(tokens=5)
        assert not running.running and green.running and running.folder == green.folder
    closed = made(made(green))
    assert closed.totals() == green.totals() and closed.totals().tokens == 5 and closed.parameters == 7
    with closed:  # of its own, measured alike
        closed.step(tokens=3)
    assert closed.folder != green.folder and (closed.totals().tokens, green.totals().tokens) == (3, 5)
    assert closed.totals().energy_j > 0


def test_whoever_spawned_a_training_has_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    green, here = _session(tmp_path), os.getpid()

    def in_a_child(sent: bytes, tokens: int) -> Path | None:
        monkeypatch.setattr(os, "getpid", lambda: here + 1)
        made: GreenSession = pickle.loads(sent)
        with made:
            made.step(tokens=tokens)
        folder = made.folder
        monkeypatch.setattr(os, "getpid", lambda: here)
        return folder

    for tokens in (5, 6):  # the last run, as where the session itself trains twice
        folder = in_a_child(pickle.dumps(green), tokens)
        assert green.folder == folder and green.totals().tokens == tokens and green.totals().energy_j > 0
        assert folder is not None and green.report_path is None
        (folder / "report.html").touch()
        assert green.report_path == folder / "report.html"
    assert green.state_dict()["run_id"] is None and green.metrics() == {}
    for made in (copy.copy(green), copy.deepcopy(green)):  # whose figures these were, and no longer are
        with made:
            made.step(tokens=7)
        assert made.totals().tokens == 7 and green.totals().tokens == 6
    with green:
        green.step(tokens=8)
    assert green.totals().tokens == 8
    in_a_child(pickle.dumps(green), 9)
    assert green.totals().tokens == 9


def test_whoever_forked_a_training_has_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    green, pid = _session(tmp_path), os.getpid()
    child = copy.copy(green)  # the same memory
    vars(child).update(vars(green) | {"_home": (green._home[0], pid - 1, green._home[2])})
    with child:
        child.step(tokens=5)
    assert green.totals().tokens == 5 and green.folder == child.folder
    monkeypatch.setattr(session, "read_run", lambda folder: 1 / 0)
    with pytest.warns(GreenTrainWarning, match="ZeroDivisionError"):
        assert green.totals() == Totals()


def test_a_footprint_makes_its_folder_and_no_run_anew(tmp_path: Path) -> None:
    with _session(tmp_path) as green:
        assert green.folder is not None
        green.write_card(green.folder / "model_cards" / "a.ckpt.yaml", wait_s=10.0)
    assert (green.folder / "model_cards" / "a.ckpt.yaml").exists()
    shutil.rmtree(green.folder)
    with pytest.warns(GreenTrainWarning, match="does not exist"):
        green.write_card(green.folder / "model_cards" / "b.ckpt.yaml", wait_s=10.0)
    assert not green.folder.exists()


def test_it_is_a_decorator(tmp_path: Path) -> None:
    green = _session(tmp_path)

    @green
    def train(x: int) -> int:
        time.sleep(0.02)
        return x + 1

    assert train(1) == 2
    assert green.totals().energy_j > 0


def test_a_program_that_changes_its_folder_keeps_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    config = {"run": {"name": "moves"}, "power": {"sample_s": 0.02}}
    with GreenSession(config, meter=FlatMeter(), signal=SIGNAL) as green:
        monkeypatch.chdir("elsewhere")
        green.step(tokens=3)
    assert green.folder is not None and green.folder.parent == tmp_path / "runs"
    assert green.report_path == green.folder / "report.html" and green.report_path.exists()
    assert not list((tmp_path / "elsewhere").iterdir())
    with green:  # what is trained there, too
        green.step(tokens=4)
    assert green.folder.parent == tmp_path / "runs" and not list((tmp_path / "elsewhere").iterdir())


def test_an_exception_is_booked_and_passed_on(tmp_path: Path) -> None:
    green = _session(tmp_path)
    with pytest.raises(ZeroDivisionError), green:
        time.sleep(0.02)
        raise ZeroDivisionError
    assert green.folder is not None
    close = read_run(green.folder).ranks[0].close
    assert close is not None and close["reason"] == "exception"
    assert not green.running


def test_a_checkpoint_continues_the_folder(tmp_path: Path) -> None:
    first = _session(tmp_path)
    with first:
        time.sleep(0.05)
        first.checkpoint()
    state = json.loads(json.dumps(first.state_dict()))
    second = _session(tmp_path)
    second.load_state_dict(state)
    with second:
        time.sleep(0.05)
    assert second.folder == first.folder
    added_s = second.totals().duration_s - first.totals().duration_s
    assert added_s >= 0.05
    assert second.totals().energy_j == pytest.approx(first.totals().energy_j + 250.0 * added_s, rel=0.02)
    run = read_run(second.folder or "")
    assert run.totals.energy_j == pytest.approx(second.totals().energy_j)
    assert {event["name"] for event in run.ranks[0].events} == {"checkpoint", "resume", "shared"}


def test_a_checkpoint_without_its_folder_carries_the_totals(tmp_path: Path) -> None:
    first = _session(tmp_path / "a")
    with first:
        time.sleep(0.05)
    second = _session(tmp_path / "b")
    second.load_state_dict(first.state_dict())
    with second:
        time.sleep(0.02)
    assert second.totals().energy_j > first.totals().energy_j
    assert read_run(second.folder or "").totals.energy_j == pytest.approx(second.totals().energy_j)


def test_bad_states_are_refused(tmp_path: Path) -> None:
    green = _session(tmp_path)
    green.load_state_dict({})
    with pytest.raises(ConfigError, match="upgrade"):
        green.load_state_dict({"format": 99, "run_id": "x", "totals": {}})
    for totals, odd in (
        ({"energy_j": "x"}, "energy_j = 'x'"),
        ({"by_device": {"GPU-a": math.nan}}, "by_device.GPU-a = nan"),
        ({"by_gear": 5}, "cannot be read"),
        (None, "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=f"checkpoint's GreenTrain state holds .*{odd}.*: it is damaged"):
            green.load_state_dict({"format": 1, "run_id": "x", "totals": totals})
    with green:
        with pytest.raises(SessionError, match="before start"):
            green.load_state_dict({"format": 1, "run_id": "x", "totals": {}})
        with pytest.raises(SessionError, match="running already"):
            green.start()


def test_a_meter_that_fails_mid_run_is_a_gap_and_one_warning(tmp_path: Path) -> None:
    meter = FlatMeter()
    green = _session(tmp_path, meter)

    def lost() -> None:
        raise OSError("bus error")

    with pytest.warns(GreenTrainWarning) as caught, green:
        time.sleep(0.1)
        meter.fail = lost
        time.sleep(0.1)
    assert len([w for w in caught if "bus error" in str(w.message)]) >= 1
    totals = green.totals()
    assert totals.missing_s["GPU-a"] >= 0.1 and totals.by_device["GPU-a"] > 0.0
    known_s = totals.by_device["GPU-a"] / 200.0
    assert known_s + totals.missing_s["GPU-a"] == pytest.approx(totals.duration_s, abs=0.02), (
        "each second is one of both"
    )
    assert any(event["name"] == "gap" for event in read_run(green.folder or "").ranks[0].events)


def test_a_meter_that_never_answers_gives_missing_and_no_zero(tmp_path: Path) -> None:
    meter = FlatMeter()

    def lost() -> None:
        raise OSError("no driver")

    meter.fail = lost
    green = _session(tmp_path, meter)
    with pytest.warns(GreenTrainWarning), green:
        time.sleep(0.05)
    totals = green.totals()
    assert totals.missing_s["GPU-a"] > 0.03
    assert "green/power_w" not in green.metrics()


def test_unknown_intensity_is_unpriced(tmp_path: Path) -> None:
    class Unknown:
        def mean(self, t0_unix_s: float, t1_unix_s: float) -> CarbonPoint:
            return CarbonPoint(t0_unix_s=t0_unix_s, t1_unix_s=t1_unix_s, g_per_kwh=None, zone="XX", source="nobody")

        def describe(self) -> dict[str, str]:
            return {"zone": "XX"}

    config = {"run": {"dir": str(tmp_path), "report": False}}
    green = GreenSession(config, meter=FlatMeter(), signal=Unknown())
    with green:
        time.sleep(0.05)
    assert green.totals().unpriced_j == pytest.approx(green.totals().energy_j)
    assert "green/emissions_g" not in green.metrics()


def test_a_read_only_run_folder_fails_before_training(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file, not a folder")
    meter = FlatMeter()
    with pytest.raises(RunFolderError, match=r"run\.dir"):
        _session(tmp_path / "runs", meter).start()
    assert meter.closed == 1


def test_a_disk_that_fills_up_costs_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    green = _session(tmp_path, book_s=0.1)
    import os as real_os

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with pytest.warns(GreenTrainWarning, match="No space left") as told, green:
        time.sleep(0.05)
        monkeypatch.setattr(real_os, "write", full)
        end_s = time.monotonic() + 60.0
        while not told.list and time.monotonic() < end_s:
            time.sleep(0.02)
        time.sleep(0.1)
        monkeypatch.undo()
        time.sleep(0.2)
    run = read_run(green.folder or "")
    assert run.totals.energy_j == pytest.approx(green.totals().energy_j)


def test_windows_come_from_the_curve(tmp_path: Path) -> None:
    with _session(tmp_path) as green:
        time.sleep(0.1)
        t0_s = time.monotonic()
        time.sleep(0.2)
        t1_s = time.monotonic()
        window = green.energy(t0_s, t1_s, wait_s=60.0)
        assert green.energy(t0_s, t1_s + 100) is None
    assert window is not None
    assert window["GPU-a"] == pytest.approx(200 * (t1_s - t0_s), rel=0.02)


def test_a_block_tells_what_it_used_also_when_the_session_is_closed(tmp_path: Path) -> None:
    with _session(tmp_path) as green:
        with green.phase("outer") as outer:
            time.sleep(0.05)
            with green.phase("inner") as inner:
                time.sleep(0.1)
        first = inner.energy(60.0)
    assert first is not None and first.energy_j == pytest.approx(250 * first.seconds, rel=0.05)
    low_j, high_j = first.interval_j or (0.0, 0.0)
    assert low_j <= 250 * first.seconds <= high_j and first.provenance == "mixed"
    assert {uid: device.provenance for uid, device in first.devices.items()} == {
        "GPU-a": "measured", "model:cpu": "modelled",
    }  # fmt: skip
    whole, again = outer.energy(), inner.energy()
    assert whole is not None and again is not None and whole.energy_j is not None and again.energy_j is not None
    assert whole.seconds > 0.15 and whole.energy_j > again.energy_j == pytest.approx(first.energy_j, rel=0.05)
    with green.phase("late") as late:
        pass
    assert late.energy() is None, "no run, no joules"


def test_marks_outside_a_run_are_ignored(tmp_path: Path) -> None:
    green = _session(tmp_path)
    green.step(tokens=5)
    with green.phase("forward"):
        pass
    assert green.totals().steps == 0
    with green:
        green.step(tokens=7)
    green.step(tokens=5)
    assert green.totals().tokens == 7


def test_two_ranks_share_a_node_without_counting_it_twice(tmp_path: Path) -> None:
    config = {"run": {"dir": str(tmp_path), "report": False, "id": "job"}, "power": {"sample_s": 0.02}}
    ranks = [
        GreenSession(
            config,
            meter=FlatMeter(),
            signal=SIGNAL,
            topology=Topology(rank=r, world_size=2, local_rank=r, local_world_size=2, host="h"),
        )
        for r in range(2)
    ]
    t0_s = time.monotonic()
    ranks[1].start()
    ranks[0].start()
    time.sleep(0.3)
    ranks[1].close()
    ranks[0].close()
    wall_s = time.monotonic() - t0_s
    run = read_run(tmp_path / "job")
    assert len(run.ranks) == 2
    (owner,) = (rank for rank in run.ranks if "GPU-a" in rank.sensors)
    known_s = owner.totals.duration_s - owner.totals.missing_s.get("GPU-a", 0.0)
    assert run.totals.by_device["GPU-a"] == pytest.approx(200 * known_s, rel=0.15)
    assert 0.2 < known_s < 1.15 * wall_s


def test_rank_0_logs_the_whole_job(tmp_path: Path) -> None:
    config = {"run": {"dir": str(tmp_path), "report": False, "id": "job", "book_s": 0.1}, "power": {"sample_s": 0.02}}
    ranks = [
        GreenSession(
            config,
            meter=FlatMeter(),
            signal=SIGNAL,
            topology=Topology(rank=r, world_size=2, local_rank=r, local_world_size=2, host="h"),
        )
        for r in range(2)
    ]
    for rank in ranks:
        rank.start()
        rank.step(tokens=100)
    run, end_s = ranks[0].active(), time.monotonic() + 60.0
    assert run is not None
    while not all(one_j := [rank.totals().energy_j for rank in ranks]) and time.monotonic() < end_s:
        time.sleep(0.05)
    while (whole := ranks[0].metrics()).get("green/ranks") != 2 or whole["green/energy_j"] < sum(one_j):
        assert time.monotonic() < end_s, "rank 0 does not see what rank 1 has booked"
        time.sleep(0.05)
        run.look_at_others()
    part = ranks[1].metrics()
    assert (whole["green/ranks"], part["green/ranks"]) == (2, 1)
    assert whole["green/power_w"] == pytest.approx(200 + 2 * 50, rel=0.1)
    assert whole["green/tokens_per_j"] == pytest.approx(200 / whole["green/energy_j"])
    assert whole["green/energy_j"] >= sum(one_j) > one_j[0] > 0
    ranks[1].close()
    ranks[0].close()


def test_another_run_on_the_same_gpu_is_told_so(tmp_path: Path) -> None:
    with _session(tmp_path):
        other = _session(tmp_path)
        with pytest.warns(GreenTrainWarning, match="booked by another run"), other:
            time.sleep(0.05)
        assert "GPU-a" not in other.totals().by_device
        assert other.folder is not None
        (left_out,) = read_run(other.folder).ranks[0].excluded
        assert left_out["uid"] == "GPU-a" and "another run" in left_out["reason"]


def test_a_dead_ranks_device_is_taken_over(tmp_path: Path) -> None:
    first, second = _session(tmp_path, book_s=0.1, id="job"), _session(tmp_path / "x", book_s=0.1, id="job")
    first.start()
    second.start()
    time.sleep(0.3)
    let_go_s = time.monotonic()
    first.close()
    while second.totals().by_device.get("GPU-a", 0.0) < 200 * 0.1:
        assert time.monotonic() < let_go_s + 60.0, "nobody takes it over"
        time.sleep(0.02)
    second.close()
    assert 200 * 0.1 <= second.totals().by_device["GPU-a"] <= 200 * (time.monotonic() - let_go_s)
    assert any(event["name"] == "claim" for event in read_run(second.folder or "").ranks[0].events)


def test_the_journal_is_written_while_running(tmp_path: Path) -> None:
    with _session(tmp_path, book_s=0.1) as green:
        assert green.folder is not None
        end_s, kinds = time.monotonic() + 60.0, list[str]()
        while kinds.count("entry") < 2:
            assert time.monotonic() < end_s, kinds
            time.sleep(0.02)
            kinds = [record["kind"] for record in read_journal(green.folder / "rank-00000.jsonl")]


def test_a_checkpoint_holds_what_was_used_until_now(tmp_path: Path) -> None:
    with _session(tmp_path) as green:
        time.sleep(0.3)
        green.count(tokens=30)
        green.step(tokens=10)
        time.sleep(0.05)
        totals = green.state_dict()["totals"]
    assert totals["energy_j"] > 250 * 0.25
    assert (totals["steps"], totals["tokens"]) == (1, 40)


def test_a_model_that_is_watched_late_is_in_run_json(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with _session(tmp_path) as green:
        green.watch(torch.nn.Linear(3, 2))
    assert read_run(green.folder or "").run["parameters"] == 8


def test_a_signal_that_asks_a_network_begins_and_ends_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    class Asking(ConstantSignal):
        def start(self) -> None:
            told.append("start")

        def close(self) -> None:
            told.append("close")
            raise OSError("the server hangs")

    monkeypatch.setattr("greentrain.session.session.open_signal", lambda config: Asking(100.0))
    config = {"run": {"dir": str(tmp_path), "report": False}, "power": {"sample_s": 0.02}}
    green = GreenSession(config, meter=FlatMeter())
    with pytest.warns(GreenTrainWarning, match="the server hangs"), green:
        time.sleep(0.05)
    with green:
        time.sleep(0.05)
    assert told == ["start", "close"] * 2
    told.clear()
    with GreenSession(config, meter=FlatMeter(), signal=Asking(100.0)):
        time.sleep(0.05)
    assert told == ["start"], "somebody else's signal is theirs to close"


@pytest.mark.parametrize(("reason", "longest_s"), [("sigterm", 8.0), ("finished", 60.0), ("exception", 60.0)])
def test_a_disk_that_hangs_at_the_end_is_waited_for_so_long_and_no_longer(
    reason: str, longest_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, page = Hanging(), tmp_path / "report.html"

    def write(run: Any, wait: bool) -> Path:
        hanging.here()
        return page

    monkeypatch.setattr(session, "report_at_close", write)
    textfile = Textfile(tmp_path, "figures")
    green = _session(tmp_path, report=True).start()
    green._viewers._exporting._exporters.append(textfile)
    monkeypatch.setattr(textfile, "close", hanging.here)
    with hanging.seen_at_once(session), pytest.warns(GreenTrainWarning) as told:
        green.close(reason)
        assert green.report_path is None and not green.running
    figures, report = (str(warning.message) for warning in told)
    assert f"last figures of {green.folder}: not written after 8 s" in figures
    assert f"report of {green.folder}: not written after {longest_s:g} s" in report
    assert hanging.waits_s == [8.0, longest_s] and f"greentrain report {green.folder}" in report
    assert green.report_path == page, "it was let go"


# -- a session whose run is a stand-in, and whose clock a test moves -------------------------------------------------


class Hands:
    """A clock that a test moves."""

    t_s = 5.0

    def monotonic_s(self) -> float:
        return self.t_s

    def unix_s(self) -> float:
        return 1e9 + self.t_s


class StandIn:
    """A run that notes what it is told."""

    has_device_clock = False
    run_id, topology, folder, closed = "gpt-1", Topology(rank=2, world_size=4), Path("runs/gpt-1"), False

    def __init__(self) -> None:
        self.marks: deque[tuple[Any, ...]] = deque()
        self.heard: list[Any] = []
        self.ledger = types.SimpleNamespace(totals=Totals(energy_j=7.0, steps=4))
        self.windows: list[Any] = []
        self.reads, self.changes_s = 0, list[float]()

    def event(self, name: str, text: str, **more: Any) -> None:
        self.heard.append((name, more))

    def rank_record(self) -> None:
        """Nothing is booked yet."""

    def window(self, t0_s: float, t1_s: float, wait_s: float) -> Any:
        self.heard.append(("window", t0_s, t1_s))
        assert wait_s <= 1.0
        return self.windows.pop(0)

    def read_now(self) -> None:
        self.reads += 1

    def changes(self, t_s: float) -> None:
        self.changes_s.append(t_s)

    def know(self, **facts: Any) -> None:
        self.heard.append(("know", facts))

    def leave(self, name: str, make: Any) -> None:
        self.heard.append(("leave", name))

    def close(self, reason: str) -> None:
        self.heard.append(("close", reason))

    def hurry(self) -> None:
        self.heard.append("hurry")

    def book_now(self) -> None:
        self.heard.append("book")

    def save(self) -> None:
        self.heard.append("save")


class Played(GreenSession):
    """A session on a stand-in."""

    def __init__(self, **config: Any) -> None:
        self.hands, self.run = Hands(), StandIn()
        super().__init__(config, signal=SIGNAL, clock=self.hands)
        self._run = self._last = self.run  # type: ignore[assignment]
        self._queue_marks_into(self.run)  # type: ignore[arg-type]

    def at(self, t_s: float) -> "Played":
        self.hands.t_s = t_s
        return self


@pytest.fixture
def played() -> Iterator[Played]:
    green = Played()
    yield green
    green._run = None


def test_each_call_of_the_training_is_one_mark_with_its_time(played: Played) -> None:
    outer = played.at(1.0).begin("outer")
    with played.at(2.0).phase("inner"):
        played.at(3.0).count(tokens=5, samples=1)
    played.at(4.0).step(tokens=10, samples=2)
    played.at(5.0).end("outer", outer)
    played.at(6.0).gear("fp8")
    assert played.at(7.0).mark("gear", "") == 7.0
    played.at(8.0).step(samples=3)
    assert list(played.run.marks) == [
        (1.0, "begin", "outer", 1),
        (2.0, "begin", "inner", 2),
        (3.0, "count", "", 1, 5, 1),
        (3.0, "end", "inner", 2),
        (4.0, "step", "", 2, 10, 2),
        (5.0, "end", "outer", 1),
        (6.0, "gear", "fp8"),
        (7.0, "gear", ""),
        (8.0, "step", "", 3, 0, 3),
    ]
    assert played.run.changes_s == [6.0, 7.0], "a reading of two gears would give each the other's power"


def test_a_step_that_tells_no_work_counts_none(played: Played) -> None:
    played.step()
    played.count()
    assert [mark[4:] for mark in played.run.marks] == [(0, 0), (0, 0)]


def test_a_device_that_comes_into_use_late_stamps_the_marks_of_its_own_run(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(played._controller, "each_second", lambda run: None)
    monkeypatch.setattr(played._viewers, "update", lambda run, cap: None)
    run, other, stamped = played.run, StandIn(), list[Any]()
    for one in (run, other):
        one.queue_stamped = stamped.append  # type: ignore[attr-defined]
    other.has_device_clock = True
    for _ in range(session.EARLY_MARKS):
        played.begin("data")
    for looked, in_use, count in ((run, False, 0), (other, False, 0), (run, True, 1)):
        run.has_device_clock = in_use
        played._each_second(looked)  # type: ignore[arg-type]
        played.begin("data")
        assert len(stamped) == count


def _used(energy_j: float, missing_s: float = 0.0) -> WindowEnergy:
    device = DeviceWindow(energy_j=energy_j, provenance=Provenance.MEASURED, low_j=energy_j - 1, high_j=energy_j + 1)
    return WindowEnergy(seconds=1.0, devices={"a": device}, missing_s=missing_s)


def test_a_block_is_asked_for_its_own_time_again_and_nested(played: Played) -> None:
    outer, inner = played.phase("outer"), played.phase("inner")
    with pytest.raises(SessionError, match="with"):
        outer.energy()
    played.at(1.0)
    with outer as same:
        played.at(2.0)
        with inner:
            played.at(3.0)
        played.at(4.0)
        played.run.windows = [_used(1.0)]
        outer.energy()
        played.at(5.0)
    assert same is outer
    played.at(9.0).run.windows = [_used(5.0), _used(2.0), _used(3.0)]
    found = outer.energy()
    assert found is not None and found.energy_j == 5.0 and found.interval_j == (4.0, 6.0)
    inner.energy()
    with outer:
        played.at(10.0)
    outer.energy()
    asked = [words[1:] for words in played.run.heard if words[0] == "window"]
    assert asked == [(1.0, 4.0), (1.0, 5.0), (2.0, 3.0), (9.0, 10.0)], "up to now, the whole, the inner, the last time"


def test_what_all_devices_used_is_known_only_where_each_is() -> None:
    modelled = DeviceWindow(energy_j=3.0, provenance=Provenance.MODELLED, low_j=1.0, high_j=5.0)
    both = WindowEnergy(seconds=1.0, devices={**_used(5.0).devices, "cpu": modelled})
    assert (both.energy_j, both.interval_j, both.provenance) == (8.0, (5.0, 11.0), "mixed")
    assert _used(5.0).provenance == "measured"
    for unknown in (_used(5.0, missing_s=0.5), WindowEnergy(seconds=1.0, devices={})):
        assert (unknown.energy_j, unknown.interval_j, unknown.provenance) == (None, None, "missing")


def test_steps_of_the_next_run_are_numbered_anew(played: Played) -> None:
    played.step(tokens=1)
    played._queue_marks_into(None)
    played.step(tokens=1)
    played._queue_marks_into(played.run)  # type: ignore[arg-type]
    played.step(tokens=1)
    assert [mark[3] for mark in played.run.marks] == [1, 1]


def test_the_books_are_hurried_where_many_marks_wait_and_not_before(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "HURRY_MARKS", 3)
    heard = []
    for _ in range(5):
        played.step(tokens=1)
        heard.append(len(played.run.heard))
    assert heard == [0, 0, 0, 1, 2]


def test_a_run_that_mixes_its_units_is_told_so_once(played: Played) -> None:
    for tokens in (10, 0, 10, 0, 0):
        played.step(tokens=tokens, samples=1)
    assert played.run.heard == [("warning", {"mixed": True})]
    assert [mark[4:] for mark in played.run.marks] == [(10, 1), (0, 1), (10, 1), (0, 1), (0, 1)]


def test_a_window_with_a_gap_is_unknown_and_one_that_is_not_over_is_waited_for(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    naps: list[float] = []
    clock = types.SimpleNamespace(monotonic=lambda: sum(naps), sleep=naps.append)
    monkeypatch.setattr(session, "time", clock)
    played.run.windows = [_used(5.0)]
    assert played.energy(1.0, 2.0) == {"a": 5.0} and not naps
    assert played.run.heard == [("window", 1.0, 2.0)]
    played.run.windows = [_used(5.0, missing_s=0.5)]
    assert played.energy(1.0, 2.0, wait_s=1.0) is None and not naps
    played.run.windows = [None] * 3 + [_used(5.0)]
    assert played.energy(1.0, 2.0, wait_s=1.0) == {"a": 5.0} and len(naps) == 3
    assert played.run.reads == 1 and not played.run.changes_s, "sensors are read at once for who waits, and once"
    played.run.windows = [None] * 1000
    assert played.energy(1.0, 2.0, wait_s=1.0) is None and 1.0 <= sum(naps[3:]) <= 1.1
    before = len(naps)
    assert played.energy(1.0, 2.0) is None and len(naps) == before
    assert len(played.run.changes_s) == 2, "and soon for who asks again later, but not at each of many looks"
    played._run = None
    played.run.windows = [None, None]
    assert played.energy(1.0, 2.0, wait_s=1.0) is None and len(naps) == before, "a run that is over gets no readings"


def test_a_checkpoint_is_told_with_the_steps_that_the_training_counted(played: Played) -> None:
    played.checkpoint()
    played.step(tokens=1)
    played.checkpoint()
    assert played.run.heard == [("checkpoint", {"steps": 4}), "save", ("checkpoint", {"steps": 1}), "save"]
    played._run = None
    played.checkpoint()
    assert len(played.run.heard) == 4


@pytest.mark.parametrize("agreed", [True, False])
def test_a_run_that_is_to_leave_ends_after_its_checkpoint_once_all_agree(
    played: Played, monkeypatch: pytest.MonkeyPatch, agreed: bool
) -> None:
    launcher = types.SimpleNamespace(
        request_leave=lambda: agreed, together=lambda: played.run.heard.append("together"), close=lambda: None
    )
    monkeypatch.setattr(played._controller, "preemption", launcher)
    monkeypatch.setattr(played._controller, "checkpointed", lambda: True)
    if not agreed:
        played.checkpoint()
        assert played.running and "together" not in played.run.heard
        return
    with pytest.raises(SystemExit) as left:
        played.checkpoint()
    assert left.value.code == 75 and played.run.heard[-2:] == [("close", "left"), "together"]
    monkeypatch.setattr(played._controller, "preemption", None)
    played._leave()


def test_state_holds_what_a_checkpoint_needs_to_go_on(played: Played) -> None:
    state = played.state_dict()
    assert played.run.heard == ["book"]
    assert (state["format"], state["run_id"], state["rank"]) == (1, "gpt-1", 2)
    assert state["totals"]["energy_j"] == 7.0
    assert json.loads(json.dumps(state)) == state
    unused = GreenSession({}, signal=SIGNAL).state_dict()
    assert (unused["run_id"], unused["rank"], unused["totals"]) == (None, None, Totals().to_dict())


def test_a_sigterm_that_the_program_handles_brings_the_books_up_to_date_and_ends_a_pause(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(played._controller, "wake", lambda: played.run.heard.append("wake"))
    played._on_handled_sigterm()
    assert played.run.heard == [("sigterm", {}), "book", "wake"]
    played._run = None
    played._on_handled_sigterm()
    assert len(played.run.heard) == 3


def test_closing_again_ends_nothing_twice_and_not_in_a_forked_child(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    played.close("exception")
    assert played.run.heard == [("know", {"parameters": None, "exit_code": None}), ("close", "exception")]
    played.step(tokens=5)
    assert not played.run.marks, "marks after the end belong to no run"
    played.close()
    assert len(played.run.heard) == 2
    child = Played()

    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(child._controller, "closed", interrupt)
        with pytest.raises(KeyboardInterrupt):
            child.close()
    child._pid += 1
    child.close()
    assert child.run.heard == []
    child._pid -= 1
    child.close("exit")
    assert child.run.heard == [("know", {"parameters": None, "exit_code": None}), ("close", "exit")]


def test_a_forked_child_has_no_run(played: Played) -> None:
    assert played.running and played.folder == Path("runs/gpt-1")
    played._pid += 1
    assert [played.running, played.active()] == [False, None] and played.totals().energy_j == 7.0


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, "finished"),
        (SystemExit(0), "finished"),
        (SystemExit(), "finished"),
        (SystemExit(3), "exception"),
        (SystemExit("lost"), "exception"),
        (KeyboardInterrupt(), "exception"),
    ],
)
def test_the_end_of_a_block_says_how_it_ended(played: Played, error: BaseException | None, reason: str) -> None:
    played.__exit__(None if error is None else type(error), error, None)
    assert played.run.heard[-1] == ("close", reason)


@pytest.mark.parametrize(
    ("rank", "wanted", "reason", "waits"),
    [(0, True, "finished", [True]), (0, True, "exit", [False]), (0, True, "left", []), (0, False, "finished", []),
     (1, True, "finished", [])],
)  # fmt: skip
def test_rank_0_writes_the_report_where_one_is_wanted_and_the_run_is_over(
    monkeypatch: pytest.MonkeyPatch, rank: int, wanted: bool, reason: str, waits: list[bool]
) -> None:
    asked: list[bool] = []

    def report(run: object, wait: bool) -> Path:
        asked.append(wait)
        return Path("report.html")

    monkeypatch.setattr(session, "report_at_close", report)
    green = Played(run={"report": wanted})
    green.run.topology = Topology(rank=rank, world_size=2)
    green.close(reason)
    assert asked == waits and green.report_path == (Path("report.html") if waits else None)


def test_a_sigterm_waits_for_the_report_as_long_as_the_disk_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "report_at_close", lambda run, wait: None if wait else Path("report.html"))
    green = Played(run={"report": True})
    green.run.topology = Topology()
    green.close("sigterm")
    assert green.report_path == Path("report.html")


@pytest.mark.parametrize("tty", [True, False])
def test_the_report_is_named_where_a_person_looks(played: Played, monkeypatch: pytest.MonkeyPatch, tty: bool) -> None:
    named: list[object] = []
    monkeypatch.setattr(session, "name_report", named.append)
    monkeypatch.setattr("sys.stderr", types.SimpleNamespace(isatty=lambda: tty, write=lambda text: None))
    played._report_path = Path("report.html")
    played._name_report()
    assert named == ([Path("report.html")] if tty else [])
    monkeypatch.setattr("sys.stderr", None)
    played._name_report()
    assert len(named) == tty


def test_what_is_shown_of_a_session_says_whether_it_runs(played: Played) -> None:
    assert "gpt-1, running" in played._view().title
    played._run = None
    assert "gpt-1, closed" in played._view().title
    assert str(GreenSession({}, signal=SIGNAL)) == "GreenSession, not started"


def test_metrics_of_two_units_are_left_out_and_before_the_first_start_there_are_none(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"green/energy_j": 5.0, "green/tokens_per_j": 2.0, "green/samples_per_j": 1.0, "green/g_per_ktoken": 3.0}
    monkeypatch.setattr(session, "metrics_of", lambda run: found)
    monkeypatch.setattr(played._controller, "metrics", lambda: {"green/cap": 0.5})
    assert played.metrics() == {**found, "green/cap": 0.5}
    played._work.mixed = True
    assert played.metrics() == {"green/energy_j": 5.0, "green/cap": 0.5}
    assert GreenSession({}, signal=SIGNAL).metrics() == {}


def test_a_session_that_could_not_start_closes_what_it_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Asking(ConstantSignal):
        def start(self) -> None:
            told.append("start")

        def close(self) -> None:
            told.append("close")

    monkeypatch.setattr(session, "open_signal", lambda config: Asking(100.0))
    meter = FlatMeter()
    green = GreenSession({"run": {"dir": str(tmp_path), "report": False}}, meter=meter)

    def fails(*_: object, **__: object) -> None:
        raise OSError("no controller")

    monkeypatch.setattr(green._controller, "started", fails)
    with pytest.raises(OSError, match="no controller"):
        green.start()
    assert (told, meter.closed, green.running, green.folder) == (["start", "close"], 1, False, None)
    (folder,) = tmp_path.iterdir()
    close = read_run(folder).ranks[0].close
    assert close is not None and close["reason"] == "exception"


def test_a_pause_and_a_gear_are_the_controllers_to_end_and_to_shift(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(played._controller, "wake", lambda: played.run.heard.append("wake"))
    monkeypatch.setattr(played._controller, "shift", lambda gear: played.run.heard.append(gear))
    played.resume()
    played.shift("fp8")
    assert played.run.heard == ["wake", "fp8"]


def test_what_cannot_be_watched_gets_no_gears(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(played._controller, "watch", lambda *given: played.run.heard.append(given))
    with pytest.raises(ConfigError, match="got a int"):
        played.watch(3)
    assert played.run.heard == []


def test_a_sigterm_waits_while_a_session_closes_and_comes_after_it(played: Played) -> None:
    heard = played.run.heard
    hook: Any = types.SimpleNamespace(
        hold=lambda: heard.append("hold"), remove=lambda closed: heard.append(("remove", closed))
    )
    played._hook = hook
    played.close()
    assert heard == ["hold", ("know", {"parameters": None, "exit_code": None}), ("close", "finished"), ("remove", True)]


def test_the_interpreters_exit_closes_what_an_interrupt_left_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the middle of close(): threads of the books end with the interpreter, so it has to wait for them."""
    exits: list[Any] = []
    monkeypatch.setattr(session, "atexit", types.SimpleNamespace(register=exits.append, unregister=exits.remove))

    def interrupt() -> None:
        raise KeyboardInterrupt

    green = _session(tmp_path).start()
    green.step()
    with monkeypatch.context() as patch:
        patch.setattr(green._controller, "closed", interrupt)
        with pytest.raises(KeyboardInterrupt):
            green.close()
    (at_exit,) = exits
    at_exit()
    assert green.folder is not None and green.totals().steps == 1
    assert [record["kind"] for record in read_journal(green.folder / "rank-00000.jsonl")][-1] == "close"


class Ends:
    """Notes what a session ends, which it may do twice."""

    def __init__(self, green: Played, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at_exit: list[Any] = []
        self.handler: Any = signal.SIG_DFL
        exits = types.SimpleNamespace(register=self.at_exit.append, unregister=self._unregister)
        monkeypatch.setattr(session, "atexit", exits)
        for name in ("release", "closed"):
            owner = green._phase_hooks if name == "release" else green._controller
            monkeypatch.setattr(owner, name, lambda name=name: green.run.heard.append(name))
        monkeypatch.setattr(green._viewers, "close", lambda run: green.run.heard.append("viewers"))
        table = types.SimpleNamespace(
            SIGTERM=signal.SIGTERM,
            SIG_DFL=signal.SIG_DFL,
            getsignal=lambda number: self.handler,
            signal=lambda number, handler: setattr(self, "handler", handler),
        )
        monkeypatch.setattr(session, "signal", table)
        green._hook = session.ShutdownHook(green.close)
        green._hook.install()

    def _unregister(self, call: Any) -> None:
        self.at_exit[:] = []


def test_what_an_interrupt_leaves_of_a_close_the_next_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at each place of close(): a second call, or the interpreter's exit, ends all of it, and SIGTERM kills."""
    all_of_it = [
        "release",
        "closed",
        ("know", {"parameters": None, "exit_code": None}),
        ("close", "finished"),
        "viewers",
    ]
    for place in range(1, 200):
        with monkeypatch.context() as patch:
            green = Played(run={"report": False})
            ends = Ends(green, patch)
            cut = interrupted(green.close, place, "session/session.py")
            hook = green._hook
            assert hook is not None and (not hook._held or green.running), f"SIGTERM waits after {cut}"
            green.close()
            heard = green.run.heard[:]
            assert heard[-5:] == all_of_it, f"after Ctrl-C at {cut}"
            assert not hook._held and not ends.at_exit and not green.running
            green.close()
            assert green.run.heard == heard, "once it has ended there is nothing to end"
        if not cut:
            break
    assert place > 15 and not cut


@pytest.mark.parametrize("late", ["_queue_marks_into", "install", "started"])
def test_an_interrupt_at_the_end_of_a_start_leaves_nothing_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    meter, green = FlatMeter(), _session(tmp_path)
    green._meter = meter
    limits = types.SimpleNamespace(close=lambda: told.append("limits"))
    told: list[str] = []
    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        owner: Any = {"install": session.ShutdownHook, "started": green._controller}.get(late, green)
        does = getattr(owner, late)

        def cut(*given: Any, **named: Any) -> None:
            does(*given, **named)
            green._controller.gpu_limits = limits  # type: ignore[assignment]
            patch.undo()
            raise KeyboardInterrupt

        patch.setattr(owner, late, cut)
        with pytest.raises(KeyboardInterrupt):
            green.start()
    assert (green.running, meter.closed, told, signal.getsignal(signal.SIGTERM)) == (False, 1, ["limits"], before)
    (folder,) = tmp_path.iterdir()
    close = read_run(folder).ranks[0].close
    assert close is not None and close["reason"] == "exception"
    green._meter = FlatMeter()
    with green:
        green.step()
    assert green.totals().steps == 1


def test_runs_of_a_process_are_counted_from_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def choose(config: object, place: object, unix_s: float, nth: int, carried: object) -> str:
        counted.append(nth)
        return f"run-{nth}"

    monkeypatch.setattr(session, "choose_run_id", choose)
    green = _session(tmp_path)
    for _ in range(2):
        green.start().close()
    assert counted == [1, 2]


@pytest.mark.parametrize(("live", "rank", "lines"), [(True, 0, 1), (False, 0, 0), (True, 1, 0)])
def test_a_start_tells_all_that_follow_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, live: bool, rank: int, lines: int
) -> None:
    told: list[Any] = []
    green = _session(tmp_path, live=live, id="job")
    monkeypatch.setattr(green._viewers, "open_exporters", lambda *given: told.append(given))
    monkeypatch.setattr(green._viewers, "open_line", lambda: told.append("line"))
    monkeypatch.setattr(green._controller, "show", lambda: told.append("gear"))
    monkeypatch.setattr(session, "keep_estimate", lambda estimate, run: told.append("estimate"))
    monkeypatch.setattr(session.ShutdownHook, "install", lambda hook: told.append("hook"))
    place = Topology(rank=rank, world_size=2, local_rank=rank, local_world_size=2)
    green.start(place).close()
    assert told == [(green.config.export, place, "job"), *["line"] * lines, "estimate", "hook", "gear"]


def test_each_second_the_controller_looks_and_then_viewers_show(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(played._controller, "each_second", lambda run: played.run.heard.append("controller"))
    monkeypatch.setattr(played._viewers, "update", lambda run, caps: played.run.heard.append("viewers"))
    played._each_second(played.run)  # type: ignore[arg-type]
    assert played.run.heard == ["controller", "viewers"]


def test_a_grid_that_is_replayed_begins_with_the_job_and_is_in_its_books(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {
        "run": {"dir": str(tmp_path), "report": False},
        "carbon": {"replay_start": "2022-05-28T12:00Z", "speed": 60},
    }
    green = GreenSession(config, meter=FlatMeter(), signal=SIGNAL)
    for began_unix_s in (5.0, None):  # of the launcher, waits included; else of this start
        monkeypatch.setattr(type(green._controller), "began_unix_s", began_unix_s)
        with green:
            pass
        grid = read_run(green.folder or "").run["grid"]
        assert (grid["grid_s"], grid["speed"]) == (1_653_739_200.0, 60.0)
        assert grid["unix_s"] == 5.0 if began_unix_s else time.time() - 600.0 < grid["unix_s"] <= time.time()
    with _session(tmp_path) as plain:
        pass
    assert read_run(plain.folder or "").run.get("grid") is None
