"""Train a GPT of 10 M parameters on Python's own source with Lightning, and learn what it cost.

    python recipes/lightning/train_gpt.py           two to three minutes on two cores
    python recipes/lightning/train_gpt.py --small   a quick look

Any machine, on its GPU where it has one. The lines marked "green" are all that differs from a plain Lightning script.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.utils.data import DataLoader

from greentrain.callbacks.lightning import GreenCallback  # green
from recipes.common.model import GPT, build_optimizer
from recipes.common.settings import Settings, parse


class LitGPT(L.LightningModule):
    """The model, its loss and its optimizer."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.gpt = GPT(settings.size)

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        loss: Tensor = self.gpt(**batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: dict[str, Tensor], index: int) -> None:
        self.log("val_loss", self.gpt(**batch))

    def on_validation_epoch_end(self) -> None:
        loss, entropy = float(self.trainer.callback_metrics["val_loss"]), self.settings.val.unigram_entropy()
        print(f"step {self.global_step}: val loss {loss:.2f} nats (unigram entropy {entropy:.2f})", flush=True)

    def configure_optimizers(self) -> Any:
        optimizer, schedule = build_optimizer(self.gpt, self.settings.steps, self.settings.lr)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    settings = parse("gpt-lightning")
    L.seed_everything(settings.seed, verbose=False)
    generator = torch.Generator().manual_seed(settings.seed)
    train = DataLoader(settings.train, batch_size=settings.batch, shuffle=True, generator=generator)
    val = DataLoader(settings.val, batch_size=settings.batch)
    green = GreenCallback(settings.green)  # green
    trainer = L.Trainer(
        max_steps=settings.steps,
        val_check_interval=max(1, settings.steps // 4),
        num_sanity_val_steps=0,
        gradient_clip_val=1.0,
        log_every_n_steps=10,
        accelerator="auto",
        devices=1,
        logger=CSVLogger(settings.out, name="logs"),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[green],  # green
    )
    trainer.fit(LitGPT(settings), train, val)
    print(f"report: {green.session.report_path}")


if __name__ == "__main__":
    main()
