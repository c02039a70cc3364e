"""Only the GPUs that this process trains on, whole, and shared with nobody else's work."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pynvml
import pytest

from greentrain.config.schema import PowerCapConfig
from greentrain.control.actuators.driver import choose, strangers
from greentrain.control.actuators.power_cap import open_power_cap
from greentrain.errors import ConfigError
from greentrain.power import claims
from greentrain.testing.fake_nvml import FakeGpu, NvmlCode
from greentrain.types import Topology
from tests.control.actuators.on_fake import ADMIN_W, Node, Said, capping

FOUR = [FakeGpu() for _ in range(4)]
MIGS = ("MIG-11111111-0000-0000-0000-000000000000",)


def chosen(
    *named: str, environ: dict[str, str] | None = None, local_rank: int = 0, local_world_size: int = 1
) -> list[int]:
    """Return positions of the GPUs chosen."""
    pynvml.nvmlInit()
    try:
        place = Topology(local_rank=local_rank, local_world_size=local_world_size)
        got = choose(pynvml, named, place, "actuators.power_cap.devices", environ or {})
        return [int(gpu.uuid[-2:]) for gpu in got.gpus]
    finally:
        pynvml.nvmlShutdown()


@pytest.mark.parametrize(
    ("devices", "local_rank", "local_world_size", "expected"),
    [
        (None, 0, 1, [0, 1, 2, 3]),
        (None, 2, 4, [2]),
        ("3,1", 1, 2, [1]),
        ("2", 1, 4, [2]),  # a launcher that shows each rank its own
        ("2,3", 0, 1, [2, 3]),
        ("0,1", 3, 4, []),  # more ranks than GPUs: nobody knows whose
        ("GPU-00000000-0000-0000-0000-000000000001", 0, 1, [1]),
        ("", 0, 1, []),
    ],
)
def test_ranks_take_their_own(
    node: Node, devices: str | None, local_rank: int, local_world_size: int, expected: list[int]
) -> None:
    node(*FOUR)
    environ = {} if devices is None else {"CUDA_VISIBLE_DEVICES": devices}
    got = chosen(environ=environ, local_rank=local_rank, local_world_size=local_world_size)
    assert got == expected


def test_devices_can_be_named(node: Node) -> None:
    driver = node(*FOUR)
    assert chosen(driver.uuid(2), driver.uuid(0)) == [0, 2]
    both = (driver.uuid(2), driver.uuid(0))
    assert chosen(*both, local_rank=2, local_world_size=4) == [2]
    assert chosen(*both, local_rank=1, local_world_size=4) == []
    # each rank sees its own alone, and the list names those of all
    assert chosen(*both, environ={"CUDA_VISIBLE_DEVICES": "2"}, local_rank=2, local_world_size=4) == [2]


@pytest.mark.parametrize(
    "name", ["GPU-ffffffff-0000-0000-0000-000000000000", "GPU-00000000-0000-0000-0000-000000000003"]
)
def test_a_foreign_gpu_is_an_error(node: Node, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    driver = node(*FOUR)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    said = Said()
    with pytest.raises(ConfigError) as error:
        open_power_cap(PowerCapConfig(devices=(name,)), Topology(), said)
    for word in ("actuators.power_cap.devices", name, "foreign GPU", driver.uuid(0), driver.uuid(1), "Name one of"):
        assert word in str(error.value)
    assert driver.uuid(2) not in str(error.value) and driver.init_depth == 0


def test_only_what_torch_uses_where_that_is_known(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node(*FOUR)
    cuda = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: False,
        device_count=lambda: 3,
        memory_reserved=lambda i: 1024 * (i == 1),
        current_device=lambda: 0,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    environ = {"CUDA_VISIBLE_DEVICES": "3,2,1"}
    assert chosen(environ=environ) == [3, 2, 1]
    cuda.is_initialized = lambda: True
    assert chosen(environ=environ) == [2]
    cuda.memory_reserved = lambda i: 0
    assert chosen(environ=environ) == [3]


def test_the_first_change_knows_more_than_the_opening(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, said = node(*(FakeGpu(limit_w=ADMIN_W) for _ in range(2))), Said()
    cuda = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    with capping(said) as cap:
        assert list(cap.uuids) == [driver.uuid(0), driver.uuid(1)]
        cuda.is_initialized, cuda.device_count = (lambda: True), (lambda: 2)
        cuda.memory_reserved = lambda i: 1024 * (i == 1)
        assert cap.apply(0.6)
        assert list(cap.uuids) == [driver.uuid(1)]
        assert (driver.state(0).power_limit_w, driver.state(1).power_limit_w) == (ADMIN_W, 390)
        assert driver.state(0).power_limit_sets == 1, "the try at the opening set what was set"


def test_a_gpu_with_slices_is_left_alone(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, said = node(FakeGpu(mig_uuids=MIGS), FakeGpu(limit_w=ADMIN_W)), Said()
    with capping(said) as cap:
        assert cap.uuids == (driver.uuid(1),)
        assert len(said) == 1 and "MIG is on" in said[0]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", MIGS[0])
    said.clear()
    assert open_power_cap(PowerCapConfig(), Topology(), said) is None
    assert len(said) == 1 and "MIG is on" in said[0]


def test_a_gpu_with_somebody_elses_work_is_left_alone(node: Node, stranger: int) -> None:
    driver, said = node(FakeGpu(pids=(os.getpid(), stranger)), FakeGpu(pids=(os.getpid(),))), Said()
    with capping(said) as cap:
        assert cap.uuids == (driver.uuid(1),)
        assert len(said) == 1 and f"(pid {stranger})" in said[0] and driver.uuid(0) in said[0]
        assert cap.apply(0.6) and driver.state(1).power_limit_w == 420
        driver.update(1, pids=[stranger])
        assert not cap.apply(0.8)
        assert driver.state(1).power_limit_w == 700, "given back as soon as he is seen"
        assert len(said) == 2 and "from now on" in said[1]


def test_who_is_of_this_job(node: Node, stranger: int, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = node(FakeGpu())
    pynvml.nvmlInit()
    (gpu,) = choose(pynvml, (), Topology(), "x", {}).gpus
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as child:
        driver.update(0, pids=[os.getpid(), child.pid, os.getppid()])
        assert list(strangers(gpu)) == []
        driver.update(0, pids=[child.pid, stranger])
        assert list(strangers(gpu)) == [stranger]
        monkeypatch.setattr(claims, "FIRST_PID_NAMESPACE", 1)
        assert list(strangers(gpu)) == [], "in a container, whoever is seen is of the job"
        child.communicate(b"\n")
    pynvml.nvmlShutdown()


def test_numbers_of_another_pid_namespace(node: Node) -> None:
    driver = node(FakeGpu())
    pynvml.nvmlInit()
    (gpu,) = choose(pynvml, (), Topology(), "x", {}).gpus
    gone, gone_too = 4_000_000, 4_000_001  # above pid_max of this kernel, or at least nobody's
    driver.update(0, pids=[gone])
    assert list(strangers(gpu)) == [], "as drivers show this very process to a container"
    driver.update(0, pids=[gone, gone_too])
    assert list(strangers(gpu)) == [gone, gone_too]
    assert list(strangers(gpu, ranks=2)) == []
    driver.update(0, pids=[os.getpid(), gone])
    assert list(strangers(gpu)) == [gone], "numbers are ours, so this one is not"
    driver.update(0, errors={"nvmlDeviceGetComputeRunningProcesses": NvmlCode.NOT_SUPPORTED})
    pynvml.nvmlShutdown()
