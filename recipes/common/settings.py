"""What the recipes share: the command line and the size of the run."""

import argparse
from dataclasses import dataclass

import torch

from recipes.common.data import Blocks, Corpus, corpus
from recipes.common.model import Size


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One run of a recipe."""

    steps: int
    batch: int
    """Blocks of ``size.context`` tokens a step, over all processes."""
    lr: float
    size: Size
    train: Blocks
    val: Blocks
    corpus: Corpus
    seed: int
    zone: str
    out: str
    name: str

    @property
    def green(self) -> dict[str, dict[str, object]]:
        """GreenTrain's configuration: where the run is written and which grid feeds it."""
        return {
            "run": {"dir": self.out, "name": self.name},
            "carbon": {"signal": "typical", "zone": self.zone, "pue": 1.2},
        }


def parse(name: str, argv: list[str] | None = None) -> Settings:
    """Read the command line of a recipe and load its data."""
    parser = argparse.ArgumentParser(description="Train a small GPT on Python's own source and report its energy.")
    parser.add_argument("--steps", type=int, default=None, help="optimizer steps (default 500; 300 with --small)")
    parser.add_argument("--small", action="store_true", help="a model of 0.4 M parameters, for a quick look and for CI")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--zone", default="US-CAL-CISO", help="grid zone whose typical carbon intensity is used")
    parser.add_argument("--out", default="runs", help="folder of the run folders")
    args = parser.parse_args(argv)
    torch.manual_seed(args.seed)
    if args.small:
        torch.set_num_threads(1)  # more only wait for one another in a model this small
        text = corpus(vocab=512, max_bytes=1_000_000)
        size, steps, batch, lr, blocks = Size(vocab=text.vocab, width=96, layers=3, heads=3), 300, 8, 4e-3, 32
    else:
        text = corpus()
        size, steps, batch, lr, blocks = Size(vocab=text.vocab), 500, 4, 1e-3, 128
    return Settings(
        steps=args.steps or steps,
        batch=batch,
        lr=lr,
        size=size,
        train=Blocks(text.train, size.context),
        val=Blocks(text.val, size.context, limit=blocks),
        corpus=text,
        seed=args.seed,
        zone=args.zone,
        out=args.out,
        name=name,
    )
