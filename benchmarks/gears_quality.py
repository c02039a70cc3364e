"""Case quality: does a part of the steps in FP8 cost anything in validation loss?"""

import math
import random
import statistics
from collections.abc import Sequence

import torch
from torch.utils.data import DataLoader

from benchmarks.gears_common import Bench, Row
from greentrain import GreenSession
from recipes.common.data import Blocks, Corpus, corpus
from recipes.common.model import GPT, Size, build_optimizer

SEEDS = (1, 2, 3)
SEGMENT = 10
"""Steps between two draws of the gear."""
SHARE = 0.35
PEAK = 4e-3
"""Learning rate, as the recipes have it for --small."""


def quality(bench: Bench) -> list[Row]:
    """Train small GPTs on Python's source from several seeds, with and without FP8, on the same data in each seed."""
    text = corpus(vocab=512, max_bytes=4_000_000)
    steps = bench.pick(1000, 40)  # less than an epoch
    size = Size(vocab=text.vocab, width=64, layers=3, heads=2, context=64)
    losses: dict[float, list[float]] = {}
    told: list[dict[str, float]] = []
    for share in (0.0, SHARE, 1.0):
        for seed in SEEDS:
            loss, found = _train(bench, text, size, steps, share, seed)
            losses.setdefault(share, []).append(loss)
            told += [found] if share == SHARE else []
            bench.say(f"quality: seed {seed}, {share:.0%} FP8: {loss:.4f} nats; {found}")
    spread = statistics.stdev(losses[0.0])
    parameters = sum(p.numel() for p in GPT(size).parameters())
    what = f"GPT of {parameters / 1e6:.2g} M parameters, {steps} steps of 1,024 tokens"
    rows = [
        Row(
            case="quality",
            what=f"{what}, seed {seed}: validation loss with {SHARE:.0%} FP8 / BF16",
            unit="nats",
            ours=losses[SHARE][i],
            plain=losses[0.0][i],
        )
        for i, seed in enumerate(SEEDS)
    ]
    for share, bar in ((SHARE, 1.0), (1.0, None)):
        gaps = [fp8 - bf16 for fp8, bf16 in zip(losses[share], losses[0.0], strict=True)]
        mean, error = statistics.mean(gaps), statistics.stdev(gaps) / math.sqrt(len(gaps))
        rows.append(
            Row(
                case="quality",
                what=f"{share:.0%} FP8 less BF16, paired: {mean:+.4f} +- {error:.4f} (standard error), as a magnitude,"
                " beside the standard deviation between seeds in BF16",
                unit="nats",
                ours=abs(mean),
                plain=spread,
                bar=bar,
            )
        )
    for key, name in (("gamma", "gamma"), ("sigma_ratio", "noise of FP8 over that of BF16")):
        values = [found[f"green/{key}"] for found in told if f"green/{key}" in found]
        what = f"{name} at the end, as the session measures it, mean of {len(values)} seeds with {SHARE:.0%} FP8"
        mean_value = statistics.mean(values) if values else "n/a: no probe in so few steps"
        rows.append(Row(case="quality", what=what, unit="", ours=mean_value))
    return rows


def _train(
    bench: Bench, text: Corpus, size: Size, steps: int, share: float, seed: int
) -> tuple[float, dict[str, float]]:
    """Return the validation loss in FP32 (nats a token) and what the session tells of its gears."""
    torch.manual_seed(seed)
    model = GPT(size)
    optimizer, schedule = build_optimizer(model, steps, PEAK)
    train, val = Blocks(text.train, size.context), Blocks(text.val, size.context, limit=512)
    order = torch.Generator().manual_seed(seed)
    config = {
        "run": {"dir": str(bench.scratch / "runs"), "report": False, "live": False},
        "power": {"meters": ["null"]},
        "precision": {"gears": ["bf16", "fp8"], "min_features": size.width},
        "policy": {"name": "scripted", "schedule": _segments(steps, share, seed)},
    }
    with GreenSession(config) as green:
        green.watch(model, optimizer)
        loader = DataLoader(train, batch_size=1024 // size.context, shuffle=True, generator=order)
        assert len(loader) >= steps
        for _, batch in zip(range(steps), loader, strict=False):
            model(**batch).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            green.step(tokens=batch["input_ids"].numel())
        found = green.metrics()
    with torch.no_grad():  # the session is closed: the model is plain, and evaluates in FP32
        losses = [model(**batch).item() for batch in DataLoader(val, batch_size=64)]
    return statistics.mean(losses), found


def _segments(steps: int, share: float, seed: int) -> Sequence[tuple[int, str]]:
    """Return a schedule of 10-step segments, a share of them in FP8, drawn anew for each seed."""
    count = steps // SEGMENT
    in_fp8 = set(random.Random(seed).sample(range(count), round(share * count)))
    return [(i * SEGMENT, "fp8" if i in in_fp8 else "bf16") for i in range(count)]
