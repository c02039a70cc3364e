"""The emulator's bits do not depend on what the training has set, and broken numbers end as they do on a card."""

import dataclasses
from collections.abc import Iterator
from typing import Literal

import numpy as np
import pytest
import torch

from greentrain.fpga_backend import contract
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.csim.build import build
from greentrain.fpga_backend.csim.schedule import BatchSchedule
from greentrain.fpga_backend.emulator import arithmetic
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.fpga_backend.errors import ArtifactError, DeviceError
from greentrain.fpga_backend.program import (
    Attention,
    Columns,
    Embed,
    Gate,
    Linear,
    LogProb,
    Norm,
    Op,
    Pool,
    Program,
    Score,
    with_activation_bits,
)
from greentrain.testing.offload_models import decoder, encoder, quantised, sequences
from tests.fpga_backend.csim.checked_card import CheckedCard


@pytest.fixture(params=[torch.bfloat16, torch.float64], ids=str)
def default_type(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    yield request.param
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("make", [encoder, decoder])
def test_the_default_type_of_the_training_changes_no_bit(make: type, default_type: torch.dtype) -> None:
    artifact = make(layers=1)
    batch = sequences(artifact, lengths=(9, 1, 17), prompt=4)
    before = bits(Engine(artifact, block_rows=8).run(batch))
    torch.set_default_dtype(default_type)
    assert bits(Engine(artifact, block_rows=8).run(batch)) == before


def test_the_default_device_of_the_training_is_not_the_emulators() -> None:
    artifact = encoder(layers=1)
    batch = sequences(artifact)
    device = Emulator()
    before = bits(Engine(artifact).run(batch))
    arithmetic.int_mm_is_exact.cache_clear()
    arithmetic.exact_product.cache_clear()
    try:
        with torch.device("meta"):
            assert device.probe().available
            assert bits(device.submit(device.load(artifact), batch).result(30)) == before
    finally:
        device.close()


@pytest.mark.parametrize("table", ["gelu", "tanh", "relu"])
@pytest.mark.parametrize("scale", [1e20, 3e38])
def test_numbers_that_leave_binary32_end_as_on_a_card(table: Literal["gelu", "tanh", "relu"], scale: float) -> None:
    artifact = encoder(layers=1, pooler=True)
    ops = tuple(dataclasses.replace(op, table=table) if isinstance(op, Gate) else op for op in artifact.program.ops)
    program = dataclasses.replace(artifact.program, ops=ops)
    stems = [name for name in artifact.tensors if name.startswith("linear") and name.endswith(".s")]
    for stem in stems:
        broken = {**artifact.tensors, stem: torch.full_like(artifact.tensors[stem], scale)}
        ends_as_on_a_card(Artifact.of(program, broken), sequences(artifact))


@pytest.mark.parametrize("seed", range(30))
def test_scales_of_any_size_end_as_on_a_card(seed: int) -> None:
    rng = np.random.default_rng(seed)
    artifact = (encoder if seed % 2 else decoder)(seed=seed, layers=1, vocabulary=31, max_tokens=20)
    tensors = {name: tensor.clone() for name, tensor in artifact.tensors.items()}
    floats = sorted(name for name, tensor in tensors.items() if tensor.dtype == torch.float32)
    for name in rng.choice(floats, 2, replace=False):
        factor = 10.0 ** rng.choice([-42, -30, -20, 15, 18, 20, 34, 37])
        tensors[name] = (tensors[name].double() * factor).clamp(-3.3e38, 3.3e38).float()
    program = with_activation_bits(artifact.program, 16 if seed % 3 else 8)
    ends_as_on_a_card(Artifact.of(program, tensors), sequences(artifact, lengths=(5, 1, 17, 6), prompt=4))


@pytest.mark.parametrize("seed", range(4))
def test_a_logit_of_attention_beyond_binary32_loses_its_own_row_alone(seed: int) -> None:
    artifact = bare_attention(seed)
    scales = artifact.tensors["embed.s"].clone()
    scales[5] = 1e30
    ends_as_on_a_card(Artifact.of(artifact.program, {**artifact.tensors, "embed.s": scales}), Batch.of([[1, 2, 5]]))


@pytest.mark.parametrize("logit", [-1e30, -1e35, -1e37])
def test_a_logit_of_the_vocabulary_beyond_binary32_is_not_taken_for_an_unlikely_one(logit: float) -> None:
    artifact = decoder(layers=1)
    last = artifact.program.ops[-1]
    assert isinstance(last, LogProb)
    bias = torch.zeros(last.vocabulary)
    bias[7] = logit
    program = dataclasses.replace(
        artifact.program, ops=(*artifact.program.ops[:-1], dataclasses.replace(last, bias=True))
    )
    ends_as_on_a_card(Artifact.of(program, {**artifact.tensors, f"{last.weight}.b": bias}), Batch.of([[1, 2, 3]]))


def test_one_scale_a_batch_is_not_compiled_block_by_block() -> None:
    artifact = encoder(layers=1)
    whole = Artifact.of(dataclasses.replace(artifact.program, activations="tensor"), artifact.tensors)
    batch = sequences(whole, lengths=(9, 9))
    assert bits(Engine(whole, compiled=True, block_rows=8).run(batch)) == bits(Engine(whole).run(batch))


@pytest.mark.parametrize(
    ("op", "said"),
    [
        (
            Attention(
                out=1, q=Columns(register=0, start=0, width=1025), k=Columns(register=0, start=0, width=1025),
                v=Columns(register=0, start=0, width=8), heads=1, kv_heads=1, scale=1.0, causal=True,
            ),
            "1025 columns a head",
        ),
        (
            Norm(out=1, x=Columns(register=0, start=0, width=8193), weight="n", kind="rms", eps=0.0, bias=False),
            "8193 columns",
        ),
        (
            LogProb(x=Columns(register=0, start=0, width=8), weight="l", vocabulary=2**22 + 1, bias=False),
            "4194305 tokens",
        ),
    ],
)  # fmt: skip
def test_sizes_whose_sums_would_not_be_exact_are_refused(op: Op, said: str) -> None:
    embed = Embed(out=0, weight="e", index="token", width=8193)
    program = Program(ops=(embed, op), vocabulary=3, types=0, max_tokens=4, hidden=8, layers=1, causal=True)
    with pytest.raises(ArtifactError, match=said):
        Engine(Artifact.of(program, {}))


def test_what_a_library_raises_is_the_devices_failure() -> None:
    artifact = encoder(layers=1)
    torn = Artifact.of(artifact.program, {**artifact.tensors, "embed0.q": artifact.tensors["embed0.q"][:3]})
    device = Emulator()
    try:
        failed = device.submit(device.load(torn), Batch.of([[50]])).exception(30)
    finally:
        device.close()
    assert isinstance(failed, DeviceError)
    assert isinstance(failed.__cause__, IndexError)


def bare_attention(seed: int) -> Artifact:
    """Return attention over embeddings without a norm before it, scored at the first row."""
    width, vocabulary = 8, 11
    rng = np.random.default_rng(seed)
    tensors: dict[str, torch.Tensor] = {}
    for stem, rows, largest, dtype in (
        ("embed", vocabulary, contract.Q16, torch.int16),
        ("qkv", 3 * width, contract.Q8, torch.int8),
        ("score", 1, contract.Q16, torch.int16),
    ):
        integers, scales = quantised(rng.standard_normal((rows, width)).astype(np.float32), largest)
        tensors |= {f"{stem}.q": torch.from_numpy(integers).to(dtype), f"{stem}.s": torch.from_numpy(scales)}
    whole = Columns(register=0, start=0, width=width)
    q, k, v = (Columns(register=1, start=i * width, width=width) for i in range(3))
    ops: tuple[Op, ...] = (
        Embed(out=0, weight="embed", index="token", width=width),
        Linear(out=1, x=whole, weight="qkv", outputs=3 * width, bias=False),
        Attention(out=2, q=q, k=k, v=v, heads=1, kv_heads=1, scale=1.0, causal=False),
        Pool(out=3, x=dataclasses.replace(whole, register=2), how="first"),
        Score(out=4, x=dataclasses.replace(whole, register=3), weight="score", labels=1, bias=False),
    )
    program = Program(ops=ops, vocabulary=vocabulary, types=0, max_tokens=8, hidden=width, layers=1, causal=False)
    return Artifact.of(program, tensors)


def bits(result: Result) -> bytes:
    rows = (result.scores,) if result.scores is not None else result.logprobs
    assert rows is not None
    return b"".join(np.ascontiguousarray(row).tobytes() for row in rows)


def ends_as_on_a_card(artifact: Artifact, batch: Batch) -> None:
    """The emulator and the kernels return the same bits, or both say that the result is not finite."""
    ends: list[bytes | str] = []
    for runner in (Engine(artifact), BatchSchedule(artifact, CheckedCard(build()))):
        try:
            ends.append(bits(runner.run(batch)))
        except DeviceError as error:
            ends.append(str(error))
    assert ends[0] == ends[1]
