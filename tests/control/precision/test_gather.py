"""What FSDP 2 sends of weights in FP8: the bytes and factors of the layer's own cast (ranks: test_gears_ranks.py)."""

import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from greentrain.config.schema import PrecisionConfig
from greentrain.control.precision import gather
from greentrain.control.precision.fp8 import E4M3, WHOLE, quantize
from greentrain.control.precision.gearbox import GearBox
from greentrain.control.precision.layers import attach_layer
from greentrain.errors import ConfigError, GreenTrainWarning


class _Box:
    low = True

    def runs_fp8(self, training: bool) -> bool:
        return self.low

    gathers_fp8 = runs_fp8


class _Plain:
    """The all-gather of one rank."""

    def __init__(self) -> None:
        self.sent: list[tuple[torch.dtype, int]] = []

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.full(size, 77, dtype=dtype, device=device)

    def __call__(self, output: Tensor, input: Tensor, group: Any, async_op: bool = False) -> None:
        self.sent.append((input.dtype, input.numel()))
        output.copy_(input.clone())


def _comm(monkeypatch: pytest.MonkeyPatch, *sizes: tuple[int, ...]) -> tuple[Any, _Plain, _Box, Any]:
    """Return the all-gather of a module with such parameters, those of two dimensions being weights that shift."""
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda amax, op, group: None)
    box, plain, params = _Box(), _Plain(), []
    for size in sizes:
        layer = nn.Linear(*size[::-1]) if len(size) == 2 else nn.Linear(2, 2)
        if len(size) == 2:
            attach_layer(layer, box, None)  # type: ignore[arg-type]
        info = types.SimpleNamespace(module=layer, param_name="weight")
        params.append(types.SimpleNamespace(padded_sharded_param_size=torch.Size(size), _module_info=info))
    state = types.SimpleNamespace(name="FORWARD")
    held = types.SimpleNamespace(_all_gather_comm=plain, fsdp_params=params, _training_state=state)
    return gather._AllGather(held), plain, box, held


GROUP = types.SimpleNamespace(size=lambda: 1, rank=lambda: 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 1e-12, 3e7, 0.0])
def test_the_layer_casts_what_was_gathered_to_the_same_bytes_and_factor(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, scale: float
) -> None:
    comm, plain, _, _ = _comm(monkeypatch, (48, 80), (7,), (32, 48), (3,))
    draw = torch.Generator().manual_seed(3)
    flat = (torch.randn(48 * 80 + 7 + 32 * 48 + 3, generator=draw) ** 5 * scale).to(dtype)  # three decades and more
    out = torch.empty_like(flat)
    assert comm(out, flat, GROUP) is None
    parts, got = (torch.split(each, [3840, 7, 1536, 3]) for each in (flat, out))
    assert torch.equal(parts[1], got[1]) and torch.equal(parts[3], got[3])
    for index, shape in ((0, (48, 80)), (2, (32, 48))):
        before, after = (quantize(each[index].view(shape), E4M3, WHOLE) for each in (parts, got))
        assert torch.equal(before.data.view(torch.uint8), after.data.view(torch.uint8))
        assert torch.equal(before.unit, after.unit)
        assert scale == 0.0 or not torch.equal(parts[index], got[index]), "rounded"
    ((kind, sent),) = plain.sent
    assert kind is torch.uint8 and sent == -(-(3840 + 1536 + 10 * dtype.itemsize) // 4) * 4


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_weight_that_has_diverged_stays_diverged(monkeypatch: pytest.MonkeyPatch, bad: float) -> None:
    comm, _, _, _ = _comm(monkeypatch, (16, 16))
    flat = torch.ones(256)
    flat[9] = bad
    comm(out := torch.empty(256), flat, GROUP)
    assert out[9].isnan() and quantize(out.view(16, 16), E4M3, WHOLE).unit.isnan()


def test_weights_go_as_stored_where_another_gear_or_a_reader_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    comm, plain, box, held = _comm(monkeypatch, (16, 16), (5,))
    flat = torch.randn(261, generator=torch.Generator().manual_seed(0))
    for box.low, held._training_state.name, dtype, elements in (
        (False, "FORWARD", torch.float32, 261),  # another gear
        (True, "IDLE", torch.float32, 261),  # module.unshard() by hand
        (True, "FORWARD", torch.float16, 261),  # its smallest steps are coarser than e4m3's
        (True, "PRE_BACKWARD", torch.float32, 522),  # reshard_after_forward=2
    ):
        source = flat.repeat(2)[:elements].to(dtype)
        comm(out := torch.empty_like(source), source, GROUP)
        assert torch.equal(out, source) and plain.sent.pop() == (dtype, elements)
    box.low, held._training_state.name = True, "PRE_BACKWARD"
    comm(out := torch.empty_like(flat), flat, GROUP)
    assert plain.sent == [(torch.uint8, 256 + 20)]
    calls: list[str] = []
    module = types.SimpleNamespace(reshard=lambda: calls.append("reshard"))
    comm.settle(module, ())
    assert not calls
    box.low = False
    comm.settle(module, ())
    assert calls == ["reshard"]


def test_what_cannot_gather_in_fp8_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ({"gears": ("bf16",)}, {"gears": ("bf16", "fp8"), "scaling": "rowwise"}):
        with pytest.raises(ConfigError, match=r"fp8_all_gather sends one scale a weight.*have fp8 and tensorwise"):
            PrecisionConfig(fp8_all_gather=True, **wrong)
    box = GearBox(PrecisionConfig(gears=("fp8", "bf16"), min_features=16, fp8_all_gather=True))
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 16))
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "2.14.0")
        with pytest.raises(ConfigError, match=r"FSDP 2 as torch 2.13 has it, and this is 2.14.0: install torch 2.13"):
            box.attach(model)
    assert type(model[0]) is nn.Linear
    box.attach(model)
    assert not box.commit()  # a framework may shard it yet
    model(torch.ones(4, 32))
    with pytest.warns(GreenTrainWarning, match="gathers nothing: no layer that shifts is under fully_shard"):
        box.commit()
    box.commit()
    box.detach()
