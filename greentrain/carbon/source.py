"""What a server of grid data is to GreenTrain: where to ask, how to read the answer, and with which key."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Protocol

from greentrain.carbon.client import Key
from greentrain.types import CarbonBasis, CarbonKind, CarbonPoint

MAX_G_PER_KWH: Final = 5000.0
"""Above any grid: a plant of lignite emits about 1,100 g/kWh (IPCC AR5 WG3, annex III, table A.III.2)."""
HISTORY_S: Final = 22 * 86400.0
"""How far back a source is asked: the forecast uses three weeks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One thing to ask a server for, again and again."""

    name: str
    """Constant over time: ``recent``, ``forecast``, ``past-1``."""
    path: str
    """Below the base URL."""
    fresh_s: float
    """How long an answer is good for (s)."""
    params: Mapping[str, str] = field(default_factory=dict)
    needed: bool = False
    """False: the signal can do without, as where a plan has no forecasts."""


class GridRow(NamedTuple):
    """One value as a server gave it, not checked yet."""

    t0_unix_s: float
    t1_unix_s: float
    g_per_kwh: Any
    """A number where all is well; None where the server does not know."""
    kind: CarbonKind
    issued_unix_s: float | None = None


class Stated:
    """A signal of one place, whose values are of one source."""

    zone: str
    source: str
    accounting: str
    basis: CarbonBasis = CarbonBasis.AVERAGE

    def _at(
        self,
        t0_unix_s: float,
        t1_unix_s: float,
        g_per_kwh: float | None,
        kind: CarbonKind = CarbonKind.ESTIMATED,
        **more: float | None,
    ) -> CarbonPoint:
        """Return the intensity of an interval, as this signal states it."""
        return CarbonPoint(
            t0_unix_s=t0_unix_s,
            t1_unix_s=t1_unix_s,
            g_per_kwh=g_per_kwh,
            zone=self.zone,
            source=self.source,
            kind=kind,
            basis=self.basis,
            accounting=self.accounting,
            **more,
        )

    def _says(
        self, signal: str, resolution: str, terms: str, kind: str = CarbonKind.ESTIMATED, **more: str
    ) -> Mapping[str, str]:
        """Return what the report says about this signal."""
        who = {"signal": signal, "zone": self.zone, "source": self.source, "kind": str(kind), "basis": str(self.basis)}
        return {**who, "accounting": self.accounting, "resolution": resolution, "terms": terms, **more}


class WrongAnswer(Exception):
    """The server answered, but not to what it was asked: another zone, another unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """What a source says of itself; most of it is what :meth:`greentrain.types.CarbonSignal.describe` tells."""

    name: str
    """As in the configuration."""
    zone: str
    basis: CarbonBasis
    accounting: str
    citation: str
    """Who says so, without the year."""
    resolution: str
    terms: str
    base_url: str
    """Where it is, without a key."""
    variant: str = ""
    """What else tells its answers apart from others of the same server and zone."""
    remedy: str
    """What to do where the server says that the key or the zone is wrong."""


class GridSource(Protocol):
    """A server of grid data. Pure, but for its key: it says what to ask and reads what came."""

    @property
    def facts(self) -> SourceFacts:
        """What it is."""

    @property
    def key(self) -> Key:
        """What signs its requests."""

    def asks(self, now_unix_s: float) -> Sequence[Ask]:
        """Return what to ask for, the most urgent first.

        Args:
            now_unix_s: The machine's time (s since the epoch, UTC), used for the bounds of what is asked.
        """

    def read(self, ask: Ask, answer: Any) -> Sequence[GridRow]:
        """Return the values in an answer.

        Args:
            ask: The question.
            answer: The JSON that came.

        Raises:
            WrongAnswer: It is of another zone, unit or accounting.
            LookupError, TypeError, ValueError, AttributeError: It is not of the documented shape.
        """


def intensity(value: Any) -> float | None:
    """Return a checked intensity (g/kWh); None where the server gave none.

    Raises:
        ValueError: It is no number between 0 and 5000.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{value!r:.40} is no number")
    if not (math.isfinite(value) and 0 <= value <= MAX_G_PER_KWH):
        raise ValueError(f"{value!r:.40} is not between 0 and {MAX_G_PER_KWH:g} gCO2e/kWh")
    return float(value)


def unix_s(text: Any) -> float:
    """Return the time of an ISO 8601 text (s since the epoch, UTC).

    Raises:
        ValueError: It is none, or has no time zone.
        TypeError: It is no text.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"the time {text!r} has no time zone")
    return moment.timestamp()


def iso(t_unix_s: float) -> str:
    """Return a time as ISO 8601 in UTC, to the minute."""
    return datetime.fromtimestamp(t_unix_s, UTC).strftime("%Y-%m-%dT%H:%MZ")
