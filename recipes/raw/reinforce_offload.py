"""REINFORCE++ and process rewards on a small GPT: no critic, and both passes on an offload device.

    pip install 'greentrain-torch[rlhf]'
    python recipes/raw/reinforce_offload.py --small
    python recipes/raw/reinforce_offload.py --small --algorithm process

Any machine; it computes on the CPU, with --small for half a minute. The policy, its task and its judge are those of
ppo_offload.py. ``reinforce++`` scores whole completions, with the KL in the reward. ``process`` scores each completion
at every blank, as if that were the end of a step of reasoning, compares the steps of four completions of one prompt,
and has the KL in the loss, as GRPO has.
"""

import argparse
import copy
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from torch import Tensor, nn

from greentrain import GreenSession
from greentrain.fpga_backend.batch import Ids
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.frozen_pass import place
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.stream import Stream
from recipes.common import step_rewards
from recipes.common.advantages import reinforce_plus_plus, step_advantages
from recipes.common.surrogates import masked_mean, policy_loss
from recipes.raw.ppo_offload import (
    LARGE,
    SMALL,
    Models,
    Outcome,
    Settings,
    drawn,
    padded,
    prepare,
    report,
    weights_of,
)

REINFORCE, PROCESS = "reinforce++", "process"
GROUP: Final = 4
"""Completions of a prompt."""


def train(
    settings: Settings,
    models: Models,
    green: GreenSession,
    device: Emulator,
    *,
    algorithm: str = REINFORCE,
    sequential: bool = False,
) -> Outcome:
    """Train and return what was done. ``models`` stay as they are."""
    policy = copy.deepcopy(models.policy)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=settings.lr)
    judge = PassKind.STEP_REWARD if algorithm == PROCESS else PassKind.REWARD
    engine = OffloadEngine(
        [place(judge, models.reward, device), place(PassKind.REFERENCE, models.reference, device)],
        sequential=sequential,
    )
    chance, texts = torch.Generator().manual_seed(settings.seed), np.random.default_rng(settings.seed + 1)
    rewards, moved = [], []
    for _ in range(settings.steps):
        prompts = drawn(models.text, texts, settings.rollouts // GROUP, settings.prompt).repeat_interleave(GROUP, 0)
        together = settings.rollouts + 1 if sequential else 16  # sequential: all at the flush, behind generation
        streams = {kind: Stream(engine, kind, sequences=together) for kind in {PassKind.REFERENCE, judge}}

        def finished(row: int, ids: Tensor, streams: dict[PassKind, Stream] = streams) -> None:
            streams[PassKind.REFERENCE].add(row, ids, prompt_tokens=settings.prompt)
            if algorithm == REINFORCE:
                streams[judge].add(row, ids)

        with green.phase("generate"):
            ids, mask = policy.generate(prompts, settings.new, models.ends, draw=chance, finished=finished)
        with green.phase("reference"):
            streams[PassKind.REFERENCE].flush()
        with green.phase("reward"):
            streams[judge].flush()
            steps = _steps(engine, ids, mask, settings, models.blanks) if algorithm == PROCESS else None
        with green.phase("forward"), torch.no_grad():  # the window
            before = policy.logprobs(ids, settings.prompt)
        with green.phase("reward"):
            if steps is None:
                scores = torch.from_numpy(np.array(streams[judge].result(range(len(ids))).scores))[:, 0]
            else:
                found = steps.result()
        with green.phase("reference"):
            reference = padded(streams[PassKind.REFERENCE].result(range(len(ids))).logprobs or (), settings.new)
        if steps is None:
            advantages = reinforce_plus_plus(scores, before, reference, mask, beta=settings.beta)
            rewards.append(scores.mean().item())
        else:
            advantages = step_advantages(found.rewards, found.steps, mask, GROUP)
            rewards.append(masked_mean(found.rewards, found.steps).item())
        with green.phase("train"):
            for rows in torch.randperm(len(ids), generator=chance).chunk(settings.minibatches):
                now = policy.logprobs(ids[rows], settings.prompt)
                loss = policy_loss(now, before[rows], advantages[rows], mask[rows])
                if steps is not None:
                    apart = reference[rows] - now
                    loss = loss + settings.beta * masked_mean(apart.exp() - apart - 1, mask[rows])
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        green.step(tokens=int(mask.sum()))
        moved.append(masked_mean(before - reference, mask).item())
    return Outcome(rewards=tuple(rewards), kl=tuple(moved), passes=dict(engine.stats()), weights=weights_of(policy))


def _steps(
    engine: OffloadEngine, ids: Tensor, mask: Tensor, settings: Settings, blanks: Tensor
) -> step_rewards.StepTicket:
    """Hand in each completion up to each of its blanks, and as a whole."""
    whole: Ids = ids.numpy().astype(np.int32)
    completions = [row[settings.prompt :][: int(n)] for row, n in zip(whole, mask.sum(1), strict=True)]
    separators = blanks.nonzero().flatten().tolist()
    return step_rewards.submit(
        engine,
        [row[: settings.prompt] for row in whole],
        completions,
        [step_rewards.step_ends(row, separators) for row in completions],
        width=settings.new,
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=(REINFORCE, PROCESS), default=REINFORCE)
    parser.add_argument("--small", action="store_true", help="a model of 0.3 M parameters, for a quick look and for CI")
    parser.add_argument("--steps", type=int, help="of the algorithm")
    parser.add_argument("--sequential", action="store_true", help="wait for each pass where it is submitted")
    parser.add_argument("--zone", default="US-CAL-CISO", help="grid zone whose typical carbon intensity is used")
    parser.add_argument("--out", default="runs", help="folder of the run folders")
    args = parser.parse_args(argv)
    settings = SMALL if args.small else LARGE
    if args.steps:
        settings = replace(settings, steps=args.steps)
    torch.set_num_threads(1)  # the device's work runs on the other core
    models = prepare(settings)
    config = {"run": {"dir": args.out, "name": args.algorithm}, "carbon": {"signal": "typical", "zone": args.zone}}
    with closing(Emulator()) as device, GreenSession(config, extra_meters=[device.meter]) as green:
        found = train(settings, models, green, device, algorithm=args.algorithm, sequential=args.sequential)
    for line in report(found, green):
        print(line)


if __name__ == "__main__":
    main()
