"""Train a small GPT while a frozen copy of it, compiled to 8-bit integers, scores every batch beside it.

    python recipes/raw/offload.py --small    a quick look

Any machine; it computes on the CPU. That is the reference pass of RLHF without the RL: the mean of ln p_policy - ln
p_reference says how far training has moved. The device here is the exact emulator; a card through XRT gives the same
bits (docs/fpga.md).
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from greentrain import GreenSession
from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.compiler import compile as compile_model
from greentrain.fpga_backend.emulator.device import Emulator
from recipes.common.model import GPT, build_optimizer
from recipes.common.settings import parse


class Logits(nn.Module):
    """The GPT as a compiler wants it: token ids in, logits out."""

    def __init__(self, gpt: GPT) -> None:
        super().__init__()
        self.gpt = gpt

    def forward(self, input_ids: Tensor) -> Tensor:
        x_BTC = self.gpt.tokens(input_ids) + self.gpt.positions.weight[: input_ids.shape[1]]
        return F.linear(self.gpt.norm(self.gpt.blocks(x_BTC)), self.gpt.tokens.weight)


def logprobs(model: nn.Module, ids: Tensor) -> Tensor:
    """Return ln p of each token but the first, [sequences, tokens - 1]."""
    with torch.no_grad():
        return -F.cross_entropy(model(ids)[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")


settings = parse("gpt-offload")
model = GPT(settings.size)
policy = Logits(model)
device = Emulator()
reference = device.load(compile_model(copy.deepcopy(policy), max_tokens=settings.size.context))
optimizer, schedule = build_optimizer(model, settings.steps, settings.lr)
loader = DataLoader(settings.train, batch_size=settings.batch, shuffle=True)

moved = 0.0
with GreenSession(settings.green, extra_meters=[device.meter]) as green:
    green.watch(model, optimizer)
    for step, batch in zip(range(1, settings.steps + 1), loader, strict=False):
        ids = batch["input_ids"]
        scored = device.submit(reference, Batch.of(list(ids)))  # runs beside the step
        before = logprobs(policy, ids) if step == settings.steps else None
        loss = model(**batch)
        with green.phase("backward"):
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        with green.phase("reference"):
            result = scored.result()
        green.step(tokens=ids.numel())
        if before is not None and result.logprobs is not None:
            moved = (before - torch.stack([torch.from_numpy(row) for row in result.logprobs])).mean().item()
device.close()

totals = green.totals()
waited_s = totals.phase_s.get("reference", 0.0)
print(f"ln p of the policy less that of the reference: {moved:.3f} nats a token")
print(f"waited {waited_s:.2f} s of {totals.duration_s:.1f} s for the reference")
print(f"{totals.energy_j:,.0f} J, {totals.emissions_g:.3f} gCO2e; report: {green.report_path}")
