"""PPO on a small GPT, with the reward and the reference pass on an offload device beside the critic's.

    pip install 'greentrain-torch[rlhf]'
    python recipes/raw/ppo_offload.py --small
    python recipes/raw/ppo_offload.py --small --sequential        # the same weights at the end, bit for bit

Any machine; it computes on the CPU, with --small for half a minute. The policy completes lines of Python's own source.
A reward model, trained here to tell the library's lines from the policy's, says how real they look; both it and the
frozen policy are compiled to integers and score each completion as soon as it is finished, while others are still
generated and the old log-probabilities and the critic's values are computed. The barrier is before the advantages,
which need all three (docs/rlhf.md).
"""

import argparse
import copy
import statistics
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from greentrain import GreenSession
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.compiler import compile as compile_model
from greentrain.fpga_backend.device import OffloadDevice
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.rlhf.engine import OffloadEngine, PassStats
from greentrain.rlhf.frozen_pass import place
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.stream import Stream
from recipes.common.advantages import rewards_with_kl, whitened
from recipes.common.data import Tokens, corpus
from recipes.common.energy_line import energy_line
from recipes.common.gae import gae
from recipes.common.model import GPT, Size, build_optimizer, weights_of
from recipes.common.policy import Critic, Policy, Reward
from recipes.common.surrogates import masked_mean, policy_loss, value_loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One run."""

    size: Size
    prompt: int = 8
    """Tokens of a prompt."""
    new: int = 16
    """Most tokens of a completion."""
    rollouts: int = 64
    """A step."""
    steps: int
    warm_steps: int
    """Of the policy's pre-training, and of the reward model's."""
    lr: float
    critic_lr: float | None = None
    """None: that of the policy."""
    epochs: int = 3
    minibatches: int = 4
    beta: float = 0.02
    """Of the KL penalty in the reward."""
    gamma: float = 1.0
    lam: float = 0.95
    seed: int = 1


SMALL = Settings(size=Size(vocab=512, context=32, width=96, layers=2, heads=3), steps=15, warm_steps=100, lr=1e-3)
LARGE = Settings(
    size=Size(vocab=2048, context=64, width=256, layers=6, heads=4),
    prompt=16,
    new=32,
    steps=40,
    warm_steps=400,
    lr=3e-4,
)


def table_a1(settings: Settings) -> Settings:
    """Return settings with the hyper-parameters of EcoRL-Sched's table A1: learning rates, KL weight, 256/32/1.

    Read as 256 rollouts a step, minibatches of 32 and one epoch; clipping by 0.2 is the recipe's own. Its models of 8B
    and more do not fit here: the size stays that of the settings, whose rates a small model would want higher.
    """
    return replace(settings, lr=1e-6, critic_lr=5e-6, beta=0.05, rollouts=256, minibatches=256 // 32, epochs=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """What PPO begins with."""

    policy: Policy
    reference: Artifact
    reward: Artifact
    judge: Reward
    """The reward model itself."""
    text: Tokens
    ends: Tensor
    """True for tokens that end a line [vocabulary]."""
    blanks: Tensor
    """True for tokens that hold a blank [vocabulary]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What PPO did."""

    rewards: tuple[float, ...]
    """Mean score of the rollouts, step by step."""
    kl: tuple[float, ...]
    """ln p less that of the reference, nats a token."""
    passes: dict[PassKind, PassStats]
    weights: str
    """SHA-256 of policy and critic."""
    sampled: int
    """Completions that were generated; dynamic sampling trains on fewer."""
    policy: Policy
    """As it is at the end."""


def prepare(settings: Settings) -> Models:
    """Pre-train a policy, train a reward model, and compile what stays as it is."""
    torch.manual_seed(settings.seed)
    source = corpus(vocab=settings.size.vocab, max_bytes=1_000_000 if settings.size.vocab < 1000 else None)
    gpt = GPT(settings.size)
    draw = np.random.default_rng(settings.seed)
    optimizer, schedule = build_optimizer(gpt, settings.warm_steps, 4e-3 if settings.size.width < 128 else 1e-3)
    for _ in range(settings.warm_steps):
        text = drawn(source.train, draw, 16, settings.size.context + 1)
        gpt(text[:, :-1], text[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    policy = Policy(gpt)
    ends, blanks = (_holding(sign, source.tokenizer, settings.size.vocab) for sign in ("\n", " "))
    reward = _reward_model(settings, copy.deepcopy(gpt), policy, source.train, ends)
    longest = settings.prompt + settings.new
    return Models(
        policy=policy,
        reference=compile_model(policy, max_tokens=longest, activation_bits=16),
        reward=compile_model(reward, max_tokens=longest),
        judge=reward,
        text=source.train,
        ends=ends,
        blanks=blanks,
    )


def train(
    settings: Settings, models: Models, green: GreenSession, device: OffloadDevice, *, sequential: bool
) -> Outcome:
    """Run PPO and return what it did. ``models`` stay as they are."""
    policy = copy.deepcopy(models.policy)
    critic = Critic(copy.deepcopy(policy.gpt))
    rates = ((policy, settings.lr), (critic, settings.critic_lr or settings.lr))
    optimizer = torch.optim.AdamW([{"params": [*part.parameters()], "lr": rate} for part, rate in rates])
    engine = OffloadEngine(
        [place(PassKind.REWARD, models.reward, device), place(PassKind.REFERENCE, models.reference, device)],
        sequential=sequential,
    )
    chance, texts = torch.Generator().manual_seed(settings.seed), np.random.default_rng(settings.seed + 1)
    rewards, moved = [], []
    for _ in range(settings.steps):
        prompts = drawn(models.text, texts, settings.rollouts, settings.prompt)
        together = settings.rollouts + 1 if sequential else 16  # sequential: all at the flush, behind generation
        scoring = Stream(engine, PassKind.REWARD, sequences=together)
        referring = Stream(engine, PassKind.REFERENCE, sequences=together)

        def finished(row: int, ids: Tensor, scoring: Stream = scoring, referring: Stream = referring) -> None:
            scoring.add(row, ids)
            referring.add(row, ids, prompt_tokens=settings.prompt)

        with green.phase("generate"):
            ids, mask = policy.generate(prompts, settings.new, models.ends, draw=chance, finished=finished)
        with green.phase("reward"):
            scoring.flush()
        with green.phase("reference"):
            referring.flush()
        with green.phase("critic"), torch.no_grad():  # the window: nothing here needs the device's results
            values = critic(ids)[:, settings.prompt - 1 : -1]
            before = policy.logprobs(ids, settings.prompt)
        every = range(len(ids))
        with green.phase("reward"):
            scores = torch.from_numpy(np.array(scoring.result(every).scores))[:, 0]
        with green.phase("reference"):
            reference = padded(referring.result(every).logprobs or (), settings.new)
        rewarded = rewards_with_kl(scores, before, reference, mask, settings.beta)
        advantages, wanted = gae(rewarded, values, mask, gamma=settings.gamma, lam=settings.lam)
        advantages = whitened(advantages, mask)
        with green.phase("train"):
            for _ in range(settings.epochs):
                for rows in torch.randperm(len(ids), generator=chance).chunk(settings.minibatches):
                    now = policy.logprobs(ids[rows], settings.prompt)
                    loss = policy_loss(now, before[rows], advantages[rows], mask[rows])
                    said = critic(ids[rows])[:, settings.prompt - 1 : -1]
                    loss = loss + 0.5 * value_loss(said, values[rows], wanted[rows], mask[rows])
                    loss.backward()  # type: ignore[no-untyped-call]
                    nn.utils.clip_grad_norm_([*policy.parameters(), *critic.parameters()], 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
        green.step(tokens=int(mask.sum()))
        rewards.append(scores.mean().item())
        moved.append(masked_mean(before - reference, mask).item())
    return Outcome(
        rewards=tuple(rewards),
        kl=tuple(moved),
        passes=dict(engine.stats()),
        weights=weights_of(policy, critic),
        sampled=settings.steps * settings.rollouts,
        policy=policy,
    )


def _reward_model(settings: Settings, gpt: GPT, policy: Policy, text: Tokens, ends: Tensor) -> Reward:
    """Train a Bradley-Terry model that prefers the library's lines to the policy's."""
    model = Reward(gpt)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3 if settings.size.width < 128 else 3e-4)
    draw, chance = np.random.default_rng(settings.seed), torch.Generator().manual_seed(settings.seed)
    for _ in range(settings.warm_steps):
        real = drawn(text, draw, 32, settings.prompt + settings.new)
        made, mask = policy.generate(real[:, : settings.prompt], settings.new, ends, draw=chance)
        line = ends[real[:, settings.prompt :]]
        line[:, -1] = True
        better = model.at(real, settings.prompt + line.int().argmax(1))
        worse = model.at(made, settings.prompt + mask.sum(1).long() - 1)
        softplus(worse - better).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    return model


def drawn(tokens: Tokens, draw: np.random.Generator, rows: int, length: int) -> Tensor:
    """Return pieces of a text, from anywhere in it [rows, length]."""
    starts = draw.integers(0, len(tokens) - length, rows)
    return torch.from_numpy(np.stack([tokens[s : s + length] for s in starts]).astype(np.int64))


def _holding(sign: str, tokenizer: Path, vocabulary: int) -> Tensor:
    from tokenizers import Tokenizer

    read = Tokenizer.from_file(str(tokenizer))
    return torch.tensor([sign in read.decode([i]) for i in range(vocabulary)])


def padded(rows: Sequence[npt.NDArray[np.float32]], width: int) -> Tensor:
    """Return rows of different lengths as one matrix, zeros behind their ends [rows, width]."""
    found = torch.zeros(len(rows), width)
    for i, row in enumerate(rows):
        found[i, : len(row)] = torch.from_numpy(row)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a model of 0.3 M parameters, for a quick look and for CI")
    parser.add_argument("--table-a1", action="store_true", help="the hyper-parameters that EcoRL-Sched published")
    parser.add_argument("--steps", type=int, help="of PPO")
    parser.add_argument("--sequential", action="store_true", help="wait for each pass where it is submitted")
    parser.add_argument("--zone", default="US-CAL-CISO", help="grid zone whose typical carbon intensity is used")
    parser.add_argument("--out", default="runs", help="folder of the run folders")
    args = parser.parse_args(argv)
    settings = SMALL if args.small else LARGE
    if args.table_a1:
        settings = table_a1(settings)
    if args.steps:
        settings = replace(settings, steps=args.steps)
    torch.set_num_threads(1)  # the device's work runs on the other core
    models = prepare(settings)
    config = {"run": {"dir": args.out, "name": "ppo-offload"}, "carbon": {"signal": "typical", "zone": args.zone}}
    with closing(Emulator()) as device, GreenSession(config, extra_meters=[device.meter]) as green:
        found = train(settings, models, green, device, sequential=args.sequential)
    for line in report(found, green):
        print(line)


def report(found: Outcome, green: GreenSession) -> list[str]:
    """Return what a run did, in lines."""
    part = max(1, len(found.rewards) // 5)
    first, last = statistics.mean(found.rewards[:part]), statistics.mean(found.rewards[-part:])
    kl = f", KL {found.kl[-1]:.3f} nats a token" if found.kl else ""
    lines = [f"{len(found.rewards)} steps: reward {first:.3f} to {last:.3f}{kl}, {found.sampled} completions"]
    for kind, sums in found.passes.items():
        hidden = "" if sums.hidden_fraction is None else f", {100 * sums.hidden_fraction:.0f} % hidden"
        lines.append(
            f"{kind}: {sums.sequences} sequences in {sums.calls} batches, {sums.busy_s:.2f} s on the device, "
            f"{sums.wait_s:.2f} s waited{hidden}"
        )
    lines.append(energy_line(green))
    lines.append(f"weights {found.weights[:16]}; report: {green.report_path}")
    return lines


if __name__ == "__main__":
    main()
