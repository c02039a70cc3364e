"""Train a small GPT in a loop of your own that leaves when it is asked to, and goes on with any number of processes.

    greentrain launch --width 1:2 --checkpoints raw-checkpoints -- python recipes/raw/elastic.py --small

Any machine; it computes on the CPU. SIGUSR1 to the launcher makes it save and end, and the same command goes on; under
a plan it leaves and returns by the grid's carbon intensity, as in recipes/accelerate/elastic. The lines marked "green"
are all that differs from a plain script of DistributedDataParallel that can resume.
"""

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from greentrain import GreenSession
from greentrain.control.elastic import ElasticBatchSampler, Share  # green
from recipes.common.model import GPT, build_optimizer
from recipes.common.settings import parse

SAVED = Path("raw-checkpoints")
EVERY = 100
"""Steps between two checkpoints that nobody asked for."""

settings = parse("gpt-raw-elastic")
rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
if ranks > 1:
    dist.init_process_group("gloo")
model = GPT(settings.size)
optimizer, schedule = build_optimizer(model, settings.steps, settings.lr)
green = GreenSession(settings.green)  # green
step = 0
if "GREENTRAIN_CHECKPOINT" in os.environ:  # green: the newest whole one; unset at the first start
    state = torch.load(os.environ["GREENTRAIN_CHECKPOINT"], weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    green.load_state_dict(state["green"])  # green: the same run goes on
    step = state["step"]


def save() -> None:
    """Write a checkpoint, whole or not at all."""
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "schedule": schedule, "green": green}
    SAVED.mkdir(exist_ok=True)
    torch.save({"step": step} | {name: part.state_dict() for name, part in parts.items()}, SAVED / "writing.tmp")
    (SAVED / "writing.tmp").replace(SAVED / f"step-{step}.pt")


wrapped = DistributedDataParallel(model) if ranks > 1 else model
share = Share.of(settings.batch, micro_batch=4)  # green: what this process does of each optimizer step
sampler = ElasticBatchSampler(len(settings.train), share, seed=settings.seed)  # green
sampler.go_to(step)  # green: no sample is lost or trained twice
loader = DataLoader(settings.train, batch_sampler=sampler)
print(f"rank {rank} of {ranks} from step {step} on", flush=True)
loss = torch.tensor(float("nan"))  # of a checkpoint that was the last one

with green:
    green.watch(model, optimizer)
    while step < settings.steps:
        for n, batch in enumerate(loader, start=1):
            loss = wrapped(**batch) / share.accumulate
            loss.backward()
            if n % share.accumulate:
                continue
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            step += 1
            green.step(tokens=batch["input_ids"].numel() * share.accumulate)
            if step % EVERY == 0 or green.checkpoint_due:  # green: due when it is to leave, on all ranks at once
                if rank == 0:
                    save()
                green.checkpoint()  # green: on every rank; where the run is to leave, this call does not return
            if step == settings.steps:
                break

if rank == 0:
    print(f"step {step}: train loss {loss.item() * share.accumulate:.2f} nats; report: {green.report_path}")
if ranks > 1:
    dist.destroy_process_group()
