"""Tokens of ranks that share a batch count once, to the last one, and tokens are never mixed with samples."""

import itertools
import math
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from greentrain import GreenSession
from greentrain.errors import ConfigError, GreenTrainWarning
from greentrain.ledger.reader import read_run
from greentrain.report.summary import summarize
from greentrain.session.work_count import BatchGroup, WorkCount
from greentrain.types import Topology
from tests.helpers.ports import free_port

RAGGED = [(4, 1), (1, 1), (33, 5), (0, 0), (7, 2), (10_001, 16), (3, 1)]


def _place(rank: int, world: int) -> Topology:
    return Topology(rank=rank, world_size=world, local_rank=rank, local_world_size=world)


class Mesh:
    """What is read of torch.distributed.device_mesh.DeviceMesh (torch 2.13), for one rank."""

    def __init__(self, rank: int, shape: tuple[int, ...], *names: str) -> None:
        self.mesh_dim_names, self._shape, self._rank = names or None, shape, rank

    def size(self, dim: int) -> int:
        return self._shape[dim]

    def get_coordinate(self) -> tuple[int, ...]:
        return list(itertools.product(*map(range, self._shape)))[self._rank]


class Sub:
    """A part of a mesh, which knows the whole."""

    def __init__(self, root: Mesh, *names: str) -> None:
        self.mesh_dim_names, self._root = names, root

    def _get_root_mesh(self) -> Mesh:
        return self._root


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_the_shares_of_a_group_add_up_after_every_ragged_step(ranks: int) -> None:
    counts = [WorkCount(_place(0, 1), BatchGroup(i, ranks)) for i in range(ranks)]
    done = [0, 0]
    for nth, (tokens, samples) in enumerate(RAGGED):
        tell = WorkCount.count if nth == 2 else WorkCount.step
        shares = [tell(count, tokens, samples) for count in counts]
        done = [done[0] + sum(t for t, _ in shares), done[1] + sum(s for _, s in shares)]
        assert max(t for t, _ in shares) - min(t for t, _ in shares) <= 1
        assert done == [sum(step[i] for step in RAGGED[: nth + 1]) for i in (0, 1)]


@pytest.mark.parametrize(
    "shape, names, groups",
    [
        ((2, 2), ("dp", "tp"), [[0, 1], [2, 3]]),
        ((2, 2), ("tp", "dp_shard"), [[0, 2], [1, 3]]),
        ((2, 2, 2), ("pp", "dp_replicate", "cp"), [[0, 1, 4, 5], [2, 3, 6, 7]]),
        ((2, 2), ("data_parallel", "tensor_parallel"), [[0, 1], [2, 3]]),
        ((2, 2), ("replicate", "shard"), [[0], [1], [2], [3]]),
    ],
)
def test_a_mesh_says_who_shares_a_batch(
    shape: tuple[int, ...], names: tuple[str, ...], groups: list[list[int]]
) -> None:
    for group in groups:
        found = [BatchGroup.of(Mesh(rank, shape, *names), _place(rank, math.prod(shape))) for rank in group]
        assert found == [BatchGroup(i, len(group)) for i in range(len(group))]


def test_a_part_of_a_mesh_stands_for_the_whole() -> None:
    assert BatchGroup.of(Sub(Mesh(3, (2, 2), "dp", "tp"), "dp"), _place(3, 4)) == BatchGroup(1, 2)


@pytest.mark.parametrize("rank_of", [lambda rank: rank // 2, lambda rank: rank % 3])
def test_a_pair_says_it_for_neighbours_and_for_ranks_far_apart(rank_of: Callable[[int], int]) -> None:
    groups = [BatchGroup.of((rank_of(rank), 3), _place(rank, 6)) for rank in range(6)]
    for shared in range(3):
        assert sorted(groups[rank].index for rank in range(6) if rank_of(rank) == shared) == [0, 1]
    assert {group.ranks for group in groups} == {2}


@pytest.mark.parametrize(
    "wrong, why",
    [
        ((2, 2), "0 <= rank < size"),
        ((0,), "0 <= rank < size"),
        ("dp", "0 <= rank < size"),
        ((0, 3), "4 ranks a multiple of size"),
        (Mesh(0, (4,)), "name each"),
        (Mesh(0, (2, 2), "dp", "x"), "name each"),
    ],
)
def test_what_does_not_fit_is_refused_before_training(tmp_path: Path, wrong: Any, why: str) -> None:
    config = {"run": {"dir": str(tmp_path)}, "power": {"meters": ["null"]}}
    with pytest.raises(ConfigError, match=why):
        GreenSession(config, topology=_place(0, 4), data_parallel=wrong).start()
    assert not list(tmp_path.iterdir())


def test_megatron_and_engines_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    place = _place(5, 8)
    assert BatchGroup.find(None, place) is None
    assert BatchGroup.find(Mesh(5, (8,)), place) is None
    assert BatchGroup.find((5, 8), place) == BatchGroup(0, 1)
    # deepspeed/runtime/pipe/topology.py, PipelineParallelGrid
    grid = types.SimpleNamespace(
        get_data_parallel_world_size=lambda: 2,
        get_pipe_parallel_rank=lambda: 1,
        get_pipe_parallel_world_size=lambda: 2,
        get_model_parallel_rank=lambda: 1,
        get_model_parallel_world_size=lambda: 2,
    )
    assert BatchGroup.find(types.SimpleNamespace(mpu=None, grid=grid), place) == BatchGroup(3, 4)
    weight = types.SimpleNamespace(device_mesh=Mesh(5, (4, 2), "dp", "tp"))
    model = types.SimpleNamespace(parameters=lambda: [object(), weight])
    assert BatchGroup.find(model, place) == BatchGroup(1, 2)
    # megatron/core/parallel_state.py
    state = types.SimpleNamespace(model_parallel_is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", state)
    count = WorkCount(place)
    count.look()
    assert count.group == BatchGroup()
    state.__dict__.update(
        model_parallel_is_initialized=lambda: True,
        get_tensor_model_parallel_rank=lambda: 1,
        get_tensor_model_parallel_world_size=lambda: 2,
        get_model_parallel_rank=lambda: 1,
        get_model_parallel_world_size=lambda: 2,
        get_pipeline_model_parallel_rank=lambda: 0,
        get_pipeline_model_parallel_world_size=lambda: 1,
        get_context_parallel_rank=lambda: 1,
        get_context_parallel_world_size=lambda: 2,
    )
    count.step(9, 0)  # made after the session was started, before the first step
    assert count.group == BatchGroup(3, 4)


def test_a_fault_in_a_framework_leaves_each_rank_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", types.SimpleNamespace())
    count = WorkCount(_place(0, 2))
    with pytest.warns(GreenTrainWarning, match="model_parallel_is_initialized"):
        assert count.step(9, 2) == (9, 2)


def _train(folder: Path, rank: int, steps: list[tuple[int, int]], **known: Any) -> GreenSession:
    config = {"run": {"dir": str(folder), "id": "job", "report": False}, "power": {"meters": ["null"]}}
    with GreenSession(config, topology=_place(rank, 4), **known) as green:
        for tokens, samples in steps:
            green.count(tokens=tokens)
            green.step(samples=samples)
    return green


def test_a_job_of_tp_2_x_dp_2_books_each_token_once(tmp_path: Path) -> None:
    batches = {0: [(101, 3), (17, 1)], 1: [(64, 2), (5, 1)]}
    for rank in range(4):
        green = _train(tmp_path, rank, batches[rank // 2], data_parallel=Mesh(rank, (2, 2), "dp", "tp"))
    assert green.folder is not None
    record = read_run(green.folder)
    totals = [rank.totals for rank in record.ranks]
    assert (sum(part.tokens for part in totals), sum(part.samples for part in totals)) == (187, 7)
    assert {part.steps for part in totals} == {2}
    assert (summarize(record)["work"]["tokens"], summarize(record)["work"]["mixed"]) == (187, False)


def test_steps_that_tell_samples_alone_leave_no_figure_of_tokens(tmp_path: Path) -> None:
    with pytest.warns(GreenTrainWarning, match="some steps of this rank told tokens") as seen:
        green = _train(tmp_path, 0, [(100, 2), (0, 2), (100, 2), (0, 2)])
    assert len(seen) == 1
    assert "green/tokens_per_j" not in green.metrics()
    assert green._controller._tokens == 200 * 4  # the plan's tokens have no samples among them
    assert green.folder is not None
    work = summarize(read_run(green.folder))["work"]
    assert (work["mixed"], work["steps"]) == (True, 4)
    assert {work[key] for key in ("tokens", "samples", "tokens_per_s", "j_per_token", "samples_per_s")} == {None}


def test_ranks_that_tell_other_things_leave_none_either(tmp_path: Path) -> None:
    _train(tmp_path, 0, [(100, 2)])
    green = _train(tmp_path, 1, [(0, 2)])
    assert green.folder is not None
    summary = summarize(read_run(green.folder))
    assert summary["work"]["mixed"] and summary["work"]["tokens"] is None
    assert [rank["tokens"] for rank in summary["ranks"]] == [100, None]  # what each said stands


JOB = """
import sys
from torch import nn, ones, optim
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from greentrain import GreenSession

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = optim.SGD(model.parameters(), lr=0.1)
config = {"run": {"dir": sys.argv[1], "id": "job", "report": False}, "power": {"meters": ["null"]}}
with GreenSession(config) as green:
    green.watch(model, optimizer)
    for step in range(5):
        batch = ones(3 + step + 2 * mesh.get_local_rank("dp"), 8)
        model(batch).sum().backward()
        optimizer.step()
        green.step(tokens=batch.numel(), samples=len(batch))
dist.destroy_process_group()
"""


@pytest.mark.long
def test_four_ranks_find_their_device_mesh_in_the_model(tmp_path: Path) -> None:
    port = str(free_port())
    job = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    env = os.environ | job | {"OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([sys.executable, "-c", JOB, str(tmp_path)], env=env | {"RANK": str(i), "LOCAL_RANK": str(i)})
        for i in range(4)
    ]
    try:
        assert [rank.wait(timeout=200) for rank in ranks] == [0] * 4
    finally:
        for rank in ranks:
            rank.kill()
    totals = [rank.totals for rank in read_run(tmp_path / "job").ranks]
    samples = sum(3 + step + 2 * dp for step in range(5) for dp in range(2))
    assert (sum(part.tokens for part in totals), sum(part.samples for part in totals)) == (8 * samples, samples)


def test_a_model_that_was_watched_before_the_start_is_asked_too(tmp_path: Path) -> None:
    weight = types.SimpleNamespace(device_mesh=Mesh(1, (1, 2), "dp", "tp"), numel=lambda: 1)

    class Sharded(torch.nn.Module):
        def parameters(self, recurse: bool = True) -> Any:
            return [weight]

    config = {"run": {"dir": str(tmp_path), "id": "job", "report": False}, "power": {"meters": ["null"]}}
    green = GreenSession(config, topology=_place(1, 2))
    green.watch(Sharded())
    with green:
        green.step(tokens=7)
        assert [green._work.own(tokens) for tokens in (7, None)] == [4, None]
    assert green.totals().tokens == 4
