"""Slices marks and phases: the host's clock beside the device's.

Marks are made through ``GreenSession.phase`` and ``GreenSession.step`` alone, so that whatever stands behind them is
what is measured. Events are torch's device-generic ones.
"""

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

import torch

from benchmarks.metering_common import TOOLS, installed
from benchmarks.metering_worker import step_costs_us
from benchmarks.silicon_common import Kernels, Rig, Value, failed, quantile
from benchmarks.silicon_sensor import CounterPoll

PARTS: Final[Mapping[str, tuple[str, float]]] = {
    "data": ("", 20.0),
    "forward": ("bf16", 80.0),
    "backward": ("fp32", 160.0),
    "optimizer": ("memory", 30.0),
}
"""By phase: kernels, none where the host waits for data, and milliseconds of a step of 0.29 s."""
CLOCKS: Final = ("auto", "off")
"""Values of ``power.device_clock``, where this GreenTrain has it."""


class HostEvent:
    """What stands for a device's event in a dry run: the host's clock."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def record(self, stream: object = None) -> None:
        """Note the time."""
        self.at_s = time.monotonic()

    def query(self) -> bool:
        """Return that it is done."""
        return True

    def synchronize(self) -> None:
        """Wait for nothing."""

    def elapsed_time(self, end: "HostEvent") -> float:
        """Return the milliseconds until another one."""
        return 1000 * (end.at_s - self.at_s)


def event(rig: Rig) -> Any:
    """Return an event that takes the device's time."""
    return HostEvent() if rig.dry else torch.Event(rig.device, enable_timing=True)


def marks(rig: Rig) -> None:
    """Cost of marks while the device works behind the host, cost of events, anchors, and drift of the two clocks."""
    busy = Kernels(rig).of("bf16", 400.0)
    for clock in CLOCKS:
        rig.attempt(f"a mark with power.device_clock {clock}", "us", functools.partial(_marks, rig, clock, busy))
    rig.attempt("an event", "us", lambda: _events(rig, busy))
    rig.attempt("anchors", "us", lambda: _anchors(rig, busy))


def _marks(rig: Rig, clock: str, busy: Callable[[], None]) -> None:
    from greentrain.errors import ConfigError

    try:
        session = rig.session(f"marks-{clock}", device_clock=clock)
    except ConfigError as error:
        if "device_clock" not in str(error) or clock != CLOCKS[0]:
            return
        rig.note("this GreenTrain has no power.device_clock: marks are the host's")
        session, clock = rig.session("marks"), "not there"
    with session as green:
        phase = green.phase("forward")

        def mark() -> None:
            with phase:
                pass

        for what, call in {"phase()": mark, "step()": lambda: green.step(tokens=1)}.items():
            for state in ("idle", "400 ms of kernels queued"):
                costs_us: list[float] = []
                for _ in range(rig.pick(10, 2)):
                    if state != "idle":
                        busy()
                    costs_us += step_costs_us(call, rig.pick(2000, 200))
                    rig.wait()
                name = f"{what}, device_clock {clock}, {state}, median"
                rig.row(name, "us", statistics.median(costs_us), p99=quantile(costs_us, 0.99))


def _events(rig: Rig, busy: Callable[[], None]) -> None:
    count = rig.pick(2000, 100)
    events = [event(rig) for _ in range(count)]
    for one in events:  # the first record makes it
        one.record()
    rig.wait()
    for state in ("idle", "400 ms of kernels queued"):
        if state != "idle":
            busy()
        each = iter(events)
        costs_us = step_costs_us(lambda each=each: next(each).record(), count * 20 // 21)  # type: ignore[misc]
        rig.row(f"record of an event, {state}, median", "us", statistics.median(costs_us), p99=quantile(costs_us, 0.99))
        rig.wait()
    asked_us = step_costs_us(events[0].query, count)
    rig.row("query of an event that is done, median", "us", statistics.median(asked_us))
    read_us = step_costs_us(lambda: events[0].elapsed_time(events[1]), count)
    rig.row("elapsed_time, median", "us", statistics.median(read_us))


def _anchors(rig: Rig, busy: Callable[[], None]) -> None:
    """Bracket events of a side stream by host times, idle and beside work, and follow the clocks for some seconds."""
    side: AbstractContextManager[Any] = nullcontext()
    if not rig.dry:
        side = torch.Stream(rig.device)
    tight: list[tuple[float, float, Any]] = []
    for state in ("idle", "beside 400 ms of kernels"):
        if state != "idle":
            busy()
        found = []
        for _ in range(rig.pick(200, 20)):
            with side:
                one = event(rig)
                before_s = time.monotonic()
                one.record()
                one.synchronize()
                after_s = time.monotonic()
            found.append((after_s - before_s, (before_s + after_s) / 2, one))
        rig.wait()
        widths_us = [1e6 * width_s for width_s, _, _ in found]
        rig.row(f"width of an anchor, {state}, smallest", "us", min(widths_us), median=statistics.median(widths_us))
        tight.append(min(found, key=lambda each: each[0]))
    first, until_s = tight[0], time.monotonic() + rig.pick(60.0, 0.2)
    last = first
    while time.monotonic() < until_s:
        with side:
            one = event(rig)
            before_s = time.monotonic()
            one.record()
            one.synchronize()
            after_s = time.monotonic()
        last = (after_s - before_s, (before_s + after_s) / 2, one)
        time.sleep(0.01)
    host_s = last[1] - first[1]
    device_s = first[2].elapsed_time(last[2]) / 1000
    off_ppm = 1e6 * (first[0] + last[0]) / 2 / host_s
    rig.row(f"the device's clock against the host's over {host_s:.1f} s", "ppm", 1e6 * (device_s / host_s - 1))
    rig.row("what the anchors leave open of that", "ppm", off_ppm)


class Step:
    """A training step made of kernels whose place on the device's clock is known.

    Args:
        rig: The device.
        factor: Longer or shorter than PARTS.
    """

    def __init__(self, rig: Rig, factor: float) -> None:
        kernels = Kernels(rig)
        self._rig, self.factor = rig, factor * rig.pick(1.0, 0.2)
        self.work: dict[str, Callable[[], None]] = {}
        for name, (kind, length_ms) in PARTS.items():
            target_ms = length_ms * self.factor
            wait_s = target_ms / 1000
            self.work[name] = kernels.of(kind, target_ms) if kind else lambda wait_s=wait_s: time.sleep(wait_s)  # type: ignore[misc]

    def powers_w(self, poll: CounterPoll) -> dict[str, float]:
        """Return the power of each phase alone, waited for, from the counter: what no clock can blur."""
        found: dict[str, list[float]] = {name: [] for name in PARTS}
        for _ in range(2):
            for name, call in self.work.items():
                t0_s, until_s = time.monotonic() + 0.3, time.monotonic() + self._rig.pick(3.0, 0.7)
                while time.monotonic() < until_s:
                    call()
                    self._rig.wait()
                t1_s = time.monotonic()
                time.sleep(0.3)
                found[name].append(poll.energy_j(t0_s, t1_s) / (t1_s - t0_s))
        return {name: statistics.mean(values) for name, values in found.items()}

    def run(
        self,
        seconds: float,
        phase: Callable[[str], AbstractContextManager[object]],
        end: Callable[[], object],
        *,
        synchronised: bool,
    ) -> dict[str, float]:
        """Take steps and return the device's seconds by phase.

        Args:
            seconds: How long.
            phase: Opens a phase.
            end: Called after each step.
            synchronised: Wait for the device at both ends of each phase; False: the host runs ahead.
        """
        taken: list[tuple[str, Any, Any]] = []
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            for name, call in self.work.items():
                first, last = event(self._rig), event(self._rig)
                with phase(name):
                    first.record()
                    call()
                    last.record()
                    if synchronised:
                        self._rig.wait()
                taken.append((name, first, last))
            end()
        self._rig.wait()
        found = dict.fromkeys(PARTS, 0.0)
        for name, first, last in taken:
            found[name] += first.elapsed_time(last) / 1000
        return found


def phases(rig: Rig) -> None:
    """Error of each phase's joules, waited for and with the host ahead; truth is power alone times device time."""
    for factor in (1.0, 0.5) if not rig.dry else (1.0,):
        step = Step(rig, factor)
        with CounterPoll(rig) as poll:
            time.sleep(rig.pick(0.5, 0.2))
            powers_w = step.powers_w(poll)
        named = f"step of {290 * step.factor:.0f} ms"
        for name, power_w in powers_w.items():
            rig.row(f"{named}, {name}: power alone", "W", power_w)
        for way in ("synchronised", "queued"):
            what = f"{named}, {way}"
            rig.attempt(what, "%", functools.partial(_ours, rig, step, powers_w, way, what))
        for tool in TOOLS[1:]:
            what = f"{named}, synchronised, {tool}"
            if not installed(tool):
                rig.row(what, "%", "not installed")
                continue
            rig.attempt(what, "%", functools.partial(_theirs, rig, step, powers_w, tool, what))


def _ours(rig: Rig, step: Step, powers_w: Mapping[str, float], way: str, what: str) -> None:
    with rig.session(f"{way}-{step.factor:g}") as green:
        seconds = rig.pick(40.0, 2.0)
        device_s = step.run(seconds, green.phase, lambda: green.step(tokens=1), synchronised=way == "synchronised")
    totals = green.totals()
    truth_j = {name: powers_w[name] * device_s[name] for name in PARTS}
    booked_j = sum(totals.by_device.values())
    rig.row(f"{what}: all phases' truth against all that was booked", "%", 100 * (sum(truth_j.values()) / booked_j - 1))
    attributed = getattr(totals, "attribution", None)
    if attributed is not None:
        rig.note(f"{what}: {attributed}")
    for name in PARTS:
        error: Value = "n/a: nothing was booked in it"
        if name in totals.by_phase and truth_j[name]:
            error = 100 * (totals.by_phase[name] / truth_j[name] - 1)
        rig.row(f"{what}, {name}: error of its joules", "%", error, truth_J=truth_j[name], device_s=device_s[name])


def _theirs(rig: Rig, step: Step, powers_w: Mapping[str, float], tool: str, what: str) -> None:
    """Measure windows of a peer around phases that are waited for, as its documentation asks."""
    from benchmarks.metering_tools import make

    it, count = make(tool), [0]

    @contextmanager
    def window(name: str) -> Iterator[None]:
        count[0] += 1
        it.begin(f"{name}/{count[0]}")
        try:
            yield
        finally:
            it.end(f"{name}/{count[0]}")

    device_s = step.run(rig.pick(20.0, 1.0), window, lambda: None, synchronised=True)
    found = it.windows()
    for name in PARTS:
        energies = [energy for key, energy in found.items() if key.startswith(f"{name}/")]
        error: Value
        try:
            error = 100 * (sum(sum(each or ()) for each in energies) / (powers_w[name] * device_s[name]) - 1)
        except ZeroDivisionError as wrong:
            error = failed(wrong)
        rig.row(f"{what}, {name}: error of its joules", "%", error, windows=float(len(energies)))
