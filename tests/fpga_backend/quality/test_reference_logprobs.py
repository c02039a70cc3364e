import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greentrain.fpga_backend.quality.logprobs import kl, logprob_shift, penalty_bias

LOGPROBS = st.lists(st.floats(-20, 0), min_size=1, max_size=30)


def test_logprob_shift_by_hand() -> None:
    found = logprob_shift([-1.0, -2.0, -3.0], [-1.0, -2.5, -2.75])
    assert (found.mean, found.most, found.tokens) == (0.25, 0.5, 3)
    assert found.p99 == pytest.approx(0.495)


def test_estimators_by_hand() -> None:
    found = kl([math.log(0.5), math.log(0.5)], [math.log(0.25), math.log(0.75)])  # r = 1/2 and 3/2
    assert found.k1 == pytest.approx((math.log(2) - math.log(1.5)) / 2)
    assert found.k2 == pytest.approx((math.log(2) ** 2 + math.log(1.5) ** 2) / 4)
    assert found.k3 == pytest.approx((-0.5 + math.log(2) + 0.5 - math.log(1.5)) / 2)


def test_estimators_come_to_the_true_divergence() -> None:
    draw = np.random.default_rng(0)
    q, p = draw.dirichlet(np.ones(50)), draw.dirichlet(np.ones(50))
    p = 0.8 * q + 0.2 * p
    tokens = draw.choice(50, 200_000, p=q)
    found = kl(np.log(q[tokens]), np.log(p[tokens]))
    true = float((q * np.log(q / p)).sum())
    assert found.k3 == pytest.approx(true, abs=4 * found.k3_error)
    assert found.k1 == pytest.approx(true, rel=0.05)
    assert found.k3_error < true / 20


@given(LOGPROBS)
def test_a_reference_that_is_the_policy_has_no_divergence(values: list[float]) -> None:
    found = kl(values, values)
    assert (found.k1, found.k2, found.k3) == (0, 0, 0)
    assert logprob_shift(values, values).most == 0


@given(LOGPROBS, st.data())
def test_k2_and_k3_are_never_negative(values: list[float], data: st.DataObject) -> None:
    other = data.draw(st.lists(st.floats(-20, 0), min_size=len(values), max_size=len(values)))
    found = kl(values, other)
    assert found.k2 >= 0 and found.k3 >= 0


def test_small_divergences_do_not_drown_in_rounding() -> None:
    found = kl([-1.0], [-1.0 + 1e-9])
    assert found.k3 == pytest.approx(found.k2, rel=1e-6)


def test_penalty_bias_is_the_difference_of_two_penalties() -> None:
    policy, reference, candidate = [-1.0, -2.0], [-1.1, -2.0], [-1.0, -2.2]
    expected = kl(policy, candidate).k3 - kl(policy, reference).k3
    found = penalty_bias(policy, reference, candidate)
    assert found.mean == pytest.approx(expected) and expected > 0
    changes = [
        kl(policy[i : i + 1], candidate[i : i + 1]).k3 - kl(policy[i : i + 1], reference[i : i + 1]).k3 for i in (0, 1)
    ]
    assert found.error == pytest.approx(abs(changes[0] - changes[1]) / 2)


def test_tokens_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(ValueError, match="no tokens"):
        kl([], [])
    with pytest.raises(ValueError, match="2 scores, the reference has 1"):
        logprob_shift([-1.0], [-1.0, -2.0])
    with pytest.raises(ValueError, match="-inf"):
        kl([-1.0], [-math.inf])
