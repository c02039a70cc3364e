"""GPT blocks and the ways to train them: plain, in gears, with torchao, with TE, all on the same weights."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gears_common import TORCHAO, TRANSFORMER_ENGINE
from benchmarks.gears_step import convert
from greentrain.config.schema import PrecisionConfig
from greentrain.control.precision.gearbox import GearBox
from greentrain.errors import ConfigError
from greentrain.types import Gear
from recipes.common.model import Block, Size

ORDER = (
    "plain bf16",
    "bf16",
    "fp8 tensorwise",
    f"{TORCHAO} tensorwise",
    "fp16",
    "fp32",
    TRANSFORMER_ENGINE,
    "fp8 rowwise",
    f"{TORCHAO} rowwise",
)
"""All ways; where time is short, the last are left out."""
HEAD = 128
"""Width of an attention head."""


class Blocks:
    """GPT blocks, a batch, and the ways to train them.

    Args:
        width: Of the blocks.
        blocks: Their number.
        device: ``cuda``, or ``cpu`` to try the script.
        batch: Sequences a step.
        context: Tokens of each.
        compiled: Compile every block.
    """

    def __init__(self, width: int, blocks: int, device: str, batch: int, context: int, compiled: bool) -> None:
        self.size = Size(vocab=1, width=width, layers=blocks, heads=max(1, width // HEAD), context=context)
        self.device, self.compiled = device, compiled
        torch.manual_seed(0)
        with torch.device(device):
            self.body = self._build()
            self.x_BTC = torch.randn(batch, context, width)
        self.optimizer = torch.optim.AdamW(self.body.parameters(), lr=1e-5, fused=True)
        self.tokens = batch * context
        self.loss: Tensor | None = None
        self._box: GearBox | None = None
        self._no_fp8 = ConfigError("no gears")

    def way(self, name: str) -> Callable[[], None]:
        """Return what takes a step in a way of ORDER.

        Raises:
            Exception: It does not work here.
        """
        if name == "plain bf16":
            return self._steps(self._shared(), self._autocast())
        if name in ("bf16", "fp16", "fp32", "fp8 tensorwise"):
            gear = Gear(name.split()[0])
            box = self._shifting(gear)
            scaler = torch.amp.GradScaler(self.device) if gear is Gear.FP16 else None
            return self._steps(self.body, lambda: box.at(gear), scaler)
        if name == "fp8 rowwise":
            model = self._shared()
            self._geared(model, ("fp8",), "rowwise")
            return self._steps(model, contextlib.nullcontext)
        if name.startswith(TORCHAO):
            model = self._shared()
            convert(model, name.split()[1])
            return self._steps(model, self._autocast())
        assert name == TRANSFORMER_ENGINE
        return self._steps(*self._transformer_engine())

    def wait(self) -> None:
        """Wait until the device has done everything."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def _build(self) -> nn.Sequential:
        return nn.Sequential(*(Block(self.size) for _ in range(self.size.layers)))

    def _shared(self) -> nn.Sequential:
        """Return other modules with the same Parameters."""
        with torch.device("meta"):
            model = self._build()
        for name, parameter in self.body.named_parameters():
            owner, _, key = name.rpartition(".")
            setattr(model.get_submodule(owner), key, parameter)
        return model

    def _shifting(self, gear: Gear) -> GearBox:
        """Give the body its gears once; without FP8 where the card has none."""
        for gears in ((Gear.BF16, Gear.FP16, Gear.FP32, Gear.FP8), (Gear.BF16, Gear.FP16, Gear.FP32)):
            if self._box is None and gear in gears:
                try:
                    self._box = self._geared(self.body, gears, "tensorwise")
                except ConfigError as error:
                    self._no_fp8 = error
        if self._box is None or gear not in self._box.gears:
            raise self._no_fp8
        return self._box

    def _geared(self, model: nn.Module, gears: tuple[str, ...], scaling: str) -> GearBox:
        box = GearBox(PrecisionConfig(gears=gears, backend="scaled_mm", scaling=scaling))
        box.attach(model)
        return box

    def _autocast(self) -> Callable[[], Any]:
        return lambda: torch.autocast(self.device, dtype=torch.bfloat16)

    def _transformer_engine(self) -> tuple[nn.Module, Callable[[], Any]]:
        import transformer_engine.pytorch as te  # type: ignore[import-not-found]
        from transformer_engine.common.recipe import Float8CurrentScaling  # type: ignore[import-not-found]

        model, recipe = self._shared(), Float8CurrentScaling()
        for block in model:
            for key, linear in list(block.named_children()):
                if isinstance(linear, nn.Linear):
                    sizes = (linear.in_features, linear.out_features)
                    new = te.Linear(*sizes, bias=False, params_dtype=torch.float32, device="meta")
                    new.weight = linear.weight
                    setattr(block, key, new)

        @contextlib.contextmanager
        def context() -> Iterator[None]:
            with torch.autocast(self.device, dtype=torch.bfloat16), te.autocast(enabled=True, recipe=recipe):
                yield

        return model, context

    def _steps(self, model: nn.Module, context: Callable[[], Any], scaler: Any = None) -> Callable[[], None]:
        if self.compiled:
            for block in model.children():
                block.compile()

        def step() -> None:
            with context():
                y_BTC = model(self.x_BTC)
                loss = y_BTC.float().square().mean()
            if scaler is None:
                loss.backward()
                self.optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(self.optimizer)
                scaler.update()
            self.optimizer.zero_grad()
            self.loss = loss.detach()

        return step
