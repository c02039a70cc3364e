"""What the recipes share: the command line and the size of the run."""

import argparse
import importlib.util
from collections.abc import Sequence
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
    gears: tuple[str, ...] = ()
    """Precision gears of the run; none: GreenTrain leaves precision alone."""
    schedule: tuple[tuple[int, str], ...] = ()
    """Pairs of an optimizer step and the gear from there on."""
    minutes: float = 3.0
    """In which a recipe that replays a day of the grid lets it pass."""
    loggers: tuple[str, ...] = ()
    """Names of the framework's loggers that get the figures."""
    model_size: str = ""
    """One of the sizes of a recipe that has a model of its own."""

    @property
    def green(self) -> dict[str, dict[str, object]]:
        """GreenTrain's configuration: where the run is written, which grid feeds it, and its gears."""
        sections: dict[str, dict[str, object]] = {
            "run": {"dir": self.out, "name": self.name},
            "carbon": {"signal": "typical", "zone": self.zone, "pue": 1.2},
        }
        if self.loggers:
            sections["run"]["book_s"] = 1.0  # loggers get what is booked: by default up to 10 s old
        if self.gears:
            # Below 128 features FP8 does not pay; --small goes there to show the way.
            sections["precision"] = {"gears": self.gears, "min_features": min(128, self.size.width)}
            sections["policy"] = {"name": "scripted", "schedule": self.schedule}
        return sections


def parse(
    name: str,
    argv: list[str] | None = None,
    gears: Sequence[str] = (),
    steps: tuple[int, int] | None = (500, 300),
    loggers: Sequence[str] = (),
    sizes: Sequence[str] = (),
) -> Settings:
    """Read the command line of a recipe and load its data.

    Args:
        name: Of the run.
        argv: The words of the command line; None: those of this process.
        gears: Precision gears among which a recipe shifts; adds the flags --gear and --schedule.
        steps: Optimizer steps of the large and of the small model, unless the command line says; None: as many as fit
            into a replayed day, and a flag --minutes for its length.
        loggers: Names among which a recipe lets choose; adds the flag --logger, by default the first.
        sizes: Sizes of a recipe's own model; adds the flag --size, by default the first.
    """
    parser = argparse.ArgumentParser(description="Train a small GPT on Python's own source and report its energy.")
    parser.add_argument(
        "--steps",
        type=int,
        default=None,
        help="optimizer steps" + (f" (default {steps[0]}; {steps[1]} with --small)" if steps else ""),
    )
    parser.add_argument("--small", action="store_true", help="a model of 0.4 M parameters, for a quick look and for CI")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--zone", default="US-CAL-CISO", help="grid zone whose typical carbon intensity is used")
    parser.add_argument("--out", default="runs", help="folder of the run folders")
    if gears:
        either = parser.add_mutually_exclusive_group()
        either.add_argument("--gear", choices=gears, help="stay in this gear")
        either.add_argument("--schedule", help="step:gear,... (default: fp8 from 40 to 75 %% of the steps, else bf16)")
    if steps is None:
        parser.add_argument("--minutes", type=float, default=3.0, help="in which a day of the grid passes (default 3)")
    if loggers:
        parser.add_argument("--logger", nargs="+", choices=loggers, default=[loggers[0]], help="one or more")
    if sizes:
        parser.add_argument("--size", choices=sizes, default=sizes[0], help=f"of the model (default {sizes[0]})")
    args = parser.parse_args(argv)
    chosen = tuple(args.logger) if loggers else ()
    _check_installed(chosen)
    torch.manual_seed(args.seed)
    if args.small:
        torch.set_num_threads(1)  # more only wait for one another in a model this small
        text = corpus(vocab=512, max_bytes=1_000_000)
        size, batch, lr, blocks = Size(vocab=text.vocab, width=96, layers=3, heads=3), 8, 4e-3, 32
    else:
        text = corpus()
        size, batch, lr, blocks = Size(vocab=text.vocab), 4, 1e-3, 128
    count = args.steps or (steps[args.small] if steps else 0)
    return Settings(
        steps=count,
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
        gears=tuple(gears),
        minutes=args.minutes if steps is None else 3.0,
        schedule=_schedule(args.gear, args.schedule, count) if gears else (),
        loggers=chosen,
        model_size=args.size if sizes else "",
    )


def _check_installed(loggers: Sequence[str]) -> None:
    for name in loggers:  # Accelerate would leave one out without a word
        if name != "csv" and importlib.util.find_spec(name) is None:
            raise SystemExit(f"--logger {name} needs the package {name}: pip install {name}")


def _schedule(gear: str | None, text: str | None, steps: int) -> tuple[tuple[int, str], ...]:
    if gear is not None:
        return ((0, gear),)
    if text is None:  # the end in BF16: the last steps are those with the smallest gradients
        return ((0, "bf16"), (steps * 2 // 5, "fp8"), (steps * 3 // 4, "bf16"))
    try:
        pairs = [pair.split(":") for pair in text.split(",")]
        return tuple((int(step), gear) for step, gear in pairs)
    except ValueError:
        raise SystemExit(f"--schedule is {text!r}; it must look like 0:bf16,100:fp8,200:bf16") from None
