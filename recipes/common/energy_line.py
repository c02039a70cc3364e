"""A session's joules in a line."""

from greentrain import GreenSession


def energy_line(green: GreenSession) -> str:
    """Return the joules by phase, and which share of them was measured and which modelled."""
    totals = green.totals()
    origins = ", ".join(f"{100 * j / totals.energy_j:.0f} % {name}" for name, j in totals.by_provenance.items() if j)
    phases = ", ".join(f"{name} {j:.1f} J" for name, j in totals.by_phase.items())
    return f"{phases} ({origins or 'no device has a meter'})"
