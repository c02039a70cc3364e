"""A training that may be put off or change its width: job.py FOLDER OPTIONS_AS_JSON.

It writes ``seen-ATTEMPT-RANK.jsonl`` (the samples of every step it did), checkpoints, and ``final.json``.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from greentrain import GreenSession
from greentrain.control.elastic import ElasticBatchSampler, Share
from greentrain.control.launcher_protocol import ENV_CHECKPOINT, LauncherFiles

GLOBAL_BATCH, SAMPLES = 8, 52


def train(
    folder: Path, config: dict[str, Any], steps: int, every: int = 0, step_s: float = 0.0, die_at: int = 0
) -> None:
    """Train a small model for so many optimizer steps, all attempts together; the first may be killed after one."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if ranks > 1:
        dist.init_process_group("gloo")
    net: nn.Module = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    green, step = GreenSession(config), 0
    checkpoint = newest(folder)
    if checkpoint is not None:
        state = torch.load(checkpoint, weights_only=True)
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        green.load_state_dict(state["green"])
        step = state["step"]
    model = nn.parallel.DistributedDataParallel(net) if ranks > 1 else net
    share = Share.of(GLOBAL_BATCH, micro_batch=4)
    x = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, x.sin().sum(1, keepdim=True), torch.arange(SAMPLES))
    sampler = ElasticBatchSampler(SAMPLES, share, seed=5)
    sampler.go_to(step)
    loader = DataLoader(data, batch_sampler=sampler)
    handover = LauncherFiles.from_env()
    offer = None if handover is None else handover.offer()
    attempt = 0 if offer is None else offer.attempt
    losses: list[float] = []
    with green, (folder / f"seen-{attempt}-{rank}.jsonl").open("a", encoding="utf-8") as seen:
        green.watch(model, optimizer)
        while step < steps:
            samples: list[int] = []
            for i, (inputs, wanted, numbers) in enumerate(loader, start=1):
                loss = (model(inputs) - wanted).pow(2).mean() / share.accumulate
                loss.backward()
                losses.append(loss.item())
                samples += numbers.tolist()
                if i % share.accumulate:
                    continue
                optimizer.step()
                optimizer.zero_grad()
                seen.write(json.dumps({"step": step, "samples": samples}) + "\n")
                seen.flush()
                step, samples = step + 1, []
                time.sleep(step_s)
                green.step(samples=GLOBAL_BATCH // ranks)
                if attempt == 1 and step == die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                if green.checkpoint_due or (every and step % every == 0):
                    if rank == 0:
                        save(folder, step, net, optimizer, green)
                    green.checkpoint()
                if step == steps:
                    break
    if rank == 0:
        with torch.no_grad():
            final = (net(x) - data.tensors[1]).pow(2).mean().item()
        totals = green.totals()
        words = {"loss": final, "step": step, "totals": totals.to_dict(), "metrics": green.metrics()}
        (folder / "final.json").write_text(json.dumps(words))
    if ranks > 1:
        dist.destroy_process_group()


def save(folder: Path, step: int, net: nn.Module, optimizer: torch.optim.Optimizer, green: GreenSession) -> None:
    """Write a checkpoint, whole or not at all."""
    path = folder / "checkpoints" / f"step-{step:05}.pt"
    path.parent.mkdir(exist_ok=True)
    state = {
        "model": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "green": green.state_dict(),
        "step": step,
    }
    torch.save(state, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def newest(folder: Path) -> Path | None:
    """Return the checkpoint that the launcher names, else the newest one."""
    if ENV_CHECKPOINT in os.environ:
        return Path(os.environ[ENV_CHECKPOINT])
    return max((folder / "checkpoints").glob("*.pt"), default=None)


if __name__ == "__main__":
    train(Path(sys.argv[1]), **json.loads(sys.argv[2]))
