"""What the precision of reward and reference does to GRPO: reward, KL and weights at the end, seed by seed.

The policy, the judge and the loop are those of recipes/raw (a GPT of 0.3 M parameters, GRPO with its KL in the loss).
A seed has one policy and one judge, and every arm begins with them and draws the same random numbers; arms differ in
nothing but the precision of the two frozen passes. ``other draws`` is FP32 with the sampling of another seed: how far
two trainings end up apart by chance alone. What is compared is measured in FP32, whatever the arm trained with.
"""

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from benchmarks.fpga_quality_common import Bench, figure
from benchmarks.rlhf_algorithms import Seed, spread
from benchmarks.tables import Table
from greentrain import GreenSession
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.compiler import compile as compile_model
from greentrain.fpga_backend.device import OffloadDevice
from greentrain.fpga_backend.devices.torch_device import TorchDevice
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.fpga_backend.program import ActivationBits, Precision
from recipes.common.policy import Policy
from recipes.common.surrogates import masked_mean
from recipes.raw import ppo_offload, reinforce_offload
from recipes.raw.ppo_offload import Models, Settings, drawn

SETTINGS: Final = replace(ppo_offload.SMALL, steps=10, rollouts=32, warm_steps=50, beta=0.2)
"""Ten times the recipe's weight of the KL: with less, the policy runs away from its reference whatever that is told."""
SEEDS: Final = 5
DRAWS: Final = 1000
"""Added to the seed of the sampling, for the arm that differs in nothing else."""
FP32, CHANCE, BF16, W8A16, W8A8 = "FP32", "FP32, other draws", "BF16", "W8A16", "W8A8"
Frozen = tuple[Precision, ActivationBits]
EXACT: Final[Mapping[str, tuple[Frozen, Frozen]]] = {
    W8A16: (("w8a8", 16), ("w8a8", 16)),
    W8A8: (("w8a8", 8), ("w8a8", 8)),
}
"""Precision and bits of the activations of reward and reference, on the emulator; the others run on torch."""
ARMS: Final = (FP32, CHANCE, BF16, *EXACT)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One training, measured in FP32."""

    arm: str
    seed: int
    reward: float
    """What the judge gives more than to the policy as it began, in its own unit."""
    kl: float
    """From the policy as it began, nats a token."""
    apart: float
    """Distance of the weights from those of FP32, over how far FP32 went."""
    offset: float
    """KL that the trainer was told before its first step, where policy and reference are one: nats a token."""
    estimate: float
    """The same of the loss's own estimate, e^d - d - 1, which is never negative."""


def training(bench: Bench) -> list[Table]:
    """Train every arm over the seeds; trainings that ``bench.keep`` holds are not made again."""
    torch.set_num_threads(1)
    settings = replace(SETTINGS, steps=3, warm_steps=8, rollouts=16) if bench.quick else SETTINGS
    ends = [] if bench.keep is None or not bench.keep.exists() else _read(bench.keep)
    for number in range(1, (bench.seeds or bench.pick(SEEDS, 2)) + 1):
        if {end.arm for end in ends if end.seed == number} == set(ARMS):
            continue
        ends = [end for end in ends if end.seed != number] + _seed(replace(settings, seed=number), bench)
        if bench.keep is not None:
            bench.keep.write_text("".join(json.dumps(asdict(end)) + "\n" for end in ends), encoding="utf-8")
    return [_table(ends, settings)]


def _read(file: Path) -> list[End]:
    return [End(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def _seed(settings: Settings, bench: Bench) -> list[End]:
    seed = Seed(settings)
    found: list[End] = []
    exact: Policy | None = None
    with closing(seed.device):
        for arm in ARMS:
            policy, told = _trained(arm, seed.models, settings)
            exact = exact or policy
            last = seed.judged(policy)
            start = _weights(seed.models.policy)
            end = End(
                arm=arm,
                seed=settings.seed,
                reward=last.score - seed.start,
                kl=last.kl,
                apart=float((_weights(policy) - _weights(exact)).norm() / (_weights(exact) - start).norm()),
                offset=told[0],
                estimate=told[1],
            )
            bench.say(f"seed {settings.seed}, {arm}: reward {end.reward:+.3f}, KL {end.kl:.4f}, {end.apart:.3f} apart")
            found.append(end)
    return found


def _trained(arm: str, models: Models, settings: Settings) -> tuple[Policy, tuple[float, float]]:
    """Return the policy at the end, and what the first step's KL was told to be: its mean, and its estimate."""
    longest = settings.prompt + settings.new
    precision: Precision = "bf16" if arm == BF16 else "fp32"
    reward, reference = EXACT.get(arm, ((precision, 8), (precision, 8)))
    judge = compile_model(models.judge, max_tokens=longest, precision=reward[0], activation_bits=reward[1])
    kept = compile_model(models.policy, max_tokens=longest, precision=reference[0], activation_bits=reference[1])
    device: OffloadDevice = Emulator() if arm in EXACT else TorchDevice("cpu", "bf16" if arm == BF16 else "fp32")
    chance = replace(settings, seed=settings.seed + DRAWS) if arm == CHANCE else settings
    with tempfile.TemporaryDirectory() as folder, closing(device):
        config = {"run": {"dir": folder, "live": False, "report": False}}
        with GreenSession(config) as green:
            made = replace(models, reward=judge, reference=kept)
            found = reinforce_offload.train(
                chance, made, green, device, algorithm=reinforce_offload.GRPO, sequential=True
            )
        return found.policy, _offsets(models, kept, device, settings)


@torch.no_grad()
def _offsets(models: Models, reference: Artifact, device: OffloadDevice, settings: Settings) -> tuple[float, float]:
    prompts = drawn(models.text, np.random.default_rng(7), settings.rollouts, settings.prompt)
    chance = torch.Generator().manual_seed(7)
    ids, mask = models.policy.generate(prompts, settings.new, models.ends, draw=chance)
    lengths = (settings.prompt + mask.sum(1).int()).tolist()
    rows = [row[:n].numpy() for row, n in zip(ids, lengths, strict=True)]
    handle = device.load(reference)
    told = device.submit(handle, Batch.of(rows, prompt_tokens=[settings.prompt] * len(rows))).result().logprobs
    apart = ppo_offload.padded(told or (), settings.new) - models.policy.logprobs(ids, settings.prompt)
    return -masked_mean(apart, mask).item(), masked_mean(apart.exp() - apart - 1, mask).item()


def _weights(policy: Policy) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in policy.parameters()])


def _table(ends: Sequence[End], settings: Settings) -> Table:
    by_arm = {arm: sorted((end for end in ends if end.arm == arm), key=lambda end: end.seed) for arm in ARMS}
    seeds = len(by_arm[FP32])
    rows = []
    for arm, some in by_arm.items():
        differences = {
            name: [getattr(end, name) - getattr(exact, name) for end, exact in zip(some, by_arm[FP32], strict=True)]
            for name in ("reward", "kl")
        }
        rows.append(
            [
                arm,
                _mean([end.reward for end in some]),
                "" if arm == FP32 else _mean(differences["reward"]),
                _mean([end.kl for end in some]),
                "" if arm == FP32 else _mean(differences["kl"]),
                "" if arm == FP32 else _mean([end.apart for end in some]),
                _mean([end.offset for end in some]),
                _mean([end.estimate for end in some]),
            ]
        )
    return Table(
        case="training",
        title=f"GRPO by the precision of reward and reference, {seeds} seeds",
        head=[
            "reward and reference",
            "reward at the end",
            "less FP32's",
            "KL at the end (nats a token)",
            "less FP32's",
            "weights apart",
            "KL told where it is 0",
            "and the loss's estimate of it",
        ],
        rows=rows,
        notes=[
            f"Measured. {settings.steps} steps of {settings.rollouts} completions of at most {settings.new} tokens, KL"
            f" weight {settings.beta:g}, a policy of 0.3 M parameters; each arm begins with the seed's policy and judge"
            " and draws the same random numbers. Mean and Student's 95 % interval over seeds, differences of pairs.",
            "Reward: what the judge gives more than to the policy as it began, in its logits; reward and KL at the end"
            " are measured in FP32 on held-out prompts, whatever the arm trained with. Weights apart: distance from"
            " FP32's weights at the end, over the distance that FP32 came from the start.",
            "FP32, other draws: the same training with other random numbers of sampling, so what chance alone does.",
        ],
    )


def _mean(values: Sequence[float]) -> str:
    found = spread("x", list(values))
    low, high = (float(found[f"x_{end}"]) for end in ("low", "high"))
    middle = figure(float(found["x"]))
    return middle if math.isnan(low) else f"{middle} [{figure(low)}, {figure(high)}]"
