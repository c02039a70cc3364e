"""The forms as formulas: what they do to one step, which names exist, and who gets his numbers back."""

import contextlib
from typing import Any

import pytest
import torch

from greentrain.errors import ConfigError, GreenTrainWarning
from greentrain.optim.forms import PAPER_GAMMA, Form, Gamma, TemporaryParamGroups, rescaled

LR, EPS, DECAY = 1e-3, 1e-8, 0.1


def _step(
    form: Form, gamma: float, *, m: float, root: float, theta: float = 0.0, lr: float = LR, eps: float = EPS
) -> float:
    """Return the change of theta in a stock step with the numbers of a form."""
    eta, small, decay = form.numbers(lr, eps, DECAY, gamma)
    return -eta * decay * theta - eta * m / (root + small)


@pytest.mark.parametrize("root", [1.0, 1e-8, 0.0])
def test_decelerate_multiplies_the_root_by_gamma(root: float) -> None:
    assert _step(Form.DECELERATE, 4.0, m=0.3, root=root) == pytest.approx(-LR * 0.3 / (4 * root + EPS), rel=1e-14)
    assert _step(Form.DECELERATE, 4.0, m=0.0, root=root, theta=2.0) == pytest.approx(-LR * DECAY * 2.0, rel=1e-14)


def test_scale_divides_step_and_decay_by_gamma() -> None:
    whole = _step(Form.SCALE, 1.0, m=0.3, root=0.5, theta=2.0)
    assert _step(Form.SCALE, 4.0, m=0.3, root=0.5, theta=2.0) == pytest.approx(whole / 4, rel=1e-14)
    assert Form.SCALE.numbers(LR, EPS, DECAY, 4.0)[1:] == (EPS, DECAY)


def test_the_printed_formula_accelerates_by_gamma_and_grows_the_weights() -> None:
    plain = _step(Form.DECELERATE, 1.0, m=0.3, root=1.0)
    assert _step(Form.LITERAL, PAPER_GAMMA, m=0.3, root=1.0) == pytest.approx(4 * plain, rel=1e-7)
    assert _step(Form.LITERAL, PAPER_GAMMA, m=0.3, root=0.0) == pytest.approx(plain / EPS, rel=1e-7)
    assert _step(Form.LITERAL, PAPER_GAMMA, m=0.0, root=1.0, theta=2.0) == pytest.approx(DECAY * 2.0, rel=1e-14)


def test_the_printed_formula_is_not_adamw_even_at_gamma_one() -> None:
    assert not Form.LITERAL.leaves_alone(1.0)
    assert Form.DECELERATE.leaves_alone(1.0) and Form.SCALE.leaves_alone(1.0)
    assert not Form.DECELERATE.leaves_alone(1.0 + 1e-15)


def test_the_printed_formula_survives_a_warm_up_from_zero() -> None:
    assert Form.LITERAL.numbers(0.0, EPS, DECAY, 4.0) == (0.0, 4 * EPS, 0.0)


def test_l2_decay_is_left_to_the_gradient() -> None:
    assert Form.DECELERATE.numbers(LR, EPS, DECAY, 4.0, decoupled=False) == (LR / 4, EPS / 4, DECAY)


def test_a_tensor_is_not_written_to() -> None:
    lr = torch.tensor(LR)
    for form in Form:
        assert isinstance(form.numbers(lr, EPS, DECAY, 4.0)[0], torch.Tensor)
    assert lr.item() == torch.tensor(LR).item() and lr._version == 0


def test_forms_have_the_names_of_the_configuration() -> None:
    assert [Form.of(name) for name in ("keep", "scale", "paper")] == [Form.DECELERATE, Form.SCALE, Form.LITERAL]
    with pytest.raises(ConfigError, match=r"decay is 'kep'; known: keep, scale, paper. Did you mean 'keep'\?"):
        Form.of("kep")


@pytest.mark.parametrize("gamma", [0.0, -1.0, float("nan"), float("inf")])
def test_gamma_must_be_above_zero(gamma: float) -> None:
    with pytest.raises(ConfigError, match=r"gamma is .*; it must be a finite number above 0"):
        Gamma(gamma)
    asked = Gamma(lambda: gamma)
    with pytest.warns(GreenTrainWarning, match=r"gamma\(\) returned"):
        assert asked() == 1.0
    assert asked() == 1.0  # warned about once


def test_gamma_is_asked_every_time() -> None:
    values = iter([2.0, 3.0])
    asked = Gamma(lambda: next(values))
    assert [asked(), asked()] == [2.0, 3.0]
    assert Gamma(4)() == 4.0
    assert Gamma(0.5)() == Gamma(lambda: 0.5)() == 0.5, "under 1 a step is longer, and that is allowed"


def _group(**more: Any) -> dict[str, Any]:
    return {"lr": LR, "eps": EPS, "weight_decay": DECAY, **more}


def test_a_group_holds_other_numbers_for_the_length_of_a_step() -> None:
    group = _group(betas=(0.9, 0.99))
    for failing in (False, True):
        with contextlib.suppress(ZeroDivisionError), rescaled([group], Form.DECELERATE, 4.0):
            assert group == _group(lr=LR / 4, eps=EPS / 4, weight_decay=DECAY * 4, betas=(0.9, 0.99))
            if failing:
                raise ZeroDivisionError
        assert group == _group(betas=(0.9, 0.99))
    with rescaled([group], Form.DECELERATE, 1.0):
        assert group == _group(betas=(0.9, 0.99))


def test_a_group_that_says_how_it_decays_is_believed_before_its_optimizer() -> None:
    groups = [_group(), _group(decoupled_weight_decay=True), _group(decoupled_weight_decay=False)]
    for decoupled in (True, False):
        loan = TemporaryParamGroups()
        loan.give(groups, Form.DECELERATE, 4.0, decoupled=decoupled)
        assert [group["weight_decay"] / DECAY for group in groups] == [4.0 if decoupled else 1.0, 4.0, 1.0]
        loan.end()


def test_each_group_gets_its_own_numbers_back_but_for_what_was_set_meanwhile() -> None:
    groups, loan = [_group(), _group(lr=1.0)], TemporaryParamGroups()
    assert [loan.own(group) for group in groups] == [{}, {}]
    loan.give(groups, Form.SCALE, 4.0, decoupled=True)
    assert [group["lr"] for group in groups] == [LR / 4, 0.25]
    assert [loan.own(group)["lr"] for group in groups] == [LR, 1.0]
    assert loan.own(dict(groups[0])) == {}, "an equal one is not that one"
    groups[0]["lr"] = 0.5  # by a scheduler of the user
    for _ in range(2):
        loan.end()
        assert groups == [_group(lr=0.5), _group(lr=1.0)]
    assert loan.own(groups[1]) == {}
