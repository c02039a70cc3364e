"""An estimate in the cell of a notebook."""

from greentrain.estimate import text, words
from greentrain.estimate.api import Estimate
from greentrain.shown import Grid, View


def estimate_view(found: Estimate) -> View:
    """Return what is shown of an estimate: the figures, the same run otherwise, and every assumption."""
    grams = found.total_g or found.operational.location_g
    carbon = f"{words.span(grams, words.GRAMS)} CO2e" + ("" if found.total_g else " without embodied")
    figures = [
        words.span(found.duration_h, words.HOURS),
        words.span(found.energy_kwh, words.KWH),
        carbon,
    ]
    grids = [Grid(rows=text.rows(found))]
    if found.relations:
        title = "The same run otherwise, in grams of this one"
        grids.append(Grid(rows=text.relation_rows(found), title=title, folded=True))
    said = [(one.name, one.value, str(one.kind), one.source) for one in found.assumptions]
    grids.append(Grid(rows=said, title=f"{len(said)} assumptions", folded=True))
    return View(
        line=f"{text.title(found)}: {', '.join(figures)}",
        title=text.title(found),
        grids=grids,
        notes=[*(f"Note: {warning}." for warning in found.warnings), text.footing(found)],
    )
