"""Published figures: what is refuted is recomputed here, and nothing of them is used."""

from pathlib import Path

import pytest

from benchmarks.published_claims import IMPOSSIBLE, NOT_REPRODUCED, OF_ITS_OWN, Claim, check, claims, published_figures

ALL = claims()
REFUTED = [claim for claim in ALL if claim.status == "refuted"]


def test_each_claim_has_a_status_and_a_name_of_its_own() -> None:
    assert {claim.status for claim in ALL} == {"refuted", "unverified"}
    assert len({claim.id for claim in ALL}) == len(ALL)


@pytest.mark.parametrize("claim", REFUTED, ids=lambda claim: claim.id)
def test_a_refuted_claim_is_beyond_its_bound(claim: Claim) -> None:
    found = check(claim)
    assert found is not None
    if claim.terms["kind"] in OF_ITS_OWN:
        assert abs(found.over - 1) > 0.05, "the paper's own figures give it"
    else:
        assert found.over > 1.3
        assert found.over == pytest.approx(claim.terms["over"], rel=0.02)


@pytest.mark.parametrize("claim", [c for c in ALL if c.status == "unverified"], ids=lambda claim: claim.id)
def test_an_unverified_claim_says_why(claim: Claim) -> None:
    assert check(claim) is None
    assert claim.terms["note"]


def test_142_tokens_a_millisecond_by_hand() -> None:
    """14.09 GFLOP a token x 142,000 tokens/s against 9,024 slices x 2 products x 2 x 250 MHz."""
    (claim,) = (c for c in ALL if c.id == "int8-throughput")
    found = check(claim)
    assert found is not None
    assert 2 * found.needed / 1e12 == pytest.approx(14.093e9 * 142e3 / 1e12, rel=1e-3)
    assert 2 * found.bound == 9024 * 2 * 2 * 250e6


def test_78_percent_by_hand() -> None:
    (claim,) = (c for c in ALL if c.id == "energy-cut")
    found = check(claim)
    assert found is not None and found.bound == pytest.approx(78.4, abs=0.05)


def test_nothing_that_is_installed_reads_the_claims() -> None:
    root = Path(__file__).resolve().parents[2]
    for folder in ("greentrain", "fpga_backend", "callbacks", "optim", "recipes"):
        for path in (root / folder).rglob("*.py"):
            assert "published_claims" not in path.read_text(encoding="utf-8"), path


def test_headlines_are_not_reproduced_and_speeds_beyond_the_card_are_impossible() -> None:
    found = {figure.said: figure for figure in published_figures()}
    assert {found[said].verdict for said in ("4.9x", "38.4 %", "14.6x")} == {NOT_REPRODUCED}
    speed = found["142 tokens/ms for an 8B reward model in INT8 on one U55C"]
    assert speed.verdict == IMPOSSIBLE and "222 times more" in speed.why
