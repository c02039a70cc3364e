"""EcoRL-Sched's figures of a measured step, from the folders of runs: what each stage draws, costs and takes.

    python benchmarks/stage_figures.py runs/A runs/B --out build/stages           # all of them, PNG and CSV
    python benchmarks/stage_figures.py runs/A runs/B runs/C --figure watts
    python benchmarks/stage_figures.py --train build/pair --out build/stages      # makes two runs itself: minutes

``watts``         mean watts by stage, device and model (Fig. 2A)
``density``       joules a token by stage and device, with 90 % intervals (Fig. 2C)
``utilisation``   share of the time in which the training computes, and in which it waits, over steps (Fig. 4A, B)
``timeline``      what the training does in the course of a step (Fig. 1A)
``power``         watts in the course of a step, with a band of one standard deviation over steps (Fig. 2B)

All is read from journals. A journal cuts time into intervals of ``run.book_s``, so the course of a step is told where
steps are at least three times as long; where they are not, the last two figures are left out and say why. ``--train``
trains a small random policy by GRPO twice on this machine: once with its frozen passes computed where it trains, once
with them on a device that answers after a set time, as a card would, beside the generation.
"""

import argparse
import itertools
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import numpy.typing as npt

from benchmarks.figures import Line, Panel, Row, Sheet, tables, write
from greentrain.errors import ConfigError
from greentrain.ledger.reader import RunRecord, read_run
from greentrain.report.summary import summarize
from greentrain.types import DeviceKind, LedgerEntry, Phase, Provenance
from greentrain.utils.quantities import count

WAITS: Final = frozenset({Phase.REWARD, Phase.REFERENCE})
"""Where a run has an offload device, its trainers mark these stages while they wait for it (docs/rlhf.md)."""
SLICES: Final = 40
"""Of a step."""
BINS: Final = 50
"""Of a run's steps."""
FINER: Final = 3.0
"""Length of a step in intervals of the journal from which on its course is told."""
ELSEWHERE: Final = "is of the authors' GPUs, card and models, which nobody here has: its values cannot be met here."

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as its folder has it."""

    name: str
    record: RunRecord
    summary: Mapping[str, Any]
    offloads: bool
    """True where a device beside the training computes frozen passes."""

    @classmethod
    def read(cls, folder: Path, *, offloads: bool | None = None) -> "Run":
        """Read a run; without a word, one with the sensor of a card offloads.

        Raises:
            RunFolderError: It cannot be read.
        """
        record = read_run(folder)
        summary = summarize(record)
        kinds = {device["kind"] for device in summary["devices"]}
        size = summary["run"]["parameters"]
        return cls(
            name=f"{summary['run']['name']} ({count(size)})" if size else str(summary["run"]["name"]),
            record=record,
            summary=summary,
            offloads=DeviceKind.FPGA in kinds if offloads is None else offloads,
        )

    @property
    def waits(self) -> frozenset[str]:
        """Stages in which the training stands still."""
        return frozenset({Phase.PAUSED}) | (WAITS if self.offloads else frozenset())


def watts(runs: Sequence[Run]) -> Sheet:
    """Mean watts of each stage, by kind of device and model."""
    return _by_stage(
        runs,
        name="watts",
        title="Watts by stage and model",
        unit="W",
        value="mean_power_w",
        scale=lambda row: row["seconds"],
        notes=[
            "Mean of all devices of a kind while a rank was in the stage; ranges hold in 90 of 100 cases.",
            f"Fig. 2A {ELSEWHERE}",
        ],
    )


def density(runs: Sequence[Run]) -> Sheet:
    """Joules a token of each stage, by kind of device: the Energy Density Index."""
    return _by_stage(
        runs,
        name="density",
        title="Joules a token by stage and device",
        unit="J/token",
        value="j_per_token",
        scale=lambda row: row["energy_j"] / row["j_per_token"],
        notes=[
            "Joules of the stage over all tokens that the run told; ranges hold in 90 of 100 cases.",
            f"Fig. 2C {ELSEWHERE} Of the published split of a step: greentrain rlhf simulate published.",
        ],
    )


def _by_stage(
    runs: Sequence[Run],
    *,
    name: str,
    title: str,
    unit: str,
    value: str,
    scale: Callable[[Mapping[str, Any]], float],
    notes: Sequence[str],
) -> Sheet:
    rows: list[Row] = []
    unknown: list[str] = []
    for run in runs:
        for row in run.summary["stages"]:
            if not row[value]:
                unknown.append(f"{row['stage']} on {row['kind']} of {run.name}")
                continue
            within, over = row["interval_j"] or {"low": None, "high": None}, scale(row)
            low, high = (math.nan if within[end] is None else within[end] / over for end in ("low", "high"))
            rows.append(
                {
                    "run": run.name,
                    "parameters": run.summary["run"]["parameters"] or "",
                    "stage": row["stage"],
                    "device": row["kind"],
                    unit: row[value],
                    "low": low,
                    "high": high,
                    "provenance": "measured" if row["provenance"] == Provenance.MEASURED else "modelled",
                }
            )
    if not rows:
        raise ConfigError(f"no stage of {', '.join(run.name for run in runs)} has a figure in {unit}: nothing is known")
    kinds, stages = (list(dict.fromkeys(row[key] for row in rows)) for key in ("device", "stage"))
    panels = []
    for kind in kinds:
        lines = []
        for run in runs:
            own = {row["stage"]: row for row in rows if row["device"] == kind and row["run"] == run.name}
            y, low, high = (
                [own[stage][key] if stage in own else math.nan for stage in stages] for key in (unit, "low", "high")
            )
            lines.append(Line(name=run.name, x=stages, y=y, low=low, high=high))
        panels.append(Panel(title=kind, x="", y=unit, lines=lines))
    more = [f"Unknown, so in no bar: {', '.join(unknown)}."] if unknown else []
    return Sheet(name=name, title=title, panels=panels, rows=rows, notes=[*notes, *more])


def utilisation(runs: Sequence[Run]) -> Sheet:
    """Share of the time in which the training computes, and in which it stands still, over steps."""
    rows: list[Row] = []
    for run in runs:
        rank = run.record.ranks[0]
        ended = [0, *itertools.accumulate(entry.steps for entry in rank.entries)]
        edges = np.linspace(0, ended[-1], min(BINS, ended[-1]) + 1)
        place = np.searchsorted(edges, ended[:-1], side="right")  # what follows the last step is in no bin
        for i in range(1, len(edges)):
            found = [entry for entry, at in zip(rank.entries, place, strict=True) if at == i]
            whole_s = sum(entry.t1_unix_s - entry.t0_unix_s for entry in found)
            if whole_s <= 0:
                continue
            spent_s: dict[str, float] = {}
            for entry in found:
                for phase, seconds in entry.phase_s.items():
                    spent_s[phase] = spent_s.get(phase, 0.0) + seconds
            bubbles_s = sum(seconds for phase, seconds in spent_s.items() if phase in run.waits)
            outside_s = spent_s.get(Phase.OTHER, 0.0)
            told = [state for entry in found for device in entry.devices.values() for state in device.states.values()]
            known_s, ran_s = (sum(state.get(key, 0.0) for state in told) for key in ("util_s", "sm_s"))
            rows.append(
                {
                    "run": run.name,
                    "step": float(edges[i]),
                    "computes": 1 - (bubbles_s + outside_s) / whole_s,
                    "bubbles": bubbles_s / whole_s,
                    "outside": outside_s / whole_s,
                    "kernels": ran_s / known_s if known_s > 0 else "",
                    "provenance": "measured",
                }
            )
    if not rows:
        raise ConfigError(f"no run of {', '.join(run.name for run in runs)} has ended a step: nothing to draw")
    lines = [
        Line(
            name=f"{run.name}: {what}",
            x=[row["step"] for row in rows if row["run"] == run.name],
            y=[100 * row[what] for row in rows if row["run"] == run.name],
            dashed=what == "bubbles",
        )
        for run in runs
        for what in ("computes", "bubbles", "kernels")
        if all(isinstance(row[what], float) for row in rows if row["run"] == run.name)
    ]
    means = [
        f"{run.name}: computes {statistics.fmean(row['computes'] for row in rows if row['run'] == run.name):.1%},"
        f" bubbles {statistics.fmean(row['bubbles'] for row in rows if row['run'] == run.name):.1%}."
        for run in runs
        if any(row["run"] == run.name for row in rows)
    ]
    return Sheet(
        name="utilisation",
        title="Computing and waiting, over steps",
        panels=[Panel(title="rank 0", x="steps", y="% of the time", lines=lines)],
        rows=rows,
        notes=[
            "Bubbles: pauses, and reward and reference where a device beside the training computes them. Outside of all"
            " phases it is not known what was done. Kernels: share of the time in which one ran, where the GPU's driver"
            " tells it; a time within a stage that computes may still be idle.",
            *means,
            f"Fig. 4A and B {ELSEWHERE}",
        ],
    )


def timeline(runs: Sequence[Run]) -> Sheet:
    """Share of the time in each stage, in the course of a step."""
    rows: list[Row] = []
    panels = []
    for run in runs:
        starts_s, ends_s = _steps(run)
        at_s = _course(starts_s, ends_s)
        entries = run.record.ranks[0].entries
        names = list(dict.fromkeys(name for entry in entries for name in entry.phase_s))
        shares = {}
        for name in names:
            spent_s = _cumulative(entries, [entry.phase_s.get(name, 0.0) for entry in entries], at_s)
            shares[name] = np.mean(np.diff(spent_s, axis=1) / np.diff(at_s, axis=1), axis=0)
        shown = [name for name in names if shares[name].max() > 0.01]
        middle_s = _middles(starts_s, ends_s)
        rows += [
            {"run": run.name, "t_s": float(t), "stage": name, "share": float(share), "provenance": "measured"}
            for name in shown
            for t, share in zip(middle_s, shares[name], strict=True)
        ]
        lines = [Line(name=name, x=middle_s.tolist(), y=(100 * shares[name]).tolist()) for name in shown]
        title = f"{run.name}: {np.mean(ends_s - starts_s):.3g} s a step, {len(starts_s)} steps"
        panels.append(Panel(title=title, x="s since the step began", y="% of the time", lines=lines))
    return Sheet(
        name="timeline",
        title="A step in the course of its time, mean over steps",
        panels=panels,
        rows=rows,
        notes=[
            "Rank 0; each step is stretched to the mean one.",
            "Published: one iteration of 21 s, 43 % generation, 21 % reward and reference, 36 % training, on hardware"
            " that nobody here has.",
        ],
    )


def power(runs: Sequence[Run]) -> Sheet:
    """Watts of all devices in the course of a step, with the standard deviation over steps."""
    rows: list[Row] = []
    lines = []
    for run in runs:
        starts_s, ends_s = _steps(run)
        at_s = _course(starts_s, ends_s)
        joules = np.zeros_like(at_s)
        for rank in run.record.ranks:
            joules += _cumulative(rank.entries, [entry.energy_j for entry in rank.entries], at_s)
        drawn_w = np.diff(joules, axis=1) / np.diff(at_s, axis=1)
        mean_w, sd_w = drawn_w.mean(axis=0), drawn_w.std(axis=0, ddof=1 if len(drawn_w) > 1 else 0)
        middle_s = _middles(starts_s, ends_s)
        known = {
            device.provenance
            for rank in run.record.ranks
            for entry in rank.entries
            for device in entry.devices.values()
        }
        rows += [
            {
                "run": run.name,
                "t_s": float(t),
                "power_w": float(w),
                "sd_w": float(sd),
                "provenance": "measured" if known == {Provenance.MEASURED} else "modelled",
            }
            for t, w, sd in zip(middle_s, mean_w, sd_w, strict=True)
        ]
        low, high = np.maximum(mean_w - sd_w, 0.0), mean_w + sd_w
        lines.append(Line(name=run.name, x=middle_s.tolist(), y=mean_w.tolist(), low=low.tolist(), high=high.tolist()))
    return Sheet(
        name="power",
        title="Watts in the course of a step",
        panels=[Panel(title="all devices that were read or modelled", x="s since the step began", y="W", lines=lines)],
        rows=rows,
        notes=[
            "Each step is stretched to the mean one; a device that nobody read is in no line.",
            f"Fig. 2B {ELSEWHERE}",
        ],
    )


def _steps(run: Run) -> tuple[Floats, Floats]:
    """Return when single steps began and ended (s), but for the first."""
    rank = run.record.ranks[0]
    ends = [(steps, t_s) for entry in rank.entries for steps, t_s, _, _ in entry.step_groups]
    pairs = [(a[1], b[1]) for a, b in itertools.pairwise(ends) if b[0] == 1 and b[1] > a[1]]
    booked_s = statistics.median([entry.t1_unix_s - entry.t0_unix_s for entry in rank.entries] or [0.0])
    step_s = statistics.median([b - a for a, b in pairs] or [0.0])
    if step_s < FINER * booked_s or not pairs:
        raise ConfigError(
            f"{run.name}: {len(pairs)} steps of {step_s:.3g} s in a journal of {booked_s:.3g} s intervals; the course"
            f" of a step takes steps of {FINER:g} intervals or more: set run.book_s to {max(step_s / 10, 0.1):.2g}"
            " (a sensor that is read more rarely than that sets the intervals)"
        )
    starts_s, ends_s = np.array(pairs).T
    return starts_s, ends_s


def _course(starts_s: Floats, ends_s: Floats) -> Floats:
    """Return the edges of slices of each step [steps, slices + 1] (s)."""
    return starts_s[:, None] + (ends_s - starts_s)[:, None] * np.linspace(0, 1, SLICES + 1)


def _middles(starts_s: Floats, ends_s: Floats) -> Floats:
    """Return the middles of slices of the mean step (s)."""
    middles: Floats = float(np.mean(ends_s - starts_s)) * (np.arange(SLICES) + 0.5) / SLICES
    return middles


def _cumulative(entries: Sequence[LedgerEntry], amounts: Sequence[float], t_s: Floats) -> Floats:
    """Return what had come together by some times (s) of amounts that came evenly within the intervals of entries."""
    bounds, sums = [0.0], [0.0]
    for entry, amount in zip(entries, amounts, strict=True):
        if entry.t0_unix_s > bounds[-1]:
            bounds.append(entry.t0_unix_s)
            sums.append(sums[-1])
        bounds.append(entry.t1_unix_s)
        sums.append(sums[-1] + amount)
    return np.interp(t_s, bounds, sums)


FIGURES: Final[Mapping[str, Callable[[Sequence[Run]], Sheet]]] = {
    "watts": watts,
    "density": density,
    "utilisation": utilisation,
    "timeline": timeline,
    "power": power,
}


def train_pair(folder: Path, *, steps: int = 5) -> list[Run]:
    """Train twice, without and with a device for the frozen passes, and return the runs.

    Args:
        folder: For the run folders.
        steps: Of each training.
    """
    import torch

    from benchmarks.rlhf_overlap_run import HOME, Memory, Size, trained

    torch.set_num_threads(1)  # as in rlhf_overlap.py: the device's thread has the other core
    size, memory = Size(steps=steps, new=96, micro_batches=16), Memory()
    trained("sequential", size, folder / "filling", memory)
    found = []
    for mode, offloads in ((HOME, False), ("stream", True)):
        trained(mode, size, folder, memory, book_s=0.1)
        newest = max(folder.glob(f"{mode}-*"), key=lambda path: path.stat().st_mtime)
        found.append(Run.read(newest, offloads=offloads))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, help="folders of runs")
    parser.add_argument("--train", type=Path, metavar="FOLDER", help="make two runs in this folder, in place of RUNS")
    parser.add_argument("--figure", action="append", choices=list(FIGURES), help="only this one (may be repeated)")
    parser.add_argument("--out", type=Path, help="folder for a PNG and a CSV of each figure")
    args = parser.parse_args(argv)
    if bool(args.runs) == bool(args.train):
        parser.error("give the folders of runs, or --train with a folder to make two in")
    runs = train_pair(args.train) if args.train else [Run.read(folder) for folder in args.runs]
    sheets = []
    for name in args.figure or FIGURES:
        try:
            sheets.append(FIGURES[name](runs))
        except ConfigError as error:
            if args.figure:
                raise
            print(f"{name}: {error}", file=sys.stderr)
    print(tables(sheets))
    for sheet in sheets if args.out is not None else ():
        print(*write(sheet, args.out), sep="\n", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
