"""Computes ``typical.json`` from hourly traces: ``python -m tools.make_typical TRACES_DIR``.

For each zone: the mean of each (month, UTC hour), the factor of each UTC weekday (its mean over the mean of the
month-hour values of the same hours), and the root mean square of what is left. The weekday factors make the
profile's mean over the year equal to the trace's.
"""

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from greentrain.carbon.trace import TraceRows, read_trace
from greentrain.carbon.typical import ATTRIBUTION, BASIS
from greentrain.types import S_PER_HOUR

YEAR: Final = 2022
OUTPUT: Final = Path(__file__).resolve().parents[1] / "greentrain" / "carbon" / "typical.json"
_SOURCES: Final = (
    # trace file, zone (Electricity Maps' names), short form (EIA's balancing authority), name
    ("us_caiso_2022_eia.csv", "US-CAL-CISO", "CISO", "California ISO"),
    ("us_pjm_2022_eia.csv", "US-MIDA-PJM", "PJM", "PJM Interconnection"),
    ("us_miso_2022_eia.csv", "US-MIDW-MISO", "MISO", "Midcontinent ISO"),
    ("us_ercot_2022_eia.csv", "US-TEX-ERCO", "ERCO", "Electric Reliability Council of Texas"),
    ("us_nyiso_2022_eia.csv", "US-NY-NYIS", "NYIS", "New York ISO"),
    ("us_soco_2022_eia.csv", "US-SE-SOCO", "SOCO", "Southern Company"),
    ("us_bpat_2022_eia.csv", "US-NW-BPAT", "BPAT", "Bonneville Power Administration"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hour:
    month: int
    hour: int
    weekday: int
    g_per_kwh: float


def make_typical(traces_dir: Path) -> str:
    """Return the text of typical.json.

    Args:
        traces_dir: Folder with the hourly EIA traces of 2022.

    Raises:
        TraceError: A trace is missing or malformed.
        ValueError: A trace is not hourly.
    """
    head = {
        "made_by": "python -m tools.make_typical",
        "source": ATTRIBUTION,
        "carrier": "hourly gCO2/kWh by HewlettPackard/dc-rl (MIT), drop-outs interpolated",
        "terms": "statistics of U.S. government data in the public domain; cite EIA",
        "accounting": BASIS,
        "unit": "gCO2/kWh",
        "calendar": "months, hours and weekdays (Monday first) of UTC",
        "year": YEAR,
    }
    lines = [f"{json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    zones = [_zone(read_trace(traces_dir / file), zone, alias, name) for file, zone, alias, name in _SOURCES]
    return "{\n" + "\n".join(lines) + '\n"zones": {\n' + ",\n".join(zones) + "\n}\n}\n"


def _zone(rows: TraceRows, zone: str, alias: str, name: str) -> str:
    if rows.step_s != S_PER_HOUR:
        raise ValueError(f"the trace of {zone} has a step of {rows.step_s:g} s; an hourly one is needed")
    hours = []
    for t_s, value in zip(rows.t_unix_s, rows.values, strict=True):
        moment = datetime.fromtimestamp(t_s, UTC)
        hours.append(_Hour(month=moment.month - 1, hour=moment.hour, weekday=moment.weekday(), g_per_kwh=value))
    by_hour = _means(hours, lambda h: h.month * 24 + h.hour, lambda h: h.g_per_kwh, 12 * 24)
    actual = _means(hours, lambda h: h.weekday, lambda h: h.g_per_kwh, 7)
    usual = _means(hours, lambda h: h.weekday, lambda h: by_hour[h.month * 24 + h.hour], 7)
    weekday = [a / u for a, u in zip(actual, usual, strict=True)]
    errors = [h.g_per_kwh / (by_hour[h.month * 24 + h.hour] * weekday[h.weekday]) - 1 for h in hours]
    fields: dict[str, Any] = {
        "name": name,
        "aliases": [alias],
        "mean_g_per_kwh": round(math.fsum(h.g_per_kwh for h in hours) / len(hours), 1),
        "spread": round(math.sqrt(math.fsum(e * e for e in errors) / len(errors)), 3),
        "weekday": [round(f, 4) for f in weekday],
    }
    months = [json.dumps([round(v, 1) for v in by_hour[24 * m : 24 * m + 24]]) for m in range(12)]
    text = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in fields.items()]
    return f"{json.dumps(zone)}: {{\n" + "\n".join(text) + '\n "month_hour": [\n  ' + ",\n  ".join(months) + "\n ]}"


def _means(
    hours: Sequence[_Hour], key: Callable[[_Hour], int], value: Callable[[_Hour], float], groups: int
) -> Sequence[float]:
    values: list[list[float]] = [[] for _ in range(groups)]
    for hour in hours:
        values[key(hour)].append(value(hour))
    return [math.fsum(group) / len(group) for group in values]


def main() -> None:
    """Write typical.json."""
    parser = argparse.ArgumentParser(description="Compute the typical carbon profiles from hourly EIA traces.")
    parser.add_argument("traces_dir", type=Path, help="folder with us_*_2022_eia.csv")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    arguments.output.write_text(make_typical(arguments.traces_dir), encoding="utf-8")


if __name__ == "__main__":
    main()
