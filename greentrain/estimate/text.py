"""An estimate for the terminal."""

from typing import TYPE_CHECKING, Final

from greentrain.estimate import words
from greentrain.estimate.api import Estimate
from greentrain.estimate.sci_units import SciRange
from greentrain.estimate.values import Kind, Range

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_SCI: Final = {
    "training token": (1e6, "million training tokens"),
    "parameter": (1e6, "million parameters"),
    "FLOP": (1e18, "EFLOP"),
}
_STYLE: Final = {Kind.ASSUMED: "yellow", Kind.GIVEN: "green"}
_WHAT: Final = {"device": "On", "zone": "In", "precision": "With", "start": "Begun at"}


def render(found: Estimate) -> "RenderableType":
    """Return a rich renderable: the figures, the same otherwise, warnings, and every assumption."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(title(found), style="bold"), _figures(found)]
    if found.relations:
        parts += [Text("\nThe same run otherwise, in grams of this one", style="bold"), _relations(found)]
    parts += [Text(f"Note: {warning}.", style="yellow") for warning in found.warnings]
    parts += [Text("\nAssumptions", style="bold"), _assumptions(found)]
    parts.append(Text(footing(found), style="dim"))
    return Group(*parts)


def title(found: Estimate) -> str:
    """Return what is estimated, in a line."""
    return (
        f"{found.shape.name}, {words.count(found.workload.tokens)} tokens in {found.workload.precision} on"
        f" {found.count} x {found.device.name}"
    )


def rows(found: Estimate) -> list[tuple[str, str, str]]:
    """Return name, figure and remark of each result."""
    cost = found.money
    table = [
        ("Device-hours", words.span(found.gpu_hours, words.COUNT), f"MFU {found.mfu:.2f}, method {found.method}"),
        ("Duration", words.span(found.duration_h, words.HOURS), f"{found.count} devices"),
        (
            "Energy",
            words.span(found.energy_kwh, words.KWH),
            f"PUE {found.operational.pue.mid:g}; {words.span(found.node_w, words.WATTS)} a device with its server",
        ),
        ("Operational CO2e", words.span(found.operational.location_g, words.GRAMS), "location-based"),
        (
            "by contracts",
            words.span(found.operational.market_g, words.GRAMS),
            "market-based" + ("" if found.operational.market_g else ": give the contract's g/kWh"),
        ),
        ("Embodied CO2e", words.span(found.embodied_g, words.GRAMS), embodied_share(found)),
        ("CO2e in all", words.span(found.total_g, words.GRAMS), "location-based and embodied"),
        ("Electricity", words.amount(cost.electricity, cost.currency), "for who owns the devices"),
        (
            "Rent",
            words.amount(cost.rent, cost.currency),
            "for who rents them" + ("" if cost.rent else ": give the price of a device-hour"),
        ),
    ]
    if found.layout is not None:
        table.insert(2, ("Layout", str(found.layout), memory(found)))
    return table + [("SCI", words.span(*_sci(score)), _per(score)) for score in found.sci]


def embodied_share(found: Estimate) -> str:
    """Return how much of all is embodied."""
    if found.embodied_g is None or found.total_g is None or found.total_g.mid <= 0:
        return "nobody knows the device's"
    return f"{words.digits(100 * found.embodied_g.mid / found.total_g.mid)} % of all"


def memory(found: Estimate) -> str:
    """Return what the layout takes of each device."""
    if found.memory_bytes is None:
        return ""
    terms = found.memory_bytes
    has = f"{words.digits(sum(terms.values()) / 1e9)} of {found.device.memory_bytes.value / 1e9:.0f} GB"
    return f"{has}, most of it {max(terms, key=terms.__getitem__)}"


def relation_rows(found: Estimate) -> list[tuple[str, str, str]]:
    """Return what, ratio and basis of each relation."""
    return [
        (f"{_WHAT[relation.what]} {relation.name}", words.times(relation.times), relation.basis)
        for relation in found.relations
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


def _sci(score: SciRange) -> tuple[Range, words.Units]:
    return score.g_per_unit.times(_SCI[score.unit][0]), words.GRAMS


def _per(score: SciRange) -> str:
    return f"per {_SCI[score.unit][1]}" + ("" if score.complete else ", without embodied")


def _figures(found: Estimate) -> "Table":
    table = _table()
    for name, figure, remark in rows(found):
        table.add_row(name, figure, remark)
    return table


def _relations(found: Estimate) -> "Table":
    table = _table()
    for name, ratio, basis in relation_rows(found):
        table.add_row(_escaped(name), ratio, _escaped(basis))
    return table


def _assumptions(found: Estimate) -> "Table":
    table = _table()
    table.add_column()
    for said in found.assumptions:
        style = _STYLE.get(said.kind, "")
        table.add_row(
            _escaped(said.name),
            _escaped(said.value),
            f"[{style}]{said.kind}[/]" if style else said.kind,
            _escaped(said.source),
        )
    return table


def _table() -> "Table":
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    return table


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
