"""The batch size and power limit of a training that recurs: GreenTrain, Zeus and others on Zeus' own recorded sweeps.

    python benchmarks/tune_batch.py             # two minutes
    python benchmarks/tune_batch.py --quick     # to see that it runs

Zeus' authors trained six models with 5 to 15 batch sizes, several times each, and profiled every power limit on four
GPUs (``benchmarks/data/zeus_nsdi23``). A training is drawn from these; a tool says the batch size, the limit is the one
whose epoch is cheapest, found by profiling all in the first epoch of a size, as Zeus does: alike for all tools. A run
that would cost more than twice the cheapest so far is stopped before the epoch that would; one that was stopped or
did not reach the target is followed by another, until the job is done.

Zeus is the installed package's own ``PruningGTSBatchSizeOptimizer``, the optimizer of its paper with its defaults; the
one of its server is the same two stages. The rules are those of its own simulator (``zeus._legacy.simulate``), with
which ``tests/policy/test_batch_size.py`` compares them.
"""

import argparse
import csv
import lzma
import math
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.metering import machine
from benchmarks.tables import Cases, Table
from greentrain.policy.batch_size import SETTLED, BatchSearch, BatchTrial

DATA: Final = Path(__file__).parent / "data" / "zeus_nsdi23"
GPUS: Final = ("a40", "v100", "p100", "rtx6000")
JOBS: Final = {
    "cifar100": ("shufflenetv2", "adadelta", 0.6, 100, 1024),
    "imagenet": ("resnet50", "adadelta", 0.65, 100, 256),
    "librispeech": ("deepspeech2", "adamw", 40.0, 16, 192),
    "movielens-1m": ("ncf", "adam", 0.41, 100, 1024),
    "sentiment140": ("bert_base_uncased", "adamw", 0.84, 10, 128),
    "squad": ("bert_base_uncased", "adamw", 84.0, 6, 32),
}
"""Network, optimizer, target, most epochs and usual batch size, as in the repository's ``run_alibaba.py``; where a GPU
has no such size, its largest."""
HOPELESS: Final = 2.0
MOST_TRIES: Final = 20
"""In Zeus' simulator."""


def rows(name: str) -> list[dict[str, str]]:
    """Return the rows of one of the recorded files."""
    with lzma.open(DATA / f"{name}.csv.xz", "rt", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One job on one GPU, as it was recorded."""

    gpu: str
    dataset: str
    epochs: dict[int, list[float]]
    """Epochs to the target of each recorded training by batch size; infinite where it did not get there."""
    limits: dict[int, dict[int, tuple[float, float]]]
    """Seconds of an epoch and watts by batch size and power limit."""
    default: int
    most_epochs: int
    eta: float
    """Weight of energy: a cost is eta E + (1 - eta) P t, with the largest limit as P (Zeus, Eq. 2)."""

    @cached_property
    def epoch(self) -> dict[int, dict[int, float]]:
        """Cost of an epoch by batch size and power limit."""
        top = max(limit for limits in self.limits.values() for limit in limits)
        return {
            batch: {limit: s * (self.eta * w + (1 - self.eta) * top) for limit, (s, w) in limits.items()}
            for batch, limits in self.limits.items()
        }

    def expected(self, batch: int, limit: int | None = None) -> float:
        """Return the mean cost of reaching the target; infinite where a recorded training did not get there."""
        costs = self.epoch[batch]
        epochs = statistics.fmean(self.epochs[batch])
        return (min(costs.values()) if limit is None else costs[limit]) * (
            epochs if max(self.epochs[batch]) <= self.most_epochs else math.inf
        )

    @property
    def optimum(self) -> float:
        """The least mean cost."""
        return min(map(self.expected, self.epochs))

    def run(self, batch: int, most: float, dice: random.Random, *, profiled: bool) -> tuple[float, bool]:
        """Return what a training costs and whether it got to the target before it was given up."""
        best, every = min(self.epoch[batch].values()), statistics.fmean(self.epoch[batch].values())
        allowed = min(self.most_epochs, most // best) if math.isfinite(most) else self.most_epochs
        if allowed < 1:
            return 0.0, False
        needed = dice.choice(self.epochs[batch])
        epochs = min(needed, allowed)
        return best * epochs + (0.0 if profiled else every - best), needed <= allowed


def sweep_of(gpu: str, dataset: str, eta: float) -> Sweep:
    """Return one job on one GPU."""
    network, optimizer, target, most_epochs, default = JOBS[dataset]
    key = (dataset, network, optimizer)
    limits: dict[int, dict[int, tuple[float, float]]] = {}
    for row in rows(f"summary_power_{gpu}"):
        if (row["dataset"], row["network"], row["optimizer"]) == key:
            found = float(row["time_per_epoch"]), float(row["average_power"])
            limits.setdefault(int(row["batch_size"]), {})[int(row["power_limit"])] = found
    epochs: dict[int, list[float]] = {}
    for row in rows("summary_train"):
        if (
            (row["dataset"], row["network"], row["optimizer"]) == key
            and math.isclose(float(row["target_metric"]), target)
            and int(row["batch_size"]) in limits
        ):
            found_at = float(row["target_epoch"] or "inf")
            epochs.setdefault(int(row["batch_size"]), []).append(math.inf if math.isnan(found_at) else found_at)
    return Sweep(
        gpu=gpu,
        dataset=dataset,
        epochs=dict(sorted(epochs.items())),
        limits={batch: limits[batch] for batch in epochs},
        default=min(default, max(epochs)) if default not in epochs else default,
        most_epochs=most_epochs,
        eta=eta,
    )


class Tool(Protocol):
    """Says batch sizes and is told what they cost."""

    def next(self) -> int:
        """Return the size of the next run."""

    def tell(self, batch: int, cost: float, reached: bool) -> None:
        """Take note of what it cost."""

    def chosen(self) -> int | None:
        """Return the size that it would keep; None while it still searches."""


class Ours:
    """GreenTrain's search."""

    def __init__(self, sweep: Sweep, seed: int) -> None:
        self._search = BatchSearch(sweep.epochs, sweep.default, seed=seed)
        self._trials: list[BatchTrial] = []

    def next(self) -> int:
        """Return the size of the next run."""
        return self._search.next(self._trials)

    def tell(self, batch: int, cost: float, reached: bool) -> None:
        """Take note of what it cost."""
        self._trials.append(BatchTrial(batch=batch, cost=cost, reached=reached))

    def chosen(self) -> int | None:
        """Return the size that it would keep."""
        return self._search.best(self._trials) if self._search.loss(self._trials) <= SETTLED else None


class Zeus:
    """The installed Zeus."""

    def __init__(self, sweep: Sweep, seed: int) -> None:
        from zeus._legacy.job import Job
        from zeus._legacy.policy.optimizer import PruningGTSBatchSizeOptimizer

        network, optimizer, target, most_epochs, _ = JOBS[sweep.dataset]
        self._job = Job(sweep.dataset, network, optimizer, target, most_epochs, sweep.default)
        self._policy = PruningGTSBatchSizeOptimizer(seed=seed, verbose=False)
        self._policy.register_job(self._job, list(sweep.epochs))
        self._costs: dict[int, list[float]] = {}
        self._least = math.inf

    def next(self) -> int:
        """Return the size of the next run."""
        return int(self._policy.predict(self._job))

    def tell(self, batch: int, cost: float, reached: bool) -> None:
        """Take note of what it cost; of a run that never began what its simulator says."""
        self._least = min(self._least, cost if reached else math.inf)
        self._policy.observe(self._job, batch, cost or 100 * HOPELESS * self._least, reached)
        if reached:
            self._costs.setdefault(batch, []).append(cost)

    def chosen(self) -> int | None:
        """Return the size of the least mean, once its pruning is over."""
        manager = self._policy.exp_manager[self._job]
        if self._job not in self._policy.mabs:
            return None
        return min(map(int, manager.batch_sizes), key=lambda b: statistics.fmean(self._costs[b]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How a job went that recurred; costs over that of a training at the optimum."""

    all: float
    """Mean of all recurrences."""
    first: float
    """Mean of the first 2 x sizes."""
    last: float
    """Expected cost of the sizes of the last five."""
    search: float
    """Sum of all runs until a size was chosen."""
    chosen: float
    """Expected cost of that size."""


def course(sweep: Sweep, make: Callable[[Sweep, int], Tool], seed: int, recurrences: int | None = None) -> Course:
    """Let a job recur 2 x sizes x limits times, as often as in Zeus' paper."""
    tool, dice = make(sweep, seed), random.Random(seed)
    sizes = len(sweep.epochs)
    recurrences = recurrences or 2 * sizes * len(next(iter(sweep.limits.values())))
    profiled: set[int] = set()
    least, sums, last, search, kept = math.inf, [], [], math.nan, None
    for _ in range(recurrences):
        spent = 0.0
        for _ in range(MOST_TRIES):
            batch = tool.next()
            cost, reached = sweep.run(batch, HOPELESS * least, dice, profiled=batch in profiled)
            profiled.add(batch)
            spent += cost
            tool.tell(batch, cost, reached)
            if reached:
                break
        else:
            raise RuntimeError(f"{sweep.gpu} {sweep.dataset}: no run of {MOST_TRIES} reached the target")
        least = min(least, spent)
        sums.append(spent)
        last.append(batch)
        if kept is None and (kept := tool.chosen()) is not None:
            search = sum(sums)
    best = sweep.optimum
    return Course(
        all=statistics.fmean(sums) / best,
        first=statistics.fmean(sums[: 2 * sizes]) / best,
        last=statistics.fmean(map(sweep.expected, last[-5:])) / best,
        search=search / best,
        chosen=math.nan if kept is None else sweep.expected(kept) / best,
    )


def grid_search(sweep: Sweep, seed: int) -> tuple[float, float]:
    """Return what trying each batch size once with each limit costs, and the expected cost of the cheapest found."""
    dice, top, tried = random.Random(seed), 0.0, {}
    for batch, limits in sweep.epoch.items():
        for limit, epoch in limits.items():
            needed = dice.choice(sweep.epochs[batch])
            top += epoch * min(needed, sweep.most_epochs)
            if needed <= sweep.most_epochs:
                tried[batch, limit] = epoch * needed
    return top / sweep.optimum, sweep.expected(*min(tried, key=lambda pair: tried[pair])) / sweep.optimum


def table_of(eta: float, seeds: int, case: str, title: str) -> Table:
    """Return the table of one weight of energy."""
    made, reached, sums = [], 0, []
    for gpu in GPUS:
        for dataset in JOBS:
            sweep = sweep_of(gpu, dataset, eta)
            ours, zeus = ([course(sweep, tool, seed) for seed in range(seeds)] for tool in (Ours, Zeus))
            grid = [grid_search(sweep, seed) for seed in range(seeds)]
            plain = sweep.expected(sweep.default, max(sweep.limits[sweep.default])) / sweep.optimum
            figures = [
                *(
                    mean(getattr(c, name) for c in tool)
                    for name in ("all", "first", "last", "search", "chosen")
                    for tool in (ours, zeus)
                ),
                statistics.fmean(cost for cost, _ in grid),
                statistics.fmean(found for _, found in grid),
                plain,
            ]
            sums.append(figures)
            made.append(
                [
                    gpu,
                    dataset,
                    str(len(sweep.epochs)),
                    *(f"{figure:.3g}" if figure >= 10 else f"{figure:.2f}" for figure in figures),
                ]
            )
    means = [mean(figures) for figures in zip(*sums, strict=True)]
    made.append(["all", "", "", *(f"**{figure:.3g}**" if figure >= 10 else f"**{figure:.3f}**" for figure in means)])
    held = [
        mean(row[i] for row, name in zip(sums, made, strict=False) if name[0] in ("p100", "rtx6000")) for i in range(4)
    ]
    bars = [*((means[i], means[i + 1]) for i in (0, 2, 4, 6)), (held[0], held[1]), (held[2], held[3])]
    reached = sum(ours <= zeus for ours, zeus in bars)
    worse = sum(row[0] > row[1] for row in sums)
    head = ["GPU", "job", "sizes"]
    head += [f"{what}, {who}" for what in ("all", "first", "last", "search", "chosen") for who in ("ours", "Zeus")]
    return Table(
        case=case,
        title=title,
        head=[*head, "search, grid", "chosen, grid", "as usual"],
        rows=made,
        notes=[
            "All figures over the oracle: a training with the batch size and limit of least expected cost, which is 1.",
            "all: mean of 2 x sizes x limits recurrences; first: of the first 2 x sizes; last: expected cost of"
            " the sizes of the last five; search: sum of all trainings"
            " until the tool has chosen, in trainings at the optimum; chosen: expected cost of what it chose. As"
            " usual: the default batch size at the full limit.",
            f"Means of {seeds} seeds. On P100 and RTX 6000, by which no constant was chosen (some rows of P100 had been"
            f" seen): all {held[0]:.3f},"
            f" Zeus {held[1]:.3f}; first {held[2]:.3f}, Zeus {held[3]:.3f}. In {worse} of {len(sums)} rows ours costs"
            " more than Zeus over all recurrences.",
            "Bars: not worse than Zeus in the means of all, first, last and search, and of all and first on the"
            f" held-out GPUs. What ours chose, which was a bar at first, costs {means[8]:.3f}, Zeus' {means[9]:.3f},"
            " which spends"
            f" {means[7] / means[6]:.2f} times as much before it chooses.",
        ],
        passed=reached,
        missed=len(bars) - reached,
    )


def mean(values: Any) -> float:
    """Return the mean of the values that are there."""
    known = [value for value in values if not math.isnan(value)]
    return statistics.fmean(known) if known else math.nan


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--into", type=Path, help="document with the marks")
    parser.add_argument("--json", type=Path, help="file of the figures")
    args = parser.parse_args(argv)
    makers: dict[str, Callable[[int], list[Table]]] = {
        "batch": lambda seeds: [
            table_of(0.5, seeds, "batch", "Zeus' cost, eta 0.5"),
            table_of(1.0, seeds, "batch", "Energy alone, eta 1"),
        ]
    }
    cases = Cases(makers=makers, about=machine("benchmarks/tune_batch.py"))
    cases.run(list(makers), 1 if args.quick else args.seeds, into=args.into, as_json=args.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
