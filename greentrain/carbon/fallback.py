"""Several signals of one kind, asked in turn until one knows."""

from collections.abc import Mapping, Sequence

from greentrain.errors import ConfigError
from greentrain.types import CarbonPoint, CarbonSignal
from greentrain.utils.never_raise import warn


class Fallback:
    """The first of several signals that knows an interval answers for it, under its own name.

    Args:
        signals: In the order in which they are asked.

    Raises:
        ConfigError: There is none, or they mix average and marginal intensities.
    """

    def __init__(self, signals: Sequence[CarbonSignal]) -> None:
        if not signals:
            raise ConfigError("a Fallback needs at least one signal")
        self._signals = tuple(signals)
        facts = [signal.describe() for signal in self._signals]
        self._facts = {
            **facts[0],
            "fallback": "; ".join(f"{f['signal']} ({f['zone']}, {f['source']})" for f in facts[1:]),
        }
        for key in ("basis", "accounting"):
            if len({f[key] for f in facts}) == 1:
                continue
            mixed = ", ".join(f"{f['signal']}: {f[key]}" for f in facts)
            if key == "basis":
                raise ConfigError(
                    f"carbon.fallback mixes average and marginal intensities ({mixed}), which cannot be added up: leave"
                    f" out what is not {facts[0]['basis']}"
                )
            warn(f"carbon.fallback mixes ways of accounting ({mixed}); each value says which it is of")

    def start(self) -> None:
        """Start the first; the others start when they are asked."""
        start = getattr(self._signals[0], "start", None)
        if start is not None:
            start()

    def mean(self, t0_unix_s: float, t1_unix_s: float) -> CarbonPoint:
        """Return the time average of the first signal that knows it; its source and zone say which."""
        first = None
        for signal in self._signals:
            point = signal.mean(t0_unix_s, t1_unix_s)
            if point.g_per_kwh is not None:
                return point
            first = first or point
        assert first is not None  # there is a signal
        return first

    def forecast(self, t0_unix_s: float, t1_unix_s: float) -> Sequence[CarbonPoint]:
        """Return the forecasts of the first signal that has any for an interval."""
        return self._points("forecast", t0_unix_s, t1_unix_s)

    def history(self, t0_unix_s: float, t1_unix_s: float) -> Sequence[CarbonPoint]:
        """Return the past values of the first signal that has any for an interval."""
        return self._points("history", t0_unix_s, t1_unix_s)

    def describe(self) -> Mapping[str, str]:
        """Return what the first says about itself, and who stands in for it."""
        return self._facts

    def close(self) -> None:
        """Close all of them."""
        for signal in self._signals:
            close = getattr(signal, "close", None)
            if close is not None:
                close()

    def _points(self, method: str, t0_unix_s: float, t1_unix_s: float) -> Sequence[CarbonPoint]:
        for signal in self._signals:
            ask = getattr(signal, method, None)
            points: Sequence[CarbonPoint] = () if ask is None else ask(t0_unix_s, t1_unix_s)
            if points:
                return points
        return ()
