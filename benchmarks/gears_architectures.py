"""Gears in the architectures that people train: shifts in mid-training, under compile, over a checkpoint.

    python benchmarks/gears_architectures.py                       # all of them: a quarter of an hour
    python benchmarks/gears_architectures.py --only Llama
    python benchmarks/gears_architectures.py --into docs/gears.md

Each is made small by its library's own configuration, with random weights, and trained for eight steps on one batch.
Trainings are compared: plain, also under ``torch.compile`` (backend ``aot_eager``, which must compute the same); with
the one gear ``fp32``; with a schedule that shifts through ``fp32``, ``bf16`` and ``fp8`` and back, once straight
through, once ended after the fourth step (in ``fp8``), saved, and gone on with in a new model, and once compiled.
timm's and diffusers' models need these installed (``pip install timm diffusers``), which no extra of ours does; those
that were left out are named under the table.
"""

import argparse
import importlib.util
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import transformers
from torch import Tensor, nn

from benchmarks.metering import machine
from benchmarks.tables import Cases, Table, log
from greentrain.config.schema import GreenConfig
from greentrain.control.gears import Gears
from greentrain.control.precision.layers import LayerPlan, plan_layers
from greentrain.errors import ConfigError

STEPS: Final = 8
SAVED: Final = 4
"""Step after which the training is ended, saved and gone on with."""
SCHEDULE: Final = [[0, "fp32"], [2, "bf16"], [3, "fp8"], [6, "bf16"], [7, "fp32"]]
WIDTH: Final = 64
VOCAB: Final = 256
BATCH: Final = 2
TIME: Final = 16
"""Tokens of a sequence: FP8 wants a multiple of 16 rows."""
HEAD: Final = [
    "architecture",
    "layers in FP8, share of parameters",
    "one gear: bits of plain",
    "shifts: loss from plain's, nats",
    "saved on the way: same bits",
    "compiled: loss from uncompiled",
    "the same, plain",
    "left out",
]
Batch = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A model that people train, made small."""

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    """What a forward takes; the loss is what it returns first."""
    library: str = "transformers"


class WithLoss(nn.Module):
    """A model of a library whose models return no loss.

    Args:
        model: What computes from what ``batch`` names, in its order.
        loss: Loss of what it returns and of the target.
    """

    def __init__(self, model: nn.Module, loss: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, target: Tensor, **told: Tensor) -> tuple[Tensor]:
        """Return the loss."""
        return (self.loss(self.model(*told.values()), target),)


def _timm(name: str, **config: Any) -> Architecture:
    """Return a classifier of images of timm."""

    def make() -> nn.Module:
        timm: Any = importlib.import_module("timm")
        return WithLoss(timm.create_model(name, num_classes=16, **config), nn.functional.cross_entropy)

    def batch() -> Batch:
        return {"image": torch.rand(BATCH, 3, 32, 32), "target": torch.randint(16, (BATCH,))}

    return Architecture(name=f"timm {name}", make=make, batch=batch, library="timm")


def _unet() -> Architecture:
    """Return diffusers' UNet, which tells noise from images."""

    def make() -> nn.Module:
        diffusers: Any = importlib.import_module("diffusers")
        model = diffusers.UNet2DModel(
            sample_size=16,
            in_channels=3,
            out_channels=3,
            layers_per_block=1,
            block_out_channels=(32, WIDTH),
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            norm_num_groups=8,
            attention_head_dim=16,
        )
        return WithLoss(model, lambda made, noise: nn.functional.mse_loss(made.sample, noise))

    def batch() -> Batch:
        sample = torch.rand(BATCH, 3, 16, 16)
        return {"sample": sample, "timestep": torch.tensor([10, 500]), "target": torch.randn_like(sample)}

    return Architecture(name="diffusers UNet2D", make=make, batch=batch, library="diffusers")


def _text(name: str, kind: str = "ForCausalLM", title: str | None = None, **config: Any) -> Architecture:
    """Return a language model of transformers, by the beginning of its classes' names."""

    def make() -> nn.Module:
        made = getattr(transformers, f"{name}Config")(vocab_size=VOCAB, **config)
        model: nn.Module = getattr(transformers, f"{name}{kind}")(made)
        return model

    def batch() -> Batch:
        ids = torch.randint(VOCAB, (BATCH, TIME))
        return {"input_ids": ids, "labels": ids}

    return Architecture(name=title or name, make=make, batch=batch)


def _image(name: str, **config: Any) -> Architecture:
    """Return a classifier of images of transformers."""

    def make() -> nn.Module:
        made = getattr(transformers, f"{name}Config")(num_labels=8, **config)
        model: nn.Module = getattr(transformers, f"{name}ForImageClassification")(made)
        return model

    def batch() -> Batch:
        return {"pixel_values": torch.rand(BATCH, 3, 32, 32), "labels": torch.randint(8, (BATCH,))}

    return Architecture(name=name, make=make, batch=batch)


_BLOCKS: Final[dict[str, Any]] = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
_LIKE_LLAMA: Final[dict[str, Any]] = {**_BLOCKS, "num_key_value_heads": 2}
_LIKE_BERT: Final[dict[str, Any]] = {**_BLOCKS, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
ARCHITECTURES: Final = [
    _text("Llama", **_LIKE_LLAMA),
    _text("Qwen3", **_LIKE_LLAMA, head_dim=16),
    _text(
        "GPT2",
        "LMHeadModel",
        n_embd=WIDTH,
        n_layer=2,
        n_head=4,
        n_positions=TIME,
        bos_token_id=0,
        eos_token_id=1,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    ),
    _text(
        "Bert",
        "ForMaskedLM",
        **_LIKE_BERT,
    ),
    _text(
        "T5",
        "ForConditionalGeneration",
        d_model=WIDTH,
        d_ff=2 * WIDTH,
        d_kv=16,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    ),
    _text("Mixtral", **_LIKE_LLAMA, num_local_experts=4, num_experts_per_tok=2),
    _text("Mamba", hidden_size=WIDTH, state_size=8, num_hidden_layers=2),
    _text(  # under torch.compile transformers scans as a tree, which rounds otherwise, unless it is told not to
        "Mamba",
        title="Mamba, scanned in sequence",
        hidden_size=WIDTH,
        state_size=8,
        num_hidden_layers=2,
        use_associative_scan=False,
    ),
    _image(
        "ViT",
        image_size=32,
        patch_size=8,
        **_LIKE_BERT,
    ),
    _image("ResNet", embedding_size=16, hidden_sizes=[16, 32, WIDTH, WIDTH], depths=[1, 1, 1, 1]),
    _image("ConvNext", hidden_sizes=[16, 32, WIDTH, 2 * WIDTH], depths=[1, 1, 1, 1]),
    _timm("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=WIDTH, depth=2, num_heads=4),
    _timm("resnet10t"),
    _unet(),
]


@dataclass(kw_only=True)
class Training:
    """A model, its optimizer and its gears, where it has any; the same seed makes the same."""

    architecture: Architecture
    precision: Mapping[str, Any] | None
    compiled: bool = False

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.model = self.architecture.make().train()
        self.batch = self.architecture.batch()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.called: Any = self.model
        self.gears = None
        if self.compiled:
            torch._dynamo.reset()
            self.called = torch.compile(self.model, backend="aot_eager")
        if self.precision is not None:
            self.gears = Gears(GreenConfig.load(self.precision), lambda *_: None)
            self.gears.attach(self.called, scaler=None)
            self.gears.bind(self.optimizer)

    def run(self, steps: int) -> list[float]:
        """Take steps and return their losses."""
        losses = []
        for _ in range(steps):
            loss: Tensor = self.called(**self.batch)[0]
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(float(loss.detach()))
        return losses

    def saved(self) -> bytes:
        """Return a checkpoint of it."""
        file = io.BytesIO()
        gears = None if self.gears is None else self.gears.state_dict()
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "gears": gears}, file)
        return file.getvalue()

    def load(self, saved: bytes) -> None:
        """Go on where a checkpoint was made."""
        state = torch.load(io.BytesIO(saved), weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.gears is not None:
            self.gears.load_state_dict(state["gears"])

    def weights(self) -> list[Tensor]:
        """Return copies of its parameters."""
        return [p.detach().clone() for p in self.model.parameters()]

    def end(self) -> None:
        """Make the model plain again."""
        if self.gears is not None:
            self.gears.detach()


MIN_FEATURES: Final = 16
ONE: Final = {"precision": {"gears": ["fp32"], "probe_every": 0}}
SHIFTING: Final = {
    "precision": {"gears": ["fp32", "bf16", "fp8"], "min_features": MIN_FEATURES, "probe_every": 0},
    "policy": {"name": "scripted", "schedule": SCHEDULE},
}


WITHOUT_FP8: Final = {
    "precision": {"gears": ["fp32", "bf16"], "probe_every": 0},
    "policy": {"name": "scripted", "schedule": [[step, gear] for step, gear in SCHEDULE if gear != "fp8"]},
}


def _same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _from(apart: float) -> str:
    return "same" if apart == 0 else f"{apart:.1g}"


def _yes(same: bool) -> str:
    return "yes" if same else "**no**"


def compared(architecture: Architecture) -> Sequence[str]:
    """Return an architecture's row of the table."""
    plain = Training(architecture=architecture, precision=None)
    losses = plain.run(STEPS)
    one = Training(architecture=architecture, precision=ONE)
    bits = one.run(STEPS) == losses and _same(one.weights(), plain.weights())
    one.end()
    stock = _apart(Training(architecture=architecture, precision=None, compiled=True).run(STEPS), losses)
    shifts: Mapping[str, Any] = SHIFTING
    try:
        through = Training(architecture=architecture, precision=shifts)
    except ConfigError:  # no layer of it can run in FP8: refused before training, with the reason
        shifts = WITHOUT_FP8
        through = Training(architecture=architecture, precision=shifts)
    plan = plan_layers(plain.model, min_features=MIN_FEATURES)
    shifted = through.run(SAVED)
    checkpoint = through.saved()
    shifted += through.run(STEPS - SAVED)
    through.end()
    resumed = Training(architecture=architecture, precision=shifts)
    resumed.load(checkpoint)
    goes_on = resumed.run(STEPS - SAVED) == shifted[SAVED:] and _same(resumed.weights(), through.weights())
    resumed.end()
    compiled = Training(architecture=architecture, precision=shifts, compiled=True)
    graphs = _apart(compiled.run(STEPS), shifted)
    compiled.end()
    chosen = [layer for layer in plan if layer.chosen]
    share = sum(layer.parameters for layer in chosen) / sum(layer.parameters for layer in plan)
    return [
        architecture.name,
        f"{len(chosen)}, {share:.0%}" if chosen else "none: refused",
        _yes(bits),
        f"{_apart(losses, shifted):.4f}",
        _yes(goes_on),
        _from(graphs),
        _from(stock),
        left_out(plan),
    ]


def left_out(plan: Sequence[LayerPlan]) -> str:
    """Return which layers stay in the gear around them and why, a sentence for each reason."""
    themselves: dict[str, None] = {}
    others: dict[str, dict[str, None]] = {}
    for layer in plan:
        kind, holds, _ = layer.reason.partition(" holds ")
        if layer.chosen:
            continue
        if holds:
            themselves[kind] = None
        else:
            others.setdefault(layer.reason, {})[layer.name.rpartition(".")[2]] = None
    said = [f"{', '.join(names)}: {why}." for why, names in others.items()]
    return " ".join([f"{', '.join(themselves)}: no matrix that FP8 takes."] * bool(themselves) + said)


def _apart(one: Sequence[float], other: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def architectures(names: Sequence[str]) -> list[Table]:
    """Return the table of some architectures; all without a name."""
    rows, missing = [], []
    for architecture in ARCHITECTURES:
        if names and architecture.name not in names:
            continue
        if importlib.util.find_spec(architecture.library) is None:
            missing.append(f"Not run: {architecture.name}, as {architecture.library} is not installed.")
            log(missing[-1])
            continue
        log(architecture.name)
        rows.append(compared(architecture))
    passed = sum(row[2] == row[4] == "yes" for row in rows)
    title = "Gears in small models of each architecture"
    missed = len(rows) - passed
    return [Table(case="architectures", title=title, head=HEAD, rows=rows, notes=missing, passed=passed, missed=missed)]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", action="append", choices=[each.name for each in ARCHITECTURES], help="may be repeated"
    )
    parser.add_argument("--json", type=Path, help="also write the table here")
    parser.add_argument("--into", type=Path, help="also put the table into this text, between its two marks")
    args = parser.parse_args(argv)
    cases = Cases(makers={"architectures": architectures}, about=machine("benchmarks/gears_architectures.py"))
    cases.run(["architectures"], args.only or (), into=args.into, as_json=args.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
