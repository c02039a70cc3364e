"""Step times that others have published, beside the roofline's: where one constant was fitted, and where none was.

    python benchmarks/estimator_steps.py                        # two seconds
    python benchmarks/estimator_steps.py --into docs/estimate-benchmarks.md

The share of the peak on A100 is the one fitted number, and Megatron-LM of 2022 (arXiv 2205.05198, table 5) is what it
is fitted to. All else is shown as it comes out. Rows of ``validation_runs.csv`` are published; figures in this file
are recalled from their papers.
"""

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import numpy.typing as npt

from benchmarks.estimator_runs import BENCH, RUNS_CSV, Run, read_runs
from benchmarks.marks import facts, put, table
from benchmarks.metering import machine
from greentrain.errors import ConfigError
from greentrain.estimate import hardware
from greentrain.estimate.hardware import Accelerator, practice_of
from greentrain.estimate.layouts import INTERLEAVE, MICRO, ParallelLayout, Recompute
from greentrain.estimate.model_shape import ModelShape
from greentrain.estimate.search import cost, search
from greentrain.estimate.workload import Workload

BAR: Final = 0.05
FITTED_TO: Final = "mlm22"
ETAS: Final = np.arange(0.60, 0.82, 0.005)
RECALLED: Final = "Megatron-LM of 2021 (arXiv 2104.04473, table 1), recalled; micro-batch and interleave not known"
HOPPER: Final = "Megatron-LM's README on H100, share of the peak, recalled; the layout is the search's"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A published step of a known layout. Where a key of the layout is not known, there are several."""

    name: str
    group: str
    shape: ModelShape
    workload: Workload
    accelerator: Accelerator
    layouts: tuple[ParallelLayout, ...]
    published_s: float

    def modelled_s(self, eta: float | None = None) -> float:
        """Return seconds by the roofline, of the fastest layout in question that fits."""
        practice = practice_of(self.accelerator, self.workload.precision)
        if eta is not None:
            practice = dataclasses.replace(practice, eta=dataclasses.replace(practice.eta, value=eta))
        found = []
        for layout in self.layouts:
            try:
                found.append(cost(self.shape, self.workload, self.accelerator, layout, practice).step_s)
            except ConfigError:
                continue
        return min(found)

    def error(self, eta: float | None = None) -> float:
        """Return by which share the model is too long."""
        return self.modelled_s(eta) / self.published_s - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A share of the peak, fitted."""

    eta: float
    mean: float
    """Mean of absolute errors of the steps that it was fitted to."""
    left_out: float
    """The same, each step predicted from the others."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=RUNS_CSV, help="published runs")
    parser.add_argument("--into", type=Path, help="also put the tables into this text, between their marks")
    args = parser.parse_args(argv)
    text = markdown([*published(read_runs(args.runs)), *recalled()], machine("benchmarks/estimator_steps.py"))
    print(text)
    if args.into is not None:
        put(text, args.into, "steps")
    return 0


def published(runs: Iterable[Run]) -> list[Step]:
    """Return the rows that are steps of a known layout."""
    return [_published(run) for run in runs if run.tier == BENCH]


def fit(steps: Sequence[Step]) -> Fit:
    """Return the share of the peak with the least mean error, and what it is worth on steps that it has not seen."""
    errors = np.array([[abs(step.error(eta)) for step in steps] for eta in ETAS])
    best = int(np.argmin(errors.mean(axis=1)))
    return Fit(eta=float(ETAS[best]), mean=float(errors[best].mean()), left_out=_left_out(errors))


def markdown(steps: Sequence[Step], about: dict[str, str]) -> str:
    """Return the steps, the fit, and the spread by group."""
    lines = [facts(about)]
    groups = {key: list(some) for key, some in itertools.groupby(steps, key=lambda step: step.group)}
    rows = [
        (s.name, str(s.layouts[0].count), f"{s.published_s:.2f}", f"{s.modelled_s():.2f}", f"{100 * s.error():+.1f} %")
        for s in steps
    ]
    lines += ["", table(("step", "devices", "published s", "modelled s", "error"), rows), ""]
    spread = []
    for name, some in groups.items():
        errors = [step.error() for step in some]
        mean = fmean(map(abs, errors))
        verdict = ("PASS" if mean <= BAR else "MISS") + f" ({100 * BAR:.0f} %)" if name == FITTED_TO else ""
        sides = f"{100 * min(errors):+.1f} to {100 * max(errors):+.1f} %"
        fitted = "fitted" if name == FITTED_TO else "not fitted"
        spread.append((_TITLES.get(name, name), fitted, str(len(some)), f"{100 * mean:.1f} %", sides, verdict))
    lines += [table(("steps of", "", "number", "mean absolute error", "from, to", "bar"), spread), ""]
    found = fit(groups[FITTED_TO])
    lines.append(
        f"Fitted again here: {found.eta:.3f} of the peak, mean error {100 * found.mean:.1f} %; each step predicted "
        f"from the other {len(groups[FITTED_TO]) - 1}: {100 * found.left_out:.1f} %."
    )
    return "\n".join([*lines, "", *_hopper()])


def recalled() -> list[Step]:
    """Return the steps of Megatron-LM of 2021, from the throughput that its paper states."""
    device = hardware.find("A100-80GB")
    steps = []
    for layers, d_model, heads, tensor, pipeline, count, batch, tflop_s in _MEGATRON_2021:
        flop = 96.0 * batch * 2048 * layers * d_model**2
        flop *= 1 + 2048 / (6 * d_model) + 51200 / (16 * layers * d_model)
        shape = _gpt(f"GPT {12 * layers * d_model**2 / 1e9:.1f}B, 2021", layers, d_model, heads, 51200)
        layout = ParallelLayout(
            tensor=tensor, pipeline=pipeline, data=count // (tensor * pipeline), recompute=Recompute.FULL
        )
        several = tuple(
            dataclasses.replace(layout, micro=micro, interleave=pieces)
            for micro in MICRO
            for pieces in INTERLEAVE
            if micro * layout.data <= batch and (pieces == 1 or (pipeline > 1 and pipeline * pieces <= layers))
        )
        steps.append(
            Step(
                name=shape.name,
                group=RECALLED,
                shape=shape,
                workload=Workload(tokens=3e11, sequence=2048, batch_tokens=2048.0 * batch),
                accelerator=device,
                layouts=several,
                published_s=flop / (count * tflop_s * 1e12),
            )
        )
    return steps


def _published(run: Run) -> Step:
    notes = dict(word.split("=") for word in run.notes.split(";"))
    tensor, pipeline = int(notes["tp"]), int(notes["pp"])
    layout = ParallelLayout(
        tensor=tensor,
        pipeline=pipeline,
        data=run.count // (tensor * pipeline),
        micro=int(notes["mb"]),
        interleave=int(notes["v"]),
        recompute=Recompute.FULL if notes["recompute"] == "full" else Recompute.SELECTIVE,
    )
    return Step(
        name=run.name,
        group=run.family,
        shape=run.shape,
        workload=run.workload,
        accelerator=run.accelerator,
        layouts=(layout,),
        published_s=float(notes["step_s"]),
    )


def _left_out(errors: npt.NDArray[np.float64]) -> float:
    """Return the mean error of steps, each at the share that is best for the others."""
    rest = [int(np.argmin(np.delete(errors, step, axis=1).mean(axis=1))) for step in range(errors.shape[1])]
    return fmean(float(errors[best, step]) for step, best in enumerate(rest))


def _hopper() -> list[str]:
    device = hardware.find("H100-SXM")
    rows = []
    for layers, d_model, heads, count, batch, mfu in _MEGATRON_H100:
        shape = _gpt(f"GPT {12 * layers * d_model**2 / 1e9:.0f}B", layers, d_model, heads, 131072)
        found = search(shape, Workload(tokens=3e11, sequence=4096, batch_tokens=4096.0 * batch), device, count)
        rows.append((shape.name, str(count), f"{mfu:.2f}", f"{found.mfu:.3f}", str(found.layout)))
    return [f"{HOPPER}:", "", table(("model", "devices", "published", "modelled", "layout"), rows)]


def _gpt(name: str, layers: int, d_model: int, heads: int, vocabulary: int) -> ModelShape:
    return ModelShape(
        name=name,
        layers=layers,
        d_model=d_model,
        heads=heads,
        kv_heads=heads,
        head_dim=d_model // heads,
        d_ff=4 * d_model,
        gated=False,
        vocabulary=vocabulary,
        tied=True,
    )


_TITLES: Final = {
    FITTED_TO: "Megatron-LM of 2022 (arXiv 2205.05198, table 5)",
    "mtnlg": "Megatron-Turing NLG 530B (arXiv 2201.11990), older software",
}
_MEGATRON_2021: Final = (
    (24, 2304, 24, 1, 1, 32, 512, 137.0),
    (30, 3072, 32, 2, 1, 64, 512, 138.0),
    (36, 4096, 32, 4, 1, 128, 512, 142.0),
    (40, 6144, 48, 8, 1, 256, 1024, 135.0),
    (48, 8192, 64, 8, 2, 512, 1536, 138.0),
    (60, 10240, 80, 8, 4, 1024, 1792, 140.0),
    (80, 12288, 96, 8, 8, 1536, 2304, 148.0),
    (96, 16384, 128, 8, 16, 1920, 2160, 155.0),
    (105, 20480, 128, 8, 35, 2520, 2520, 163.0),
    (128, 25600, 160, 8, 64, 3072, 3072, 163.0),
)
"""Layers, width, heads, tensor, pipeline, devices, sequences of a batch, achieved TFLOP/s of a device."""
_MEGATRON_H100: Final = ((96, 12288, 96, 96, 1152, 0.47), (96, 12288, 96, 4608, 1152, 0.42))
"""Layers, width, heads, devices, sequences of a batch, share of the peak."""


if __name__ == "__main__":
    raise SystemExit(main())
