"""Train a GPT in BF16 and, for a part of the steps, in FP8: the same weights, the same optimizer, no restart.

    python recipes/lightning/gears.py --small                            half a minute
    python recipes/lightning/gears.py --gear fp8                         the whole run in one gear
    python recipes/lightning/gears.py --schedule 0:bf16,100:fp8,400:bf16

On a CPU FP8 is slower than BF16 and costs more: what is shown here is the shift. The lines marked "green" are all that
differs from a plain Lightning script; the precision of the Trainer stays the default.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import lightning as L
import torch
from torch.utils.data import DataLoader

from greentrain.callbacks.lightning import GreenCallback  # green
from recipes.common.gears import gear_lines
from recipes.common.settings import parse
from recipes.lightning.train_gpt import LitGPT


def main() -> None:
    settings = parse("gpt-gears", gears=("bf16", "fp8"))
    L.seed_everything(settings.seed, verbose=False)
    generator = torch.Generator().manual_seed(settings.seed)
    train = DataLoader(settings.train, batch_size=settings.batch, shuffle=True, generator=generator)
    val = DataLoader(settings.val, batch_size=settings.batch)
    green = GreenCallback(settings.green)  # green: sections precision and policy name gears and schedule
    trainer = L.Trainer(
        max_steps=settings.steps,
        val_check_interval=max(1, settings.steps // 4),
        num_sanity_val_steps=0,
        gradient_clip_val=1.0,
        accelerator="auto",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[green],  # green
    )
    trainer.fit(LitGPT(settings), train, val)
    if green.session.folder is not None:
        print(*gear_lines(green.session.folder), sep="\n")
    print(f"report: {green.session.report_path}")


if __name__ == "__main__":
    main()
