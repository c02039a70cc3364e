"""Whole small programs: the kernels under the schedule give the emulator's bits, and those of the reference."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result, pack
from greentrain.fpga_backend.csim import layout
from greentrain.fpga_backend.csim.build import FLAGS, ap_types, build
from greentrain.fpga_backend.csim.schedule import BatchSchedule
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.fpga_backend.program import ActivationBits, Linear, LogProb, Op
from greentrain.testing.offload_models import decoder, encoder, sequences
from tests.fpga_backend.compiler import tiny_models as families
from tests.fpga_backend.compiler.tiny_models import compiled
from tests.fpga_backend.csim import reference
from tests.fpga_backend.csim.bench import same
from tests.fpga_backend.csim.checked_card import CheckedCard

lengths = st.lists(st.integers(1, 40), min_size=1, max_size=5).map(tuple)
seeds = st.integers(0, 2**32 - 1)


def by_sequence(result: Result) -> list[npt.NDArray[np.float32]]:
    if result.scores is not None:
        return list(result.scores)
    assert result.logprobs is not None
    return list(result.logprobs)


def run(library: Path, artifact: Artifact, batch: Batch, **options: int) -> Result:
    schedule = BatchSchedule(artifact, CheckedCard(library), **options)
    try:
        return schedule.run(batch)
    finally:
        schedule.close()


def equal(found: Result, expected: list[npt.NDArray[np.float32]]) -> None:
    for one, other in zip(by_sequence(found), expected, strict=True):
        same(one, other)


@settings(max_examples=15, deadline=None)
@given(
    seeds,
    lengths,
    st.sampled_from([1, 2, 5]),
    st.sampled_from([4, 13]),
    st.sampled_from(["mean", "first", "last"]),
    st.sampled_from([8, 16]),
)
def test_encoders(
    library: Path, seed: int, tokens: tuple[int, ...], heads: int, head_width: int, how: str, bits: int
) -> None:
    artifact = encoder(
        seed=seed,
        layers=1 + seed % 2,
        hidden=heads * head_width,
        heads=heads,
        inner=17 + seed % 60,
        types=seed % 3,
        head=how,  # type: ignore[arg-type]
        labels=1 + seed % 18,
        gate="gelu_tanh" if seed % 5 == 0 else "gelu",
        pooler=seed % 7 < 3,
        bias=seed % 4 > 0,
        activation_bits=bits,  # type: ignore[arg-type]
    )
    batch = sequences(artifact, seed=seed, lengths=tokens)
    found = run(library, artifact, batch)
    equal(found, by_sequence(Engine(artifact).run(batch)))


@settings(max_examples=15, deadline=None)
@given(
    seeds,
    lengths,
    st.sampled_from([(1, 1), (4, 2), (6, 3)]),
    st.sampled_from([2, 6, 16]),
    st.integers(0, 12),
    st.sampled_from([8, 16]),
)
def test_decoders(
    library: Path, seed: int, tokens: tuple[int, ...], heads: tuple[int, int], head_width: int, prompt: int, bits: int
) -> None:
    artifact = decoder(
        seed=seed,
        layers=1 + seed % 2,
        hidden=8 + seed % 40,
        heads=heads[0],
        kv_heads=heads[1],
        head_width=head_width,
        inner=5 + seed % 70,
        vocabulary=50 + seed % 400,
        head="score" if seed % 4 == 0 else "logprob",
        bias=seed % 2 > 0,
        activation_bits=bits,  # type: ignore[arg-type]
    )
    batch = sequences(artifact, seed=seed, lengths=tokens, prompt=prompt)
    found = run(library, artifact, batch)
    equal(found, by_sequence(Engine(artifact).run(batch)))
    assert found.rows == pack(batch, artifact.program).rows


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "gemma2 score", "phi3", "modernbert"])
def test_families_whose_heads_have_norms_windows_or_caps(library: Path, name: str) -> None:
    _, artifact = compiled(name)
    rows = families.sequences(count=4)
    batch = Batch.of([*rows, np.concatenate([rows[0], rows[1]])[:24]], prompt_tokens=[2, 1, 1, 1, 2])
    found = Engine(artifact).run(batch)
    equal(run(library, artifact, batch), by_sequence(found))
    if name in ("qwen3", "gemma2 score"):
        short = Batch.of(rows[:2])
        equal(run(library, artifact, short), reference.run(artifact, short))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bits", [8, 16])
def test_programs_as_the_contract_reads(library: Path, seed: int, bits: ActivationBits) -> None:
    """Neither emulator nor packing has a part in the expectation."""
    artifact = encoder(
        seed=seed, layers=1, hidden=12, heads=2, inner=19, pooler=seed == 1, labels=2, activation_bits=bits
    )
    batch = sequences(artifact, seed=seed, lengths=(4, 1, 9))
    equal(run(library, artifact, batch), reference.run(artifact, batch))
    artifact = decoder(
        seed=seed,
        layers=1,
        hidden=10,
        heads=2,
        kv_heads=1,
        head_width=6,
        inner=9,
        vocabulary=40,
        activation_bits=bits,
    )
    batch = sequences(artifact, seed=seed, lengths=(7, 5, 3, 11), prompt=4)
    equal(run(library, artifact, batch), reference.run(artifact, batch))


def test_waves_give_the_same_bits(library: Path) -> None:
    """A bound that holds one sequence at a time costs the shared prompt's rows again, and changes no result."""
    artifact = decoder(seed=4, activation_bits=16)
    batch = sequences(artifact, lengths=(40, 64, 30, 64, 64), prompt=20)
    whole, waves = run(library, artifact, batch), run(library, artifact, batch, activation_bytes=1)
    equal(waves, by_sequence(whole))
    assert waves.rows > whole.rows
    encoded = encoder(seed=4)
    batch = sequences(encoded, lengths=(40, 64, 30, 64, 64))
    equal(run(library, encoded, batch, activation_bytes=1), by_sequence(run(library, encoded, batch)))


def test_logits_in_chunks_of_targets(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More targets than a chunk has room for, the last chunk short."""
    monkeypatch.setattr(layout, "LOGITS_BYTES", 7 * 448)
    artifact = decoder(seed=6, vocabulary=101)
    batch = sequences(artifact, lengths=(30, 23, 1))
    equal(run(library, artifact, batch), by_sequence(Engine(artifact).run(batch)))


def test_a_batch_without_a_target(library: Path) -> None:
    """One token predicts nothing: an empty answer, not an error."""
    artifact = decoder()
    result = run(library, artifact, Batch.of([[5], [7]]))
    assert [len(row) for row in by_sequence(result)] == [0, 0]


def test_layers_of_8_and_16_bits_in_one_program(library: Path) -> None:
    """Each operator has its own bits; the widest row decides the buffer."""
    artifact = decoder(seed=8)
    places = [i for i, op in enumerate(artifact.program.ops) if isinstance(op, Linear | LogProb)]
    for some in (places[::2], places[1::2]):
        ops: list[Op] = [
            replace(op, activation_bits=16) if i in some and isinstance(op, Linear | LogProb) else op
            for i, op in enumerate(artifact.program.ops)
        ]
        mixed = Artifact.of(replace(artifact.program, ops=tuple(ops)), artifact.tensors)
        batch = sequences(mixed, lengths=(30, 23, 1))
        found = run(library, mixed, batch)
        equal(found, by_sequence(Engine(mixed).run(batch)))
        assert any(
            (a != b).any() for a, b in zip(by_sequence(found), by_sequence(run(library, artifact, batch)), strict=True)
        )


@pytest.mark.sweep
@pytest.mark.parametrize("ap_int", [False, True])
def test_plain_integers_and_ap_int_give_the_same_bits(tmp_path: Path, ap_int: bool) -> None:
    """Built with another optimisation than the device's, too: no bit rests on the compiler's."""
    if ap_int and ap_types() is None:
        pytest.skip("hls4ml's ap_int headers are not installed: pip install --no-deps hls4ml")
    built = build(tmp_path, ap_int=ap_int, flags=[flag.replace("-O3", "-O1") for flag in FLAGS])
    for seed in range(3):
        artifact = encoder(seed=seed, hidden=40, labels=3)
        batch = sequences(artifact, seed=seed)
        equal(run(built, artifact, batch), by_sequence(Engine(artifact).run(batch)))
