"""Case phase: joules of phases that are shorter than a sensor's ticks, of runs that take no time.

Everything happens on a clock that is only counted: the device draws, its counter ticks, and each tool reads it by its
own code when it would. What a GPU does behind its host is left out: begin and end of a phase are the device's.
"""

import concurrent.futures
import functools
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.metering_common import CODECARBON, GREENTRAIN, ZEUS, Bench, Row, Value, installed, quantile
from benchmarks.metering_limit import limits
from greentrain.carbon.constant import ConstantSignal
from greentrain.ledger.bookkeeper import TOLD, Bookkeeper
from greentrain.ledger.pue import ConstantPue
from greentrain.power.sampler import EnergyCurve
from greentrain.types import Attribution, Device, DeviceKind, Provenance, Sensor
from tests.power.phased_device import NAMES, Floats, PhasedDevice, Recording

UID = "GPU-0"
STRAIGHT = "straight between ticks as before"
"""What GreenTrain did before phases were told below the tick."""
KNOWN = "the least possible where window and lag are known"
FOUND = "the least possible where they are to be found"
"""What an oracle says that knows how the noise is made."""
STEPS_S = (0.06, 0.15, 0.4, 1.2)
"""Bounds of the groups of step lengths (s)."""
BOOK_S = 5.0
WINDOW_S = 0.5
WINDOWS = 40
"""Windows a run."""
COVERED = 1.96
"""Standard errors in an interval that holds in 95 of 100 cases."""


@dataclass(kw_only=True)
class Run:
    """One random run and by how much each tool's figures are off."""

    device: PhasedDevice
    phases: dict[str, dict[str, float]] = field(default_factory=dict)
    """Relative error of the joules by tool and phase."""
    windows: dict[str, float] = field(default_factory=dict)
    """Mean absolute relative error of windows by tool."""
    told: dict[str, dict[str, float]] = field(default_factory=dict)
    """Standard error of the phases that each of GreenTrain and the oracles says, of those that it can tell."""


def phase(bench: Bench) -> list[Row]:
    """Error of the joules by phase and of short windows, over random runs."""
    count = int(bench.pick(500, 4))
    length_s = bench.pick(120.0, 30.0)
    devices = [random_device(seed, length_s) for seed in range(count)]
    if bench.quick:
        runs = [one(device) for device in devices]
    else:
        with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
            runs = list(pool.map(one, devices, chunksize=10))
    bench.notes.append(
        f"phase: {count} runs of {length_s:.0f} s in counted time, half of each sensor; jitter 0.2 to 8 %; data,"
        " forward, backward and optimizer take 7, 28, 55 and 10 % of a step; noise of 5 to 40 W that hangs together"
        " over 30 ms; told 0 to 20 ms late; peers open a window a phase; those told are not called blurred, and by the"
        f" oracle those that it knows to a standard error of {100 * TOLD:.0f} %, as by GreenTrain; the least possible"
        " is what an oracle says that knows how the noise is made; out of reach: it misses the bar itself, where it has"
        " to find window and lag, as every tool has"
    )
    return [row for sees in (1.0, 0.25) for row in rows([run for run in runs if run.device.sees == sees], sees)]


def random_device(seed: int, length_s: float) -> PhasedDevice:
    """Return a device as it may be: half of them with a sensor that sees a quarter of the time."""
    chance = np.random.default_rng(1000 + seed)
    return PhasedDevice(
        seed=seed,
        length_s=length_s,
        step_s=float(np.exp(chance.uniform(np.log(STEPS_S[0]), np.log(STEPS_S[-1])))),
        jitter=float(np.exp(chance.uniform(np.log(0.002), np.log(0.08)))),
        noise_w=float(chance.uniform(5.0, 40.0)),
        sees=(1.0, 0.25)[seed % 2],
        late_s=float(chance.uniform(0.0, 0.02)),
        powers_w=tuple(float(watts * chance.uniform(0.8, 1.25)) for watts in PhasedDevice.powers_w),
    )


def one(device: PhasedDevice) -> Run:
    """Let a device run once, and each tool measure it."""
    recording, run = device.made(), Run(device=device)
    books, curve, booked_j = _booked(recording)
    t0_s, t1_s = float(recording.ticks_s[0]), books.t_s
    true_j = recording.by_phase(t0_s, t1_s)
    chance = np.random.default_rng(device.seed)
    starts_s = chance.uniform(10.0, t1_s - WINDOW_S, WINDOWS)
    spans_s = np.stack([starts_s, starts_s + WINDOW_S], axis=1)
    truth_j = recording.energy_j(*spans_s.T)
    starts_s = np.clip(recording.bounds_s, t0_s, t1_s)
    phases_s = np.stack([starts_s, np.append(starts_s[1:], t1_s)], axis=1)

    def seen(tool: str, by_phase_j: Mapping[str, float], windows_j: Floats) -> None:
        run.phases[tool] = {name: by_phase_j[name] / true_j[name] - 1 for name in NAMES}
        run.windows[tool] = float(np.mean(np.abs(windows_j / truth_j - 1)))

    between = functools.partial(books.between, UID, curve)
    seen(GREENTRAIN, booked_j, np.array([between(*span)[0] for span in spans_s.tolist()]))
    readers: dict[str, Callable[[Floats], Floats]] = {STRAIGHT: lambda times_s: np.diff(curve.at(times_s)[0])[:, 0]}
    readers |= {tool: make(recording) for tool, make in PEERS.items() if installed(tool)}
    for tool, windows_j in readers.items():
        each_j = windows_j(phases_s)
        seen(tool, {name: float(each_j[i :: len(NAMES)].sum()) for i, name in enumerate(NAMES)}, windows_j(spans_s))
    attributed = books.attributions().get(UID, {}).get("phases", {})
    run.told[GREENTRAIN] = {n: told["error"] for n, told in attributed.items() if told["how"] != Attribution.BLURRED}
    for about, limit in zip((KNOWN, FOUND), limits(recording, t0_s, t1_s), strict=True):
        run.phases[about] = {n: float(j / true_j[n] - 1) for n, j in zip(NAMES, limit.energy_j, strict=True)}
        errors = {n: float(e / j) for n, j, e in zip(NAMES, limit.energy_j, limit.error_j, strict=True)}
        run.told[about] = {name: error for name, error in errors.items() if 0 <= error <= TOLD}
    return run


def _booked(recording: Recording) -> tuple[Bookkeeper, EnergyCurve, dict[str, float]]:
    """Book a recording from its first tick on as a run does; return its books, its curve and the joules by phase."""
    device, t0_s = recording.device, float(recording.ticks_s[0])
    about = Device(uid=UID, kind=DeviceKind.GPU, name=UID)
    sensor = Sensor(device=about, provenance=Provenance.MEASURED, method="counter", period_s=device.tick_s)
    curve = EnergyCurve(sensor, t0_s)
    curve.use_tick(device.tick_s, t0_s)
    signal = ConstantSignal(360.0, zone="none", source="none")
    books = Bookkeeper(t0_s=t0_s, unix_offset_s=0.0, signal=signal, facility=ConstantPue(1.0))
    books.timeline.add(recording.marks())
    booked_j, samples, due_s = dict.fromkeys((*NAMES, "other"), 0.0), recording.samples(UID), BOOK_S
    for sample in samples:
        curve.append(sample)
        if sample.t_s >= due_s or sample is samples[-1]:
            due_s += BOOK_S
            entry = books.book(curve.frontier_s, {UID: curve}, last=sample is samples[-1])
            for name, joules in entry.devices[UID].phases.items():
                booked_j[name] += joules
    return books, curve, booked_j


class _Card:
    """What a driver says of a recording at a time that is only counted."""

    def __init__(self, recording: Recording) -> None:
        self._ticks_s, self._counter_j = recording.ticks_s, recording.counter_j
        self.now_s = 0.0

    def energy_mj(self) -> int:
        found = int(np.searchsorted(self._ticks_s, self.now_s, side="right")) - 1
        return round(1000 * float(self._counter_j[max(found, 0)]))

    def power_mw(self) -> int:
        """Return the mean of the last second, as a driver does."""
        joules = np.interp([self.now_s - 1.0, self.now_s], self._ticks_s, self._counter_j)
        return round(1000 * float(joules[1] - joules[0]))


def _zeus(recording: Recording) -> Callable[[Floats], Floats]:
    from zeus.monitor import energy as zeus_energy

    card = _Card(recording)

    class Gpus:
        def supports_get_total_energy_consumption(self, index: int) -> bool:
            return True

        def get_total_energy_consumption(self, index: int) -> int:
            return card.energy_mj()

        def get_instant_power_usage(self, index: int) -> int:
            return card.power_mw()

    monitor = object.__new__(zeus_energy.ZeusMonitor)  # its own arithmetic, without the machine that it looks for
    monitor.__dict__ |= {"gpu_indices": [0], "cpu_indices": [], "gpus": Gpus(), "soc_is_present": False}
    monitor.__dict__ |= {"power_monitor": None, "log_file": None, "approx_instant_energy": True}
    monitor.measurement_states = {}

    def windows_j(spans_s: Floats) -> Floats:
        wall_time, found = zeus_energy.time, []
        zeus_energy.time = lambda: card.now_s
        try:
            for t0_s, t1_s in spans_s.tolist():
                card.now_s = t0_s
                monitor.begin_window("window", sync_execution=False)
                card.now_s = t1_s
                found.append(monitor.end_window("window", sync_execution=False).gpu_energy[0])
        finally:
            zeus_energy.time = wall_time
        return np.array(found)

    return windows_j


def _codecarbon(recording: Recording) -> Callable[[Floats], Floats]:
    from codecarbon.core.gpu_device import GPUDevice
    from codecarbon.core.units import Time

    card = _Card(recording)

    class Gpu(GPUDevice):
        def _init_static_details(self) -> None:
            self._gpu_name = self._uuid = UID

        def _get_total_energy_consumption(self) -> int:
            return card.energy_mj()

        def _get_power_usage(self) -> int:
            return card.power_mw()

    gpu = Gpu(handle=None, gpu_index=0)

    def windows_j(spans_s: Floats) -> Floats:
        found = []
        for t0_s, t1_s in spans_s.tolist():
            card.now_s = t0_s
            gpu.start()
            card.now_s = t1_s
            found.append(3.6e6 * gpu.delta(Time.from_seconds(t1_s - t0_s))["delta_energy_consumption"].kWh)
        return np.array(found)

    return windows_j


PEERS: Mapping[str, Callable[[Recording], Callable[[Floats], Floats]]] = {CODECARBON: _codecarbon, ZEUS: _zeus}


def rows(runs: Sequence[Run], sees: float) -> list[Row]:
    """Return the lines of a sensor that sees a share of the time; bars are for steps of all lengths together."""
    sensor = "sensor sees all" if sees == 1 else f"sensor sees {100 * sees:.0f} %"
    made = _lines(runs, f"{sensor}, steps of {_text(STEPS_S[0])} to {_text(STEPS_S[-1])}", sees, bars=True)
    for low_s, high_s in itertools.pairwise(STEPS_S):
        some = [run for run in runs if low_s <= run.device.step_s < high_s]
        if some:
            made += _lines(some, f"{sensor}, steps of {_text(low_s)} to {_text(high_s)}", sees, bars=False)
    return made


def _lines(runs: Sequence[Run], about: str, sees: float, *, bars: bool) -> list[Row]:
    about, made = f"{about} (n={len(runs)})", []

    def add(what: str, values: Mapping[str, Value], bar: float | None, least: Value = None) -> None:
        known = least if bars and isinstance(least, float) else None
        made.append(Row(case="phase", what=what, unit="%", values=values, bar=bar if bars else None, least=known))

    def line(what: str, value: Callable[[str], Value], bar: float | None = None, least: Value = None) -> None:
        values: dict[str, Value] = {GREENTRAIN: value(GREENTRAIN)}
        values |= {tool: value(tool) if installed(tool) else "not installed" for tool in PEERS}
        add(what, values, bar, least)
        if bars:
            lone(f"{what}, {STRAIGHT}", value(STRAIGHT))

    def lone(what: str, value: Value, bar: float | None = None, least: Value = None) -> None:
        add(what, {GREENTRAIN: value}, bar, least)

    for names, bar in ((("forward", "backward"), 2.0), (("optimizer",), 6.0), (("data",), None)):
        what = f"{' and '.join(names)}, {about}"
        for told in (False, True):
            error = f"{what}: p90 error{' of those told' if told else ''}"
            ours, known, found = (_off(runs, names, _p90, tool, told=told) for tool in (GREENTRAIN, KNOWN, FOUND))
            if told:
                lone(error, ours, bar, found)
            else:
                line(error, functools.partial(_off, runs, names, _p90), bar, found)
            lone(f"{error}, {KNOWN}", known)
            lone(f"{error}, {FOUND}", found)
        if bars:
            line(f"{what}: mean error", functools.partial(_off, runs, names, _mean))
    line(
        f"0.5 s windows, {about}: mean error",
        lambda tool: 100 * _mean([run.windows[tool] for run in runs]),
        2.5 if sees < 1 else None,
    )
    outside = [
        abs(run.phases[GREENTRAIN][name]) > COVERED * error
        for run in runs
        for name, error in run.told[GREENTRAIN].items()
    ]
    missed = 100 * _mean(outside) if outside else "none is told"
    lone(f"phases outside their own 95 % interval, {about}", missed, 10.0)
    for tool, limit in ((GREENTRAIN, ""), (KNOWN, f", {KNOWN}"), (FOUND, f", {FOUND}")):
        told_share = _mean([len(run.told[tool]) / len(NAMES) for run in runs])
        lone(f"phases that are called blurred, {about}{limit}", 100 * (1 - told_share))
    return made


def _off(
    runs: Sequence[Run],
    names: Sequence[str],
    of: Callable[[list[float]], float],
    tool: str,
    *,
    told: bool = False,
) -> Value:
    """Return a figure of the absolute errors (%) of some phases, or of those alone that the tool can tell."""
    off = [100 * abs(run.phases[tool][n]) for run in runs for n in names if not told or n in run.told[tool]]
    return of(off) if off else "none is told"


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _p90(values: Sequence[float]) -> float:
    return quantile(values, 0.9)


def _text(step_s: float) -> str:
    return f"{step_s:g} s" if step_s >= 1 else f"{1000 * step_s:.0f} ms"
