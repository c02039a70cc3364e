"""Train a GPT with Accelerate and shift between BF16, FP8 and FP32 on the way, under DeepSpeed ZeRO or without.

    accelerate launch --config_file recipes/accelerate/gears_deepspeed.yaml recipes/accelerate/gears.py [--small]
    accelerate launch --config_file recipes/accelerate/two_processes.yaml recipes/accelerate/gears.py [--small]

Any machine; --small is a quick look. On a CPU FP8 costs more than BF16: what is shown is the shift. The first needs
DeepSpeed: pip install 'greentrain-torch[accelerate,deepspeed,recipes]'. Its ds_config.json turns the sections bf16 and
fp16 off, whose weights have one precision for good, and torch_autocast on, which keeps them in FP32: only so may the
gears shift. The second is plain data parallel and needs nothing more.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch.utils.data import DataLoader

from greentrain.callbacks.accelerate import GreenAccelerator  # green
from recipes.accelerate.train_gpt import evaluate
from recipes.common.gears import gear_lines
from recipes.common.model import GPT, build_optimizer
from recipes.common.settings import parse


def main() -> None:
    settings = parse("gpt-gears-accelerate", gears=("bf16", "fp8", "fp32"))
    zero = os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true"  # accelerate launch, from its configuration
    accelerator = GreenAccelerator(cpu=not (zero or torch.cuda.is_available()), green=settings.green)  # green
    model = GPT(settings.size)
    optimizer, schedule = build_optimizer(model, settings.steps, settings.lr)
    batch = max(1, settings.batch // accelerator.num_processes)
    generator = torch.Generator().manual_seed(settings.seed)
    train = DataLoader(settings.train, batch_size=batch, shuffle=True, generator=generator)
    model, optimizer, train, val = accelerator.prepare(
        model, optimizer, train, DataLoader(settings.val, batch_size=settings.batch)
    )
    accelerator.print(f"DeepSpeed ZeRO stage {model.zero_optimization_stage()}" if zero else "without DeepSpeed")

    step = 0
    while step < settings.steps:
        for tokens in train:
            loss = model(**tokens)
            accelerator.backward(loss)  # with DeepSpeed the engine clips and steps in here
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
    if accelerator.is_main_process and accelerator.green.folder is not None:
        print(*gear_lines(accelerator.green.folder), sep="\n")
        print(f"report: {accelerator.green.report_path}")


if __name__ == "__main__":
    main()
