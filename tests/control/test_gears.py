"""The gears of a session: the noise guard's veto, gamma, shifts by hand, and what a checkpoint carries."""

import sys
import types
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from greentrain.config.schema import GreenConfig
from greentrain.control.gears import GearLoop, Gears, ScriptedPolicy, StaticPolicy, _has_graphs
from greentrain.control.precision.layers import GearLinear, attach_layer
from greentrain.control.precision.noise import Noise, NoiseProbe
from greentrain.errors import ConfigError
from greentrain.optim import PAPER_GAMMA
from greentrain.types import Decision, Gear, Observation


def _gears(told: list[tuple[str, Decision, int]] | None = None, policy: Any = None, **precision: Any) -> Gears:
    config = GreenConfig.load(
        {
            "precision": {"gears": ["bf16", "fp8"], "min_features": 16, "probe_every": 0, **precision},
            "policy": policy or {"name": "static", "gear": "fp8"},
        }
    )
    log = [] if told is None else told
    return Gears(config, lambda before, decision, steps: log.append((str(before), decision, steps)))


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))


def _noise(grad_norm: float, sigma_batch: float | None = 1.0) -> Noise:
    sigma = {Gear.BF16: 0.1, Gear.FP8: 1.0}
    return Noise(step=1, sigma=sigma, sigma_batch=sigma_batch, grad_norm=grad_norm, cost_s=0.0)


class Probe:
    """Finds what it is told."""

    problem = ""

    def __init__(self, found: list[Noise | None]) -> None:
        self.found = found

    def step(self, steps: int) -> Noise | None:
        return self.found.pop(0)


def test_fp8_is_left_where_its_noise_drowns_the_gradient_and_comes_back() -> None:
    told: list[tuple[str, Decision, int]] = []
    gears = _gears(told)
    gears.attach(_model(), scaler=None)
    told.clear()
    gears.probe = Probe([None, _noise(1.0), None, _noise(2.0), _noise(5.0)])  # type: ignore[assignment]
    seen = []
    for _ in range(5):
        gears.boundary()
        seen.append(str(gears.box.gear))
    assert seen == ["fp8", "bf16", "bf16", "bf16", "fp8"]
    (before, left, step), (_, back, _) = told
    assert (before, left.gear, step) == ("fp8", Gear.BF16, 2)
    assert "arXiv 2505.19115" in left.reason and back.reason == "static"
    assert gears.metrics() == {
        "green/fp8_share": 0.4,
        "green/gamma": pytest.approx((2 / 1.01) ** 0.5),
        "green/sigma_ratio": pytest.approx(10.0),
    }


@pytest.mark.parametrize(("gamma", "expected"), [("paper", PAPER_GAMMA), (2.5, 2.5), ("measured", 1.41), (1.0, 1.0)])
def test_gamma_is_for_fp8_alone(gamma: float | str, expected: float) -> None:
    gears = _gears(gamma=gamma)
    gears.attach(_model(), scaler=None)
    gears.noise = _noise(5.0)
    assert gears.gamma() == expected
    gears.shift("bf16")
    gears.boundary()
    assert gears.gamma() == 1.0


def test_an_unknown_minibatch_noise_gives_no_gamma() -> None:
    gears = _gears(gamma="measured")
    gears.attach(_model(), scaler=None)
    assert gears.gamma() == 1.0
    gears.noise = _noise(5.0, sigma_batch=None)
    assert gears.gamma() == 1.0


def test_adamw_is_slowed_down_in_fp8_and_only_there() -> None:
    moved = {}
    for gear in ("bf16", "fp8"):
        torch.manual_seed(0)
        model = _model()
        gears = _gears(gamma=4.0, policy={"name": "static", "gear": gear})
        gears.attach(model, scaler=None)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.0)
        gears.bind(optimizer)
        before = torch.cat([p.detach().flatten() for p in model.parameters()])
        model(torch.ones(4, 32)).sum().backward()
        optimizer.step()
        moved[gear] = (torch.cat([p.detach().flatten() for p in model.parameters()]) - before).abs().max().item()
        assert optimizer.param_groups[0]["lr"] == 0.1
        gears.release()
    assert moved["bf16"] == pytest.approx(0.1, rel=1e-3)
    assert moved["fp8"] == pytest.approx(0.025, rel=1e-3)


def test_another_optimizer_is_refused_only_where_gamma_was_asked_for() -> None:
    model = _model()
    for gamma in (2.0, "paper"):
        gears = _gears(gamma=gamma)
        gears.attach(model, scaler=None)
        with pytest.raises(ConfigError, match="SGD"):
            gears.bind(torch.optim.SGD(model.parameters(), lr=0.1))
        gears.detach()
    gears = _gears()
    gears.attach(model, scaler=None)
    gears.bind(torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_shift_by_hand_waits_for_the_step_and_stays() -> None:
    gears = _gears()
    gears.attach(_model(), scaler=None)
    gears.shift("bf16")
    assert str(gears.box.gear) == "fp8"
    for _ in range(3):
        gears.boundary()
        assert str(gears.box.gear) == "bf16"
    with pytest.raises(ConfigError, match="not among"):
        gears.shift("fp32")


def test_a_checkpoint_carries_steps_shares_and_the_guards_mind() -> None:
    gears = _gears(fp8_max_share=0.5)
    gears.attach(_model(), scaler=None)
    gears.probe = Probe([None] * 9 + [_noise(1.0)])  # type: ignore[assignment]
    for _ in range(10):
        gears.boundary()
    gears.probe = None
    other = _gears(fp8_max_share=0.5)
    other.attach(_model(), scaler=None)
    other.load_state_dict(gears.state_dict())
    assert (other.steps, other.done) == (gears.steps, gears.done)
    assert other.metrics()["green/fp8_share"] == 0.5
    assert "under sqrt(3)" in other.vetoes[Gear.FP8] and str(other.box.gear) == "bf16"
    other.probe = Probe([_noise(2.0)])  # type: ignore[assignment]
    other.boundary()
    assert "comes back above" in other.vetoes[Gear.FP8]


def test_a_fault_of_ours_does_not_reach_the_optimizer() -> None:
    model, gears = _model(), _gears()
    gears.attach(model, scaler=None)
    optimizer = torch.optim.AdamW(model.parameters())
    gears.bind(optimizer)

    class Broken:
        problem = ""

        def step(self, steps: int) -> Noise | None:
            raise ZeroDivisionError("a bug of ours")

    gears.probe = Broken()  # type: ignore[assignment]
    model(torch.ones(4, 32)).sum().backward()
    with pytest.warns(UserWarning, match="a bug of ours"):
        optimizer.step()
    gears.release()


def test_an_optimizer_of_another_model_is_found_at_the_first_step() -> None:
    said: list[str] = []
    told: list[tuple[str, Decision, int]] = []
    gears = _gears(told, policy={"name": "scripted", "schedule": [[0, "bf16"], [1, "fp8"]]})
    gears._say_unused = said.append
    geared, trained = _model(), _model()
    gears.attach(geared, scaler=None)
    optimizer = torch.optim.AdamW(trained.parameters())
    gears.bind(optimizer)
    for _ in range(3):
        trained(torch.ones(4, 32)).sum().backward()
        optimizer.step()
    assert len(said) == 1 and "holds no parameter of the Sequential" in said[0]
    assert not told  # a shift that no layer makes is not booked


def test_a_forward_beside_the_gears_is_found_at_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("greentrain.control.gears._has_graphs", lambda: False)  # of other tests of this process
    for bypass in (True, False):
        said: list[str] = []
        gears, model = _gears(), _model()
        gears._say_unused = said.append
        forward = model.forward
        gears.attach(model, scaler=None)
        optimizer = torch.optim.AdamW(model.parameters())
        gears.bind(optimizer)
        (forward if bypass else model)(torch.ones(4, 32)).sum().backward()
        optimizer.step()
        assert ["no training forward" in text for text in said] == ([True] if bypass else [])


def test_a_layer_that_cannot_be_attached_leaves_a_plain_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model, gears = _model(), _gears()
    attached: list[nn.Module] = []

    def attach(layer: nn.Linear, *args: Any) -> None:
        if attached:
            raise RuntimeError("no memory")
        attached.append(layer)
        attach_layer(layer, *args)

    monkeypatch.setattr("greentrain.control.precision.gearbox.attach_layer", attach)
    with pytest.raises(RuntimeError, match="no memory"):
        gears.attach(model, scaler=None)
    assert gears.box.model is None and attached and all(type(layer) is not GearLinear for layer in model.modules())


# -- what a policy wants, and what it gets -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gears", "wanted", "vetoed", "share", "gets"),
    [
        ((Gear.BF16, Gear.FP8), Gear.FP8, (), 1.0, Gear.FP8),
        ((Gear.FP32, Gear.FP8), Gear.FP8, (Gear.FP8,), 1.0, Gear.FP32),  # BF16 is not among them
        ((Gear.FP8, Gear.FP32, Gear.BF16), Gear.FP8, (Gear.FP8,), 1.0, Gear.BF16),  # the gear around FP8's products
        ((Gear.FP8, Gear.FP32, Gear.BF16), Gear.FP8, (Gear.FP8, Gear.BF16), 1.0, Gear.FP32),
        ((Gear.BF16, Gear.FP8), Gear.BF16, (Gear.BF16,), 1.0, Gear.FP8),  # a budget rules out the dearer gear
        ((Gear.BF16, Gear.FP8), Gear.BF16, (Gear.BF16,), 0.0, Gear.BF16),  # and FP8 has no share: as it was wanted
        ((Gear.BF16, Gear.FP8), Gear.BF16, (Gear.BF16, Gear.FP8), 1.0, Gear.BF16),  # nothing is left
        ((Gear.BF16, Gear.FP16), Gear.BF16, (Gear.BF16,), 1.0, Gear.FP16),
        ((Gear.BF16,), Gear.BF16, (Gear.BF16,), 1.0, Gear.BF16),
        ((Gear.BF16, Gear.FP8), Gear.BF16, (), 0.0, Gear.BF16),  # the share of FP8 is nothing to BF16
    ],
)
def test_a_gear_that_is_ruled_out_is_stood_in_for(
    gears: tuple[Gear, ...], wanted: Gear, vetoed: tuple[Gear, ...], share: float, gets: Gear
) -> None:
    loop = GearLoop(StaticPolicy(wanted), gears, share)
    decision = loop.decide(
        Observation(step=0, gear=wanted), dict.fromkeys(gears, 0), dict.fromkeys(vetoed, "ruled out")
    )
    assert decision == Decision(gear=gets, reason="static" if gets is wanted else "ruled out")


@pytest.mark.parametrize(("share", "of_eight"), [(0.5, 4), (0.25, 2), (0.9, 7), (0.0, 0), (1.0, 8)])
def test_fp8_never_has_more_than_its_share_and_all_of_it_in_the_end(share: float, of_eight: int) -> None:
    loop, done = GearLoop(StaticPolicy(Gear.FP8), (Gear.BF16, Gear.FP8), share), {Gear.BF16: 0, Gear.FP8: 0}
    for step in range(8):
        decision = loop.decide(Observation(step=step, gear=Gear.FP8), done, {})
        done[decision.gear] += 1
        assert done[Gear.FP8] <= share * (step + 1)
        assert decision.gear is Gear.FP8 or decision.reason == f"FP8 has had its share of {share:.0%} of the steps"
    assert done[Gear.FP8] == of_eight


def test_a_schedule_holds_from_its_step_on_and_its_first_gear_before() -> None:
    policy = ScriptedPolicy([(2, Gear.BF16), (5, Gear.FP8), (6, Gear.FP32)])
    seen = [policy.decide(Observation(step=step, gear=Gear.BF16)).gear for step in range(8)]
    assert seen == [Gear.BF16] * 5 + [Gear.FP8] + [Gear.FP32] * 2


def test_without_a_gear_by_name_the_policy_takes_the_first() -> None:
    gears = _gears(policy={"name": "static"}, gears=["bf16", "fp8"])
    gears.attach(_model(), scaler=None)
    assert gears.box.gear is Gear.BF16


def test_fp16_wants_a_loss_scaler_and_the_others_do_not() -> None:
    half: dict[str, Any] = {"gears": ["fp16", "fp32"], "policy": {"name": "static", "gear": "fp16"}}
    with pytest.raises(ConfigError, match="holds fp16, whose small gradients vanish without loss scaling"):
        _gears(**half).attach(_model(), scaler=None)
    for gears, scaler in ((_gears(**half), True), (_gears(gears=["bf16", "fp8"]), None)):
        gears.attach(_model(), scaler=scaler)
        assert gears.box.model is not None


# -- optimizers --------------------------------------------------------------------------------------------------


def _step(model: nn.Module, *optimizers: torch.optim.Optimizer) -> list[float]:
    """Take a step and return the learning rates that the kernels saw."""
    rates: list[float] = []
    model(torch.ones(4, 32)).sum().backward()
    for optimizer in optimizers:
        look = optimizer.register_step_pre_hook(lambda one, *_: rates.append(one.param_groups[0]["lr"]))
        optimizer.step()
        look.remove()
    return rates


def test_of_two_optimizers_the_first_counts_and_both_slow_down() -> None:
    model, gears = _model(), _gears(gamma=4.0)
    gears.attach(model, scaler=None)
    optimizers = [torch.optim.AdamW(layer.parameters(), lr=0.1) for layer in (model[0], model[2])]  # type: ignore[index]
    for optimizer in (*optimizers, optimizers[0]):  # a framework may name one twice
        gears.bind(optimizer)
    for _ in range(3):
        assert _step(model, *optimizers) == [0.1 / 4] * 2
    assert gears.steps == 3
    gears.release()
    assert _step(model, *optimizers) == [0.1] * 2 and gears.steps == 3, "nothing is counted or slowed down any more"
    gears.bind(optimizers[1])
    assert _step(model, *optimizers) == [0.1, 0.1 / 4] and gears.steps == 4, "a run that goes on binds again"
    gears.detach()
    assert not any(isinstance(layer, GearLinear) for layer in model.modules())
    assert _step(model, *optimizers) == [0.1] * 2 and gears.steps == 4


def test_an_engine_that_counts_its_own_steps_is_not_counted_twice() -> None:
    model, gears = _model(), _gears()
    gears.attach(model, scaler=None)
    optimizer = torch.optim.AdamW(model.parameters())
    gears.bind(optimizer, counts=False)
    _step(model, optimizer)
    assert gears.steps == 0
    gears.boundary()
    assert gears.steps == 1 and gears.done == {Gear.BF16: 0, Gear.FP8: 1}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, inside its compiler
def test_a_compiled_step_is_counted_and_dynamo_does_not_follow_it_into_the_policy() -> None:
    told: list[tuple[str, Decision, int]] = []
    gears = _gears(told, policy={"name": "scripted", "schedule": [[0, "bf16"], [2, "fp8"]]}, gamma=1.0)
    model = _model()
    gears.attach(model, scaler=None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gears.bind(optimizer)
    torch.compiler.reset()
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(3):
        model(torch.ones(4, 32)).sum().backward()
        step()  # warnings are errors here, and dynamo warns of what it cannot trace
    torch.compiler.reset()
    gears.release()
    assert gears.steps == 3 and [(one[1].gear, one[2]) for one in told] == [(Gear.FP8, 2)]


def test_steps_without_a_model_are_counted_and_nothing_is_said_of_a_model() -> None:
    gears, said = _gears(), list[str]()
    gears._say_unused = said.append
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.AdamW([parameter])
    gears.bind(optimizer)
    parameter.grad = torch.ones(1)
    optimizer.step()
    assert gears.steps == 1 and not said
    gears.release()


def test_an_optimizer_is_left_alone_where_gamma_has_nothing_to_do() -> None:
    for precision in ({"gamma": 1.0}, {"gamma": 4.0, "gears": ["bf16", "fp32"]}):
        model, gears = _model(), _gears(policy={"name": "static", "gear": "bf16"}, **precision)
        gears.attach(model, scaler=None)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # which could not take a gamma
        gears.bind(optimizer)
        _step(model, optimizer)
        assert gears.steps == 1 and gears.gamma() == 1.0


@pytest.mark.parametrize("graded", ["grad", "main_grad", "none of a frozen layer", "no longer"])
def test_an_optimizer_of_copies_or_of_more_than_the_model_is_no_fault(
    graded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("greentrain.control.gears._has_graphs", lambda: False)
    model, gears, said = _model(), _gears(), list[str]()
    gears._say_unused = said.append
    gears.attach(model, scaler=None)
    copies = [nn.Parameter(p.detach().clone()) for p in model.parameters()]  # master weights in FP32, as engines keep
    if graded == "none of a frozen layer":
        model[0].requires_grad_(False)  # type: ignore[index]
    if graded == "no longer":  # a step that is part of backward has used the gradients up
        copies += model.parameters()
    optimizer = torch.optim.AdamW(copies)
    gears.bind(optimizer)
    model(torch.ones(4, 32)).sum().backward()
    for parameter in model.parameters():
        if graded in ("main_grad", "no longer"):
            parameter.grad = None
        if graded == "main_grad":  # Megatron-LM keeps them there
            parameter.main_grad = torch.ones(())  # type: ignore[attr-defined]
    optimizer.step()
    assert not said and gears.steps == 1


@pytest.mark.parametrize("compiled", ["whole", "in place", "a block", "a step", "no"])
def test_what_runs_compiled_cannot_be_seen_and_is_taken_for_used(
    compiled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("greentrain.control.gears._has_graphs", lambda: compiled == "a step")
    model, gears, said = _model(), _gears(), list[str]()
    gears._say_unused = said.append
    gears.attach(model, scaler=None)
    if compiled == "whole":
        gears._outer = torch.compile(model, backend="eager")  # type: ignore[assignment]
    elif compiled in ("in place", "a block"):
        (model if compiled == "in place" else model[0]).compile(backend="eager")  # type: ignore[index]
    optimizer = torch.optim.AdamW(model.parameters())
    gears.bind(optimizer)
    optimizer.step()
    assert ["no training forward" in text for text in said] == ([True] if compiled == "no" else [])


def test_whether_anything_was_compiled_is_read_off_dynamo(monkeypatch: pytest.MonkeyPatch) -> None:
    for frames, found in (({}, False), ({"ok": 1}, True)):
        dynamo = types.SimpleNamespace(counters={"frames": frames})
        monkeypatch.setitem(sys.modules, "torch._dynamo.utils", dynamo)
        assert _has_graphs() is found
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils")
    assert not _has_graphs(), "and is not loaded for it"


@pytest.mark.parametrize(
    ("device", "backend", "compiled", "gears_of_run", "warned"),
    [
        ("cuda", "scaled_mm", False, ("bf16", "fp8"), True),
        ("cuda", "scaled_mm", True, ("bf16", "fp8"), False),
        ("cuda", "transformer_engine", False, ("bf16", "fp8"), False),  # its kernels are its own
        ("cpu", "scaled_mm", False, ("bf16", "fp8"), False),
        ("cuda", "scaled_mm", False, ("bf16", "fp32"), False),
    ],
)
def test_fp8_on_a_gpu_without_compile_is_warned_of(
    device: str, backend: str, compiled: bool, gears_of_run: tuple[str, ...], warned: bool
) -> None:
    model, gears = _model(), _gears(gears=gears_of_run, policy={"name": "static", "gear": "bf16"})
    gears.attach(model, scaler=None)
    place = types.SimpleNamespace(device=types.SimpleNamespace(type=device))
    module = types.SimpleNamespace(_compiled_call_impl=print if compiled else None)
    gears._outer = types.SimpleNamespace(parameters=lambda: iter([place]), modules=lambda: [module])  # type: ignore[assignment]
    if gears.box.backend is not None:
        gears.box.backend = types.SimpleNamespace(name=backend)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gears.bind(torch.optim.AdamW(model.parameters()))
    assert ["slower than BF16 on a GPU" in str(one.message) for one in caught] == [True] * warned


def test_gears_are_checked_again_when_a_framework_has_wrapped_the_model() -> None:
    class FullyShardedDataParallel(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module, self.mixed_precision = module, types.SimpleNamespace(param_dtype=torch.float16)

    model, gears = _model(), _gears()
    gears.check(FullyShardedDataParallel(model))  # nothing has gears yet
    gears.attach(model, scaler=None)
    wrapped = nn.Sequential(model)
    gears.check(wrapped)
    assert gears._outer is wrapped
    with pytest.raises(ConfigError, match="FullyShardedDataParallel gathers its weights in float16"):
        gears.check(FullyShardedDataParallel(model))


# -- the noise probe ---------------------------------------------------------------------------------------------


def test_the_probe_comes_with_the_optimizer_and_its_findings_outlive_it() -> None:
    model = _model()
    gears: Any = _gears(probe_every=300, gamma="measured")
    gears.attach(model, scaler=types.SimpleNamespace(get_scale=lambda: 1024.0))
    before, optimizer = gears.probe, torch.optim.AdamW(model.parameters())
    gears.bind(optimizer)
    probe, recorder = gears.probe, gears.recorder
    assert before is None and isinstance(probe, NoiseProbe) and recorder is not None and probe.next_step == 300
    assert recorder._loss_scale() == 1024.0
    probe.load_state_dict(probe.state_dict() | {"means": {"norm": [4.0, 1.0]}, "step": 7, "cost_s": 0.5})
    gears.noise = probe.noise
    recorder.arm()
    saved = gears.state_dict()["probe"]
    assert saved == probe.state_dict() and saved["step"] == 7
    gears.release()
    released = [gears.probe, gears.recorder]
    assert released == [None, None] and model._compiled_call_impl is None
    assert gears.state_dict()["probe"] == saved
    gears.bind(optimizer)
    again = gears.probe
    assert again is not None and again is not probe and again.state_dict() == saved

    resumed = _gears(probe_every=300)
    resumed.attach(_model(), scaler=None)
    resumed.load_state_dict(gears.state_dict())  # before an optimizer is there, or after
    resumed.bind(torch.optim.AdamW(_model().parameters()))
    late = _gears(probe_every=300)
    late.attach(_model(), scaler=None)
    late.bind(torch.optim.AdamW(_model().parameters()))
    assert late.recorder is not None and late.recorder._loss_scale() == 1.0
    late.load_state_dict(gears.state_dict())
    for one in (resumed, late):
        assert one.probe is not None and one.probe.state_dict() == saved
    assert resumed.noise is not None and resumed.noise.grad_norm == 2.0
    late.load_state_dict({})  # of a run without gears
    assert late.probe is not None and late.probe.state_dict() == saved
    for gear in (gears, resumed, late):
        gear.release()


@pytest.mark.parametrize("precision", [{"probe_every": 0}, {"probe_every": 200, "gears": ["bf16", "fp32"]}])
def test_nothing_is_probed_where_nobody_asks(precision: dict[str, Any]) -> None:
    model, gears = _model(), _gears(policy={"name": "static", "gear": "bf16"}, **precision)
    gears.attach(model, scaler=None)
    gears.bind(torch.optim.AdamW(model.parameters()))
    assert gears.probe is None and gears.recorder is None


def test_a_probe_that_has_ended_is_let_go_of_and_what_it_knew_is_kept() -> None:
    class Ended:
        problem = "no forward and backward pass of the model was seen in 20 steps"

        def step(self, steps: int) -> Noise | None:
            return None

        def state_dict(self) -> dict[str, Any]:
            return {"step": 3}

    gears = _gears()
    gears.attach(_model(), scaler=None)
    gears.noise = found = _noise(5.0)
    gears.probe = Ended()  # type: ignore[assignment]
    gears.boundary()
    assert gears.probe is None and gears.noise is found and gears.state_dict()["probe"] == {"step": 3}
    assert gears.gamma() == 1.41, "what was found goes on to count"


# -- profiling, plans and checkpoints ----------------------------------------------------------------------------


class Phase:
    """Measures FP8 for two steps."""

    gear = Gear.FP8
    steps = 0

    def boundary(self) -> None:
        self.steps += 1

    @property
    def done(self) -> bool:
        return self.steps == 2


def test_profiling_decides_in_place_of_the_policy_until_it_is_done() -> None:
    told: list[tuple[str, Decision, int]] = []
    gears = _gears(told, policy={"name": "static", "gear": "bf16"})
    gears.attach(_model(), scaler=None)
    gears.probe = Probe([])  # type: ignore[assignment]  # it would raise if it were asked
    gears.measure(Phase())  # type: ignore[arg-type]
    assert gears.box.gear is Gear.FP8, "from the coming step on"
    seen = []
    for _ in range(2):
        gears.boundary()
        seen.append(gears.box.gear)
    assert seen == [Gear.FP8, Gear.BF16] and gears.measuring is None
    assert [(one[1].gear, one[1].reason, one[2]) for one in told] == [
        (Gear.FP8, "profiling", 0),
        (Gear.BF16, "static", 2),
    ]
    assert gears.done == {Gear.BF16: 0, Gear.FP8: 2}


def test_where_ranks_may_be_in_different_gears_no_step_counts_for_one_and_adamw_takes_no_notice() -> None:
    gears = _gears(gamma=4.0)
    gears.attach(_model(), scaler=None)
    gears.probe = Probe([])  # type: ignore[assignment]
    gears.box.neutral = True
    gears.boundary()
    assert gears.steps == 1 and not any(gears.done.values()) and gears.gamma() == 1.0
    assert gears.metrics() == {"green/fp8_share": 0.0}
    gears.probe, gears.box.neutral = None, False
    gears.boundary()
    assert gears.gamma() == 4.0 and gears.metrics() == {"green/fp8_share": 1.0}


def test_nothing_is_told_to_a_logger_that_is_not_known() -> None:
    gears, precise = _gears(), _gears(gears=["bf16", "fp32"], policy={"name": "static", "gear": "bf16"})
    for one in (gears, precise):
        one.attach(_model(), scaler=None)
        assert one.metrics() == {}
    precise.boundary()
    assert precise.metrics() == {}
    gears.noise = Noise(step=1, sigma={Gear.FP8: 1.0}, sigma_batch=None, grad_norm=1.0, cost_s=0.0)
    assert gears.metrics() == {"green/gamma": 1.0}


def test_a_plan_shifts_at_once_and_its_reason_is_told() -> None:
    told: list[tuple[str, Decision, int]] = []
    gears = _gears(told)
    gears.attach(_model(), scaler=None)
    gears.boundary()
    told.clear()
    gears.follow(Gear.BF16, "the grid is clean")
    assert gears.box.gear is Gear.BF16 and told == [("fp8", Decision(gear=Gear.BF16, reason="the grid is clean"), 1)]
    gears.boundary()
    assert gears.box.gear is Gear.BF16 and len(told) == 1


def test_prewarming_runs_once_in_each_gear() -> None:
    gears, seen = _gears(gears=["bf16", "fp8", "fp32"]), list[Gear]()
    gears.attach(_model(), scaler=None)
    gears.prewarm(lambda: seen.append(gears.box.gear))
    assert seen == [Gear.BF16, Gear.FP8, Gear.FP32] and gears.box.gear is Gear.FP8


def test_a_resumed_run_is_in_its_gear_without_a_shift_and_an_older_checkpoint_counts_from_nothing() -> None:
    policy = {"name": "scripted", "schedule": [[0, "bf16"], [5, "fp8"]]}
    told: list[tuple[str, Decision, int]] = []
    first: Any = _gears(policy=policy)
    other: Any = _gears(told, policy=policy)
    for gears in (first, other):
        gears.attach(_model(), scaler=None)
    for _ in range(7):
        first.boundary()
    assert first.done == {Gear.BF16: 5, Gear.FP8: 2}
    told.clear()
    other.load_state_dict(first.state_dict())
    assert str(other.box.gear) == "fp8" and other.done == first.done and not told, "it has not shifted: it goes on"
    other.load_state_dict({})
    assert other.steps == 0 and not any(other.done.values()) and str(other.box.gear) == "bf16"


def test_a_new_run_knows_nothing_of_the_one_before() -> None:
    policy = {"name": "scripted", "schedule": [[0, "fp8"], [2, "bf16"]]}
    gears: Any = _gears(policy=policy)
    gears.attach(_model(), scaler=None)
    gears.probe = Probe([_noise(1.0), None, None])
    for _ in range(3):
        gears.boundary()
    gears.probe, gears.box.neutral, gears._saved = None, True, {"step": 3}
    assert gears.vetoes and str(gears.box.gear) == "bf16"
    gears.restart()
    assert str(gears.box.gear) == "fp8" and (gears.steps, gears.noise, gears.vetoes) == (0, None, {})
    assert not gears.box.neutral and not any(gears.done.values()) and gears.state_dict()["probe"] == {}
    gears.probe = Probe([_noise(2.0)])  # over sqrt(3), under where FP8 would come back
    gears.boundary()
    assert not gears.vetoes, "nor has it left FP8"


def test_a_run_that_starts_after_a_warm_up_of_the_users_measures_noise_from_its_own_first_step() -> None:
    model, gears = _model(), _gears(probe_every=300)
    gears.attach(model, scaler=None)
    gears.bind(torch.optim.AdamW(model.parameters()))
    assert gears.probe is not None
    fresh = gears.probe.state_dict()
    gears.probe.load_state_dict(fresh | {"next_step": 900, "means": {"norm": [4.0, 1.0]}, "step": 600, "cost_s": 0.5})
    gears.steps = 700
    gears.restart()
    assert gears.probe.state_dict() == fresh and gears.probe.noise is None and gears.probe.next_step == 300
    gears.release()


def test_run_json_says_which_layers_run_in_fp8_and_why_the_others_do_not() -> None:
    gears, precise = _gears(), _gears(gears=["bf16"], policy={"name": "static", "gear": "bf16"})
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 8))
    gears.attach(model, scaler=None)
    precise.attach(_model(), scaler=None)
    said = gears.describe()
    assert said["gear_backend"].startswith("scaled_mm: torch.nn.functional.scaled_mm of torch ")
    assert [(layer["name"], layer["chosen"]) for layer in said["layers"]] == [("0", True), ("1", False)]
    assert set(said["layers"][0]) == {"name", "in_features", "out_features", "parameters", "chosen", "reason"}
    assert said["layers"][1]["reason"] == "32 inputs and 8 outputs are not both multiples of 16"
    assert precise.describe() == {"gear_backend": "", "layers": []}
