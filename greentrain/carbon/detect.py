"""Builds the carbon signal that the configuration names, and those that stand in for it where it does not know."""

from collections.abc import Callable, Mapping, Sequence

from greentrain.carbon.client import Secret, find_key
from greentrain.carbon.constant import ConstantSignal
from greentrain.carbon.trace import TraceSignal
from greentrain.carbon.typical import TypicalSignal
from greentrain.config.schema import WORLD, CarbonConfig
from greentrain.errors import ConfigError, UnknownZoneError
from greentrain.types import CarbonPoint, CarbonSignal
from greentrain.utils.never_raise import call_if_present, warn


class Fallback:
    """The first of several signals that knows an interval answers for it, under its own name.

    Args:
        signals: The signals, in the order in which they are asked.

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
        call_if_present(self._signals[0], "start")

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
            call_if_present(signal, "close")

    def _points(self, method: str, t0_unix_s: float, t1_unix_s: float) -> Sequence[CarbonPoint]:
        for signal in self._signals:
            ask = getattr(signal, method, None)
            points: Sequence[CarbonPoint] = () if ask is None else ask(t0_unix_s, t1_unix_s)
            if points:
                return points
        return ()


FindKey = Callable[[str, str], Secret]
"""Returns the key of a variable, for a signal."""


def open_signal(config: CarbonConfig, *, key: FindKey = find_key) -> CarbonSignal:
    """Return the signal of ``config.signal`` and those that stand in for it, checked and ready.

    What asks a network has read its key, but asks from its ``start`` or the first question on.

    Args:
        config: Section ``carbon``.
        key: Looks up the keys of servers.

    Raises:
        ConfigError: Keys that a signal needs are missing, or average and marginal ones are mixed.
        CarbonSignalError: A signal cannot be built: unknown zone, malformed trace, unreadable tables.
        MissingExtraError: The signal asks a network, and httpx is not installed.
    """
    first = _open(config.signal, config, key)
    if not config.fallback:
        return first
    names = (config.signal, *config.fallback)
    if len(set(names)) < len(names):
        raise ConfigError(f"carbon.fallback {list(config.fallback)} names a signal twice, or carbon.signal itself")
    return Fallback([first, *(_open(name, config, key, stand_in=True) for name in config.fallback)])


def _open(name: str, config: CarbonConfig, key: FindKey, *, stand_in: bool = False) -> CarbonSignal:
    named = config.zone if config.zone != WORLD else None
    if name in ("electricity_maps", "watttime", "gb"):
        return _polled(name, config, named, key)
    if name == "trace":
        if config.trace_csv is None:
            raise ConfigError("'trace' is among the carbon signals, so carbon.trace_csv must name a CSV file")
        return TraceSignal(config.trace_csv, zone=named, max_gap_h=config.trace_max_gap_h)
    if name == "typical":
        return TypicalSignal(config.zone)
    if config.g_per_kwh is not None:
        return ConstantSignal(config.g_per_kwh, zone=named or "unnamed", source="carbon.g_per_kwh of the configuration")
    try:
        return ConstantSignal.of(config.zone)
    except UnknownZoneError:
        country, dash, _ = config.zone.partition("-")
        if not (stand_in and dash):
            raise
        return ConstantSignal.of(country)  # a server's zone may be finer than the tables; the signal says what it is of


def _polled(name: str, config: CarbonConfig, zone: str | None, key: FindKey) -> CarbonSignal:
    from greentrain.carbon.polled import PolledSignal
    from greentrain.carbon.source import GridSource

    if zone is None:
        raise ConfigError(f"carbon.signal {name!r} needs carbon.zone: {WORLD!r} is no zone of a grid")
    source: GridSource
    if name == "gb":
        from greentrain.carbon.gb import GreatBritain

        source = GreatBritain(zone)
    elif name == "watttime":
        from greentrain.carbon.watttime import PASSWORD, USER, WattTime

        source = WattTime(zone, key(USER, name), key(PASSWORD, name))
    else:
        from greentrain.carbon.electricity_maps import VARIABLE, ElectricityMaps

        source = ElectricityMaps(zone, key(VARIABLE, name))
    return PolledSignal(source, cache_dir=config.cache_dir)
