"""A day of the Californian grid in three minutes: a GPT is trained when the sun shines, and is done within 24 hours.

    python recipes/lightning/green_day.py            three minutes on two cores
    python recipes/lightning/green_day.py --small --minutes 1    a quick look

Grid time runs 480 times as fast as the clock, so a decision every half hour comes every four seconds; all else is what
runs in a real job. It takes as many steps as this machine does in half of the day. First the gears are measured side by
side, and what the process draws at rest; then the default policy plans against the typical day of the zone, pauses,
trains, and is in time. The joules are those of this machine in real time. The lines marked "green" are all that differs
from a plain Lightning script.
"""

import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import lightning as L
import torch
from torch.utils.data import DataLoader

from greentrain.callbacks.lightning import GreenCallback  # green
from recipes.common.day import day_config, with_steps_that_fit
from recipes.common.settings import parse
from recipes.lightning.train_gpt import LitGPT


def main() -> None:
    settings = with_steps_that_fit(parse("gpt-green-day", steps=None))
    logging.basicConfig(format="%(message)s")
    logging.getLogger("greentrain").setLevel(logging.INFO)  # green: says what the plan does
    L.seed_everything(settings.seed, verbose=False)
    generator = torch.Generator().manual_seed(settings.seed)
    train = DataLoader(settings.train, batch_size=settings.batch, shuffle=True, generator=generator)
    val = DataLoader(settings.val, batch_size=settings.batch)
    green = GreenCallback(day_config(settings))  # green: sections carbon, precision and policy make the plan
    trainer = L.Trainer(
        max_steps=settings.steps,
        val_check_interval=max(1, settings.steps // 3),
        check_val_every_n_epoch=None,  # the small model passes over its text more than once
        limit_val_batches=max(1, settings.steps // 20),  # a slow machine must not spend its day on them
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
    print(f"report: {green.session.report_path}")


if __name__ == "__main__":
    main()
