"""The annual carbon intensity of places: world, countries, states, provinces, bidding zones, cloud regions.

Values are those of the tables in the codecarbon wheel (MIT), each with its original source, and of the EIA
zones of ``typical.json``. A place that is not in the tables is an error that lists the nearest names.

The tables are read without importing codecarbon, which would load pandas and take about a second. The price is that we
depend on its file names, so every miss is an error that says so and offers a way out.
"""

import csv
import difflib
import importlib.metadata
import importlib.util
import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from greentrain.carbon.typical import ATTRIBUTION, BASIS, load_profiles
from greentrain.config.schema import WORLD
from greentrain.errors import CarbonSignalError, UnknownZoneError
from greentrain.types import g_per_kwh_from_lb_per_mwh

_REMEDY = "install 'codecarbon>=3.3.2,<4', or give a number with carbon.g_per_kwh"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecarbonData:
    """The data folder of one codecarbon version."""

    folder: Path
    version: str

    @classmethod
    def installed(cls) -> "CodecarbonData":
        """Find the installed wheel's data.

        Raises:
            CarbonSignalError: codecarbon is not installed, or has no data folder any more.
        """
        spec = importlib.util.find_spec("codecarbon")
        if spec is None or spec.origin is None:
            raise CarbonSignalError(f"emission factors of places come from codecarbon's tables: {_REMEDY}")
        folder = Path(spec.origin).parent / "data"
        try:
            version = importlib.metadata.version("codecarbon")
        except importlib.metadata.PackageNotFoundError:
            version = "of unknown version"
        if not folder.is_dir():
            raise CarbonSignalError(f"codecarbon {version} has no folder {folder}: {_REMEDY}")
        return cls(folder=folder, version=version)

    def read(self, name: str) -> Any:
        """Return a table: the object of a JSON file, or the rows of a CSV file.

        Raises:
            CarbonSignalError: The file is gone, cannot be decoded or is no JSON object.
        """
        is_csv = name.endswith(".csv")
        try:
            with (self.folder / name).open(encoding="utf-8-sig", newline="") as file:
                table = list(csv.DictReader(file)) if is_csv else json.load(file)
        except (OSError, ValueError, csv.Error) as error:
            raise self.changed(name, str(error)) from error
        if not (is_csv or isinstance(table, dict)):
            raise self.changed(name, f"it holds a {type(table).__name__}, not an object")
        return table

    def changed(self, name: str, what: str) -> CarbonSignalError:
        """Return the error that says that a table no longer looks as expected."""
        return CarbonSignalError(
            f"codecarbon {self.version}: cannot read the table {self.folder / name}: {what}. Its layout changed:"
            f" {_REMEDY}"
        )


_NAMES: Final = json.loads(files("greentrain.carbon").joinpath("names.json").read_text("ascii"))
ALPHA_2: Final[Mapping[str, str]] = _NAMES["alpha_2"]
"""Two-letter code by three-letter code, all 249 (ISO 3166-1 as carried by Debian's iso-codes, 2026-02)."""
_COUNTRY_ALIASES: Final[Mapping[str, Sequence[str]]] = _NAMES["aliases"]
_CANADA: Final[Mapping[str, str]] = _NAMES["canada"]
"""Codes of provinces by the names that codecarbon's table has for them."""

OWID: Final = "Our World in Data, Carbon intensity of electricity generation (Ember; Energy Institute), CC BY 4.0"
EGRID: Final = "US EPA eGRID, annual CO2e total output emission rate (STC2ERTA), public domain"
IEA: Final = "IEA Global Energy & CO2 Status Report, world average"
CER: Final = "generation mix of the province (codecarbon's table of 2023) x fossil factors"
MEE: Final = "Ministry of Ecology and Environment and National Bureau of Statistics of China, Announcement 2025 No. 47"
ENTSOE: Final = "ENTSO-E Transparency, generation per type (A75), derived by Khepri, doi:10.5281/zenodo.22285397"
GOOGLE: Final = "Google Cloud, carbon data by region, https://cloud.google.com/sustainability/region-carbon"

_FOSSIL_G_PER_KWH: Final = {"coal": 995.725971, "petroleum": 816.6885263, "naturalGas": 743.8415916}
"""Direct emissions by fuel that codecarbon 3.3.2 applies to the Canadian mixes (core/emissions.py,
from https://github.com/responsibleproblemsolving/energy-usage#conversion-to-co2); other sources count 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceIntensity:
    """The annual average carbon intensity of one place."""

    zone: str
    """Canonical code: ``FRA``, ``US-CA``, ``CA-QC``, ``SE3``, ``gcp:europe-west1``, ``US-CAL-CISO``, ``world``."""
    name: str
    g_per_kwh: float
    year: int | None
    """Year that the value describes (for ``world``: of the report); None where the source does not say."""
    source: str
    accounting: str
    """``production`` or ``consumption``, ``direct`` or ``life cycle``, as the source states it."""
    aliases: Sequence[str] = field(default=())
    """Other spellings that mean the same place."""

    @property
    def citation(self) -> str:
        """Source and year, as printed beside every gram."""
        return f"{self.source}, {self.year}" if self.year is not None else f"{self.source}, year not stated"


def lookup(zone: str, data: CodecarbonData | None = None) -> PlaceIntensity:
    """Return the annual carbon intensity of a place.

    Case, accents and underscores do not matter. A bare name that means two places is refused.

    Args:
        zone: ``world``, an ISO code or name of a country, ``US-CA`` or a state's name, ``CA-QC``, ``CN-BJ``,
            ``SE3``, ``gcp:europe-west1``, or a grid zone such as ``US-CAL-CISO``.
        data: Tables to use; None takes those of the installed codecarbon.

    Raises:
        UnknownZoneError: The place is not in the tables, or the name is ambiguous; the message lists candidates.
        CarbonSignalError: codecarbon is missing or its tables changed.
    """
    table = list(places(data or CodecarbonData.installed()))
    key = _key(zone)
    found = [place for place in table if key == _key(place.zone)]
    found = found or [place for place in table if key in map(_key, place.aliases)]
    found = found or [place for place in table if key == _key(place.name)]
    if not found:
        raise UnknownZoneError(_unknown(zone, table))
    if len(found) > 1:
        codes = " or ".join(f"{place.zone!r} ({place.name})" for place in found)
        raise UnknownZoneError(f"carbon.zone {zone!r} is ambiguous: say {codes}")
    if found[0].g_per_kwh <= 0:
        raise UnknownZoneError(
            f"carbon.zone {zone!r}: {found[0].citation} gives {found[0].g_per_kwh:g} g/kWh for {found[0].name}, which"
            " is no life-cycle value of any grid; give a number with carbon.g_per_kwh"
        )
    return found[0]


def places(data: CodecarbonData) -> Iterator[PlaceIntensity]:
    """Yield every place of the tables.

    Raises:
        CarbonSignalError: A table is gone or has another layout.
    """
    for read, accounting, file in (
        (_world, "production", "private_infra/carbon_intensity_per_source.json"),
        (_countries, "production, life cycle", "private_infra/global_energy_mix.json"),
        (_us_states, "production, direct", "private_infra/2023/usa_emissions.json"),
        (_canada, "production, direct, fossil fuels only", "private_infra/2023/canada_energy_mix.json"),
        (_china, "consumption, direct CO2 only", "private_infra/2023/china_provincial_emissions.json"),
        (_nordic, "production, life cycle", "private_infra/nordic_emissions.json"),
        (_google, "location-based, as published by the provider", "cloud/impact.csv"),
    ):
        try:
            for row in read(data.read(file)):
                yield _place(row, accounting)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise data.changed(file, f"{type(error).__name__}: {error}") from error
    for p in load_profiles():
        yield _place((p.zone, p.name, p.mean_g_per_kwh, p.year, ATTRIBUTION, p.aliases), BASIS)


_Row = tuple[str, str, float, int | None, str, Sequence[str]]
"""Zone, name, g/kWh, year, source and aliases of a place, as a table has them."""


def _place(row: _Row, accounting: str) -> PlaceIntensity:
    zone, name, g_per_kwh, year, source, aliases = row
    return PlaceIntensity(
        zone=zone, name=name, g_per_kwh=g_per_kwh, year=year, source=source, accounting=accounting, aliases=aliases
    )


def _world(table: Any) -> Iterator[_Row]:
    yield WORLD, "World", float(table["world_average"]), 2019, IEA, ()


def _countries(table: Any) -> Iterator[_Row]:
    for code, row in table.items():
        aliases = (*((ALPHA_2[code],) if code in ALPHA_2 else ()), *_COUNTRY_ALIASES.get(code, ()))
        yield code, row["country_name"], float(row["carbon_intensity"]), int(row["year"]), OWID, aliases


def _us_states(table: Any) -> Iterator[_Row]:
    if table["_unit"]["emissions"] != "lbs/MWh":
        raise ValueError(f"the unit is {table['_unit']['emissions']!r}, expected 'lbs/MWh'")
    year = int(table["_source"]["year"])
    for state, row in table.items():
        if not state.startswith("_"):
            g_per_kwh = g_per_kwh_from_lb_per_mwh(float(row["emissions"]))
            yield f"US-{row['regionCode']}", state.title(), g_per_kwh, year, EGRID, (f"US-{state}",)


def _canada(table: Any) -> Iterator[_Row]:
    for province, mix in table.items():
        g_per_kwh = sum(float(mix[fuel]) * factor for fuel, factor in _FOSSIL_G_PER_KWH.items()) / float(mix["total"])
        yield f"CA-{_CANADA[province]}", province.title(), g_per_kwh, None, CER, (f"CA-{province}",)


def _china(table: Any) -> Iterator[_Row]:
    for code, row in table["data"].items():
        yield code, row["description"], float(row["emission_factor"]), int(row["year"]), MEE, tuple(row["names"])


def _nordic(table: Any) -> Iterator[_Row]:
    for code, row in table["data"].items():
        if code in ALPHA_2.values():
            continue  # Finland as a whole: the table of countries has it, with a stated source
        source = f"{ENTSOE}, covers {row['coverage'].split()[0]} of generation"
        alias = f"{code[:2]}-{code}"
        yield code, row["description"], float(row["emission_factor"]), int(row["year"]), source, (alias,)


def _google(table: Any) -> Iterator[_Row]:
    for row in table:
        region = row["region"].replace("cenrtal", "central")  # typing error in codecarbon 3.3.2: me-cenrtal1
        name = f"{row['providerName']}, {row['city'] or row['country_name']}"
        yield f"{row['provider']}:{region}", name, float(row["impact"]), None, GOOGLE, ()


def _key(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'"))
    plain = plain.encode("ascii", "ignore").decode()
    return " ".join(plain.casefold().replace("_", " ").split())


def _unknown(zone: str, table: Sequence[PlaceIntensity]) -> str:
    key = _key(zone)
    if key.split(":")[0] in ("aws", "azure"):
        return (
            f"carbon.zone {zone!r}: of the cloud providers the tables have Google only (as in 'gcp:europe-west1'); name"
            " the country, state or grid zone in which the region stands, for example 'US-VA' or 'IRL'"
        )
    spellings = {_key(text): place for place in table for text in (place.zone, place.name, *place.aliases)}
    near = [spellings[text] for text in difflib.get_close_matches(key, spellings, n=5, cutoff=0.6)]
    country = spellings.get(key.split("-")[0]) if "-" in key else None
    if country is not None:
        near.append(country)
    names = dict.fromkeys(f"{place.zone} ({place.name})" for place in near)
    hint = f"the nearest are {', '.join(names)}" if names else "nothing there has a similar name"
    return (
        f"carbon.zone {zone!r} is in none of the tables; {hint}. Give an ISO country code, a region such as 'US-CA',"
        " 'CA-QC', 'SE3' or 'gcp:europe-west1', 'world' for the world average, or a number with carbon.g_per_kwh"
    )
