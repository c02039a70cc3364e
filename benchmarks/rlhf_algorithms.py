"""GRPO, RLOO, PPO, DAPO and REINFORCE++ as real, small trainings beside supervised fine-tuning of the same model.

    python benchmarks/rlhf_algorithms.py                                  # some minutes on one core
    python benchmarks/rlhf_algorithms.py --quick                          # to see that it runs
    python benchmarks/rlhf_algorithms.py --into docs/rlhf-pipeline.md

``algorithms``  speed, joules and grams to a target, reward, KL and loss at the end (EcoRL-Sched, Fig. 5C, 8D, Table 6)
``stages``      shares of the joules by stage (Fig. 8D)
``kl_weight``   what the weight of the KL penalty changes, and what it does not (Table 5)

The policy, the judge and the loops are those of recipes/raw: a GPT of 0.3 M parameters completes lines of Python's own
source, and a reward model says how real they look. SFT goes on learning that source. Each seed has its own policy and
judge, the same for all arms. Scores are from 0, the policy's as it begins, to 1, those of the library's own lines: the
target is half of that way, by the mean of three evaluations. All passes run on this CPU in floating point, each waited
for.

Rewards, KL and loss are measured. Joules are those of the session, modelled where no sensor is, and put down to steps
by their CPU time. Run it on an idle machine: a process that waits for a core is still charged its share of idle power.
Speed is by CPU time, so that other work counts for nothing. Intervals are Student's, 95 %, over seeds.
"""

import argparse
import copy
import functools
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from scipy.special import stdtrit
from torch import Tensor

from benchmarks.figures import Line, Panel, Row, Sheet, arguments, make
from greentrain import GreenSession
from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.devices.torch_device import TorchDevice
from greentrain.types import grams
from recipes.common.data import corpus
from recipes.common.policy import Policy
from recipes.common.surrogates import masked_mean
from recipes.raw import ppo_offload, reinforce_offload
from recipes.raw.ppo_offload import Models, Settings, drawn, prepare

PPO, SFT = "ppo", "sft"
ARMS: Final = (PPO, *(name for name in reinforce_offload.ALGORITHMS if name != reinforce_offload.PROCESS), SFT)
SETTINGS: Final = replace(ppo_offload.SMALL, steps=14)
SEEDS: Final = 5
SFT_STEPS: Final = 60
SFT_BATCH: Final = 16
EVERY: Final = 4
"""Steps of SFT from one evaluation to the next."""
SMOOTH: Final = 3
"""Evaluations whose mean has to reach the target."""
TARGET: Final = 0.5
BETAS: Final = (0.0, 0.005, 0.02, 0.08, 0.32)
G_PER_KWH: Final = 323.0
"""As benchmarks/rlhf_figures.py; assumed."""
FIGURES: Final = ("algorithms", "stages", "kl_weight")
STAGES: Final = ("generate", "reward", "reference", "critic", "forward", "train", "other")


class Clocked(GreenSession):
    """A session that notes the CPU time at each step, without that of evaluations."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.aside_s = 0.0
        self.ends_s: list[float] = [time.process_time()]

    def step(self, tokens: int = 0, samples: int = 0) -> None:
        """End a step, and note when."""
        super().step(tokens, samples)
        self.ends_s.append(time.process_time() - self.aside_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A policy on held-out prompts."""

    score: float
    kl: float
    """From the policy as it began (nats a token)."""
    nats: float
    """Loss on held-out text, a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One training."""

    cpu_s: float
    tokens: int
    energy_j: float
    """Without evaluations."""
    by_stage: Mapping[str, float]
    """Joules."""
    to_target_j: float
    """NaN where the target was not reached."""
    way: float
    """Score at the end, from 0 to 1 and beyond."""
    kl: float
    nats: float
    sampled: int


class Seed:
    """The policy, the judge and the texts of a seed.

    Args:
        settings: Of all arms.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.models: Models = prepare(settings)
        self.held = corpus(vocab=settings.size.vocab, max_bytes=1_000_000).val
        self.device = TorchDevice("cpu", "fp32")
        self.handle = self.device.load(self.models.reward)
        self.start = self.judged(self.models.policy).score
        real = drawn(self.held, np.random.default_rng(0), 256, settings.prompt + settings.new)
        line = self.models.ends[real[:, settings.prompt :]]
        line[:, -1] = True
        lengths = settings.prompt + line.int().argmax(1) + 1
        self.library = self._score([row[:n] for row, n in zip(real, lengths.tolist(), strict=True)])

    def _score(self, rows: Sequence[Tensor]) -> float:
        found = self.device.submit(self.handle, Batch.of([row.numpy() for row in rows])).result()
        return float(np.array(found.scores).mean())

    @torch.no_grad()
    def judged(self, policy: Policy) -> Judged:
        """Return what a policy has come to."""
        prompt, new = self.settings.prompt, self.settings.new
        texts, chance = np.random.default_rng(1), torch.Generator().manual_seed(1)
        prompts = drawn(self.held, texts, 2 * self.settings.rollouts, prompt)
        ids, mask = policy.generate(prompts, new, self.models.ends, draw=chance)
        apart = policy.logprobs(ids, prompt) - self.models.policy.logprobs(ids, prompt)
        text = drawn(self.held, texts, 256, self.settings.size.context)
        lengths = (prompt + mask.sum(1).int()).tolist()
        return Judged(
            score=self._score([row[:n] for row, n in zip(ids, lengths, strict=True)]),
            kl=masked_mean(apart, mask).item(),
            nats=-policy.logprobs(text, 1).mean().item(),
        )

    def trained(self, arm: str, settings: Settings | None = None) -> Trained:
        """Train one arm."""
        settings = settings or self.settings
        with tempfile.TemporaryDirectory() as folder:
            config = {"run": {"dir": folder, "live": False, "report": False}, "carbon": {"g_per_kwh": G_PER_KWH}}
            green = Clocked(config)
            with green:
                if arm == SFT:
                    policy, scores, sampled = self._supervised(settings, green)
                else:
                    train: Callable[..., ppo_offload.Outcome] = (
                        ppo_offload.train if arm == PPO else functools.partial(reinforce_offload.train, algorithm=arm)
                    )
                    found = train(settings, self.models, green, self.device, sequential=True)
                    policy, scores, sampled = found.policy, found.rewards, found.sampled
        ways = [(score - self.start) / (self.library - self.start) for score in scores]
        means = np.convolve(ways, np.ones(SMOOTH) / SMOOTH, "valid")
        ends_s = np.array(green.ends_s[1:]) - green.ends_s[0]
        ends_s = ends_s[np.linspace(0, len(ends_s), len(scores) + 1).astype(int)[1:] - 1]
        totals = green.totals()
        by_stage = {name: totals.by_phase.get(name, 0.0) for name in STAGES}
        energy_j = sum(by_stage.values())
        reached = np.flatnonzero(means >= TARGET)
        last = self.judged(policy)
        return Trained(
            cpu_s=float(ends_s[-1]),
            tokens=totals.tokens,
            energy_j=energy_j,
            by_stage=by_stage,
            to_target_j=energy_j * float(ends_s[reached[0] + SMOOTH - 1] / ends_s[-1]) if len(reached) else math.nan,
            way=(last.score - self.start) / (self.library - self.start),
            kl=last.kl,
            nats=last.nats,
            sampled=sampled,
        )

    def _supervised(self, settings: Settings, green: Clocked) -> tuple[Policy, Sequence[float], int]:
        policy = copy.deepcopy(self.models.policy)
        optimizer = torch.optim.AdamW(policy.parameters(), lr=settings.lr)
        texts, scores = np.random.default_rng(settings.seed + 1), []
        for i in range(max(EVERY * SMOOTH, SFT_STEPS * settings.steps // SETTINGS.steps) // EVERY * EVERY):
            with green.phase("train"):
                text = drawn(self.models.text, texts, SFT_BATCH, settings.size.context + 1)
                policy.gpt(text[:, :-1], text[:, 1:]).backward()
                torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            green.step(tokens=SFT_BATCH * settings.size.context)
            if (i + 1) % EVERY == 0:
                began_s = time.process_time()
                with green.phase("evaluation"):
                    scores.append(self.judged(policy).score)
                green.aside_s += time.process_time() - began_s
        return policy, scores, 0


class Study:
    """All trainings, each made when it is first asked for.

    Args:
        settings: Of all arms, but for the seed.
        seeds: Number of seeds.
    """

    def __init__(self, settings: Settings, seeds: int) -> None:
        self.settings = settings
        self.seeds = seeds

    @functools.cached_property
    def made(self) -> list[Seed]:
        """Each seed's models."""
        return [Seed(replace(self.settings, seed=i + 1)) for i in range(self.seeds)]

    @functools.cached_property
    def runs(self) -> Mapping[str, Sequence[Trained]]:
        """Each arm over the seeds."""
        return {arm: [self._told(arm, seed.trained(arm)) for seed in self.made] for arm in ARMS}

    def varied(self, beta: float) -> Sequence[Trained]:
        """Return REINFORCE++ with another weight of the penalty, over the seeds."""
        arm = reinforce_offload.REINFORCE
        if beta == self.settings.beta:
            return self.runs[arm]
        return [self._told(f"beta {beta}", s.trained(arm, replace(s.settings, beta=beta))) for s in self.made]

    def close(self) -> None:
        """Let the devices of the seeds go."""
        for seed in self.made:
            seed.device.close()

    def _told(self, what: str, run: Trained) -> Trained:
        print(f"{what}: {run.cpu_s:.1f} s of CPU, {run.way:.2f} of the way", file=sys.stderr, flush=True)
        return run

    def algorithms(self) -> Sheet:
        """Every arm: speed, joules, quality."""
        rows: list[Row] = []
        for arm, runs in self.runs.items():
            reached = [run.to_target_j for run in runs if not math.isnan(run.to_target_j)]
            whole = len(reached) == len(runs)
            rows.append(
                {
                    "algorithm": arm,
                    "tokens_per_s": float(np.mean([run.tokens / run.cpu_s for run in runs])),
                    **spread("tokens_per_j", [run.tokens / run.energy_j for run in runs]),
                    "reached": f"{len(reached)} of {len(runs)}",
                    **spread("j_to_target", reached if whole else []),
                    "mg_to_target": 1000 * grams(float(np.mean(reached)), G_PER_KWH) if whole else "",
                    **spread("reward", [run.way for run in runs]),
                    "kl": float(np.mean([run.kl for run in runs])),
                    "nats_a_token": float(np.mean([run.nats for run in runs])),
                    "trained_on": float(np.mean([self._used(run) for run in runs])),
                    "provenance": "modelled",
                }
            )
        names = [row["algorithm"] for row in rows]
        panels = [
            Panel(title=title, x="", y=unit, lines=[_bars(key, names, rows)])
            for key, title, unit in (
                ("tokens_per_j", "speed by joules, modelled", "tokens/J"),
                ("j_to_target", "to half the way", "J"),
                ("reward", "reward at the end", "0: as it began, 1: the library's lines"),
            )
        ]
        return Sheet(
            name="algorithms",
            title="Algorithms beside supervised fine-tuning, small",
            panels=panels,
            rows=rows,
            notes=[
                f"{self.seeds} seeds; {self.settings.steps} steps of {self.settings.rollouts} rollouts, SFT {SFT_STEPS}"
                f" steps of {SFT_BATCH} texts. Joules modelled, {G_PER_KWH:g} g/kWh assumed; rewards, KL"
                " and loss measured. low and high: 95 % over seeds; no joules to the target where a seed did not reach"
                " it. Tokens: those that were trained on, by a second of CPU time.",
                "trained_on: share of the completions that were, as DAPO samples groups again. KL from the policy as it"
                " began, loss on held-out text: what the judge likes is not more real.",
                "Published (EcoRL-Sched): 6.2 tokens/J without cards and 28.7 with, of models of 8B and more on H100s:"
                " not to be compared, and not to be had from offloading (papers.md).",
            ],
        )

    def _used(self, run: Trained) -> float:
        """Return the share of completions that were trained on."""
        return self.settings.steps * self.settings.rollouts / run.sampled if run.sampled else 1.0

    def stages(self) -> Sheet:
        """Shares of the joules by stage."""
        rows: list[Row] = []
        for arm, runs in self.runs.items():
            parts = {name: float(np.mean([run.by_stage[name] / run.energy_j for run in runs])) for name in STAGES}
            rows.append({"algorithm": arm, **parts, "provenance": "modelled"})
        names = [row["algorithm"] for row in rows]
        lines = [Line(name=stage, x=names, y=[row[stage] for row in rows]) for stage in STAGES]
        return Sheet(
            name="stages",
            title="Shares of the joules by stage, modelled",
            panels=[Panel(title="", x="", y="share", lines=lines)],
            rows=rows,
            notes=[
                "critic: values, and old log-probabilities with them; forward: old log-probabilities.",
                "Published split of a step: 43 % generation, 21 % inference, 36 % training.",
            ],
        )

    def kl_weight(self) -> Sheet:
        """REINFORCE++ over the weight of the KL penalty."""
        rows: list[Row] = []
        for beta in BETAS:
            runs = self.varied(beta)
            rows.append(
                {
                    "beta": beta,
                    **spread("j_a_completion", [run.energy_j / run.sampled for run in runs]),
                    **spread("reward", [run.way for run in runs]),
                    **spread("kl", [run.kl for run in runs]),
                    "provenance": "modelled",
                }
            )
        names = [f"{beta:g}" for beta in BETAS]
        return Sheet(
            name="kl_weight",
            title="Weight of the KL penalty, REINFORCE++",
            panels=[
                Panel(title=title, x="beta", y="", lines=[_bars(key, names, rows)])
                for key, title in (
                    ("reward", "reward"),
                    ("kl", "KL, nats a token"),
                    ("j_a_completion", "J a completion"),
                )
            ],
            rows=rows,
            notes=[
                "The weight multiplies a number that is there: above 0 a step takes the same work whatever it is, but"
                " for the length of the completions that it leads to. At 0 the reference pass is left out.",
            ],
        )


def spread(name: str, values: Sequence[float]) -> dict[str, float | str]:
    """Return mean and ends of Student's 95 % interval as columns; empty where there is no value."""
    if not values:
        return {name: "", f"{name}_low": "", f"{name}_high": ""}
    mean = float(np.mean(values))
    n = len(values)
    half = float(stdtrit(n - 1, 0.975)) * float(np.std(values, ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return {name: mean, f"{name}_low": mean - half, f"{name}_high": mean + half}


def _bars(key: str, names: Sequence[str], rows: Sequence[Row]) -> Line:
    ends = [[float(row[k]) if row[k] != "" else math.nan for row in rows] for k in (key, f"{key}_low", f"{key}_high")]
    return Line(name=key, x=names, y=ends[0], low=ends[1], high=ends[2])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two seeds, four steps: to see that it runs")
    args = arguments(parser, FIGURES, argv)
    if args.quick and args.into is not None:
        parser.error("--into replaces all tables, so it goes without --quick")
    torch.set_num_threads(1)
    settings = replace(SETTINGS, steps=4, warm_steps=8, rollouts=16) if args.quick else SETTINGS
    study = Study(settings, 2 if args.quick else SEEDS)
    with closing(study):
        return make({name: getattr(study, name) for name in FIGURES}, args, "algorithms")


if __name__ == "__main__":
    raise SystemExit(main())
