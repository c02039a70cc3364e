"""What goes wrong with a card stays with its batch: a failed future, no exception in the training, no leak."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from greentrain.fpga_backend.batch import Result
from greentrain.fpga_backend.errors import DeviceLostError, QueueFullError
from greentrain.fpga_backend.xrt import worker_client
from greentrain.fpga_backend.xrt.device import XrtDevice
from greentrain.testing.offload_models import decoder, sequences

Open = Callable[..., XrtDevice]
ARTIFACT = decoder(layers=1)
BATCH = sequences(ARTIFACT, lengths=(40, 64, 12))


@pytest.fixture
def slow(noop: dict[str, str], tmp_path: Path) -> Callable[[int], dict[str, str]]:
    """Environment in which each kernel takes so many microseconds longer."""

    def environ(delay_us: int) -> dict[str, str]:
        ini = tmp_path / "xrt.ini"
        ini.write_text(f"[Runtime]\nnoop_completion_delay_us={delay_us}\n")
        return {**noop, "XRT_INI_PATH": str(ini)}

    return environ


def same(a: Result, b: Result) -> bool:
    return [row.tobytes() for row in a.logprobs or ()] == [row.tobytes() for row in b.logprobs or ()]


def test_a_killed_worker_loses_no_batch(opened: Open, slow: Callable[[int], dict[str, str]]) -> None:
    """Killed while it idles, and at a random moment of a batch: what was handed in has the bits of the first time."""
    rng, times = random.Random(3), 2
    device = opened(environ=slow(2000), restarts=times)
    handle = device.load(ARTIFACT)
    wanted = device.submit(handle, BATCH).result(60)
    for idle in (True, False):
        pid = device.worker_pid
        if idle:
            os.kill(pid, signal.SIGKILL)
        future = device.submit(handle, BATCH)
        if not idle:
            time.sleep(rng.uniform(0.0, 0.03))
            os.kill(pid, signal.SIGKILL)
        assert same(future.result(60), wanted)
        assert same(
            device.submit(handle, BATCH).result(60), wanted
        )  # the first one may have been quicker than the signal
        assert device.worker_pid != pid
        assert device.probe().available
    os.kill(device.worker_pid, signal.SIGKILL)
    assert isinstance(device.submit(handle, BATCH).exception(60), DeviceLostError)
    with pytest.raises(DeviceLostError, match="SIGKILL"):
        device.submit(handle, BATCH)
    assert not device.probe().available
    assert "SIGKILL" in device.probe().reason


def test_a_batch_under_which_every_worker_dies_is_given_up_and_the_next_one_runs(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_client, "TRIES", 2)
    device = opened(restarts=5)
    handle = device.load(ARTIFACT)
    wanted = device.submit(handle, BATCH).result(60)
    with monkeypatch.context() as patched:
        pids: list[int] = []

        def poison(self: worker_client.WorkerClient, *_: object) -> Result:
            pids.append(self.pid)
            os.kill(self.pid, signal.SIGKILL)
            self._call({"do": "ping", "nbytes": 0})
            raise AssertionError("the worker is dead")

        patched.setattr(worker_client.WorkerClient, "_run", poison)
        assert isinstance(device.submit(handle, BATCH).exception(60), DeviceLostError)
    assert len(set(pids)) == 2
    assert device.probe().available
    assert same(device.submit(handle, BATCH).result(60), wanted)


def test_without_restarts_the_device_is_lost_and_what_waits_fails(
    opened: Open, slow: Callable[[int], dict[str, str]]
) -> None:
    device = opened(environ=slow(20_000))
    handle = device.load(ARTIFACT)
    futures = [device.submit(handle, BATCH) for _ in range(4)]
    time.sleep(0.05)
    os.kill(device.worker_pid, signal.SIGKILL)
    for future in futures:
        error = future.exception(60)
        assert isinstance(error, DeviceLostError) and "SIGKILL" in str(error)
    with pytest.raises(DeviceLostError, match="SIGKILL"):
        device.load(ARTIFACT)


def test_a_card_that_hangs_is_given_up_after_its_time(opened: Open, slow: Callable[[int], dict[str, str]]) -> None:
    device = opened(environ=slow(1_000_000_000), timeout_s=0.3, restarts=1)
    handle = device.load(ARTIFACT)
    pid, start_s = device.worker_pid, time.monotonic()
    error = device.submit(handle, BATCH).exception(60)
    assert time.monotonic() - start_s < 120
    assert isinstance(error, DeviceLostError)
    assert str(error) == "the worker of the card gave no answer within 0.3 s and was killed: the card hangs"
    assert not psutil.pid_exists(pid)


def test_what_a_worker_said_before_it_ended_is_quoted(opened: Open, noop: dict[str, str], tmp_path: Path) -> None:
    """XRT ends the process where its driver cannot be loaded; the training hears of it."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libxrt_noop.so.2").write_bytes(b"")
    with pytest.raises(
        DeviceLostError, match=r"signal 6 \(SIGABRT\); its last words: .*terminate called.*file too short"
    ):
        opened(environ={**noop, "XILINX_XRT": str(tmp_path)})


def test_closing_in_the_middle_of_a_long_batch_ends_in_time(
    opened: Open, slow: Callable[[int], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("greentrain.fpga_backend.xrt.device.CLOSE_S", 0.2)
    device = opened(environ=slow(1_000_000_000))
    future = device.submit(device.load(ARTIFACT), BATCH)
    time.sleep(0.05)
    start_s = time.monotonic()
    device.close()
    assert time.monotonic() - start_s < 120
    error = future.exception(60)
    assert isinstance(error, DeviceLostError) and "closed in the middle of a batch" in str(error)


def test_a_full_queue_holds_back_and_the_training_goes_on(opened: Open, slow: Callable[[int], dict[str, str]]) -> None:
    """A thread that ticks every millisecond keeps ticking while batches run: nothing holds Python's lock."""
    device = opened(environ=slow(10_000), depth=2)
    handle = device.load(ARTIFACT)
    device.submit(handle, BATCH).result(60)
    files, taken, refused = len(os.listdir("/proc/self/fd")), [], 0
    took_s: list[float] = []
    for _ in range(20):
        start_s = time.perf_counter()
        try:
            taken.append(device.submit(handle, BATCH, wait_s=0.0))
        except QueueFullError:
            refused += 1
            took_s.append(time.perf_counter() - start_s)
    assert sorted(took_s)[len(took_s) // 2] < 0.005, "wait_s=0 must not wait"
    assert len(taken) <= 3 and refused >= 17
    ticks: list[float] = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        start_s = time.perf_counter()
        taken.append(device.submit(handle, BATCH, wait_s=None))
        results = [future.result(60) for future in taken]
        end_s = time.perf_counter()
    finally:
        stop.set()
        thread.join()
    assert len(os.listdir("/proc/self/fd")) == files
    assert end_s - start_s >= results[-1].run_s >= 0.15, "the delay did not take effect"
    assert sum(start_s <= t <= end_s for t in ticks) >= 5, "a wait that held Python's lock would leave one or two"
