"""What the controller of a fleet knows and did: jobs, the plan of now, actions with reasons, samples, who may write.

One SQLite file (write-ahead log: readers never wait), or a database of Postgres by its URL; the same SQL in both.
Controllers exclude each other by a lease in the database: a row that whoever writes renews in the same transaction,
so that a controller that was thought dead writes nothing more. An action is there before it is carried out, with its
outcome after: one without was cut off, and whoever comes next looks at the engine before it acts.

A reader (``greentrain ui``, ``fleet explain``) opens ``FleetState(place, read_only=True)``:

* :meth:`FleetState.now`: the controller, and all jobs with what each waits for and until when;
* :meth:`FleetState.plan`: the plan of now as ``Plan.to_dict`` wrote it (problem, rows by step, prices, bound), with its
  reason and time;
* :meth:`FleetState.samples`: power and grams of each site over time against its cap, measured | modelled | missing;
* :meth:`FleetState.actions`: what was done, why, and what came of it; dry runs are marked.
"""

import contextlib
import json
import math
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from greentrain.errors import GreenTrainError
from greentrain.types import Provenance
from greentrain.utils import redact
from greentrain.utils.imports import try_import
from greentrain.utils.never_raise import warn

with try_import("postgres") as _postgres:
    import psycopg

FORMAT: Final = 1
LEASE_S: Final = 120.0
"""How long a controller that says nothing keeps its place (s): more than the longest plan takes."""
KEEP_S: Final = 120 * 24 * 3600.0
"""How long samples and stays are kept (s)."""
KEPT_PLANS: Final = 50
BUSY_S: Final = 5.0
"""How long a transaction waits for that of another process (s)."""
_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS fleet (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS lease (id INTEGER PRIMARY KEY, holder TEXT NOT NULL, epoch BIGINT NOT NULL,"
    " until_s DOUBLE PRECISION NOT NULL, beat_s DOUBLE PRECISION NOT NULL, dry INTEGER NOT NULL, note TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS jobs (name TEXT PRIMARY KEY, document TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS actions (seq BIGINT PRIMARY KEY, job TEXT NOT NULL, outcome TEXT,"
    " document TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS plans (seq BIGINT PRIMARY KEY, t_s DOUBLE PRECISION NOT NULL, reason TEXT NOT NULL,"
    " document TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS samples (t_s DOUBLE PRECISION NOT NULL, site TEXT NOT NULL, document TEXT NOT NULL,"
    " PRIMARY KEY (t_s, site))",
    "CREATE TABLE IF NOT EXISTS stays (job TEXT NOT NULL, from_s DOUBLE PRECISION NOT NULL,"
    " until_s DOUBLE PRECISION NOT NULL, document TEXT NOT NULL, PRIMARY KEY (job, from_s))",
    "INSERT INTO fleet (name, value) VALUES ('format', '1') ON CONFLICT (name) DO NOTHING",
    "INSERT INTO lease (id, holder, epoch, until_s, beat_s, dry, note) VALUES (1, '', 0, 0, 0, 0, '')"
    " ON CONFLICT (id) DO NOTHING",
)


class FleetStateError(GreenTrainError):
    """The state of a fleet cannot be read or written; nothing is carried out that cannot be noted first."""


class FleetHeldError(FleetStateError):
    """Another controller has the fleet, or has taken it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetJob:
    """A job as the controller last saw it."""

    name: str
    state: str
    """``held`` (by us), ``queued`` (released, no room yet), ``running``, ``done``, ``failed``, ``gone``."""
    user: str = ""
    waits_for: str = ""
    """In words, such as 'cleaner hours: the plan starts it at 03:00Z'; empty: for nothing."""
    until_s: float | None = None
    """Until when (s since the epoch, UTC); None: not known, or it does not wait."""
    since_s: float | None = None
    """Since when it is in this state (s since the epoch, UTC)."""
    stay_s: float | None = None
    """Since when it runs in this row (s since the epoch, UTC); None: it does not run."""
    row: str = ""
    """The row it runs in, for people; empty: none."""
    site: str = ""
    pool: str = ""
    nodes: int = 0
    gear: str = ""
    cap: float | None = None
    """Share of the power limits; None: no cap."""
    power_w: float | None = None
    """IT power over idle nodes (W); None: unknown."""
    basis: str = Provenance.MISSING.value
    """Of the power: measured | modelled | missing."""
    tokens_left: float | None = None
    tokens: float | None = None
    """All that it trains; None: unknown."""
    tokens_per_s: float | None = None
    """Of its row."""
    seen_s: float | None = None
    """When its tokens were as they stand here (s since the epoch, UTC)."""
    release_s: float | None = None
    deadline_s: float | None = None
    """(s since the epoch, UTC)."""
    late: bool = False
    """Whether the plan of now misses its deadline."""
    engine_id: str = ""
    """What the engine calls it, such as the number of a job of Slurm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStay:
    """A time that is over, in which a job ran in one row; of no length where it ended without."""

    job: str
    from_s: float
    """(s since the epoch, UTC)."""
    until_s: float
    row: str = ""
    nodes: int = 0
    pool: str = ""
    user: str = ""
    end: str = ""
    """How the job ended with it: ``done``, ``failed``, ``cancelled``, ``gone`` (nobody says how); empty: it did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAction:
    """One thing that the controller did, or would do."""

    seq: int
    t_s: float
    """When it was decided (s since the epoch, UTC)."""
    job: str
    verb: str
    """``hold``, ``release``, ``requeue``, ``resize``, ``cap``, ``gear``, ``event``."""
    what: str = ""
    """For people: 'to 4 nodes of gpu', 'to 70% until 18:00Z'."""
    reason: str = ""
    outcome: str | None = None
    """``done``, ``refused: ...``, ``dry run``; None: it was cut off before anybody knew."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSample:
    """A site at a time."""

    t_s: float
    """(s since the epoch, UTC)."""
    site: str
    power_w: float | None
    """Facility power of its jobs over that of idle nodes; None: unknown."""
    basis: str = Provenance.MODELLED.value
    """measured | modelled | missing: the weakest of the jobs'."""
    cap_w: float | None = None
    """What idle nodes leave of the cap (W); None: no cap."""
    g_per_kwh: float | None = None
    grams: float | None = None
    """Emitted since the sample before; None: unknown."""
    grams_basis: str = Provenance.MODELLED.value
    """measured (watts of every job, or what its run booked while nobody looked) | modelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetController:
    """Who controls a fleet."""

    holder: str
    """Host and process id; empty: nobody ever did."""
    alive: bool
    """Whether it was heard of within its lease. Jobs go on as they are when it is not."""
    beat_s: float
    """When it was last heard of (s since the epoch, UTC); 0: never."""
    dry_run: bool = False
    note: str = ""
    """What it has to say: empty, or what is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetNow:
    """A fleet at one moment."""

    name: str
    controller: FleetController
    jobs: tuple[FleetJob, ...]
    emitted_g: float = 0.0
    """What its jobs emitted since it is controlled, of the samples that know it (g)."""


class FleetState:
    """The state of a fleet; its methods may be called from any thread.

    Args:
        place: Path of the SQLite file, or ``postgresql://...``.
        read_only: Whether nothing is written; the file must be there then.
        clock: Returns the time (s since the epoch); None: that of this machine, or of the server of Postgres.

    Raises:
        FleetStateError: It cannot be opened, is damaged (read only), or a newer GreenTrain made it.
        MissingExtraError: Postgres was named, and its client is not installed.
    """

    def __init__(
        self, place: "str | Path", *, read_only: bool = False, clock: Callable[[], float] | None = None
    ) -> None:
        self.place = str(place)
        self._remote = self.place.startswith(("postgresql://", "postgres://"))
        self._read_only, self._clock, self._lock = read_only, clock, threading.RLock()
        self._connection: Any = None
        self._epoch: int | None = None
        self._lease_s = LEASE_S
        self._errors: tuple[type[Exception], ...] = (sqlite3.Error,)
        if self._remote:
            _postgres.check()
            self._errors = (psycopg.Error,)
        try:
            self._open()
        except FleetStateError as error:
            if self._remote or read_only or not _damaged(error):
                raise
            self._set_aside()
            self._open()

    def _open(self) -> None:
        if not self._read_only:
            with self._transaction(write=True) as ask:
                for sql in _TABLES:
                    ask(sql)
        try:
            with self._transaction() as ask:
                if not self._remote and (said := ask("PRAGMA quick_check(1)")[0][0]) != "ok":
                    raise FleetStateError(f"{self.place} is damaged: {said}") from sqlite3.DatabaseError(said)
                found = int(ask("SELECT value FROM fleet WHERE name = 'format'")[0][0])
        except BaseException:
            self.close()
            raise
        if found > FORMAT:
            self.close()
            raise FleetStateError(f"{self._shown} has format {found}; this GreenTrain reads up to {FORMAT}: upgrade it")

    def _set_aside(self) -> None:
        """Keep a damaged file under another name: what a controller needs, the engine and the specification say."""
        self.close()
        aside = f"{self.place}.damaged-{time.time_ns()}"
        os.replace(self.place, aside)
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.replace(self.place + suffix, aside + suffix)
        warn(f"{self.place} was damaged and is now {aside}; the fleet's state begins anew from what the engine says")

    @property
    def _shown(self) -> str:
        return redact.text(self.place) if self._remote else self.place

    def close(self) -> None:
        """Close it; the lease stays until :meth:`release`."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                with contextlib.suppress(Exception):
                    connection.close()

    # -- reading -----------------------------------------------------------------------------------------------

    def now(self) -> FleetNow:
        """Return the controller and all jobs, of one moment."""
        with self._transaction() as ask:
            ((holder, until_s, beat_s, dry, note),) = ask("SELECT holder, until_s, beat_s, dry, note FROM lease")
            fleet = dict(ask("SELECT name, value FROM fleet"))
            rows = ask("SELECT document FROM jobs ORDER BY name")
            alive = bool(holder) and self._time_s(ask) < until_s
        controller = FleetController(holder=holder, alive=alive, beat_s=beat_s, dry_run=bool(dry), note=note)
        jobs = tuple(FleetJob(**json.loads(text)) for (text,) in rows)
        emitted_g = float(fleet.get("emitted_g", 0.0))
        return FleetNow(name=fleet.get("name", ""), controller=controller, jobs=jobs, emitted_g=emitted_g)

    def plan(self, unless_s: float = -1.0) -> dict[str, Any] | None:
        """Return ``t_s``, ``reason`` and ``plan`` (as ``Plan.to_dict`` wrote it) of the newest plan; None: none yet.

        Args:
            unless_s: ``t_s`` of a plan that is known already: None where it is the newest (s since the epoch).
        """
        with self._transaction() as ask:
            sql = "SELECT t_s, reason, document FROM plans WHERE seq = (SELECT MAX(seq) FROM plans) AND t_s <> ?"
            found = ask(sql, unless_s)
        return None if not found else {"t_s": found[0][0], "reason": found[0][1], "plan": json.loads(found[0][2])}

    def samples(self, since_s: float = 0.0, until_s: float = 1e18, site: str | None = None) -> list[FleetSample]:
        """Return samples in their order.

        Args:
            since_s: From when on (s since the epoch, UTC).
            until_s: Until before when (s since the epoch, UTC).
            site: Of one site; None: of all.
        """
        with self._transaction() as ask:
            sql = "SELECT document FROM samples WHERE t_s >= ? AND t_s < ? AND (site = ? OR ? = 1) ORDER BY t_s, site"
            return [
                FleetSample(**json.loads(text)) for (text,) in ask(sql, since_s, until_s, site or "", int(site is None))
            ]

    def actions(self, *, job: str | None = None, after: int = 0, most: int = 200) -> list[FleetAction]:
        """Return the last actions in their order.

        Args:
            job: Of one job; None: of all.
            after: Only those with a higher ``seq``.
            most: At most so many.
        """
        with self._transaction() as ask:
            sql = "SELECT outcome, document FROM actions WHERE seq > ? AND (job = ? OR ? = 1) ORDER BY seq DESC LIMIT ?"
            found = ask(sql, after, job or "", int(job is None), most)
        return [replace(FleetAction(**json.loads(text)), outcome=outcome) for outcome, text in reversed(found)]

    def stays(self, since_s: float = 0.0) -> list[FleetStay]:
        """Return what jobs did until they changed or ended, in its order; nothing where an earlier version wrote.

        Args:
            since_s: Those that ended after this (s since the epoch, UTC).
        """
        with contextlib.suppress(FleetStateError), self._transaction() as ask:
            found = ask("SELECT document FROM stays WHERE until_s >= ? ORDER BY from_s, job", since_s)
            return [FleetStay(**json.loads(text)) for (text,) in found]
        return []

    def unknown(self) -> list[FleetAction]:
        """Return actions without an outcome: their controller was cut off."""
        with self._transaction() as ask:
            found = ask("SELECT document FROM actions WHERE outcome IS NULL ORDER BY seq")
        return [FleetAction(**json.loads(text)) for (text,) in found]

    # -- writing -----------------------------------------------------------------------------------------------

    def take(self, name: str, *, dry_run: bool = False, lease_s: float = LEASE_S, holder: str | None = None) -> float:
        """Become the controller of the fleet, and return when it was controlled first (s since the epoch).

        A holder of this host whose process is gone loses its place at once, any other one when its lease is over.

        Args:
            name: Of the fleet; a file holds one.
            dry_run: Whether this one changes nothing.
            lease_s: How long its place is kept when it says nothing (s).
            holder: Who it is; None: host and process id.

        Raises:
            FleetHeldError: Another one is alive.
            FleetStateError: It is the state of another fleet.
        """
        holder = holder or f"{socket.gethostname()}:{os.getpid()}"
        with self._transaction(write=True) as ask:
            now_s = self._time_s(ask)
            ((before, epoch_before),) = ask("SELECT holder, epoch FROM lease")
            sql = "UPDATE lease SET holder = ?, epoch = epoch + 1, until_s = ?, beat_s = ?, dry = ?, note = ''"
            sql += " WHERE epoch = ? AND (until_s <= ? OR ? = 1)"
            ask(sql, holder, now_s + lease_s, now_s, int(dry_run), epoch_before, now_s, int(_is_gone(before)))
            ((who, epoch, until_s, beat_s),) = ask("SELECT holder, epoch, until_s, beat_s FROM lease")
            if (who, epoch) != (holder, epoch_before + 1):
                raise FleetHeldError(
                    f"{who} controls this fleet ({self._shown}), heard of {now_s - beat_s:.0f} s ago; two would undo"
                    f" each other's work: stop it, or wait {until_s - now_s:.0f} s if it is dead"
                )
            for key, value in (("name", name), ("begun_s", repr(now_s))):
                ask("INSERT INTO fleet (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING", key, value)
            known = dict(ask("SELECT name, value FROM fleet"))
            if known["name"] != name:
                raise FleetStateError(
                    f"{self._shown} is the state of fleet {known['name']!r}, not of {name!r}: name another"
                )
        self._epoch, self._lease_s = epoch, lease_s
        return float(known["begun_s"])

    def release(self) -> None:
        """Give the fleet back, so that another controller need not wait. Never raises."""
        with contextlib.suppress(FleetStateError), self._written() as ask:
            ask("UPDATE lease SET until_s = 0")
        self._epoch = None

    def write(
        self,
        *,
        jobs: Sequence[FleetJob] | None = None,
        plan: tuple[str, dict[str, Any]] | None = None,
        samples: Sequence[FleetSample] = (),
        stays: Sequence[FleetStay] = (),
        note: str = "",
    ) -> None:
        """Write what is known now, all or nothing, and be heard of.

        Args:
            jobs: All jobs of the fleet, in place of those noted before; None: they stay.
            plan: Why there is a new one, and the plan as ``Plan.to_dict`` says it; None: that of before stays.
            samples: New samples.
            stays: What is over since they were written last.
            note: What is wrong, for people; empty: nothing.

        Raises:
            FleetHeldError: Another controller has taken the fleet.
            FleetStateError: It cannot be written.
        """
        with self._written(note) as ask:
            if jobs is not None:
                known: dict[str, str] = dict(ask("SELECT name, document FROM jobs"))
                told = {job.name: _text(job) for job in jobs}
                for name in known.keys() - told.keys():
                    ask("DELETE FROM jobs WHERE name = ?", name)
                sql = "INSERT INTO jobs (name, document) VALUES (?, ?)"
                sql += " ON CONFLICT (name) DO UPDATE SET document = excluded.document"
                for name, text in told.items():
                    if known.get(name) != text:
                        ask(sql, name, text)
            if plan is not None:
                seq, t_s = self._next(ask, "plans"), self._time_s(ask)
                ask(
                    "INSERT INTO plans (seq, t_s, reason, document) VALUES (?, ?, ?, ?)",
                    seq,
                    t_s,
                    plan[0],
                    _json(plan[1]),
                )
                ask("DELETE FROM plans WHERE seq <= ?", seq - KEPT_PLANS)
            for stay in stays:
                sql = "INSERT INTO stays (job, from_s, until_s, document) VALUES (?, ?, ?, ?)"
                sql += (
                    " ON CONFLICT (job, from_s) DO UPDATE SET until_s = excluded.until_s, document = excluded.document"
                )
                ask(sql, stay.job, stay.from_s, stay.until_s, _text(stay))
            for sample in samples:
                sql = "INSERT INTO samples (t_s, site, document) VALUES (?, ?, ?) ON CONFLICT (t_s, site) DO NOTHING"
                ask(sql, sample.t_s, sample.site, _text(sample))
            if samples:  # which are forgotten one day, their sum is not
                ask("DELETE FROM samples WHERE t_s < ?", samples[-1].t_s - KEEP_S)
                ask("DELETE FROM stays WHERE until_s < ?", samples[-1].t_s - KEEP_S)
                sql = "INSERT INTO fleet (name, value) VALUES ('emitted_g', ?)"
                sql += " ON CONFLICT (name) DO UPDATE SET value = excluded.value"
                emitted = dict(ask("SELECT name, value FROM fleet")).get("emitted_g", 0.0)
                ask(sql, repr(float(emitted) + sum(sample.grams or 0.0 for sample in samples)))

    def intend(
        self, job: str, verb: str, *, t_s: float, what: str = "", reason: str = "", dry_run: bool = False
    ) -> int:
        """Note an action before it is carried out, and return its number.

        Args:
            job: Of which job.
            verb: What is done.
            t_s: When it was decided (s since the epoch, UTC).
            what: The same with its figures, for people.
            reason: Why.
            dry_run: Whether it will not be carried out: that is its outcome.

        Raises:
            FleetHeldError: Another controller has taken the fleet: do not carry it out.
            FleetStateError: It cannot be noted: do not carry it out.
        """
        with self._written(None) as ask:
            seq = self._next(ask, "actions")
            action = FleetAction(seq=seq, t_s=t_s, job=job, verb=verb, what=what, reason=reason, dry_run=dry_run)
            sql = "INSERT INTO actions (seq, job, outcome, document) VALUES (?, ?, ?, ?)"
            ask(sql, seq, job, "dry run" if dry_run else None, _text(action))
        return seq

    def conclude(self, seq: int, outcome: str) -> None:
        """Note what came of an action; what has an outcome keeps it.

        Args:
            seq: Its number.
            outcome: ``done``, or why not.
        """
        with self._written(None) as ask:
            ask("UPDATE actions SET outcome = ? WHERE seq = ? AND outcome IS NULL", outcome, seq)

    # -- inside ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _written(self, note: str | None = "") -> Iterator[Callable[..., list[Any]]]:
        """Open a transaction that renews the lease: where another has it, nothing is written."""
        if self._epoch is None:
            raise FleetHeldError(f"this process does not control the fleet ({self._shown}), so it writes nothing")
        with self._transaction(write=True) as ask:
            now_s = self._time_s(ask)
            sql = (
                "UPDATE lease SET until_s = ?, beat_s = ?, note = CASE WHEN ? = 1 THEN ? ELSE note END WHERE epoch = ?"
            )
            ask(sql, now_s + self._lease_s, now_s, int(note is not None), note or "", self._epoch)
            ((holder, epoch),) = ask("SELECT holder, epoch FROM lease")
            if epoch != self._epoch:
                raise FleetHeldError(f"{holder} has taken the fleet ({self._shown}); this process writes nothing more")
            yield ask

    @contextlib.contextmanager
    def _transaction(self, *, write: bool = False) -> Iterator[Callable[..., list[Any]]]:
        """Yield what asks the database and returns rows; all that is asked in one is of one moment."""
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._connect()
                cursor = self._connection.cursor()

                def ask(sql: str, *values: Any) -> list[Any]:
                    cursor.execute(sql.replace("?", "%s") if self._remote else sql, values)
                    return cursor.fetchall() if cursor.description else []

                if self._remote:
                    cursor.execute("BEGIN" if write else "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                else:
                    cursor.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                try:
                    yield ask
                except BaseException:
                    with contextlib.suppress(Exception):
                        cursor.execute("ROLLBACK")
                    raise
                cursor.execute("COMMIT")
            except self._errors as error:
                self.close()  # a connection that broke is made anew the next time
                raise FleetStateError(f"the state of the fleet ({self._shown}): {_words(error)}") from error

    def _connect(self) -> Any:
        if self._remote:
            return psycopg.connect(self.place, autocommit=True, connect_timeout=int(BUSY_S))
        path = Path(self.place)
        if self._read_only and not path.is_file():
            raise FleetStateError(f"{path} is not there: greentrain fleet run makes it; name that of the specification")
        mode = "?mode=ro" if self._read_only else ""
        try:
            connection = sqlite3.connect(
                f"{path.absolute().as_uri()}{mode}",
                uri=True,
                timeout=BUSY_S,
                isolation_level=None,
                check_same_thread=False,
            )
        except sqlite3.OperationalError as error:
            raise FleetStateError(f"{path} cannot be opened: {error}; its folder must exist and be writable") from error
        if not self._read_only:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")  # an action that was noted stays, whatever loses power
        return connection

    def _time_s(self, ask: Callable[..., list[Any]]) -> float:
        if self._clock is None and self._remote:  # controllers on several hosts go by one clock
            return float(ask("SELECT EXTRACT(EPOCH FROM clock_timestamp())")[0][0])
        return (self._clock or time.time)()

    @staticmethod
    def _next(ask: Callable[..., list[Any]], table: str) -> int:
        return int(ask(f"SELECT COALESCE(MAX(seq), 0) + 1 FROM {table}")[0][0])


def _is_gone(holder: str) -> bool:
    """Return whether a holder was a process of this host that is no more."""
    host, _, pid = holder.rpartition(":")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


def _damaged(error: FleetStateError) -> bool:
    cause = error.__cause__
    return isinstance(cause, sqlite3.DatabaseError) and not isinstance(cause, sqlite3.OperationalError)


def _words(error: Exception) -> str:
    return redact.text(" ".join(str(error).split()))


def _text(value: Any) -> str:
    return _json(asdict(value))


def _json(value: Any) -> str:
    return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)


def _finite(value: Any) -> Any:
    """Return a value without what JSON has no word for: unknown in its place."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
