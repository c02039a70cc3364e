"""A run folder as it grows: what its files say now, from another process or another machine."""

import math
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final

import psutil

from greentrain.errors import RunFolderError
from greentrain.ledger.journal import WRONG_DATA, JournalTail, check_format
from greentrain.ledger.totals import StageUse, stage_uses
from greentrain.report.live.exporting import RunJson
from greentrain.report.live.rank_state import RankState, SavedGrams, rate_per_s, saved_so_far
from greentrain.report.live.snapshot import DeviceNow, PlanNow, Snapshot, snapshot_of

RUNNING: Final = "running"
SILENT: Final = "silent"
AWAY: Final = "away"
KILLED: Final = "killed"
SILENT_S: Final = 60.0
"""Without a booking for so long, a rank is silent (s); while it lives it books every 10 s or more often."""
MOST_BOOK_S: Final = 10.0
SLACK_S: Final = 3.0
"""A process that lives has booked within ``run.book_s`` and its sensors' lateness (s)."""
SAVED_S: Final = 30.0
"""Time between two looks at what a plan has saved (s)."""
BORN_S: Final = 5.0
"""A process that was born later than this after its ``open`` record is another one with the same number (s)."""
LAST_EVENTS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class EventNow:
    """Something that happened."""

    t_unix_s: float
    rank: int
    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankNow:
    """One rank."""

    rank: int
    host: str
    status: str
    """``running``, ``silent``, ``killed``, or how it ended, as its closing line says."""
    booked_unix_s: float | None
    power_w: float | None
    """Of its devices whose power is known, over the last booked interval (W)."""
    steps: int
    devices: Sequence[DeviceNow]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNow:
    """A run as its files have it. Sums are over ranks, as of their last bookings; None: not known."""

    run_id: str
    name: str
    folder: str
    status: str
    """``running``; ``silent``: nothing was booked for a minute; ``away``: it has left and will be started again;
    ``killed``: its processes are gone without a closing line; else how it ended, such as ``finished``."""
    over: bool
    """True if nothing more is to be expected."""
    t_unix_s: float
    duration_s: float
    """Time booked by the rank with most of it (s)."""
    world_size: int
    ranks: Sequence[RankNow]
    energy_j: Mapping[str, float]
    """By provenance (J)."""
    missing_s: float
    power_w: float | None
    operational_g: float | None
    market_g: float | None
    embodied_g: float | None
    unpriced_j: float
    g_per_kwh: float | None
    zone: str | None
    kind: str | None
    pue: float | None
    gears: Sequence[str]
    """In use; several where ranks differ."""
    cap: float | None
    """Power limit that was decided on last, as a share of the limit found; None: nobody decided."""
    steps: int
    """Of the rank with most of them."""
    tokens: int | None
    samples: int | None
    stages: Sequence[StageUse]
    """By phase and kind of device, of what is in the journals."""
    steps_per_s: float | None
    """Over the last minute."""
    tokens_per_s: float | None
    samples_per_s: float | None
    tokens_per_j: float | None
    """Over the last minute."""
    tokens_asked: float | None
    """``policy.tokens``."""
    eta_s: float | None
    """Time left at the speed of the last minute (s); None without ``policy.tokens``, or in a pause."""
    plan: PlanNow | None
    saved: SavedGrams | None
    events: Sequence[EventNow]
    """The last ones, oldest first."""

    @property
    def total_j(self) -> float | None:
        """Known energy (J)."""
        return sum(self.energy_j.values()) if self.energy_j else None


class RunFollow:
    """Reads what is new in a run folder; a look costs what was written since the last one.

    Args:
        folder: The folder of one run.
        unix_s: The clock (s since the epoch, UTC).
    """

    def __init__(self, folder: Path, unix_s: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._unix_s = unix_s
        self._run_json = RunJson()
        self._ranks: dict[Path, tuple[JournalTail, RankState]] = {}
        self._saved: SavedGrams | None = None
        self._next_saved_s = 0.0

    def look(self) -> RunNow:
        """Return what the files say now.

        Raises:
            RunFolderError: The folder holds no run, cannot be read, or is of a newer version.
        """
        run = self._run_json.read(self.folder)
        for path in sorted(self.folder.glob("rank-*.jsonl")):
            tail, rank = self._ranks.setdefault(path, (JournalTail(path), RankState()))
            opened = rank.opened
            try:
                for record in tail.read():
                    rank.add(record)
            except OSError as error:
                raise RunFolderError(f"cannot read the run file {path}: {error.strerror}") from error
            if rank.opened is not None and rank.opened is not opened:
                check_format(rank.opened.get("format"), path)
        try:
            now = self._now(run)
            _check_finite(now)
            return now
        except WRONG_DATA as error:
            raise RunFolderError(
                f"{self.folder} holds a run.json or a record that makes no sense ({error!r}): it was damaged, or"
                " changed by hand"
            ) from error

    def _now(self, run: Mapping[str, Any]) -> RunNow:
        states = sorted((r for _, r in self._ranks.values() if r.opened), key=lambda r: int((r.opened or {})["rank"]))
        if not states:
            raise RunFolderError(f"{self.folder} has no rank-*.jsonl file with a line yet; give the folder of one run")
        now_s = self._unix_s()
        first = states[0]
        shots = [snapshot_of(state, run, t_unix_s=now_s) for state in states]
        world = shots[0].world_size
        book_s = float(((run.get("config") or {}).get("run") or {}).get("book_s") or MOST_BOOK_S)
        paths = {id(state): path for path, (_, state) in self._ranks.items()}
        live = [_status(state, paths[id(state)], now_s, book_s) for state in states]
        status = _of_run([word for word, shot in zip(live, shots, strict=True) if shot.rank < world])
        active = [i for i, word in enumerate(live) if word == RUNNING and shots[i].rank < world]
        ranks = [_rank(shots[i], states[i], live[i], i in active) for i in range(len(states))]
        powers = [rank.power_w for rank in ranks if rank.power_w is not None]
        recent = [states[i].recent for i in active]
        speed = {
            what: _sum([rate_per_s(entries, what) for entries in recent]) for what in ("tokens", "samples", "energy_j")
        }
        tokens, samples = sum(s.tokens for s in shots) or None, sum(s.samples for s in shots) or None
        joules, speed_of = speed["energy_j"], speed["tokens"] if tokens else speed["samples"]
        asked = ((run.get("config") or {}).get("policy") or {}).get("tokens")
        plan = shots[0].plan
        left = None if asked is None else max(0.0, asked - (tokens or samples or 0))
        paused = plan is not None and plan.paused
        steps_per_s = max((rate_per_s(entries, "steps") or 0.0 for entries in recent), default=None)
        return RunNow(
            run_id=shots[0].run_id,
            name=shots[0].name,
            folder=str(self.folder),
            status=status,
            over=status not in (RUNNING, SILENT, AWAY),
            t_unix_s=now_s,
            duration_s=max(state.totals.duration_s for state in states),
            world_size=world,
            ranks=ranks,
            energy_j=_sums([shot.energy_j for shot in shots]),
            missing_s=sum(shot.missing_s for shot in shots),
            power_w=sum(powers) if powers else None,
            operational_g=_sum([shot.operational_g for shot in shots]),
            market_g=_sum([shot.market_g for shot in shots]),
            embodied_g=_sum([shot.embodied_g for shot in shots]),
            unpriced_j=sum(shot.unpriced_j for shot in shots),
            g_per_kwh=shots[0].g_per_kwh,
            zone=shots[0].zone,
            kind=shots[0].kind,
            pue=shots[0].pue,
            gears=sorted({shot.gear for shot in shots if shot.gear and shot.rank < world}),
            cap=first.cap,
            steps=max(shot.steps for shot in shots),
            tokens=tokens,
            samples=samples,
            stages=stage_uses((state.books.sums, state.books.sensors) for state in states),
            steps_per_s=steps_per_s,
            tokens_per_s=speed["tokens"] if tokens else None,
            samples_per_s=speed["samples"] if samples else None,
            tokens_per_j=speed["tokens"] / joules if tokens and joules and speed["tokens"] is not None else None,
            tokens_asked=asked,
            eta_s=left / speed_of if left is not None and speed_of and not paused else None,
            plan=plan,
            saved=self._what_is_saved(run, first, now_s),
            events=_events(states),
        )

    def _what_is_saved(self, run: Mapping[str, Any], first: RankState, now_s: float) -> SavedGrams | None:
        if run.get("plan") and first.decisions and now_s >= self._next_saved_s:
            self._next_saved_s = now_s + SAVED_S
            try:
                self._saved = saved_so_far(run, first)
            except (KeyError, TypeError, ValueError, ZeroDivisionError):  # a plan of another version
                self._saved = None
        return self._saved


def find_run(folder: Path) -> Path:
    """Return the folder itself, where it is a run's, or the newest run in it.

    Raises:
        RunFolderError: There is none.
    """
    if not folder.is_dir():
        raise RunFolderError(f"{folder} is no folder; give that of one run, or of runs")
    if any(folder.glob("rank-*.jsonl")):
        return folder
    newest = max(folder.glob("*/rank-*.jsonl"), key=lambda path: path.stat().st_mtime, default=None)
    if newest is None:
        raise RunFolderError(f"{folder} holds no run: neither it nor a folder in it has a rank-*.jsonl file")
    return newest.parent


def _status(state: RankState, journal: Path, now_s: float, book_s: float) -> str:
    opened = state.opened or {}
    if state.close is not None:
        reason = str(state.close["reason"])
        return AWAY if reason == "left" else reason
    told_s = [float(event["t"]) for event in state.events]
    here = opened.get("host") == socket.gethostname()
    if here:  # a clock that was set meanwhile sets files apart from the books, which keep the time of their start
        told_s.append(_written_s(journal))
    quiet_s = now_s - max(state.booked_unix_s or 0.0, float(opened["t"]), *told_s)
    if here and quiet_s > 1.5 * book_s + SLACK_S and not _is_alive(opened):  # it may be in another container
        return KILLED
    return SILENT if quiet_s > SILENT_S else RUNNING


def _check_finite(value: Any, name: str = "a figure") -> None:
    """Raise ValueError or OverflowError where JSON or a person could not be shown a figure in it."""
    if isinstance(value, int | float):
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value}")
    elif is_dataclass(value):
        for item in fields(value):
            _check_finite(getattr(value, item.name), item.name)
    elif isinstance(value, Mapping):
        for item in value.values():
            _check_finite(item, name)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            _check_finite(item, name)


def _written_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _is_alive(opened: Mapping[str, Any]) -> bool:
    try:
        process = psutil.Process(int(opened["pid"]))
        born_s = process.create_time()
        if process.status() == psutil.STATUS_ZOMBIE:  # nobody has asked yet how it ended
            return False
    except (psutil.NoSuchProcess, ValueError):
        return False
    except psutil.AccessDenied:
        return True
    return born_s < float(opened["t"]) + BORN_S


def _of_run(words: Sequence[str]) -> str:
    """Return the state of the run: that of its ranks that may still say something, else the worst end."""
    for word in (RUNNING, SILENT, AWAY, KILLED):
        if word in words:
            return word
    return next((word for word in words if word != "finished"), words[0])


def _rank(shot: Snapshot, state: RankState, status: str, draws: bool) -> RankNow:
    powers = [device.power_w for device in shot.devices if device.power_w is not None]
    return RankNow(
        rank=shot.rank,
        host=shot.host,
        status=status,
        booked_unix_s=state.booked_unix_s,
        power_w=sum(powers) if draws and powers else None,
        steps=shot.steps,
        devices=shot.devices if draws else [replace(device, power_w=None, states={}) for device in shot.devices],
    )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _sums(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    out: dict[str, float] = {}
    for part in parts:
        for key, value in part.items():
            out[key] = out.get(key, 0.0) + value
    return out


def _events(states: Sequence[RankState]) -> list[EventNow]:
    found = [
        EventNow(
            t_unix_s=float(event["t"]),
            rank=int((state.opened or {})["rank"]),
            name=str(event["name"]),
            text=str(event.get("text", "")),
        )
        for state in states
        for event in state.events
    ]
    return sorted(found, key=lambda event: event.t_unix_s)[-LAST_EVENTS:]
