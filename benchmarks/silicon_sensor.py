"""Slices sensor and peers: what the counter shows of a load that is known to the millisecond."""

import contextlib
import itertools
import random
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final

import numpy as np

from benchmarks.metering_common import TOOLS, Worker, installed, run_together
from benchmarks.silicon_common import Floats, Kernels, Rig, Value, failed, non_negative, quantile

BINS: Final = 10
"""Parts of a tick that are told apart."""
REACH: Final = 2
"""Ticks back from an edge in which the sensor may have looked."""
MOST: Final = 0.9
"""Share of the weight that counts as what it sees."""


class CounterPoll:
    """Reads a GPU's counter every millisecond in a thread, and keeps when it changed; a context manager.

    Args:
        rig: Whose device is read.
    """

    def __init__(self, rig: Rig) -> None:
        from greentrain.power.nvml import NvmlMeter

        self.meter = NvmlMeter()
        reader: Any = self.meter.split()[rig.device.index or 0]
        self.sensor = reader.sensor
        self._value = reader.value
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self.edges: list[tuple[float, float, float]] = []
        """Time of a change (s), how far off that may be (s), and the counter after it (J)."""

    def __enter__(self) -> "CounterPoll":
        if self.sensor.tick_s is None or self._value is None:
            raise RuntimeError(f"{self.sensor.device.name} has no energy counter: {self.sensor.method}")
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.meter.close()

    def _poll(self) -> None:
        last_j, last_s = None, 0.0
        while not self._stop.wait(0.001):
            before_s = time.monotonic()
            try:
                value_j = self._value()
            except Exception:
                last_j = None
                continue
            after_s = time.monotonic()
            if last_j is not None and value_j != last_j:
                self.edges.append(((last_s + after_s) / 2, (after_s - last_s) / 2, value_j))
            last_j, last_s = value_j, before_s

    def ticks(self) -> list[tuple[float, float, float]]:
        """Return start, end (s) and energy (J) of the ticks whose edges are dated well."""
        found = [
            (a_s, b_s, after_j - before_j)
            for (a_s, a_off_s, before_j), (b_s, b_off_s, after_j) in itertools.pairwise(self.edges)
            if max(a_off_s, b_off_s) < 0.05 * (b_s - a_s)
        ]
        usual_s = statistics.median(b_s - a_s for a_s, b_s, _ in found) if found else 0.0
        return [(a_s, b_s, e_j) for a_s, b_s, e_j in found if abs(b_s - a_s - usual_s) < 0.2 * usual_s]

    def energy_j(self, t0_s: float, t1_s: float) -> float:
        """Return the counter's energy between two times (J), straight between its edges."""
        times, _, values = zip(*self.edges, strict=True)
        if not times[0] <= t0_s <= t1_s <= times[-1]:
            raise ValueError("the counter was not polled for all of this time")
        return float(np.interp(t1_s, times, values) - np.interp(t0_s, times, values))


def load(rig: Rig, seconds: float, on_s: tuple[float, float], off_s: tuple[float, float]) -> list[tuple[float, float]]:
    """Load the device in bursts and return when each was on (monotonic s).

    Args:
        rig: The device. In a dry run it plays its own load, and this waits.
        seconds: How long.
        on_s: Shortest and longest burst (s).
        off_s: Shortest and longest pause (s).
    """
    begun_s, draw, spans = time.monotonic(), random.Random(0), []
    if rig.played:
        time.sleep(seconds)
        return rig.played.on_spans(begun_s - 1.0, time.monotonic() + 1.0)
    call = Kernels(rig).calls()["bf16"]
    for _ in range(3):
        call()
    rig.wait()
    while time.monotonic() - begun_s < seconds:
        t0_s = time.monotonic()
        until_s = t0_s + draw.uniform(*on_s)
        while time.monotonic() < until_s:
            call()
            rig.wait()
        spans.append((t0_s, time.monotonic()))
        time.sleep(draw.uniform(*off_s))
    return spans


class OnTime:
    """How long a load was on between two times.

    Args:
        spans: When it was on (monotonic s), in order.
    """

    def __init__(self, spans: Sequence[tuple[float, float]]) -> None:
        self._times = np.array([t_s for span in spans for t_s in span])
        lengths = np.array([b_s - a_s for a_s, b_s in spans])
        self._sums = np.repeat(np.cumsum(lengths), 2)
        self._sums[::2] -= lengths

    def between(self, t0_s: float, t1_s: float) -> float:
        """Return the seconds."""
        return float(np.interp(t1_s, self._times, self._sums) - np.interp(t0_s, self._times, self._sums))


def sensor(rig: Rig) -> None:
    """Tick, cost of a read, refresh of the power fields, and which part of a tick is seen."""
    _probe(rig)
    rig.attempt("refresh of the power readings", "ms", lambda: _refresh(rig))
    with CounterPoll(rig) as poll:
        spans = load(rig, rig.pick(90.0, 5.0), (0.005, 0.06), (0.005, 0.06))
    ticks = poll.ticks()
    gaps_ms = [1000 * (b_s - a_s) for a_s, b_s, _ in ticks]
    if len(gaps_ms) < 4 * BINS:
        raise RuntimeError(f"the counter changed {len(poll.edges)} times, {len(gaps_ms)} of them dated: too few")
    rig.row("tick of the counter, polled each ms, median", "ms", statistics.median(gaps_ms))
    rig.row("tick, p5", "ms", quantile(gaps_ms, 0.05), p95=quantile(gaps_ms, 0.95))
    on, tick_s = OnTime(spans), statistics.median(gaps_ms) / 1000
    shares = seen(ticks, tick_s, on)
    most = sorted(range(len(shares)), key=lambda i: -shares[i])
    count = next(n for n in range(1, len(shares) + 1) if sum(shares[i] for i in most[:n]) >= MOST)
    lag = sum(share * (i + 0.5) for i, share in enumerate(shares)) * tick_s / BINS
    rig.row(f"of a tick, what {100 * MOST:.0f} % of its energy comes from", "ms", 1000 * count * tick_s / BINS)
    rig.row("its middle before the edge", "ms", 1000 * lag)
    parts = ", ".join(f"{share:.2f}" for share in shares)
    rig.note(f"weights of the {1000 * tick_s / BINS:.1f} ms parts before an edge, latest first: {parts}")


def seen(ticks: Sequence[tuple[float, float, float]], tick_s: float, on: OnTime) -> list[float]:
    """Return which share of a tick's energy comes from each part of the time before its end, latest first.

    Args:
        ticks: Start, end (s) and energy (J) of each.
        tick_s: Their length.
        on: When the load was on.
    """
    part_s = tick_s / BINS
    rows = [
        [1.0, *(on.between(b_s - (i + 1) * part_s, b_s - i * part_s) / part_s for i in range(REACH * BINS))]
        for _, b_s, _ in ticks
    ]
    powers = [energy_j / (b_s - a_s) for a_s, b_s, energy_j in ticks]
    found = non_negative(np.array(rows), np.array(powers), 300)[1:]
    total = float(found.sum())
    if total <= 0:
        raise ArithmeticError("the counter does not follow the load")
    return [float(weight) / total for weight in found]


def _probe(rig: Rig) -> None:
    from greentrain.power.nvml import NvmlMeter

    meter = NvmlMeter()
    try:
        meter.probe()
        found = meter.sensors[rig.device.index or 0]
    finally:
        meter.close()
    none: Value = "n/a: not found by the probe"
    rig.row("tick, as GreenTrain's probe finds it", "ms", none if found.tick_s is None else 1000 * found.tick_s)
    rig.row("CPU time of a read", "us", none if found.read_cost_s is None else 1e6 * found.read_cost_s)
    rig.row("time between reads that it asks for", "ms", 1000 * found.period_s)
    rig.note(f"{found.device.name}: {found.method}; {found.note}")


def _refresh(rig: Rig) -> None:
    """Poll the power readings under a load that never rests, and report how often they change."""
    import pynvml

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(_uid(rig))

        def instant() -> int:
            return int(pynvml.nvmlDeviceGetFieldValues(handle, [(pynvml.NVML_FI_DEV_POWER_INSTANT, 0)])[0].value.uiVal)

        def usage() -> int:
            return int(pynvml.nvmlDeviceGetPowerUsage(handle))

        for name, read in {"instant": instant, "usage": usage}.items():
            with _loaded(rig):
                until_s, changes, last = time.monotonic() + rig.pick(5.0, 0.5), list[float](), None
                while time.monotonic() < until_s:
                    value = read()
                    if last is not None and value != last:
                        changes.append(time.monotonic())
                    last = value
                    time.sleep(0.001)
            gaps_ms = [1000 * (b_s - a_s) for a_s, b_s in itertools.pairwise(changes)]
            what = f"time between changes of the power reading {name}, median"
            rig.row(what, "ms", statistics.median(gaps_ms) if gaps_ms else "n/a: it never changed")
    finally:
        pynvml.nvmlShutdown()


def _uid(rig: Rig) -> str:
    from greentrain.power.nvml import NvmlMeter

    meter = NvmlMeter()
    try:
        return meter.sensors[rig.device.index or 0].device.uid
    finally:
        meter.close()


@contextlib.contextmanager
def _loaded(rig: Rig, spans: list[tuple[float, float]] | None = None) -> Iterator[None]:
    """Load the device from a thread in the block: a step with a pause for data, 0.33 s on and 0.4 s off."""
    stop = threading.Event()

    def bursts() -> None:
        while not stop.is_set():
            found = load(rig, 0.8, (0.33, 0.33), (0.4, 0.4)) if not rig.dry else None
            if found is None:
                stop.wait(0.1)
            elif spans is not None:
                spans.extend(found)

    thread, begun_s = threading.Thread(target=bursts, daemon=True), time.monotonic()
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        if rig.played and spans is not None:
            spans.extend(rig.played.on_spans(begun_s - 1.0, time.monotonic() + 1.0))


def peers(rig: Rig) -> None:
    """Let all tools that are installed measure the same windows at once; the truth is a load of two levels.

    Its two powers are fitted to all that the counter showed, so a window needs no edge of a tick.
    """
    plan = _plan({0.5: rig.pick(60, 3), 5.0: rig.pick(6, 0)})
    spans: list[tuple[float, float]] = []
    there = [tool for tool in TOOLS if installed(tool)]
    with CounterPoll(rig) as poll, _loaded(rig, spans):
        workers = [Worker("windows", tool, None, scratch=rig.scratch, plan=plan, options={}) for tool in there]
        answers = dict(zip(there, run_together(workers), strict=True))
        time.sleep(0.3)
    ticks, on = poll.ticks(), OnTime(spans)
    first_s, last_s = poll.edges[0][0], poll.edges[-1][0]
    shown = [[b_s - a_s, on.between(a_s, b_s)] for a_s, b_s, _ in ticks]
    energies = np.array([energy_j for _, _, energy_j in ticks])
    powers = non_negative(np.array(shown), energies)
    rig.row("power of the load, off", "W", float(powers[0]), on=float(powers[0] + powers[1]))
    whole_j = poll.energy_j(first_s, last_s)
    truth_j = _truth_j(powers, on, first_s, last_s)
    rig.row("truth against the counter, all of the time", "%", 100 * (truth_j / whole_j - 1))
    lengths = {name.split("/")[0] for name in plan}
    for length in sorted(lengths, key=float):
        found: dict[str, Value] = {}
        for tool, answer in answers.items():
            try:
                found[tool] = _mean_error(answer, length, powers, on)
            except Exception as error:
                found[tool] = failed(error)
        count = sum(name.startswith(f"{length}/") for name in plan)
        ours = found.pop("greentrain", "not installed")
        others: dict[str, Any] = {tool: found.get(tool, "not installed") for tool in TOOLS if tool != "greentrain"}
        rig.row(f"{float(length):g} s windows (n={count}), mean error", "%", ours, **others)


def _plan(counts: Mapping[float, int]) -> dict[str, tuple[float, float]]:
    """Return windows one after another, with random pauses, so that they start anywhere in a tick."""
    draw, plan, at_s = random.Random(0), {}, 0.0
    for length_s, count in counts.items():
        for i in range(count):
            at_s += 0.01 + 0.1 * draw.random()
            plan[f"{length_s}/{i}"] = (at_s, at_s + length_s)
            at_s += length_s
    return plan


def _truth_j(powers: Floats, on: OnTime, t0_s: float, t1_s: float) -> float:
    return float(powers[0] * (t1_s - t0_s) + powers[1] * on.between(t0_s, t1_s))


def _mean_error(answer: Mapping[str, Any], length: str, powers: Floats, on: OnTime) -> Value:
    if "error" in answer:
        return str(answer["error"])
    errors: list[float] = []
    for name, (t0_s, t1_s) in answer["spans"].items():
        if name.startswith(f"{length}/"):
            found = answer["energies_j"].get(name)
            if found is None:
                return "n/a: a window was not measured"
            errors.append(abs(100 * (sum(found) / _truth_j(powers, on, t0_s, t1_s) - 1)))
    return sum(errors) / len(errors)
