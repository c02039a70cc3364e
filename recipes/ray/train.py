"""Train a GPT with Ray Train, on as many workers as GreenTrain wants at the time.

    python recipes/ray/train.py --small --workers 1:2 --want 30:2,90:1

Any machine: a cluster of Ray is started where it runs, or RAY_ADDRESS names one. The number of workers changes after
steps 30 and 90 here; a plan (section "policy" of the configuration) does the same by the grid's carbon intensity. Every
step trains the same samples at any width. The lines marked "green" are all that differs from a plain script of Ray
Train.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import ray
import torch
from ray.train import Checkpoint
from ray.train.torch import TorchConfig, prepare_model
from ray.train.v2.api.config import FailureConfig, RunConfig, ScalingConfig
from torch.utils.data import DataLoader

from greentrain.callbacks.ray import GreenRaySession, GreenTorchTrainer  # green
from greentrain.control.elastic import ElasticBatchSampler, Share  # green
from recipes.common.model import GPT, build_optimizer
from recipes.common.settings import parse

MICRO_BATCH = 4


def train(config: Mapping[str, Any]) -> None:
    settings, want = parse("gpt-ray", config["argv"]), dict(config["want"])
    rank = ray.train.get_context().get_world_rank()
    model = GPT(settings.size)
    optimizer, schedule = build_optimizer(model, settings.steps, settings.lr)
    objects: dict[str, Any] = {"model": model, "optimizer": optimizer, "schedule": schedule}
    step = 0
    newest = ray.train.get_checkpoint()
    if newest is not None:
        with newest.as_directory() as folder:
            state = torch.load(f"{folder}/state.pt", weights_only=True)
        step = state.pop("step")
        for name, part in state.items():
            objects[name].load_state_dict(part)

    share = Share.of(settings.batch, micro_batch=MICRO_BATCH)  # green: the global batch stays what it is
    sampler = ElasticBatchSampler(len(settings.train), share, seed=settings.seed)  # green
    sampler.go_to(step)  # green: and no sample is lost or trained twice
    loader = DataLoader(settings.train, batch_sampler=sampler)
    wrapped = prepare_model(model)
    with GreenRaySession() as green:  # green: configured by the trainer below
        green.watch(model, optimizer)  # green
        while step < settings.steps:
            tokens = 0
            for n, batch in enumerate(loader, start=1):
                loss = wrapped(**batch) / share.accumulate
                loss.backward()
                tokens += batch["input_ids"].numel()
                if n % share.accumulate:
                    continue
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                step += 1
                green.step(tokens=tokens)  # green
                tokens = 0
                if step in want:
                    green.want(want[step])  # green: by hand, in place of a plan
                if step % max(1, settings.steps // 4) == 0 or green.checkpoint_due:  # green: or before a resize
                    metrics = {"step": step, "train_loss": loss.item() * share.accumulate}
                    if rank == 0:
                        print(f"step {step}, {share.ranks} ranks: train loss {metrics['train_loss']:.2f} nats")
                    with tempfile.TemporaryDirectory() as folder:
                        checkpoint = None
                        if rank == 0:
                            parts = {name: part.state_dict() for name, part in objects.items()}
                            torch.save(parts | {"step": step}, f"{folder}/state.pt")
                            checkpoint = Checkpoint.from_directory(folder)
                        green.report(metrics, checkpoint)  # green: in place of ray.train.report
                if step == settings.steps:
                    break


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--workers", default="1:2", help="fewest and most")
    parser.add_argument("--want", default="", help="step:workers,...")
    args, rest = parser.parse_known_args()
    least, most = (int(part) for part in args.workers.split(":"))
    want = [tuple(int(part) for part in pair.split(":")) for pair in args.want.split(",") if pair]
    settings = parse("gpt-ray", rest)
    path = os.pathsep.join([sys.path[0], os.environ.get("PYTHONPATH", "")])  # workers import this repository's recipes
    ray.init(runtime_env={"env_vars": {"PYTHONPATH": path}}, include_dashboard=False)
    trainer = GreenTorchTrainer(  # green: in place of TorchTrainer
        train,
        green=settings.green,  # green
        ranks=least,  # green
        train_loop_config={"argv": rest, "want": want},
        scaling_config=ScalingConfig(num_workers=(least, most), use_gpu=torch.cuda.is_available()),
        torch_config=TorchConfig(backend=None),
        run_config=RunConfig(
            storage_path=str(Path(settings.out).resolve() / "ray"), failure_config=FailureConfig(max_failures=2)
        ),
    )
    result = trainer.fit()
    print(f"unigram entropy {settings.val.unigram_entropy():.2f} nats; {result.metrics}")
    for resize in trainer.resizes:  # green
        print(f"{resize.before} -> {resize.after} workers in {resize.seconds:.1f} s")
    print(f"report: {trainer.folder}/report.html")  # green
    ray.shutdown()


if __name__ == "__main__":
    main()
