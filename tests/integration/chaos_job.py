"""The training of the chaos test: chaos_job.py FOLDER, with ``options.json`` there.

It notes every step that it does in ``seen-*.jsonl``, a file a process, which no fault reaches, and keeps in its
checkpoints which samples each step of the model has used: of all ranks, as they tell each other.
"""

import contextlib
import json
import os
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

GLOBAL_BATCH, SAMPLES, KEPT = 8, 52, 5


def train(folder: Path, config: dict[str, Any], saved: str, steps: int, every: int, step_s: float) -> None:
    """Train a small model for so many optimizer steps, all attempts together."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if ranks > 1:
        dist.init_process_group("gloo")
    net: nn.Module = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    green, step, history = GreenSession(config), 0, torch.full((steps, GLOBAL_BATCH), -1, dtype=torch.int32)
    checkpoint = os.environ.get(ENV_CHECKPOINT)
    if checkpoint is not None:
        state = torch.load(checkpoint, weights_only=True)
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        green.load_state_dict(state["green"])
        step, history[: state["step"]] = state["step"], state["history"]
    model = nn.parallel.DistributedDataParallel(net) if ranks > 1 else net
    share = Share.of(GLOBAL_BATCH, micro_batch=4)
    x = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, x.sin().sum(1, keepdim=True), torch.arange(SAMPLES, dtype=torch.int32))
    sampler = ElasticBatchSampler(SAMPLES, share, seed=5)
    sampler.go_to(step)
    loader = DataLoader(data, batch_sampler=sampler)
    with green, _witness(folder, rank, ranks, step, checkpoint, green) as seen:
        green.watch(model, optimizer)
        while step < steps:
            own: list[torch.Tensor] = []
            for i, (inputs, wanted, numbers) in enumerate(loader, start=1):
                loss = (model(inputs) - wanted).pow(2).mean() / share.accumulate
                loss.backward()
                own.append(numbers)
                if i % share.accumulate:
                    continue
                samples = _of_all_ranks(torch.cat(own), ranks)
                optimizer.step()
                optimizer.zero_grad()
                history[step], own = samples, []
                print(json.dumps({"step": step, "t_s": time.monotonic(), "samples": samples.tolist()}), file=seen)
                step += 1
                if not (folder / "hurry").exists():
                    with green.phase("data"):
                        time.sleep(step_s / ranks)
                green.step(samples=GLOBAL_BATCH // ranks)
                if green.checkpoint_due or step % every == 0:
                    if rank == 0:
                        words = {"step": step, "history": history[:step].clone(), "green": green.state_dict()}
                        _save(
                            Path(saved), step, {**words, "model": net.state_dict(), "optimizer": optimizer.state_dict()}
                        )
                    green.checkpoint()
                if step == steps:
                    break
    if rank == 0:
        with torch.no_grad():
            final = (net(x) - data.tensors[1]).pow(2).mean().item()
        assert green.folder is not None
        part = folder / "final.tmp"
        part.write_text(json.dumps({"loss": final, "history": history.tolist(), "run_id": green.folder.name}))
        part.replace(folder / "final.json")
    if ranks > 1:
        dist.destroy_process_group()


def _of_all_ranks(own: torch.Tensor, ranks: int) -> torch.Tensor:
    if ranks == 1:
        return own
    parts = [torch.empty_like(own) for _ in range(ranks)]
    dist.all_gather(parts, own)
    return torch.cat(parts)


def _witness(folder: Path, rank: int, ranks: int, step: int, checkpoint: str | None, green: GreenSession) -> Any:
    handover = LauncherFiles.from_env()
    offer = None if handover is None else handover.offer()
    head = {
        "group": os.environ.get("TORCHELASTIC_RUN_ID", ""),
        "attempt": 0 if offer is None else offer.attempt,
        "rank": rank,
        "ranks": ranks,
        "pid": os.getpid(),
        "first_step": step,
        "checkpoint": checkpoint,
    }
    file = (folder / f"seen-{time.monotonic_ns()}-{os.getpid()}.jsonl").open("w", buffering=1, encoding="utf-8")
    print(json.dumps(head), file=file)
    return file


def _save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write a checkpoint, whole or not at all, and drop old ones."""
    folder.mkdir(exist_ok=True)
    path = folder / f"step-{step:06}.pt"
    torch.save(state, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)
    for old in sorted(folder.glob("step-*.pt"))[:-KEPT]:
        with contextlib.suppress(OSError):
            old.unlink()


if __name__ == "__main__":
    train(Path(sys.argv[1]), **json.loads((Path(sys.argv[1]) / "options.json").read_text()))
