"""What an estimate said before the run, beside what was measured: ``estimate.json`` in the run folder.

The estimate that ``run.estimate`` names: checked before the run, and kept in its folder for the report.
"""

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from greentrain.config.schema import RunConfig
from greentrain.errors import ConfigError, RunFolderError
from greentrain.ledger.active_run import ActiveRun
from greentrain.ledger.journal import open_regular
from greentrain.ledger.run_folder import ESTIMATE
from greentrain.types import J_PER_KWH, S_PER_HOUR
from greentrain.utils import quantities
from greentrain.utils.files import write_json

log = logging.getLogger(__name__)

FORMAT: Final = 1
"""Of the documents that are read here: ``greentrain.estimate.result.FORMAT``."""
_MOST_BYTES: Final = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What a document says of the figures that a run measures."""

    method: str
    devices: int
    tokens: float
    figures: Mapping[str, Mapping[str, float]]
    """Bounds by name, in the units of the summary."""

    @classmethod
    def of(cls, found: Any) -> "_Said":
        """Read a document.

        Raises:
            ValueError: It is no estimate, or one of another format; the message says which.
        """
        if not isinstance(found, Mapping) or "energy_kwh" not in found:
            raise ValueError("it is no estimate")
        if found.get("format") != FORMAT:
            raise ValueError(
                f"it has format {found.get('format')!r}, and this version reads {FORMAT}: upgrade greentrain-torch, or"
                " estimate again"
            )
        try:
            return cls(
                method=str(found["method"]),
                devices=int(found["count"]),
                tokens=float(found["inputs"]["workload"]["tokens"]),
                figures={
                    "duration_s": _range(found["duration_h"], S_PER_HOUR),
                    "energy_j": _range(found["energy_kwh"]["it"], J_PER_KWH),
                    "operational_g": _range(found["operational_g"]["location"], 1.0),
                },
            )
        except KeyError as error:
            raise ValueError(f"it is no whole estimate: {error} is missing") from error
        except TypeError as error:
            raise ValueError(f"it is no whole estimate: {error}") from error


def document(path: Path) -> Mapping[str, Any]:
    """Return an estimate that ``run.estimate`` names, checked before the run starts.

    Raises:
        ConfigError: The file cannot be read or is no estimate of a format that this version reads.
    """
    wrong = f"run.estimate is {str(path)!r}"
    remedy = "write one with: greentrain estimate ... --json > estimate.json"
    try:
        found: Mapping[str, Any] = _load(path)
        _Said.of(found)
    except OSError as error:
        raise ConfigError(f"{wrong}, which cannot be read: {error.strerror or error}; {remedy}") from error
    except ValueError as error:
        raise ConfigError(f"{wrong}, which cannot be used: {error}; {remedy}") from error
    return found


def estimated(folder: Path, summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return estimated and measured figures of a run; None where no estimate lies in its folder.

    A run that trained fewer or more tokens than the estimate was for is held to its share of it. The time of one on
    another number of devices is shown and not held to it.

    Args:
        folder: The folder of the run.
        summary: The summary of the run, with what was measured.
    """
    said = _read(folder / ESTIMATE)
    if said is None:
        return None
    trained = summary["work"]["tokens"]
    share = trained / said.tokens if trained and said.tokens > 0 else None
    measured = {
        "duration_s": summary["time"]["wall_s"],
        "energy_j": summary["energy"]["energy_j"],
        "operational_g": summary["carbon"]["operational_location_g"],
    }
    figures = {name: _beside(said.figures[name], value, share) for name, value in measured.items()}
    ranks = summary["run"].get("world_size")
    if ranks not in (None, said.devices) and (time := figures["duration_s"]) is not None:
        figures["duration_s"] = {**time, "ratio": None, "within": None}
    return {
        "method": said.method,
        "devices": said.devices,
        "tokens": said.tokens,
        "ranks": ranks,
        "trained_share": share,
        "figures": figures,
    }


def rows(summary: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return name, estimate, what was measured and the verdict of each figure; nothing without an estimate."""
    found = summary.get("estimate")
    if not found:
        return []
    texts = {
        "duration_s": ("Time", quantities.duration),
        "energy_j": ("Energy", quantities.energy),
        "operational_g": ("Electricity's CO\N{SUBSCRIPT TWO}e", quantities.mass),
    }
    table = []
    for key, (name, text) in texts.items():
        figure = found["figures"][key]
        if figure is None:
            table.append((name, quantities.UNKNOWN, quantities.UNKNOWN, ""))
            continue
        bounds = f"{text(figure['mid'])} ({text(figure['low'])} to {text(figure['high'])})"
        table.append((name, bounds, text(figure["measured"]), _verdict(figure)))
    return table


def scope(summary: Mapping[str, Any]) -> str:
    """Return what the estimate was of."""
    found = summary["estimate"]
    share = found["trained_share"]
    text = f"Method {found['method']}, {found['devices']} devices, {quantities.count(found['tokens'])} tokens"
    if share is None:
        return f"{text}; the run's tokens were not counted, so nothing can be held to it."
    if found.get("ranks") not in (None, found["devices"]):
        text += f", where the run had {quantities.counted(found['ranks'], 'rank')}, so that its time is held to nothing"
    part = quantities.percent(share) if share < 1 else f"{share:.3g} x"
    return (
        f"{text}; scaled to {part} of them, which were trained. The estimate has the servers in it, the run its meters."
    )


def _beside(bounds: Mapping[str, float], measured: float | None, share: float | None) -> dict[str, Any] | None:
    if share is None:
        return None
    scaled = {name: value * share for name, value in bounds.items()}
    known = measured is not None and scaled["mid"] > 0
    return {
        **scaled,
        "measured": measured,
        "ratio": measured / scaled["mid"] if known and measured is not None else None,
        "within": scaled["low"] <= measured <= scaled["high"] if measured is not None else None,
    }


def _verdict(figure: Mapping[str, Any]) -> str:
    if figure["ratio"] is None:
        return ""
    inside = "within" if figure["within"] else "outside"
    return f"{quantities.significant(figure['ratio'], 2)} x the middle, {inside} the bounds"


def _read(path: Path) -> _Said | None:
    """Return what a document says; None where there is none that can be read: a report is never lost for it."""
    try:
        return _Said.of(_load(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("GreenTrain: the report shows no estimate, as %s cannot be used: %s", path, error)
        return None


def _load(path: Path) -> Any:
    try:
        with open_regular(path) as file:
            text = file.read(_MOST_BYTES + 1)
    except RunFolderError as error:
        raise ValueError(str(error)) from error
    if len(text) > _MOST_BYTES:
        raise ValueError(f"it is above {_MOST_BYTES >> 20} MiB")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON: {error}") from error


def _range(found: Mapping[str, Any], unit: float) -> dict[str, float]:
    bounds = {name: float(found[name]) * unit for name in ("low", "mid", "high")}
    if not all(map(math.isfinite, bounds.values())):
        raise ValueError("a bound is not finite")
    return bounds


def read_estimate(config: RunConfig) -> Mapping[str, Any] | None:
    """Return the document that ``run.estimate`` names, checked; None where it names none."""
    return None if config.estimate is None else document(Path(config.estimate))


def keep_estimate(document: Mapping[str, Any] | None, run: ActiveRun) -> None:
    """Write it into the run's folder, on rank 0; a disk that refuses is a warning."""
    if document is None or run.topology.rank != 0:
        return
    path = run.folder / ESTIMATE
    try:
        write_json(path, document)
    except OSError as error:
        run.event("warning", f"cannot write {path} ({error.strerror}): the report will show no estimate")
