"""How a card's device ends: closed, forgotten, or left by a parent that died."""

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from greentrain.fpga_backend.errors import DeviceLostError
from greentrain.fpga_backend.xrt import worker_client
from greentrain.fpga_backend.xrt.device import XrtDevice
from greentrain.testing.offload_contract import OffloadContract
from greentrain.testing.offload_models import decoder, sequences

Open = Callable[..., XrtDevice]
BARE = """
import os, sys, time
from greentrain.fpga_backend.xrt.worker_client import Process
worker = Process()
forked = os.fork()
if forked == 0:  # holds the parent's end of the socket, as a data loader's process does
    time.sleep(30)
    os._exit(0)
print(worker.pid, forked, flush=True)
"""
DEVICE = """
import json, sys
from pathlib import Path
from greentrain.fpga_backend.xrt.device import XrtDevice
design, library, environ = json.loads(sys.argv[1])
device = XrtDevice(Path(design), silicon=Path(library), environ=environ)
print(device.worker_pid, 0, flush=True)
"""


def ended(pid: int, within_s: float) -> bool:
    """Return whether a process is gone within some time."""
    deadline_s = time.monotonic() + within_s
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.01)
    return True


class Contract(OffloadContract):
    """Not collected: its tests are called one by one."""

    heads = ("logprob",)


def test_the_meter_keeps_the_meters_contract(opened: Open) -> None:
    Contract().test_the_meter_keeps_the_meters_contract(opened())


def test_close_fails_what_waits(opened: Open) -> None:
    Contract().test_close_fails_what_waits(opened())


def test_close_leaves_nothing(opened: Open) -> None:
    device = opened()
    Contract().test_close_leaves_nothing(device)
    assert ended(device.worker_pid, 0.1)


def test_a_lost_device_says_so(opened: Open) -> None:
    device = opened()
    artifact = decoder(layers=1)
    handle = device.load(artifact)
    device.close()
    with pytest.raises(DeviceLostError, match="closed"):
        device.submit(handle, sequences(artifact))
    assert device.probe().reason == "the device is closed"


def test_a_forgotten_device_ends_its_worker(
    open_files: None, design: Path, library: Path, noop: dict[str, str]
) -> None:
    device = XrtDevice(design, silicon=library, environ=noop)
    pid = device.worker_pid
    del device
    gc.collect()
    assert ended(pid, 240.0)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("program", "code"),
    [
        (f"{BARE}time.sleep(60)", -signal.SIGKILL),  # killed by the test
        (f"{BARE}os._exit(4)", 4),
        (DEVICE, 0),  # forgets to close
    ],
    ids=["killed", "left", "forgot"],
)
def test_the_worker_ends_with_its_parent(
    design: Path, library: Path, noop: dict[str, str], program: str, code: int
) -> None:
    """However the parent ends, nothing stays, and nothing is printed about it."""
    command = [sys.executable, "-W", "error", "-c", program, json.dumps([str(design), str(library), noop])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None and parent.stderr is not None
        pid, forked = (int(word) for word in parent.stdout.readline().split())
        if code == -signal.SIGKILL:
            assert psutil.pid_exists(pid)
            parent.kill()
        assert parent.wait(300) == code
        within = ended(pid, 240.0)
        if forked:
            os.kill(forked, signal.SIGKILL)
        assert parent.stderr.read() == ""
    assert within


def test_a_fork_leaves_the_card_to_its_parent(opened: Open) -> None:
    """A data loader's worker that was forked neither uses the card nor closes it."""
    device = opened()
    artifact = decoder(layers=1)
    handle, batch = device.load(artifact), sequences(artifact)
    before = device.submit(handle, batch).result(60)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            device.close()
            device.submit(handle, batch)
        except DeviceLostError as error:
            code = 0 if "forked" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    after = device.submit(handle, batch).result(60)
    assert [row.tobytes() for row in before.logprobs or ()] == [row.tobytes() for row in after.logprobs or ()]


def test_a_worker_that_talks_takes_no_memory(open_files: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_client, "WORDS_BYTES", 1000)
    worker = worker_client.Process()
    for _ in range(20):
        os.write(worker._words_fd, b"a line of XRT\n" * 50)
        worker.call({"do": "ping", "nbytes": 0})
        assert os.fstat(worker._words_fd).st_size <= 1000
    os.write(worker._words_fd, b"the last line\n")
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(DeviceLostError, match=r"last words: .*the last line$"):
        worker.call({"do": "ping", "nbytes": 0})
    worker.close()
