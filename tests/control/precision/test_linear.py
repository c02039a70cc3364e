"""A layer that shifts is the same layer: Parameters, keys, numbers, copies and pickles."""

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.optim.swa_utils import AveragedModel

from greentrain.control.precision.backends import ScaledMm, choose_backend
from greentrain.control.precision.fp8 import fp8_linear
from greentrain.control.precision.layers import GearLinear, attach_layer, detach_layer


class Box:
    """Says in which mode layers run in FP8."""

    def __init__(self, training: bool = True, evaluating: bool = False) -> None:
        self.training = training
        self.evaluating = evaluating

    def runs_fp8(self, training: bool) -> bool:
        return self.training if training else self.evaluating


BACKEND = choose_backend("scaled_mm", torch.device("cpu"), "tensorwise")
X = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 16, bias=False))


def shifting(box: Box) -> nn.Sequential:
    net = model()
    for layer in net:
        if isinstance(layer, nn.Linear):
            attach_layer(layer, box, BACKEND)
    return net


def test_the_box_decides_on_every_call_and_fp32_after_fp8_is_bit_exact() -> None:
    box, plain = Box(training=False), model()
    net = shifting(box)
    right = plain(X)
    assert torch.equal(net(X), right)
    box.training = True
    with torch.no_grad():
        assert 0.001 < float((net(X) - right).norm() / right.norm()) < 0.1
    assert torch.equal(net.eval()(X), right), "evaluation has its own gear"
    box.training = False
    net.train()
    output = net(X)
    assert torch.equal(output, right)
    grads = torch.autograd.grad(output.sum(), list(net.parameters()))
    for one, other in zip(grads, torch.autograd.grad(right.sum(), list(plain.parameters())), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("scaling", ["tensorwise", "rowwise"])
def test_a_conv1d_is_the_linear_layer_of_its_transposed_weight(scaling: str) -> None:
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(0)
    conv: Any = Conv1D(64, 32)  # type: ignore[no-untyped-call]
    linear, box = nn.Linear(32, 64), Box()
    with torch.no_grad():
        linear.weight.copy_(conv.weight.t())
        linear.bias.copy_(conv.bias.normal_())
    plain, names = copy.deepcopy(conv), [(name, p.shape) for name, p in conv.named_parameters()]
    backend = choose_backend("scaled_mm", torch.device("cpu"), scaling)
    held = dict(conv.named_parameters())
    for layer in (conv, linear):
        attach_layer(layer, box, backend)
    x = X.clone().requires_grad_()
    outputs = [layer(x) for layer in (conv, linear)]
    assert torch.equal(*outputs) and not torch.equal(outputs[0], plain(x))
    grads = [
        torch.autograd.grad(y.square().sum(), (x, layer.weight, layer.bias))
        for y, layer in zip(outputs, (conv, linear), strict=True)
    ]
    assert torch.equal(grads[0][0], grads[1][0]) and torch.equal(grads[0][2], grads[1][2])
    assert torch.equal(grads[0][1], grads[1][1].t())
    box.training = False
    assert torch.equal(conv(x), plain(x)), "in its other gears it is transformers' own"
    assert [(name, p.shape) for name, p in conv.named_parameters()] == names
    assert all(dict(conv.named_parameters())[name] is p for name, p in held.items())
    box.training = True
    blob = pickle.dumps(conv)
    for clone in (copy.deepcopy(conv), pickle.loads(blob)):
        assert type(clone) is Conv1D and torch.equal(clone(x), plain(x))
    assert b"greentrain" not in blob
    detach_layer(conv)
    assert type(conv) is Conv1D and torch.equal(conv(x), plain(x)) and not vars(conv).get("_green")


def test_the_bias_is_added_in_the_dtype_of_the_result() -> None:
    net = shifting(Box())
    layer = net[0]
    assert isinstance(layer, nn.Linear)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(X)
        right = fp8_linear(X, layer.weight) + layer.bias.bfloat16()
    assert y.dtype is torch.bfloat16 and torch.equal(y, right)
    assert torch.autograd.grad(y.sum(), layer.bias)[0].dtype is torch.float32


def test_parameters_keys_and_an_older_optimizer_stay() -> None:
    net = model()
    before = dict(net.named_parameters())
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for layer in (net[0], net[2]):
        attach_layer(layer, Box(), BACKEND)
    assert type(net[0]) is GearLinear and isinstance(net[0], nn.Linear)
    assert {name: id(p) for name, p in net.named_parameters()} == {name: id(p) for name, p in before.items()}
    assert list(net.state_dict()) == list(model().state_dict())
    assert [name for name, _ in net.named_modules()] == [name for name, _ in model().named_modules()]
    weight = before["0.weight"].detach().clone()
    torch.autograd.backward(net(X).square().sum())
    optimizer.step()
    assert not torch.equal(before["0.weight"], weight), "the optimizer made before moves the layer that shifts"


def test_state_dicts_go_both_ways() -> None:
    net, plain = shifting(Box()), model()
    with torch.no_grad():
        net[0].weight.mul_(2)  # type: ignore[operator]
    plain.load_state_dict(net.state_dict())
    assert torch.equal(plain[0].weight, net[0].weight)  # type: ignore[arg-type]
    net.load_state_dict(model().state_dict())
    assert torch.equal(net[0].weight, model()[0].weight)  # type: ignore[arg-type]


def test_a_deepcopy_is_plain_and_has_its_own_weights() -> None:
    box = Box()
    net = shifting(box)
    clone = copy.deepcopy(net)
    assert type(clone[0]) is nn.Linear and "_green" not in vars(clone[0])
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    assert torch.equal(clone(X), model()(X)), "the copy runs with its own weights and without the box"
    assert type(net[0]) is GearLinear


def test_a_deepcopy_keeps_hooks_and_ties_within_the_copy() -> None:
    net = nn.ModuleDict({"a": nn.Linear(16, 16), "b": nn.Linear(16, 16)})
    first, second = net["a"], net["b"]
    assert isinstance(first, nn.Linear) and isinstance(second, nn.Linear)
    second.weight = first.weight
    attach_layer(first, Box(), BACKEND)
    first.register_forward_hook(lambda module, args, output: output + 1)
    clone = copy.deepcopy(net)
    assert clone["a"].weight is clone["b"].weight and clone["a"].weight is not first.weight
    assert len(clone["a"]._forward_hooks) == 1


def test_an_ema_model_is_plain_and_averages() -> None:
    net = shifting(Box())
    ema = AveragedModel(net, avg_fn=lambda old, new, count: 0.5 * old + 0.5 * new)
    ema.update_parameters(net)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(1.0)
    ema.update_parameters(net)
    expected = model()
    with torch.no_grad():
        for parameter in expected.parameters():
            parameter.add_(0.5)
    assert torch.allclose(ema(X), expected(X), atol=1e-5)
    assert type(ema.module[0]) is nn.Linear  # type: ignore[index]


@pytest.mark.parametrize("protocol", [0, 2, pickle.HIGHEST_PROTOCOL])
def test_a_pickle_is_plain(protocol: int) -> None:
    blob = pickle.dumps(shifting(Box()), protocol)
    assert b"greentrain" not in blob
    assert torch.equal(pickle.loads(blob)(X), model()(X))


LOAD = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "greentrain":
            raise ImportError("greentrain is blocked")
sys.meta_path.insert(0, Block())
import torch
torch.set_num_threads(1)
net = torch.load(sys.argv[1], weights_only=False)
x, y = torch.load(sys.argv[2])
assert type(net[0]) is torch.nn.Linear and torch.equal(net(x), y)
"""


def test_a_saved_model_loads_and_runs_without_greentrain(tmp_path: Path) -> None:
    torch.save(shifting(Box()), tmp_path / "model.pt")
    torch.save((X, model()(X).detach()), tmp_path / "xy.pt")
    command = [sys.executable, "-c", LOAD, str(tmp_path / "model.pt"), str(tmp_path / "xy.pt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_detached_it_is_plain_again_and_a_method_held_before_still_works() -> None:
    net = shifting(Box())
    layer = net[0]
    assert isinstance(layer, nn.Linear)
    held = layer.forward  # as accelerate's hooks keep it
    for _ in range(2):
        detach_layer(layer)
        assert type(layer) is nn.Linear and "_green" not in vars(layer)
    assert torch.equal(held(X), layer(X)) and torch.equal(held(X), model()[0](X))


def test_a_class_that_a_framework_derived_stays_when_the_gear_goes() -> None:
    layer = nn.Linear(32, 16)
    attach_layer(layer, Box(), BACKEND)
    derived = type("FSDPGearLinear", (GearLinear,), {})
    layer.__class__ = derived
    clone = copy.deepcopy(layer)
    assert type(clone) is derived and torch.equal(clone(X), nn.functional.linear(X, layer.weight, layer.bias))
    detach_layer(layer)
    assert type(layer) is derived and torch.equal(layer(X), clone(X))


def test_only_a_plain_layer_can_shift() -> None:
    layer = nn.Linear(32, 16)
    attach_layer(layer, Box(), BACKEND)
    with pytest.raises(TypeError, match="this is a GearLinear"):
        attach_layer(layer, Box(), BACKEND)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # dynamo does so, torch 2.13
def test_compiled_whole_there_is_one_graph_a_gear() -> None:
    torch._dynamo.reset()
    box, counter = Box(training=False), CompileCounter()
    net, eager = shifting(box), shifting(box)
    compiled = torch.compile(net, backend=counter, fullgraph=True)
    for fp8 in (False, True, False, True):
        box.training = fp8
        assert torch.equal(compiled(X), eager(X))
    assert counter.frame_count == 2
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # dynamo does so, torch 2.13
def test_a_compiled_conv1d_is_one_graph_a_gear() -> None:
    from transformers.pytorch_utils import Conv1D

    torch._dynamo.reset()
    box, counter = Box(training=False), CompileCounter()
    conv = Conv1D(64, 32)  # type: ignore[no-untyped-call]
    attach_layer(conv, box, BACKEND)
    compiled = torch.compile(conv, backend=counter, fullgraph=True)
    for fp8 in (False, True, False, True):
        box.training = fp8
        assert torch.equal(compiled(X), conv(X))
    assert counter.frame_count == 2
    torch._dynamo.reset()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, inside its compiler
@pytest.mark.parametrize("scaling", ["tensorwise", "rowwise"])
def test_inductor_gives_the_numbers_of_eager(scaling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    monkeypatch.setenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", "")  # inductor sets it; undone with this test
    torch._dynamo.reset()
    backend = choose_backend("scaled_mm", torch.device("cpu"), scaling)
    assert isinstance(backend, ScaledMm)
    layer = nn.Linear(32, 48)
    attach_layer(layer, Box(), backend)
    leaves: list[Tensor] = [X.clone().requires_grad_(), layer.weight, layer.bias]
    poisoned = X.clone()
    poisoned[1, 2] = float("nan")
    with config.patch(compile_threads=1):
        compiled = torch.compile(layer, fullgraph=True)
        right, y = layer(leaves[0]), compiled(leaves[0])
        grads = torch.autograd.grad(y.square().sum(), leaves)
        assert not bool(compiled(poisoned)[1].isfinite().any())
    torch.testing.assert_close(y, right, rtol=1e-5, atol=1e-5)
    for one, other in zip(grads, torch.autograd.grad(right.square().sum(), leaves), strict=True):
        assert float((one - other).norm() / other.norm()) < 0.02, "a cast may round the other way"
    torch._dynamo.reset()


def test_an_untouched_layer_saves_as_before() -> None:
    buffer = io.BytesIO()
    torch.save(model(), buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=False)(X), model()(X))
