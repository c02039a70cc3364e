"""A grid that is replayed, sped up or both: real time goes in, the grid's time comes out.

Joules and their watts stay those of real time; only the question which intensity holds is asked of another moment. So
24 hours of a recorded grid fit into three minutes of training, with the code that runs at speed 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from greentrain.config.schema import CarbonConfig
from greentrain.types import CarbonKind, CarbonPoint, CarbonSignal, iso
from greentrain.utils.never_raise import call_if_present


@dataclass(frozen=True, slots=True, kw_only=True)
class GridTime:
    """Which moment of the grid belongs to which moment of the machine."""

    unix_s: float
    """A moment (s since the epoch, UTC)."""
    grid_s: float
    """The grid's time then (s since the epoch, UTC)."""
    speed: float = 1.0
    """Grid seconds that pass in a second."""

    @classmethod
    def of(cls, config: CarbonConfig, unix_s: float) -> "GridTime":
        """Return the time of a run that starts at ``unix_s``."""
        start = config.replay_start
        grid_s = unix_s if start is None else datetime.fromisoformat(start).timestamp()
        return cls(unix_s=unix_s, grid_s=grid_s, speed=config.speed)

    @classmethod
    def from_dict(cls, data: Mapping[str, float]) -> "GridTime":
        """Return what ``dataclasses.asdict`` made a mapping of."""
        return cls(unix_s=float(data["unix_s"]), grid_s=float(data["grid_s"]), speed=float(data["speed"]))

    def at(self, unix_s: float) -> float:
        """Return the grid's time (s since the epoch, UTC)."""
        return self.grid_s + self.speed * (unix_s - self.unix_s)

    def real(self, grid_s: float) -> float:
        """Return the machine's time at a moment of the grid (s since the epoch, UTC)."""
        return self.unix_s + (grid_s - self.grid_s) / self.speed

    @property
    def is_real(self) -> bool:
        """True if the grid's time is the machine's."""
        return self.speed == 1.0 and self.grid_s == self.unix_s

    def __str__(self) -> str:
        return f"the grid from {iso(self.grid_s)} on" + ("" if self.speed == 1.0 else f", {self.speed:g} times as fast")


class ReplayedSignal:
    """A signal that is asked in real time and answers of the grid's.

    Args:
        signal: The signal in the grid's own time.
        time: Moment of the grid that belongs to a moment of the machine.
    """

    def __init__(self, signal: CarbonSignal, time: GridTime) -> None:
        self._signal = signal
        self._time = time

    @property
    def time(self) -> GridTime:
        """What belongs to what."""
        return self._time

    def mean(self, t0_unix_s: float, t1_unix_s: float) -> CarbonPoint:
        """Return the grid's time average, at the asked times and marked as an estimate."""
        point = self._signal.mean(self._time.at(t0_unix_s), self._time.at(t1_unix_s))
        return replace(
            point,
            t0_unix_s=t0_unix_s,
            t1_unix_s=t1_unix_s,
            kind=CarbonKind.ESTIMATED,
            source=f"{point.source}; replayed: {self._time}",
        )

    def describe(self) -> Mapping[str, str]:
        """Return what the report says about the signal."""
        return {**self._signal.describe(), "kind": str(CarbonKind.ESTIMATED), "replayed": str(self._time)}

    def forecast(self, t0_unix_s: float, t1_unix_s: float) -> Sequence[CarbonPoint]:
        """Return the forecast points of the signal, if it has any, at real times."""
        ask = getattr(self._signal, "forecast", None)
        points = () if ask is None else ask(self._time.at(t0_unix_s), self._time.at(t1_unix_s))
        real = self._time.real
        return [replace(p, t0_unix_s=real(p.t0_unix_s), t1_unix_s=real(p.t1_unix_s)) for p in points]

    def close(self) -> None:
        """Close the signal."""
        call_if_present(self._signal, "close")
