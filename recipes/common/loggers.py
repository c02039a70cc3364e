"""Where loggers write what a recipe logs: below its folder, without a network and without a key."""

import os
from pathlib import Path
from typing import Final

PROJECT: Final = "greentrain-recipes"


def stay_here(out: str) -> None:
    """Let W&B, MLflow and TensorBoard write below a folder. What the environment says already goes first.

    Args:
        out: The folder; it is made where there is none.
    """
    folder = Path(out).resolve()
    folder.mkdir(parents=True, exist_ok=True)  # W&B and SQLite make none
    wanted = {
        "WANDB_MODE": "offline",  # `wandb sync` sends it later
        "WANDB_DIR": str(folder),
        "WANDB_PROJECT": PROJECT,
        "WANDB_ERROR_REPORTING": "false",  # W&B's own crash reports
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
        "MLFLOW_EXPERIMENT_NAME": PROJECT,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "TENSORBOARD_LOGGING_DIR": str(folder / "tensorboard"),  # the Hugging Face Trainer's
    }
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
