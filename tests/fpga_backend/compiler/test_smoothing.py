"""SmoothQuant changes nothing but rounding, and that for the better where channels stick out."""

import numpy as np
import pytest
import torch
from torch import nn

from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.compiler import SmoothQuant, compile
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.fpga_backend.program import Norm
from tests.fpga_backend.compiler.tiny_models import build, compiled, flat, own, sequences
from tests.helpers.float_engine import run_float

CALIBRATION = SmoothQuant(batches=[Batch.of(sequences(seed=11))])


@pytest.mark.parametrize("name", ["bert 3 labels", "llama biases", "albert"])
def test_the_same_in_floating_point(name: str) -> None:
    model = build(name)
    batch = Batch.of(sequences())
    artifact = compile(model, max_tokens=24, precision="fp32", smooth=CALIBRATION)
    assert '"divide rows"' in artifact.recipe
    wanted = own(model, batch)
    got = flat(run_float(artifact.program, artifact.tensors, batch))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-4 * float(np.ptp(wanted)))


def plant_outliers(model: nn.Module, suffix: str) -> None:
    """Make three channels of every norm's output 60 times as large, and their weights small: the model stays itself."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(suffix):
                parameter[[3, 17, 40]] *= 60.0
            elif name.endswith(
                ("q_proj.weight", "k_proj.weight", "v_proj.weight", "gate_proj.weight", "up_proj.weight")
            ):
                parameter[:, [3, 17, 40]] /= 60.0


def test_it_helps_where_channels_stick_out() -> None:
    model = build("qwen2 score")
    plant_outliers(model, "layernorm.weight")
    batch = Batch.of(sequences(count=24))
    wanted = own(model, batch)
    plain, smooth = (
        np.abs(flat(Engine(compile(model, max_tokens=24, smooth=s)).run(batch)) - wanted).mean()
        for s in (None, CALIBRATION)
    )
    assert smooth < plain / 3


def test_a_norm_that_a_sum_reads_too_is_computed_twice() -> None:
    model, artifact = compiled("bert 3 labels")
    plain, smooth = artifact.program, compile(model, max_tokens=24, smooth=CALIBRATION).program
    norms = [sum(isinstance(op, Norm) for op in program.ops) for program in (plain, smooth)]
    assert norms == [5, 9]  # the last one feeds the pooler only
    assert [op.out for op in smooth.ops if hasattr(op, "out")] == list(range(len(smooth.ops)))


def test_calibration_needs_batches_and_a_share() -> None:
    with pytest.raises(ValueError, match="needs batches"):
        SmoothQuant(batches=[])
    with pytest.raises(ValueError, match=r"alpha=1.5"):
        SmoothQuant(batches=CALIBRATION.batches, alpha=1.5)
