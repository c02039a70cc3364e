"""The tracker finds the ticks of a counter that is read at unrelated times."""

import random

import pytest

from greentrain.power.sampler import VERNIER, TickTracker


def _tick_index(t_s: float, phase_s: float, tick_s: float) -> int:
    return int((t_s - phase_s) // tick_s)


@pytest.mark.parametrize("probed_s", [0.0992, 0.1, 0.1008])
@pytest.mark.parametrize("seed", range(4))
def test_edges_are_found_within_a_few_milliseconds(probed_s: float, seed: int) -> None:
    rng = random.Random(seed)
    phase_s, tick_s = rng.uniform(0, 0.1), 0.1
    tracker = TickTracker(probed_s)
    t_s, last, errors = 0.0, None, []
    for i in range(1200):
        t_s += VERNIER * tick_s + rng.uniform(0, 0.002)
        index = _tick_index(t_s, phase_s, tick_s)
        edge_s = tracker.observe(t_s, changed=last is not None and index != last)
        last = index
        if i > 200 and edge_s is not None:
            errors.append(abs(edge_s - (phase_s + index * tick_s)))
    assert sum(errors) / len(errors) < 0.006
    assert sorted(errors)[int(0.99 * len(errors))] < 0.02  # a read within 1 ms of a tick can take its neighbour
    assert tracker.tick_s == pytest.approx(0.1, rel=3e-3)


def test_a_probed_edge_is_right_from_the_first_read() -> None:
    tracker = TickTracker(0.1, edge_s=0.03)
    assert tracker.observe(0.10, changed=True) == pytest.approx(0.03)
    assert tracker.observe(0.197, changed=True) == pytest.approx(0.13, abs=1e-6)


def test_nothing_is_claimed_before_a_change_was_seen() -> None:
    tracker = TickTracker(0.1)
    assert tracker.observe(0.0, changed=True) is None
    assert tracker.observe(0.05, changed=False) is None
    assert tracker.observe(0.09, changed=True) == pytest.approx(0.07), "half way between both reads"
    rarely = TickTracker(0.1)
    rarely.observe(0.0, changed=True)
    assert rarely.observe(0.35, changed=True) == 0.35, "of several ticks the last one may be as late as the read"


def test_a_settled_read_is_well_behind_the_tick_that_covers_the_time() -> None:
    tracker = TickTracker(0.1, edge_s=0.03)
    assert tracker.settled_s(0.05) == pytest.approx(0.16)
    assert tracker.settled_s(0.129) == pytest.approx(0.16)
    assert tracker.settled_s(0.131) == pytest.approx(0.26)
    assert TickTracker(0.1).settled_s(1.0) == pytest.approx(1.102)


def test_an_edge_that_was_probed_long_before_the_first_read_moves_on_with_the_ticks() -> None:
    assert TickTracker(0.1, edge_s=0.03).observe(5.07, changed=True) == pytest.approx(5.03)


@pytest.mark.parametrize(
    ("before_s", "read_s", "edge_s"),
    [
        (0.035, 0.05, 0.0351),  # the tick at 0.03 s comes a little later than estimated, just after the read before
        (0.035, 0.0351, 0.03505),
        (0.10, 0.12, 0.12),  # the one at 0.13 s a little earlier, just before the read
    ],
)
def test_a_change_where_no_tick_was_expected_moves_the_estimate_to_the_nearer_read(
    before_s: float, read_s: float, edge_s: float
) -> None:
    tracker = TickTracker(0.1, edge_s=0.03)
    assert tracker.observe(before_s, changed=True) == pytest.approx(0.03)
    assert tracker.observe(read_s, changed=True) == pytest.approx(edge_s, abs=1e-9)


@pytest.mark.parametrize(("before_s", "read_s", "edge_s"), [(0.10, 0.14, 0.0401), (0.125, 0.227, 0.125)])
def test_a_tick_that_was_expected_and_did_not_come_goes_outside_of_both_reads(
    before_s: float, read_s: float, edge_s: float
) -> None:
    tracker = TickTracker(0.1, edge_s=0.03)
    tracker.observe(before_s, changed=True)
    assert tracker.observe(read_s, changed=False) == pytest.approx(edge_s, abs=1e-9)


def test_reads_almost_a_period_apart_without_a_tick_between_tell_the_period() -> None:
    tracker = TickTracker(0.1, edge_s=0.0)
    tracker.observe(1.011, changed=True)
    tracker.observe(1.108, changed=False)
    assert tracker.tick_s == 0.1, "ten ticks are too few to say"
    tracker.observe(2.021, changed=True)
    tracker.observe(2.091, changed=False)
    assert tracker.tick_s == 0.1, "nor two reads that leave the tick room"
    tracker.observe(2.121, changed=True)
    tracker.observe(2.218, changed=False)
    # No tick from 2.121 to 2.218 s: 21 ticks after the first, one lies half of the remaining 3 ms before them.
    assert tracker.tick_s == pytest.approx((2.121 - 0.0015) / 21, abs=1e-9)
