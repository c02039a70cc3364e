from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from greentrain.fpga_backend.csim.card import functions
from greentrain.fpga_backend.csim.kernels import KERNELS, STREAMS, WORK
from greentrain.fpga_backend.errors import DeviceError, DeviceLostError
from greentrain.fpga_backend.xrt.api import XrtApi
from greentrain.fpga_backend.xrt.card import XrtCard, signed
from tests.fpga_backend.xrt.fake_xrt import FakeXrt, put_in_place

Opened = Callable[..., XrtCard]


@pytest.fixture
def opened(design: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    def card(fake: FakeXrt, memory_bytes: int | None = None) -> XrtCard:
        put_in_place(fake, monkeypatch)
        return XrtCard(XrtApi(0), design, memory_bytes=memory_bytes)

    return card


def test_a_kernel_runs_on_the_cards_side_of_its_buffers(opened: Opened, library: Path) -> None:
    found = functions(library)
    fake = FakeXrt(compute=lambda name, raw: found[name](*raw))
    card = opened(fake)
    rows, width = 3, 16
    x, z = (np.random.default_rng(i).normal(size=(rows, width)).astype(np.float32) for i in range(2))
    buffers = [card.allocate(x.nbytes, WORK.bank) for _ in range(3)]
    card.write(buffers[0], x)
    card.write(buffers[1], z)
    card.launch("gt_gate", [*buffers[:2], buffers[0], buffers[2], rows, 1, 0, 1, 0, width, 3, 0])
    y = np.empty_like(x)
    card.read(buffers[2], y)
    assert y.tobytes() == (x + z).tobytes()
    part = np.empty(width, np.float32)
    card.read(buffers[2], part, offset=x[0].nbytes)
    assert part.tobytes() == y[1].tobytes()
    card.close()
    card.close()
    assert fake.handles == 0


def test_a_run_that_does_not_complete_is_an_error_that_names_its_state(opened: Opened) -> None:
    for state, name in ((5, "error"), (6, "abort"), (8, "timeout")):
        card = opened(FakeXrt(states=(1, 3, state)))
        buffer = card.allocate(64, WORK.bank)
        with pytest.raises(DeviceError, match=rf"gt_gate ended in state {state} \({name}\)"):
            card.launch("gt_gate", [*4 * [buffer], 1, 1, 0, 1, 0, 1, 3, 0])
        card.close()


def test_another_design_on_the_card_is_noticed(opened: Opened, design: Path) -> None:
    other = "00000000-0000-0000-0000-000000000001"
    with pytest.raises(DeviceError, match=f"the card reports {other}: another program has loaded another design"):
        opened(FakeXrt(uuid=other))


def test_what_the_library_refuses_says_what_was_being_done(
    design: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeXrt()
    put_in_place(fake, monkeypatch)
    for address in ("0000:00:00.0", 1):
        with pytest.raises(DeviceError, match=f"XRT failed in opening card {address}: No such device"):
            XrtApi(address)
    api = XrtApi("0000:c1:00.1")
    with pytest.raises(DeviceError, match=r"loading .*gone.xclbin: code -2"):
        api.load(tmp_path / "gone.xclbin")
    api.load(design)
    with pytest.raises(DeviceError, match="opening kernel gt_none: No such file"):
        api.kernel("gt_none")
    with pytest.raises(DeviceError, match=r"no memory of argument 5 of gt_gate \(error -22\)"):
        api.kernel("gt_gate").group(5)
    memory = api.allocate(64, 0)
    memory.free()
    memory.free()
    with pytest.raises(DeviceError, match="a buffer was freed, or is of another card"):
        api.kernel("gt_gate").start([memory])
    api.close()
    api.close()
    assert fake.handles == 0


def test_memory_is_counted_and_given_back(opened: Opened) -> None:
    fake = FakeXrt()
    card = opened(fake, memory_bytes=5 * 4096)
    held = [card.allocate(4096, STREAMS[0].bank), card.allocate(1, WORK.bank), card.allocate(0, WORK.bank)]
    assert card.used_bytes == fake.bytes_now == 3 * 4096
    with pytest.raises(DeviceError, match=r"12288 bytes do not fit .* the card 12288 of 20480: unload another model"):
        card.allocate(2 * 4096 + 1)
    card.free(card.allocate(8192))
    card.free(held[0])
    assert card.used_bytes == fake.bytes_now == 2 * 4096
    with pytest.raises(DeviceError, match="is not on this card: it was freed"):
        card.free(held[0])
    with pytest.raises(DeviceError, match=r"HBM.* holds 8192 of 6442450944 bytes"):
        card.allocate(6 * 2**30, WORK.bank)
    with pytest.raises(DeviceError, match="no bank 9"):
        card.allocate(1, 9)
    card.close()
    with pytest.raises(DeviceLostError, match="closed"):
        card.allocate(1)


def test_nothing_reaches_beyond_a_buffer(opened: Opened) -> None:
    card = opened(FakeXrt())
    buffer = card.allocate(64)
    with pytest.raises(DeviceError, match=r"bytes 4 to 68 lie outside buffer 1 of 64 bytes"):
        card.write(buffer, np.zeros(16, np.float32), offset=4)
    with pytest.raises(DeviceError, match="lie outside"):
        card.read(buffer, np.zeros(16, np.float32), offset=-4)
    with pytest.raises(DeviceError, match="C-contiguous"):
        card.read(buffer, np.zeros((4, 8), np.float32)[:, :4].T)
    card.write(buffer, np.empty(0, np.float32), offset=64)
    card.close()


def test_a_wrong_launch_is_refused(opened: Opened) -> None:
    card = opened(FakeXrt())
    buffer = card.allocate(64)
    with pytest.raises(DeviceError, match="no kernel gt_none"):
        card.launch("gt_none", [])
    with pytest.raises(DeviceError, match="gt_gate takes 12 arguments, 1 were given"):
        card.launch("gt_gate", [buffer])
    with pytest.raises(DeviceError, match="more than 32 bits"):
        card.launch("gt_gate", [*4 * [buffer], 2**33, 1, 0, 1, 0, 1, 3, 0])
    card.close()


def test_floats_travel_as_signed_bits() -> None:
    for value in (1.5, -1.5, -0.0):
        bits = int(np.float32(value).view(np.uint32))
        assert np.int32(signed(bits)).view(np.float32) == np.float32(value)


def test_a_kernel_the_design_lacks_is_found_before_the_card_is_programmed(
    design: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_place(FakeXrt(), monkeypatch)
    with pytest.raises(DeviceError, match="has no kernel"):
        XrtCard(XrtApi(0), design, kernels=(*KERNELS, type(KERNELS[0])(name="gt_more", arguments=())))
