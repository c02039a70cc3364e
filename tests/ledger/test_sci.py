import pytest

from greentrain.ledger.sci import sci_scores


def test_scores_of_every_unit() -> None:
    scores = {s.unit: s for s in sci_scores(operational_g=900.0, embodied_g=100.0, tokens=2_000_000, parameters=10_000)}
    assert list(scores) == ["training token", "parameter", "FLOP"]
    assert scores["training token"].g_per_unit == pytest.approx(1000 / 2e6)
    assert scores["parameter"].g_per_unit == pytest.approx(0.1)
    assert scores["FLOP"].g_per_unit == pytest.approx(1000 / (6 * 1e4 * 2e6))
    assert scores["FLOP"].method.endswith("FLOP = 6ND")
    assert all(s.complete and "ISO/IEC 21031:2024" in s.method for s in scores.values())


def test_example_of_the_specification() -> None:
    # SCI for AI: 200 t over 5e22 FLOP is 4 g per 1e15 FLOP
    tokens = 10**12
    parameters = round(5e22 / 6 / tokens)
    (score,) = [
        s
        for s in sci_scores(operational_g=2e8, embodied_g=0.0, tokens=tokens, parameters=parameters)
        if s.unit == "FLOP"
    ]
    assert score.g_per_unit * 1e15 == pytest.approx(4.0, rel=1e-6)


def test_units_that_are_not_known_are_left_out() -> None:
    assert sci_scores(operational_g=1.0, embodied_g=1.0) == []
    (score,) = sci_scores(operational_g=1.0, embodied_g=None, tokens=1)
    assert (score.unit, score.g_per_unit) == ("training token", 1.0), "what is not known of M adds nothing"
    both = sci_scores(operational_g=1.0, embodied_g=1.0, tokens=1, parameters=1)
    assert [score.unit for score in both] == ["training token", "parameter", "FLOP"]
    assert [s.unit for s in sci_scores(operational_g=1.0, embodied_g=1.0, parameters=5)] == ["parameter"]


@pytest.mark.parametrize(
    ("embodied_g", "unpriced_j", "missing_s"), [(None, 0.0, 0.0), (1.0, 0.5, 0.0), (1.0, 0.0, 0.5)]
)
def test_incomplete_knowledge_is_said(embodied_g: float | None, unpriced_j: float, missing_s: float) -> None:
    (score,) = sci_scores(
        operational_g=9.0, embodied_g=embodied_g, tokens=10, unpriced_j=unpriced_j, missing_s=missing_s
    )
    assert not score.complete
    assert score.to_dict()["embodied_g"] == embodied_g
