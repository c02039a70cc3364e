"""The edge of a convex hull that holds a wanted number of tokens, found without knowing the hull.

What a job can reach is a set of points (tokens, grams); the best mixtures lie on its lower hull. Asked for a price of
a token, an oracle returns the point that emits least when tokens are credited at that price: a corner of the hull. Two
corners on both sides of the wanted tokens give the next price, that of the line between them, until no point lies
below that line: then it is an edge, and its slope is the price of a token there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

NEAR: Final = 1e-9
"""Share by which a price is moved to see both corners of its edge."""
_EXACT: Final = 1e-13
"""A corner this little below a line, relative to its grams, lies on it."""
_TURNS: Final = 1100
"""Halvings or doublings after which a float has run out of exponents."""


class Corner(Protocol):
    """A point on the hull."""

    @property
    def tokens(self) -> float:
        """How many tokens are done."""
        ...

    @property
    def grams(self) -> float:
        """What that emits."""
        ...


C = TypeVar("C", bound=Corner)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge(Generic[C]):
    """Two neighbours on the hull. Where the cheapest corner of all already has the tokens, both are that one."""

    low: C
    high: C
    tokens: float
    """Wanted: at most those of ``high``."""

    @property
    def price(self) -> float:
        """Slope (g/token)."""
        more = self.high.tokens - self.low.tokens
        return max(0.0, (self.high.grams - self.low.grams) / more) if more > 0 else 0.0

    @property
    def share(self) -> float:
        """How much of ``high`` is in the mixture with the wanted tokens."""
        more = self.high.tokens - self.low.tokens
        return min(1.0, max(0.0, (self.tokens - self.low.tokens) / more)) if more > 0 else 1.0

    @property
    def grams(self) -> float:
        """Of that mixture."""
        return self.low.grams + self.share * (self.high.grams - self.low.grams)


def find_edge(corner: Callable[[float], C], tokens: float, guess: float) -> Edge[C]:
    """Return the edge that holds the tokens.

    Args:
        corner: The best point at a price (g/token); below 0 the cheapest, and of these the one with the
            fewest tokens.
        tokens: Wanted; where no price reaches them, the corner with the most stands for both ends.
        guess: A price close to the edge's, above 0; close saves time and changes nothing else.
    """
    low, high = _around(corner, tokens, guess)
    while low.tokens < tokens < high.tokens:
        price = (high.grams - low.grams) / (high.tokens - low.tokens)
        found = corner(price)
        below = (low.grams - price * low.tokens) - (found.grams - price * found.tokens)
        if below <= _EXACT * (abs(found.grams) + abs(price * found.tokens)):
            break
        if found.tokens < tokens:
            low = found
        else:
            high = found
    return Edge(low=low, high=high, tokens=tokens)


def _around(corner: Callable[[float], C], tokens: float, guess: float) -> tuple[C, C]:
    """Return a corner with too few tokens and one with enough, near a price."""
    low, price = corner(guess * (1 - NEAR)), guess
    high: C | None = None
    while low.tokens >= tokens:
        high, price = low, price / 4
        low = corner(price if price > guess * 1e-9 else -1.0)
        if price <= guess * 1e-9:
            return (low, high) if low.tokens < tokens else (low, low)
    if high is not None:
        return low, high
    price = guess * (1 + NEAR)
    for _ in range(_TURNS):
        high = corner(price)
        if high.tokens >= tokens:
            return low, high
        low, price = high, price * 2
    return low, low
