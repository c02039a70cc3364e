"""Log joules and grams beside the loss, to TensorBoard, W&B or MLflow, with Accelerate.

    python recipes/accelerate/loggers.py --logger tensorboard
    python recipes/accelerate/loggers.py --logger wandb mlflow --small    a quick look, to two of them

Any machine. The package of each logger must be installed. All write below --out: W&B offline, MLflow into SQLite.
The session is closed before the last log, which so has the final figures, those of summary.json. The lines marked
"green" are all that differs from a plain Accelerate script.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch.utils.data import DataLoader

from greentrain.callbacks.accelerate import GreenAccelerator  # green
from recipes.accelerate.train_gpt import evaluate
from recipes.common.loggers import PROJECT, stay_here
from recipes.common.model import GPT, build_optimizer
from recipes.common.settings import parse


def main() -> None:
    settings = parse("gpt-accelerate-loggers", loggers=("tensorboard", "wandb", "mlflow"))
    stay_here(settings.out)
    accelerator = GreenAccelerator(
        cpu=not torch.cuda.is_available(),
        log_with=list(settings.loggers),
        project_dir=settings.out,
        green=settings.green,  # green
    )
    accelerator.init_trackers(PROJECT)
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
            if step % 10 == 0:
                accelerator.log({"train_loss": loss.item()}, step=step)  # green: its figures are added
            if step == settings.steps:
                break
    loss = evaluate(accelerator, model, val)
    accelerator.print(f"step {step}: val loss {loss:.2f} nats (unigram entropy {settings.val.unigram_entropy():.2f})")
    accelerator.green.close()  # green: what is logged now is final
    accelerator.log({"val_loss": loss}, step=step)
    accelerator.end_training()
    accelerator.print(f"logged by {', '.join(settings.loggers)} below {settings.out}")
    accelerator.print(f"report: {accelerator.green.report_path}")


if __name__ == "__main__":
    main()
