"""Values that a shell completes: run folders, zones, devices, models, cards, policies, gears.

Each function takes the word so far and returns values, or values with a word of help. It loads what it needs, reads
small tables and one folder, and returns nothing rather than fail: then shells complete files.
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import typer

Found: TypeAlias = list[str | tuple[str, str]]
Complete: TypeAlias = Callable[[str], Found]

MOST_RUNS: Final = 50
"""Newest first; more are no list."""
CARDS: Final = ("U55C", "V80")
"""As of ``greentrain.fpga_backend.roofline.cards``, which needs NumPy."""
_RUNS: Final = "runs"


def option(words: str, values: Complete, *names: str) -> Any:
    """Return an option whose values a shell completes.

    Args:
        words: What ``--help`` says of it.
        values: Function that finds them.
        names: Names of the option; none: that of the parameter.
    """
    return typer.Option(*names, help=words, autocompletion=values)


def argument(words: str, values: Complete) -> Any:
    """Return the same of an argument."""
    return typer.Argument(help=words, autocompletion=values)


def run_folders(incomplete: str) -> Found:
    """Return run folders: those in the folder that is typed, or in ``runs``; newest first."""
    parent, _, start = incomplete.rpartition("/")
    typed = f"{parent}/" if "/" in incomplete else ""
    found = _runs_in(typed or ".", typed, start)
    if not found and not typed and f"{_RUNS}/".startswith(start):
        found = _runs_in(_RUNS, f"{_RUNS}/", "")
    return [name for _, name in sorted(found, reverse=True)[:MOST_RUNS]]


def zones(incomplete: str) -> Found:
    """Return places of the annual tables."""
    with contextlib.suppress(Exception):
        from greentrain.carbon.regions import CodecarbonData, places

        found = places(CodecarbonData.installed())
        return _starting(incomplete, ((place.zone, place.name) for place in found), any_case=True)
    return []


def grid_zones(incomplete: str) -> Found:
    """Return grid zones with a typical year, in a list with commas."""
    with contextlib.suppress(Exception):
        from greentrain.carbon.typical import load_profiles

        return _listed(incomplete, [(profile.zone, profile.name) for profile in load_profiles()], any_case=True)
    return []


def devices(incomplete: str) -> Found:
    """Return devices of the estimator."""
    with contextlib.suppress(Exception):
        from greentrain.estimate import hardware

        return _starting(incomplete, ((name, "") for name in hardware.known()), any_case=True)
    return []


def models(incomplete: str) -> Found:
    """Return models whose shape is known; nothing that fits: shells complete files."""
    with contextlib.suppress(Exception):
        from greentrain.estimate import shapes

        return _starting(incomplete, ((name, "") for name in shapes.known()), any_case=True)
    return []


def cards(incomplete: str) -> Found:
    """Return FPGA cards, in a list with commas."""
    return _listed(incomplete, [(name, "") for name in CARDS], any_case=True)


def policies(incomplete: str) -> Found:
    """Return policies that the simulator compares."""
    from greentrain.config.schema import SCHEDULERS

    return _starting(incomplete, ((name, "") for name in ("static", "carbon_blind", *SCHEDULERS)))


def gears(incomplete: str) -> Found:
    """Return precision gears."""
    from greentrain.types import Gear

    return _starting(incomplete, ((gear.value, "") for gear in Gear))


def actions(incomplete: str) -> Found:
    """Return what holds a table of actions: run folders, or the reference."""
    return [*_starting(incomplete, [("reference", "assumed")]), *run_folders(incomplete)]


def one_of(*words: str) -> Complete:
    """Return what completes one of some words."""
    return lambda incomplete: _starting(incomplete, ((word, "") for word in words))


def some_of(*words: str) -> Complete:
    """Return what completes a list with commas."""
    return lambda incomplete: _listed(incomplete, [(word, "") for word in words])


def _starting(incomplete: str, values: Iterable[tuple[str, str]], *, any_case: bool = False) -> Found:
    """Return those that begin as the word does, with help where there is some.

    Args:
        incomplete: The word; in another case it stays as typed, since shells drop what does not begin with it.
        values: Values and words of help.
        any_case: Whether the command takes them in any case.
    """
    typed = len(incomplete)
    found: Found = []
    for value, told in values:
        begins = value[:typed]
        if begins == incomplete or (any_case and begins.casefold() == incomplete.casefold()):
            whole = f"{incomplete}{value[typed:]}"
            found.append((whole, told) if told else whole)
    return found


def _listed(incomplete: str, values: Sequence[tuple[str, str]], *, any_case: bool = False) -> Found:
    before, comma, _ = incomplete.rpartition(",")
    used = before.casefold().split(",")
    left = [(f"{before}{comma}{value}", told) for value, told in values if value.casefold() not in used]
    return _starting(incomplete, left, any_case=any_case)


def _runs_in(folder: str, typed: str, start: str) -> list[tuple[float, str]]:
    found: list[tuple[float, str]] = []
    with contextlib.suppress(OSError):
        for path in Path(folder).expanduser().iterdir():
            if path.name.startswith(start) and (path / "run.json").is_file():
                found.append((path.stat().st_mtime, f"{typed}{path.name}"))
    return found
