"""Run folders: ranks of one launch meet, launches that look the same do not."""

import itertools
import json
import os
import secrets
import sys
import time
import types
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from greentrain import __version__
from greentrain.config.schema import GreenConfig, RunConfig
from greentrain.errors import ConfigError, GreenTrainWarning
from greentrain.ledger import run_folder
from greentrain.ledger.run_folder import (
    ResumeState,
    agreed_run_id,
    choose_run_id,
    command,
    free_run_id,
    grid_time_of,
    is_finished,
    launch_run_id,
    new_run_id,
    run_json,
)
from greentrain.ledger.totals import Totals
from greentrain.types import Topology
from greentrain.utils.files import write_json

AGENT = {"MASTER_ADDR": "h", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none", "RANK": "0"}


def _ranks(world: int, local_world: int) -> list[Topology]:
    return [
        Topology(rank=r, world_size=world, local_rank=r % local_world, local_world_size=local_world, host=f"h{r}")
        for r in range(world)
    ]


def test_a_new_id_sorts_by_time_and_is_unique(monkeypatch: pytest.MonkeyPatch) -> None:
    digits = iter(["0a1b", "ffff", "0000", "9c2d"])
    monkeypatch.setattr(secrets, "token_hex", lambda size: next(digits) if size >= 4 else "too few")
    ids = [new_run_id("gpt", unix_s) for unix_s in (0.0, 1e9, 1e9, 2e9)]
    assert sorted(ids)[0] == ids[0] and sorted(ids)[-1] == ids[-1]
    assert len(set(ids)) == 4
    assert ids[0].startswith("gpt-19700101-000000-")


def test_all_ranks_of_a_launch_on_several_nodes_find_the_same_id() -> None:
    assert len({launch_run_id("gpt", place, 1, AGENT) for place in _ranks(4, 2)}) == 1


def test_launches_differ_by_port_job_step_and_run() -> None:
    place = _ranks(4, 2)[0]
    others = [{"MASTER_PORT": "1"}, {"SLURM_JOB_ID": "7"}, {"SLURM_STEP_ID": "7"}, {"TORCHELASTIC_RUN_ID": "x"}]
    ids = {launch_run_id("gpt", place, 1, {**AGENT, **other}) for other in [{}, *others]}
    assert len(ids) == 5
    assert launch_run_id("gpt", place, 2, AGENT) == launch_run_id("gpt", place, 1, AGENT) + "-2"


def test_on_one_node_launches_differ_by_their_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Topology(rank=0, world_size=2, local_world_size=2, host="h")
    before = launch_run_id("gpt", place, 1, AGENT)
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert launch_run_id("gpt", place, 1, AGENT) != before


@pytest.mark.parametrize(
    ("lines", "finished"),
    [
        ([{"kind": "open"}], False),
        ([{"kind": "open"}, {"kind": "close", "reason": "sigterm"}], False),
        ([{"kind": "close", "reason": "finished"}, {"kind": "open"}], False),
        ([{"kind": "open"}, {"kind": "entry", "x": "y" * 100_000}, {"kind": "close", "reason": "finished"}], True),
        (["torn"], False),
        ([], False),
    ],
)
def test_only_a_clean_end_is_finished(tmp_path: Path, lines: list[object], finished: bool) -> None:
    path = tmp_path / "rank-00000.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert is_finished(path) is finished
    assert not is_finished(tmp_path / "absent")


def test_a_launch_that_looks_like_an_earlier_one_gets_the_next_folder(tmp_path: Path) -> None:
    place = Topology(rank=1, world_size=2, local_rank=1, local_world_size=2, host="h")
    restarted = AGENT | {"TORCHELASTIC_RESTART_COUNT": "1"}

    def chosen(environ: dict[str, str]) -> str:
        return free_run_id(tmp_path, "gpt", place, 1, environ)

    def leaves(run_id: str, line: str) -> None:
        (tmp_path / run_id).mkdir(exist_ok=True)
        (tmp_path / run_id / "rank-00001.jsonl").write_text(line + "\n", encoding="utf-8")

    first = chosen(AGENT)
    assert chosen(restarted) == first, "the first attempt was killed before it wrote anything"
    leaves(first, '{"kind":"open"}')
    assert chosen(AGENT) == first + "-2", "a new job does not continue one that crashed"
    assert chosen(restarted) == first, "the launcher's restart of the same job does"
    leaves(first + "-2", '{"kind":"open"}')
    assert chosen(restarted) == first + "-2", "of the newest one"
    leaves(first + "-2", '{"kind":"close","reason":"finished"}')
    assert chosen(restarted) == chosen(AGENT) == first + "-3"


class Job:
    """A store that ranks share, and how many collectives the program has begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.collectives = HashStore(), 0
        monkeypatch.setattr(run_folder, "_collectives", lambda: self.collectives)
        drawn = itertools.count()  # four random digits of one moment are now and then the same ones again
        monkeypatch.setattr(secrets, "token_hex", lambda size: f"{next(drawn):04x}")

    def start(self, rank: int) -> str | None:
        place = Topology(rank=rank, world_size=2, local_world_size=1)
        return agreed_run_id("gpt", place, 0.0, self.store)


def test_a_rank_that_comes_late_finds_the_id_of_the_first_and_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch)
    others = job.start(1)  # rank 0 is still in its logger's login
    assert others is not None and job.start(0) == others
    assert job.start(0) == job.start(1) != others, "their second run"


def test_a_session_on_rank_0_alone_shifts_no_later_id(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch)
    alone = job.start(0)
    job.collectives += 1  # a barrier, or the first of the training's own
    assert job.start(1) == job.start(0) != alone


def test_a_store_that_is_gone_is_said_and_the_environment_names_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def add(self, *_: object) -> int:
            raise RuntimeError("Broken pipe")

    with pytest.warns(GreenTrainWarning, match=r"cannot agree on a run id.*Broken pipe"):
        assert agreed_run_id("gpt", Topology(world_size=2), 0.0, Gone()) is None


def test_ranks_that_nothing_tells_apart_from_an_earlier_launch_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("SLURM_JOB_ID", "SLURM_STEP_ID"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    config, place = RunConfig(dir=str(tmp_path), name="gpt"), Topology(world_size=16, local_world_size=8)
    with pytest.warns(GreenTrainWarning, match=r"nothing tells this launch from an earlier one"):
        choose_run_id(config, place, 0.0, 1)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "4711")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose_run_id(config, place, 0.0, 1)
        monkeypatch.delenv("TORCHELASTIC_RUN_ID")
        choose_run_id(config, Topology(world_size=8, local_world_size=8), 0.0, 1)  # its parent tells it apart


def test_run_json_says_what_ran_where_and_with_which_settings() -> None:
    config = GreenConfig.load({"run": {"name": "gpt", "tags": {"team": "a"}}})
    record = run_json(
        run_id="gpt-1",
        config=config,
        topology=Topology(world_size=4),
        created_unix_s=time.time(),
        carbon={"zone": "FR"},
        parameters=10,
    )
    assert (record["run_id"], record["name"], record["tags"], record["world_size"]) == (
        "gpt-1",
        "gpt",
        {"team": "a"},
        4,
    )
    assert record["greentrain_version"] == __version__
    assert record["packages"]["numpy"]
    assert GreenConfig.load(record["config"]) == config
    json.dumps(record, allow_nan=False)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_json(path, {"a": 1})
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    with pytest.raises(OSError):
        write_json(blocked, {"a": 2})
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": 1}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["blocked", "run.json"]


def test_attempts_of_a_job_share_a_run_until_it_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig(dir=str(tmp_path), name="gpt")

    def chosen(rank: int = 0, carried: str | None = None) -> str:
        monkeypatch.setenv("GREENTRAIN_JOB", "20261121-120000-ab12")
        return choose_run_id(config, Topology(rank=rank, world_size=1), 0.0, 1, carried)

    own = "gpt-20261121-120000-ab12"
    assert chosen(0) == chosen(1) == own
    assert choose_run_id(config, Topology(), 0.0, 2) != own, "a second session, or a process that the script starts"
    (tmp_path / own).mkdir()
    journal = tmp_path / own / "rank-00000.jsonl"
    journal.write_text('{"kind":"close","reason":"sigterm"}\n')
    assert chosen(1) == own
    journal.write_text('{"kind":"close","reason":"finished"}\n')
    assert chosen(0) != own
    assert chosen(0, carried="old") == "old"


def test_who_names_the_run_comes_in_this_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GREENTRAIN_RUN_ID", "from-outside")
    config = RunConfig(dir=str(tmp_path), name="gpt", id="mine")
    assert choose_run_id(config, Topology(), 0.0, 1, "from-a-checkpoint") == "from-a-checkpoint"
    assert choose_run_id(config, Topology(), 0.0, 1) == "mine"
    unnamed = RunConfig(dir=str(tmp_path), name="gpt")
    assert choose_run_id(unnamed, Topology(), 0.0, 1) == "from-outside"
    monkeypatch.setenv("GREENTRAIN_RUN_ID", "a/b")
    with pytest.raises(ConfigError, match=r"\$GREENTRAIN_RUN_ID"):
        choose_run_id(unnamed, Topology(), 0.0, 1)
    monkeypatch.delenv("GREENTRAIN_RUN_ID")
    assert choose_run_id(unnamed, Topology(), 0.0, 1).startswith("gpt-19700101-000000-")


def test_ranks_on_one_node_need_no_name_of_the_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in run_folder._LAUNCH:
        monkeypatch.delenv(variable, raising=False)
    config = RunConfig(dir=str(tmp_path), name="gpt")
    places = [Topology(rank=rank, world_size=2, local_rank=rank, local_world_size=2) for rank in range(2)]
    assert len({choose_run_id(config, place, 0.0, 1) for place in places}) == 1  # and no warning


def test_ranks_with_a_store_agree_through_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch)
    monkeypatch.setattr(run_folder, "job_store", lambda: job.store)
    config = RunConfig(dir=str(tmp_path), name="gpt")
    ids = {choose_run_id(config, place, 0.0, 1) for place in _ranks(4, 2)}
    assert len(ids) == 1 and ids.pop().startswith("gpt-19700101-")


def test_starts_are_told_apart_by_the_collectives_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_folder._collectives() == 0, "there is no process group"
    group = types.SimpleNamespace(_get_sequence_number_for_group=lambda: 17)
    state = types.SimpleNamespace(_get_default_group=lambda: group)
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", state)
    assert run_folder._collectives() == 17


def test_a_launch_over_several_nodes_does_not_ask_for_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    place = _ranks(4, 2)[0]
    alone = Topology(rank=0, world_size=2, local_world_size=2, host="h")
    lightning = {key: value for key, value in AGENT.items() if key != "RANK"}
    before = [launch_run_id("gpt", place, 1, AGENT), launch_run_id("gpt", alone, 1, lightning)]
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert before == [launch_run_id("gpt", place, 1, AGENT), launch_run_id("gpt", alone, 1, lightning)]


def test_a_notebook_is_named_by_its_server_and_a_program_by_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/train.py", "--lr", "1"])
    assert command() == ["/usr/bin/train.py", "--lr", "1"]
    monkeypatch.setattr(sys, "argv", ["/x/ipykernel_launcher.py", "-f", "kernel-1.json"])
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    assert command() == ["notebook"]
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/me/study.ipynb")
    assert command() == ["study.ipynb"]


def test_what_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "torch":
            raise metadata.PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(metadata, "version", version)
    found = run_folder._versions()
    assert "torch" not in found and found["numpy"] == "1"


STATE: dict[str, Any] = {"format": 1, "run_id": "gpt-1", "rank": 1, "totals": {"energy_j": 5.0, "steps": 2}}


def test_a_checkpoint_carries_the_totals_of_the_rank_that_wrote_it() -> None:
    state = ResumeState.of(STATE)
    assert state is not None and (state.run_id, state.rank) == ("gpt-1", 1)
    assert state.carried(Topology(rank=1, world_size=2)) == Totals(energy_j=5.0, steps=2)
    assert state.carried(Topology(rank=0, world_size=2)) is None
    of_anybody = ResumeState.of({**STATE, "rank": None})
    assert of_anybody is not None and of_anybody.carried(Topology()) == Totals(energy_j=5.0, steps=2)
    assert ResumeState.of({}) is None and ResumeState.of({**STATE, "run_id": None}) is None
    of_numpy = ResumeState.of({**STATE, "totals": {"energy_j": np.float64(5.0), "steps": 2}})
    assert of_numpy is not None and of_numpy.carried(Topology(rank=1)) == Totals(energy_j=5.0, steps=2)


@pytest.mark.parametrize(
    ("changes", "odd"),
    [
        ({"format": 2}, "has format 2, this version reads up to 1: upgrade"),
        ({"format": True}, "has format True"),
        ({"format": "1"}, "has format '1'"),
        ({"run_id": "../gpt"}, "the run id in the checkpoint's GreenTrain state"),
        ({"totals": {"energy_j": "5"}}, "holds energy_j = '5': it is damaged"),
        ({"totals": {"energy_j": float("inf")}}, "holds energy_j = inf"),
        ({"totals": {"steps": True}}, "holds steps = True"),
        ({"totals": {"by_gear": {"fp8": {"steps": None}}}}, r"holds by_gear\.fp8\.steps = None"),
        ({"totals": {"by_gear": {"fp8": 5}}}, "holds totals that cannot be read"),
        ({"totals": 5}, "holds totals that cannot be read"),
    ],
    ids=str,
)
def test_a_checkpoint_that_makes_no_sense_is_refused_with_the_remedy(changes: dict[str, Any], odd: str) -> None:
    with pytest.raises(ConfigError, match=odd):
        ResumeState.of({**STATE, **changes})


def test_a_run_that_goes_on_keeps_the_grid_time_with_which_it_began(tmp_path: Path) -> None:
    real = GreenConfig.load({"run": {"dir": str(tmp_path)}})
    assert grid_time_of(real, "gpt", 5.0).is_real
    replayed = {"g_per_kwh": 100.0, "replay_start": "1970-01-01T01:00:00Z", "speed": 10.0}
    config = GreenConfig.load({"carbon": replayed, "run": {"dir": str(tmp_path)}})
    new = grid_time_of(config, "gpt", 5.0)
    assert (new.unix_s, new.grid_s, new.speed) == (5.0, 3600.0, 10.0)
    (tmp_path / "gpt").mkdir()
    write_json(tmp_path / "gpt" / "run.json", {"grid": {"unix_s": 1.0, "grid_s": 3600.0, "speed": 10.0}})
    assert grid_time_of(config, "gpt", 5.0).unix_s == 1.0, "a day that is replayed is not begun anew"
    assert grid_time_of(real, "gpt", 5.0).unix_s == 5.0
    write_json(tmp_path / "gpt" / "run.json", {"grid": None})
    assert grid_time_of(config, "gpt", 5.0) == new
