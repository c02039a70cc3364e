"""An estimate as one page that opens from disk, without network."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from greentrain.estimate import result, values
from greentrain.estimate.result import Estimate
from greentrain.estimate.values import Range
from greentrain.utils.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar with its bounds, in percent of the widest."""

    name: str
    text: str
    low: float
    mid: float
    high: float

    @property
    def label(self) -> str:
        """For readers who cannot see it."""
        return f"{self.name}: {self.text}"


def render_html(found: Estimate) -> str:
    """Return the page; every word in it is escaped."""
    from jinja2 import Environment, StrictUndefined

    template = files("greentrain.estimate").joinpath("estimate.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    widest = max((relation.times for relation in found.relations), default=1.0)
    widest = max(widest, 1.0)
    relations = [
        {"name": name, "ratio": ratio, "basis": basis, "width": round(100 * relation.times / widest, 2)}
        for relation, (name, ratio, basis) in zip(found.relations, result.relation_rows(found), strict=True)
    ]
    return environment.from_string(template).render(
        version=__version__,
        name=found.shape.name,
        title=result.title(found),
        method=found.method,
        warnings=found.warnings,
        headline=_headline(found),
        grams=_grams(found),
        relations=relations,
        one=round(100 / widest, 2),
        rows=result.rows(found),
        assumptions=found.assumptions,
        footing=result.footing(found),
    )


def _headline(found: Estimate) -> Sequence[tuple[str, str, str]]:
    """Return the first screen: name, middle, bounds."""
    total = found.total_g
    carbon = ("CO2e", found.operational.location_g) if total is None else ("CO2e in all", total)
    figures: list[tuple[str, Range | None, values.Units]] = [
        ("Device-hours", found.gpu_hours, values.COUNT),
        ("Duration", found.duration_h, values.HOURS),
        ("Energy", found.energy_kwh, values.KWH),
        (*carbon, values.GRAMS),
    ]
    shown = []
    for name, value, units in figures:
        middle, _, bounds = values.span(value, units).partition(" (")
        shown.append((name, middle, bounds.rstrip(")")))
    return shown


def _grams(found: Estimate) -> Sequence[tuple[Bar, str]]:
    ranges = [
        ("Operational, location-based", found.operational.location_g, "carbon"),
        ("Operational, market-based", found.operational.market_g, "carbon"),
        ("Embodied", found.embodied_g, "embodied"),
        ("In all", found.total_g, "carbon"),
    ]
    top = max((value.high for _, value, _ in ranges if value is not None), default=0.0) or 1.0

    def span(name: str, value: Range | None) -> Bar:
        drawn = value or Range.exactly(0.0)
        low, mid, high = (round(100 * bound / top, 2) for bound in (drawn.low, drawn.mid, drawn.high))
        return Bar(name=name, text=values.span(value, values.GRAMS), low=low, mid=mid, high=high)

    return [(span(name, value), css) for name, value, css in ranges]
