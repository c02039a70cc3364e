"""Profiling steps until a power limit is chosen, and how good it is: GreenTrain's search, and Zeus' sweep.

    python benchmarks/actuation_profile.py            # half a minute
    python benchmarks/actuation_profile.py --seeds 3  # to see that it runs

Both meet the same simulated training, whose steps last and draw what Zeus recorded under each limit
(``benchmarks/zeus_sweeps.py``), without noise or with steps that vary. Zeus is the installed package's own
``GlobalPowerLimitOptimizer`` with its defaults; only the driver and the monitor below it are ours.

Zeus measures every limit for 40 steps and so sees less noise; what that is worth is the difference in regret. The
tolerances of ``greentrain.control.profiling.profiler`` were set with these traces at hand, so they are no independent
test of
them; ``tests/control/profiling/test_cap_search.py`` has one, against a model of a card.
"""

import argparse
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.zeus_sweeps import STEPS, SWEEPS, Sweep
from greentrain.control.profiling.profiler import GearProfiler
from greentrain.policy.action_table import ActionObjective, choose
from greentrain.types import Gear, Provenance

MODERN_W: Final = tuple(range(700, 175, -25))
"""21 limits: those of an H100 SXM (200 to 700 W, NVIDIA H100 datasheet), in Zeus' steps."""
NOISE: Final = 0.05
"""Standard deviation of a step's time, as a share; assumed."""
MOST_STEPS: Final = 200


class Training:
    """Steps under a limit, in simulated time.

    Args:
        sweep: What a step takes and draws.
        noise: Standard deviation of a step's time, as a share; its power is that of the limit.
        seed: Of the noise.
    """

    def __init__(self, sweep: Sweep, noise: float = 0.0, seed: int = 0) -> None:
        self._rows = {
            limit_w: (seconds / STEPS, joules / seconds)
            for limit_w, seconds, joules in zip(sweep.limits_w, sweep.seconds, sweep.joules, strict=True)
        }
        self._noise, self._dice = noise, random.Random(seed)
        self._spent: list[tuple[float, float, float]] = []
        self.sweep = sweep
        self.limit_w = sweep.limits_w[0]
        self.t_s = 0.0
        self.steps = 0

    def step(self) -> None:
        """Train a step under the limit that is set."""
        seconds, power_w = self._rows[self.limit_w]
        seconds *= max(0.2, 1.0 + self._dice.gauss(0.0, self._noise))
        self._spent.append((self.t_s, self.t_s + seconds, power_w))
        self.t_s += seconds
        self.steps += 1

    def energy(self, t0_s: float, t1_s: float) -> Mapping[str, float]:
        """Return the joules between two times."""
        return {"gpus": sum(max(0.0, min(t1_s, b) - max(t0_s, a)) * w for a, b, w in self._spent)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """How one tool got to its limit."""

    limit_w: int
    steps: int
    seconds: float
    measured: int
    """Limits that it measured."""


def ours(training: Training, objective: ActionObjective) -> Chosen:
    """Profile by GreenTrain's search, with the settings of ``profile_gears()``."""
    sweep = training.sweep
    limits = {limit_w / sweep.limits_w[0]: limit_w for limit_w in sweep.limits_w}
    profiler = GearProfiler(
        (Gear.BF16,),
        energy=training.energy,
        provenance=lambda: {"gpus": Provenance.MEASURED},
        clock=lambda: training.t_s,
        caps=tuple(limits),
        score=objective.score,
        max_slowdown=objective.max_slowdown,
        rounds=4,
        max_steps=MOST_STEPS,
    )
    while not profiler.done:
        training.limit_w = limits[profiler.cap]
        training.step()
        profiler.boundary(training.t_s)
    table = profiler.table()
    return Chosen(
        limit_w=limits[choose(table, objective).action.cap],
        steps=profiler.steps,
        seconds=training.t_s,
        measured=len(table.costs),
    )


def zeus(training: Training, objective: ActionObjective) -> Chosen:
    """Profile by Zeus' own optimizer.

    Raises:
        ImportError: Zeus is not installed.
    """
    from zeus.optimizer import power_limit

    with _driver(training):
        selector = (
            power_limit.Energy()
            if objective.name == "energy"
            else power_limit.ZeusCost(eta_knob=objective.eta, world_size=training.sweep.gpus)
        )
        optimizer = power_limit.GlobalPowerLimitOptimizer(_Monitor(training), optimum_selector=selector)
        optimizer.on_epoch_begin()
        while True:
            optimizer.on_step_begin()
            if isinstance(optimizer.state, power_limit.Done):
                break
            training.step()
            optimizer.on_step_end()
    return Chosen(
        limit_w=training.limit_w,
        steps=training.steps,
        seconds=training.t_s,
        measured=len(optimizer.measurements),
    )


class _Monitor:
    """What Zeus' optimizer asks of a ZeusMonitor."""

    def __init__(self, training: Training) -> None:
        self.gpu_indices = list(range(training.sweep.gpus))
        self._training = training
        self._began_s = 0.0

    def begin_window(self, name: str, **_: Any) -> None:
        self._began_s = self._training.t_s

    def end_window(self, name: str, **_: Any) -> Any:
        from zeus.monitor import Measurement

        now_s = self._training.t_s
        joules = sum(self._training.energy(self._began_s, now_s).values())
        return Measurement(
            time=now_s - self._began_s, gpu_energy={i: joules / len(self.gpu_indices) for i in self.gpu_indices}
        )


class _Gpus:
    """What it asks of the driver."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def get_power_management_limit_constraints(self, index: int) -> tuple[int, int]:
        limits_w = self._training.sweep.limits_w
        return 1000 * limits_w[-1], 1000 * limits_w[0]

    def set_persistence_mode(self, index: int, **_: Any) -> None:
        pass

    def set_power_management_limit(self, index: int, limit_mw: int) -> None:
        self._training.limit_w = limit_mw // 1000


class _Nothing:
    """In place of ``atexit``: there is no card whose limit must be put back."""

    @staticmethod
    def register(action: Callable[[], Any]) -> None:
        pass


@contextmanager
def _driver(training: Training) -> Iterator[None]:
    from zeus.optimizer import power_limit

    before = power_limit.get_gpus, power_limit.atexit
    gpus = _Gpus(training)
    power_limit.get_gpus, power_limit.atexit = (lambda **_: gpus), _Nothing
    try:
        yield
    finally:
        power_limit.get_gpus, power_limit.atexit = before


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One trace: figures by tool, Zeus first, of all objectives and seeds."""

    trace: str
    limits: int
    steps: tuple[float, float]
    """Most steps of any run."""
    seconds: tuple[float, float]
    """Mean length of the phase (s)."""
    measured: float
    """Mean number of limits that GreenTrain measured; Zeus measures all."""
    regret: Mapping[str, tuple[float, float]]
    """By objective: how much more the chosen limit costs than the best one of the trace, as a mean share."""

    @property
    def ratio(self) -> float:
        """Return Zeus' steps as a multiple of ours."""
        return self.steps[0] / self.steps[1]


def rows(sweeps: Sequence[Sweep], *, noise: float = 0.0, seeds: int = 1) -> list[Row]:
    """Run both tools on each trace, for least energy and for Zeus' cost of eta 0.5.

    Args:
        sweeps: The traces.
        noise: Standard deviation of a step's time, as a share.
        seeds: Runs of each.
    """
    out = []
    for sweep in sweeps:
        found: dict[str, list[tuple[Chosen, Chosen]]] = {}
        regret: dict[str, tuple[float, float]] = {}
        limit_w = float(sweep.limits_w[0] * sweep.gpus)
        for objective in (ActionObjective(), ActionObjective(name="cost", eta=0.5, limit_w=limit_w)):
            pairs = [
                (zeus(Training(sweep, noise, seed), objective), ours(Training(sweep, noise, seed), objective))
                for seed in range(seeds)
            ]
            truth = {
                w: objective.score(STEPS / seconds, joules / seconds)
                for w, seconds, joules in zip(sweep.limits_w, sweep.seconds, sweep.joules, strict=True)
            }
            least = min(truth.values())
            theirs, mine = zip(*[[truth[one.limit_w] / least - 1 for one in pair] for pair in pairs], strict=True)
            found[objective.name] = pairs
            regret[objective.name] = (statistics.fmean(theirs), statistics.fmean(mine))
        every = [pair for pairs in found.values() for pair in pairs]
        out.append(
            Row(
                trace=str(sweep),
                limits=len(sweep.limits_w),
                steps=(max(a.steps for a, _ in every), max(b.steps for _, b in every)),
                seconds=(statistics.fmean(a.seconds for a, _ in every), statistics.fmean(b.seconds for _, b in every)),
                measured=statistics.fmean(b.measured for _, b in every),
                regret=regret,
            )
        )
    return out


def cases(seeds: int) -> dict[str, list[Row]]:
    """Return the rows of each table, by title."""
    stretched = [sweep.stretched(MODERN_W) for sweep in SWEEPS]
    return {
        "As recorded": rows(SWEEPS),
        f"As recorded, steps vary by {NOISE:.0%}, {seeds} runs": rows(SWEEPS, noise=NOISE, seeds=seeds),
        "The same shapes on a card of 700 to 200 W": rows(stretched),
        f"The same shapes on a card of 700 to 200 W, steps vary by {NOISE:.0%}, {seeds} runs": rows(
            stretched, noise=NOISE, seeds=seeds
        ),
    }


def markdown(title: str, table: Sequence[Row]) -> str:
    """Return a table, with its means in the last line."""
    lines = [
        f"**{title}**",
        "",
        "| trace | limits | Zeus, steps | GreenTrain, steps | ratio | limits measured | phase, s: Zeus, GreenTrain"
        " | regret, energy: Zeus, GreenTrain | regret, eta 0.5: Zeus, GreenTrain |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in table:
        regrets = [f"{a:.1%}, {b:.1%}" for a, b in row.regret.values()]
        lines.append(
            f"| {row.trace} | {row.limits} | {row.steps[0]:.0f} | {row.steps[1]:.0f} | {row.ratio:.1f}"
            f" | {row.measured:.1f} | {row.seconds[0]:.0f}, {row.seconds[1]:.0f} | {' | '.join(regrets)} |"
        )
    names = list(table[0].regret)
    mean = [", ".join(f"{statistics.fmean(row.regret[n][i] for row in table):.2%}" for i in (0, 1)) for n in names]
    seconds = ", ".join(f"{statistics.fmean(row.seconds[i] for row in table):.0f}" for i in (0, 1))
    ratio = statistics.fmean(row.ratio for row in table)
    lines.append(f"| mean | | | | {ratio:.1f} | | {seconds} | {' | '.join(mean)} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="runs of each trace with noise")
    args = parser.parse_args(argv)
    for title, table in cases(args.seeds).items():
        print(markdown(title, table), end="\n\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
