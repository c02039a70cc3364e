"""One model, four gears: what attach changes, and what it leaves alone."""

import contextlib
import copy
import gc
import inspect
import io
import logging
import pickle
import subprocess
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from greentrain.config.schema import PrecisionConfig
from greentrain.control.precision import gearbox
from greentrain.control.precision.gearbox import (
    LIMIT,
    LOGGER,
    GearBox,
    RecompileWatch,
    _to_fp32,
    check_gears,
    unwrap,
)
from greentrain.control.precision.layers import GearLinear, attach_layer
from greentrain.errors import ConfigError, GreenTrainWarning
from greentrain.types import Gear

WIDTH = 32


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.norm = nn.LayerNorm(2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        """Say something."""
        hidden = self.norm(torch.relu(self.up(x)))
        return {"y": scale * self.down(hidden), "dtype": torch.tensor([self.up(x).dtype is torch.bfloat16])}


def box(*gears: str, **more: object) -> GearBox:
    return GearBox(PrecisionConfig(gears=gears or ("fp32", "bf16", "fp8"), min_features=16, **more))  # type: ignore[arg-type]


X = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1))


def test_parameters_keys_and_identity_stay() -> None:
    net = Net()
    before = dict(net.named_parameters())
    keys = list(net.state_dict())
    gears = box()
    gears.attach(net)
    assert {k: id(v) for k, v in net.named_parameters()} == {k: id(v) for k, v in before.items()}
    assert list(net.state_dict()) == keys
    assert isinstance(net, Net) and type(net).__name__ == "Net" and isinstance(net.up, GearLinear)
    gears.detach()
    assert type(net) is Net and type(net.up) is nn.Linear and list(vars(net)) == list(vars(Net()))


def test_fp32_is_bit_exact_before_between_and_after() -> None:
    net, gears = Net(), box()
    plain = net(X)["y"]
    gears.attach(net)
    assert torch.equal(net(X)["y"], plain)
    for gear in ("fp8", "fp32"):
        gears.request(gear)
        assert gears.commit()
        y = net(X)["y"]
        assert y.dtype is torch.float32
        assert torch.equal(y, plain) is (gear == "fp32")
        assert (y - plain).norm() / plain.norm() < 0.1
    gears.detach()
    assert torch.equal(net(X)["y"], plain)


def test_bf16_is_autocast() -> None:
    net, gears = Net(), box("bf16")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = net(X)["y"]
    gears.attach(net)
    assert torch.equal(net(X)["y"], plain.float())
    assert net(X)["dtype"].item()


def test_a_request_waits_for_commit() -> None:
    net, gears = Net(), box()
    gears.attach(net)
    gears.request("fp8")
    assert str(gears.gear) == "fp32"
    assert gears.commit() and str(gears.gear) == "fp8"
    assert not gears.commit()
    gears.request("fp8")
    assert not gears.commit()
    with pytest.raises(ConfigError, match="'fp16' is not among"):
        gears.request("fp16")


def test_evaluation_has_its_own_gear() -> None:
    net, gears = Net(), box("fp8", "bf16")
    gears.attach(net)
    trained = net(X)["y"]
    net.eval()
    evaluated = net(X)["y"]
    assert not torch.equal(trained, evaluated)
    gears.request("bf16")
    gears.commit()
    net.train()
    assert torch.equal(net(X)["y"], evaluated)
    assert GearBox(PrecisionConfig(gears=("fp8", "bf16"), eval_gear="fp8")).eval_gear is Gear.FP8
    assert GearBox(PrecisionConfig(gears=("fp8", "fp32"))).eval_gear is Gear.FP32


def test_copies_and_pickles_are_plain_and_have_their_own_weights() -> None:
    net, gears = Net(), box("fp8", "bf16")
    gears.attach(net)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), torch.load(file, weights_only=False)):
        assert type(other) is Net and type(other.up) is nn.Linear
        assert all(a is not b and torch.equal(a, b) for a, b in zip(other.parameters(), net.parameters(), strict=True))
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
        assert other(X)["y"].abs().sum() == 0
    assert net(X)["y"].abs().sum() > 0


def test_an_averaged_model_follows_the_weights() -> None:
    net, gears = Net(), box("bf16", "fp8")
    gears.attach(net)
    average = torch.optim.swa_utils.AveragedModel(net)
    average.update_parameters(net)
    with torch.no_grad():
        net.up.weight.add_(1.0)
    average.update_parameters(net)
    (weight, *_), (averaged, *_) = net.parameters(), average.parameters()
    assert torch.allclose(weight - averaged, torch.tensor(0.5))
    assert average(X)["y"].shape == (8, WIDTH)


def test_a_pickled_module_loads_without_greentrain(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    gears = box("fp8", "bf16")
    gears.attach(net)
    torch.save(net, tmp_path / "net.pt")
    code = (
        "import sys, torch\n"
        "sys.modules['greentrain'] = None\n"
        f"net = torch.load({str(tmp_path / 'net.pt')!r}, weights_only=False)\n"
        "print(type(net).__name__, type(net[0]).__name__, tuple(net(torch.ones(2, 32)).shape))\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert out.stdout.strip() == "Sequential Linear (2, 32)"


def test_the_signature_and_docstring_stay_for_frameworks_that_look() -> None:
    import inspect

    net, plain = Net(), inspect.signature(Net().forward)
    box().attach(net)
    assert inspect.signature(net.forward) == plain
    assert net.forward.__doc__ == "Say something."


@pytest.mark.parametrize("outer", [torch.bfloat16, torch.float16])
def test_nested_in_a_frameworks_autocast_the_gear_wins(outer: torch.dtype) -> None:
    net, gears = Net(), box("fp32", "bf16", "fp16")
    gears.attach(net)
    for gear in gears.gears:
        gears.request(gear)
        gears.commit()
        alone = net(X)["y"]
        with torch.autocast("cpu", dtype=outer):
            net.up(X)  # the outer region has cast this weight already, and keeps the cast
            assert torch.equal(net(X)["y"], alone)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing_recomputes_in_the_same_gear(use_reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    class Saving(Net):
        def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
            hidden = checkpoint(self.up, x, use_reentrant=use_reentrant)
            return {"y": self.down(self.norm(torch.relu(hidden)))}

    grads = []
    for net in (Net(), Saving()):
        gears = box("fp8", "bf16")
        gears.attach(net)
        x = X.clone().requires_grad_()
        net(x)["y"].sum().backward()
        grads.append([p.grad for p in net.parameters()] + [x.grad])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_in_a_gear_for_a_while() -> None:
    net, gears = Net(), box("bf16", "fp8")
    gears.attach(net)
    with pytest.raises(ZeroDivisionError), gears.at(Gear.FP8):
        assert gears.runs_fp8(training=True)
        raise ZeroDivisionError
    assert gears.gear is Gear.BF16


def test_the_gear_survives_a_checkpoint() -> None:
    gears, other = box("bf16", "fp8"), box("bf16", "fp8")
    gears.request("fp8")
    gears.commit()
    other.load_state_dict(gears.state_dict())
    assert other.gear is Gear.FP8
    other.load_state_dict({"gear": "fp32"})
    assert other.gear is Gear.FP8


def test_a_remedy_is_named_where_it_helps() -> None:
    box, model = GearBox(PrecisionConfig(gears=("bf16", "fp8"))), nn.Sequential(nn.Linear(16, 32), nn.Conv2d(3, 8, 3))
    with pytest.raises(
        ConfigError, match=r"0: 16 inputs .*1: Conv2d .*: lower precision.min_features, or drop fp8 from"
    ):
        box.attach(model)


@pytest.mark.parametrize(
    ("model", "gears", "words"),
    [
        (nn.Sequential(nn.Linear(15, 32)), ("bf16", "fp8"), ["no layer of Sequential", "15", "multiples of 16): drop"]),
        (
            nn.Sequential(nn.Conv2d(128, 128, 3)),
            ("fp8",),
            ["0: Conv2d holds weight, bias itself", "Conv1D and experts): drop fp8"],
        ),
        (nn.Sequential(nn.ReLU()), ("fp8",), ["it has no parameters"]),
        (Net().to(torch.bfloat16), ("bf16", "fp32"), ["fp32", "up.weight is stored in bfloat16", "load the model in"]),
        (Net().half(), ("bf16",), ["bf16", "float16"]),
    ],
)
def test_what_cannot_work_is_refused(model: nn.Module, gears: tuple[str, ...], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        box(*gears).attach(model)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert not any(isinstance(module, GearLinear) for module in model.modules())


def test_bf16_weights_may_shift_between_bf16_and_fp8() -> None:
    net, gears = Net().to(torch.bfloat16), box("bf16", "fp8")
    gears.attach(net)
    gears.request("fp8")
    gears.commit()
    net(X.bfloat16())["y"].sum().backward()
    assert net.up.weight.grad is not None and net.up.weight.grad.dtype is torch.bfloat16


def test_deepspeed_that_keeps_half_weights_is_refused() -> None:
    class DeepSpeedEngine(nn.Module):
        def __init__(self, half: bool) -> None:
            super().__init__()
            self.module, self.half_weights = Net(), half

        def bfloat16_enabled(self) -> bool:
            return self.half_weights

        def fp16_enabled(self) -> bool:
            return False

    with pytest.raises(ConfigError, match="DeepSpeed keeps the weights in bfloat16; turn its bf16"):
        box("fp32", "bf16").attach(DeepSpeedEngine(True))
    engine = DeepSpeedEngine(False)
    gears = box("fp32", "bf16")
    gears.attach(engine)
    assert gears.model is engine.module


def test_torchscript_is_refused() -> None:
    with pytest.raises(ConfigError, match="TorchScript"), pytest.warns(DeprecationWarning):
        box("bf16").attach(torch.jit.trace(nn.Linear(WIDTH, WIDTH), X))  # type: ignore[no-untyped-call]


# -- dynamo's limit ----------------------------------------------------------------------------------------------


@pytest.fixture
def dynamo(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Dynamo as it is once something has loaded it: its limit is all that is looked at."""
    gc.collect()  # models of other tests that went with their gears on
    loaded = types.SimpleNamespace(config=types.SimpleNamespace(recompile_limit=8))
    monkeypatch.setitem(sys.modules, "torch._dynamo", loaded)
    return loaded.config


def test_several_gears_raise_the_number_of_graphs_that_dynamo_keeps_and_put_it_back(dynamo: Any) -> None:
    told = logging.getLogger(LOGGER)
    before = list(told.handlers)
    alone, gears = RecompileWatch(1), RecompileWatch(2)
    alone.prepare()
    assert dynamo.recompile_limit == 8 and told.handlers == before, "one gear is one graph, as without us"
    gears.prepare()
    gears.prepare()
    assert dynamo.recompile_limit == LIMIT and len(told.handlers) == len(before) + 1
    gears.stop()
    gears.stop()
    assert dynamo.recompile_limit == 8 and told.handlers == before


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_limit_stays_until_the_last_of_several_models_goes(dynamo: Any, order: tuple[int, ...]) -> None:
    watches = [RecompileWatch(2) for _ in range(3)]
    for watch in watches:
        watch.prepare()
    for index in order:
        assert dynamo.recompile_limit == LIMIT, "another session's model still needs it"
        watches[index].stop()
    assert dynamo.recompile_limit == 8


def test_a_model_that_is_compiled_after_it_has_its_gears_raises_the_limit_at_its_next_step(
    dynamo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = sys.modules["torch._dynamo"]
    monkeypatch.delitem(sys.modules, "torch._dynamo")
    gears = box("bf16", "fp32")
    gears.attach(nn.Linear(WIDTH, WIDTH))
    monkeypatch.setitem(sys.modules, "torch._dynamo", loaded)
    assert dynamo.recompile_limit == 8
    gears.commit()
    assert dynamo.recompile_limit == LIMIT
    gears.detach()
    assert dynamo.recompile_limit == 8


@pytest.mark.parametrize("users", [LIMIT, 500])
def test_a_higher_limit_of_the_users_stays(dynamo: Any, users: int) -> None:
    dynamo.recompile_limit = users
    watch = RecompileWatch(3)
    watch.prepare()
    assert dynamo.recompile_limit == users
    watch.stop()
    assert dynamo.recompile_limit == users


def test_a_model_that_is_dropped_with_its_gears_on_leaves_no_limit_behind(dynamo: Any) -> None:
    watch = RecompileWatch(2)
    watch.prepare()
    del watch
    gc.collect()
    assert dynamo.recompile_limit == 8


def test_that_dynamo_gave_up_is_told_once_and_nothing_else_is(dynamo: Any) -> None:
    watch, log = RecompileWatch(2), logging.getLogger(LOGGER)
    watch.prepare()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            log.warning("torch._dynamo hit something else")
            log.info("recompile_limit is 64")
        with pytest.warns(GreenTrainWarning, match="hit its limit of 64 graphs and runs the rest uncompiled") as told:
            log.warning("torch._dynamo hit config.recompile_limit (%d)", 64)
            log.warning("torch._dynamo hit config.recompile_limit (%d)", 64)
        assert len(told) == 1
    finally:
        watch.stop()


# -- wrappers ----------------------------------------------------------------------------------------------------


class DistributedDataParallel(nn.Module):
    """Torch's, as far as its name and its child go."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


class FullyShardedDataParallel(DistributedDataParallel):
    """FSDP 1 gathers weights in a dtype of its policy."""

    def __init__(self, module: nn.Module, gathers: torch.dtype | None) -> None:
        super().__init__(module)
        self.mixed_precision = None if gathers is None else types.SimpleNamespace(param_dtype=gathers)


class Sharded(Net):
    """FSDP 2: the class of the module itself knows its state."""

    gathers: torch.dtype | None = None

    def _get_fsdp_state(self) -> Any:
        return types.SimpleNamespace(_mp_policy=types.SimpleNamespace(param_dtype=self.gathers))


def test_the_model_is_found_in_all_its_wrappers_and_a_child_of_that_name_is_none() -> None:
    net = Net()
    assert unwrap(DistributedDataParallel(DistributedDataParallel(net))) is net
    outer = nn.Module()
    outer.module = net
    assert unwrap(outer) is outer, "a model of the user may call its child so"
    compiled = torch.compile(DistributedDataParallel(net), backend="eager")
    assert unwrap(compiled) is net  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gathers", "gears", "refused"),
    [
        (torch.bfloat16, ("bf16", "fp8"), None),
        (torch.bfloat16, ("bf16", "fp32"), "fp32"),
        (torch.float16, ("fp16",), None),
        (torch.float16, ("fp16", "fp8"), "fp8"),
        (torch.float32, ("fp32", "bf16", "fp8"), None),
        (None, ("fp32", "bf16"), None),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_weights_that_are_gathered_in_a_precision_keep_to_it(
    gathers: torch.dtype | None, gears: tuple[str, ...], refused: str | None, version: int
) -> None:
    sharded = Sharded()
    sharded.gathers = gathers
    model = FullyShardedDataParallel(Net(), gathers) if version == 1 else sharded
    wanted = [Gear(gear) for gear in gears]
    if refused is None:
        check_gears(model, wanted, torch.device("cpu"))
        return
    kind = "FullyShardedDataParallel" if version == 1 else "Sharded"
    name = str(gathers).removeprefix("torch.")
    with pytest.raises(ConfigError, match=rf"holds {refused}, which .*: {kind} gathers its weights in {name}; drop"):
        check_gears(model, wanted, torch.device("cpu"))


def test_frozen_half_weights_fix_nothing_and_a_deepspeed_of_fp16_does() -> None:
    net = Net()
    net.norm.half().requires_grad_(False)
    check_gears(net, [Gear.FP32, Gear.BF16], torch.device("cpu"))

    class DeepSpeedEngine(nn.Module):
        module = Net()

        def fp16_enabled(self) -> bool:
            return True

    with pytest.raises(ConfigError, match=r"holds bf16, which .*: DeepSpeed keeps the weights in float16; turn"):
        check_gears(DeepSpeedEngine(), [Gear.FP16, Gear.BF16], torch.device("cpu"))


def test_a_gpu_without_bf16_is_told_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    able = [False]
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: able[0] or including_emulation
    )
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    with pytest.raises(
        ConfigError, match="holds bf16, fp8, mxfp8, nvfp4, which cannot work here: Tesla T4 has no BF16; use fp32 and"
    ):
        check_gears(Net(), list(Gear), torch.device("cuda"))
    check_gears(Net(), [Gear.FP32, Gear.FP16], torch.device("cuda"))
    check_gears(Net(), list(Gear), torch.device("cpu"))
    able[0] = True
    check_gears(Net(), list(Gear), torch.device("cuda"))


# -- one model, one session --------------------------------------------------------------------------------------


def test_a_model_belongs_to_one_session_and_a_session_to_one_model() -> None:
    net, gears = Net(), box("bf16")
    gears.attach(net)
    gears.attach(DistributedDataParallel(net))  # as a framework has wrapped it since
    with pytest.raises(ConfigError, match="shifts the gears of one model already"):
        gears.attach(Net())
    with pytest.raises(ConfigError, match="has the gears of another GreenSession"):
        box("bf16").attach(nn.Sequential(net))
    fp8 = box("bf16", "fp8")
    other = Net()
    fp8.attach(other, wrap_forward=False)
    with pytest.raises(ConfigError, match="has the gears of another GreenSession"):
        box("fp32").attach(other)
    gears.detach()
    gears.detach()
    again = box("bf16")
    again.attach(net)
    assert again.model is net


def _prepared(net: Net) -> Net:
    """Replace a forward as Accelerate does where it trains in mixed precision."""
    original = vars(net)["_original_forward"] = net.forward

    def mixed(self: Net, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu"):
            return original(*args, **kwargs)

    vars(net)["forward"] = types.MethodType(mixed, net)
    return net


def _fused(self: Net, x: Tensor, scale: float = 1.0, *, fused: bool = False) -> dict[str, Tensor]:
    """Stand in place of the forward of one model, as TRL's fused head does, or as a hook of a device map."""
    return {**Net.forward(self, x, scale), "fused": torch.tensor([fused])}


def test_a_forward_that_stands_on_the_model_itself_runs_in_the_gears_and_comes_back() -> None:
    net, gears = Net(), box("bf16", "fp8")
    own = vars(net)["forward"] = types.MethodType(_fused, net)
    gears.attach(net)
    said = net(X, fused=True)
    assert said["dtype"].item() and said["fused"].item() and gears.entered
    assert inspect.signature(net.forward) == inspect.signature(own)
    twin = copy.deepcopy(net)
    assert type(twin) is Net and vars(twin)["forward"].__self__ is twin and not twin(X)["dtype"].item()
    prepared = _prepared(net)
    assert prepared(X, fused=True)["fused"].item()
    gears.detach()
    assert type(net) is Net and prepared(X, fused=True)["fused"].item(), "through what Accelerate keeps of ours"
    gears.attach(net)
    gears.entered = False
    assert prepared(X)["dtype"].item() and gears.entered, "a second training of a model that is prepared"
    gears.detach()
    plain = Net()
    own = vars(plain)["forward"] = types.MethodType(_fused, plain)
    gears.attach(plain)
    gears.detach()
    assert vars(plain)["forward"] is own and type(plain) is Net


def test_a_forward_that_accelerate_has_prepared_is_refused_unless_a_framework_enters_the_context() -> None:
    net = _prepared(Net())
    with pytest.raises(ConfigError, match="the forward of Net was replaced already"):
        box("bf16").attach(net)
    gears = box("bf16")
    gears.attach(net, wrap_forward=False)
    assert type(net) is Net and not gears.entered
    with gears.context("cpu"):
        assert torch.is_autocast_enabled("cpu")
    assert gears.entered, "a training forward has run in the gears"


def test_the_forward_counts_as_entered_in_training_alone_and_anew_for_each_model() -> None:
    net, gears, entered = Net(), box("bf16", "fp8"), list[bool]()
    gears.attach(net)
    for training in (False, True):
        net.train(training)
        net(X)
        entered.append(gears.entered)
    gears.detach()
    gears.attach(Net())
    assert [*entered, gears.entered] == [False, True, False]


def test_a_layer_that_cannot_be_attached_leaves_the_model_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    net, gears = Net(), box("bf16", "fp8")
    calls = []

    def attach(module: nn.Module, *rest: Any) -> None:
        calls.append(module)
        if len(calls) == 2:
            raise MemoryError
        attach_layer(module, *rest)

    monkeypatch.setattr(gearbox, "attach_layer", attach)
    with pytest.raises(MemoryError):
        gears.attach(net)
    assert type(net) is Net and type(net.up) is nn.Linear and gears.model is None


def test_evaluation_runs_in_bf16_where_it_can_else_in_the_most_exact_gear() -> None:
    def usual(*gears: str) -> Gear:
        return GearBox(PrecisionConfig(gears=gears)).eval_gear

    assert usual("fp8", "fp32", "bf16") is Gear.BF16
    assert usual("fp16", "fp8", "fp32") is Gear.FP32 and usual("fp8", "fp16") is Gear.FP16 and usual("fp8") is Gear.FP8
    gears = box("fp32", "fp8", eval_gear="fp8")
    assert gears.runs_fp8(training=False) and not gears.runs_fp8(training=True)


@pytest.mark.parametrize(("native", "usual"), [(True, Gear.BF16), (False, Gear.FP32), (None, Gear.FP32)])
def test_evaluation_is_not_left_to_a_processor_that_emulates_bf16(
    native: bool | None, usual: Gear, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native is None:  # as built without oneDNN
        monkeypatch.setattr(torch.ops, "mkldnn", types.SimpleNamespace())
    else:
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: native)
    gears, told = box("fp32", "bf16"), box("fp32", "bf16", eval_gear="bf16")
    for each, gear in ((gears, usual), (told, Gear.BF16)):
        net = Net()
        each.attach(net)
        assert each.eval_gear is gear
        with each.context("cpu", training=False):
            assert torch.is_autocast_enabled("cpu") is (gear is Gear.BF16)


def test_half_outputs_come_back_as_fp32_wherever_they_are_and_others_as_they_are() -> None:
    ids, half = torch.ones(2, dtype=torch.int64), torch.ones(2, dtype=torch.float16)
    double = torch.ones(2, dtype=torch.float64)
    found = _to_fp32({"a": [half, ids], "b": (half.bfloat16(), "text", double)})
    assert [t.dtype for t in found["a"]] == [torch.float32, torch.int64]
    assert found["b"][0].dtype is torch.float32 and found["b"][1:] == ("text", double) and _to_fp32(ids) is ids
    assert _to_fp32(half).dtype is torch.float32


def test_outputs_stay_as_computed_where_nobody_wants_large_logits_twice() -> None:
    for wanted, dtype in ((True, torch.float32), (False, torch.bfloat16)):
        model = nn.Linear(16, 16)
        box("bf16", fp32_outputs=wanted).attach(model)
        assert model(torch.randn(4, 16)).dtype is dtype


def test_a_compiled_model_on_a_device_is_told_where_fp8_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    class Backend:
        name, reason = "slow", ""

    monkeypatch.setattr(gearbox, "choose_backend", lambda *_: Backend())
    monkeypatch.setattr(gearbox, "slower_compiled", lambda backend, _: f"compiled, FP8 by {backend.name} takes long")
    eager, compiled = Net(), Net()
    compiled._compiled_call_impl = compiled._call_impl
    box("bf16", "fp8").attach(eager, device=torch.device("meta"))
    with pytest.warns(GreenTrainWarning, match=r"FP8 by slow takes long here: drop fp8 .*; training goes on"):
        box("bf16", "fp8").attach(compiled, device=torch.device("meta"))
    box("bf16", "fp8").attach(Net(), device=torch.device("cpu"))


class Repeated(nn.Module):
    """One layer used twelve times, as ALBERT does, behind an embedding that is also the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer = nn.Embedding(96, 64), nn.Linear(64, 64, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for _ in range(12):
            x = x + nn.functional.gelu(self.layer(x))
        return nn.functional.linear(x, self.embed.weight)


def test_tied_weights_are_cast_once_and_a_layer_used_often_keeps_the_gradient_that_a_cache_would_round() -> None:
    class Casts(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten._to_copy.default and args[0].dtype is torch.float32:
                shapes.append(tuple(args[0].shape))
            return func(*args, **(kwargs or {}))

    def gradient(context: Any) -> Tensor:
        with context:
            y = model(ids)
        y.float().square().mean().backward()
        grad, model.layer.weight.grad = model.layer.weight.grad, None
        assert grad is not None
        return grad

    shapes: list[tuple[int, ...]] = []
    torch.manual_seed(0)
    model, ids, gears = Repeated(), torch.randint(96, (48,)), box("bf16")
    right = gradient(contextlib.nullcontext())
    with Casts():  # type: ignore[no-untyped-call]
        ours = gradient(gears.context("cpu"))
    cached = gradient(torch.autocast("cpu", dtype=torch.bfloat16))
    assert shapes.count((96, 64)) == 1 and shapes.count((64, 64)) == 12
    assert (ours - right).norm() < 0.8 * (cached - right).norm()
    shapes.clear()
    once = GearBox(PrecisionConfig(gears=("bf16",), cast_once=True))
    with torch.autocast("cpu", dtype=torch.float16):
        model.layer(torch.randn(3, 64))  # the framework's cache holds the weight in another precision
        with Casts():  # type: ignore[no-untyped-call]
            again = gradient(once.context("cpu"))
    assert shapes.count((64, 64)) == 1 and (again - cached).norm() < 0.02 * cached.norm()
