"""Conformance suite for carbon signals: what the session relies on.

For a signal of your own, in a test file::

    TestMySignal = SignalContract.of(MySignal, known=(1_700_000_000.0, 1_700_086_400.0))

or, to override more::

    class TestMySignal(SignalContract):
        def make_signal(self) -> CarbonSignal:
            return MySignal(...)

        def known(self) -> tuple[float, float]:
            return 1_700_000_000.0, 1_700_086_400.0     # an interval the signal knows
"""

import math
from collections.abc import Callable
from itertools import pairwise

from greentrain.testing.suites import filled
from greentrain.types import CarbonBasis, CarbonKind, CarbonPoint, CarbonSignal

DESCRIBED = ("zone", "source", "kind", "basis", "accounting", "resolution", "terms")
"""Keys that ``describe()`` must have; the report prints them."""


class SignalContract:
    """Tests that every carbon signal must pass. Subclass it in a test file and give the two methods below."""

    @classmethod
    def of(cls, make: Callable[[], CarbonSignal], *, known: tuple[float, float]) -> "type[SignalContract]":
        """Return the suite for the signals that ``make`` returns.

        Args:
            make: Returns a fresh signal.
            known: An interval (s since the epoch) of an hour or more over which the signal has values.
        """
        return filled(cls, {"make_signal": lambda _: make(), "known": lambda _: known}, {})

    def make_signal(self) -> CarbonSignal:
        """Return a fresh signal."""
        raise NotImplementedError

    def known(self) -> tuple[float, float]:
        """Return an interval (s since the epoch) of an hour or more over which the signal has values."""
        raise NotImplementedError

    def test_follows_the_protocol(self) -> None:
        """The object has the methods of CarbonSignal."""
        assert isinstance(self.make_signal(), CarbonSignal)

    def test_describes_itself(self) -> None:
        """Every described value is a non-empty string, and the mean's labels agree with them."""
        signal = self.make_signal()
        described = signal.describe()
        for key in DESCRIBED:
            assert isinstance(described.get(key), str) and described[key], f"describe() lacks {key!r}"
        point = signal.mean(*self.known())
        assert (point.zone, point.source) == (described["zone"], described["source"])
        assert str(point.basis) == described["basis"]

    def test_point_is_of_the_interval_asked_for(self) -> None:
        """The point carries the interval and labels of the right types."""
        t0, t1 = self.known()
        point = self.make_signal().mean(t0, t1)
        assert (point.t0_unix_s, point.t1_unix_s) == (t0, t1)
        assert isinstance(point.kind, CarbonKind) and isinstance(point.basis, CarbonBasis)

    def test_values_are_finite_and_not_negative(self) -> None:
        """Known values are finite numbers of at least 0."""
        signal = self.make_signal()
        for a, b in self._pieces(48):
            self._check_value(signal.mean(a, b))
            assert signal.mean(a, b).g_per_kwh is not None

    def test_mean_of_the_whole_is_the_weighted_mean_of_the_parts(self) -> None:
        """The mean is a time average: it adds up over any cut of the interval."""
        t0, t1 = self.known()
        signal = self.make_signal()
        for count in (2, 7, 48):
            area = sum((signal.mean(a, b).g_per_kwh or 0.0) * (b - a) for a, b in self._pieces(count))
            whole = signal.mean(t0, t1).g_per_kwh
            assert whole is not None
            assert math.isclose(area / (t1 - t0), whole, rel_tol=1e-6, abs_tol=1e-9)

    def test_instant_lies_between_neighbours(self) -> None:
        """An interval of no length gives the value at that instant."""
        signal = self.make_signal()
        t0, t1 = self.known()
        middle = (t0 + t1) / 2
        value = signal.mean(middle, middle).g_per_kwh
        assert value is not None
        around = [signal.mean(middle - 1.0, middle).g_per_kwh, signal.mean(middle, middle + 1.0).g_per_kwh]
        known = [g for g in around if g is not None]
        assert min(known) - 1e-6 <= value <= max(known) + 1e-6

    def test_same_question_same_answer(self) -> None:
        """Asking twice, or two instances, gives the same value."""
        t0, t1 = self.known()
        signal = self.make_signal()
        assert signal.mean(t0, t1) == signal.mean(t0, t1) == self.make_signal().mean(t0, t1)

    def test_never_raises(self) -> None:
        """Times without sense give None or a sound value, never an exception."""
        signal = self.make_signal()
        t0, t1 = self.known()
        odd = (0.0, -1e12, 1e12, 1e300, math.inf, -math.inf, math.nan)
        for a, b in ((t1, t0), *((x, t1) for x in odd), *((t0, x) for x in odd), *((x, x) for x in odd)):
            self._check_value(signal.mean(a, b))

    def _pieces(self, count: int) -> list[tuple[float, float]]:
        t0, t1 = self.known()
        edges = [t0 + (t1 - t0) * i / count for i in range(count)] + [t1]
        return list(pairwise(edges))

    @staticmethod
    def _check_value(point: CarbonPoint) -> None:
        if point.g_per_kwh is not None:
            assert math.isfinite(point.g_per_kwh) and point.g_per_kwh >= 0
