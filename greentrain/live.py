"""The live line: energy, power, carbon and tokens per joule, once a second, while training runs in a terminal."""

from typing import TYPE_CHECKING

from greentrain.runtime import ActiveRun
from greentrain.types import Provenance

if TYPE_CHECKING:
    from rich.live import Live


class LiveLine:
    """One line at the bottom of the terminal; what the program prints scrolls above it.

    Args:
        live: An opened rich display without a refresh thread of its own.
    """

    def __init__(self, live: "Live") -> None:
        self._live = live

    @classmethod
    def open(cls) -> "LiveLine | None":
        """Return a live line, or None where standard output is no terminal."""
        from rich.console import Console
        from rich.live import Live

        console = Console()
        if not console.is_terminal or console.is_jupyter:
            return None
        live = Live("", console=console, auto_refresh=False, transient=True)
        try:
            live.start()
        except Exception:  # another live display owns the terminal
            return None
        return cls(live)

    def update(self, run: ActiveRun) -> None:
        """Show the figures of now."""
        self._live.update(live_text(run), refresh=True)

    def close(self) -> None:
        """Give the terminal back."""
        self._live.stop()


def live_text(run: ActiveRun) -> str:
    """Return the live line of a run, with rich markup. Figures nobody knows are left out."""
    energy_j, power_w = run.now()
    totals = run.ledger.totals
    parts = ["[bold green]greentrain[/]"]
    known = {sensor.provenance for sensor in run.sensors} - {Provenance.MISSING}
    if known:
        label = "measured" if known == {Provenance.MEASURED} else "modelled" if len(known) == 1 else "part modelled"
        parts += [f"{power_w:,.1f} W", f"{_joules(energy_j)} ({label})"]
    else:
        parts.append("energy missing: no sensor")
    entry = run.last_entry
    if entry is not None and entry.carbon.g_per_kwh is not None:
        parts += [f"{totals.emissions_g:,.3g} gCO2e", f"grid {entry.carbon.g_per_kwh:.0f} g/kWh ({entry.carbon.zone})"]
    if totals.tokens and totals.energy_j:
        parts.append(f"{totals.tokens / totals.energy_j:,.1f} tokens/J")
    elif totals.samples and totals.energy_j:
        parts.append(f"{totals.samples / totals.energy_j:,.2f} samples/J")
    if totals.steps:
        parts.append(f"step {totals.steps:,}")
    return "  ".join(parts)


def _joules(energy_j: float) -> str:
    return f"{energy_j:,.0f} J" if energy_j < 3.6e5 else f"{energy_j / 3.6e6:,.3f} kWh"
