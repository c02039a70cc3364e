"""Log joules and grams beside the loss, to CSV, TensorBoard, W&B or MLflow, with Lightning.

    python recipes/lightning/loggers.py --logger tensorboard         as long as train_gpt.py
    python recipes/lightning/loggers.py --logger csv wandb --small   a quick look, to two of them

Any machine. The package of each logger must be installed. All write below --out: W&B offline, MLflow into SQLite.
The last row has the final figures, those of summary.json. The lines marked "green" are all that differs from a plain
Lightning script.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from torch.utils.data import DataLoader

from greentrain.callbacks.lightning import GreenCallback  # green
from recipes.common.loggers import PROJECT, stay_here
from recipes.common.settings import parse
from recipes.lightning.train_gpt import LitGPT


def logger_of(name: str, out: str) -> Logger:
    if name == "tensorboard":
        return TensorBoardLogger(out, name="tensorboard")
    if name == "wandb":
        return WandbLogger(project=PROJECT, save_dir=out)
    if name == "mlflow":
        return MLFlowLogger(PROJECT, tracking_uri=os.environ["MLFLOW_TRACKING_URI"])
    return CSVLogger(out, name="csv")


def main() -> None:
    settings = parse("gpt-lightning-loggers", loggers=("csv", "tensorboard", "wandb", "mlflow"))
    stay_here(settings.out)
    L.seed_everything(settings.seed, verbose=False)
    generator = torch.Generator().manual_seed(settings.seed)
    train = DataLoader(settings.train, batch_size=settings.batch, shuffle=True, generator=generator)
    val = DataLoader(settings.val, batch_size=settings.batch)
    green = GreenCallback(settings.green)  # green: logs to whatever loggers the Trainer has
    trainer = L.Trainer(
        max_steps=settings.steps,
        val_check_interval=max(1, settings.steps // 4),
        num_sanity_val_steps=0,
        gradient_clip_val=1.0,
        log_every_n_steps=10,
        accelerator="auto",
        devices=1,
        logger=[logger_of(name, settings.out) for name in settings.loggers],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[green],  # green
    )
    trainer.fit(LitGPT(settings), train, val)
    print(f"logged by {', '.join(settings.loggers)} below {settings.out}")
    print(f"report: {green.session.report_path}")


if __name__ == "__main__":
    main()
