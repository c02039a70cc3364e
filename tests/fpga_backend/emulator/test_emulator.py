"""The emulator keeps the contract of offload devices, with and without a modelled card."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator

import numpy as np
import pytest

from greentrain.errors import ConfigError
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import pack
from greentrain.fpga_backend.device import OffloadDevice
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.fpga_backend.errors import ArtifactError, DeviceError
from greentrain.fpga_backend.roofline.cards import U55C, assume
from greentrain.fpga_backend.roofline.latency import service
from greentrain.testing.offload_contract import OffloadContract
from greentrain.testing.offload_models import decoder, encoder, sequences
from greentrain.types import Provenance


class TestEmulator(OffloadContract):
    @pytest.fixture
    def device(self) -> Iterator[OffloadDevice]:
        device = Emulator()
        yield device
        device.close()


class TestEmulatorWith16Bits(TestEmulator):
    def encoder(self, seed: int = 0) -> Artifact:
        return encoder(seed=seed, activation_bits=16)

    def decoder(self, seed: int = 0) -> Artifact:
        return decoder(seed=seed, activation_bits=16)


class TestEmulatedCard(OffloadContract):
    @pytest.fixture
    def device(self) -> Iterator[OffloadDevice]:
        device = Emulator(assume(U55C))
        yield device
        device.close()


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method.:DeprecationWarning")  # torch.compile calls it itself
@pytest.mark.long
def test_a_compiled_device_answers_as_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", "")  # torch.compile sets it and leaves it
    with contextlib.closing(Emulator()) as plain, contextlib.closing(Emulator(compiled=True)) as compiled:
        for artifact in (encoder(), decoder()):
            batch, other = sequences(artifact), sequences(artifact, lengths=(7, 19))
            handles = [device.load(artifact) for device in (plain, compiled)]
            for each in (batch, other):
                one, two = (
                    device.submit(handle, each).result(300)
                    for device, handle in zip((plain, compiled), handles, strict=True)
                )
                assert (one.scores is None) is (one.logprobs is not None) is (two.scores is None)
                if one.scores is not None and two.scores is not None:
                    assert np.array_equal(one.scores, two.scores)
                else:
                    found = zip(one.logprobs or (), two.logprobs or (), strict=True)
                    assert all(np.array_equal(a, b) for a, b in found)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method.:DeprecationWarning")  # torch.compile calls it itself
def test_a_compiled_encoder_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", "")  # torch.compile sets it and leaves it
    artifact = encoder(layers=1, pooler=True)
    batch = sequences(artifact, lengths=(30, 5, 33))
    eager, compiled = Engine(artifact).run(batch), Engine(artifact, compiled=True, block_rows=32).run(batch)
    assert eager.scores is not None
    assert compiled.scores is not None
    assert eager.scores.tobytes() == compiled.scores.tobytes()


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method.:DeprecationWarning")  # torch.compile calls it itself
@pytest.mark.long
def test_compiled_stages_of_16_bits_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", "")  # torch.compile sets it and leaves it
    artifact = decoder(activation_bits=16)
    batch = sequences(artifact)
    eager, compiled = (Engine(artifact, compiled=each, block_rows=64).run(batch).logprobs for each in (False, True))
    assert eager is not None and compiled is not None
    for one, other in zip(eager, compiled, strict=True):
        assert np.array_equal(one, other)


def test_a_card_without_its_constants_is_refused() -> None:
    with pytest.raises(ConfigError, match="idle_power_w"):
        Emulator(U55C)


def test_every_constant_is_asked_for_at_once() -> None:
    with pytest.raises(ConfigError, match=r"(?s)clock_hz.*mac8_j"):
        Emulator(U55C.with_(idle_power_w=30))


def test_a_width_that_the_contract_has_not() -> None:
    with pytest.raises(ArtifactError, match=r"12 bits.*8 and 16"):
        Engine(encoder(activation_bits=12))  # type: ignore[arg-type]


def test_one_scale_a_tensor_goes_with_8_bits_only() -> None:
    artifact = encoder(activation_bits=16)
    program = dataclasses.replace(artifact.program, activations="tensor")
    with pytest.raises(ArtifactError, match="8 bits only"):
        Engine(dataclasses.replace(artifact, program=program))


def test_times_and_joules_of_a_card_are_the_models_and_say_so() -> None:
    card = assume(U55C)
    artifact = decoder()
    batch = sequences(artifact, prompt=4)
    expected = service(artifact.program, pack(batch, artifact.program), card, kernels=True)
    device = Emulator(card)
    try:
        result = device.submit(device.load(artifact), batch).result(30)
        assert result.modelled
        assert result.run_s == expected.run_s
        reading = device.energy()
        assert reading.provenance is Provenance.MODELLED
        assert reading.energy_j is not None
        assert reading.energy_j >= expected.energy_j
        assert [sensor.provenance for sensor in device.meter.sensors] == [Provenance.MODELLED]
        assert device.probe().simulated
    finally:
        device.close()


def test_without_a_card_nothing_is_modelled() -> None:
    artifact = encoder()
    device = Emulator()
    try:
        result = device.submit(device.load(artifact), sequences(artifact)).result(30)
        assert not result.modelled
        assert result.run_s > 0
        assert device.energy().energy_j is None
        assert device.meter.sensors == ()
    finally:
        device.close()


def test_in_real_time_an_answer_takes_as_long_as_the_card_would() -> None:
    slow = assume(U55C).with_(launch_s=0.01)
    artifact = encoder(layers=1)
    batch = sequences(artifact)
    expected_s = service(artifact.program, pack(batch, artifact.program), slow, kernels=True).run_s
    device = Emulator(slow, real_time=True)
    try:
        handle = device.load(artifact)
        begun_s = time.monotonic()
        device.submit(handle, batch).result(30)
        assert time.monotonic() - begun_s >= expected_s
        waiting = device.submit(handle, batch)
        device.close()
        assert waiting.done(), "close does not wait for a card that is not there"
    finally:
        device.close()


def test_a_model_that_the_card_has_no_room_for_is_refused() -> None:
    artifact = encoder()
    device = Emulator(assume(U55C).with_(memory_bytes=artifact.nbytes * 1.5))
    try:
        handle = device.load(artifact)
        with pytest.raises(DeviceError, match="GB"):
            device.load(artifact)
        device.load(encoder(seed=1), replacing=handle)
    finally:
        device.close()
