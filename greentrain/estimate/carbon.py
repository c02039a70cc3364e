"""Grams of a run: operational ones by location and by contract, embodied ones, and the Software Carbon Intensity.

Operational grams are device-hours x watts x PUE x intensity. The embodied ones of a device-hour are those of a
life-cycle assessment where there is one, or area x carbon per area by name. The two differ by an order of magnitude:
164 kg for an H100 by its maker's reviewed assessment, 15 kg for its die. The first is the default. Networks between
servers and the building are in neither. Per parameter, the SCI counts all parameters, per FLOP those that a token
meets: in a mixture of experts these differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from greentrain.carbon.constant import ConstantSignal
from greentrain.carbon.trace import TraceSignal
from greentrain.carbon.typical import TypicalSignal
from greentrain.errors import ConfigError, UnknownZoneError
from greentrain.estimate.cluster import Cluster
from greentrain.estimate.hardware import Accelerator
from greentrain.estimate.model_shape import ModelShape
from greentrain.estimate.values import Assumption, Range, product
from greentrain.ledger.embodied import (
    COMPONENT_P95,
    DRAM_KG_PER_GB,
    HIGH_USE,
    HIGH_YEARS,
    LOW_YEARS,
    SERVER_OTHERS_KG,
    LifetimeHours,
)
from greentrain.ledger.sci import SciScore, sci_scores
from greentrain.types import G_PER_KG, S_PER_HOUR, iso
from greentrain.utils.files import packaged_toml
from greentrain.utils.quantities import SourceKind
from greentrain.utils.validation import bound, choice

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
        signal: Grid of the cluster, from :func:`signal_of`.
        duration_h: Length of the run (h).
        start: Start of the run; None: any time of a typical year, or the first row of a trace.

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
            kind=SourceKind.ASSUMED if cluster.pue is None else SourceKind.GIVEN,
        ),
        found.assumption,
        Assumption(
            name="network and storage",
            value=f"{infrastructure_share:.0%} of the servers' energy" if infrastructure_share else "not counted",
            source="given" if infrastructure_share else "default: no published figure is taken for them",
            kind=SourceKind.GIVEN if infrastructure_share else SourceKind.ASSUMED,
        ),
    ]
    market = cluster.market_g_per_kwh
    if market is not None:
        bound("market_g_per_kwh", market, 0.0, 5000.0)
        said.append(
            Assumption(name="contracted intensity", value=f"{market:g} g/kWh", source="given", kind=SourceKind.GIVEN)
        )
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
    said = Assumption(name="intensity", value=f"{signal.g_per_kwh:g} g/kWh", source="given", kind=SourceKind.GIVEN)
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
            kind=SourceKind.ASSUMED,
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
            kind=SourceKind.GIVEN,
        ),
        warnings=warnings,
    )


METHODS: Final = ("lca", "act")
LIFETIME_YEARS: Final = 4.0
"""As ``carbon.lifetime_years``."""

FAB_KG_PER_KWH: Final = 0.583
"""Grid of Taiwan's fabs (ACT, facebookresearch/ACT)."""
MATERIALS_KG_PER_CM2: Final = 0.5
FAB_YIELD: Final = 0.875
PACKAGE_KG: Final = 0.15
"""Per packaged circuit (ACT)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fab:
    """Carbon of a square centimetre at one node of technology."""

    kwh_per_cm2: float
    gas_kg_per_cm2: float
    """Between 95 and 99 % abatement."""
    imec_kg_per_cm2: float | None = None
    """As imec.netzero has it."""

    @property
    def kg_per_cm2(self) -> float:
        """Carbon per area of good dies."""
        return (FAB_KG_PER_KWH * self.kwh_per_cm2 + self.gas_kg_per_cm2 + MATERIALS_KG_PER_CM2) / FAB_YIELD


@dataclass(frozen=True, slots=True, kw_only=True)
class Die:
    """Silicon of a device, its memory apart."""

    cm2: float
    node_nm: int
    """Nearest of :data:`FABS`."""
    source: str
    kind: SourceKind


_SILICON: Final = packaged_toml("greentrain.estimate", "silicon.toml")
FABS: Final[Mapping[int, Fab]] = {int(nm): Fab(**row) for nm, row in _SILICON["fab"].items()}
"""By node (nm)."""
DIES: Final[Mapping[str, Die]] = {
    name: Die(**{**row, "kind": SourceKind(row["kind"])}) for name, row in _SILICON["die"].items()
}
"""By a device's name, or what stands in it before a dash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbodiedHour:
    """Embodied carbon of one device-hour; None: nobody knows it."""

    g_per_h: Range | None
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...] = ()


def embodied_hour(device: Accelerator, *, method: str = "lca", lifetime_years: float = LIFETIME_YEARS) -> EmbodiedHour:
    """Return the embodied carbon of a device-hour.

    low is the card alone over 6 years, mid card and server over ``lifetime_years``, high both over 3 years of which
    85 % is used: the bounds of :mod:`greentrain.ledger.embodied`.

    Args:
        device: The device.
        method: ``lca``: life-cycle figures; ``act``: area x carbon per area, an order of magnitude less.
        lifetime_years: Years over which mid is spread.
    """
    choice("embodied", method, METHODS)
    bound("lifetime_years", lifetime_years, 0.1, 50.0)
    card, server, source, kind = _lca(device) if method == "lca" else _act(device)
    if card is None:
        return EmbodiedHour(g_per_h=None, assumptions=(), warnings=(f"embodied carbon is not known: {source}",))
    spread = LifetimeHours.of(lifetime_years)
    g_per_h = Range(
        low=card.low * G_PER_KG / spread.low_h,
        mid=(card.mid + server.mid) * G_PER_KG / spread.mid_h,
        high=(card.high + server.high) * G_PER_KG / spread.high_h,
    )
    said = [
        Assumption(
            name="embodied carbon, device",
            value=f"{card.mid:.3g} kg" + ("" if card.low == card.high else f" ({card.low:.3g} to {card.high:.3g})"),
            source=source,
            kind=kind,
        ),
        Assumption(
            name="embodied carbon, its server",
            value=f"{server.mid:.3g} kg a device" if server.mid else "none beside the device's",
            source="as above" if method == "lca" else "boards, supplies and casing over 8 devices (LLMCarbon)",
            kind=SourceKind.ASSUMED,
        ),
        Assumption(
            name="lifetime",
            value=f"{lifetime_years:g} years; low {LOW_YEARS:g}, card alone; high {HIGH_YEARS:g}, {HIGH_USE:.0%} used",
            source="Schneider et al., arXiv 2502.01671 (6 years); EcoLogits (3); BLOOM, arXiv 2211.02001 (85 %)",
            kind=SourceKind.ASSUMED,
        ),
    ]
    warnings: tuple[str, ...] = ()
    if method == "act":
        warnings = (
            "embodied by area x carbon per area: reviewed assessments of whole cards come to ten times as much",
        )
    elif device.server_kg is None:
        warnings = ("the server around the device has no embodied figure and is left out: give server_kg",)
    return EmbodiedHour(g_per_h=g_per_h, assumptions=tuple(said), warnings=warnings)


def _lca(device: Accelerator) -> tuple[Range | None, Range, str, SourceKind]:
    server = device.server_kg or Range.exactly(0.0)
    assumed = any(word in device.embodied_source for word in ("assumption", "no LCA", "order of magnitude"))
    return device.embodied_kg, server, device.embodied_source, SourceKind.ASSUMED if assumed else SourceKind.AUDITED


def _act(device: Accelerator) -> tuple[Range | None, Range, str, SourceKind]:
    die = next((die for name, die in DIES.items() if f"{device.name}-".startswith(f"{name}-")), None)
    server = Range.exactly(SERVER_OTHERS_KG / min(device.node, 8))
    if die is None:
        return (
            None,
            server,
            f"no die area of {device.name} is in the table: use the life-cycle figures (lca)",
            SourceKind.ASSUMED,
        )
    fab = FABS[die.node_nm]
    mid = fab.kg_per_cm2
    memory_kg = device.memory_bytes.value / 1e9 * DRAM_KG_PER_GB
    low = (fab.imec_kg_per_cm2 or mid) * die.cm2 + PACKAGE_KG
    mid_kg = mid * die.cm2 + PACKAGE_KG + memory_kg
    source = (
        f"area x carbon per area: {die.cm2:g} cm2 ({die.source}) x {mid:.2f} kg/cm2 at {die.node_nm} nm"
        f" (facebookresearch/ACT; low by imec.netzero and without memory, high x {COMPONENT_P95:g},"
        f" CarbonClarity, arXiv 2507.01145), memory at {DRAM_KG_PER_GB:g} kg/GB and boards of a server from LLMCarbon"
    )
    return Range(low=low, mid=mid_kg, high=mid_kg * COMPONENT_P95), server, source, die.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class SciRange:
    """One score with its bounds."""

    g_per_unit: Range
    """gCO2e per functional unit, operational (by location) and embodied."""
    unit: str
    """Functional unit: ``training token``, ``parameter`` or ``FLOP``."""
    units: float
    complete: bool
    """False: embodied carbon is not known, so the true score is higher."""
    method: str


def sci_ranges(shape: ModelShape, tokens: float, operational_g: Range, embodied_g: Range | None) -> Sequence[SciRange]:
    """Return the scores by the three functional units that the SCI for AI specification asks of training.

    Args:
        shape: The model.
        tokens: Training tokens, gross.
        operational_g: Location-based operational emissions (g), PUE included; contracts do not count.
        embodied_g: Embodied share (g); None where it is not known.
    """
    low, mid, high = (
        _scores(
            shape, tokens, getattr(operational_g, bound), None if embodied_g is None else getattr(embodied_g, bound)
        )
        for bound in ("low", "mid", "high")
    )
    return [
        SciRange(
            g_per_unit=Range(low=a.g_per_unit, mid=b.g_per_unit, high=c.g_per_unit),
            unit=b.unit,
            units=b.units,
            complete=b.complete,
            method=b.method + (", N active parameters" if b.unit == "FLOP" and shape.is_moe else ""),
        )
        for a, b, c in zip(low, mid, high, strict=True)
    ]


def _scores(shape: ModelShape, tokens: float, operational_g: float, embodied_g: float | None) -> list[SciScore]:
    def by(parameters: float) -> dict[str, SciScore]:
        found = sci_scores(
            operational_g=operational_g, embodied_g=embodied_g, tokens=round(tokens), parameters=round(parameters)
        )
        return {score.unit: score for score in found}

    total, active = by(shape.total_parameters), by(shape.active_parameters)
    return [total["training token"], total["parameter"], active["FLOP"]]
