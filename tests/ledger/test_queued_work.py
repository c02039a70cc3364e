"""Devices that work behind the host: each one's joules are cut by its own clock, and the host's by the host's.

The truth is in closed form: a device draws what its kernels draw, and gets to a mark when it has run what was queued
before.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from greentrain.carbon.constant import ConstantSignal
from greentrain.ledger.bookkeeper import Bookkeeper, Mark
from greentrain.ledger.pue import ConstantPue
from greentrain.ledger.totals import Totals
from greentrain.power.device_clock import DeviceClock
from greentrain.power.sampler import EnergyCurve
from greentrain.types import Device, DeviceKind, LedgerEntry, PowerSample, Provenance, Sensor
from tests.helpers.fake_accelerator import BusyHost, FakeGpu, fake_torch

CPU_W = {"data": 120.0, "forward": 60.0, "backward": 40.0, "optimizer": 50.0, "other": 30.0, "warm-up": 90.0}


def _curve(uid: str, t0_s: float, tick_s: float | None = None) -> EnergyCurve:
    kind = DeviceKind.GPU if uid.startswith("GPU") else DeviceKind.CPU
    device = Device(uid=uid, kind=kind, name=uid)
    curve = EnergyCurve(Sensor(device=device, provenance=Provenance.MEASURED, method="t", period_s=0.1), t0_s)
    if tick_s is not None:
        curve.use_tick(tick_s, t0_s)
    return curve


@dataclass
class Truth:
    """When each mark was, by one clock."""

    phases: list[tuple[str, float, float]] = field(default_factory=list)
    steps_s: list[float] = field(default_factory=list)
    began: tuple[str, float] = ("", 0.0)

    def by_phase(self, energy_j: Callable[[np.ndarray], np.ndarray]) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, start_s, end_s in self.phases:
            used = energy_j(np.array([start_s, end_s]))
            found[name] = found.get(name, 0.0) + float(used[1] - used[0])
        return found


class Run:
    """A training on a host with a CPU that is metered and some GPUs that work behind it."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        gpus: int = 1,
        clocked: bool = True,
        drift: float = 0.0,
        tick_s: float | None = None,
    ) -> None:
        self.tick_s = tick_s
        self._chance = np.random.default_rng(1)
        self.host = BusyHost(held_s=2e-4)
        self.gpus = [FakeGpu(self.host, drift=drift) for _ in range(gpus)]
        fake_torch(self.gpus, monkeypatch)
        self.uids = [f"GPU-{i}" for i in range(gpus)]
        self.clock: DeviceClock[Mark] = DeviceClock(self.uids if clocked else [], self.host, self._warn)
        self.warned: list[str] = []
        self.clock.look()
        for device in self.clock.devices.values():
            device.passed()
        self.t0_s = self.host.now_s
        self.books = Bookkeeper(
            t0_s=self.t0_s,
            unix_offset_s=0.0,
            signal=ConstantSignal(360.0, zone="test", source="test"),
            facility=ConstantPue(1.0),
        )
        self.curves = {uid: _curve(uid, self.t0_s, tick_s) for uid in self.uids} | {"cpu": _curve("cpu", self.t0_s)}
        self.entries: list[LedgerEntry] = []
        self.host_truth = Truth()
        self.truths = [Truth() for _ in self.gpus]
        self.marks: list[Mark] = []
        self.tokens = 0
        self._due_s = self.t0_s + 2.0

    def _warn(self, name: str, text: str) -> None:
        self.warned.append(text)

    def mark(self, kind: str, name: str = "", tokens: int = 0) -> None:
        t_s = self.host.monotonic_s()
        stamps = self.clock.record()
        self.marks.append(Mark(t_s, kind, name, 0, tokens, stamps=stamps))
        there_s = [max(gpu.stream.free_s, self.host.now_s) for gpu in self.gpus]
        for truth, at_s in zip([self.host_truth, *self.truths], [t_s, *there_s], strict=True):
            if kind == "begin":
                truth.began = name, at_s
            elif kind == "end":
                truth.phases.append((*truth.began, at_s))
            elif kind == "step":
                truth.steps_s.append(at_s)

    def phase(self, name: str) -> "Run":
        self.mark("begin", name)
        self._open = name
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        self.mark("end", self._open)

    def launch(self, count: int, seconds: float, watts: float) -> None:
        seconds *= self._chance.lognormal(0.0, 0.05)
        for _ in range(count):
            self.host.now_s += 1e-5
            for i, gpu in enumerate(self.gpus):
                gpu.launch(seconds * (1 + i), watts)

    def step(self, *, wait: bool = False) -> None:
        with self.phase("data"):
            self.host.now_s += 0.004
        with self.phase("forward"):
            self.launch(20, 0.002, 300.0)
        with self.phase("backward"):
            self.launch(20, 0.004, 450.0)
        with self.phase("optimizer"):
            self.launch(10, 0.0015, 220.0)
        self.mark("step", tokens=10)
        if wait:
            for gpu in self.gpus:
                gpu.synchronize()
        if self.host.now_s >= self._due_s:
            self._due_s = self.host.now_s + 2.0
            self.book()

    def cpu_j(self, t_s: np.ndarray) -> np.ndarray:
        edges, watts = [self.t0_s], list[float]()
        for name, start_s, end_s in self.host_truth.phases:
            edges += [start_s, end_s]
            watts += [CPU_W["other"], CPU_W[name]]
        if self.host_truth.began[1] > edges[-1]:
            edges.append(self.host_truth.began[1])
            watts.append(CPU_W["other"])
            watts.append(CPU_W[self.host_truth.began[0]])
        else:
            watts.append(CPU_W["other"])
        edges.append(self.host.now_s + 1e3)
        found: np.ndarray = np.interp(t_s, edges, np.concatenate([[0.0], np.cumsum(np.array(watts) * np.diff(edges))]))
        return found

    def book(self, *, last: bool = False) -> None:
        """Read all that is known by now, and book it."""
        for uid, gpu in zip(self.uids, self.gpus, strict=True):
            if self.tick_s is None:
                self._read(uid, gpu.edges_s(), gpu.energy_j)
            else:
                self._read_ticks(uid, gpu, self.tick_s)
        ends_s = [t_s for _, *times in self.host_truth.phases for t_s in times]
        self._read("cpu", ends_s, self.cpu_j)
        t1_s = min(curve.frontier_s for curve in self.curves.values())
        for uid, device in self.clock.devices.items():
            device.expect((mark.t_s, dict(mark.stamps).get(uid), mark) for mark in self.marks)
            self.books.follow(uid, device.passed(t1_s if last else np.inf))
        self.books.timeline.add(self.marks)
        self.marks = []
        self.entries.append(self.books.book(t1_s, self.curves, last=last))

    def _read(self, uid: str, edges_s: list[float], energy_j: Callable[[np.ndarray], np.ndarray]) -> None:
        curve, now_s = self.curves[uid], self.host.now_s
        first_s = curve.frontier_s if self.entries else self.t0_s - 1e-9
        times_s = [t_s for t_s in sorted({self.t0_s, *edges_s, now_s}) if first_s < t_s <= now_s]
        for t_s, value_j in zip(times_s, energy_j(np.array(times_s)), strict=True):
            curve.append(PowerSample(device_uid=uid, t_s=t_s, energy_j=float(value_j)))

    def _read_ticks(self, uid: str, gpu: FakeGpu, tick_s: float) -> None:
        """Read a counter that tells what was used up to its last tick, a little more often than it ticks."""
        reads = int((self.host.now_s - self.t0_s) / (0.97 * tick_s))
        times_s = self.t0_s + 0.97 * tick_s * np.arange(self._reads, reads)
        ticks_s = self.t0_s + np.floor((times_s - self.t0_s) / tick_s) * tick_s
        for t_s, value_j in zip(times_s, gpu.energy_j(ticks_s), strict=True):
            self.curves[uid].append(PowerSample(device_uid=uid, t_s=float(t_s), energy_j=float(value_j)))
        self._reads = reads

    _reads = 0

    def finish(self) -> Totals:
        for gpu in self.gpus:
            gpu.synchronize()
        self.book(last=True)
        return sum(map(Totals.of, self.entries), Totals())

    def by_phase(self, uid: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for entry in self.entries:
            for name, joules in entry.devices[uid].phases.items():
                found[name] = found.get(name, 0.0) + joules
        return found


PHASES = ("data", "forward", "backward", "optimizer")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Run]]:
    yield lambda **settings: Run(monkeypatch, **settings)


@pytest.mark.parametrize("gpus", [1, 2])
def test_each_device_s_joules_are_cut_by_its_own_clock(made: Callable[..., Run], gpus: int) -> None:
    run = made(gpus=gpus, drift=6e-5)
    for i in range(60):
        run.step(wait=i % 30 == 29)
    totals = run.finish()
    for uid, gpu, truth in zip(run.uids, run.gpus, run.truths, strict=True):
        booked, true_j = run.by_phase(uid), truth.by_phase(gpu.energy_j)
        for name in ("forward", "backward", "optimizer"):
            assert booked[name] == pytest.approx(true_j[name], rel=2e-3), (uid, name)
        assert booked["data"] == pytest.approx(true_j["data"], abs=2e-3 * totals.by_device[uid])
        assert sum(booked.values()) == pytest.approx(totals.by_device[uid])
        assert totals.by_device[uid] == pytest.approx(float(gpu.energy_j(run.host.now_s)), rel=1e-4)
    cpu, true_cpu = run.by_phase("cpu"), run.host_truth.by_phase(run.cpu_j)
    assert {name: cpu[name] for name in PHASES} == pytest.approx(true_cpu, rel=1e-6)
    assert totals.steps == 60 and totals.tokens == 600
    assert run.books.clocks() == {uid: dict.fromkeys(sorted(PHASES), "device") for uid in run.uids}


def test_by_the_host_s_clock_backward_is_a_part_of_itself(made: Callable[..., Run]) -> None:
    run = made(clocked=False)
    for i in range(60):
        run.step(wait=i % 30 == 29)
    run.finish()
    booked, true_j = run.by_phase("GPU-0"), run.truths[0].by_phase(run.gpus[0].energy_j)
    assert booked["backward"] < 0.3 * true_j["backward"] and booked["data"] > 10 * true_j["data"]
    assert run.books.clocks() == {}


def test_steps_cost_what_the_devices_used_for_them(made: Callable[..., Run]) -> None:
    run = made(gpus=2)
    for i in range(60):
        run.step(wait=i % 20 == 19)
    run.finish()
    done, joules = 0, 0.0
    for entry in run.entries:
        for steps, t_s, group_j, tokens in entry.step_groups:
            done += steps
            joules += group_j
            ends_s = [truth.steps_s[done - 1] for truth in run.truths]
            true_j = sum(float(gpu.energy_j(t)) for gpu, t in zip(run.gpus, ends_s, strict=True))
            true_j += float(run.cpu_j(np.array(run.host_truth.steps_s[done - 1])))
            assert joules == pytest.approx(true_j, rel=1e-3) and tokens == 10 * steps
            assert t_s == pytest.approx(max(ends_s), abs=1e-3)
    assert done == 60


def test_below_the_tick_phases_are_those_of_the_device(made: Callable[..., Run]) -> None:
    run = made(tick_s=0.1)
    for i in range(150):  # 21 s
        run.step(wait=i % 30 == 29)
    run.finish()
    booked, end_s = run.by_phase("GPU-0"), run.entries[-1].t1_unix_s
    true_j = run.truths[0].by_phase(lambda t_s: run.gpus[0].energy_j(np.minimum(t_s, end_s)))
    assert sum(booked.values()) == pytest.approx(sum(entry.devices["GPU-0"].energy_j for entry in run.entries))
    for name, within in (("forward", 0.03), ("backward", 0.03), ("optimizer", 0.1)):
        assert booked[name] == pytest.approx(true_j[name], rel=within), name
    told = run.books.attributions()["GPU-0"]["phases"]
    assert told["backward"]["w"] == pytest.approx(450.0, rel=0.03) and told["backward"]["how"] == "regressed"


def test_a_window_is_cut_as_the_books_are(made: Callable[..., Run]) -> None:
    run = made()
    for _ in range(40):
        run.step()
    run.gpus[0].synchronize()
    run.book()
    (_, start_s, _), (_, _, end_s) = run.truths[0].phases[40], run.truths[0].phases[43]
    energy_j, missing_s = run.books.between("GPU-0", run.curves["GPU-0"], start_s, end_s)
    true_j = float(np.diff(run.gpus[0].energy_j(np.array([start_s, end_s])))[0])
    assert energy_j == pytest.approx(true_j, rel=1e-3) and missing_s == 0


def test_gears_have_what_devices_used_in_them(made: Callable[..., Run]) -> None:
    run = made(gpus=2)
    shifts: list[list[float]] = [[] for _ in run.gpus]
    for i in range(60):
        if i % 15 == 0:
            run.mark("gear", ("fp32", "bf16")[i // 15 % 2])
            for at, gpu in zip(shifts, run.gpus, strict=True):
                at.append(max(gpu.stream.free_s, run.host.now_s))
        run.step()
    totals = run.finish()
    true_j = {"fp32": 0.0, "bf16": 0.0}
    for at, gpu in zip(shifts, run.gpus, strict=True):
        for k, (start_s, end_s) in enumerate(zip(at, [*at[1:], run.entries[-1].t1_unix_s], strict=True)):
            true_j[("fp32", "bf16")[k % 2]] += float(np.diff(gpu.energy_j(np.array([start_s, end_s])))[0])
    for gear, joules in true_j.items():
        cpu_j = totals.by_gear[gear].energy_j - joules
        assert 0 < cpu_j < 0.2 * joules
        assert totals.by_gear[gear].steps == 30 and totals.by_gear[gear].missing_s == 0
    assert sum(use.energy_j for use in totals.by_gear.values()) == pytest.approx(totals.energy_j, rel=1e-3)


def test_marks_in_a_capture_are_the_host_s_and_said_to_be(made: Callable[..., Run]) -> None:
    run = made()
    for i in range(30):
        if i == 10:
            run.gpus[0].stream.captures = True
            with run.phase("warm-up"):
                run.host.now_s += 0.05
            run.gpus[0].stream.captures = False
        run.step()
    run.finish()
    assert run.books.clocks()["GPU-0"] == dict.fromkeys(sorted(PHASES), "device") | {"warm-up": "host"}
    booked, true_j = run.by_phase("GPU-0"), run.truths[0].by_phase(run.gpus[0].energy_j)
    assert booked["backward"] == pytest.approx(true_j["backward"], rel=2e-3), "what is around it is as sharp as before"


@pytest.mark.parametrize("fault", ["broken", "lost"])
def test_a_device_whose_clock_is_lost_goes_on_by_the_host_s(made: Callable[..., Run], fault: str) -> None:
    run = made()
    for i in range(60):
        if i == 30:
            run.gpus[0].synchronize()
            run.book()
            setattr(run.gpus[0], fault, True)
        run.step()
        if i == 31:
            run.host.now_s += 70.0
    totals = run.finish()
    assert len(run.warned) == 1 and "host's times" in run.warned[0]
    assert set(run.books.clocks()["GPU-0"].values()) == {"mixed"}
    assert sum(run.by_phase("GPU-0").values()) == pytest.approx(totals.by_device["GPU-0"])
    assert totals.steps == 60 and sum(g[0] for e in run.entries for g in e.step_groups) == 60


def test_a_device_that_comes_into_use_later_is_followed_from_there(made: Callable[..., Run]) -> None:
    run = made(gpus=2)
    del run.clock.devices["GPU-1"]
    run.clock._next_look_s = np.inf
    for i in range(40):
        run.step(wait=i == 19)
        if i == 19:
            run.book()
            run.clock._next_look_s = run.host.now_s
            run.clock.look()
    totals = run.finish()
    booked, truth = run.by_phase("GPU-1"), run.truths[1]
    late = Truth(phases=truth.phases[80:])
    early = sum(entry.devices["GPU-1"].phases.get("backward", 0.0) for entry in run.entries[:1])
    assert set(run.books.clocks()["GPU-1"].values()) == {"device"}, "what was before it was followed is no phase of it"
    assert booked["backward"] > early and booked["backward"] >= late.by_phase(run.gpus[1].energy_j)["backward"] * 0.99
    assert totals.steps == 40 and sum(g[0] for e in run.entries for g in e.step_groups) == 40
