"""The Transformer Engine backend, on a stub that is held against the signatures of the release 2.20.2."""

import ast
import copy
import gc
import inspect
import json
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from greentrain.control.precision import backends
from greentrain.control.precision.backends import choose_backend
from greentrain.control.precision.fp8 import fp8_linear
from greentrain.control.precision.layers import attach_layer
from greentrain.control.precision.te import TeBackend, open_te
from greentrain.errors import ConfigError
from tests.control.precision.te_stub import Stub

CUDA = torch.device("cuda")
RECORD = json.loads(Path(__file__).with_name("te_2_20_signatures.json").read_text(encoding="utf-8"))


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Stub:
    stub = Stub()
    stub.install(monkeypatch)
    return stub


@pytest.fixture
def backend(stub: Stub) -> TeBackend:
    return open_te(CUDA, "tensorwise")


def recorded(name: str) -> inspect.Signature:
    """The real signature, as recorded."""
    return inspect.Signature(
        [
            inspect.Parameter(
                entry["name"],
                inspect._ParameterKind[entry["kind"]],
                default=inspect.Parameter.empty if entry["default"] is None else entry["default"],
            )
            for entry in RECORD["signatures"][name]["parameters"]
        ]
    )


@pytest.mark.parametrize("name", sorted(RECORD["signatures"]))
def test_the_stub_has_the_signatures_of_the_release(stub: Stub, name: str) -> None:
    parameters = [p for p in inspect.signature(stub.signed[name]).parameters.values() if p.name != "self"]
    real = list(recorded(name).parameters.values())
    assert [(p.name, p.kind) for p in parameters] == [(p.name, p.kind) for p in real]
    for ours, theirs in zip(parameters, real, strict=True):
        assert (ours.default is ours.empty) == (theirs.default is theirs.empty), ours.name
        try:
            literal = ast.literal_eval(theirs.default) if isinstance(theirs.default, str) else theirs.default
        except ValueError:  # computed when Transformer Engine is imported
            continue
        assert ours.default == literal, ours.name


def test_every_call_fits_the_signatures_of_the_release(stub: Stub, backend: TeBackend) -> None:
    layer = nn.Linear(32, 48)
    backend.linear(layer, torch.randn(5, 32))
    assert [name.removeprefix("transformer_engine.pytorch.") for name, _, _ in stub.calls] == [
        "is_fp8_available",
        "autocast.__init__",
        "Linear.__init__",
        "Linear.forward",
    ]
    for name, args, kwargs in stub.calls:
        recorded(name).bind(*args, **kwargs)
    recorded("transformer_engine.common.recipe.Float8CurrentScaling.__init__").bind()
    autocast = stub.calls[1][2]
    assert autocast["enabled"] is True and type(autocast["recipe"]) is stub.recipes.Float8CurrentScaling


def test_a_call_that_the_release_does_not_know_is_found(stub: Stub) -> None:
    with pytest.raises(TypeError):
        recorded("transformer_engine.pytorch.autocast.__init__").bind(fp8_recipe=None)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("lead", [(16,), (5,), (2, 3, 7), (), (0,), (2, 0)])
def test_rows_are_padded_and_cut_again(backend: TeBackend, lead: tuple[int, ...], bias: bool) -> None:
    layer = nn.Linear(32, 48, bias=bias)
    leaves = [torch.randn(*lead, 32).requires_grad_(), *layer.parameters()]
    y = backend.linear(layer, leaves[0])
    assert y.shape == (*lead, 48)
    right = fp8_linear(leaves[0], layer.weight) + (layer.bias if bias else 0.0)
    torch.testing.assert_close(y, right)
    for one, other in zip(torch.autograd.grad(y.sum(), leaves), torch.autograd.grad(right.sum(), leaves), strict=True):
        torch.testing.assert_close(one, other)


def test_outside_autocast_the_input_takes_the_dtype_of_the_weight(backend: TeBackend) -> None:
    layer = nn.Linear(32, 48)
    assert backend.linear(layer, torch.randn(16, 32).bfloat16()).dtype is torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert backend.linear(layer, torch.randn(16, 32)).dtype is torch.bfloat16


def test_the_helper_has_the_parameters_of_the_layer_also_after_they_changed(stub: Stub, backend: TeBackend) -> None:
    layer, x = nn.Linear(32, 48), torch.randn(16, 32)
    backend.linear(layer, x)
    layer.weight = nn.Parameter(torch.zeros(48, 32))  # as FSDP 2 does on every gather
    layer.bias = nn.Parameter(torch.ones(48))
    assert torch.equal(backend.linear(layer, x), torch.ones(16, 48))
    del layer._parameters["weight"]
    layer.weight = torch.zeros(48, 32, requires_grad=True) * 2  # as FSDP 1 does
    assert torch.equal(backend.linear(layer, x), torch.ones(16, 48))
    assert [name for name, _, _ in stub.calls].count("transformer_engine.pytorch.Linear.__init__") == 1
    assert len({id(kwargs["recipe"]) for name, _, kwargs in stub.calls if "autocast" in name}) == 1


class On:
    def runs_fp8(self, training: bool) -> bool:
        return training


def test_nobody_sees_the_helper(backend: TeBackend) -> None:
    net = nn.Sequential(nn.Linear(32, 48))
    keys, before = list(net.state_dict()), torch.random.get_rng_state()
    attach_layer(net[0], On(), backend)
    right = net(torch.ones(16, 32))
    assert torch.equal(torch.random.get_rng_state(), before), "the helper draws no random number"
    assert list(net.state_dict()) == keys and len(list(net.modules())) == 2 and len(list(net.parameters())) == 2
    for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert type(copied[0]) is nn.Linear
        assert not torch.equal(copied(torch.ones(16, 32)), right), "a copy stays in high precision"
    assert len(backend._helpers) == 1
    del net, right
    gc.collect()
    assert len(backend._helpers) == 0, "a layer that is gone leaves nothing behind"


def test_checkpointing_enters_the_recipe_again(stub: Stub, backend: TeBackend) -> None:
    layer, x = nn.Linear(32, 48), torch.randn(16, 32, requires_grad=True)
    right = torch.autograd.grad(backend.linear(layer, x).sum(), [x, layer.weight])
    y = checkpoint(backend.linear, layer, x, use_reentrant=False)
    for one, other in zip(torch.autograd.grad(y.sum(), [x, layer.weight]), right, strict=True):
        assert torch.equal(one, other)
    assert stub.recipe is None


def test_auto_comes_to_it_where_torch_cannot_and_says_so(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    def trial(backend: Any, device: torch.device) -> None:
        if backend.name == "scaled_mm":
            raise RuntimeError("no such kernel")

    monkeypatch.setattr(backends, "trial", trial)
    backend = choose_backend("auto", CUDA, "tensorwise")
    assert backend.name == "transformer_engine"
    assert backend.reason == "Transformer Engine 2.20.2 has FP8 on cuda; passed over: scaled_mm: no such kernel"


@pytest.mark.parametrize(
    ("device", "scaling", "word"),
    [("cpu", "tensorwise", "CUDA only"), ("cuda", "rowwise", "precision.scaling is 'rowwise'")],
)
def test_what_it_cannot_do_is_refused(stub: Stub, device: str, scaling: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        open_te(torch.device(device), scaling)


def test_a_gpu_without_fp8_is_refused_with_its_own_reason(stub: Stub) -> None:
    stub.fp8 = (False, "Device compute capability 8.9 or higher required for FP8 execution.")
    with pytest.raises(ConfigError, match=r"2\.20\.2 has no FP8 here: Device compute capability 8\.9"):
        open_te(CUDA, "tensorwise")


def test_an_older_release_is_refused(stub: Stub) -> None:
    del stub.pytorch.autocast
    with pytest.raises(ConfigError, match=r"2\.9 or newer"):
        open_te(CUDA, "tensorwise")


def test_the_package_without_its_cuda_part_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Empty(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("Found empty `transformer-engine` meta package installed")

    monkeypatch.setitem(sys.modules, "transformer_engine", Empty("transformer_engine"))
    monkeypatch.delitem(sys.modules, "transformer_engine.pytorch", raising=False)
    with pytest.raises(ImportError, match=r"no-build-isolation 'transformer-engine\[pytorch\]'"):
        open_te(CUDA, "tensorwise")


@pytest.mark.gpu
def test_the_real_one_on_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU here")
    try:
        backend = choose_backend("transformer_engine", CUDA, "tensorwise")
    except ConfigError as error:
        pytest.skip(f"Transformer Engine does not run here: {error}")
    layer = nn.Linear(256, 512, device="cuda")
    x = torch.randn(3, 37, 256, device="cuda", requires_grad=True)
    leaves: list[Tensor] = [x, layer.weight, layer.bias]
    plain = F.linear(*leaves)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = backend.linear(layer, x)
    grad = torch.randn_like(plain)
    pairs = zip(
        [y, *torch.autograd.grad(y, leaves, grad.to(y.dtype))],
        [plain, *torch.autograd.grad(plain, leaves, grad)],
        strict=True,
    )
    assert all(float(((one - other).norm() / other.norm()).detach()) < 0.1 for one, other in pairs)
    layer.weight = nn.Parameter(torch.zeros_like(layer.weight))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        torch.testing.assert_close(backend.linear(layer, x), layer.bias.bfloat16().expand(3, 37, 512))


def test_its_kernels_run_on_the_device_of_the_input(
    stub: Stub, backend: TeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    current: list[Any] = []

    class Device:
        def __init__(self, device: Any) -> None:
            self._device = device

        def __enter__(self) -> None:
            current.append(self._device)

        def __exit__(self, *error: object) -> None:
            assert stub.recipe is None, "left with its own autocast"

    monkeypatch.setattr(torch.cuda, "device", Device)
    backend.linear(nn.Linear(32, 48), torch.randn(16, 32))
    assert current == [-1], "on a CPU: none"
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda x: True))
    backend.linear(nn.Linear(32, 48), torch.randn(16, 32))
    assert current == [-1, torch.device("cpu")]
