"""Which layers get the FP8 gear, and what the plan says of the others."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parametrizations, prune

from greentrain.control.precision.layers import plan_layers


class Gpt(nn.Module):
    """Two blocks of width 128 between an embedding and a head."""

    def __init__(self, *, head: str = "lm_head", tied: bool = False) -> None:
        super().__init__()
        self.wte = nn.Embedding(256, 128)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(128), "fc": nn.Linear(128, 512), "proj": nn.Linear(512, 128)})
            for _ in range(2)
        )
        self.add_module(head, nn.Linear(128, 256, bias=False))
        if tied:
            getattr(self, head).weight = self.wte.weight


BODY = [f"blocks.{i}.{name}" for i in range(2) for name in ("fc", "proj")]


def chosen(model: nn.Module, *args: Any) -> list[str]:
    return [plan.name for plan in plan_layers(model, *args) if plan.chosen]


def why_not(model: nn.Module, name: str, *args: Any) -> str:
    (plan,) = (plan for plan in plan_layers(model, *args) if plan.name == name)
    assert not plan.chosen
    return plan.reason


def test_the_body_is_chosen_and_every_linear_layer_is_explained() -> None:
    plans = [plan for plan in plan_layers(Gpt()) if plan.in_features is not None]
    assert [(plan.name, plan.chosen) for plan in plans] == [(name, True) for name in BODY] + [("lm_head", False)]
    assert (plans[0].in_features, plans[0].out_features) == (128, 512)
    assert all(plan.reason for plan in plans) and "output layer" in plans[-1].reason


@pytest.mark.parametrize("head", ["head", "classifier", "score", "output_projection", "embed_out"])
def test_a_head_is_known_by_its_name(head: str) -> None:
    assert chosen(Gpt(head=head)) == BODY


def test_a_head_is_known_inside_the_wrapper_of_an_adapter() -> None:
    model = nn.ModuleDict({"lm_head": nn.ModuleDict({"base_layer": nn.Linear(128, 256)})})
    assert "'lm_head'" in why_not(model, "lm_head.base_layer")


def test_a_head_of_any_other_name_is_known_by_its_tie() -> None:
    assert why_not(Gpt(head="out", tied=True), "out") == "its weight is tied to wte.weight"


def test_a_head_of_any_other_name_is_known_by_its_shape_and_place() -> None:
    assert "shape of the embedding" in why_not(Gpt(head="out"), "out")
    # The same shape in the body is a layer like any other.
    model = nn.Sequential(nn.Embedding(512, 128), nn.Linear(128, 512), nn.Linear(512, 128))
    assert chosen(model) == ["1", "2"]


def test_a_head_called_fc_is_known_by_its_place() -> None:
    model = nn.ModuleDict({"body": nn.ModuleDict({"fc": nn.Linear(128, 128)}), "fc": nn.Linear(128, 128)})
    assert chosen(model) == ["body.fc"]
    assert "the last layer" in why_not(model, "fc")


def test_two_layers_of_one_weight_are_tied_but_one_layer_in_two_places_is_not() -> None:
    one, other = nn.Linear(128, 128), nn.Linear(128, 128)
    other.weight = one.weight
    assert chosen(nn.Sequential(one, other)) == []
    assert chosen(nn.Sequential(one, nn.ReLU(), one)) == ["0"]


@pytest.mark.parametrize(("shape", "word"), [((120, 512), "multiples of 16"), ((128, 64), "min_features, 128")])
def test_odd_and_small_shapes_stay(shape: tuple[int, int], word: str) -> None:
    assert word in why_not(nn.Sequential(nn.Linear(*shape)), "0")


def test_the_smallest_width_can_be_set() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 40))
    assert chosen(model, ("*",), (), 16) == ["0"]


def test_names_are_included_and_excluded_with_wildcards() -> None:
    assert chosen(Gpt(), ("blocks.1.*",)) == BODY[2:]
    assert chosen(Gpt(), ("blocks.1.*", "*.fc")) == [BODY[0], *BODY[2:]], "any of the names is enough"
    assert chosen(Gpt(), ("*",), ("*.proj",)) == [BODY[0], BODY[2]]
    assert why_not(Gpt(), BODY[1], ("*",), ("*.proj",)) == "precision.exclude names it ('*.proj')"
    assert "does not name it" in why_not(Gpt(), BODY[0], ("blocks.1.*",))
    assert chosen(nn.Linear(128, 128)) == [""], "the model itself may be a layer"


class Scaled(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


def test_whatever_is_not_plainly_a_linear_layer_stays_and_is_named() -> None:
    replaced = nn.Linear(128, 128)
    replaced.forward = lambda input: input  # type: ignore[method-assign]
    pruned = prune.l1_unstructured(nn.Linear(128, 128), "weight", amount=0.5)  # type: ignore[no-untyped-call]
    model = nn.ModuleDict(
        {
            "scaled": Scaled(128, 128),
            "lazy": nn.LazyLinear(128),
            "parametrized": parametrizations.weight_norm(nn.Linear(128, 128)),
            "replaced": replaced,
            "pruned": pruned,
            "float64": nn.Linear(128, 128, dtype=torch.float64),
            "attention": nn.MultiheadAttention(128, 2),
        }
    )
    words = {
        "scaled": "a Scaled",
        "lazy": "a LazyLinear",
        "parametrized": "parametrize",
        "replaced": "forward is replaced",
        "pruned": "computed",
        "float64": "float64",
        "parametrized.parametrizations.weight": "ParametrizationList holds original0, original1",
        "attention": "MultiheadAttention holds in_proj_weight, in_proj_bias itself",
        "attention.out_proj": "NonDynamicallyQuantizableLinear",
    }
    assert {plan.name: plan.chosen for plan in plan_layers(model)} == dict.fromkeys(words, False)
    for name, word in words.items():
        assert word in why_not(model, name)


class Experts(nn.Module):
    """Weights of several experts in one Parameter, as mixtures of experts hold them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj = (
            nn.Parameter(torch.zeros(8, 128, 512)),
            nn.Parameter(torch.zeros(8, 256, 128)),
        )


def test_the_plan_sums_to_the_model_and_names_what_is_no_linear_layer() -> None:
    model = nn.ModuleDict({"gpt": Gpt(tied=True), "moe": Experts(), "conv": nn.Conv2d(3, 8, 3), "rnn": nn.LSTM(8, 8)})
    plans = {plan.name: plan for plan in plan_layers(model)}
    assert sum(plan.parameters for plan in plans.values()) == sum(p.numel() for p in model.parameters())
    assert plans["gpt.wte"].parameters == 256 * 128 and plans["gpt.lm_head"].parameters == 0, "tied: counted once"
    assert plans["moe"].reason.startswith("Experts holds gate_up_proj, down_proj itself")
    assert plans["moe"].parameters == 8 * 128 * 768 and plans["moe"].in_features is None
    assert {"Conv2d", "LSTM", "Embedding", "LayerNorm"} <= {plan.reason.split()[0] for plan in plans.values()}


def test_gpt2s_conv1d_is_a_linear_layer() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=16, n_embd=128, n_layer=1, n_head=2))
    layers = [plan for plan in plan_layers(model) if plan.chosen]
    assert [plan.name.rpartition(".h.0.")[2] for plan in layers] == [
        "attn.c_attn",
        "attn.c_proj",
        "mlp.c_fc",
        "mlp.c_proj",
    ]
    assert (layers[0].in_features, layers[0].out_features) == (128, 384)
    assert layers[0].parameters == 128 * 384 + 384
    assert why_not(model, "lm_head")


def test_lora_trains_beside_an_fp8_base() -> None:
    model = nn.ModuleDict(
        {
            "base_layer": nn.Linear(128, 256).requires_grad_(False),
            "lora_A": nn.ModuleDict({"default": nn.Linear(128, 8, bias=False)}),
            "lora_B": nn.ModuleDict({"default": nn.Linear(8, 256, bias=False)}),
        }
    )
    assert chosen(model) == ["base_layer"]


@pytest.fixture
def two_ranks() -> Iterator[None]:
    """The first of two ranks, on torch's process group that only pretends."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


def test_a_weight_that_fsdp_gathers_is_plain_and_a_parallel_one_is_a_part(two_ranks: None) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
    sharded, replicated = Gpt(), Gpt()
    fully_shard(sharded, mesh=mesh["tensor"])
    fully_shard(replicated, mesh=mesh)  # HSDP: over the first dimension
    assert chosen(sharded) == chosen(replicated) == BODY
    parallel = nn.Sequential(nn.Linear(128, 256))
    parallelize_module(parallel, mesh["tensor"], {"0": ColwiseParallel()})
    assert chosen(parallel) == ["0"], "each rank multiplies its part"
    narrow = nn.Sequential(nn.Linear(128, 144))
    parallelize_module(narrow, mesh["tensor"], {"0": ColwiseParallel()})
    assert "128 inputs and 72 outputs are not both multiples of 16" in why_not(narrow, "0")
    fully_shard(parallel, mesh=mesh["data"])
    assert chosen(parallel) == ["0"], "FSDP gathers that part"
