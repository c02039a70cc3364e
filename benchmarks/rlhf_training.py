"""How the learned placement learns: 20 seeds, held to the oracle and to the threshold of Proposition 1 (Fig. 4C).

    python benchmarks/rlhf_training.py --out build/rlhf        # both figures, PNG and CSV; a quarter of an hour
    python benchmarks/rlhf_training.py --quick                 # to see that it runs
    python benchmarks/rlhf_training.py --into docs/rlhf-scheduler.md

``curve``     our network and reward, and EcoRL-Sched's (ReLU behind LayerNorm; 0.4 throughput - 0.4 energy - 0.2
              bubbles), each seed judged on runs that it never sees, by either reward
``online``    trained networks go on learning on one machine's steps, as a scheduler that adapts in its run would

1 is an oracle that knows the true costs and takes the plan that the reward rates highest, 0 everything on the GPU.
Steps are drawn from assumed ranges in the published mix of tasks (``tools.placement_tasks``), so every row is modelled.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks.figures import Line, Panel, Row, Sheet, arguments, make
from tools.offload_policies import open_offload_policy
from tools.placement_env import DECISIONS, Action
from tools.placement_runs import REWARDS, Replay, Runs
from tools.placement_tasks import SameStep
from tools.train_offload import LEARNING_RATE, train

if TYPE_CHECKING:
    from stable_baselines3 import PPO


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is drawn and trained."""

    seeds: int = 20
    """As published."""
    steps: int = 40_960
    """Decisions of a training."""
    looks: int = 4
    """Times that it is judged meanwhile."""
    drawn: int = 1_500
    """Runs that all trainings share, each in an order of its own."""
    held: int = 400
    """Runs that judge."""
    online: int = 1_024
    """Decisions of the run in which a trained network goes on learning."""
    machine: int = 32
    """Runs drawn of each machine, as many to learn from as to judge by."""


QUICK: Final = Size(seeds=2, steps=4_096, looks=2, drawn=12, held=20, online=128, machine=2)
ARMS: Final = {"ours": ("tanh", "saved"), "published": ("published", "published")}
"""Network and reward of each."""
FIXED: Final = {"edi-published": "threshold (Proposition 1)", "edi-rule": "edi-rule"}
"""Policies that do not learn, and what they are called here."""
FIRST: Final = {"train": 100_000, "held": 20_000, "online": 300_000}
"""First seed of the runs of each kind."""
BESIDE: Final = 64
PERCENT: Final = (10.0, 90.0)
"""Band over the seeds."""
_DRAWN: Final = (
    "Steps drawn from assumed ranges, tasks mixed 40/25/20/15 as published; the judge is the timeline of the rule."
)


class Looks(BaseCallback):
    """Judges an agent from time to time.

    Args:
        held: Runs that judge it.
        every: Decisions from one time to the next.
    """

    def __init__(self, held: Runs, every: int) -> None:
        super().__init__()
        self._held, self._every = held, every
        self.found: dict[int, dict[str, tuple[float, float]]] = {}
        """What it was worth, by decisions so far and reward."""

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps % self._every == 0:
            self.found[self.num_timesteps] = scores(self.model, self._held)

    def _on_training_end(self) -> None:
        self._on_rollout_start()


def scores(agent: BaseAlgorithm, held: Runs) -> dict[str, tuple[float, float]]:
    """Return what the most likely actions of an agent are worth, and the oracle's, by reward."""
    everyone = np.arange(len(held.seen))

    def act(decision: int, kept: Action) -> Action:
        found: Action = agent.predict(held.at(everyone, decision, kept), deterministic=True)[0]
        return found

    return {reward: held.judged(reward, act) for reward in REWARDS}


@cache
def held_of(size: Size) -> Runs:
    """Return the runs that judge."""
    return Runs.drawn(range(FIRST["held"], FIRST["held"] + size.held))


@cache
def trained(size: Size) -> Mapping[str, Sequence[tuple["PPO", Looks]]]:
    """Return the agents of each arm, one a seed, with what was seen of them."""
    torch.set_num_threads(1)
    drawn = Runs.drawn(range(FIRST["train"], FIRST["train"] + size.drawn))
    found: dict[str, list[tuple[PPO, Looks]]] = {}
    for arm, (network, reward) in ARMS.items():
        for seed in range(size.seeds):
            looks = Looks(held_of(size), size.steps // size.looks)
            env = Replay(drawn, reward, BESIDE, seed)
            agent = train(steps=size.steps, seed=seed, network=network, env=env, watch=looks, n_steps=2048 // BESIDE)
            found.setdefault(arm, []).append((agent, looks))
            print(f"{arm}, seed {seed}: {_score(looks, size.steps, reward):.3f}", file=sys.stderr, flush=True)
    return found


def _score(looks: Looks, step: int, reward: str) -> float:
    earned, best = looks.found[step][reward]
    return earned / best


def _spread(key: str, values: Sequence[float]) -> dict[str, float]:
    low, high = np.percentile(values, PERCENT)
    return {key: float(np.mean(values)), "p10": float(low), "p90": float(high)}


def curve(size: Size) -> Sheet:
    """Scores of both arms over their training, by either reward."""
    known = trained(size)
    fixed = {name: open_offload_policy(name) for name in FIXED}
    rows: list[Row] = []
    panels, notes = [], []
    for reward in REWARDS:
        lines = []
        for arm, agents in known.items():
            at = list(agents[0][1].found)
            some = [
                {
                    "judged_by": reward,
                    "placement": arm,
                    "decisions": step,
                    **_spread("score", [_score(looks, step, reward) for _, looks in agents]),
                    "provenance": "modelled",
                }
                for step in at
            ]
            rows += some
            ends = {key: [float(row[key]) for row in some] for key in ("score", "p10", "p90")}
            shown = {key: values[1:] for key, values in ends.items()}  # untrained it is far below 0
            lines.append(Line(name=arm, x=at[1:], y=shown["score"], low=shown["p10"], high=shown["p90"]))
        judged = {name: held_of(size).judged_policy(reward, policy) for name, policy in fixed.items()}
        level = {name: earned / best for name, (earned, best) in judged.items()}
        for name, score in {**level, "oracle": 1.0}.items():
            told = FIXED.get(name, name)
            rows.append({"judged_by": reward, "placement": told, "score": score, "provenance": "modelled"})
            lines.append(Line(name=told, x=[0.0, float(size.steps)], y=[score, score], dashed=True))
        panels.append(Panel(title=f"judged by the reward: {reward}", x="decisions", y="score", lines=lines))
        last = {arm: float(np.mean([_score(looks, size.steps, reward) for _, looks in known[arm]])) for arm in known}
        threshold = level["edi-published"]
        closed = ", ".join(f"{arm} {(end - threshold) / (1 - threshold):.0%}" for arm, end in last.items())
        notes.append(f"By the reward {reward!r}, closed of the gap from the threshold to the oracle: {closed}.")
    return Sheet(
        name="curve",
        title="The learned placement over its training, modelled",
        panels=panels,
        rows=rows,
        notes=[
            f"{size.seeds} seeds, band of the middle 80 %; {size.held * DECISIONS} decisions judge. {_DRAWN}",
            "Score: reward above everything on the GPU, of that of a clairvoyant oracle, which is 1.",
            *notes,
            "Published: 71 % of the gap closed, which the figures beside it make 87 %; its costs of a step are not"
            " known to us, so neither can be reproduced.",
        ],
    )


def online(size: Size) -> Sheet:
    """What trained networks of ours lose while they go on learning in a run, deciding at each step."""
    machines = [SameStep.drawn(np.random.default_rng(FIRST["online"] + seed)) for seed in range(size.seeds)]
    held, own = (
        [Runs.drawn(range(FIRST[kind], FIRST[kind] + size.machine), one) for one in machines]
        for kind in ("held", "train")
    )
    lost: dict[int, list[float]] = {}
    for seed, (start, _) in enumerate(trained(size)["ours"]):
        looks = Looks(held[seed], 128)
        train(
            steps=size.online, seed=seed, env=Replay(own[seed], "saved", 1, seed), watch=looks, start=start,
            n_steps=128, batch_size=128, learning_rate=LEARNING_RATE,
        )  # fmt: skip
        for step, found in looks.found.items():
            earned, best = found["saved"]
            lost.setdefault(step, []).append(100 * (best - earned))
        print(f"seed {seed}: {lost[0][-1]:.2f} to {lost[size.online][-1]:.2f} %", file=sys.stderr, flush=True)
    rows: list[Row] = [
        {
            "placement": "ours, learning",
            "decisions": step,
            **_spread("lost_percent", values),
            "provenance": "modelled",
        }
        for step, values in lost.items()
    ]
    ends = {key: [float(row[key]) for row in rows] for key in ("lost_percent", "p10", "p90")}
    lines = [Line(name="ours, learning", x=list(lost), y=ends["lost_percent"], low=ends["p10"], high=ends["p90"])]
    judged = [one.judged_policy("saved", open_offload_policy("edi-rule")) for one in held]
    rule = _spread("lost_percent", [100 * (best - earned) for earned, best in judged])
    rows.append({"placement": "edi-rule", **rule, "provenance": "modelled"})
    level = [rule["lost_percent"]] * 2
    lines.append(Line(name="edi-rule, which learns nothing", x=[0.0, float(size.online)], y=level, dashed=True))
    return Sheet(
        name="online",
        title="A placement that learns on in its run, modelled",
        panels=[Panel(title=f"{size.seeds} machines", x="decisions of the run", y="% lost to the oracle", lines=lines)],
        rows=rows,
        notes=[
            f"Each of the {size.seeds} networks of the curve in a run on a machine of its own: PPO every 128 decisions,"
            f" judged by {size.machine * DECISIONS} others of that machine. Lost: joules, and time beyond the bound,"
            " as a share of everything on the GPU.",
            f"{_DRAWN} Deciding every hundred steps, a thousand steps give ten decisions.",
            "The paper has online adaptation as future work, without a method: this one is ours.",
        ],
    )


FIGURES: Final = {"curve": curve, "online": online}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two seeds of a short training: to see that it runs")
    args = arguments(parser, FIGURES, argv)
    if args.into is not None and args.quick:
        parser.error("--into replaces all tables, so it goes without --quick")
    size = QUICK if args.quick else Size()
    return make({name: partial(figure, size) for name, figure in FIGURES.items()}, args, "training")


if __name__ == "__main__":
    raise SystemExit(main())
