"""The gears of a session: the noise guard's veto, gamma, shifts by hand, and what a checkpoint carries."""

from typing import Any

import pytest
import torch
from torch import nn

from greentrain.config.schema import GreenConfig
from greentrain.control.gears import Gears
from greentrain.control.precision.layers import GearLinear, attach_layer
from greentrain.control.precision.noise import Noise
from greentrain.errors import ConfigError
from greentrain.optim import PAPER_GAMMA
from greentrain.types import Decision, Gear


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
