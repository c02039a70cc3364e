"""Train a GPT of 10 M parameters on Python's own source with Accelerate, and learn what it cost.

    accelerate launch --config_file recipes/accelerate/two_processes.yaml recipes/accelerate/train_gpt.py [--small]

Any machine: two processes, on two GPUs or on the CPU; --small is a quick look. The lines marked "green" are all that
differs from a plain Accelerate script.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch.utils.data import DataLoader

from greentrain.callbacks.accelerate import GreenAccelerator  # green
from recipes.common.model import GPT, build_optimizer
from recipes.common.settings import parse


def main() -> None:
    settings = parse("gpt-accelerate")
    accelerator = GreenAccelerator(cpu=not torch.cuda.is_available(), green=settings.green)  # green
    model = GPT(settings.size)
    optimizer, schedule = build_optimizer(model, settings.steps, settings.lr)
    batch = max(1, settings.batch // accelerator.num_processes)
    generator = torch.Generator().manual_seed(settings.seed)
    train = DataLoader(settings.train, batch_size=batch, shuffle=True, generator=generator)
    model, optimizer, train, val = accelerator.prepare(
        model, optimizer, train, DataLoader(settings.val, batch_size=settings.batch)
    )

    step = 0
    while step < settings.steps:
        for tokens in train:
            loss = model(**tokens)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            if step % max(1, settings.steps // 4) == 0:
                loss, entropy = evaluate(accelerator, model, val), settings.val.unigram_entropy()
                accelerator.print(f"step {step}: val loss {loss:.2f} nats (unigram entropy {entropy:.2f})")
            if step == settings.steps:
                break
    accelerator.end_training()
    if accelerator.is_main_process:
        print(f"report: {accelerator.green.report_path}")


def evaluate(accelerator: GreenAccelerator, model: torch.nn.Module, val: DataLoader[dict[str, torch.Tensor]]) -> float:
    model.eval()
    with torch.no_grad():
        losses = [accelerator.gather_for_metrics(model(**batch)[None]) for batch in val]
    model.train()
    return float(torch.cat(losses).mean())


if __name__ == "__main__":
    main()
