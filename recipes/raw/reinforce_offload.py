"""REINFORCE++, GRPO, RLOO, DAPO and process rewards on a small GPT: no critic, and both passes on an offload device.

    pip install 'greentrain-torch[rlhf]'
    python recipes/raw/reinforce_offload.py --small
    python recipes/raw/reinforce_offload.py --small --algorithm grpo      # rloo, dapo, process

Any machine; it computes on the CPU, with --small for half a minute. The policy, its task and its judge are those of
ppo_offload.py. The algorithms differ in what they compare a completion with, and in where the KL is:

    reinforce++  all completions of the batch; KL in the reward
    grpo         the other completions of its prompt, over their deviation; KL in the loss
    rloo         the mean of the other completions of its prompt; KL in the reward
    dapo         as grpo, of completions that are right or wrong: better than the policy's median as it began, or not.
                 Groups that are all right or all wrong are sampled again, the upper clip is higher, and there is no
                 KL, so no reference pass
    process      the steps of the other completions of its prompt: each completion is scored at every blank, as if that
                 were the end of a step of reasoning; KL in the loss
"""

import argparse
import copy
import sys
from collections.abc import Callable, Sequence
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
from greentrain.fpga_backend.device import OffloadDevice
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.frozen_pass import place
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.stream import Stream
from recipes.common import step_rewards
from recipes.common.advantages import (
    group_advantages,
    leave_one_out,
    mixed_groups,
    reinforce_plus_plus,
    step_advantages,
)
from recipes.common.model import weights_of
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
)

REINFORCE, GRPO, RLOO, DAPO, PROCESS = ALGORITHMS = "reinforce++", "grpo", "rloo", "dapo", "process"
GROUP: Final = 4
"""Completions of a prompt."""
CLIP_HIGH: Final = 0.28
"""DAPO's upper clip: arXiv 2503.14476, section 4.1."""
MOST_DRAWS: Final = 8
"""Batches that are generated for one step of DAPO, at most: where all groups are right or wrong, there is no more to
learn, and the step trains on what it has."""

Rollouts = tuple[Tensor, Tensor, Tensor]
"""Token ids, mask and scores."""


def train(
    settings: Settings,
    models: Models,
    green: GreenSession,
    device: OffloadDevice,
    *,
    algorithm: str = REINFORCE,
    sequential: bool = False,
) -> Outcome:
    """Train and return what was done. ``models`` stay as they are. Without a KL penalty there is no reference pass."""
    policy = copy.deepcopy(models.policy)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=settings.lr)
    beta = 0.0 if algorithm == DAPO else settings.beta
    judge = PassKind.STEP_REWARD if algorithm == PROCESS else PassKind.REWARD
    engine = OffloadEngine(
        [place(judge, models.reward, device), place(PassKind.REFERENCE, models.reference, device)],
        sequential=sequential,
    )
    chance, texts = torch.Generator().manual_seed(settings.seed), np.random.default_rng(settings.seed + 1)
    rewards, moved, sampled, bar = [], [], 0, None

    def generated() -> tuple[Tensor, Tensor, dict[PassKind, Stream]]:
        nonlocal sampled
        prompts = drawn(models.text, texts, settings.rollouts // GROUP, settings.prompt).repeat_interleave(GROUP, 0)
        together = settings.rollouts + 1 if sequential else 16  # sequential: all at the flush, behind generation
        kinds = {*([PassKind.REFERENCE] if beta else []), *([] if algorithm == PROCESS else [judge])}
        streams = {kind: Stream(engine, kind, sequences=together) for kind in kinds}

        def finished(row: int, ids: Tensor) -> None:
            for kind, stream in streams.items():
                prompt = {"prompt_tokens": settings.prompt} if kind is PassKind.REFERENCE else {}
                stream.add(row, ids, **prompt)

        with green.phase("generate"):
            ids, mask = policy.generate(prompts, settings.new, models.ends, draw=chance, finished=finished)
        for kind, stream in streams.items():
            with green.phase("reference" if kind is PassKind.REFERENCE else "reward"):
                stream.flush()
        sampled += len(ids)
        return ids, mask, streams

    def scored(stream: Stream, rows: int) -> Tensor:
        with green.phase("reward"):
            return torch.from_numpy(np.array(stream.result(range(rows)).scores))[:, 0]

    def drawn_again() -> Rollouts:
        ids, mask, streams = generated()
        return ids, mask, scored(streams[judge], len(ids))

    for _ in range(settings.steps):
        steps = reference = None
        if algorithm == DAPO:
            first = drawn_again()
            rewards.append(first[2].mean().item())
            bar = first[2].median() if bar is None else bar
            ids, mask, scores = dynamically_sampled(first, drawn_again, bar, settings.rollouts)
        else:
            ids, mask, streams = generated()
        if algorithm == PROCESS:
            with green.phase("reward"):
                steps = _steps(engine, ids, mask, settings, models.blanks)
        with green.phase("forward"), torch.no_grad():  # the window
            before = policy.logprobs(ids, settings.prompt)
        if steps is not None:
            with green.phase("reward"):
                found = steps.result()
            rewards.append(masked_mean(found.rewards, found.steps).item())
        elif algorithm != DAPO:
            scores = scored(streams[judge], len(ids))
            rewards.append(scores.mean().item())
        if beta:
            with green.phase("reference"):
                result = streams[PassKind.REFERENCE].result(range(len(ids)))
            reference = padded(result.logprobs or (), settings.new)
            moved.append(masked_mean(before - reference, mask).item())
        if steps is not None:
            advantages = step_advantages(found.rewards, found.steps, mask, GROUP)
        elif algorithm == REINFORCE:
            near = before if reference is None else reference
            advantages = reinforce_plus_plus(scores, before, near, mask, beta=beta)
        elif algorithm == RLOO:
            penalty = 0.0 if reference is None else beta * ((before - reference) * mask).sum(1)
            advantages = leave_one_out(scores - penalty, GROUP)[:, None]
        else:
            judged = (scores > bar).float() if algorithm == DAPO and bar is not None else scores
            advantages = group_advantages(judged, GROUP)[:, None]
        with green.phase("train"):
            for rows in torch.randperm(len(ids), generator=chance).chunk(settings.minibatches):
                now = policy.logprobs(ids[rows], settings.prompt)
                high = CLIP_HIGH if algorithm == DAPO else None
                loss = policy_loss(now, before[rows], advantages[rows], mask[rows], clip_high=high)
                if reference is not None and algorithm in (GRPO, PROCESS):
                    apart = reference[rows] - now
                    loss = loss + beta * masked_mean(apart.exp() - apart - 1, mask[rows])
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        green.step(tokens=int(mask.sum()))
    return Outcome(
        rewards=tuple(rewards),
        kl=tuple(moved),
        passes=dict(engine.stats()),
        weights=weights_of(policy),
        sampled=sampled,
        policy=policy,
    )


def dynamically_sampled(first: Rollouts, again: Callable[[], Rollouts], bar: Tensor, wanted: int) -> Rollouts:
    """Return rollouts of groups that are neither all right nor all wrong, as many as wanted: DAPO's dynamic sampling.

    Args:
        first: Rollouts that are there already.
        again: Draws as many once more.
        bar: Score above which a completion is right.
        wanted: Number of rollouts; fewer where MOST_DRAWS batches do not have them, and at least one group.
    """
    kept: list[Rollouts] = []
    found = first
    for draws in range(1, MOST_DRAWS + 1):
        rows = mixed_groups((found[2] > bar).float(), GROUP)
        kept.append((found[0][rows], found[1][rows], found[2][rows]))
        if sum(len(part[2]) for part in kept) >= wanted or draws == MOST_DRAWS:
            break
        found = again()
    ids, mask, scores = (torch.cat(parts)[:wanted] for parts in zip(*kept, strict=True))
    return (ids, mask, scores) if len(ids) else (first[0][:GROUP], first[1][:GROUP], first[2][:GROUP])


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
    parser.add_argument("--algorithm", choices=ALGORITHMS, default=REINFORCE)
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
