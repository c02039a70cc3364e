"""Train ResNet-50 with the Hugging Face Trainer, on drawn shapes or on a folder of your own images.

    python recipes/transformers/resnet50.py [--small]
    python recipes/transformers/resnet50.py --size resnet50 --images imagenet/train --batch 256 --steps 450000

``--size resnet50`` is ResNet-50 (He et al., https://arxiv.org/abs/1512.03385, table 1) at 224 x 224 pixels, for a GPU;
the default has one bottleneck a stage and 32 x 32 pixels, for any machine. Without ``--images`` (a folder of a folder a
class; needs the package pillow) it tells circles, squares, triangles and crosses apart, which are drawn here, so that
nothing is downloaded. The lines marked "green" are all that differs from a plain Trainer script.
"""

import argparse
import sys
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset
from transformers import (
    ResNetConfig,
    ResNetForImageClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from greentrain.callbacks.transformers import GreenCallback  # green

SIZES: Final[dict[str, dict[str, Any]]] = {
    "tiny": {"embedding_size": 16, "hidden_sizes": [32, 64, 128, 256], "depths": [1, 1, 1, 1]},
    "resnet50": {"embedding_size": 64, "hidden_sizes": [256, 512, 1024, 2048], "depths": [3, 4, 6, 3]},
}
PIXELS: Final = {"tiny": 32, "resnet50": 224}
MEANS, DEVIATIONS = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)
"""Of ImageNet, as published models have them."""
SHAPES: Final = ("circle", "square", "triangle", "cross")


class Shapes(Dataset[dict[str, Tensor]]):
    """Shapes of random place, size and colours, with noise; the same number is the same image."""

    def __init__(self, count: int, pixels: int, seed: int) -> None:
        self.classes = SHAPES
        self._count, self._pixels, self._seed = count, pixels, seed

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        dice = np.random.default_rng((self._seed, i))
        label, radius = int(dice.integers(len(SHAPES))), dice.uniform(0.3, 0.6)
        x, y = np.meshgrid(*[np.linspace(-1, 1, self._pixels)] * 2) + dice.uniform(-0.4, 0.4, (2, 1, 1))
        inside = (
            x**2 + y**2 < radius**2,
            np.maximum(abs(x), abs(y)) < radius,
            (y < radius) & (y > 2 * abs(x) - radius),
            (np.minimum(abs(x), abs(y)) < radius / 3) & (np.maximum(abs(x), abs(y)) < radius),
        )[label]
        ink, paper = dice.uniform(0, 1, (3, 1, 1)), dice.uniform(-1, 0, (3, 1, 1))
        image = np.where(inside, ink, paper) + dice.normal(0, 0.1, (3, self._pixels, self._pixels))
        return {"pixel_values": torch.from_numpy(image.astype(np.float32)), "labels": torch.tensor(label)}


class Images(Dataset[dict[str, Tensor]]):
    """Image files of a folder with a folder a class, cut to a square, with ImageNet's means and deviations."""

    def __init__(self, folder: Path, pixels: int) -> None:
        self.classes = tuple(sorted(path.name for path in folder.iterdir() if path.is_dir()))
        endings = (".jpg", ".jpeg", ".png")
        self._files = [
            (path, label)
            for label, name in enumerate(self.classes)
            for path in sorted((folder / name).rglob("*"))
            if path.suffix.lower() in endings
        ]
        if len(self.classes) < 2 or len(self._files) < 2:
            raise SystemExit(f"--images is {folder}: it needs a folder for each of two classes or more, with {endings}")
        self._pixels = pixels

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        from PIL import Image, ImageOps

        path, label = self._files[i]
        with Image.open(path) as opened:
            square = ImageOps.fit(opened.convert("RGB"), (self._pixels, self._pixels))
        image = np.asarray(square, dtype=np.float32) / 255
        image = (image - MEANS) / DEVIATIONS
        return {"pixel_values": torch.from_numpy(image.transpose(2, 0, 1).copy()), "labels": torch.tensor(label)}


def accuracy(found: Any) -> dict[str, float]:
    """Return the share of images that were told right."""
    return {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())}


class Printer(TrainerCallback):
    """Prints validation loss and accuracy."""

    def on_evaluate(self, args: object, state: object, control: object, **kwargs: object) -> None:
        found: Any = kwargs["metrics"]
        text = f"val loss {found['eval_loss']:.2f} nats, {found['eval_accuracy']:.0%} right"
        print(f"step {state.global_step}: {text}", flush=True)  # type: ignore[attr-defined]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train ResNet-50 and report its energy.")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--images", type=Path, help="folder with a folder of images a class; none: drawn shapes")
    parser.add_argument("--small", action="store_true", help="100 steps of 16 images, for a quick look and for CI")
    parser.add_argument("--steps", type=int, help="optimizer steps (default 500; 100 with --small)")
    parser.add_argument("--batch", type=int, help="images a step (default 64; 16 with --small)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--zone", default="US-CAL-CISO", help="grid zone whose typical carbon intensity is used")
    parser.add_argument("--out", default="runs", help="folder of the run folders")
    args = parser.parse_args()
    set_seed(args.seed)
    if args.small:
        torch.set_num_threads(1)
    steps, batch = args.steps or (100 if args.small else 500), args.batch or (16 if args.small else 64)
    pixels = PIXELS[args.size]
    train: Dataset[dict[str, Tensor]]
    val: Dataset[dict[str, Tensor]]
    if args.images is None:
        whole: Shapes | Images = Shapes(steps * batch, pixels, args.seed)
        train, val = whole, Shapes(256, pixels, args.seed + 1)
    else:
        whole = Images(args.images, pixels)
        order = np.random.default_rng(args.seed).permutation(len(whole)).tolist()
        held = max(1, min(len(whole) // 20, 2000))
        train, val = Subset(whole, order[held:]), Subset(whole, order[:held])
    labels = dict(enumerate(whole.classes))
    model = ResNetForImageClassification(ResNetConfig(**SIZES[args.size], id2label=labels))
    print(f"{args.size}: {model.num_parameters() / 1e6:.1f} M parameters, {len(whole.classes)} classes")
    green = GreenCallback(  # green
        {  # green
            "run": {"dir": args.out, "name": "resnet50"},  # green
            "carbon": {"signal": "typical", "zone": args.zone, "pue": 1.2},  # green
        }  # green
    )  # green
    trainer = Trainer(
        model,
        TrainingArguments(
            output_dir=str(Path(args.out) / "checkpoints"),
            max_steps=steps,
            per_device_train_batch_size=batch,
            per_device_eval_batch_size=batch,
            eval_strategy="steps",
            eval_steps=max(1, steps // 4),
            optim="sgd",
            optim_args="momentum=0.9",
            learning_rate=0.1 * batch / 256 if args.size == "resnet50" else 0.05,
            weight_decay=1e-4,
            lr_scheduler_type="cosine",
            warmup_steps=steps // 20,
            logging_steps=10,
            save_strategy="no",
            report_to="none",
            seed=args.seed,
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
        ),
        train_dataset=train,
        eval_dataset=val,
        compute_metrics=accuracy,
        callbacks=[green, Printer()],  # green
    )
    trainer.train()
    print(f"report: {green.session.report_path}")


if __name__ == "__main__":
    main()
