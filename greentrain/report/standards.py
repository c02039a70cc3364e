"""What regulators and standards ask of a run, each as a file that follows from its raw journals and nothing else.

``annex-xi``
    Annex XI of the EU AI Act (Regulation (EU) 2024/1689, OJ L, 12.7.2024): the points of section 1 that a training
    knows, number 2 (d) and (e) above all; wall-clock days, hardware days and MWh are what the Model Documentation Form
    of the General-Purpose AI Code of Practice (10 July 2025, chapter Transparency) asks for there.
``sci-ai``
    Software Carbon Intensity for AI (Green Software Foundation, sci-ai, SPEC.md, sections 6.2 and 8.2, read 2026-11):
    the provider's functional units over ISO/IEC 21031:2024, of the stage Model Training alone.
``scope2-hourly``
    Scope 2 by the hour: the two methods of the GHG Protocol (Scope 2 Guidance, 2015), matched by hour and grid region
    as the public consultation of 20 October 2025 on its revision proposes. A certificate of another hour or zone covers
    nothing, and what no certificate covers has the residual mix.

The files hold no time of writing, and figures have nine digits: derived again from the same journals, by whichever
machine, they are the same bytes. ``greentrain audit`` does that, and names the line that is not.
"""

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from greentrain.errors import ConfigError, RunFolderError
from greentrain.ledger.reader import RankBooks, read_books, read_ranks, read_run_json
from greentrain.ledger.sci import FLOP_PER_PARAMETER_TOKEN
from greentrain.ledger.totals import EntrySums
from greentrain.report import RunReport
from greentrain.report.exports import device_names
from greentrain.report.fleet.reading import by_span_and_zone
from greentrain.types import S_PER_DAY, S_PER_HOUR, iso, kwh_from_j
from greentrain.utils.files import write_atomic
from greentrain.utils.quantities import percent

FILES: Final = {"annex-xi": "annex_xi.md", "sci-ai": "sci_ai.json", "scope2-hourly": "scope2_hourly.csv"}
"""File in the run's folder by standard."""
CONTRACTS: Final = "contracts.csv"
"""The hourly certificates that a run was given, kept beside its journals."""
OPEN: Final = "to be filled in by the provider"


def write_standard(folder: Path, standard: str, contracts: Path | None = None) -> Path:
    """Derive a standard's file from the raw journals of a run, write it into the run's folder and return its path.

    Args:
        folder: The run's folder.
        standard: ``annex-xi``, ``sci-ai`` or ``scope2-hourly``.
        contracts: CSV of the certificates allotted to this run, kept in the folder for later: ``timestamp_utc`` (start
            of an hour), ``kwh``, ``g_per_kwh``, and where known ``zone`` and ``residual_g_per_kwh``. Of scope2-hourly.

    Raises:
        ConfigError: There is no such standard, or the certificates cannot be read.
        RunFolderError: The folder is no run folder, or cannot be written.
    """
    if standard not in FILES:
        raise ConfigError(f"--standard is {standard!r}; want one of {', '.join(FILES)}")
    if contracts is not None:
        read_contracts(contracts)
        write_atomic(folder / CONTRACTS, contracts.read_text(encoding="utf-8-sig"))
    return write_atomic(folder / FILES[standard], derive(folder, standard))


def derive(folder: Path, standard: str) -> str:
    """Return the text of a standard's file as the raw journals give it.

    Args:
        folder: The run's folder.
        standard: A key of ``FILES``.

    Raises:
        RunFolderError: The folder is no run folder.
        ConfigError: The certificates in it cannot be read.
    """
    if standard == "scope2-hourly":
        return _scope2_hourly(folder)
    summary = RunReport.read(folder).summary
    return _annex_xi(summary) if standard == "annex-xi" else _sci_ai(summary)


def _digits(value: float | None) -> str:
    return "" if value is None else f"{value:.9g}"


_PROVIDER: Final = (
    ("1 (a)", "tasks, and systems in which the model can be integrated", "tasks"),
    ("1 (b)", "acceptable use policies", "acceptable_use"),
    ("1 (c)", "date of release, methods of distribution", "release"),
    ("1 (d)", "architecture", "architecture"),
    ("1 (e)", "modality and format of inputs and outputs", "modality"),
    ("1 (f)", "licence", "licence"),
    ("2 (a)", "technical means required for integration", "technical_means"),
    ("2 (b)", "design specifications, training process, key design choices", "design"),
    ("2 (c)", "data used for training, testing and validation", "data"),
)
"""Points that no meter knows; the run's tag of the last name fills them."""


def _annex_xi(summary: Mapping[str, Any]) -> str:
    run, energy, work, time = summary["run"], summary["energy"], summary["work"], summary["time"]
    parameters, tokens = run["parameters"], work["tokens"]
    rows = [(point, asked, run["tags"].get(tag), "stated in run.tags") for point, asked, tag in _PROVIDER]
    rows.append(("1 (d)", "number of parameters", parameters and f"{parameters:.4g}", "counted in the model"))
    flop = FLOP_PER_PARAMETER_TOKEN * parameters * tokens if parameters and tokens else None
    rows.append(
        (
            "2 (d)",
            "floating point operations",
            flop and f"{flop:.3g}",
            "estimated: 6 x parameters x tokens, dense model",
        )
    )
    gpus = [device for device in summary["devices"] if device["kind"] == "gpu"]
    days = time["wall_s"] / S_PER_DAY if time["wall_s"] else None
    rows += [
        ("2 (d)", "training time, wall clock (days)", days and f"{days:.4g}", "booked"),
        ("2 (d)", "training time, hardware (GPU days)", days and gpus and f"{days * len(gpus):.4g}", "booked x GPUs"),
        ("2 (d)", "hardware", device_names(gpus or summary["devices"]), "as its driver names it"),
        ("2 (d)", "training tokens, repeated ones included", tokens and f"{tokens:.4g}", "counted"),
    ]
    known = energy["energy_j"] is not None
    how = f"{percent(energy['measured_share'])} measured, {percent(energy['modelled_share'])} modelled" if known else ""
    if energy["missing_device_s"] > 0:
        how += f"; {percent(energy['missing_share_of_device_time'])} of device time without a reading: a lower bound"
    for what, joules in (("IT equipment", energy["energy_j"]), ("with PUE", energy["facility_energy_j"])):
        mwh = None if joules is None else f"{kwh_from_j(joules) / 1000:.3g}"
        rows.append(("2 (e)", f"energy consumption of this training, {what} (MWh)", mwh, how))
    lines = [
        f"# Annex XI of Regulation (EU) 2024/1689, section 1: run {_cell(run['run_id'])}",
        "",
        "Of this training run alone: other experiments, data preparation and inference are not in it. Section 2, of"
        f" models with systemic risk, is {OPEN}.",
        "",
        "| point | asked for | value | how it is known |",
        "|---|---|---|---|",
    ]
    for point, asked, value, source in sorted(rows, key=lambda row: row[0]):
        told = (_cell(value), _cell(source)) if value else (OPEN, "")
        lines.append(f"| {point} | {asked} | {told[0]} | {told[1]} |")
    return "\n".join([*lines, ""])


def _cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


_STAGES: Final = ("data engineering", "model training", "system integration", "end of life")
"""Of the provider's boundary, in section 6.2 of the specification."""


def _sci_ai(summary: Mapping[str, Any]) -> str:
    sci, energy = summary["sci"], summary["energy"]
    scores = []
    for score in sci["scores"] if sci else ():
        per = 1e9 if score["unit"] == "parameter" else 1.0
        unit = "billion parameters" if score["unit"] == "parameter" else score["unit"]
        figures = {"g_per_unit": _figure(score["g_per_unit"] * per), "units": _figure(score["units"] / per)}
        scores.append({"functional_unit": unit, **figures, "complete": score["complete"], "method": score["method"]})
    document = {
        "specification": "SCI for AI, Green Software Foundation, over ISO/IEC 21031:2024: SCI = (E x I + M) per R",
        "run_id": summary["run"]["run_id"],
        "persona": "provider",
        "boundary": {
            stage: "this run" if stage == "model training" else f"not in this run: {OPEN}" for stage in _STAGES
        },
        "energy_kwh": _figure(energy["facility_energy_kwh"]),
        "intensity_g_per_kwh": _figure(summary["carbon"]["intensity_g_per_kwh"]),
        "operational_g": _figure(sci["operational_g"] if sci else None),
        "embodied_g": _figure(sci["embodied_g"] if sci else None),
        "scores": scores,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _figure(value: float | None) -> float | None:
    return None if value is None else float(_digits(value))


def read_contracts(path: Path) -> list[dict[str, Any]]:
    """Read hourly certificates, as ``write_standard`` describes them.

    Raises:
        ConfigError: The file cannot be read, lacks a column, or holds a value that makes no sense. Names file and line.
    """
    try:
        reader = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline=""))
        absent = {"timestamp_utc", *_BOUNDS} - set(reader.fieldnames or ())
        out = [] if absent else [_certificate(row, f"{path}:{reader.line_num}") for row in reader]
    except (OSError, UnicodeError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if absent:
        raise ConfigError(f"{path}:1: the column {min(absent)!r} is not there; want timestamp_utc, kwh, g_per_kwh")
    return out


_BOUNDS: Final = {"kwh": 1e9, "g_per_kwh": 5000.0}


def _certificate(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    told: dict[str, Any] = {"zone": (row.get("zone") or "").strip(), "residual_g_per_kwh": None}
    residual = {"residual_g_per_kwh": 5000.0} if (row.get("residual_g_per_kwh") or "").strip() else {}
    for name, most in (_BOUNDS | residual).items():
        try:
            told[name] = float(row[name])
        except (TypeError, ValueError):
            told[name] = math.nan
        if not 0.0 <= told[name] <= most:
            raise ConfigError(f"{where}: {name} is {row[name]!r}; want a number between 0 and {most:g}")
    try:
        start = datetime.fromisoformat((row["timestamp_utc"] or "").strip())
        told["hour"], rest_s = divmod(start.astimezone(UTC).timestamp(), S_PER_HOUR)
    except (ValueError, OverflowError):
        start, rest_s = datetime.max, math.nan
    if start.tzinfo is None or rest_s:
        raise ConfigError(
            f"{where}: timestamp_utc is {row['timestamp_utc']!r}; want the start of an hour with its zone, like"
            " 2026-01-01T13:00Z"
        )
    return told


COLUMNS: Final = (
    "hour_utc", "zone", "energy_kwh", "missing_device_s", "location_g", "location_basis", "unpriced_kwh",
    "matched_kwh", "matched_g", "residual_g_per_kwh", "market_g",
)  # fmt: skip
"""Of scope2_hourly.csv. Energy is with PUE. An empty cell is not known; an empty hour is of an earlier part of the run
whose journals are elsewhere; ``market_g`` is empty where part of the hour has neither certificate nor residual mix."""


def _scope2_hourly(folder: Path) -> str:
    path = folder / CONTRACTS
    contracts = read_contracts(path) if path.exists() else None
    run = read_run_json(folder)
    books = read_ranks(
        folder, run, lambda path: read_books(path, RankBooks(lambda entry: by_span_and_zone(entry, int(S_PER_HOUR))))
    )
    hours: dict[tuple[int, str], EntrySums] = {}
    for rank in books.values():
        for (hour, zone), sums in rank.groups.items():
            hours.setdefault((hour, zone or ""), EntrySums()).merge(sums, str(rank.opens[0]["host"]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    earlier = [rank.carried for rank in books.values() if rank.carried.duration_s or rank.carried.energy_j]
    if earlier:
        kwh = kwh_from_j(sum(totals.facility_j or totals.energy_j for totals in earlier))
        grams, unpriced_j = sum(t.operational_g for t in earlier), sum(t.unpriced_j for t in earlier)
        writer.writerow(["", "", _digits(kwh), "", _digits(grams), "", _digits(kwh_from_j(unpriced_j)), "", "", "", ""])
    for (hour, zone), sums in sorted(hours.items()):
        writer.writerow(_hour_row(hour, zone, sums, contracts))
    return text.getvalue()


def _hour_row(hour: int, zone: str, sums: EntrySums, contracts: list[dict[str, Any]] | None) -> Iterator[str]:
    kwh = kwh_from_j(sums.facility_j)
    market: list[float | None] = [None] * 4
    if contracts is not None:
        here = [each for each in contracts if each["hour"] == hour and each["zone"] in ("", zone)]
        matched_kwh = matched_g = 0.0
        for each in here:
            claimed_kwh = min(each["kwh"], kwh - matched_kwh)
            each["kwh"] -= claimed_kwh  # of one without a zone, another zone gets the rest
            matched_kwh, matched_g = matched_kwh + claimed_kwh, matched_g + claimed_kwh * each["g_per_kwh"]
        told = [each["residual_g_per_kwh"] for each in here if each["residual_g_per_kwh"] is not None]
        rest_kwh = kwh - matched_kwh if kwh - matched_kwh > 1e-12 * kwh else 0.0
        residual = told[0] if told else None
        known = residual is not None or not rest_kwh
        market = [matched_kwh, matched_g, residual, matched_g + rest_kwh * (residual or 0.0) if known else None]
    missing_s = sum(max(device.missing_s or 0.0, 0.0) for device in sums.devices.values())
    anything = any(device.known for device in sums.devices.values())
    yield from (iso(hour * S_PER_HOUR), zone, _digits(kwh if anything else None), _digits(missing_s))
    yield from (
        _digits(sums.operational_g if sums.priced else None),
        ", ".join(sorted({key[3] for key in sums.zone_j})),
    )
    yield from (_digits(kwh_from_j(sums.facility_j - sums.priced_facility_j)), *map(_digits, market))


def first_difference(folder: Path, standard: str) -> str | None:
    """Return what is wrong with a standard's file in a run's folder, or None where it follows from the journals.

    Args:
        folder: The run's folder.
        standard: A key of ``FILES``.

    Raises:
        OSError: The file cannot be read.
    """
    found = (folder / FILES[standard]).read_bytes().decode(errors="replace").split("\n")
    try:
        derived = derive(folder, standard).split("\n")
    except (RunFolderError, ConfigError) as error:
        return f"it cannot be derived again: {error}"
    for line, (a, b) in enumerate(zip(found, derived, strict=False), 1):
        if a != b:
            return f"line {line} is {a!r}, and the raw journals give {b!r}"
    return (
        None if len(found) == len(derived) else f"it has {len(found)} lines, and the raw journals give {len(derived)}"
    )
