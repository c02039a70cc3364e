"""Words that the tests of actuators share."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from greentrain.config.schema import ClocksConfig, PowerCapConfig
from greentrain.control.actuators.clocks import ClockLimit, open_clocks
from greentrain.control.actuators.guardian import Guardian
from greentrain.control.actuators.power_cap import PowerCap, open_power_cap
from greentrain.testing.fake_nvml import FakeDriver
from greentrain.types import Topology

Node = Callable[..., FakeDriver]
ADMIN_W = 650.0
"""What the administrator has set: neither the default nor the maximum, which are 700 W."""
FREE_MHZ = (210, 1410)
CHANGER = Path(__file__).with_name("cap_changer.py")


class Said(list[str]):
    """Collects warnings; called with each."""

    def __call__(self, sentence: str) -> None:
        self.append(sentence)


@contextmanager
def capping(
    said: Said,
    *,
    fractions: tuple[float, ...] = (1.0, 0.8, 0.6),
    devices: tuple[str, ...] = (),
    dwell_s: float = 0.0,
    topology: Topology | None = None,
    guardian: Guardian | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[PowerCap]:
    config = PowerCapConfig(fractions=fractions, devices=devices, dwell_s=dwell_s)
    cap = open_power_cap(config, topology or Topology(), said, guardian=guardian, clock=clock)
    assert cap is not None, said
    try:
        yield cap
    finally:
        cap.close()


@contextmanager
def clocking(said: Said, guardian: Guardian | None = None) -> Iterator[ClockLimit]:
    clocks = open_clocks(ClocksConfig(), Topology(), said, guardian=guardian)
    assert clocks is not None, said
    try:
        yield clocks
    finally:
        clocks.close()


def wait_until(true: Callable[[], bool], within_s: float = 120.0) -> bool:
    end_s = time.monotonic() + within_s
    while not true():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.002)
    return True


def alive(pid: int | None) -> bool:
    try:
        return pid is not None and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def guardians_of(pid: int) -> list[int]:
    """Return the guardians of a training process, found by their command line."""
    found = []
    for number in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            words = Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.endswith(b"guardian_main.py") for word in words) and str(pid).encode() in words:
            found.append(number)
    return [number for number in found if alive(number)]
