"""Great Britain: carbonintensity.org.uk of the National Energy System Operator, every 30 minutes, without a key.

Endpoints and shapes: https://carbon-intensity.github.io/api-definitions (2026-11-21). At most 14 days a call; bounds
are inclusive, so neighbouring calls repeat a half hour. ``actual`` is null for now and later, and for a region always:
there the operator's own estimate, which it calls forecast, is all there is.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from greentrain.carbon.client import Key
from greentrain.carbon.source import HISTORY_S, Ask, GridRow, SourceFacts, WrongAnswer, iso, unix_s
from greentrain.errors import UnknownZoneError
from greentrain.types import CarbonBasis, CarbonKind

BASE_URL: Final = "https://api.carbonintensity.org.uk"
_NAMES: Final = (
    "NORTH-SCOTLAND SOUTH-SCOTLAND NORTH-WEST-ENGLAND NORTH-EAST-ENGLAND YORKSHIRE"
    " NORTH-WALES-MERSEYSIDE-AND-CHESHIRE SOUTH-WALES WEST-MIDLANDS EAST-MIDLANDS EAST-ENGLAND SOUTH-WEST-ENGLAND"
    " SOUTH-ENGLAND LONDON SOUTH-EAST-ENGLAND ENGLAND SCOTLAND WALES"
)
REGIONS: Final = {name: number for number, name in enumerate(_NAMES.split(), 1)}
"""Region ids by name (the page above, table of regions)."""
_HALF_HOUR_S: Final = 1800.0
_DAY_S: Final = 86400.0
_RANGE_S: Final = 13 * _DAY_S
"""Asked for in one call; 14 days are allowed."""


class GreatBritain:
    """Great Britain, or one region of it.

    Args:
        zone: ``GB``, or ``GB-LONDON``, ``GB-13``: a region by name or number, 1 to 17.
        base_url: Address of the API.

    Raises:
        UnknownZoneError: The zone is not in Great Britain.
    """

    def __init__(self, zone: str = "GB", *, base_url: str = BASE_URL) -> None:
        name, self._region = _region(zone)
        self.facts = SourceFacts(
            name="gb",
            zone=name,
            basis=CarbonBasis.AVERAGE,
            accounting="consumption, direct",
            citation="National Energy System Operator, carbonintensity.org.uk",
            resolution="30 min",
            terms="CC BY 4.0, https://github.com/carbon-intensity/terms",
            base_url=base_url,
            remedy="No key is needed: see https://carbonintensity.org.uk whether the service has changed",
        )
        self.key = Key()

    def asks(self, now_unix_s: float) -> Sequence[Ask]:
        """Return the last day with the running half hour, the next two days, and the three weeks before."""
        now_s = now_unix_s // _HALF_HOUR_S * _HALF_HOUR_S
        asks = [
            self._past("recent", now_s - _DAY_S, now_s + _HALF_HOUR_S, 600.0, needed=True),
            Ask(name="forecast", path=self._path(f"{iso(now_s)}/fw48h"), fresh_s=_HALF_HOUR_S),
        ]
        end_s, number = now_s - _DAY_S, 1
        while end_s > now_s - HISTORY_S:
            start_s = max(end_s - _RANGE_S, now_s - HISTORY_S)
            asks.append(self._past(f"past-{number}", start_s, end_s, _DAY_S))
            end_s, number = start_s, number + 1
        return asks

    def read(self, ask: Ask, answer: Any) -> Sequence[GridRow]:
        """Return the half hours of an answer.

        Raises:
            WrongAnswer: It is of another region.
            LookupError, TypeError, ValueError, AttributeError: It is not of the documented shape.
        """
        found = answer["data"]
        if self._region is not None:
            found = found[0] if isinstance(found, list) else found
            if found["regionid"] != self._region:
                raise WrongAnswer(f"it is of region {found['regionid']!r:.20}, not {self._region}")
            found = found["data"]
        return [_row(item) for item in found]

    def _past(self, name: str, t0_s: float, t1_s: float, fresh_s: float, *, needed: bool = False) -> Ask:
        return Ask(name=name, path=self._path(f"{iso(t0_s)}/{iso(t1_s)}"), fresh_s=fresh_s, needed=needed)

    def _path(self, span: str) -> str:
        return f"/intensity/{span}" if self._region is None else f"/regional/intensity/{span}/regionid/{self._region}"


def _row(item: Any) -> GridRow:
    values = item["intensity"]
    actual = values.get("actual")
    value, kind = (values["forecast"], CarbonKind.FORECAST) if actual is None else (actual, CarbonKind.ACTUAL)
    return GridRow(unix_s(item["from"]), unix_s(item["to"]), value, kind)


def _region(zone: str) -> tuple[str, int | None]:
    """Return the canonical zone and the number of its region; None: the whole country."""
    plain = re.sub(r"[\s_-]+", "-", zone.strip().upper())
    if plain in ("GB", "GBR", "UK", "GREAT-BRITAIN"):
        return "GB", None
    name = re.sub(r"^(GB|UK)-", "", plain)
    number = int(name) if name.isdecimal() else REGIONS.get(name)
    if number in REGIONS.values():
        return f"GB-{next(key for key, value in REGIONS.items() if value == number)}", number
    raise UnknownZoneError(
        f"carbon.zone {zone!r} is not in Great Britain, which is all that carbon.signal 'gb' knows: use 'GB', or a"
        f" region: {', '.join(f'GB-{name}' for name in REGIONS)}"
    )
