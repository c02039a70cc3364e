r"""Train a small GPT that waits, leaves and comes back with more or fewer processes, with Accelerate.

    greentrain launch --config recipes/accelerate/elastic/green.yaml --checkpoints elastic-checkpoints \
        -- accelerate launch --config_file recipes/accelerate/two_processes.yaml \
        recipes/accelerate/elastic/train.py --small

The global batch, the data of every step and the learning rate are the same at any number of processes. The lines marked
"green" are all that differs from a plain Accelerate script that can resume.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
import yaml
from torch.utils.data import DataLoader

from greentrain.callbacks.accelerate import GreenAccelerator  # green
from greentrain.control.elastic import ElasticBatchSampler, Share  # green
from recipes.common.model import GPT, build_optimizer
from recipes.common.settings import Settings, parse

SAVED = Path("elastic-checkpoints")
EVERY = 100
"""Steps between two checkpoints that nobody asked for."""


def main() -> None:
    settings = parse("gpt-elastic", steps=(500, 400))
    share = Share.of(settings.batch, micro_batch=max(1, settings.batch // 2))  # green: of this process
    accelerator = GreenAccelerator(  # green
        cpu=not torch.cuda.is_available(),
        gradient_accumulation_steps=share.accumulate,
        green=green_config(settings),  # green
    )
    model = GPT(settings.size)
    optimizer, schedule = build_optimizer(model, settings.steps, settings.lr)
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.register_for_checkpointing(schedule)

    step = 0
    checkpoint = os.environ.get("GREENTRAIN_CHECKPOINT")  # green: the newest whole one
    if checkpoint:
        accelerator.load_state(checkpoint)
        step = int(Path(checkpoint).name.removeprefix("step-"))
    sampler = ElasticBatchSampler(len(settings.train), share, seed=settings.seed)  # green
    sampler.go_to(step)  # green
    train = DataLoader(settings.train, batch_sampler=sampler)
    accelerator.print(f"{accelerator.num_processes} processes from step {step} on")
    loss = torch.tensor(float("nan"), device=accelerator.device)  # of a checkpoint that was the last one

    while step < settings.steps:
        for batch in train:
            with accelerator.accumulate(model):
                loss = model(**{key: value.to(accelerator.device) for key, value in batch.items()})
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            if not accelerator.sync_gradients:
                continue
            schedule.step()
            step += 1
            if step % EVERY == 0 or accelerator.green.checkpoint_due:  # green: the plan is about to leave
                accelerator.save_state(str(SAVED / f"step-{step}"))  # green: where it leaves, this call does not return
            if step == settings.steps:
                break
    loss = accelerator.reduce(loss.detach(), "mean")
    accelerator.end_training()
    accelerator.print(f"step {step}: loss {loss.item():.2f} nats; report: {accelerator.green.report_path}")


def green_config(settings: Settings) -> dict[str, object]:  # green: the plan's file, for a job of this size
    config: dict[str, dict[str, object]] = yaml.safe_load(Path(__file__).with_name("green.yaml").read_text())
    config["policy"]["tokens"] = settings.steps * settings.batch * settings.size.context
    config["run"]["dir"] = settings.out
    return {**config}


if __name__ == "__main__":
    main()
