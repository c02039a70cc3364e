"""The promise: whatever ends a training, GPUs are left as the administrator had them."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from greentrain.control.actuators import guardian_main
from greentrain.control.actuators.driver import repair
from greentrain.power.claims import claims_dir
from greentrain.testing.fake_nvml import FakeDriver, FakeGpu
from tests.control.actuators.on_fake import (
    ADMIN_W,
    CHANGER,
    FREE_MHZ,
    Node,
    Said,
    alive,
    capping,
    guardians_of,
    wait_until,
)


@contextlib.contextmanager
def train(driver: FakeDriver, gpu: int, *words: str) -> "Iterator[subprocess.Popen[str]]":
    environ = {**driver.env(dict(os.environ)), "CUDA_VISIBLE_DEVICES": driver.uuid(gpu)}
    command = [sys.executable, str(CHANGER), *words]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True) as training:
        try:
            yield training
        finally:
            training.kill()


def started(process: "subprocess.Popen[str]") -> tuple[int, int]:
    """Return guardian and forked child of a training that has changed something."""
    assert process.stdout is not None
    guardian, child = process.stdout.readline().split()
    return int(guardian), int(child)


def is_restored(driver: FakeDriver, gpu: int, admin_w: float = ADMIN_W) -> bool:
    state = driver.state(gpu)
    return state.power_limit_w == admin_w and state.gpu_clocks_mhz == FREE_MHZ


def is_over(driver: FakeDriver, gpu: int, admin_w: float, pid: int) -> bool:
    return is_restored(driver, gpu, admin_w) and not guardians_of(pid)


def records() -> list[Path]:
    return list(Path(os.environ["GREENTRAIN_CLAIMS_DIR"]).glob("*.state"))


@pytest.mark.parametrize("kills", [10, pytest.param(50, marks=pytest.mark.long)])
def test_kills_at_random_moments_leave_the_administrators_settings(node: Node, kills: int) -> None:
    chance, at_once = random.Random(5), 5
    admin_w = [chance.choice((500.0, 555.0, 612.0, ADMIN_W)) for _ in range(at_once)]
    driver = node(*(FakeGpu(limit_w=limit_w) for limit_w in admin_w))
    changed = 0
    waits_s = []
    for _ in range(kills // at_once):
        with contextlib.ExitStack() as stack:
            trainings = [stack.enter_context(train(driver, gpu)) for gpu in range(at_once)]
            for gpu in chance.sample(range(at_once), at_once):
                if gpu % 2:  # anywhere from the start of the interpreter on; the others when they have begun to change
                    time.sleep(chance.uniform(0.0, 0.3))
                else:
                    started(trainings[gpu])
                    time.sleep(chance.uniform(0.0, 0.1))
                changed += not is_restored(driver, gpu, admin_w[gpu])
                trainings[gpu].kill()
                trainings[gpu].wait()
                killed_s = time.monotonic()
                assert wait_until(partial(is_over, driver, gpu, admin_w[gpu], trainings[gpu].pid))
                waits_s.append(time.monotonic() - killed_s)
            for training in trainings:
                assert training.stdout is not None
                assert "WARNED" not in training.stdout.read()
    assert records() == []
    assert [driver.state(gpu).power_limit_w for gpu in range(at_once)] == admin_w
    assert changed >= 0.3 * kills, "most kills must hit a changed GPU, or this shows nothing"
    print(f"restored after {sorted(waits_s)[kills // 2] * 1e3:.0f} ms (median), {max(waits_s) * 1e3:.0f} ms at most")


@pytest.mark.parametrize("kernel", ["new", "old"])
def test_a_forked_worker_that_holds_the_pipe_does_not_hide_the_death(node: Node, kernel: str) -> None:
    driver = node(FakeGpu(limit_w=ADMIN_W))
    with train(driver, 0, "fork", kernel) as training:
        guardian, child = started(training)
        try:
            training.kill()
            assert wait_until(lambda: is_restored(driver, 0) and not alive(guardian))
            assert alive(child)
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("end", ["leave", "SIGTERM", "SIGHUP", "SIGABRT", "group"])
def test_every_way_to_end_restores(node: Node, end: str) -> None:
    driver = node(FakeGpu(limit_w=ADMIN_W))
    with train(driver, 0, "leave" if end == "leave" else "slow") as training:
        guardian, _ = started(training)
        if end == "group":
            os.killpg(training.pid, signal.SIGKILL)
        elif end != "leave":
            training.send_signal(getattr(signal, end))
        assert wait_until(lambda: is_restored(driver, 0) and not alive(guardian))
        assert records() == []


def test_the_guardian_is_deaf_alone_and_silent(node: Node) -> None:
    driver = node(FakeGpu(limit_w=ADMIN_W))
    with train(driver, 0, "slow") as training:
        guardian, _ = started(training)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
            os.kill(guardian, number)
        assert os.getsid(guardian) != os.getsid(training.pid)
        assert guardian not in [int(pid) for pid in children_of(training.pid)]
        assert {os.readlink(f"/proc/{guardian}/fd/{fd}") for fd in (0, 1, 2)} == {"/dev/null"}
        time.sleep(0.05)
        assert alive(guardian)
        driver.update(0, may_set=False)
        training.kill()
        assert training.stdout is not None
        assert (
            training.stdout.read() == ""
        )  # a shell that waits for the trainer's output does not wait for the guardian
        assert alive(guardian), "the driver refuses, so it must still be at work"
        driver.update(0, may_set=True)
        assert wait_until(lambda: is_restored(driver, 0) and not alive(guardian))


def test_a_driver_that_refuses_for_a_moment_is_asked_again(node: Node) -> None:
    driver = node(FakeGpu(limit_w=ADMIN_W))
    with train(driver, 0, "slow") as training:
        guardian, _ = started(training)
        driver.update(0, may_set=False)
        training.kill()
        time.sleep(0.15)
        assert alive(guardian) and records()
        driver.update(0, may_set=True)
        assert wait_until(lambda: is_restored(driver, 0) and not alive(guardian))
        assert records() == []


def crash_both(driver: FakeDriver) -> None:
    """End a training and its guardian at once, as a node agent does with a group of processes."""
    with train(driver, 0, "slow") as training:
        guardian, _ = started(training)
        os.kill(guardian, signal.SIGSTOP)
        training.kill()
        training.wait()
        os.kill(guardian, signal.SIGKILL)
        assert wait_until(lambda: not alive(guardian))
    assert driver.state(0).power_limit_w == 390 and driver.state(0).gpu_clocks_mhz == (210, 990)


def test_the_next_start_repairs_what_both_left(node: Node) -> None:
    driver, said = node(FakeGpu(limit_w=ADMIN_W)), Said()
    crash_both(driver)
    with capping(said) as cap:
        assert is_restored(driver, 0) and records() == []
        assert len(said) == 1 and "390 W (put back to 650 W) and a locked clock" in said[0]
        assert cap.apply(0.8) and driver.state(0).power_limit_w == 520
    assert is_restored(driver, 0)


def test_repair_without_opening_caps(node: Node) -> None:
    driver = node(FakeGpu(limit_w=ADMIN_W))
    assert repair() == [] and driver.init_depth == 0
    crash_both(driver)
    (sentence,) = repair()
    assert "had left" in sentence and is_restored(driver, 0) and driver.init_depth == 0
    assert repair() == []


def test_a_record_of_another_user_stops_no_training(node: Node) -> None:
    driver = node(FakeGpu(limit_w=ADMIN_W))
    record = guardian_main.Record(driver.uuid(0), guardian_main.boot_id(), (1, 2, 3))
    record.announce(650_000, 400_000)
    path = Path(guardian_main.record_path(str(claims_dir()), driver.uuid(0)))
    path.parent.mkdir(parents=True, exist_ok=True)
    guardian_main.write(str(path), record)
    path.with_suffix(".lock").mkdir()  # it cannot be opened
    (sentence,) = repair()
    assert "cannot be put back" in sentence and str(path) in sentence


def test_repair_leaves_what_an_administrator_has_set_since(node: Node) -> None:
    driver = node(FakeGpu(limit_w=ADMIN_W))
    crash_both(driver)
    driver.update(0, limit_w=600)
    repair()
    assert driver.state(0).power_limit_w == 600 and records() == []


def test_a_record_of_another_boot_is_dropped(node: Node) -> None:
    driver = node(FakeGpu(limit_w=ADMIN_W))
    crash_both(driver)
    (path,) = records()
    path.write_text(path.read_text().replace(guardian_main.boot_id(), "0f0f0f0f-before-the-reboot"))
    assert repair() == [] and records() == []
    assert driver.state(0).power_limit_w == 390


@pytest.mark.parametrize("text", ["", "uuid GPU-1\n", "owner a b c\n", "\0\0\0"])
def test_a_record_that_is_no_record_is_dropped(node: Node, text: str) -> None:
    driver = node(FakeGpu(limit_w=ADMIN_W))
    path = Path(guardian_main.record_path(os.environ["GREENTRAIN_CLAIMS_DIR"], driver.uuid(0)))
    path.parent.mkdir()
    path.write_text(text)
    assert repair() == [] and records() == []
    assert driver.state(0).power_limit_sets == 0


def test_a_pid_that_somebody_else_has_now_is_not_taken_for_the_trainer(node: Node) -> None:
    driver = node(FakeGpu(limit_w=ADMIN_W))
    crash_both(driver)
    (path,) = records()
    namespace, _, start = guardian_main.this_process()
    record = guardian_main.read(str(path))
    assert record is not None
    record.owner = (namespace, os.getpid(), start - 1)
    path.write_text(record.text())
    assert len(repair()) == 1 and is_restored(driver, 0)


def test_the_training_goes_on_when_its_guardian_dies_and_gets_another(node: Node) -> None:
    driver, said = node(FakeGpu(limit_w=ADMIN_W)), Said()
    with capping(said) as cap:
        assert cap.apply(0.6)
        first = cap.guardian.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        assert wait_until(lambda: not alive(first))
        assert not cap.apply(0.8) and "guardian process is gone" in said[0]
        assert is_restored(driver, 0)
        assert cap.apply(0.8) and cap.guardian.pid != first and driver.state(0).power_limit_w == 520
    assert is_restored(driver, 0) and records() == [] and len(said) == 1


def children_of(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return []


def test_without_its_guardian_a_training_puts_back_and_leaves_no_record(node: Node) -> None:
    driver, said = node(FakeGpu(limit_w=ADMIN_W)), Said()
    with driver.installed(), capping(said) as cap:
        assert cap.apply(0.8)
        guardian = cap.guardian.pid
        assert guardian is not None
        os.kill(guardian, signal.SIGKILL)
        assert wait_until(lambda: not alive(guardian))
        cap.reset()
        assert said == [] and is_restored(driver, 0) and records() == []
        assert cap.apply(0.6) and records() and cap.guardian.pid not in (None, guardian), "another one watches"
    assert said == [] and is_restored(driver, 0) and records() == []
