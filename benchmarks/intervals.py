"""How often 90 % intervals of joules and grams hold: random runs whose truth is known, in counted time.

    python benchmarks/intervals.py                    # a thousand runs
    python benchmarks/intervals.py --quick            # sixty

Each run is drawn here, by means that the intervals know nothing of: loads in steps, in bursts and in waves; one to
four GPUs with counters that see all or a quarter of the time, or with power alone; processors that are read or
modelled; sensors that are off by anything that their data sheets allow; sensors that fail midway, for a while or for
good; a building whose overhead follows season and hour; hours of seven real grids; devices of another life than was
assumed. The readings go through the curves, the books and the reader as those of a real run.
"""

import argparse
import concurrent.futures
import dataclasses
import functools
import itertools
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.held_traces import unpacked
from benchmarks.marks import facts, put
from benchmarks.metering import machine
from benchmarks.tables import Table
from greentrain.carbon.constant import ANNUAL_ERROR, ConstantSignal
from greentrain.carbon.trace import TraceRows, read_trace
from greentrain.carbon.typical import TypicalSignal
from greentrain.ledger.bookkeeper import Bookkeeper, Mark
from greentrain.ledger.embodied import EmbodiedRate
from greentrain.ledger.journal import ATTRIBUTION, SHARED, entry_to_json
from greentrain.ledger.pue import ConstantPue
from greentrain.ledger.reader import RankBooks
from greentrain.ledger.uncertainty import Interval, intervals
from greentrain.power.sampler import EnergyCurve
from greentrain.types import S_PER_HOUR, CarbonSignal, Device, DeviceKind, PowerSample, Provenance, Sensor

Floats = npt.NDArray[np.float64]
FINE_S = 0.005
BOOK_S = 10.0
LENGTHS_S = (45.0, 180.0)
"""Of the shortest and the longest run (s)."""
PHASES = ("data", "forward", "backward", "optimizer")
BAR = (0.87, 0.93)
ZONES = {
    "us_caiso_2022_eia.csv": "CISO",
    "us_pjm_2022_eia.csv": "PJM",
    "us_miso_2022_eia.csv": "MISO",
    "us_ercot_2022_eia.csv": "ERCO",
    "us_nyiso_2022_eia.csv": "NYIS",
    "us_soco_2022_eia.csv": "SOCO",
    "us_bpat_2022_eia.csv": "BPAT",
}
FAILS, GOES_ON = "sensor fails midway, any power after", "sensor fails midway, same power after"
WELL = "no sensor fails"


@dataclass(kw_only=True)
class Outcome:
    """One run: of each figure whether its interval held (None: it has no bound on one side)."""

    case: str
    held: dict[str, list[bool]] = field(default_factory=dict)
    wide: dict[str, list[float]] = field(default_factory=dict)
    """Width of intervals / truth."""

    def look(self, figure: str, interval: Interval | None, truth: float) -> None:
        """Note whether an interval that has both bounds holds the truth."""
        if interval is not None and interval.low is not None and interval.high is not None and truth > 0:
            self.held.setdefault(figure, []).append(interval.low <= truth <= interval.high)
            self.wide.setdefault(figure, []).append((interval.high - interval.low) / truth)


@dataclass(kw_only=True)
class Load:
    """What the devices do: phases one after the other, and how high the load is (0 to 1) at each moment."""

    bounds_s: Floats
    level: Floats


def load_of(chance: np.random.Generator, length_s: float) -> Load:
    """Return a load in steps, in bursts or in waves."""
    t_s = np.arange(0.0, length_s, FINE_S)
    step_s = float(np.exp(chance.uniform(np.log(0.15), np.log(8.0))))
    shares = chance.dirichlet([1.0, 4.0, 8.0, 1.5])
    jitter = chance.lognormal(0.0, chance.uniform(0.01, 0.2), (int(2 * length_s / step_s) + 9, 4))
    lengths_s = step_s * shares * jitter
    bounds_s = np.concatenate([[0.0], np.cumsum(lengths_s.ravel())])
    phase = (np.searchsorted(bounds_s, t_s, side="right") - 1) % 4
    kind = chance.integers(3)
    level = chance.uniform([0.05, 0.4, 0.5, 0.2], [0.3, 0.9, 1.0, 0.7])[phase]
    if kind == 1:
        changes = np.cumsum(chance.exponential(chance.uniform(0.2, 5.0), int(length_s * 8)))
        high = np.searchsorted(changes, t_s) % 2
        level = level * np.where(high, 1.0, chance.uniform(0.2, 0.8))
    elif kind == 2:
        wave = np.sin(2 * np.pi * t_s / chance.uniform(20.0, 2 * length_s))
        level = level * (1 - chance.uniform(0.0, 0.4) * wave**2)
    own = np.convolve(chance.normal(0.0, 1.0, len(t_s)), np.ones(8) / 8**0.5, mode="same")
    level = np.clip(level * (1 + chance.uniform(0.0, 0.08) * own), 0.0, 1.0)
    return Load(bounds_s=bounds_s[bounds_s < length_s], level=level)


@dataclass(kw_only=True)
class Metered:
    """A device, its true energy, and what its sensor says."""

    sensor: Sensor
    true_j: Floats
    """Cumulative, by ``FINE_S``."""
    samples: list[PowerSample]


def cumulative(power_w: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(power_w) * FINE_S])


def gpu(chance: np.random.Generator, load: Load, number: int, fault: tuple[float, float, float | None]) -> Metered:
    """Return a GPU whose sensor is off by what its data sheet allows, and fails from one time to another.

    Args:
        chance: Random numbers.
        load: What it does.
        number: Its place on the node.
        fault: First and last moment without a reading (s), and its power in between; None: what the load says.
    """
    limit_w, stated = float(chance.choice([300.0, 400.0, 700.0, 1000.0])), float(chance.choice([0.02, 0.05]))
    idle_w = limit_w * chance.uniform(0.08, 0.2)
    power_w = idle_w + (limit_w - idle_w) * load.level
    t_s = np.arange(len(power_w)) * FINE_S
    dead = (t_s >= fault[0]) & (t_s < fault[1])
    if fault[2] is not None:
        power_w = np.where(dead, fault[2] * limit_w, power_w)
    true_j = cumulative(power_w)
    off = 1 + stated * chance.uniform(-1, 1)
    way = chance.integers(3)  # a counter that sees all, one that sees a quarter, power alone
    uid = f"GPU-{number}"
    sensor = Sensor(
        device=Device(uid=uid, kind=DeviceKind.GPU, name=f"GPU of {limit_w:g} W"),
        provenance=Provenance.MEASURED,
        method="NVML energy counter" if way < 2 else "NVML instant power",
        period_s=0.1 if way < 2 else 0.02,
        tick_s=0.1 if way < 2 else None,
        uncertainty=stated,
        seen_share=0.25 if way == 1 else None,
        limit_w=limit_w,
    )
    read_s = np.arange(0.097 * chance.random(), t_s[-1], 0.097)
    said: list[tuple[float | None, float | None]]
    if way == 2:
        said = [(None, float(off * power_w[int(at_s / FINE_S)])) for at_s in read_s]
    else:
        seen_s, late_s = 0.1 * (0.25 if way == 1 else 1.0), chance.uniform(0.0, 0.02)
        ticks_s = np.arange(-0.1 * chance.random(), t_s[-1] + 0.1, 0.1)
        fine_s = np.arange(len(true_j)) * FINE_S
        ends_j, starts_j = (np.interp(ticks_s - late_s - back_s, fine_s, true_j) for back_s in (0.0, seen_s))
        counter_j = 1e5 + off * np.cumsum((ends_j - starts_j) / seen_s * 0.1)
        at = np.searchsorted(ticks_s, read_s, side="right") - 1
        said = [(float(counter_j[i]), None) for i in at]
    samples = [
        PowerSample(uid, float(at_s)) if fault[0] <= at_s < fault[1] else PowerSample(uid, float(at_s), *row)
        for at_s, row in zip(read_s, said, strict=True)
    ]
    return Metered(sensor=sensor, true_j=true_j, samples=samples)


def host(chance: np.random.Generator, load: Load) -> list[Metered]:
    """Return processors and memory: two packages of one type that are read, or a model."""
    t_s = np.arange(len(load.level)) * FINE_S
    read_s = np.arange(0.0, t_s[-1], 0.5)
    tdp_w = chance.uniform(100.0, 400.0)
    draws_w = tdp_w * (0.15 + 0.5 * chance.uniform() * (1 - load.level))
    if chance.random() < 0.5:
        rows = [(f"rapl:package-{i}", DeviceKind.CPU, 0.05, Provenance.MEASURED, draws_w) for i in range(2)]
    else:
        rows = [("model:cpu", DeviceKind.CPU, float(chance.choice([0.3, 0.5])), Provenance.MODELLED, draws_w)]
    rows.append(("model:dram", DeviceKind.DRAM, 0.6, Provenance.MODELLED, np.full(len(t_s), chance.uniform(3.0, 40.0))))
    out, off = [], 1 + 0.05 * chance.uniform(-1, 1)
    limits_w = {DeviceKind.CPU: tdp_w * (1 if len(rows) == 3 else 1 + rows[0][2]), DeviceKind.DRAM: None}
    for uid, kind, stated, provenance, said_w in rows:
        said_j, measured = cumulative(said_w), provenance is Provenance.MEASURED
        true_j = said_j / off if measured else said_j * (1 + stated * chance.uniform(-1, 1))
        sensor = Sensor(
            device=Device(uid=uid, kind=kind, name=f"host's {kind}"),
            provenance=provenance,
            method="RAPL" if measured else "model",
            period_s=0.5,
            tick_s=0.001 if measured else None,
            uncertainty=stated,
            limit_w=limits_w[kind],
        )
        fine_s = np.arange(len(said_j)) * FINE_S
        samples = [PowerSample(uid, at_s, float(np.interp(at_s, fine_s, said_j))) for at_s in read_s.tolist()]
        out.append(Metered(sensor=sensor, true_j=true_j, samples=samples))
    return out


@functools.cache
def year(name: str) -> TraceRows:
    """Return the hours of a grid."""
    return read_trace(unpacked() / name)


def grid(chance: np.random.Generator) -> tuple[CarbonSignal, float, float]:
    """Return a signal, the start of the run (s since the epoch), and the true intensity then (g/kWh)."""
    name = str(chance.choice(sorted(ZONES)))
    rows = year(name)
    hour = int(chance.integers(len(rows.values) - 1))
    if chance.random() < 0.6:
        signal: CarbonSignal = TypicalSignal(ZONES[name])
    else:
        mean = float(np.mean(rows.values))
        signal = ConstantSignal(mean, zone=name, source="annual average", relative_error=ANNUAL_ERROR)
    return signal, rows.t_unix_s[hour] + 1.0, rows.values[hour]


def one(seed: int) -> Outcome:
    """Let a random run happen and look whether its intervals hold."""
    chance = np.random.default_rng([20261123, seed])
    length_s = float(np.exp(chance.uniform(*np.log(LENGTHS_S))))
    load = load_of(chance, length_s)
    length_s = len(load.level) * FINE_S
    case = str(chance.choice([WELL, FAILS, GOES_ON], p=[0.6, 0.3, 0.1]))
    devices = host(chance, load)
    for number in range(int(chance.choice([1, 2, 4]))):
        fault: tuple[float, float, float | None] = (np.inf, np.inf, None)
        if number == 0 and case != WELL:
            first_s = chance.uniform(0.2, 0.9) * length_s
            last_s = np.inf if chance.random() < 0.5 else chance.uniform(first_s, length_s)
            fault = (first_s, last_s, chance.uniform() if case == FAILS else None)
        devices.append(gpu(chance, load, number, fault))
    signal, start_s, true_g_per_kwh = grid(chance)
    pue = float(chance.choice([1.0, chance.uniform(1.05, 1.8)]))
    season, hour = np.sin(2 * np.pi * chance.random(2))
    true_pue = 1 + (pue - 1) * (1 + 0.2 * season + 0.1 * hour)
    books = booked(devices, load, length_s, signal, start_s, pue)
    found, outcome = intervals([books]), Outcome(case=case)
    at_end = {each.sensor.device.uid: float(each.true_j[-1]) for each in devices}
    whole_j, g_per_j = sum(at_end.values()), true_pue * true_g_per_kwh / 3.6e6
    outcome.look("energy of the run", found.total[0], whole_j)
    outcome.look("operational grams of the run", found.total[1], whole_j * g_per_j)
    for (_, uid), (energy_j, operational_g) in found.devices.items():
        outcome.look(f"energy of a device, {'host' if ':' in uid else 'GPU'}", energy_j, at_end[uid])
        outcome.look("operational grams of a device", operational_g, at_end[uid] * g_per_j)
    fine_s = np.arange(len(devices[0].true_j)) * FINE_S
    cuts_s = np.append(load.bounds_s, length_s)
    true_j = sum(np.diff(np.interp(cuts_s, fine_s, each.true_j)) for each in devices)
    for i, phase in enumerate(PHASES):
        outcome.look("energy of a phase", found.phases[phase][0], float(np.sum(true_j[i::4])))
    made_g = embodied_truth(chance, length_s, len(at_end))
    outcome.look("emissions of the run", found.emissions_g, whole_j * g_per_j + made_g)
    return outcome


RATE = EmbodiedRate(low_g_per_h=2.5, mid_g_per_h=6.0, high_g_per_h=11.0, source="benchmark")


def embodied_truth(chance: np.random.Generator, length_s: float, devices: int) -> float:
    """Return embodied grams of another life and make than was assumed."""
    g_per_h = RATE.low_g_per_h + (RATE.high_g_per_h - RATE.low_g_per_h) * chance.beta(1.2, 1.8)
    return float(g_per_h * devices * length_s / S_PER_HOUR)


def booked(
    devices: Sequence[Metered], load: Load, length_s: float, signal: CarbonSignal, start_s: float, pue: float
) -> RankBooks:
    """Book a run as a session does, and read its records."""
    curves = {each.sensor.device.uid: EnergyCurve(each.sensor, 0.0) for each in devices}
    for each in devices:
        if each.sensor.tick_s is not None:
            curves[each.sensor.device.uid].use_tick(each.sensor.tick_s)
    ledger = Bookkeeper(t0_s=0.0, unix_offset_s=start_s, signal=signal, facility=ConstantPue(pue))
    marks = [Mark(0.0, "begin", PHASES[0], 1)]
    for i, t_s in enumerate(load.bounds_s.tolist()[1:], 1):
        marks += [Mark(t_s, "end", PHASES[(i - 1) % 4], i), Mark(t_s, "begin", PHASES[i % 4], i + 1)]
    ledger.timeline.add(marks)
    sensors = []
    for each in devices:
        record = {item.name: getattr(each.sensor, item.name) for item in dataclasses.fields(each.sensor)}
        named = {name: str(getattr(each.sensor.device, name)) for name in ("uid", "kind", "name")}
        sensors.append(record | named | {"embodied_g_per_h": RATE.to_dict()})
    out = RankBooks()
    out.add({"kind": "open", "host": "node", "t": start_s, "sensors": sensors})
    rates = dict.fromkeys(curves, RATE)
    left = {each.sensor.device.uid: iter(each.samples) for each in devices}
    held: dict[str, PowerSample | None] = {uid: next(samples, None) for uid, samples in left.items()}
    for book_s in [*np.arange(BOOK_S, length_s - 2.0, BOOK_S).tolist(), length_s]:
        for uid, curve in curves.items():
            sample = held[uid]
            while sample is not None and sample.t_s < min(book_s + 1.0, length_s):
                curve.append(sample)
                sample = next(left[uid], None)
            held[uid] = sample
            if curve.frontier_s < book_s:
                curve.finish(book_s) if book_s == length_s else curve.advance_missing(book_s)
        out.add(entry_to_json(ledger.book(book_s, curves, embodied=rates, last=book_s == length_s)))
    for uid, told in ledger.attributions().items():
        out.add({"kind": "event", "name": ATTRIBUTION, "t": start_s, "device": uid, **told})
    for uid, phases in ledger.shared().items():
        out.add({"kind": "event", "name": SHARED, "t": start_s, "device": uid, "phases": phases})
    return out


def tables(outcomes: Sequence[Outcome]) -> list[Table]:
    """Return how often intervals held, by figure and case."""
    cases = ["all", WELL, FAILS, GOES_ON]
    figures = dict.fromkeys(itertools.chain.from_iterable(outcome.held for outcome in outcomes))
    rows, passed, missed = [], 0, 0
    for figure in figures:
        for case in cases:
            chosen = [outcome for outcome in outcomes if case in ("all", outcome.case)]
            held = [yes for outcome in chosen for yes in outcome.held.get(figure, [])]
            wide = [share for outcome in chosen for share in outcome.wide.get(figure, [])]
            if not held:
                continue
            share = float(np.mean(held))
            judged = figure.endswith("of the run") and case != GOES_ON
            fine = BAR[0] <= share <= BAR[1]
            passed, missed = passed + (judged and fine), missed + (judged and not fine)
            verdict = ("PASS" if fine else "MISS") if judged else ""
            shown = [f"{100 * value:.1f} %" for value in (share, float(np.median(wide)))]
            rows.append((figure, case, f"{len(held)}", *shown, verdict))
    head = ("figure", "runs", "intervals", "held", "median width / truth", "87 to 93 %")
    notes = [
        f"{len(outcomes)} runs of 45 to 180 s in counted time; what data sheets and models allow, and what a GPU draws"
        " after its sensor has failed, are drawn evenly",
        "intensities are real hours of seven grids in 2022, against the typical year of the zone or its annual average",
    ]
    title = "90 % intervals"
    return [Table(case="intervals", title=title, head=head, rows=rows, notes=notes, passed=passed, missed=missed)]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="sixty runs, not a thousand")
    parser.add_argument("--into", type=Path, help="also put the table between its marks in this text")
    args = parser.parse_args(argv)
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        outcomes = list(pool.map(one, range(60 if args.quick else 1000), chunksize=10))
    about = {**machine("benchmarks/intervals.py"), "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}
    text = f"{facts(about)}\n\n" + "\n\n".join(table.markdown() for table in tables(outcomes))
    print(text)
    if args.into is not None:
        put(text, args.into, "intervals")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
