import math

import pytest

from greentrain.errors import ConfigError
from greentrain.estimate.model_shape import ModelShape
from recipes.estimate.scaling_laws import (
    CHINCHILLA,
    CHINCHILLA_REFITTED,
    DENSE,
    FINE_GRAINED,
    DenseLaw,
    curve,
)

REPORTED = [  # active parameters, tokens, granularity and FLOP of compute-optimal models, arXiv 2402.07871
    (1e8, 4.37e9, 8, 2.95e18),
    (1e9, 28.94e9, 16, 1.93e20),
    (7e9, 137.6e9, 32, 6.46e21),
    (1e12, 7.94e12, 64, 4.97e25),
]


@pytest.mark.parametrize(("active", "tokens", "granularity", "flop"), REPORTED)
def test_flop_of_the_fine_grained_law_are_those_reported(
    active: float, tokens: float, granularity: int, flop: float
) -> None:
    assert FINE_GRAINED.at(active, tokens, granularity).flop == pytest.approx(flop, rel=0.004)


def test_the_parameters_of_the_fine_grained_law_are_the_total_ones() -> None:
    point = FINE_GRAINED.at(7e9, 137.6e9, 32)
    assert point.total_parameters == pytest.approx(43 * 7e9)
    assert point.loss == pytest.approx(2.060, abs=5e-4)  # 2.076 is reported
    assert FINE_GRAINED.loss(7e9, 137.6e9, 32) == pytest.approx(2.536, abs=5e-3)
    assert FINE_GRAINED.at(1e12, 7.94e12, 64).loss == pytest.approx(1.356, abs=5e-4)  # 1.367


def test_what_lies_outside_the_fit_is_named() -> None:
    named = " ".join(FINE_GRAINED.at(1e12, 7.94e12, 64).extrapolated)
    assert "parameters" in named and "tokens" in named and "granularity 64" in named
    assert CHINCHILLA.at(1e9, 2e10).extrapolated == ()
    assert CHINCHILLA.at(7e10, 1.4e12).extrapolated[0] == "parameters 7e+10: the law was fitted to 7e+07 to 1.6e+10"


@pytest.mark.parametrize("law", [CHINCHILLA, CHINCHILLA_REFITTED, DENSE])
def test_the_optimum_spends_the_budget_and_beats_its_neighbours(law: DenseLaw) -> None:
    best = law.best(1e21)
    assert best.flop == pytest.approx(1e21)
    for factor in (0.97, 1.03):
        assert law.loss(best.active_parameters * factor, best.tokens / factor) > best.loss


def test_the_refitted_law_gives_about_twenty_tokens_a_parameter() -> None:
    assert 15 < CHINCHILLA_REFITTED.best(5.76e23).tokens_per_parameter < 30
    assert CHINCHILLA.best(5.76e23).tokens_per_parameter > 50  # a known fault of the printed constants


def test_the_best_mixture_spends_the_budget_and_beats_its_neighbours() -> None:
    best = FINE_GRAINED.best(6.46e21, 32.0)
    assert best.flop == pytest.approx(6.46e21, rel=1e-6)
    assert best.active_parameters == pytest.approx(7e9, rel=0.35)  # the reported optimum
    for factor in (0.9, 1.1):
        other = FINE_GRAINED.at(best.active_parameters * factor, 1.0, 32.0)
        tokens = best.flop / other.flop
        assert FINE_GRAINED.loss(other.total_parameters, tokens, 32.0) > best.loss
    assert FINE_GRAINED.best(1e20).loss <= min(FINE_GRAINED.best(1e20, g).loss for g in (1.0, 4.0, 16.0))


def test_loss_falls_with_compute() -> None:
    for law in (CHINCHILLA, DENSE, FINE_GRAINED):
        losses = [point.loss for point in curve(law, [10.0**e for e in range(18, 26)])]
        assert losses == sorted(losses, reverse=True)
        assert len(set(losses)) == 8


def shape(experts: int = 0) -> ModelShape:
    return ModelShape(
        name="m", layers=8, d_model=512, heads=8, kv_heads=8, head_dim=64, d_ff=0 if experts else 2048, gated=False,
        vocabulary=32000, experts=experts, experts_per_token=8 if experts else 0, d_expert=256 if experts else 0,
        expert_layers=8 if experts else 0,
    )  # fmt: skip


def test_a_shape_gives_its_own_count_to_each_law() -> None:
    dense = shape()
    assert DENSE.of(dense, 1e9).total_parameters == 8 * 12 * 512**2
    assert CHINCHILLA.of(dense, 1e9).total_parameters == dense.total_parameters
    moe = shape(experts=64)
    point = FINE_GRAINED.of(moe, 2e10)
    assert point.total_parameters == moe.total_parameters - moe.embedding_parameters
    assert point.flop == 2e10 * moe.flop_per_token(2048)
    assert any(text.startswith("expansion 8") for text in point.extrapolated)
    with pytest.raises(ConfigError, match="dense models does not hold"):
        DENSE.of(moe, 1e9)
    with pytest.raises(ConfigError, match="is dense"):
        FINE_GRAINED.of(dense, 1e9)


@pytest.mark.parametrize("tokens", [0.0, -1.0, math.nan, math.inf])
def test_impossible_tokens_are_refused(tokens: float) -> None:
    with pytest.raises(ConfigError, match="tokens is"):
        CHINCHILLA.loss(1e9, tokens)
