"""A Ray Train job of a minute: python ray_job.py FOLDER TEMP. Its plan follows a grid that its own training switches.

One worker; two, when the grid gets clean, of which one is killed; two again, and one, when the grid is dirty again.
"""

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ray
import torch
from ray.train import Checkpoint
from ray.train.torch import TorchConfig, prepare_model
from ray.train.v2.api.config import FailureConfig, RunConfig, ScalingConfig

from greentrain.callbacks.ray import GreenRaySession, GreenTorchTrainer
from greentrain.control.elastic import ElasticBatchSampler, Share
from greentrain.types import CarbonPoint

STEPS, BATCH, SAMPLES = 44, 8, 20
SAVE, SPAN, KILL = 3, 10, 2
OUT = Path(sys.argv[1])
TABLE = """
- {gear: fp32, ranks: 1, tokens_per_s: 38, power_w: 100}
- {gear: fp32, ranks: 2, tokens_per_s: 76, power_w: 300}
"""
GREEN = {
    "run": {"dir": str(OUT / "runs"), "report": False, "live": False, "book_s": 0.2},
    "power": {"meters": "cpu_model"},
    "precision": {"gears": ["fp32"]},
    # More than two ranks do in one clean hour, less than in nine: at any speed from a third to three times the table's,
    # one rank while the hour is dirty, and two while it is clean.
    "policy": {"name": "mpc", "tokens": 8e5, "deadline_h": 10.0, "decide_s": 1.0, "actions": str(OUT / "table.yaml")},
    "actuators": {"pause": False, "width": {"min": 1, "max": 2, "global_batch": BATCH}},
}


class Grid:
    """Clean while a file is there; the hours after this one are the other way round."""

    def __init__(self, clean: Path) -> None:
        self._clean = clean

    def mean(self, t0_unix_s: float, t1_unix_s: float) -> CarbonPoint:
        now = 100.0 if self._clean.exists() else 500.0
        value = now if t0_unix_s < time.time() + 3000.0 else 600.0 - now
        return CarbonPoint(t0_unix_s=t0_unix_s, t1_unix_s=t1_unix_s, g_per_kwh=value, zone="test", source="test")

    def forecast(self, t0_unix_s: float, t1_unix_s: float) -> list[CarbonPoint]:
        edges = [t0_unix_s + 900.0 * k for k in range(int((t1_unix_s - t0_unix_s) / 900.0) + 1)]
        return [self.mean(t, t + 900.0) for t in edges]

    def describe(self) -> Mapping[str, str]:
        return {"zone": "test", "source": "test"}


def model_and_data() -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    """Return a model of 129 weights, and data of which 17 epochs are trained."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    x = torch.randn(SAMPLES, 6)
    return model, x, x.sum(1, keepdim=True).sin()


def batches(share: Share, step: int) -> Iterator[list[int]]:
    """Yield the samples of one rank in each step, from a step on, without end."""
    sampler = ElasticBatchSampler(SAMPLES, share, seed=3)
    sampler.go_to(step)
    while True:
        yield from sampler


def train() -> None:
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    model, x, y = model_and_data()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    newest, step, widths = ray.train.get_checkpoint(), 0, [world]
    if newest is not None:
        with newest.as_directory() as folder:
            state = torch.load(f"{folder}/state.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step, widths = state["step"], [*state["widths"], world]
    first, clean, dirty, killed = step, OUT / "clean", OUT / "dirty", OUT / "killed"
    with GreenRaySession(signal=Grid(clean)) as green, (OUT / f"log-{os.getpid()}.jsonl").open("w") as log:
        green.watch(model, optimizer)
        wrapped = prepare_model(model)
        for ids in batches(Share.of(BATCH, micro_batch=BATCH), step):
            if step == STEPS:
                break
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(wrapped(x[ids]), y[ids])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
            record = {"t": time.time(), "step": step, "world": world, "rank": rank, "ids": ids}
            print(json.dumps(record), file=log, flush=True)
            time.sleep(0.2 / world)
            green.step(samples=len(ids))
            if green.checkpoint_due or step in (SAVE, STEPS):
                with tempfile.TemporaryDirectory() as folder:
                    if rank == 0:
                        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "widths": widths}
                        torch.save(state | {"step": step}, f"{folder}/state.pt")
                    checkpoint = Checkpoint.from_directory(folder) if rank == 0 else None
                    green.report({"step": step, "loss": loss.item(), "widths": widths}, checkpoint=checkpoint)
            if rank == 0:
                if world == 2 and step == first + KILL and not killed.exists():
                    killed.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                if world == 1 and step == first + SPAN and not dirty.exists():
                    clean.touch()
                if world == 2 and step == first + SPAN:
                    clean.rename(dirty)


def main() -> None:
    """Train, and leave what happened in result.json."""
    times = [time.time()]
    (OUT / "table.yaml").write_text(TABLE, encoding="utf-8")
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=200 * 2**20, _temp_dir=sys.argv[2])
    times.append(time.time())
    trainer = GreenTorchTrainer(
        train,
        green=GREEN,
        ranks=1,
        scaling_config=ScalingConfig(num_workers=(1, 2), elastic_resize_monitor_interval_s=30.0),
        torch_config=TorchConfig(backend="gloo"),
        run_config=RunConfig(name="job", storage_path=str(OUT / "store"), failure_config=FailureConfig(max_failures=1)),
    )
    result = trainer.fit()
    times.append(time.time())
    ray.shutdown()
    times.append(time.time())
    resizes: list[Any] = [[resize.before, resize.after, resize.seconds] for resize in trainer.resizes]
    answer = {"metrics": result.metrics, "resizes": resizes, "times": times}
    (OUT / "result.json").write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
