"""Builds the carbon signal that the configuration names."""

from greentrain.carbon.constant import ConstantSignal
from greentrain.carbon.trace import TraceSignal
from greentrain.carbon.typical import TypicalSignal
from greentrain.config import WORLD, CarbonConfig
from greentrain.errors import ConfigError
from greentrain.types import CarbonSignal


def open_signal(config: CarbonConfig) -> CarbonSignal:
    """Return the signal of ``config.signal``, checked and ready.

    Raises:
        ConfigError: Keys that this signal needs are missing.
        CarbonSignalError: The signal cannot be built: unknown zone, malformed trace, unreadable tables.
    """
    named = config.zone if config.zone != WORLD else None
    if config.signal == "trace":
        if config.trace_csv is None:
            raise ConfigError("carbon.signal is 'trace', so carbon.trace_csv must name a CSV file")
        return TraceSignal(config.trace_csv, zone=named, max_gap_h=config.trace_max_gap_h)
    if config.signal == "typical":
        return TypicalSignal(config.zone)
    if config.g_per_kwh is not None:
        return ConstantSignal(config.g_per_kwh, zone=named or "unnamed", source="carbon.g_per_kwh of the configuration")
    return ConstantSignal.of(config.zone)
