"""The loop of a fleet's controller with a scheduler that does what it is told."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from greentrain.control.fleet.controller import FleetController
from greentrain.control.fleet.engines import EngineError, EngineJob
from greentrain.control.fleet.spec import FleetSpec
from greentrain.ledger.fleet_state import FleetHeldError, FleetState
from greentrain.policy.check_plan import check
from greentrain.report.cluster import Cluster
from tests.control.fleet.fake_engine import FakeEngine
from tests.helpers.hand_clock import HandClock

HOUR = 3600.0
START = datetime(2022, 6, 1, tzinfo=UTC).timestamp()
"""Midnight: dirty until 10:00, clean until 16:00."""
FILE = """
name: east
events: {folder}/events
sites:
- {{name: here, carbon: {{signal: trace, trace_csv: {folder}/grid.csv}}, power_cap_w: {cap_w}}}
pools:
- {{name: gpu, site: here, nodes: 4}}
actions: {folder}/actions.yaml
"""
ACTIONS = """
- {gear: bf16, ranks: 1, tokens_per_s: 100, power_w: 1000}
- {gear: bf16, ranks: 2, tokens_per_s: 190, power_w: 2000}
- {gear: bf16, ranks: 4, tokens_per_s: 360, power_w: 4000}
- {gear: bf16, ranks: 2, cap: 0.7, tokens_per_s: 160, power_w: 1400}
"""


def spec_in(folder: Path, cap_w: float = 1e5, **more: Any) -> FleetSpec:
    day = [500] * 10 + [100] * 6 + [500] * 8
    hours = [f"2022-05-{d:02}T{h:02}:00Z,{g}" for d in range(20, 32) for h, g in enumerate(day)]
    hours += [f"2022-06-{d:02}T{h:02}:00Z,{g}" for d in range(1, 8) for h, g in enumerate(day)]
    (folder / "grid.csv").write_text("timestamp_utc,g_per_kwh\n" + "\n".join(hours) + "\n")
    (folder / "actions.yaml").write_text(ACTIONS)
    (folder / "fleet.yaml").write_text(FILE.format(folder=folder, cap_w=cap_w))
    return replace(FleetSpec.read(folder / "fleet.yaml"), **more)


def job(job_id: str, tag: str, *, state: str = "queued", nodes: int = 2) -> EngineJob:
    return EngineJob(
        id=job_id,
        name="gpt",
        state=state,
        nodes=nodes,
        partition="gpu",
        user="ann",
        tag=f"greentrain:{tag}",
        submit_s=START,
    )


class Fleet:
    """A controller with what it needs, and a clock that the test moves."""

    def __init__(self, folder: Path, engine: FakeEngine, **more: Any) -> None:
        self.folder, self.engine = folder, engine
        self.clock = HandClock(now_s=START + 60.0, unix_offset_s=0.0)
        self.spec = spec_in(folder, **more)
        self.lines: list[str] = []
        self.state = FleetState(folder / "fleet.db", clock=self.clock.unix_s)
        self.controller = self.made()

    def made(self, *, dry_run: bool = False) -> FleetController:
        return FleetController(
            self.spec, self.engine, self.state, dry_run=dry_run, tell=self.lines.append, clock=self.clock.unix_s
        )

    def at(self, hour: float) -> None:
        self.clock.now_s = self.engine.now_s = START + hour * HOUR
        self.controller.turn()

    def job(self, name: str) -> Any:
        return next(one for one in self.state.now().jobs if one.name == name)


@contextmanager
def fleet(folder: Path, *jobs: EngineJob, start: bool = True, **more: Any) -> Iterator[Fleet]:
    made = Fleet(folder, FakeEngine(4, *jobs), **more)
    if start:
        made.controller.start()
    try:
        yield made
    finally:
        made.controller.close()
        made.state.close()


def test_a_job_is_held_until_the_clean_hours_and_ends_in_time(tmp_path: Path) -> None:
    with fleet(tmp_path, job("1", "hours=3,deadline_h=20")) as found:
        found.at(0.02)
        assert found.engine.told == [("hold", "1")]
        found.at(0.1)
        held = found.job("gpt-1")
        assert held.state == "held" and held.until_s == START + 10 * HOUR and held.user == "ann"
        assert "starts it at 2022-06-01T10:00Z, at 100 g/kWh in place of 500 now" in held.waits_for
        kept = found.state.plan()
        assert kept is not None and kept["reason"] == "the first plan"
        assert float(check(json.dumps(kept["plan"]))[0]) == pytest.approx(kept["plan"]["grams"])
        found.at(9.9)
        assert found.engine.told == [("hold", "1")]
        found.at(10.01)
        assert found.engine.told == [("hold", "1"), ("release", "1")]
        found.at(10.02)
        running = found.job("gpt-1")
        assert (running.state, running.nodes, running.row, running.power_w) == ("running", 2, "bf16 on 2", 2000.0)
        assert running.basis == "modelled" and running.waits_for == ""
        found.at(11.02)
        assert found.job("gpt-1").tokens_left == pytest.approx(running.tokens_left - HOUR * 190, rel=1e-6)
        last = found.state.samples()[-1]
        assert last.power_w == 2000.0 and last.g_per_kwh == pytest.approx(100.0) and last.cap_w == 1e5
        assert last.grams == pytest.approx(2.0 * 100, rel=1e-6)  # an hour of 2 kW
        found.engine.end("1")
        found.at(13.5)
        assert found.state.now().jobs == ()
        outcomes = [(one.verb, one.outcome) for one in found.state.actions()]
        assert outcomes == [("hold", "done"), ("release", "done")]
        assert all(
            "the plan starts it" in one.reason or "the plan runs it" in one.reason for one in found.state.actions()
        )


def test_a_dry_run_changes_nothing_and_says_all_once(tmp_path: Path) -> None:
    jobs = job("1", "hours=3,deadline_h=20"), job("2", "hours=1,deadline_h=1.5")
    with fleet(tmp_path, *jobs, start=False) as found:
        found.controller.close()
        found.controller = found.made(dry_run=True)
        found.controller.start()
        for hour in (0.02, 0.03, 0.04):
            found.at(hour)
        assert found.engine.told == []
        assert [line.split()[1:3] for line in found.lines] == [["hold", "gpt-1"]]
        assert "[would be done]" in found.lines[0]
        assert [(one.verb, one.outcome, one.dry_run) for one in found.state.actions()] == [("hold", "dry run", True)]
        assert found.state.now().controller.dry_run


def test_one_that_was_cut_off_goes_on_and_does_nothing_twice(tmp_path: Path) -> None:
    with fleet(tmp_path, job("1", "hours=3,deadline_h=20,restart=yes")) as found:
        found.at(0.02)
        seq = found.state.intend("gpt-1", "hold", t_s=0.0)  # and killed before anybody knew
        left = found.job("gpt-1").tokens_left
        found.clock.now_s += 1000.0  # its lease is over
        found.controller = found.made()
        found.controller.start()
        assert found.state.unknown() == []
        assert str(next(one for one in found.state.actions() if one.seq == seq).outcome).startswith("unknown")
        found.at(0.5)
        assert found.engine.told == [("hold", "1")]
        assert found.job("gpt-1").tokens_left == left
        found.at(10.01)
        found.controller = found.made()
        found.clock.now_s += 1000.0
        found.controller.start()
        found.at(10.5)
        assert found.engine.told == [("hold", "1"), ("release", "1")]
        # what it trained while nobody looked counts
        assert found.job("gpt-1").tokens_left < left


def test_what_may_not_be_brought_back_is_left_to_run(tmp_path: Path) -> None:
    jobs = (
        job("1", "hours=3,deadline_h=40", state="running"),
        job("2", "hours=3,deadline_h=40,restart=true", state="running"),
    )
    with fleet(tmp_path, *jobs) as found:
        found.engine.jobs = {key: replace(one, start_s=START - HOUR) for key, one in found.engine.jobs.items()}
        found.at(0.02)
        assert found.engine.told == [("hold", "2")]
        (action,) = found.state.actions()
        assert action.verb == "requeue" and action.outcome == "done"
        assert found.job("gpt-1").state == "running"


def test_a_refusal_is_noted_and_tried_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fleet(tmp_path, job("1", "hours=3,deadline_h=20")) as found:
        tries = []

        def refuse(one: EngineJob) -> None:
            tries.append(one.id)
            raise EngineError("Access/permission denied")

        monkeypatch.setattr(found.engine, "hold", refuse)
        for turn in range(7):
            found.at(0.02 + turn * 0.01)
        assert len(tries) == 2
        assert [one.outcome for one in found.state.actions()] == ["refused: Access/permission denied"] * 2


def test_wrong_terms_leave_a_job_alone_with_its_nodes(tmp_path: Path) -> None:
    wrong = job("1", "hours=soon,deadline_h=20", state="running"), job("3", "hours=2,deadline_h=4,nodes=3", nodes=3)
    with fleet(tmp_path, *wrong, job("2", "hours=1,deadline_h=2,nodes=4", nodes=4)) as found:
        found.at(0.02)
        note = found.state.now().controller.note
        assert "gpt-1 is left alone: job.hours is 'soon' (str); expected float" in note
        assert "gpt-3 is left alone: its table of actions has no row for 3 nodes" in note
        assert found.engine.told == [("hold", "2")]  # two nodes are taken, so four are not free
        assert found.job("gpt-2").late


def test_demand_response_reaches_runs_before_the_plan(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "plain.yaml").write_text("- {gear: bf16, ranks: 2, tokens_per_s: 190, power_w: 2000}\n")
    tag = f"hours=4,deadline_h=5,nodes=2,run={run},actions={tmp_path}/plain.yaml"
    with fleet(tmp_path, job("1", tag, state="running"), job("2", "hours=4,deadline_h=5", state="running")) as found:
        found.at(0.02)
        path = run / "events" / "fleet.json"
        assert not path.exists()
        (tmp_path / "events").mkdir()
        (tmp_path / "events" / "grid.json").write_text(
            json.dumps({"percent": 70, "hours": 1, "reason": "the grid asks"})
        )
        os.utime(tmp_path / "events" / "grid.json", (START + 0.03 * HOUR,) * 2)
        found.engine.broken = "slurmctld is away"
        with pytest.raises(EngineError):
            found.at(0.04)
        told = json.loads(path.read_text())
        assert told["percent"] == 70 and "the grid asks" in told["reason"] and told["hours"] >= 0.9
        (action,) = [one for one in found.state.actions() if one.verb == "cap"]
        assert action.outcome == "done" and action.what.startswith("to 70% until 2022-06-01T01:0")
        assert action.reason == "the grid asks"
        assert "slurmctld is away" in found.state.now().controller.note
        found.engine.broken = ""
        found.at(1.2)
        assert not path.exists()
        assert [one.what for one in found.state.actions() if one.verb == "cap"][-1] == "lifted"


def power_event(folder: Path, hour: float, **event: Any) -> None:
    (folder / "events").mkdir(exist_ok=True)
    (folder / "events" / "grid.json").write_text(json.dumps(event))
    os.utime(folder / "events" / "grid.json", (START + hour * HOUR,) * 2)


def run_in(folder: Path, rows: str) -> tuple[Path, str]:
    """A run folder with rows of 2 nodes; its event from the fleet, and the tag of its job."""
    (folder / "run").mkdir()
    (folder / "run.yaml").write_text(rows)
    tag = f"hours=4,deadline_h=5,nodes=2,run={folder}/run,actions={folder}/run.yaml"
    return folder / "run" / "events" / "fleet.json", tag


ROW = "- {gear: bf16, ranks: 2, tokens_per_s: 190, power_w: 2000}\n"


def test_the_end_of_an_event_reaches_runs_though_the_engine_is_away(tmp_path: Path) -> None:
    path, tag = run_in(tmp_path, ROW)
    with fleet(tmp_path, job("1", tag, state="running"), cap_w=2500.0) as found:
        found.at(0.02)
        power_event(tmp_path, 0.03, percent=70, hours=1)
        found.at(0.04)
        assert json.loads(path.read_text())["percent"] == 70
        found.engine.broken = "slurmctld is away"
        with pytest.raises(EngineError):
            found.at(1.03)
        assert not path.exists()


def test_an_event_loosens_no_cap_of_the_plan(tmp_path: Path) -> None:
    path, tag = run_in(tmp_path, ROW + "- {gear: bf16, ranks: 2, cap: 0.7, tokens_per_s: 160, power_w: 1400}\n")
    with fleet(tmp_path, job("1", tag, state="running"), cap_w=1500.0) as found:
        found.at(0.02)
        assert json.loads(path.read_text())["percent"] == 70
        found.engine.broken = "slurmctld is away"
        for hour, percent in ((0.04, 95), (0.06, None)):
            if percent is None:
                (tmp_path / "events" / "grid.json").unlink()
            else:
                power_event(tmp_path, hour - 0.01, percent=percent, hours=1)
            with pytest.raises(EngineError):
                found.at(hour)
            assert json.loads(path.read_text())["percent"] == 70


def test_a_controller_that_starts_within_an_event_tells_runs_that_nobody_may_end(tmp_path: Path) -> None:
    path, tag = run_in(tmp_path, ROW)
    power_event(tmp_path, 0.0, percent=70, hours=2)
    with fleet(tmp_path, job("1", tag, state="running"), cap_w=2500.0) as found:  # 1750 W are left, and no row below
        found.at(0.02)
        assert json.loads(path.read_text())["percent"] == 70
        found.at(2.01)
        assert not path.exists() and found.engine.told == []


def test_a_cap_of_the_site_is_kept_by_the_plan(tmp_path: Path) -> None:
    jobs = [job(str(i), "hours=2,deadline_h=18,nodes=1,restart=true", nodes=1) for i in range(4)]
    with fleet(tmp_path, *jobs, cap_w=2500.0) as found:
        for tenth in range(1, 250, 12):
            found.at(tenth / 10)
            running = [one for one in found.engine.jobs.values() if one.state == "running"]
            assert sum(one.nodes for one in running) <= 2
            for one in running:
                if START + tenth / 10 * HOUR - (one.start_s or 0) > 1.9 * HOUR:
                    found.engine.end(one.id)
        assert all(one.state == "done" for one in found.engine.jobs.values())


def test_the_budget_is_of_all_that_was_emitted(tmp_path: Path) -> None:
    with fleet(tmp_path, job("1", "hours=3,deadline_h=4"), budget_kg=20.0) as found:
        found.engine.jobs["1"] = replace(found.engine.jobs["1"], state="running", start_s=START)

        def left_g(hour: float) -> float:
            found.at(hour)
            assert found.controller.plan is not None
            return found.controller.plan.problem.budget_g

        assert left_g(0.02) == 20_000.0
        assert left_g(1.02) == 20_000.0  # planned before it is known what was emitted since the last look
        assert left_g(2.02) == pytest.approx(19_000.0)
        found.controller = found.made()
        found.clock.now_s += 1000.0
        found.controller.start()
        assert left_g(3.02) == pytest.approx(18_000.0)
        assert found.state.now().emitted_g == pytest.approx(3_000.0)  # nobody looked for an hour; it ran


@pytest.mark.parametrize(("gb", "goes"), [(10, "far"), (20_000, "gpu")], ids=["pays", "does not pay"])
def test_a_checkpoint_moves_where_that_pays(tmp_path: Path, gb: int, goes: str) -> None:
    tag = f"hours=6,deadline_h=9,pools=gpu+far,restart=yes,min_run_s=0,checkpoint_gb={gb}"
    with fleet(tmp_path, job("1", tag), start=False) as found:
        found.engine.jobs["1"] = replace(found.engine.jobs["1"], state="running", start_s=START)
        (tmp_path / "clean.csv").write_text((tmp_path / "grid.csv").read_text().replace(",500", ",300"))
        here = found.spec.sites[0]
        there = replace(here, name="there", carbon=replace(here.carbon, trace_csv=str(tmp_path / "clean.csv")))
        pools = *found.spec.pools, replace(found.spec.pools[0], name="far", site="there")
        found.spec = replace(found.spec, sites=(here, there), pools=pools, link_gbit_s=1000.0)
        found.controller = found.made()
        found.controller.start()
        found.at(0.5)
        assert found.controller.plan is not None
        (one,) = found.controller.plan.problem.jobs
        assert one.site == "here" and one.move_s == pytest.approx(8 * gb / 1000)
        mean = (400 * 18 + 100 * 6) / 24  # of both sites
        assert one.move_g == pytest.approx(3 * gb * 0.06 * mean)
        found.at(0.6)
        assert found.engine.jobs["1"].partition == goes


def test_power_and_cap_leave_idle_nodes_out(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    entry = {
        "kind": "entry",
        "t0": START + HOUR - 10,
        "t1": START + HOUR,
        "devices": {"gpu0": {"j": 36_000.0, "prov": "measured"}},
    }
    (run / "rank-00000.jsonl").write_text(json.dumps(entry) + "\n")
    tag = f"hours=3,deadline_h=4,run={run},actions={tmp_path}/actions.yaml"
    with fleet(tmp_path, job("1", tag), cap_w=10_000.0, start=False) as found:
        found.engine.jobs["1"] = replace(found.engine.jobs["1"], state="running", start_s=START)
        found.spec = replace(found.spec, pools=(replace(found.spec.pools[0], idle_w=500.0),))
        found.controller = found.made()
        found.controller.start()
        found.at(1.0)
        sample = found.state.samples()[-1]
        assert (sample.power_w, sample.basis, sample.cap_w) == (2600.0, "measured", 8000.0)  # 3,600 W of two nodes
        assert found.job("gpt-1").power_w == 2600.0
        assert found.controller.plan is not None
        assert found.controller.plan.problem.sites[0].power_cap_w[0] == 8000.0


def test_two_controllers_exclude_each_other(tmp_path: Path) -> None:
    with fleet(tmp_path, job("1", "hours=3,deadline_h=20")) as found:
        found.at(0.02)
        other = FleetState(tmp_path / "fleet.db", clock=found.clock.unix_s)
        second = FleetController(found.spec, found.engine, other, clock=found.clock.unix_s)
        with pytest.raises(FleetHeldError, match="controls this fleet"):
            second.start()
        found.clock.now_s += 1000.0
        second.start()
        assert found.controller.run(Event()) == 1  # it has lost the fleet, and ends
        assert "has taken the fleet" in found.lines[-1]
        second.close()
        other.close()


def test_a_failure_of_anything_leaves_the_jobs_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fleet(tmp_path, job("1", "hours=3,deadline_h=20")) as found:
        ended = Event()
        looks = []

        def look() -> Any:
            looks.append(1)
            if len(looks) == 3:
                ended.set()
            raise ZeroDivisionError("a defect")

        monkeypatch.setattr(found.engine, "look", look)
        found.controller._spec = replace(found.spec, every_s=0.05)
        assert found.controller.run(ended) == 0
        assert [line for line in found.lines if "a defect" in line] == [
            "nothing was changed: ZeroDivisionError('a defect')"
        ]
        assert found.engine.told == []


def configured(run: Path, *gears: str, demand: Any = None) -> None:
    (run / "run.json").write_text(
        json.dumps({"config": {"actuators": {"demand": demand}, "precision": {"gears": gears}}})
    )


def test_a_run_that_looks_for_no_events_keeps_its_watts_in_the_plan(tmp_path: Path) -> None:
    path, tag = run_in(tmp_path, ROW + "- {gear: bf16, ranks: 2, cap: 0.7, tokens_per_s: 160, power_w: 1400}\n")
    configured(tmp_path / "run", "bf16")
    with fleet(tmp_path, job("1", tag, state="running"), cap_w=2500.0) as found:
        found.at(0.02)
        power_event(tmp_path, 0.03, percent=70, hours=1)
        for hour in (0.04, 0.06, 0.2, 0.3, 0.4, 0.5, 0.6):
            found.at(hour)
        assert not path.exists()
        (action,) = found.state.actions()
        assert action.verb == "cap" and action.what.startswith("to 70% until")
        assert str(action.outcome).startswith("refused: nobody obeys: its run has no actuators.demand")
        assert found.controller.plan is not None
        (one,) = found.controller.plan.problem.jobs
        assert [row.power_w for row in one.rows] == [2000.0] and found.job("gpt-1").power_w == 2000.0
        configured(tmp_path / "run", "bf16", demand={})
        found.at(0.7)
        assert json.loads(path.read_text())["percent"] == 70
        assert "a job came, went or changed" in str((found.state.plan() or {})["reason"])


def test_gears_are_planned_with_where_the_run_takes_them(tmp_path: Path) -> None:
    path, tag = run_in(tmp_path, ROW + "- {gear: fp32, ranks: 2, tokens_per_s: 150, power_w: 1200}\n")
    for gears, told in ((["bf16"], None), (["bf16", "fp32"], "fp32"), (["bf16", "fp16"], "bf16")):
        path.unlink(missing_ok=True)
        configured(tmp_path / "run", *gears, demand={})
        folder = tmp_path / "-".join(gears)
        folder.mkdir()
        with fleet(folder, job("1", tag.replace("deadline_h=5", "deadline_h=9"), state="running")) as found:
            found.at(0.02)
            assert (json.loads(path.read_text())["gear"] if path.exists() else None) == told
            assert [one.what.split(" until")[0] for one in found.state.actions()] == [f"to {told}"] * (told is not None)


def test_one_that_cannot_be_ended_is_told_its_share_of_the_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, tag = run_in(tmp_path, ROW)
    tag = tag.replace("hours=4,deadline_h=5", "hours=4,deadline_h=20,restart=yes,min_run_s=0")
    with fleet(tmp_path, job("1", tag, state="running"), cap_w=2500.0) as found:
        found.at(9.99)

        def refuse(one: EngineJob) -> None:
            raise EngineError("Job can no longer be requeued")

        monkeypatch.setattr(found.engine, "hold", refuse)
        power_event(tmp_path, 10.0, percent=40, hours=2)  # 1,000 W, and its only row takes 2,000
        for hour in (10.01, 10.02, 10.03):
            found.at(hour)
        assert "refused" in str([one.outcome for one in found.state.actions() if one.verb == "requeue"][-1])
        assert json.loads(path.read_text())["percent"] == 40
        (tmp_path / "events" / "grid.json").unlink()
        found.spec = replace(found.spec, sites=(replace(found.spec.sites[0], power_cap_w=1500.0),))
        found.controller._spec = found.spec  # and the cap itself is lower now
        found.engine.jobs["2"] = job("2", "hours=1,deadline_h=12,nodes=1", nodes=1)
        for hour in (10.1, 10.2):
            found.at(hour)
        assert json.loads(path.read_text())["percent"] == 75
        monkeypatch.undo()


def test_how_jobs_ended_and_what_they_did_before_is_kept(tmp_path: Path) -> None:
    jobs = [job(str(i), "hours=3,deadline_h=30,restart=yes,min_run_s=0", nodes=1) for i in (1, 2, 3)]
    with fleet(tmp_path, *jobs) as found:
        for hour in (9.5, 10.01, 10.02, 11.0):
            found.at(hour)
        for job_id, state in (("1", "done"), ("2", "cancelled")):
            found.engine.jobs[job_id] = replace(found.engine.jobs[job_id], state=state)
        del found.engine.jobs["3"]
        found.at(12.0)
        assert found.state.now().jobs == ()
        stays = {one.job: one for one in found.state.stays()}
        assert {name: one.end for name, one in stays.items()} == {
            "gpt-1": "done", "gpt-2": "cancelled", "gpt-3": "gone",
        }  # fmt: skip
        first = stays["gpt-1"]
        assert (first.from_s, first.until_s) == (START + 10.01 * HOUR, START + 12 * HOUR)
        assert (first.row, first.nodes, first.pool, first.user) == ("bf16 on 1", 1, "gpu", "ann")
        assert found.state.stays(START + 13 * HOUR) == []
        now = Cluster(tmp_path).now(found.clock.unix_s())
        assert now is not None
        lines = {line["name"]: line for line in now.to_dict()["jobs"]}
        assert [lines[f"gpt-{i}"]["state"] for i in (1, 2, 3)] == ["done", "cancelled", "gone"]
        assert lines["gpt-1"]["past"] == [[START + 10.01 * HOUR, START + 12 * HOUR, "bf16 on 1", 1, "gpu"]]


@pytest.mark.parametrize("knows", [True, False])
def test_what_runs_booked_while_nobody_looked_counts(tmp_path: Path, knows: bool) -> None:
    path, tag = run_in(tmp_path, ROW)
    with fleet(tmp_path, job("1", tag.replace("deadline_h=5", "deadline_h=9"), state="running")) as found:
        found.engine.jobs["1"] = replace(found.engine.jobs["1"], start_s=START)
        found.at(0.02)
        entry = {"kind": "entry", "devices": {"gpu0": {"j": 3.6e6, "prov": "measured"}}}
        some = [{**entry, "t0": START + at, "t1": START + at + 3600, "op_g": 450.0} for at in (-3528, 72, 3672)]
        some[-1]["op_g"] = 450.0 if knows else None
        (path.parent.parent / "rank-00000.jsonl").write_text("".join(json.dumps(one) + "\n" for one in some))
        found.engine.jobs["1"] = replace(found.engine.jobs["1"], state="done" if knows else "running")
        found.at(2.02)
        last = found.state.samples()[-1]
        assert last.grams == pytest.approx(900.0 if knows else 2 * 1.0 * 500.0)
        assert last.grams_basis == ("measured" if knows else "modelled")
