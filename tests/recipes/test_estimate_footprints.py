"""Footprints of a scaling law's points, and what training in few bits costs by the law of effective parameters."""

import dataclasses
import itertools
import math

import pytest

from greentrain.errors import ConfigError
from greentrain.estimate import hardware
from greentrain.estimate.api import Options, estimate
from greentrain.estimate.carbon import signal_of
from greentrain.estimate.cluster import Cluster
from greentrain.estimate.model_shape import sized
from greentrain.estimate.workload import Workload
from greentrain.types import Gear
from recipes.estimate.footprints import (
    FP8_PRODUCTS,
    Bits,
    as_good,
    effective_share,
    footprint,
    in_few_bits,
)
from recipes.estimate.scaling_laws import DENSE, FINE_GRAINED

HERE = Cluster(device="H100-SXM", count=1, zone="FRA")
POINT = DENSE.best(1e23)
H100 = hardware.find("H100-SXM")


def at(g_per_kwh: float, device: str = "H100-SXM") -> Cluster:
    return Cluster(device=device, count=1, g_per_kwh=g_per_kwh)


def test_a_dense_point_is_what_the_estimate_of_its_model_is() -> None:
    found = footprint(POINT, H100, HERE)
    whole = estimate(
        sized(POINT.active_parameters),
        Workload(tokens=POINT.tokens),
        HERE,
        options=Options(compare_devices=(), compare_zones=()),
    )
    assert found.gpu_hours.mid == pytest.approx(whole.gpu_hours.mid)
    for mine, theirs in (
        (found.operational_g, whole.operational.location_g),
        (found.embodied_g, whole.embodied_g),
        (found.total_g, whole.total_g),
    ):
        assert mine is not None and theirs is not None
        assert (mine.low, mine.mid, mine.high) == pytest.approx((theirs.low, theirs.mid, theirs.high))


def test_a_grid_that_was_looked_up_before_changes_nothing() -> None:
    assert footprint(POINT, H100, HERE, signal=signal_of(HERE)) == footprint(POINT, H100, HERE)


def test_experts_are_estimated_as_such_and_their_routing_takes_hours() -> None:
    point = FINE_GRAINED.best(1e23)
    found = footprint(point, H100, HERE)
    without = 6.0 * point.active_parameters * point.tokens
    assert point.flop > without
    assert found.gpu_hours.mid == pytest.approx(point.flop / (989.4e12 * found.mfu.mid * 3600))
    assert any("mixture of experts" in said.source for said in found.assumptions)


def test_at_the_crossing_half_of_the_carbon_is_embodied() -> None:
    crossing = footprint(POINT, H100, HERE).crossing_g_per_kwh
    assert crossing is not None and crossing.low < crossing.mid < crossing.high
    there = footprint(POINT, H100, at(crossing.mid))
    assert there.embodied_g is not None and there.embodied_share is not None
    assert there.operational_g.mid == pytest.approx(there.embodied_g.mid)
    assert there.embodied_share.mid == pytest.approx(0.5)
    total = there.total_g
    assert total is not None and total.mid == pytest.approx(2 * there.embodied_g.mid)


def test_the_embodied_share_falls_from_all_as_the_grid_gets_dirtier() -> None:
    shares = [footprint(POINT, H100, at(g)).embodied_share for g in (0.0, 20.0, 300.0, 1000.0)]
    assert shares[0] is not None and (shares[0].low, shares[0].high) == (1.0, 1.0)
    for cleaner, dirtier in itertools.pairwise(shares):
        assert cleaner is not None and dirtier is not None
        assert cleaner.low > dirtier.low and cleaner.mid > dirtier.mid and cleaner.high > dirtier.high


def test_unknown_embodied_carbon_stays_unknown() -> None:
    found = footprint(POINT, hardware.find("MI300X"), HERE)
    assert found.embodied_g is None and found.total_g is None
    assert found.embodied_share is None and found.crossing_g_per_kwh is None
    assert any("embodied carbon is not known" in warning for warning in found.warnings)


def test_fp8_takes_the_published_share_of_the_hours() -> None:
    fp8, bf16 = (footprint(POINT, H100, HERE, precision=gear) for gear in (Gear.FP8, Gear.BF16))
    assert bf16.gpu_hours.mid / fp8.gpu_hours.mid == pytest.approx(1.35)
    with pytest.raises(ConfigError, match="has no FP8"):
        footprint(POINT, hardware.find("A100"), HERE, precision=Gear.FP8)


def test_effective_parameters_follow_the_published_law() -> None:
    eight = (1 - math.exp(-8 / 2.6745)) * (1 - math.exp(-8 / 2.2102))
    sixteen = (1 - math.exp(-16 / 2.6745)) * (1 - math.exp(-16 / 2.2102))
    assert effective_share(FP8_PRODUCTS) == pytest.approx(eight / sixteen)
    assert effective_share(FP8_PRODUCTS) == pytest.approx(0.927, abs=5e-4)
    assert effective_share(Bits()) == 1.0
    with_attention = Bits(weights=8.0, activations=8.0, attention=8.0)
    assert effective_share(with_attention) < effective_share(FP8_PRODUCTS)
    assert effective_share(Bits(weights=4.0)) < effective_share(Bits(weights=6.0)) < 1.0
    with pytest.raises(ConfigError, match="weights"):
        Bits(weights=0.0)


def test_fewer_effective_parameters_are_a_smaller_model_for_the_loss() -> None:
    law = in_few_bits(DENSE, 0.8)
    assert law.loss(1e9, 2e10) == pytest.approx(DENSE.loss(0.8e9, 2e10))
    assert law.best(1e22).loss > DENSE.best(1e22).loss
    assert "0.8" in law.source
    assert in_few_bits(DENSE, 1.0).loss(1e9, 2e10) == DENSE.loss(1e9, 2e10)
    for share in (0.0, 1.1):
        with pytest.raises(ConfigError, match="share"):
            in_few_bits(DENSE, share)


@pytest.mark.parametrize("flop", [1e20, 1e24])
def test_the_same_loss_takes_one_over_the_share_of_the_flop(flop: float) -> None:
    point = DENSE.best(flop)
    other = as_good(DENSE, point, 0.7)
    assert other.loss == pytest.approx(point.loss, rel=1e-12)
    assert other.flop == pytest.approx(point.flop / 0.7)
    short = in_few_bits(DENSE, 0.7).best(other.flop * 0.999)
    assert short.loss > point.loss


def test_everything_that_went_in_is_said() -> None:
    found = footprint(POINT, H100, dataclasses.replace(HERE, pue=1.3))
    said = {one.name: one for one in found.assumptions}
    assert {"FLOP of the law", "MFU", "PUE", "intensity", "lifetime", "embodied carbon, device"} <= set(said)
    assert said["PUE"].kind == "given" and found.pue.mid == 1.3
    assert len(said) == len(found.assumptions)
