"""Energy and operational carbon: device-hours x watts x PUE x intensity, by location and by contract."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from greentrain.carbon.constant import ConstantSignal
from greentrain.carbon.trace import TraceSignal
from greentrain.carbon.typical import TypicalSignal
from greentrain.errors import ConfigError, UnknownZoneError
from greentrain.estimate.cluster import Cluster
from greentrain.estimate.values import Assumption, Kind, Range, product
from greentrain.types import S_PER_HOUR, iso
from greentrain.utils.validation import bound

PUE: Final = Range(low=1.08, mid=1.1, high=1.2)
"""Where none is given: PaLM 1.08, GPT-3 and T5 1.10 to 1.12, OLMo 1.1 to 1.12, BLOOM 1.20."""
TABLE_SPREAD: Final = Range(low=1 / 1.2, mid=1.0, high=1.2)
"""Of a zone's intensity: two tables of California give 256 (EIA-930, 2022) and 179 g/kWh (eGRID, 2023)."""

Signal = ConstantSignal | TypicalSignal | TraceSignal


@dataclass(frozen=True, slots=True, kw_only=True)
class Intensity:
    """Carbon intensity of the run's energy."""

    g_per_kwh: Range
    zone: str
    said_by: str
    assumption: Assumption
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Operational:
    """Energy of a run, and grams of it."""

    it_kwh: Range
    """Devices, servers and what else is counted of the hall (kWh)."""
    facility_kwh: Range
    """The same times PUE (kWh)."""
    pue: Range
    """A single value where it was given."""
    location_g: Range
    """By the grid's intensity (gCO2e)."""
    market_g: Range | None
    """By the contracts' (gCO2e); None: no contract was given."""
    assumptions: tuple[Assumption, ...]


def signal_of(cluster: Cluster) -> Signal:
    """Return the grid of a cluster: a typical year where there is one, else the annual mean of its zone.

    Raises:
        CarbonSignalError: The zone is not in the tables, or the trace is malformed.
    """
    if cluster.g_per_kwh is not None:
        bound("g_per_kwh", cluster.g_per_kwh, 0.0, 5000.0)
        return ConstantSignal(cluster.g_per_kwh)
    if cluster.trace_csv:
        return TraceSignal(Path(cluster.trace_csv), zone=cluster.zone or None)
    try:
        return TypicalSignal(cluster.zone)
    except UnknownZoneError:
        return ConstantSignal.of(cluster.zone)


def intensity(signal: Signal, duration_h: float, start: datetime | None = None) -> Intensity:
    """Return the intensity over a run.

    Args:
        signal: From :func:`signal_of`.
        duration_h: How long it runs (h).
        start: When it starts; None: at any time of a typical year, or with the first row of a trace.

    Raises:
        ConfigError: A trace does not reach from the start to the end of the run.
    """
    if isinstance(signal, ConstantSignal):
        return _constant(signal)
    if isinstance(signal, TraceSignal):
        return _traced(signal, duration_h, start)
    mean, when = signal.profile.mean_g_per_kwh, "mean of the year"
    if start is not None:
        mean, when = over(signal, start.timestamp(), duration_h), f"from {iso(start.timestamp())}"
    return _tabled(mean, signal.zone, f"{signal.source}, {when}")


def over(signal: Signal, start_unix_s: float, duration_h: float) -> float:
    """Return the mean intensity over an interval (g/kWh).

    Raises:
        ConfigError: It is not known over all of it.
    """
    point = signal.mean(start_unix_s, start_unix_s + duration_h * S_PER_HOUR)
    if point.g_per_kwh is None:
        known = (
            f"; the trace has {iso(signal.start_unix_s)} to {iso(signal.end_unix_s)}"
            if isinstance(signal, TraceSignal)
            else ""
        )
        raise ConfigError(
            f"the grid's intensity is not known for all of {duration_h:.0f} h from {iso(start_unix_s)}{known}: begin at"
            " another time, leave the start out, so that the trace's mean counts, or name a zone"
        )
    return point.g_per_kwh


def operational(
    *,
    device_hours: Range,
    node_w: Range,
    found: Intensity,
    cluster: Cluster,
    infrastructure_share: float = 0.0,
) -> Operational:
    """Return energy and operational grams.

    Args:
        device_hours: Device-hours.
        node_w: Power of a device and its share of the server (W).
        found: Intensity of the grid over the run.
        cluster: PUE and contracted intensity.
        infrastructure_share: Energy of networks and storage around the servers, as a share of theirs.
    """
    bound("infrastructure_share", infrastructure_share, 0.0, 2.0)
    it_kwh = independent([device_hours, node_w.times((1.0 + infrastructure_share) / 1000.0)])
    pue = PUE if cluster.pue is None else Range.exactly(cluster.pue)
    facility_kwh = independent([it_kwh, pue])
    said = [
        Assumption(
            name="PUE",
            value=f"{pue.mid:g}" + ("" if pue.low == pue.high else f" ({pue.low:g} to {pue.high:g})"),
            source="default: published 1.08 (PaLM) to 1.20 (BLOOM)" if cluster.pue is None else "given",
            kind=Kind.ASSUMED if cluster.pue is None else Kind.GIVEN,
        ),
        found.assumption,
        Assumption(
            name="network and storage",
            value=f"{infrastructure_share:.0%} of the servers' energy" if infrastructure_share else "not counted",
            source="given" if infrastructure_share else "default: no published figure is taken for them",
            kind=Kind.GIVEN if infrastructure_share else Kind.ASSUMED,
        ),
    ]
    market = cluster.market_g_per_kwh
    if market is not None:
        bound("market_g_per_kwh", market, 0.0, 5000.0)
        said.append(Assumption(name="contracted intensity", value=f"{market:g} g/kWh", source="given", kind=Kind.GIVEN))
    return Operational(
        it_kwh=it_kwh,
        facility_kwh=facility_kwh,
        pue=pue,
        location_g=independent([facility_kwh, found.g_per_kwh]),
        market_g=None if market is None else facility_kwh.times(market),
        assumptions=tuple(said),
    )


def independent(factors: Sequence[Range]) -> Range:
    """Return the product of independent ranges of which some may be 0."""
    if all(factor.low > 0 for factor in factors):
        return product(factors)
    found = Range.exactly(1.0)
    for factor in factors:
        found = found.times(factor)
    return found


def _constant(signal: ConstantSignal) -> Intensity:
    if signal.resolution == "annual average":
        return _tabled(signal.g_per_kwh, signal.zone, f"{signal.source} ({signal.accounting}), annual mean")
    said = Assumption(name="intensity", value=f"{signal.g_per_kwh:g} g/kWh", source="given", kind=Kind.GIVEN)
    return Intensity(g_per_kwh=Range.exactly(signal.g_per_kwh), zone=signal.zone, said_by="given", assumption=said)


def _tabled(g_per_kwh: float, zone: str, source: str) -> Intensity:
    found = TABLE_SPREAD.times(g_per_kwh)
    return Intensity(
        g_per_kwh=found,
        zone=zone,
        said_by=source,
        assumption=Assumption(
            name="intensity",
            value=f"{found.mid:.3g} g/kWh ({found.low:.3g} to {found.high:.3g}), {zone}",
            source=f"{source}; x/\N{DIVISION SIGN} 1.2 assumed, as tables of one place differ",
            kind=Kind.ASSUMED,
        ),
    )


def _traced(signal: TraceSignal, duration_h: float, start: datetime | None) -> Intensity:
    first, last = signal.start_unix_s, signal.end_unix_s
    covers_h = (last - first) / S_PER_HOUR
    warnings: tuple[str, ...] = ()
    begin = first if start is None else start.timestamp()
    if start is None and duration_h > covers_h:
        warnings = (f"the trace covers {covers_h:.0f} h of {duration_h:.0f}: its mean stands for all of the run",)
        duration_h = covers_h
    mean = over(signal, begin, duration_h)
    return Intensity(
        g_per_kwh=Range.exactly(mean),
        zone=signal.zone,
        said_by=signal.source,
        assumption=Assumption(
            name="intensity",
            value=f"{mean:.3g} g/kWh from {iso(begin)} over {duration_h:.0f} h",
            source=signal.source,
            kind=Kind.GIVEN,
        ),
        warnings=warnings,
    )
