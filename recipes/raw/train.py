"""Train a GPT of 10 M parameters in a loop of your own, and learn what it cost.

    python recipes/raw/train.py [--small]

Any machine, with --small for less than half a minute of a core; it computes on the CPU. There is no callback here: the
loop says itself where its phases and steps are.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch.utils.data import DataLoader

from greentrain import GreenSession
from recipes.common.model import GPT, build_optimizer
from recipes.common.settings import parse

settings = parse("gpt-raw")
model = GPT(settings.size)
optimizer, schedule = build_optimizer(model, settings.steps, settings.lr)
loader = DataLoader(settings.train, batch_size=settings.batch, shuffle=True)

with GreenSession(settings.green) as green:
    green.watch(model, optimizer)
    for step, batch in zip(range(1, settings.steps + 1), loader, strict=False):
        loss = model(**batch)
        with green.phase("backward"):
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        green.step(tokens=batch["input_ids"].numel())
        if step % max(1, settings.steps // 4) == 0:
            entropy = settings.val.unigram_entropy()
            print(f"step {step}: train loss {loss.item():.2f} nats (unigram entropy {entropy:.2f})", flush=True)

totals = green.totals()
print(f"{totals.energy_j:,.0f} J, {totals.emissions_g:.3f} gCO2e, {totals.tokens / totals.energy_j:,.1f} tokens/J")
print(f"report: {green.report_path}")
