"""Log joules and grams beside the loss, to TensorBoard, W&B or MLflow, with the Hugging Face Trainer.

    python recipes/transformers/loggers.py --logger tensorboard           as long as train_gpt.py
    python recipes/transformers/loggers.py --logger wandb mlflow --small  a quick look, to two of them

Any machine. The package of each logger must be installed. All write below --out: W&B offline, MLflow into SQLite.
The lines marked "green" are all that differs from a plain Trainer script.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from transformers import Trainer, TrainingArguments

from greentrain.callbacks.transformers import GreenCallback  # green
from recipes.common.loggers import stay_here
from recipes.common.model import build_optimizer
from recipes.common.settings import parse
from recipes.transformers.train_gpt import Printer, Unshifted, gpt2


def main() -> None:
    settings = parse("gpt-transformers-loggers", loggers=("tensorboard", "wandb", "mlflow"))
    stay_here(settings.out)
    model = gpt2(settings.size)
    green = GreenCallback(settings.green)  # green: adds its figures to each log of the Trainer
    trainer = Trainer(
        model,
        TrainingArguments(
            output_dir=str(Path(settings.out) / "checkpoints"),
            max_steps=settings.steps,
            per_device_train_batch_size=settings.batch,
            per_device_eval_batch_size=settings.batch,
            eval_strategy="steps",
            eval_steps=max(1, settings.steps // 4),
            logging_steps=10,
            save_strategy="no",
            report_to=list(settings.loggers),
            run_name=settings.name,
            seed=settings.seed,
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
        ),
        train_dataset=Unshifted(settings.train),
        eval_dataset=Unshifted(settings.val),
        optimizers=build_optimizer(model, settings.steps, settings.lr),
        callbacks=[green, Printer(settings)],  # green
    )
    trainer.train()
    print(f"logged by {', '.join(settings.loggers)} below {settings.out}")
    print(f"report: {green.session.report_path}")


if __name__ == "__main__":
    main()
