"""A storm on eight GPUs: drivers that hang, fail, reset their counters, lose a GPU or say nonsense, at any time.

The real bindings read the fake driver, whose true joules are known; beside it stands a door before each GPU, which can
hang for as long as a test likes and puts nonsense into readings. The training never waits, the end is bounded, what one
GPU suffers costs no other a joule, and what is booked is what was used while a GPU could be read; the rest is missing.
``GREENTRAIN_DEVICE_STORM_S`` says how long it storms (15 s; 600 before a release); ``GREENTRAIN_CHAOS_SEED`` gives a
seed that failed.
"""

import functools
import math
import os
import random
import re
import threading
import time
import warnings
from collections import Counter as Counted
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from greentrain import GreenSession
from greentrain.errors import GreenTrainWarning
from greentrain.ledger.reader import RankRecord, read_run
from greentrain.power.nvml import NvmlMeter
from greentrain.testing.fake_nvml import JUMPS, FakeDriver, FakeGpu, NvmlCode, Wave
from greentrain.types import Counter, PowerMeter, PowerSample, Sensor
from tests.helpers.chaos_seed import chaos_seed

if TYPE_CHECKING:
    from tests.integration.conftest import Lab

SECONDS = float(os.environ.get("GREENTRAIN_DEVICE_STORM_S", "15"))
SEED = chaos_seed()
pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(SECONDS + 600.0)]
GPUS = 8
TICK_S = 0.1
HELD_UP_S = 10.0
"""Longest that a step may take (s): it waits for nobody, and a busy machine may let it wait for a core. A door that
hangs does so until the run has ended, for a minute at most."""
CLOSE_S = 20.0
LEFT_S = 4.5
"""Longest that a GPU may stay unread as another one hangs (s): until the books look, 2.5 s, and a busy machine. What it
used is read later, but where its counter falls back meanwhile."""
NEXT_S = 2.5
"""How much longer where one more GPU hangs (s)."""
COUNTER = "nvmlDeviceGetTotalEnergyConsumption"
USERS = "nvmlDeviceGetComputeRunningProcesses"
NONSENSE: Sequence[Any] = (math.nan, math.inf, -math.inf, "12.5", None)
KINDS = {"slow": 3, "hang": 3, "error": 3, "nonsense": 3, "numbers": 1, "time": 1, "reset": 3, "leap": 2, "lost": 1}
HEALED = ("slow", "hang", "error", "nonsense", "time")
"""After these a counter delivers the energy late; but for these nothing is missing."""


class Door:
    """Stands before one GPU's meter."""

    def __init__(self, meter: Any) -> None:
        self.meter = meter
        self.open = threading.Event()
        self.open.set()
        self.value: Any = ...
        """What is read in place of joules; "any": another number each time; ...: the truth."""
        self.t_s: float | None = None

    @property
    def sensors(self) -> Sequence[Sensor]:
        return list(self.meter.sensors)

    def read(self) -> Sequence[PowerSample]:
        self.open.wait(60.0)
        samples = self.meter.read()
        if self.t_s is not None:
            samples = [sample._replace(t_s=self.t_s) for sample in samples]
        return [s._replace(energy_j=self._said(s.energy_j)) for s in samples]

    def counters(self) -> Sequence[Counter]:
        found: Sequence[Counter] = self.meter.counters()
        return [Counter(uid, functools.partial(self._read_j, read_j), late_s) for uid, read_j, late_s in found]

    def users(self) -> Any:
        self.open.wait(60.0)
        return self.meter.users()

    def close(self) -> None:
        self.meter.close()

    def _read_j(self, read_j: Any) -> Any:
        self.open.wait(60.0)
        return self._said(read_j())

    def _said(self, energy_j: Any) -> Any:
        return energy_j if self.value is ... else random.uniform(-1e12, 1e12) if self.value == "any" else self.value


class Doors:
    """All GPUs of a driver, each behind its door."""

    def __init__(self) -> None:
        self.meter = NvmlMeter()
        self.doors = [Door(gpu) for gpu in self.meter.split()]

    @property
    def sensors(self) -> Sequence[Sensor]:
        return self.meter.sensors

    def split(self) -> Sequence[PowerMeter]:
        return self.doors

    def read(self) -> Sequence[PowerSample]:
        return [sample for door in self.doors for sample in door.read()]

    def probe(self) -> None:
        self.meter.probe()

    def close(self) -> None:
        self.meter.close()


@dataclass
class Fault:
    """What one GPU suffers, from when and until when (monotonic, s)."""

    kind: str
    start_s: float
    end_s: float = math.inf
    call_s: float = 0.0
    """How long a call takes (s)."""

    @property
    def until_s(self) -> float:
        """Until when it holds up who reads (s), with the call that began last."""
        return min(self.end_s, self.start_s + LEFT_S) if self.kind == "hang" else self.end_s + self.call_s

    @property
    def off_s(self) -> float:
        """How far the fake driver's moment of reading is from the middle of the call, to which it is dated (s)."""
        hung_s = self.end_s - self.start_s if self.kind == "hang" else self.call_s
        return hung_s / 2 if hung_s < LEFT_S else 0.0  # who is left by then is not heard


@dataclass
class Storm:
    """One run."""

    driver: FakeDriver
    doors: Doors
    chance: random.Random
    faults: list[list[Fault]] = field(default_factory=lambda: [[] for _ in range(GPUS)])
    jumps: list[list[float]] = field(default_factory=lambda: [[] for _ in range(GPUS)])
    log: list[str] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)

    def hit(self, longest_s: float) -> None:
        """Break one GPU that is well."""
        chance, now_s = self.chance, time.monotonic()
        well = [gpu for gpu in range(GPUS) if all(fault.end_s < now_s - 0.5 for fault in self.faults[gpu])]
        if len(well) < 3:
            return
        gpu = chance.choice(well)
        (kind,) = chance.choices(list(KINDS), weights=list(KINDS.values()))
        end_s = now_s + chance.uniform(0.1, longest_s)
        door, what, call_s = self.doors.doors[gpu], "", 0.0
        if kind == "slow":
            seconds = chance.choice((0.02, 0.2, 0.8, 1.5, 2.5))
            self.driver.update(gpu, delays=dict.fromkeys(chance.choice(((COUNTER,), (COUNTER, USERS))), (seconds, 0.0)))
            what, call_s = f"{seconds} s", seconds
        elif kind == "hang":
            door.open.clear()
            end_s = math.inf if chance.random() < 0.2 else end_s
        elif kind == "error":
            code = chance.choice((NvmlCode.UNKNOWN, NvmlCode.NO_PERMISSION, NvmlCode.NOT_SUPPORTED))
            self.driver.update(gpu, errors={COUNTER: code})
            what = code.name
        elif kind == "nonsense":
            door.value = chance.choice(NONSENSE)
            what = repr(door.value)
        elif kind == "numbers":
            door.value = "any"
        elif kind == "time":
            door.t_s = chance.choice((math.nan, 1e12, 0.0))
            what = repr(door.t_s)
        elif kind == "lost":
            if sum(fault.kind == "lost" for faults in self.faults for fault in faults) == 3:
                return
            self.driver.update(gpu, lost=True)
            end_s = math.inf
        else:
            if len(self.jumps[gpu]) + 2 > JUMPS:
                return
            when_s = now_s + 0.01
            held_j = 1e6 + self.driver.true_energy_j(gpu, self.driver.epoch_s, when_s) + sum(self.jumps[gpu])
            if held_j < 30.0 * _power_w(gpu):
                return  # while nobody could read it, it may be back where it was: no reader can know of such a fall
            leap_j = chance.choice((1e7, 1e10, 1e13)) if kind == "leap" else -held_j * chance.uniform(0.5, 1.0)
            self.driver.update(gpu, counter_jump_j=leap_j, at_s=when_s)
            self.jumps[gpu].append(leap_j)
            end_s, what = when_s + 0.3, f"{leap_j:.3g} J"
        self.faults[gpu].append(Fault(kind, now_s, end_s, call_s))
        until = "for good" if math.isinf(end_s) else f"for {end_s - now_s:.2f} s"
        self.log.append(f"{now_s - self.began_s:7.3f} s  GPU {gpu}: {kind} {what} {until}")

    def mend(self, all_of_it: bool = False) -> None:
        """Mend what was broken for long enough."""
        now_s = time.monotonic()
        for gpu, door in enumerate(self.doors.doors):
            fault = self.faults[gpu][-1] if self.faults[gpu] else None
            if fault is not None and (all_of_it or fault.end_s <= now_s):
                door.value, door.t_s = ..., None
                door.open.set()
                self.driver.update(
                    gpu, delays=dict.fromkeys((COUNTER, USERS), (0.0, 0.0)), errors={COUNTER: NvmlCode.SUCCESS}
                )


def test_a_short_storm_on_eight_gpus(lab: "Lab") -> None:
    _play(lab, random.Random(f"{SEED} 0"), seconds=2.5, every_s=0.15, longest_s=0.8)


@pytest.mark.long
def test_a_storm_on_eight_gpus(lab: "Lab") -> None:
    end_s, number = time.monotonic() + SECONDS, 0
    while time.monotonic() < end_s:
        number += 1
        chance = random.Random(f"{SEED} {number}")
        _play(lab, chance, seconds=chance.choice((6.0, 12.0, 20.0)), every_s=chance.choice((0.1, 0.5)), longest_s=4.0)


def _power_w(gpu: int) -> float:
    return 100.0 + 50.0 * gpu


def _play(lab: "Lab", chance: random.Random, *, seconds: float, every_s: float, longest_s: float) -> None:
    driver = lab.gpus(*(FakeGpu(power=(Wave(low_w=_power_w(gpu)),)) for gpu in range(GPUS)))
    config = lab.config(run={"book_s": chance.choice((0.5, 10.0)), "live": False})
    with driver.installed(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        doors = Doors()
        green = GreenSession(config, meter=doors)
        green.start()
        storm, longest_call_s, held_up_s = Storm(driver, doors, chance), 0.0, 0.0
        storm_end_s = storm.began_s + seconds
        due_s = storm.began_s + 0.7  # past the probe
        while (now_s := time.monotonic()) < storm_end_s:
            if now_s >= due_s:
                due_s = now_s + chance.expovariate(1.0 / every_s)
                storm.hit(longest_s)
            storm.mend()
            time.sleep(0.01)
            begun_s = time.monotonic()
            with green.phase("forward"):
                green.step(tokens=10)
            longest_call_s = max(longest_call_s, time.monotonic() - begun_s)
            held_up_s = max(held_up_s, time.monotonic() - now_s - 0.01)
        end_s = time.monotonic()
        green.close()
        closed_s = time.monotonic() - end_s
        storm.mend(all_of_it=True)
        while any(thread.name.startswith("greentrain-") for thread in threading.enumerate()):
            assert time.monotonic() < end_s + 60.0, threading.enumerate()
            time.sleep(0.01)
        doors.close()
    assert green.folder is not None
    (rank,) = read_run(green.folder).ranks
    wrong = [
        f"GPU {gpu}: {text}"
        for gpu in range(GPUS)
        for text in _untrue(driver, rank, storm.faults, gpu, end_s, held_up_s)
    ]
    causes = Counted(_cause(str(one.message)) for one in told if one.category is GreenTrainWarning)
    wrong += [f"{times} warnings: {text}" for text, times in causes.items() if times > 1]
    if longest_call_s > HELD_UP_S:
        wrong.append(f"a step took {longest_call_s:.1f} s")
    if closed_s > CLOSE_S:
        wrong.append(f"the end took {closed_s:.1f} s")
    words = [f"GREENTRAIN_CHAOS_SEED={SEED}: {seconds:.0f} s, book_s {config['run']['book_s']}, end {closed_s:.2f} s"]
    words.append(f"a core was waited for up to {held_up_s:.3f} s")
    print(*words, *storm.log, sep="\n")
    assert not wrong, "\n".join(words + storm.log + wrong)


def _cause(text: str) -> str:
    """Return a warning without its figures; the GPU stays."""
    uid = re.search(r"GPU-[0-9-]*(\d)", text)
    return f"GPU {uid[1] if uid else ''}: {re.sub(r'[-+0-9.e]*[0-9]', '#', re.sub('GPU-[0-9-]*', '', text))}"


def _read_last_s(held_up: Sequence[tuple[float, float]], t_s: float) -> float:
    """Return when a GPU was read last before a time, at the earliest (s): what hangs anywhere holds its readings up."""
    read_s = t_s
    for start_s, until_s in sorted(held_up, key=lambda one: one[1], reverse=True):
        if start_s < t_s and until_s + 0.5 > read_s:
            read_s = min(read_s, start_s)
    return read_s


def _untrue(
    driver: FakeDriver, rank: RankRecord, storm: list[list[Fault]], gpu: int, end_s: float, held_up_s: float
) -> list[str]:
    """Return what is wrong in the books of one GPU, on a machine that let a thread wait for a core so long (s)."""
    uid, power_w, found = driver.uuid(gpu), _power_w(gpu), []
    faults = storm[gpu]
    hung = [fault for other in storm if other is not faults for fault in other if fault.kind in ("hang", "slow")]
    devices = [entry.devices[uid] for entry in rank.entries]
    if any(not (device.energy_j >= 0 and math.isfinite(device.energy_j)) for device in devices):
        found.append(f"{[device.energy_j for device in devices]} J are booked")
    duration_s = rank.totals.duration_s
    booked_j, missing_s = rank.totals.by_device[uid], rank.totals.missing_s.get(uid, 0.0)
    truth_j = power_w * (duration_s - missing_s)
    last_s = end_s - 0.5
    # On a busy machine the probe may see no tick, and values count from when they were read, at both ends; and a tick
    # is sometimes dated to the one beside it, which a fault after it makes final.
    off_s = TICK_S * (2.2 + 0.25 * sum(fault.kind not in HEALED for fault in faults)) + 2 * held_up_s
    final_s = [fault.start_s for fault in faults if fault.kind not in HEALED or fault.end_s >= last_s] + [end_s]
    # A GPU that was slow as it was probed is read rarely, up to the next probe.
    rarely_s = [fault.until_s + 20 * fault.call_s for fault in faults]
    held_up = [(other.start_s, other.until_s) for other in hung]
    held_up += [(fault.start_s, until_s) for fault, until_s in zip(faults, rarely_s, strict=True)]
    for fault, until_s in zip(faults, rarely_s, strict=True):
        if any(fault.start_s < t_s and _read_last_s(held_up, t_s) < until_s + 1.0 for t_s in final_s):
            off_s += fault.off_s
    if booked_j != pytest.approx(truth_j, rel=0.01, abs=off_s * power_w):
        found.append(
            f"{booked_j:.1f} J are booked of {truth_j:.1f} J in the {duration_s - missing_s:.2f} s that are not missing"
        )
    blind_s = sum(min(fault.end_s, end_s) - fault.start_s + LEFT_S for fault in faults)
    for fault in faults:  # where several others hang, they are left one after another
        meanwhile = sum(other.start_s < fault.end_s and fault.start_s - LEFT_S < other.end_s for other in hung)
        blind_s += NEXT_S * max(0, meanwhile - 1)
    if all(fault.kind in HEALED and fault.end_s < last_s for fault in faults):
        blind_s = 0.3 + 2 * held_up_s + end_s - _read_last_s(held_up, end_s)
    if not -1e-4 <= missing_s <= blind_s:
        found.append(f"{missing_s:.5f} s are missing, {blind_s:.2f} s at most could not be read")
    for fault in faults:
        if fault.kind == "lost" and missing_s < end_s - fault.start_s - 0.5:
            found.append(f"it was lost for {end_s - fault.start_s:.2f} s, and {missing_s:.2f} s are missing")
    return found
