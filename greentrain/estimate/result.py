"""What an estimate holds, and how it reads: in a terminal, in a notebook, as JSON, as a page, as a table of actions.

The table of actions is for planning on a cluster that cannot be profiled. Everything in it is assumed: speed and watts
are the middle of the estimate, and a part of the devices is taken to make the same part of the tokens. Power caps are
in no row: the tables do not say what they cost.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from greentrain.estimate import values
from greentrain.estimate.carbon import Operational, SciRange
from greentrain.estimate.cluster import Cluster
from greentrain.estimate.hardware import Accelerator
from greentrain.estimate.layouts import ParallelLayout
from greentrain.estimate.mfu import GAINS, fp8_speedup
from greentrain.estimate.model_shape import ModelShape
from greentrain.estimate.money import Money
from greentrain.estimate.relations import Relation
from greentrain.estimate.values import Assumption, Range
from greentrain.estimate.workload import Workload
from greentrain.policy.action_table import ActionTable
from greentrain.types import S_PER_HOUR, Gear
from greentrain.utils import quantities
from greentrain.utils.display import Displayable, Table, View
from greentrain.utils.version import __version__

_SCI: Final = {
    "training token": (1e6, "million training tokens"),
    "parameter": (1e6, "million parameters"),
    "FLOP": (1e18, "EFLOP"),
}
_WHAT: Final = {"device": "On", "zone": "In", "precision": "With", "start": "Begun at"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate(Displayable):
    """What a run would take. Ranges of hours and of what follows from them hold 80 % of unseen families of models."""

    shape: ModelShape
    workload: Workload
    cluster: Cluster
    device: Accelerator
    method: str
    """That was used; never ``auto``."""
    count: int
    """Devices."""
    gpu_hours: Range
    duration_h: Range
    mfu: float
    node_w: Range
    """Power of a device and its share of the server (W)."""
    operational: Operational
    embodied_g: Range | None
    """None: nobody knows the device's."""
    sci: tuple[SciRange, ...]
    money: Money
    layout: ParallelLayout | None
    """The best that a search found; None: no search was made."""
    memory_bytes: Mapping[str, float] | None
    """Of the fullest device in that layout, by term."""
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]
    relations: tuple[Relation, ...]

    @property
    def energy_kwh(self) -> Range:
        """Energy, PUE included (kWh)."""
        return self.operational.facility_kwh

    @property
    def total_g(self) -> Range | None:
        """Operational by location and embodied, bound by bound; None where embodied is not known."""
        return None if self.embodied_g is None else self.operational.location_g.plus(self.embodied_g)

    def _view(self) -> View:
        return estimate_view(self)

    def to_dict(self) -> dict[str, Any]:
        """Return a plain dict for JSON. Ranges have low, mid and high; what is not known is null."""
        return {
            "format": FORMAT,
            "greentrain_version": __version__,
            "inputs": {
                "model": self.shape.name,
                "parameters_total": self.shape.total_parameters,
                "parameters_active": self.shape.active_parameters,
                "shape": _plain(self.shape),
                "workload": _plain(self.workload),
                "cluster": _plain(self.cluster),
                "device": self.device.name,
            },
            "method": self.method,
            "count": self.count,
            "gpu_hours": _plain(self.gpu_hours),
            "duration_h": _plain(self.duration_h),
            "mfu": self.mfu,
            "node_w": _plain(self.node_w),
            "energy_kwh": {"it": _plain(self.operational.it_kwh), "facility": _plain(self.operational.facility_kwh)},
            "operational_g": {
                "location": _plain(self.operational.location_g),
                "market": _plain(self.operational.market_g),
            },
            "embodied_g": _plain(self.embodied_g),
            "total_g": _plain(self.total_g),
            "sci": _plain(self.sci),
            "money": {
                "currency": self.money.currency,
                "electricity": _plain(self.money.electricity),
                "rent": _plain(self.money.rent),
            },
            "layout": _plain(self.layout),
            "memory_bytes": _plain(self.memory_bytes),
            "assumptions": _plain(self.assumptions),
            "warnings": list(self.warnings),
            "relations": _plain(self.relations),
        }


def title(found: Estimate) -> str:
    """Return what is estimated, in a line."""
    return (
        f"{found.shape.name}, {_count(found.workload.tokens)} tokens in {found.workload.precision} on"
        f" {found.count} x {found.device.name}"
    )


def _count(value: float) -> str:
    size, unit = quantities.unit_of(value, ((1e12, "T"), *quantities.PLAIN), 2)
    return f"{value / size:.3g} {unit}".strip()


def rows(found: Estimate) -> list[tuple[str, str, str]]:
    """Return name, figure and remark of each result."""
    cost, node_w = found.money, values.span(found.node_w, quantities.WATTS)
    table = [
        ("Device-hours", values.span(found.gpu_hours, quantities.PLAIN), f"MFU {found.mfu:.2f}, method {found.method}"),
        ("Duration", values.span(found.duration_h, quantities.HOURS), f"{found.count} devices"),
        (
            "Energy",
            values.span(found.energy_kwh, quantities.KWH),
            f"PUE {found.operational.pue.mid:g}; {node_w} a device with its server",
        ),
        ("Operational CO2e", values.span(found.operational.location_g, quantities.LARGE_MASS), "location-based"),
        (
            "by contracts",
            values.span(found.operational.market_g, quantities.LARGE_MASS),
            "market-based" + ("" if found.operational.market_g else ": give the contract's g/kWh"),
        ),
        ("Embodied CO2e", values.span(found.embodied_g, quantities.LARGE_MASS), embodied_share(found)),
        ("CO2e in all", values.span(found.total_g, quantities.LARGE_MASS), "location-based and embodied"),
        ("Electricity", values.amount(cost.electricity, cost.currency), "for who owns the devices"),
        (
            "Rent",
            values.amount(cost.rent, cost.currency),
            "for who rents them" + ("" if cost.rent else ": give the price of a device-hour"),
        ),
    ]
    if found.layout is not None:
        table.insert(2, ("Layout", str(found.layout), memory(found)))
    return table + [("SCI", values.span(*_sci(score)), _per(score)) for score in found.sci]


def embodied_share(found: Estimate) -> str:
    """Return how much of all is embodied."""
    if found.embodied_g is None or found.total_g is None or found.total_g.mid <= 0:
        return "nobody knows the device's"
    return f"{quantities.two_digits(100 * found.embodied_g.mid / found.total_g.mid)} % of all"


def memory(found: Estimate) -> str:
    """Return what the layout takes of each device."""
    if found.memory_bytes is None:
        return ""
    terms = found.memory_bytes
    has = f"{quantities.two_digits(sum(terms.values()) / 1e9)} of {found.device.memory_bytes.value / 1e9:.0f} GB"
    return f"{has}, most of it {max(terms, key=terms.__getitem__)}"


def relation_rows(found: Estimate) -> list[tuple[str, str, str]]:
    """Return what, ratio and basis of each relation."""
    return [
        (f"{_WHAT[one.what]} {one.name}", f"{quantities.two_digits(one.times)} \N{MULTIPLICATION SIGN}", one.basis)
        for one in found.relations
    ]


def footing(found: Estimate) -> str:
    """Return what the bounds mean."""
    hours = {
        "mfu": "hours: 10th and 90th percentile over families of models that the table has not seen",
        "roofline": "hours: what real runs took beside the modelled optimum, 10th and 90th percentile",
        "blend": "hours: 10th and 90th percentile over families of models that neither of its parts has seen",
        "pilot": "hours: the pilot's speed, and what published runs lost to restarts",
    }[found.method]
    return f"Bounds, {hours}; independent factors are combined; embodied: bounds of lifetime and of what is counted."


def _sci(score: SciRange) -> tuple[Range, quantities.Units]:
    return score.g_per_unit.times(_SCI[score.unit][0]), quantities.LARGE_MASS


def _per(score: SciRange) -> str:
    return f"per {_SCI[score.unit][1]}" + ("" if score.complete else ", without embodied")


def estimate_view(found: Estimate) -> View:
    """Return what is shown of an estimate: the figures, the same run otherwise, and every assumption."""
    grams = found.total_g or found.operational.location_g
    carbon = f"{values.span(grams, quantities.LARGE_MASS)} CO2e" + ("" if found.total_g else " without embodied")
    figures = [
        values.span(found.duration_h, quantities.HOURS),
        values.span(found.energy_kwh, quantities.KWH),
        carbon,
    ]
    grids = [Table(rows=rows(found))]
    if found.relations:
        heading = "The same run otherwise, in grams of this one"
        grids.append(Table(rows=relation_rows(found), title=heading, folded=True))
    said = [(one.name, one.value, str(one.kind), one.source) for one in found.assumptions]
    grids.append(Table(rows=said, title=f"{len(said)} assumptions", folded=True))
    return View(
        line=f"{title(found)}: {', '.join(figures)}",
        title=title(found),
        grids=grids,
        notes=[*(f"Note: {warning}." for warning in found.warnings), footing(found)],
    )


FORMAT: Final = 1


def _plain(value: Any) -> Any:
    """Return dicts, lists, numbers and words."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    return str(value)


def render_html(found: Estimate) -> str:
    """Return the page; every word in it is escaped."""
    from jinja2 import Environment, StrictUndefined

    template = files("greentrain.estimate").joinpath("estimate.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    widest = max((relation.times for relation in found.relations), default=1.0)
    widest = max(widest, 1.0)
    relations = [
        {"name": name, "ratio": ratio, "basis": basis, "width": round(100 * relation.times / widest, 2)}
        for relation, (name, ratio, basis) in zip(found.relations, relation_rows(found), strict=True)
    ]
    return environment.from_string(template).render(
        version=__version__,
        name=found.shape.name,
        title=title(found),
        method=found.method,
        warnings=found.warnings,
        headline=_headline(found),
        grams=_grams(found),
        relations=relations,
        one=round(100 / widest, 2),
        rows=rows(found),
        assumptions=found.assumptions,
        footing=footing(found),
    )


def _headline(found: Estimate) -> Sequence[tuple[str, str, str]]:
    """Return the first screen: name, middle, bounds."""
    total = found.total_g
    carbon = ("CO2e", found.operational.location_g) if total is None else ("CO2e in all", total)
    figures: list[tuple[str, Range | None, quantities.Units]] = [
        ("Device-hours", found.gpu_hours, quantities.PLAIN),
        ("Duration", found.duration_h, quantities.HOURS),
        ("Energy", found.energy_kwh, quantities.KWH),
        (*carbon, quantities.LARGE_MASS),
    ]
    shown = []
    for name, value, units in figures:
        middle, _, bounds = values.span(value, units).partition(" (")
        shown.append((name, middle, bounds.rstrip(")")))
    return shown


def _grams(found: Estimate) -> Sequence[tuple[dict[str, Any], str]]:
    """Return bars with their bounds, in percent of the widest, and their colours."""
    ranges = [
        ("Operational, location-based", found.operational.location_g, "carbon"),
        ("Operational, market-based", found.operational.market_g, "carbon"),
        ("Embodied", found.embodied_g, "embodied"),
        ("In all", found.total_g, "carbon"),
    ]
    top = max((value.high for _, value, _ in ranges if value is not None), default=0.0) or 1.0

    def span(name: str, value: Range | None) -> dict[str, Any]:
        drawn = value or Range.exactly(0.0)
        low, mid, high = (round(100 * bound / top, 2) for bound in (drawn.low, drawn.mid, drawn.high))
        text = values.span(value, quantities.LARGE_MASS)
        return {"name": name, "text": text, "label": f"{name}: {text}", "low": low, "mid": mid, "high": high}

    return [(span(name, value), css) for name, value, css in ranges]


SHARES: Final = (1.0, 0.5, 0.25)
"""Of the devices; those that are no whole number are left out."""


def action_rows(found: Estimate) -> list[dict[str, Any]]:
    """Return the actions as ``declared`` of the action table reads them, the whole job's tokens/s and watts."""
    tokens_per_s = found.workload.tokens / (found.duration_h.mid * S_PER_HOUR)
    speeds = {found.workload.precision: tokens_per_s}
    if found.workload.precision.is_low:
        speeds[Gear.BF16] = tokens_per_s / fp8_speedup(found.device, found.workload.precision).mid
    elif found.workload.precision is Gear.BF16:
        lows = [gear for gear in found.device.peak_flop_s if gear.is_low]
        speeds |= {gear: tokens_per_s * fp8_speedup(found.device, gear).mid for gear in lows}
    power = {gear: GAINS[gear][1] if gear.is_low else 1.0 for gear in speeds}
    one_w = found.node_w.mid / power[found.workload.precision]
    widths = [round(found.count * share) for share in SHARES if (found.count * share).is_integer()]
    return [
        {
            "gear": gear.value,
            "ranks": ranks,
            "tokens_per_s": float(f"{speed * ranks / found.count:.4g}"),
            "power_w": float(f"{one_w * power[gear] * ranks:.4g}"),
        }
        for gear, speed in speeds.items()
        for ranks in widths
    ]


def action_table(found: Estimate) -> ActionTable:
    """Return the table that policies read; every figure in it is ``assumed``."""
    return ActionTable.declare(action_rows(found), device=_device(found))


def action_document(found: Estimate) -> str:
    """Return the table as YAML, for ``greentrain plan --actions FILE`` and ``policy.actions``."""
    import yaml

    told: Sequence[dict[str, Any]] = action_rows(found)
    head = "# From greentrain estimate: nothing here was measured. tokens/s and watts of the whole job, without PUE.\n"
    text: str = yaml.safe_dump({"device": _device(found), "actions": told}, sort_keys=False)
    return head + text


def _device(found: Estimate) -> str:
    return f"{found.count} x {found.device.name}, {found.shape.name}, estimated by {found.method}"
