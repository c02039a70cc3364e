"""The place of a process is what its launcher says, and a single process where none says anything whole."""

from collections.abc import Mapping

import pytest

from greentrain.utils.topology import local_size, topology_from_env, topology_from_process_group


def _place(env: Mapping[str, str]) -> tuple[int, int, int, int]:
    place = topology_from_env(env)
    assert place.host
    return place.rank, place.world_size, place.local_rank, place.local_world_size


TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
SRUN = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_NTASKS_PER_NODE": "4"}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}


@pytest.mark.parametrize("env", [TORCHRUN, SRUN, MPIRUN])
def test_launchers_are_understood(env: dict[str, str]) -> None:
    assert _place(env) == (5, 8, 1, 4)


def test_torchrun_under_srun_counts_the_inner_ranks() -> None:
    assert _place({**SRUN, **TORCHRUN, "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}) == (5, 8, 1, 4)


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"SLURM_NTASKS": "8"},
        {"WORLD_SIZE": "8"},
        {"RANK": "3"},
        {"RANK": "8", "WORLD_SIZE": "8"},
        {"RANK": "-1", "WORLD_SIZE": "8"},
        {"RANK": "one", "WORLD_SIZE": "8"},
        {"RANK": "", "WORLD_SIZE": ""},
    ],
)
def test_half_a_statement_is_a_single_process(env: dict[str, str]) -> None:
    assert _place(env) == (0, 1, 0, 1)


def test_a_master_on_this_machine_means_that_all_ranks_are() -> None:
    assert _place({"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1"}) == (3, 4, 3, 4)
    assert _place({"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "node17"}) == (3, 4, 0, 1)


def test_a_local_rank_without_a_local_size_is_kept() -> None:
    assert _place({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}) == (3, 4, 1, 2)


@pytest.mark.parametrize(
    ("tasks", "node", "expected"),
    [("4(x2)", "0", 4), ("4(x2)", "1", 4), ("5,3", "0", 5), ("5,3", "1", 3), ("2(x3),1(x2)", "4", 1), ("8", "0", 8)],
)
@pytest.mark.parametrize("name", ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"])
def test_slurm_says_the_ranks_of_each_node_without_being_told(name: str, tasks: str, node: str, expected: int) -> None:
    env = {"SLURM_PROCID": "7", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0", "SLURM_NODEID": node, name: tasks}
    assert _place(env)[3] == expected


@pytest.mark.parametrize("tasks", ["", "2", "4(x3)", "8(x", "eight", "(x8)"])
def test_slurm_tasks_that_are_not_these_ranks_say_nothing(tasks: str) -> None:
    env = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": tasks}
    assert _place(env) == (5, 8, 1, 4)


@pytest.mark.parametrize("rank", range(4))
def test_ranks_that_may_all_be_on_one_node_are_taken_to_be(rank: int) -> None:
    env = {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "4", "SLURM_LOCALID": str(rank), "MASTER_ADDR": "node01"}
    assert _place(env) == (rank, 4, rank, 4)


@pytest.mark.parametrize(
    ("rank", "local_rank", "env", "expected"),
    [
        (5, 1, {"LOCAL_WORLD_SIZE": "4"}, 4),
        (5, 1, {"SLURM_TASKS_PER_NODE": "4(x2)", "SLURM_NODEID": "1"}, 4),
        (5, 1, {"MASTER_ADDR": "localhost"}, 8),
        (5, 1, {}, 4),
        (6, 0, {}, 2),
        (2, 2, {}, 8),
        (3, None, {}, 1),
    ],
)
def test_a_framework_that_knows_the_ranks_asks_for_the_local_size(
    rank: int, local_rank: int | None, env: dict[str, str], expected: int
) -> None:
    assert local_size(rank, 8, local_rank, env) == expected


def test_without_a_process_group_there_is_nothing_to_ask() -> None:
    assert topology_from_process_group({}) is None


class FakeDist:
    """torch.distributed, initialised with arguments instead of variables."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def get_rank(self) -> int:
        return self.rank

    def get_world_size(self) -> int:
        return self.world


@pytest.mark.parametrize(
    ("env", "local"),
    [
        ({}, (5, 8)),
        ({"LOCAL_WORLD_SIZE": "4"}, (1, 4)),
        ({"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"}, (2, 4)),
        ({"LOCAL_RANK": "9", "LOCAL_WORLD_SIZE": "4"}, (1, 4)),
    ],
)
def test_a_process_group_is_asked(env: dict[str, str], local: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.distributed", FakeDist(5, 8))
    place = topology_from_process_group(env)
    assert place is not None
    assert (place.rank, place.world_size) == (5, 8)
    assert (place.local_rank, place.local_world_size) == local
