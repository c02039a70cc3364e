"""Does AdamW need gamma where the precision shifts? The published ablation, run: gamma off, measured, 4, and Eq. (11).

    python benchmarks/gears_optimizer_ablation.py                                 # some minutes on one core
    python benchmarks/gears_optimizer_ablation.py --out build/ablation            # also a picture, and figures as CSV
    python benchmarks/gears_optimizer_ablation.py --into docs/gears-benchmarks.md

A Llama-style GPT (RMSNorm, rotary positions, SwiGLU) learns Python's source. All arms of a seed have the same start and
the same batches, and shift from BF16 to FP8 and back at the same steps; what is compared with them is the same seed in
BF16 throughout. So a difference is the shift and the arm, and not the batch.

* gradient: variance of the gradient's norm, before clipping, over the steps after a shift
* update:   root mean square of what a step changes, over the same steps
* loss:     mean training loss over the same steps, and validation loss in FP32 at the end

Intervals are of Student's t over the seeds (variance and update by their logarithm), at 95 % for all of the table
together: each holds with 1 - 0.05 / (intervals of the table), after Bonferroni. FP8 is emulated by the CPU: operands
are FP8, products are added in FP32. Nothing was tuned for this; rate, schedule and decay are those of the recipes.
"""

import argparse
import csv
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import stdtrit
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader

from benchmarks.marks import facts, put
from benchmarks.metering import machine
from benchmarks.tables import Table, log
from greentrain.config.schema import GreenConfig
from greentrain.control.gears import Gears
from greentrain.control.precision.noise import NoiseProbe
from greentrain.optim import PAPER_GAMMA, adapt
from recipes.common.data import Blocks, Corpus, corpus
from recipes.common.model import Llama, Size, build_optimizer

Floats = npt.NDArray[np.float64]

PEAK: Final = 4e-3
"""Learning rate, as the recipes have it for --small."""
SEGMENT: Final = 40
"""Steps from one shift to the next; the first comes after two segments."""
WINDOW: Final = 10
"""Steps after a shift that are looked at."""
BATCH: Final = 8
SEEDS: Final = 6
PROBE_EVERY: Final = 10
"""Steps between two probes of the arm "measured": more than a session would spend, so that gamma is known at once."""
PUBLISHED_TOKENS: Final = 50e9
"""The published token budget (docs/papers.md)."""
ALPHA: Final = 0.05

ARMS: Final[Mapping[str, Mapping[str, Any]]] = {
    "gamma off (1)": {"gamma": 1.0},
    "gamma measured": {"gamma": "measured"},
    "gamma 4": {"gamma": "paper"},
    "Eq. (11) as printed, without decay": {"gamma": "paper", "decay": "paper", "weight_decay": 0.0},
    "Eq. (11) as printed, decay 0.1": {"gamma": "paper", "decay": "paper"},
    "control: gamma 4 at the same steps, all in BF16": {"gamma": "paper", "all_bf16": True},
    "control: Eq. (11) so, without decay": {"gamma": "paper", "decay": "paper", "weight_decay": 0.0, "all_bf16": True},
}
"""Settings of ``precision``; weight_decay is the optimizer's, that of the recipes where it is not named. The controls
shift the optimizer alone: what they show is due to the length of steps, and not to precision."""
PLAIN: Final = "BF16 throughout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One training."""

    loss: Floats
    """Training loss of each step (nats a token)."""
    gradient: Floats
    """Norm of the gradient before clipping, by step."""
    update: Floats
    """Root mean square of the change of all weights, by step."""
    gamma: Floats
    """By which AdamW slowed down, by step."""
    final: float
    """Validation loss in FP32 (nats a token)."""
    diverged: int | None
    """First step whose loss is twice that of guessing, or no number; None: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What is trained."""

    text: Corpus
    size: Size
    seeds: int
    segments: int
    """Stretches of one gear, of which the first is twice as long."""
    segment: int = SEGMENT
    window: int = WINDOW
    validated: int = 512
    """Blocks of text on which the loss of a trained model is measured."""

    @property
    def steps(self) -> int:
        """Steps of a training."""
        return (self.segments + 1) * self.segment

    @property
    def shifts(self) -> list[tuple[int, str]]:
        """Steps at which a gear begins."""
        starts = [0, *range(2 * self.segment, self.steps, self.segment)]
        return [(start, "fp8" if i % 2 else "bf16") for i, start in enumerate(starts)]

    def gear(self, step: int) -> str:
        """Return the gear of a step."""
        return [name for start, name in self.shifts if start <= step][-1]

    def windows(self, gear: str) -> list[slice]:
        """Return the steps after each shift to a gear."""
        return [slice(step, step + self.window) for step, name in self.shifts if name == gear and step]

    def train(self, seed: int, arm: Mapping[str, Any] | None, *, rate: float | None = None) -> Trained:
        """Train once.

        Args:
            seed: Of weights and batches.
            arm: Of ARMS; None: BF16 throughout.
            rate: Constant learning rate, in place of the recipes' schedule.
        """
        torch.manual_seed(seed)
        model = Llama(self.size)
        optimizer, schedule = build_optimizer(model, self.steps, PEAK)
        settings = dict(arm or {"gamma": 1.0})
        decay = settings.pop("weight_decay", math.inf)
        for group in optimizer.param_groups:
            group["weight_decay"] = min(group["weight_decay"], decay)
        one_gear = settings.pop("all_bf16", arm is None)
        step = 0
        if one_gear and arm is not None:
            adapt(optimizer, lambda: PAPER_GAMMA if self.gear(step) == "fp8" else 1.0, settings.get("decay", "keep"))
            settings = {"gamma": 1.0}
        script = [[0, "bf16"]] if one_gear else [list(shift) for shift in self.shifts]
        policy = {"name": "scripted", "schedule": script}
        precision = {"gears": ["bf16", "fp8"], "min_features": 64, **settings}
        gears = Gears(GreenConfig.load({"precision": precision, "policy": policy}), lambda *_: None)
        gears.attach(model, scaler=None)
        gears.bind(optimizer)
        gears.probe = None
        if settings["gamma"] == "measured" and gears.recorder is not None:
            gears.probe = NoiseProbe(gears.box, gears.recorder, PROBE_EVERY, max_share=1e9)
        order = torch.Generator().manual_seed(seed)
        train = Blocks(self.text.train, self.size.context)
        loader = DataLoader(train, batch_size=BATCH, shuffle=True, generator=order)
        parameters = list(model.parameters())
        seen = np.full((4, self.steps), math.nan)
        for step, batch in zip(range(self.steps), loader, strict=False):
            if rate is not None:
                for group in optimizer.param_groups:
                    group["lr"] = rate
            loss = model(**batch)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            before = torch.cat([p.detach().flatten() for p in parameters])
            slow = gears.gamma()
            optimizer.step()
            change = torch.cat([p.detach().flatten() for p in parameters]) - before
            optimizer.zero_grad()
            schedule.step()
            seen[:, step] = loss.item(), float(norm), float(change.double().square().mean().sqrt()), slow
            if not math.isfinite(seen[0, step]):
                break
        gears.detach()
        final = self.validation(model)
        worse = ~(seen[0] < 2 * math.log(self.size.vocab))
        diverged = int(worse.argmax()) if worse.any() else None
        return Trained(loss=seen[0], gradient=seen[1], update=seen[2], gamma=seen[3], final=final, diverged=diverged)

    @torch.no_grad()
    def validation(self, model: nn.Module) -> float:
        """Return the validation loss in FP32 (nats a token)."""
        val = Blocks(self.text.val, self.size.context, limit=self.validated)
        return float(np.mean([model(**batch).item() for batch in DataLoader(val, batch_size=64)]))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two seeds, 16 steps: to see that it runs")
    parser.add_argument("--out", type=Path, help="also write ablation.png, steps.csv and figures.csv into this folder")
    parser.add_argument("--into", type=Path, help="also put the tables into this text, between their marks")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    text = corpus(vocab=512, max_bytes=1_000_000 if args.quick else 4_000_000)
    size = Size(vocab=text.vocab, width=64, layers=2, heads=2, context=64)
    bench = Bench(text=text, size=size, seeds=SEEDS, segments=5)
    if args.quick:
        bench = Bench(text=text, size=size, seeds=2, segments=3, segment=4, window=2, validated=64)
    runs = train_all(bench)
    ablation, rows = ablation_table(bench, runs)
    tables = [ablation, theorem_table(bench, runs[PLAIN][0])]
    markdown = "\n\n".join(each.markdown() for each in tables)
    print(markdown)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        write_csv(args.out, bench, runs, rows)
        draw(args.out / "ablation.png", bench, runs)
        log(f"written: {args.out}")
    if args.into is not None:
        put(f"{facts(machine('benchmarks/gears_optimizer_ablation.py'))}\n\n{markdown}", args.into, "ablation")
    return 0


def train_all(bench: Bench) -> dict[str, list[Trained]]:
    """Train every arm from every seed."""
    runs: dict[str, list[Trained]] = {}
    for name, arm in [(PLAIN, None), *ARMS.items()]:
        began_s = time.process_time()
        runs[name] = [bench.train(seed, arm) for seed in range(1, bench.seeds + 1)]
        finals = ", ".join(f"{run.final:.3f}" for run in runs[name])
        log(f"{name}: {time.process_time() - began_s:.0f} s of CPU; validation loss {finals}")
    return runs


FIGURES: Final = (
    "gradient variance, to FP8", "gradient variance, back", "update, to FP8", "update, back",
    "loss, to FP8", "loss, back", "validation loss at the end",
)  # fmt: skip
RATIOS: Final = 4
"""So many of them are ratios to BF16 throughout; the others are differences from it."""


def figures_of(bench: Bench, run: Trained, plain: Trained) -> list[float]:
    """Return the FIGURES of a training against that of its seed in BF16: logarithms of ratios, and differences."""
    found = []
    measures: Sequence[tuple[Callable[[Trained], Floats], Callable[[Floats], float]]] = (
        (lambda one: one.gradient, lambda part: math.log(np.var(part, ddof=1))),
        (lambda one: one.update, lambda part: float(np.mean(np.log(part)))),
        (lambda one: one.loss, lambda part: float(np.mean(part))),
    )
    for series, figure in measures:
        for gear in ("fp8", "bf16"):
            gaps = [figure(series(run)[w]) - figure(series(plain)[w]) for w in bench.windows(gear)]
            found.append(float(np.mean(gaps)))
    return [*found, run.final - plain.final]


def interval(values: Sequence[float], comparisons: int) -> tuple[float, float, float]:
    """Return mean and bounds of Student's interval, at 1 - ALPHA for so many intervals together."""
    some = np.asarray(values)
    n = len(some)
    half = float(stdtrit(n - 1, 1 - ALPHA / comparisons / 2)) * float(some.std(ddof=1)) / math.sqrt(n)
    mean = float(some.mean())
    return mean, mean - half, mean + half


def ablation_table(bench: Bench, runs: Mapping[str, Sequence[Trained]]) -> tuple[Table, list[dict[str, Any]]]:
    """Return the table of all arms, and its figures as rows."""
    sound = [name for name in ARMS if all(run.diverged is None for run in runs[name])]
    by_arm = {
        name: [figures_of(bench, run, plain) for run, plain in zip(runs[name], runs[PLAIN], strict=True)]
        for name in sound
    }
    off, four = "gamma off (1)", "gamma 4"
    if off in by_arm and four in by_arm:
        pairs = zip(by_arm[off], by_arm[four], strict=True)
        by_arm["gamma off against gamma 4"] = [[a - b for a, b in zip(*pair, strict=True)] for pair in pairs]
    comparisons = len(by_arm) * len(FIGURES)
    cells: list[list[str]] = []
    rows: list[dict[str, Any]] = []
    for name, values in by_arm.items():
        line = [name]
        for i, figure in enumerate(FIGURES):
            mean, low, high = interval([one[i] for one in values], comparisons)
            if i < RATIOS:
                mean, low, high = (math.exp(min(x, 700.0)) for x in (mean, low, high))  # of two seeds, without end
                line.append(f"x{mean:.3g} ({low:.3g} to {high:.3g})")
            else:
                line.append(f"{mean:+.4f} ({low:+.4f} to {high:+.4f})")
            rows.append({"arm": name, "figure": figure, "mean": mean, "low": low, "high": high})
        cells.append(line)
    for name in ARMS:
        if name not in sound:
            at = sorted(run.diverged for run in runs[name] if run.diverged is not None)
            text = f"diverged in {len(at)} of {bench.seeds} seeds, step {at[0]} to {at[-1]}"
            cells.append([name, text, *[""] * (len(FIGURES) - 1)])
            rows.append({"arm": name, "figure": text, "mean": math.nan, "low": math.nan, "high": math.nan})
    parameters = sum(p.numel() for p in Llama(bench.size).parameters())
    in_fp8 = [step for step in range(bench.steps) if bench.gear(step) == "fp8"]
    gammas = np.concatenate([run.gamma[in_fp8] for run in runs["gamma measured"]])
    base = float(np.mean([run.final for run in runs[PLAIN]]))
    to, back = len(bench.windows("fp8")), len(bench.windows("bf16"))
    notes = (
        f"Measured on a CPU, FP8 emulated: Llama-style GPT of {parameters / 1e6:.2g} M parameters, {bench.steps} steps"
        f" of {BATCH * bench.size.context} tokens, {bench.seeds} seeds, {to} shifts to FP8 and {back} back,"
        f" {bench.window} steps after each.",
        f"Against the same seed in {PLAIN}, whose validation loss is {base:.3f} nats; ratios are geometric means.",
        f"In brackets: 95 % for all {comparisons} intervals together (Student's t, Bonferroni).",
        f"Gamma as measured was {gammas.min():.2f} to {gammas.max():.2f} in FP8, on average {gammas.mean():.3f}.",
        "Controls take the same steps without FP8. Diverged: loss twice that of guessing, or no number.",
        "Published: without gamma the variance of the gradient's norm is 4 times as large, and perplexity worse.",
    )
    title = "AdamW at shifts between BF16 and FP8"
    return Table(case="ablation", title=title, head=["arm", *FIGURES], rows=cells, notes=notes), rows


def theorem_table(bench: Bench, plain: Trained) -> Table:
    """Return what the step sizes of Theorem 3.2 imply for this model.

    Args:
        bench: What is trained.
        plain: The first seed in BF16 throughout.
    """
    torch.manual_seed(1)
    model = Llama(bench.size)
    optimizer, _ = build_optimizer(model, bench.steps, PEAK)
    eps, beta_1 = optimizer.defaults["eps"], optimizer.defaults["betas"][0]
    curvature = largest_curvature(model, bench)
    rate = eps * (1 - beta_1) / curvature
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    gap = torch.nextafter(weights.abs(), torch.tensor(math.inf)) - weights.abs()
    moved = float((gap / 2 < rate).float().mean())
    size = float(weights.square().mean().sqrt())
    start, slow = bench.validation(model), bench.train(1, None, rate=rate).final
    tokens = bench.steps * BATCH * bench.size.context
    rows = [
        ("L, largest eigenvalue of the Hessian at the start", f"{curvature:.3g}", "measured, power iteration"),
        ("Lemma B.3: eta = eps (1 - beta_1) / L", f"{rate:.2g}", f"computed, eps {eps:g}, beta_1 {beta_1:g}"),
        ("peak learning rate of the recipes / that", f"{PEAK / rate:.2g}", "computed"),
        ("steps until a weight of mean size has moved by itself", f"{size / rate:.2g}", "computed, at eta a step"),
        (
            "share of weights that a step of eta changes in FP32",
            f"{moved:.2%}",
            "computed, half a unit in the last place",
        ),
        ("validation loss before / after the run at this eta", f"{start:.4f} / {slow:.4f}", "measured, one seed, BF16"),
        ("the same after the run at the recipes' rate", f"{plain.final:.4f}", "measured, one seed, BF16"),
        (
            "Theorem 3.2: eta = eta_0 / sqrt(B), B of this run",
            f"{PEAK / math.sqrt(tokens):.2g}",
            f"computed, B {tokens:,}",
        ),
        (
            "the same, B of the published budget",
            f"{PEAK / math.sqrt(PUBLISHED_TOKENS):.2g}",
            f"computed, B {PUBLISHED_TOKENS:.0e}; eta_0 is not named, the recipes' peak is put in",
        ),
    ]
    head = ["step sizes of the theorem on switching precision", "value", "how"]
    return Table(case="theorem", title="Step sizes of Theorem 3.2", head=head, rows=rows)


def largest_curvature(model: nn.Module, bench: Bench, rounds: int = 20) -> float:
    """Return the largest eigenvalue of the loss' Hessian on one large batch, by power iteration."""
    batch = next(iter(DataLoader(Blocks(bench.text.train, bench.size.context), batch_size=32)))
    parameters = list(model.parameters())
    generator = torch.Generator().manual_seed(0)
    direction = [torch.randn(p.shape, generator=generator) for p in parameters]
    found = 0.0
    with sdpa_kernel(SDPBackend.MATH):  # the other kernels have no second derivative
        gradient = torch.autograd.grad(model(**batch), parameters, create_graph=True)
        for _ in range(rounds):
            length = torch.stack([d.square().sum() for d in direction]).sum().sqrt()
            direction = [d / length for d in direction]
            along = torch.stack([(g * d).sum() for g, d in zip(gradient, direction, strict=True)]).sum()
            product = torch.autograd.grad(along, parameters, retain_graph=True)
            found = float(sum((p * d).sum() for p, d in zip(product, direction, strict=True)))
            direction = [p.detach() for p in product]
    return abs(found)


def write_csv(
    folder: Path, bench: Bench, runs: Mapping[str, Sequence[Trained]], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Write steps.csv, a line a step of every training, and figures.csv, a line a cell of the table."""
    with (folder / "steps.csv").open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["arm", "seed", "step", "loss_nats", "gradient_norm", "update_rms", "gamma"])
        for name, trained in runs.items():
            for seed, run in enumerate(trained, 1):
                for step in range(bench.steps):
                    figures = (run.loss[step], run.gradient[step], run.update[step], run.gamma[step])
                    out.writerow([name, seed, step, *(f"{figure:.6g}" for figure in figures)])
    with (folder / "figures.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, ["arm", "figure", "mean", "low", "high"])
        table.writeheader()
        table.writerows(rows)


def draw(path: Path, bench: Bench, runs: Mapping[str, Sequence[Trained]]) -> None:
    """Draw gradient, update and loss by step, each as the geometric mean over seeds, the loss less that in BF16."""
    from matplotlib.figure import Figure

    from greentrain.simulator.picture import LINES

    figure = Figure(figsize=(10.5, 8), layout="constrained")
    axes = figure.subplots(3, 1, sharex=True)
    steps = np.arange(bench.steps)
    for (name, trained), colour in zip(runs.items(), LINES, strict=False):
        if any(run.diverged is not None for run in trained):
            continue
        losses = np.mean([run.loss - plain.loss for run, plain in zip(trained, runs[PLAIN], strict=True)], axis=0)
        lines = [
            np.exp(np.mean([np.log(run.gradient) for run in trained], axis=0)),
            np.exp(np.mean([np.log(run.update) for run in trained], axis=0)),
            losses,
        ]
        for axis, line in zip(axes, lines, strict=True):
            axis.plot(steps, line, "--" if name.startswith("control") else "-", color=colour, linewidth=1, label=name)
    ends = [step for step, _ in bench.shifts[1:]] + [bench.steps]
    for axis, title in zip(axes, ("gradient norm", "update, rms", "loss less BF16's (nats)"), strict=True):
        axis.set_ylabel(title)
        for (step, gear), end in zip(bench.shifts, ends, strict=True):
            if gear == "fp8":
                axis.axvspan(step, end, color="#bfe8d2", alpha=0.5, linewidth=0)
    axes[0].set_yscale("log")
    axes[1].set_yscale("log")
    axes[0].legend(fontsize=8)
    axes[0].set_title(
        f"Measured on a CPU, FP8 emulated (shaded); mean of {bench.seeds} seeds; arms that diverged left out"
    )
    axes[2].set_xlabel("step")
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    raise SystemExit(main())
