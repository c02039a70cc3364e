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
    assert tracker.observe(0.09, changed=True) is not None


def test_a_settled_read_is_well_behind_the_tick_that_covers_the_time() -> None:
    tracker = TickTracker(0.1, edge_s=0.03)
    assert tracker.settled_s(0.05) == pytest.approx(0.16)
    assert tracker.settled_s(0.129) == pytest.approx(0.16)
    assert tracker.settled_s(0.131) == pytest.approx(0.26)
    assert TickTracker(0.1).settled_s(1.0) == pytest.approx(1.102)
