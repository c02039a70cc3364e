"""Carbon, speed and quality of the same runs: static BF16, static FP8, CarbonGear and mpc, in one table.

    python benchmarks/carbon_quality.py                              # ten to fifteen minutes on one core
    python benchmarks/carbon_quality.py --out build/carbon_quality   # also a picture and a CSV
    python benchmarks/carbon_quality.py --into docs/gears-benchmarks.md
    python benchmarks/carbon_quality.py --device cuda --model-size 1b --steps 20000 --seeds 5

A Llama-style GPT (RMSNorm, rotary positions, SwiGLU) learns Python's source under a `GreenSession` that follows a
recorded grid, replayed fast. Each seed has another start in the year; its arms share start, weights and batches. Grams
and joules are the ledger's, loss and perplexity those of the same run.

What is measured and what is not, on a CPU: losses are measured (FP8 emulated: operands are FP8, products are added in
FP32). Time and joules are those of a device that nobody has here, one GPU of the assumed H100 table of
`greentrain.policy.action_sources`: its FP8 is 1.35 times as fast as BF16 at the same power (published for torchtitan),
and paused it is given back and draws nothing. Its clock passes with steps, however long they take here, and with
pauses, which a busy machine ends late by a fraction of a second (some minutes of the grid). The speed of BF16 is a
scale only. With ``--device cuda`` clock, joules and the table of gears are the card's.

Differences from static BF16 have Welch's intervals, 95 % for all of the table together (Bonferroni); * marks those that
Holm's test tells apart at 5 %. What varies with start, weights and batches is compared with static BF16 of the same
seed, so that Welch's test there is that of one sample. The target loss is fixed by static BF16 alone: what all of its
runs have reached at three quarters of their steps.
"""

import argparse
import itertools
import math
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import yaml
from scipy.special import stdtr, stdtrit
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.figures import Line, Panel, Row, Sheet, write
from benchmarks.held_traces import unpacked
from benchmarks.marks import facts, put
from benchmarks.metering import machine
from benchmarks.tables import Table, log
from greentrain import GreenSession
from greentrain.ledger.reader import read_run
from greentrain.policy.action_sources import BOARD_W, FP8_SPEEDUP, NODE_W
from greentrain.simulator.grid_trace import GridTrace
from greentrain.simulator.jobs import windows
from greentrain.types import S_PER_HOUR, Device, DeviceKind, PowerSample, Provenance, Sensor
from recipes.common.data import Blocks, Corpus, corpus
from recipes.common.model import Llama, Size, build_optimizer

ALPHA: Final = 0.05
JOB_H: Final = 24.0
"""Grid hours of static BF16."""
SLACK: Final = 1.5
"""Deadline over that."""
DECIDE_S: Final = 1800.0
PUE: Final = 1.2
STEP_S: Final = 0.06
"""Device time of a step in BF16: a scale, long enough that a look of a pause (0.25 s) is 20 minutes of the grid."""
DEVICE_W: Final = (NODE_W + 8 * BOARD_W) / 8
"""One GPU at work with its share of the node (W); assumed, in both gears."""
TARGET_AT: Final = 0.75
"""Share of its steps after which static BF16 sets the target loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A model and how it is trained."""

    width: int
    layers: int
    heads: int
    context: int
    batch: int
    vocab: int
    peak: float
    steps: int


SCALES: Final[Mapping[str, Scale]] = {
    "tiny": Scale(width=64, layers=2, heads=2, context=64, batch=8, vocab=512, peak=4e-3, steps=300),
    "small": Scale(width=320, layers=8, heads=5, context=128, batch=16, vocab=2048, peak=1e-3, steps=2000),
    "125m": Scale(width=768, layers=12, heads=12, context=1024, batch=16, vocab=8192, peak=6e-4, steps=5000),
    "1b": Scale(width=2048, layers=22, heads=32, context=2048, batch=16, vocab=32_000, peak=4e-4, steps=20_000),
}
"""Sizes by name. The text has some 3 million tokens, so large models see it many times."""

BASE: Final = "static BF16"
ARMS: Final[Mapping[str, Mapping[str, Any]]] = {
    BASE: {"policy": {"name": "static", "gear": "bf16"}},
    "static FP8": {"policy": {"name": "static", "gear": "fp8"}},
    "CarbonGear as printed": {"policy": {"name": "carbongear-printed"}},
    "mpc": {"policy": {"name": "mpc"}},
    "mpc, 35 % FP8": {"policy": {"name": "mpc"}, "precision": {"fp8_max_share": 0.35}},
}
"""CarbonGear as corrected decides as mpc does where no change of width costs time (greentrain/policy/carbongear.py)."""


class AssumedDevice:
    """A clock and a meter of a device whose steps last and draw what a table says, however long they take here.

    Args:
        tokens_per_s: Speed by gear.
    """

    def __init__(self, tokens_per_s: Mapping[str, float]) -> None:
        self._speed = tokens_per_s
        self._lock = threading.Lock()
        self._t_s, self._energy_j = time.monotonic(), 0.0
        self._offset_s = time.time() - self._t_s
        self._since_s: float | None = None
        device = Device(uid="assumed:gpu", kind=DeviceKind.GPU, name="assumed GPU of a node of eight H100s")
        method = "tokens x J/token of the assumed table"
        self.sensors: Sequence[Sensor] = (
            Sensor(device=device, provenance=Provenance.MODELLED, method=method, period_s=0.02, shared=False),
        )

    def monotonic_s(self) -> float:
        """Return the device's time (s)."""
        passed_s = 0.0 if self._since_s is None else time.monotonic() - self._since_s
        return self._t_s + passed_s

    def unix_s(self) -> float:
        """Return the same since the epoch."""
        return self.monotonic_s() + self._offset_s

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Let time pass as it does here: whatever a session does between two steps, pauses above all."""
        self._since_s = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._t_s, self._since_s = self.monotonic_s(), None

    def ran(self, gear: str, tokens: int) -> None:
        """Take in a step."""
        with self._lock:
            self._t_s += tokens / self._speed[gear]
            self._energy_j += DEVICE_W * tokens / self._speed[gear]

    def read(self) -> list[PowerSample]:
        """Return the counter now; between steps the device is given back and draws nothing."""
        with self._lock:
            return [PowerSample(device_uid="assumed:gpu", t_s=self.monotonic_s(), energy_j=self._energy_j)]

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one training cost and brought."""

    grams: float
    """Operational, PUE included (g)."""
    joules: float
    tokens_per_s: float
    """From start to end, pauses included."""
    paused: float
    """Share of the time."""
    fp8: float
    """Share of the steps."""
    in_time: bool
    loss: Sequence[float]
    """Validation loss in BF16 (nats a token), from the start to the end."""
    joules_then: Sequence[float]
    """Spent by then, by the ledger (J)."""
    grams_then: Sequence[float]

    def to(self, target: float, spent: Sequence[float]) -> float:
        """Return what was spent until the loss was first as low as a target; NaN where it never was."""
        for (a, b), (x, y) in zip(itertools.pairwise(self.loss), itertools.pairwise(spent), strict=True):
            if b <= target:
                return x + (y - x) * (a - target) / (a - b) if a > target else x
        return math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What is trained where."""

    text: Corpus
    scale: Scale
    steps: int
    seeds: int
    looks: int
    """Times that validation loss is taken."""
    blocks: int
    """Blocks of text that it is taken of."""
    device: str
    trace: GridTrace
    trace_csv: Path
    folder: Path
    """Of the runs."""

    @property
    def size(self) -> Size:
        """Size of the model."""
        s = self.scale
        return Size(vocab=self.text.vocab, width=s.width, layers=s.layers, heads=s.heads, context=s.context)

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.scale.batch * self.scale.context

    def train(self, seed: int, arm: Mapping[str, Any], step_s: float) -> Run:
        """Train once.

        Args:
            seed: Of weights, batches and draws, from 0; also which start in the year.
            arm: Of ARMS.
            step_s: Time of a step in BF16.
        """
        torch.manual_seed(seed)
        model = Llama(self.size).to(self.device)
        optimizer, schedule = build_optimizer(model, self.steps, self.scale.peak)
        order = torch.Generator().manual_seed(seed)
        blocks = Blocks(self.text.train, self.scale.context)
        loader = DataLoader(blocks, batch_size=self.scale.batch, shuffle=True, generator=order, drop_last=True)
        speed = JOB_H * S_PER_HOUR / (self.steps * step_s)
        job = self._job(seed, arm, speed)
        assumed = None
        if self.device == "cpu":
            speeds = {"bf16": self.tokens / step_s, "fp8": FP8_SPEEDUP * self.tokens / step_s}
            assumed = AssumedDevice(speeds)
            self._declare(job, speeds)
        losses, times_s = [self.validation(model)], []
        with GreenSession(job, meter=assumed, clock=assumed) as green:
            green.watch(model, optimizer)
            assert green.gears is not None
            unix_s = assumed.unix_s if assumed else time.time
            times_s.append(unix_s())
            every = itertools.chain.from_iterable(itertools.repeat(loader))
            for step, batch in zip(range(1, self.steps + 1), every, strict=False):
                gear = str(green.gears.box.gear)
                model(**{key: value.to(self.device) for key, value in batch.items()}).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                if assumed is None:
                    green.step(tokens=self.tokens)
                else:
                    assumed.ran(gear, self.tokens)
                    with assumed.passing():
                        green.step(tokens=self.tokens)
                if step % max(1, self.steps // self.looks) == 0 or step == self.steps:
                    times_s.append(unix_s())
                    losses.append(self.validation(model))
        assert green.folder is not None
        return self._run(green.folder, losses, times_s, speed)

    @torch.no_grad()
    def validation(self, model: nn.Module) -> float:
        """Return the validation loss (nats a token), in a session in BF16."""
        model.eval()
        blocks = Blocks(self.text.val, self.scale.context, limit=self.blocks)
        loader = DataLoader(blocks, batch_size=self.scale.batch * 4)
        batches = ({key: value.to(self.device) for key, value in batch.items()} for batch in loader)
        found = statistics.fmean(model(**batch).item() for batch in batches)
        model.train()
        return found

    def pace_s(self) -> float:
        """Return the time of a step of static BF16 on this device."""
        if self.device == "cpu":
            return STEP_S
        return self.tokens / replace(self, steps=50, looks=1).train(0, ARMS[BASE], 1.0).tokens_per_s

    def _job(self, seed: int, arm: Mapping[str, Any], speed: float) -> dict[str, Any]:
        starts = windows(self.trace, max(self.seeds, 2), length_s=SLACK * JOB_H * S_PER_HOUR)
        spread = np.linspace(starts[0], self.trace.end_unix_s - 2 * SLACK * JOB_H * S_PER_HOUR, self.seeds)
        start = datetime.fromtimestamp(spread[seed] // S_PER_HOUR * S_PER_HOUR, UTC).isoformat()
        policy = dict(arm["policy"])
        if policy["name"] != "static":
            policy |= {
                "tokens": self.steps * self.tokens, "deadline_h": SLACK * JOB_H, "decide_s": DECIDE_S,
                "margin_s": 2 * DECIDE_S, "seed": seed,
            }  # fmt: skip
        precision = {"gears": ["bf16", "fp8"], "min_features": min(128, self.scale.width)}
        return {
            "run": {"dir": str(self.folder), "report": False, "live": False, "book_s": 0.5},
            "carbon": {
                "signal": "trace", "trace_csv": str(self.trace_csv), "replay_start": start, "speed": speed, "pue": PUE,
            },
            "precision": precision | dict(arm.get("precision", {})),
            "policy": policy,
            "actuators": {"checkpoint": False},
        }  # fmt: skip

    def _declare(self, job: dict[str, Any], speeds: Mapping[str, float]) -> None:
        """Give a plan the assumed table."""
        if job["policy"]["name"] == "static":
            return
        path = self.folder / "assumed.yaml"
        rows = [{"gear": gear, "tokens_per_s": speed, "power_w": DEVICE_W} for gear, speed in speeds.items()]
        path.write_text(yaml.safe_dump({"device": "assumed H100", "actions": rows}), encoding="utf-8")
        job["policy"] |= {"actions": str(path), "released": True}

    def _run(self, folder: Path, losses: Sequence[float], times_s: Sequence[float], speed: float) -> Run:
        run = read_run(folder)
        entries = run.ranks[0].entries
        ends_s = [entries[0].t0_unix_s, *(entry.t1_unix_s for entry in entries)]
        joules = np.cumsum([0.0, *(entry.energy_j for entry in entries)])
        grams = np.cumsum([0.0, *(entry.operational_g or 0.0 for entry in entries)])
        totals = run.totals
        fp8 = totals.by_gear["fp8"].steps if "fp8" in totals.by_gear else 0
        return Run(
            grams=totals.operational_g,
            joules=totals.energy_j,
            tokens_per_s=totals.tokens / totals.duration_s,
            paused=totals.phase_s.get("paused", 0.0) / totals.duration_s,
            fp8=fp8 / totals.steps,
            in_time=totals.duration_s * speed <= SLACK * JOB_H * S_PER_HOUR,
            loss=losses,
            joules_then=np.interp(times_s, ends_s, joules).tolist(),
            grams_then=np.interp(times_s, ends_s, grams).tolist(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One arm less static BF16."""

    mean: float
    """Of the arm."""
    gap: float
    low: float
    high: float
    """Of Welch's interval, 1 - ALPHA for all of the table together."""
    p: float
    """Two-sided, by itself."""
    apart: bool = False
    """By Holm's test."""


def welch(ours: Sequence[float], base: Sequence[float], comparisons: int) -> Difference:
    """Return the difference of two means with Welch's interval (Welch, Biometrika 34, 1947).

    Args:
        ours: Values of an arm.
        base: Values of static BF16.
        comparisons: Intervals of the table.
    """
    a, b = np.asarray(ours, dtype=float), np.asarray(base, dtype=float)
    parts = [float(x.var(ddof=1)) / len(x) for x in (a, b)]
    gap, error = float(a.mean() - b.mean()), math.sqrt(sum(parts))
    if not error > 0:  # neither varies, or a run never got there
        p = math.nan if math.isnan(gap) else float(gap == 0)
        return Difference(mean=float(a.mean()), gap=gap, low=gap, high=gap, p=p)
    free = sum(parts) ** 2 / sum(part**2 / (len(x) - 1) for part, x in zip(parts, (a, b), strict=True))
    half = float(stdtrit(free, 1 - ALPHA / comparisons / 2)) * error
    p = 2 * float(stdtr(free, -abs(gap) / error))
    return Difference(mean=float(a.mean()), gap=gap, low=gap - half, high=gap + half, p=p)


def holm(p: Sequence[float]) -> list[bool]:
    """Return which hypotheses fall at ALPHA for all of them (Holm, Scandinavian Journal of Statistics 6, 1979)."""
    fallen = [False] * len(p)
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: (math.isnan(p[i]), p[i]))):
        if not p[i] <= ALPHA / (len(p) - rank):
            break
        fallen[i] = True
    return fallen


FIGURES: Final[Mapping[str, str]] = {
    "grams, share of BF16's": "modelled",
    "J": "modelled",
    "tokens/s": "assumed",
    "loss less BF16's (nats)": "measured",
    "J to the target loss, share of BF16's": "modelled",
    "grams to it, share of BF16's": "modelled",
}
"""What is compared, and what it rests on where the device is assumed."""


def figures_of(runs: Mapping[str, Sequence[Run]]) -> tuple[float, dict[str, list[list[float]]]]:
    """Return the target loss, and of each arm the values of FIGURES, one a seed."""
    at = round(TARGET_AT * (len(runs[BASE][0].loss) - 1))
    target = max(run.loss[at] for run in runs[BASE])
    found: dict[str, list[list[float]]] = {}
    for name, arm in runs.items():
        pairs = list(zip(arm, runs[BASE], strict=True))
        found[name] = [
            [run.grams / plain.grams for run, plain in pairs],
            [run.joules for run in arm],
            [run.tokens_per_s for run in arm],
            [run.loss[-1] - plain.loss[-1] for run, plain in pairs],
            [run.to(target, run.joules_then) / plain.to(target, plain.joules_then) for run, plain in pairs],
            [run.to(target, run.grams_then) / plain.to(target, plain.grams_then) for run, plain in pairs],
        ]
    return target, found


def compare(values: Mapping[str, Sequence[Sequence[float]]]) -> dict[tuple[str, str], Difference]:
    """Return every arm's difference from static BF16 by arm and figure, with Holm's verdicts."""
    names = [name for name in values if name != BASE]
    comparisons = len(names) * len(FIGURES)
    found = {
        (name, figure): welch(values[name][i], values[BASE][i], comparisons)
        for name in names
        for i, figure in enumerate(FIGURES)
    }
    verdicts = holm([each.p for each in found.values()])
    return {key: replace(each, apart=apart) for (key, each), apart in zip(found.items(), verdicts, strict=True)}


def table_of(bench: Bench, runs: Mapping[str, Sequence[Run]]) -> tuple[Table, list[dict[str, Any]]]:
    """Return the table, and its values as rows."""
    target, values = figures_of(runs)
    found = compare(values)
    cells, rows = [], []
    for name, arm in runs.items():
        loss = statistics.fmean(run.loss[-1] for run in arm)
        line = [name, f"{statistics.fmean(run.grams for run in arm):.4g}", f"{loss:.4f}", f"{math.exp(loss):.4g}"]
        for i, (figure, provenance) in enumerate(FIGURES.items()):
            mean, it = statistics.fmean(values[name][i]), found.get((name, figure))
            never = sum(map(math.isnan, values[name][i]))
            text = f"not reached by {never} of {len(arm)}" if never else f"{mean:.4g}" if mean else "0"
            if it is not None and not never:
                text += f" ({it.low:+.3g} to {it.high:+.3g}){'*' if it.apart else ''}"
            line.append(text)
            measured = {} if bench.device == "cpu" else {"provenance": "measured"}
            row: dict[str, Any] = {"arm": name, "figure": figure, "mean": mean, "provenance": provenance, **measured}
            if it is not None:
                row |= {"difference": it.gap, "low": it.low, "high": it.high, "p": it.p, "apart": it.apart}
            rows.append(row)
        late = sum(not run.in_time for run in arm)
        line += [
            f"{statistics.fmean(run.fp8 for run in arm):.0%}",
            f"{statistics.fmean(run.paused for run in arm):.0%}",
        ]
        cells.append([*line, f"{late} of {len(arm)}"])
    head = ["arm", "gCO2e", "validation loss (nats)", "perplexity", *FIGURES, "steps in FP8", "time paused", "late"]
    title = "Carbon, speed and quality of the same runs"
    return Table(
        case="united", title=title, head=head, rows=cells, notes=notes(bench, runs[BASE], target, len(found))
    ), rows


def notes(bench: Bench, base: Sequence[Run], target: float, comparisons: int) -> list[str]:
    """Return what the table rests on."""
    parameters = sum(p.numel() for p in Llama(bench.size).parameters())
    to_j = statistics.fmean(run.to(target, run.joules_then) for run in base)
    to_g = statistics.fmean(run.to(target, run.grams_then) for run in base)
    assumed = (
        f"Losses are measured, FP8 emulated on a CPU. Time, joules and grams are modelled: one GPU of the assumed H100"
        f" table ({DEVICE_W:.0f} W in both gears, FP8 {FP8_SPEEDUP:g} times as fast, which is published for torchtitan;"
        f" given back in pauses). Tokens/s of BF16 are a scale that no share depends on."
    )
    return [
        f"Llama-style GPT of {parameters / 1e6:.2g} M parameters on Python's source, {bench.steps} steps of"
        f" {bench.tokens} tokens, {bench.seeds} seeds, each with its own start in {bench.trace.name}; static BF16 takes"
        f" {JOB_H:g} h of the grid, deadline after {SLACK * JOB_H:g} h, PUE {PUE:g}.",
        assumed if bench.device == "cpu" else f"Measured on {torch.cuda.get_device_name()}, grid replayed.",
        f"In brackets: difference from static BF16, Welch, 95 % for all {comparisons} intervals together (Bonferroni);"
        " * told apart at 5 % by Holm's test.",
        f"Target loss: {target:.3f} nats, which all runs of static BF16 have reached at {TARGET_AT:.0%} of their steps;"
        f" they take {to_j:.4g} J and {to_g:.3g} g to it, means over seeds. Perplexity is that of a token of its own"
        " vocabulary, so it compares with no published one.",
        "mpc decides as CarbonGear as corrected, where no change of width costs time.",
    ]


def sheet_of(bench: Bench, runs: Mapping[str, Sequence[Run]], table: Table, rows: Sequence[Row]) -> Sheet:
    """Return the figure: loss over grams, and grams beside loss."""
    curves = [
        Line(
            name=name,
            x=np.mean([run.grams_then for run in arm], axis=0).tolist(),
            y=np.mean([run.loss for run in arm], axis=0).tolist(),
        )
        for name, arm in runs.items()
    ]
    ends = [
        Line(name=name, x=[run.grams for run in arm], y=[run.loss[-1] for run in arm], points=True)
        for name, arm in runs.items()
    ]
    how = "modelled" if bench.device == "cpu" else "measured"
    return Sheet(
        name="carbon_quality",
        title=table.title,
        panels=[
            Panel(title="means over seeds", x=f"gCO2e ({how})", y="validation loss (nats, measured)", lines=curves),
            Panel(title="every run", x=f"gCO2e ({how})", y="final validation loss (nats, measured)", lines=ends),
        ],
        rows=rows,
        notes=table.notes,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two seeds, 40 steps: to see that it runs")
    parser.add_argument("--model-size", choices=SCALES, default="tiny", help="default tiny")
    parser.add_argument("--steps", type=int, help="optimizer steps; default: those of the size")
    parser.add_argument("--seeds", type=int, default=5, help="at least 2 (default 5)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cpu: an assumed device (default)")
    parser.add_argument("--grid", default="us_caiso_2022_eia", help="a trace of benchmarks/data")
    parser.add_argument("--out", type=Path, help="also write carbon_quality.png and .csv into this folder")
    parser.add_argument("--into", type=Path, help="also put the table into this text, between its marks")
    args = parser.parse_args(argv)
    if args.seeds < 2:
        parser.error(f"--seeds is {args.seeds}; an interval needs at least 2")
    path = unpacked() / f"{args.grid}.csv"
    if not path.is_file():
        parser.error(
            f"--grid is {args.grid!r}; there are {', '.join(sorted(p.stem for p in unpacked().glob('*.csv')))}"
        )
    if args.device == "cpu":
        torch.set_num_threads(1)
    scale = SCALES[args.model_size]
    text = corpus(vocab=scale.vocab, max_bytes=4_000_000 if scale.vocab == 512 else None)
    trace = GridTrace.read(path, accounting="production")
    with tempfile.TemporaryDirectory(prefix="greentrain-runs-") as folder:
        bench = Bench(
            text=text, scale=scale, steps=40 if args.quick else args.steps or scale.steps,
            seeds=2 if args.quick else args.seeds, looks=4 if args.quick else 20, blocks=32 if args.quick else 256,
            device=args.device, trace=trace, trace_csv=path, folder=Path(folder),
        )  # fmt: skip
        runs = train_all(bench)
        table, rows = table_of(bench, runs)
        print(table.markdown())
        if args.out is not None:
            args.out.mkdir(parents=True, exist_ok=True)
            print(*write(sheet_of(bench, runs, table, rows), args.out), sep="\n", file=sys.stderr)
    if args.into is not None:
        put(f"{facts(machine('benchmarks/carbon_quality.py'))}\n\n{table.markdown()}", args.into, "united")
    return 0


def train_all(bench: Bench) -> dict[str, list[Run]]:
    """Train every arm from every seed."""
    runs: dict[str, list[Run]] = {}
    step_s = bench.pace_s()
    for name, arm in ARMS.items():
        began_s = time.monotonic()
        runs[name] = [bench.train(seed, arm, step_s) for seed in range(bench.seeds)]
        ends = ", ".join(f"{run.grams:.3g} g {run.loss[-1]:.3f} nats" for run in runs[name])
        log(f"{name}: {time.monotonic() - began_s:.0f} s; {ends}")
    return runs


if __name__ == "__main__":
    raise SystemExit(main())
