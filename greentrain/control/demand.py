"""Demand response: at most X % of the power, or W, or one gear, for a time. Files say so; rank 0 decides, all obey.

::

    free --an event begins--> limited (the strictest of all that hold) --its end, or its file is gone--> free

An event is a JSON or YAML file in the run's folder ``events``, or in ``actuators.demand.dir``, put there by a rename
(``greentrain event power`` does). It is looked for once a second by the thread that books, never in the training's. A
power limit answers it at once. What the cards cannot do, or nobody may set, a plan answers by a pause at the next step.
A gear that is asked for is taken by all ranks after the same step, where neither quality nor a budget rules it out.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from greentrain.control.coordination import RankZeroChannel, SyncSchedule, Words
from greentrain.errors import ConfigError
from greentrain.ledger.active_run import ActiveRun
from greentrain.types import S_PER_HOUR, Gear, iso
from greentrain.utils.topology import job_store
from greentrain.utils.validation import bound, moment, shown
from greentrain.utils.yaml_file import read

T = TypeVar("T")

FOLDER: Final = "events"
FULL: Final = 1.0
LOOK_S: Final = 1.0
"""How often a step looks whether another gear is asked for (s), as files are."""
_KEYS: Final = {"percent", "power_w", "gear", "start", "hours", "reason"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerEvent:
    """What somebody asks for."""

    start_s: float
    """Start (s since the epoch, UTC)."""
    end_s: float
    percent: float | None = None
    """At most this share of the power limits that were found (%)."""
    power_w: float | None = None
    """At most this, of all GPUs of the job (W). With neither: as much as before."""
    gear: Gear | None = None
    """To train in meanwhile, as the plan of a fleet does; None: as before."""
    reason: str = ""

    @classmethod
    def of(cls, data: Any, where: str, written_s: float) -> "PowerEvent":
        """Return the event that a file says.

        Args:
            data: The content: percent, power_w or gear, hours, and where told start (ISO 8601) and reason.
            where: Name of the file, for the message.
            written_s: When it was written (s since the epoch), its start where it tells none.

        Raises:
            ConfigError: A key is unknown, missing or out of bounds.
        """
        if not isinstance(data, Mapping) or not data.keys() <= _KEYS:
            raise ConfigError(f"{where} is no event; its keys are {', '.join(sorted(_KEYS))}")
        percent, power_w, hours, gear = (data.get(key) for key in ("percent", "power_w", "hours", "gear"))
        if None not in (percent, power_w) or (percent, power_w, gear) == (None, None, None) or hours is None:
            raise ConfigError(f"{where} needs hours, and either percent or power_w, or gear")
        if gear not in (None, *Gear):
            raise ConfigError(f"{where}: gear is {shown(gear)}; write one of {', '.join(Gear)}")
        for key, value, most in (("percent", percent, 100.0), ("power_w", power_w, 1e9), ("hours", hours, 24.0 * 366)):
            if value is not None:
                if isinstance(value, bool) or not isinstance(value, int | float):
                    raise ConfigError(f"{where}: {key} is {value!r:.40}; write a number")
                bound(f"{where}: {key}", value, 0.0, most)
        start = data.get("start")
        start_s = written_s if start is None else moment(f"{where}: start", str(start)).timestamp()
        end_s = start_s + hours * S_PER_HOUR
        why = str(data.get("reason") or "")
        kept = None if gear is None else Gear(gear)
        return cls(start_s=start_s, end_s=end_s, percent=percent, power_w=power_w, gear=kept, reason=why)

    def share(self, limit_w: float | None) -> float:
        """Return the most that it allows, as a share of the limits found; watts without limits to compare with: 0."""
        if self.percent is not None:
            return self.percent / 100
        if self.power_w is None:
            return FULL
        return min(FULL, self.power_w / limit_w) if limit_w else 0.0


class EventFiles(Generic[T]):
    """Files of events in some folders, each read again when it has changed.

    Args:
        folders: The folders; those that are not there hold none.
        read: Returns what a file of a time (s since the epoch) says; None: nothing that counts. OSError: it is gone.
    """

    def __init__(self, folders: Sequence[Path], read: Callable[[Path, float], T | None]) -> None:
        self._folders, self._read = folders, read
        self._known: dict[Path, tuple[tuple[int, int], T | None]] = {}

    def events(self) -> Sequence[T]:
        """Return what the files say that are there now."""
        seen: dict[Path, tuple[tuple[int, int], T | None]] = {}
        for folder in self._folders:
            for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                if path.suffix not in (".json", ".yaml", ".yml") or path.name.startswith("."):
                    continue
                try:
                    stat = path.stat()
                    key = stat.st_mtime_ns, stat.st_size
                    known = self._known.get(path)
                    seen[path] = (
                        known if known is not None and known[0] == key else (key, self._read(path, stat.st_mtime))
                    )
                except OSError:
                    continue
        self._known = seen
        return [event for _, event in seen.values() if event is not None]


class Limits(Protocol):
    """What sets power limits: ``greentrain.control.controller.GpuLimits``."""

    @property
    def limit_w(self) -> float | None:
        """Limits found of this process's GPUs (W)."""

    def ceiling(self, share: float) -> float | None:
        """Let no limit be above a share from now on; return what holds now, None: none can be set yet, or at all."""


class DemandResponse:
    """Obeys events in one process of a run.

    Args:
        run: The run.
        limits: Power limits of this process.
        extra: Folder that is watched beside the run's own; None: none.
        pauses: Whether a plan can pause the job.
    """

    def __init__(self, run: ActiveRun, limits: Limits, *, extra: str | None, pauses: bool) -> None:
        self._run, self._limits, self._pauses = run, limits, pauses
        self._files = EventFiles([run.folder / FOLDER, *([Path(extra)] if extra else [])], self._read)
        self._channel: RankZeroChannel | None = None
        self._nth = 1
        self._now: tuple[float, str] = (FULL, "")
        self._holds: float | None = FULL
        self.veto = ""
        """Why the job must stand still now; empty: it need not."""
        self.gear: tuple[Gear | None, str] = (None, "")
        """The gear that is asked for, and why, as rank 0 knows it; None: none is."""
        self._taken: tuple[Gear | None, str] = self.gear
        self._sync: SyncSchedule | None = None
        self._next_s = 0.0

    def look(self) -> bool:
        """Look for events, and obey; about once a second. Returns True where the plan has to be made anew."""
        place = self._run.topology
        if self._channel is None and (place.world_size == 1 or job_store() is not None):
            self._channel = RankZeroChannel(f"{self._run.run_id}/demand", place)
        asked = self.gear
        said = self._decided() if place.rank == 0 else self._heard()
        return self._limited(said) or self.gear != asked

    def stepped(self) -> tuple[Gear | None, str] | None:
        """Note the end of a step of a run without a plan, on every rank; return a gear that is asked for anew.

        All ranks get it after the same step, with why; None in its place: none is asked for any more.
        """
        if self._sync is None:
            channel = RankZeroChannel(f"{self._run.run_id}/gear", self._run.topology)
            self._sync = SyncSchedule(channel, time.monotonic, self._run.warn)
        sync = self._sync

        def say() -> Words:
            found = None
            if sync.is_due(self._next_s):
                self._next_s = time.monotonic() + LOOK_S
                sync.restart()
                found = None if self.gear == self._taken else {"gear": self.gear[0], "why": self.gear[1]}
            return found, sync.steps_until(self._next_s)

        if (found := sync.stepped(say)) is None:
            return None
        self._taken = None if found["gear"] is None else Gear(found["gear"]), str(found["why"])
        return self._taken

    def _limited(self, said: tuple[float, str] | None) -> bool:
        if said is None or (said == self._now and self._holds == said[0]):
            return False
        changed, (share, why), self._now = said != self._now, said, said
        before, self._holds = self._holds, self._limits.ceiling(share)
        kept = self._holds is not None and self._holds <= share + 1e-9
        veto = "" if share >= FULL or kept or not self._pauses else f"a power event allows {share:.0%}: {why}"
        if not changed and self._holds == before and veto == self.veto:
            return False
        again, self.veto = veto != self.veto or changed, veto
        self._tell(share, why, kept=kept)
        return again

    def _tell(self, share: float, why: str, *, kept: bool) -> None:
        text = "no power event holds any more" if share >= FULL else f"at most {share:.0%} of the power limits: {why}"
        if share < FULL and not kept:
            held = "no limit can be set" if self._holds is None else f"the cards take no less than {self._holds:.0%}"
            text += f"; {held}, so " + ("the job pauses" if self.veto else "it is not obeyed in full")
        self._run.event("power", text, share=share, holds=self._holds, paused=bool(self.veto))
        if share < FULL and not kept and not self.veto:
            self._run.warn(f"a power event is not obeyed: {text}")

    def _decided(self) -> tuple[float, str] | None:
        """Return what holds now, the strictest of all, and tell the other ranks where it has changed."""
        now_s, limit_w = self._run.unix_s(), self._limits.limit_w
        job_w = None if limit_w is None else limit_w * self._run.topology.world_size
        holding = [event for event in self._files.events() if event.start_s <= now_s < event.end_s]
        strictest = min(holding, key=lambda event: event.share(job_w), default=None)
        gears = [event for event in holding if event.gear is not None]
        last = max(gears, key=lambda event: event.start_s, default=None)
        self.gear = (None, "") if last is None else (last.gear, last.reason or "a power event")
        said = (FULL, "")
        if strictest is not None and strictest.share(job_w) < FULL:
            share = round(strictest.share(job_w), 6)
            said = share, f"until {iso(strictest.end_s)}" + (strictest.reason and f", {strictest.reason}")
        if said != self._now and self._run.topology.world_size > 1:
            if self._channel is None:
                return said  # alone for now: the others have no way to hear yet, and see their limits as they are
            self._channel.post(self._nth, {"share": said[0], "why": said[1]})
            self._nth += 1
        return said

    def _heard(self) -> tuple[float, str] | None:
        found: tuple[float, str] | None = self._now
        while self._channel is not None and (message := self._channel.heard(self._nth)) is not None:
            self._nth += 1
            found = float(message["share"]), str(message["why"])
        return found

    def _read(self, path: Path, written_s: float) -> PowerEvent | None:
        try:
            return PowerEvent.of(read(path, "power event"), str(path), written_s)
        except ConfigError as error:
            self._run.warn(f"a power event is left out: {error}")
            return None
