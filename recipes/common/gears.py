"""What the recipes with gears print at the end."""

from pathlib import Path

from greentrain.ledger import read_run


def gear_lines(folder: Path) -> list[str]:
    """Return the gear log of a run, and what a token cost in each gear, all ranks together.

    Args:
        folder: Of the closed run.
    """
    run = read_run(folder)
    lines = [f"step {event['step']}: {event['text']}" for event in run.ranks[0].events if event["name"] == "gear"]
    for gear, use in run.totals.by_gear.items():
        line = f"{gear}: {use.steps} steps in {use.seconds:.1f} rank-seconds"
        if use.is_known and use.tokens:
            origin = "modelled" if use.modelled_j > 0.5 * use.energy_j else "measured"
            line += f", {1000 * use.energy_j / use.tokens:.3g} mJ/token ({origin})"
        lines.append(line)
    return lines
