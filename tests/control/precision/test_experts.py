"""Experts of transformers in the gears: reached, right, counted, and plain again in a copy."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from greentrain.config.schema import PrecisionConfig
from greentrain.control.precision.gearbox import GearBox
from greentrain.control.precision.noise import probed_weights
from greentrain.types import Gear

transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 32,
}  # fmt: skip
MORE: dict[str, dict[str, Any]] = {
    "Mixtral": {"intermediate_size": 128, "num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen3Moe": {
        "moe_intermediate_size": 128, "intermediate_size": 128, "num_experts": 4, "num_experts_per_tok": 2,
        "head_dim": 64, "decoder_sparse_step": 1, "mlp_only_layers": [],
    },
}  # fmt: skip
IDS = torch.randint(0, 64, (2, 12), generator=torch.Generator().manual_seed(3))


def made(kind: str, experts: str = "eager") -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES, **MORE[kind])
    config._experts_implementation = experts
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def grads(model: Any) -> dict[str, Tensor]:
    model.zero_grad()
    model(input_ids=IDS, labels=IDS).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("kind", list(MORE))
def test_the_gears_reach_the_experts_and_the_shares_say_so(kind: str) -> None:
    model, plain = made(kind), made(kind)
    more = ("mxfp8", "nvfp4") if kind == "Mixtral" else ("mxfp8",)
    box = GearBox(PrecisionConfig(gears=("fp32", "bf16", "fp8", *more)))
    box.attach(model)
    [experts] = [layer for layer in box.plan if layer.name.endswith("experts")]
    assert experts.chosen and experts.reason == "4 experts of 128 inputs and 256 outputs fit FP8"
    assert experts.parameters == 4 * (256 * 128 + 128 * 128)
    assert {layer.name.rsplit(".")[-1] for layer in box.plan if layer.chosen} == {
        "q_proj", "k_proj", "v_proj", "o_proj", "experts"
    }  # fmt: skip
    assert any("gate" in layer.name and not layer.chosen for layer in box.plan), "the router stays as it is"
    inner = model.get_submodule(experts.name)
    weights = probed_weights(model, box.plan)
    assert any(p is inner.gate_up_proj or p is inner.down_proj for p in weights)
    key = f"{experts.name}.down_proj"
    right, found = grads(plain), {}
    for gear in box.gears:
        with box.at(gear):
            found[gear] = grads(model)
    assert torch.equal(found[Gear.FP32][key], right[key]), "in the other gears it is transformers' own"
    off = {gear: float((each[key] - right[key]).norm() / right[key].norm()) for gear, each in found.items()}
    assert off[Gear.BF16] < off[Gear.FP8] < 0.3 and off[Gear.BF16] < off[Gear.MXFP8] < 0.3, off
    assert off[Gear.MXFP8] < off.get(Gear.NVFP4, 0.5) < 0.8, off
    clone = copy.deepcopy(model)
    assert type(clone.get_submodule(experts.name)) is type(plain.get_submodule(experts.name))
    box.detach()
    assert type(inner) is type(plain.get_submodule(experts.name)) and list(model.state_dict()) == list(
        plain.state_dict()
    )


def test_its_own_sorting_gives_what_transformers_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn import functional

    model, plain = made("Mixtral"), made("Mixtral", "grouped_mm")
    box = GearBox(PrecisionConfig(gears=("fp32", "mxfp8")))
    box.attach(model)
    backend: Any = type(
        "Exact", (), {"linear": lambda self, layer, x: functional.linear(x, layer.weight, layer.bias)}
    )()
    for module in model.modules():
        if "_green" in vars(module):
            object.__setattr__(module, "_green", type(module._green)(box=box, backend=backend))
    monkeypatch.setattr("greentrain.control.precision.gearbox.AUTOCAST", {})
    with box.at(Gear.MXFP8):
        ours = grads(model)
    for name, theirs in grads(plain).items():
        torch.testing.assert_close(ours[name], theirs, rtol=1e-4, atol=1e-6)


def test_experts_that_are_excluded_or_narrow_stay_and_say_why() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"exclude": ("*experts",)}, "precision.exclude names it"),
        ({"min_features": 256}, "less than precision.min_features"),
    ]
    for config, why in cases:
        model, box = made("Mixtral"), GearBox(PrecisionConfig(gears=("bf16", "fp8"), include=("*",), **config))
        try:
            box.attach(model)
        except Exception as error:
            assert why in str(error)
        else:
            [experts] = [layer for layer in box.plan if layer.name.endswith("experts")]
            assert not experts.chosen and why in experts.reason
