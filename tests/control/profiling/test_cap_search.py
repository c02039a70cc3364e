"""The search for the best cap: few blocks, no worse than the whole sweep where cost has one minimum."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greentrain.control.profiling.profiler import Seen, coarse_caps, lowest_useful, next_cap


def _search(caps: list[Seen], *, blocks: int = 50, coarse: int = 3, slowest: float = 0.0) -> list[int]:
    """Return the caps in the order of visits."""
    seen: dict[int, Seen] = {}
    while (i := next_cap(len(caps), seen, blocks=blocks - len(seen), coarse=coarse, slowest=slowest)) is not None:
        assert i not in seen
        seen[i] = caps[i]
    return list(seen)


def _card(count: int, fixed: float, lowest: float = 0.3) -> list[Seen]:
    """Return caps from 1.0 down to ``lowest`` of a card with power fixed + (1 - fixed) f^3."""
    fractions = [1.0 - i * (1.0 - lowest) / max(1, count - 1) for i in range(count)]
    return [Seen(speed=max(0.02, (p - fixed) / (1 - fixed)) ** (1 / 3), power_w=p) for p in fractions]


def _cost(it: Seen) -> float:
    assert it.power_w is not None
    return it.power_w / it.speed


@given(count=st.integers(1, 40), fixed=st.floats(0.0, 0.29))
def test_the_optimum_is_found_in_few_blocks(count: int, fixed: float) -> None:
    caps = _card(count, fixed)
    visits = _search(caps)
    least = min(map(_cost, caps))
    found = min(_cost(caps[i]) for i in visits)
    assert found == pytest.approx(least, rel=1e-3)
    assert len(visits) <= (5 if count <= 5 else 4 + 2 * math.ceil(math.log2(count / 3)) + 1)


def test_21_caps_take_at_most_11_blocks() -> None:
    assert max(len(_search(_card(21, fixed / 100))) for fixed in range(30)) <= 11


@given(
    rows=st.lists(st.tuples(st.floats(0.01, 10.0), st.none() | st.floats(1.0, 1000.0)), min_size=1, max_size=30),
    blocks=st.integers(0, 30),
    coarse=st.integers(0, 5),
    slowest=st.floats(0.0, 5.0),
)
def test_whatever_is_seen_no_cap_comes_twice_and_blocks_are_kept(
    rows: list[tuple[float, float | None]], blocks: int, coarse: int, slowest: float
) -> None:
    caps = [Seen(speed=speed, power_w=power_w) for speed, power_w in rows]
    visits = _search(caps, blocks=blocks, coarse=coarse, slowest=slowest)
    assert len(visits) <= min(blocks, len(caps)) and visits[:1] == ([0] if blocks else [])


@pytest.mark.parametrize(
    ("count", "coarse", "caps"),
    [(1, 3, [0]), (3, 1, [0, 1]), (3, 2, [0, 1, 2]), (5, 4, [0, 1, 2, 3, 4]), (21, 3, [0, 7, 13, 20]), (21, 0, [0])],
)
def test_the_first_pass_is_spread_evenly(count: int, coarse: int, caps: list[int]) -> None:
    assert coarse_caps(count, coarse) == caps


def test_lower_caps_end_where_one_is_slower_and_dearer_beyond_noise() -> None:
    top = Seen(speed=1.0, power_w=500.0)
    assert lowest_useful({0: top, 1: Seen(speed=0.7, power_w=400.0)}, slowest=0.0) == 1  # + 14 %
    assert lowest_useful({0: top, 1: Seen(speed=0.78, power_w=400.0)}, slowest=0.0) is None  # + 2.6 %: noise
    assert lowest_useful({0: top, 1: Seen(speed=0.8, power_w=490.0)}, slowest=0.0) is None  # it does not bind
    assert lowest_useful({0: top, 1: Seen(speed=0.7, power_w=None)}, slowest=0.0) is None
    assert lowest_useful({0: top, 1: Seen(speed=0.7, power_w=100.0)}, slowest=0.9) == 1  # too slow
    assert lowest_useful({0: top, 1: Seen(speed=0.86, power_w=400.0)}, slowest=0.9) is None  # for noise perhaps


@pytest.mark.parametrize("power", [0.3, 1.5])  # lower caps pay; lower caps do not
def test_between_caps_that_draw_the_same_nothing_is_looked_for(power: float) -> None:
    plateau = [Seen(speed=1.0 + 0.001 * (i % 3), power_w=300.0) for i in range(14)]
    falling = [Seen(speed=(1 - 0.05 * i) ** power, power_w=300.0 * (1 - 0.05 * i)) for i in range(1, 8)]
    visits = _search([*plateau, *falling])
    assert visits[:4] == [0, 7, 13, 20]
    assert all(i > 13 for i in visits[4:])
