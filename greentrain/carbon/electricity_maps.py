"""Electricity Maps, API v4: flow-traced average intensity of a zone, hour by hour.

Endpoints and shapes: https://app.electricitymaps.com/developer-hub/api/reference (2026-11-21). ``history`` is the last
24 h and comes with a free key; ``forecast`` (up to 72 h) and ``past-range`` (10 days a call) want a paid plan. The
last hours are estimates that get revised, so all of it is asked for again. Without a zone the service would locate
the caller: a zone is always sent, and an answer of another one refused.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from greentrain.carbon.client import HeaderKey, Secret
from greentrain.carbon.regions import ALPHA_2
from greentrain.carbon.source import HISTORY_S, Ask, GridRow, SourceFacts, WrongAnswer, iso, unix_s
from greentrain.errors import UnknownZoneError
from greentrain.types import S_PER_HOUR, CarbonBasis, CarbonKind

BASE_URL: Final = "https://api.electricitymaps.com/v4"
VARIABLE: Final = "ELECTRICITY_MAPS_TOKEN"
FACTORS: Final = "lifecycle"
"""Asked for as emissionFactorType; the other one is direct."""
_RANGE_S: Final = 10 * 24 * S_PER_HOUR
"""Longest past-range of hourly values."""
_STEP_S: Final = {"hourly": S_PER_HOUR, "15_minutes": 900.0, "5_minutes": 300.0}
_ZONE: Final = re.compile(r"[A-Z]{2}(-[A-Z0-9]{1,8}){0,3}")
_LISTS: Final = ("history", "forecast", "data", "values")


class ElectricityMaps:
    """One zone of Electricity Maps.

    Args:
        zone: Zone as in https://app.electricitymaps.com: ``DE``, ``US-CAL-CISO``; also a country's three-letter code.
        token: The key.
        base_url: Address of the API.

    Raises:
        UnknownZoneError: The zone is not of this form.
    """

    def __init__(self, zone: str, token: Secret, *, base_url: str = BASE_URL) -> None:
        plain = zone.strip().upper()
        self._zone = ALPHA_2.get(plain, plain)
        if not _ZONE.fullmatch(self._zone):
            raise UnknownZoneError(
                f"carbon.zone {zone!r} is no zone of Electricity Maps; they look like 'DE' or 'US-CAL-CISO' and are"
                f" listed at {BASE_URL}/zones"
            )
        self.facts = SourceFacts(
            name="electricity_maps",
            zone=self._zone,
            basis=CarbonBasis.AVERAGE,
            accounting="consumption, life cycle",
            citation="Electricity Maps, API v4",
            resolution="1 h",
            terms="those of the key's plan; attribute Electricity Maps",
            base_url=base_url,
            variant=FACTORS,
            remedy=f"Check {VARIABLE}, and that its plan covers carbon.zone; zones are listed at {BASE_URL}/zones",
        )
        self.key = HeaderKey("auth-token", token)

    def asks(self, now_unix_s: float) -> Sequence[Ask]:
        """Return the last day, the forecast, and the three weeks before."""
        hour_s = now_unix_s // S_PER_HOUR * S_PER_HOUR
        common = {"zone": self._zone, "temporalGranularity": "hourly", "disableCallerLookup": "true"}
        known, ahead = {**common, "emissionFactorType": FACTORS}, {**common, "horizonHours": "72"}
        asks = [
            Ask(name="recent", path="/carbon-intensity/history", params=known, fresh_s=900.0, needed=True),
            Ask(name="forecast", path="/carbon-intensity/forecast", params=ahead, fresh_s=S_PER_HOUR),
        ]
        end_s, number = hour_s, 1
        while end_s > hour_s - HISTORY_S:
            start_s = max(end_s - _RANGE_S, hour_s - HISTORY_S)
            bounds = {"start": iso(start_s), "end": iso(end_s)}
            path = "/carbon-intensity/past-range"
            asks.append(Ask(name=f"past-{number}", path=path, params={**known, **bounds}, fresh_s=24 * S_PER_HOUR))
            end_s, number = start_s, number + 1
        return asks

    def read(self, ask: Ask, answer: Any) -> Sequence[GridRow]:
        """Return the hours of an answer.

        Raises:
            WrongAnswer: It is of another zone or of other emission factors.
            LookupError, TypeError, ValueError, AttributeError: It is not of the documented shape.
        """
        items = next(answer[key] for key in _LISTS if isinstance(answer.get(key), list))
        for part in (answer, *items):
            if str(part.get("zone", self._zone)).upper() != self._zone:
                raise WrongAnswer(f"it is of zone {part['zone']!r:.20}, not {self._zone!r}")
            if part.get("emissionFactorType", FACTORS) != FACTORS:
                raise WrongAnswer(f"its factors are {part['emissionFactorType']!r:.20}, not {FACTORS!r}")
        starts = [unix_s(item["datetime"]) for item in items]
        step_s = _step_s(answer.get("temporalGranularity"), starts)
        return [
            GridRow(start_s, start_s + step_s, item["carbonIntensity"], _kind(ask, item), _issued_s(answer, item))
            for start_s, item in zip(starts, items, strict=True)
        ]


def _step_s(granularity: Any, starts: Sequence[float]) -> float:
    if granularity is not None:
        return _STEP_S[granularity]
    gaps = [b - a for a, b in pairwise(sorted(set(starts)))]
    return min(max(min(gaps), 300.0), S_PER_HOUR) if gaps else S_PER_HOUR


def _kind(ask: Ask, item: Any) -> CarbonKind:
    if ask.name == "forecast":
        return CarbonKind.FORECAST
    return CarbonKind.ACTUAL if item.get("isEstimated") is False else CarbonKind.ESTIMATED


def _issued_s(answer: Any, item: Any) -> float | None:
    text = item.get("updatedAt") or answer.get("updatedAt")
    return None if text is None else unix_s(text)
