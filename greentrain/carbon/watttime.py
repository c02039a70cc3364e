"""WattTime, API v3: the marginal rate (MOER) of a region, every 5 minutes.

Endpoints and shapes: https://docs.watttime.org (2026-11-21). ``/login`` gives a token of 30 minutes for user and
password; ``/v3/forecast`` starts with the running 5 minutes; ``/v3/historical`` gives up to 32 days a call. Without a
subscription only the region CAISO_NORTH is answered. Limits: 3,000 calls in 5 minutes, 100 of them logins.
"""

import re
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final

from greentrain.carbon.client import GridClient, Key, Secret, TemporaryError
from greentrain.carbon.source import HISTORY_S, Ask, GridRow, SourceFacts, WrongAnswer, iso, unix_s
from greentrain.errors import UnknownZoneError
from greentrain.types import CarbonBasis, CarbonKind, g_per_kwh_from_lb_per_mwh

BASE_URL: Final = "https://api.watttime.org"
USER: Final = "WATTTIME_USER"
PASSWORD: Final = "WATTTIME_PASSWORD"
SIGNAL: Final = "co2_moer"
UNITS: Final = "lbs_co2_per_mwh"
_DAY_S: Final = 86400.0
_STEP_S: Final = 300.0
_TOKEN_S: Final = 25 * 60.0
"""A token is good for 30 minutes."""
_REGION: Final = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")


class WattTime:
    """One region of WattTime.

    Args:
        zone: Region, such as ``CAISO_NORTH``.
        user: Name of the account.
        password: Password of the account.
        base_url: Address of the API.

    Raises:
        UnknownZoneError: The zone is not of this form.
    """

    def __init__(self, zone: str, user: Secret, password: Secret, *, base_url: str = BASE_URL) -> None:
        self._zone = zone.strip().upper()
        if not _REGION.fullmatch(self._zone):
            raise UnknownZoneError(
                f"carbon.zone {zone!r} is no region of WattTime; they look like 'CAISO_NORTH' or 'PJM_DC', and"
                " https://api.watttime.org/v3/region-from-loc tells that of a place"
            )
        self.facts = SourceFacts(
            name="watttime",
            zone=self._zone,
            basis=CarbonBasis.MARGINAL,
            accounting="production, direct CO2 only",
            citation="WattTime, API v3, marginal operating emissions rate",
            resolution="5 min",
            terms="those of the WattTime account; the values may not be passed on",
            base_url=base_url,
            variant=SIGNAL,
            remedy=f"Check {USER} and {PASSWORD}, and that the account has carbon.zone ({BASE_URL}/v3/my-access);"
            " without a subscription there is CAISO_NORTH only",
        )
        self.key = Login(user, password)

    def asks(self, now_unix_s: float) -> Sequence[Ask]:
        """Return the forecast, which holds the running minutes, the last day, and the three weeks before."""
        now_s = now_unix_s // _STEP_S * _STEP_S
        common = {"region": self._zone, "signal_type": SIGNAL}
        ahead = {**common, "horizon_hours": "72"}

        def past(name: str, t0_s: float, t1_s: float, fresh_s: float) -> Ask:
            params = {**common, "start": iso(t0_s), "end": iso(t1_s)}
            return Ask(name=name, path="/v3/historical", params=params, fresh_s=fresh_s)

        return [
            Ask(name="forecast", path="/v3/forecast", params=ahead, fresh_s=_STEP_S, needed=True),
            past("recent", now_s - _DAY_S, now_s, 3 * _STEP_S),
            past("past-1", now_s - HISTORY_S, now_s - _DAY_S, _DAY_S),
        ]

    def read(self, ask: Ask, answer: Any) -> Sequence[GridRow]:
        """Return the values of an answer in g/kWh.

        Raises:
            WrongAnswer: It is of another region, signal or unit.
            LookupError, TypeError, ValueError, AttributeError: It is not of the documented shape.
        """
        meta = answer["meta"]
        for key, wanted in (("region", self._zone), ("signal_type", SIGNAL), ("units", UNITS)):
            if meta[key] != wanted:
                raise WrongAnswer(f"its {key} is {meta[key]!r:.40}, not {wanted!r}")
        step_s = float(meta.get("data_point_period_seconds") or _STEP_S)
        issued_s = unix_s(meta["generated_at"]) if meta.get("generated_at") else None
        # a marginal rate is never measured: what is past is a model's estimate
        kind = CarbonKind.FORECAST if ask.name == "forecast" else CarbonKind.ESTIMATED
        rows = []
        for item in answer["data"]:
            t0_s = unix_s(item["point_time"])
            rows.append(GridRow(t0_s, t0_s + step_s, _g_per_kwh(item["value"]), kind, issued_s))
        return rows


def _g_per_kwh(value: Any) -> Any:
    """Convert a number; leave what is none to the check of values."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return g_per_kwh_from_lb_per_mwh(value) if is_number else value


class Login(Key):
    """Sends a token that user and password get from the server.

    Args:
        user: Name of the account.
        password: Password of the account.
    """

    def __init__(self, user: Secret, password: Secret) -> None:
        self._user = user
        self._password = password
        self._token: Secret | None = None
        self._until_s = 0.0

    def headers(self, client: GridClient) -> Mapping[str, str]:
        """Return the header with the token, after a login where the token is old."""
        if self._token is None or time.monotonic() > self._until_s:
            pair = b64encode(f"{self._user.reveal()}:{self._password.reveal()}".encode()).decode()
            answer = client.once("/login", {}, {"Authorization": f"Basic {pair}"}).data
            token = answer.get("token") if isinstance(answer, dict) else None
            if not (isinstance(token, str) and token.isascii() and token.isprintable() and token):
                raise TemporaryError(f"{client.host}/login gave no token")
            self._token, self._until_s = Secret(token), time.monotonic() + _TOKEN_S
        return {"Authorization": f"Bearer {self._token.reveal()}"}

    def renew(self) -> bool:
        """Forget the token; return True if there was one that had been used before."""
        had, self._token = self._token is not None, None
        return had
