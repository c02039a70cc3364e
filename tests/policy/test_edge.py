"""Edges of hulls that only an oracle knows."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greentrain.policy.waterfill import find_edge


@dataclass(frozen=True)
class Point:
    tokens: float
    grams: float


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=30, unique=True),
    st.floats(0.0, 50.0),
    st.sampled_from([1e-6, 1.0, 1e6]),
)
def test_the_edge_is_that_of_the_hull(pairs: list[tuple[int, int]], tokens: float, guess: float) -> None:
    points = [Point(float(t), float(g)) for t, g in pairs]

    def corner(price: float) -> Point:
        if price < 0:
            return min(points, key=lambda p: (p.grams, p.tokens))
        return min(points, key=lambda p: (p.grams - price * p.tokens, p.tokens))

    most = max(p.tokens for p in points)
    edge = find_edge(corner, min(tokens, most), guess)
    reach = [
        a.grams + (b.grams - a.grams) * (tokens - a.tokens) / (b.tokens - a.tokens)
        for a in points
        for b in points
        if a.tokens <= tokens <= b.tokens and a.tokens < b.tokens
    ]
    reach += [p.grams for p in points if p.tokens >= min(tokens, most)]
    assert edge.grams == pytest.approx(min(reach), abs=1e-9)
    assert 0.0 <= edge.share <= 1.0 and np.isfinite(edge.price)
