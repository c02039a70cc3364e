"""The chain through AMD's own XRT 2.13 in no-op emulation, the compiled kernels standing in for the card's fabric."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from benchmarks.fpga_emulator import round_trip_s
from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.csim.schedule import BatchSchedule
from greentrain.fpga_backend.device import OffloadDevice
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.fpga_backend.errors import DeviceError
from greentrain.fpga_backend.xrt import ipc, worker_client
from greentrain.fpga_backend.xrt.device import XrtDevice
from greentrain.testing.offload_contract import OffloadContract, rows_of
from greentrain.testing.offload_models import decoder, encoder, sequences
from greentrain.types import Provenance
from tests.fpga_backend.csim.checked_card import CheckedCard

Open = Callable[..., XrtDevice]


def named_memory() -> set[str]:
    """Return the shared memory with a name that this process has open."""
    names = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return {found for name in names if name.is_symlink() and "/dev/shm" in (found := os.readlink(name))}


@pytest.fixture(scope="module")
def before() -> set[str]:
    """What was open before there was a device: torch's, where an earlier test took tensors from a process."""
    return named_memory()


@pytest.fixture(scope="module", autouse=True)
def shared(before: set[str], design: Path, library: Path, noop: dict[str, str]) -> Iterator[XrtDevice]:
    """One device for all tests that leave it open."""
    device = XrtDevice(design, silicon=library, environ=noop)
    yield device
    device.close()


class TestXrtDevice(OffloadContract):
    # those that close their device: test_xrt_end.py
    test_the_meter_keeps_the_meters_contract = None  # type: ignore[assignment]
    test_close_fails_what_waits = None  # type: ignore[assignment]
    test_close_leaves_nothing = None  # type: ignore[assignment]

    @pytest.fixture
    def device(self, shared: XrtDevice) -> OffloadDevice:
        return shared


def test_bits_are_those_of_the_kernels_on_a_csim_card(shared: XrtDevice, library: Path) -> None:
    """Random shapes: odd widths, heads that share keys, several labels, prompts shared and not."""
    rng = np.random.default_rng(8)
    for seed in range(4):
        heads = int(rng.choice([2, 4]))
        hidden = heads * int(rng.choice([6, 10, 16]))
        artifact = (
            encoder(seed=seed, hidden=hidden, heads=heads, labels=1 + seed, pooler=seed % 4 == 0, layers=1)
            if seed % 2 == 0
            else decoder(seed=seed, hidden=hidden, heads=heads, kv_heads=heads // 2, layers=1)
        )
        lengths = tuple(int(n) for n in rng.integers(9, 65, size=5))
        batch = sequences(artifact, seed=seed, lengths=lengths, prompt=8 if seed % 2 else 0)
        got = shared.submit(shared.load(artifact), batch).result(60)
        card = CheckedCard(library)
        wanted = BatchSchedule(artifact, card).run(batch)
        card.close()
        assert got.rows == wanted.rows
        if wanted.scores is not None:
            assert got.scores is not None and got.scores.tobytes() == wanted.scores.tobytes()
        else:
            assert [row.tobytes() for row in got.logprobs or ()] == [row.tobytes() for row in wanted.logprobs or ()]


def test_activations_of_16_bits(shared: XrtDevice) -> None:
    for artifact in (encoder(activation_bits=16), decoder(activation_bits=16)):
        batch = sequences(artifact, lengths=(9, 30, 4))
        got = shared.submit(shared.load(artifact), batch).result(60)
        assert [row.tobytes() for row in rows_of(got)] == [r.tobytes() for r in rows_of(Engine(artifact).run(batch))]


def test_probe_says_what_runs(shared: XrtDevice) -> None:
    info = shared.probe()
    assert info.simulated and info.exact and info.available
    assert info.memory_bytes == 32 * 512 * 2**20
    assert shared.energy().provenance is Provenance.MISSING
    assert "no power of a card" in shared.energy().note
    assert not shared.meter.sensors


def test_nothing_of_xrt_is_in_this_process(shared: XrtDevice, before: set[str]) -> None:
    assert shared.probe().available
    assert "libxrt_core" not in Path("/proc/self/maps").read_text()
    assert "torch" not in Path(f"/proc/{shared.worker_pid}/maps").read_text()
    assert named_memory() <= before


def test_handing_over_is_measured(shared: XrtDevice) -> None:
    assert 0 < round_trip_s(shared, nbytes=131072, repeats=20) < 0.05
    assert 0 < round_trip_s(shared, nbytes=1, repeats=1) < 0.5


def test_memory_does_not_grow_with_batches(shared: XrtDevice) -> None:
    artifact = decoder(layers=1)
    handle, batch = shared.load(artifact), sequences(artifact, lengths=(40, 64, 12))
    wanted = shared.submit(handle, batch).result(60).logprobs or ()
    worker, files = psutil.Process(shared.worker_pid), len(os.listdir("/proc/self/fd"))
    before = worker.memory_info().rss, worker.num_fds()
    for _ in range(100):
        got = shared.submit(handle, batch, wait_s=None).result(60).logprobs or ()
    assert [row.tobytes() for row in got] == [row.tobytes() for row in wanted]
    assert worker.memory_info().rss - before[0] < 4 * 2**20
    assert worker.num_fds() == before[1]
    assert len(os.listdir("/proc/self/fd")) == files
    many = Batch.of([np.full(2, 7, np.int32)] * 6000)
    shape = ipc.BatchShape.of(many, artifact.program)
    assert shape.nbytes > worker_client.SMALLEST_BYTES
    assert len(shared.submit(handle, many).result(60).logprobs or ()) == 6000
    assert worker.num_fds() == before[1]
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_model_larger_than_the_card_is_refused_with_the_numbers(opened: Open) -> None:
    small = encoder(layers=1)
    device = opened(memory_bytes=400_000)
    handle = device.load(small)
    with pytest.raises(DeviceError, match=r"weights take \d+ bytes, \d+ of the card's 400000 are free"):
        device.load(encoder(layers=1, hidden=512))
    batch = sequences(small, lengths=(8,))
    assert device.submit(handle, batch).result(60).rows == 8
    # a model of the same size takes the place of the old one, for which there is no room beside it
    other = encoder(seed=5, layers=1)
    assert device.submit(device.load(other, replacing=handle), batch).result(60).rows == 8


def test_what_cannot_be_opened_raises_early(design: Path, library: Path, noop: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"gone.xclbin cannot be read"):
        XrtDevice(tmp_path / "gone.xclbin", silicon=library, environ=noop)
    with pytest.raises(DeviceError, match="give silicon="):
        XrtDevice(design, environ=noop)
    without = {key: value for key, value in noop.items() if key != "XCL_EMULATION_MODE"}
    with pytest.raises(DeviceError, match="silicon= is for no-op emulation"):
        XrtDevice(design, silicon=library, environ=without)
    with pytest.raises(DeviceError, match="no card is on the PCI bus"):
        XrtDevice(str(design), environ=without, bus=tmp_path)
    with pytest.raises(DeviceError, match=r"no PCI function '0000:c1:00\.1'"):
        XrtDevice(design, environ=without, bus=tmp_path, addresses="0000:c1:00.1")
    with pytest.raises(
        DeviceError, match=r"0000:c1:00\.1,0000:c2:00\.1: a device has one card; open a device for each"
    ):
        XrtDevice(design, environ=without, bus=tmp_path, addresses=["0000:c1:00.1", "0000:c2:00.1"])
    for wrong in ({"restarts": -1}, {"timeout_s": 0.0}, {"memory_bytes": 0}):
        with pytest.raises(DeviceError, match=f"{next(iter(wrong))}="):
            XrtDevice(design, silicon=library, environ=noop, **wrong)


@pytest.mark.parametrize("root", ["", "/nowhere"])
def test_an_environment_in_which_xrt_ends_the_process_is_found_before(
    opened: Open, noop: dict[str, str], root: str
) -> None:
    with pytest.raises(DeviceError, match=r"XILINX_XRT.*source the setup.sh"):
        opened(environ={**noop, "XILINX_XRT": root})


def test_a_library_without_the_kernels_is_refused(opened: Open, tmp_path: Path) -> None:
    wrong = tmp_path / "kernels.so"
    wrong.write_bytes(b"no library")
    with pytest.raises(DeviceError, match=r"kernels.so cannot be used"):
        opened(silicon=wrong)
