"""Who looks at a run while it runs: exporters, fed once a second in the thread that books, and the live line."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from greentrain.config.schema import ExportConfig, PrometheusConfig
from greentrain.errors import RunFolderError
from greentrain.ledger.active_run import ActiveRun
from greentrain.ledger.journal import RUN_JSON, JournalTail, rank_path, read_object
from greentrain.report.live.rank_state import RankState, SavedGrams, saved_so_far
from greentrain.report.live.snapshot import PowerLimits, Snapshot, snapshot_of
from greentrain.report.live.terminal import LiveLine
from greentrain.types import Topology
from greentrain.utils.never_raise import never_raises, warn


@runtime_checkable
class Exporter(Protocol):
    """Shows the figures of one rank. Called by one thread, the one that books; neither method waits for a network."""

    def update(self, snapshot: Snapshot) -> None:
        """Show these figures from now on."""

    def close(self) -> None:
        """Show nothing any more. Idempotent."""


SAVED_S: Final = 60.0
"""Time between two looks at what a plan has saved (s)."""
CATCH_UP_BYTES: Final = 1 << 24
"""Most of the journal that is read a second: parsing it takes about 0.2 s, and two weeks are read in 20 s."""
LATE_S: Final = 0.5
"""Readings of this long ago are in (s), beyond a sensor's own period."""
LATEST_S: Final = 5.0
"""Where a sensor is later than this, the power of now is that of the last booked interval (s)."""


class Exporting:
    """Shows one rank's figures through exporters; a fault of one is a warning, once.

    The sums are those of the rank's journal, so they go on where a run goes on, and what is shown is what a report will
    say. They move with each booking, at least every ``run.book_s``.

    Args:
        exporters: The exporters; they are closed with it.
    """

    def __init__(self, exporters: Sequence[Exporter]) -> None:
        self._exporters = list(exporters)
        self._rank = RankState()
        self._tail: JournalTail | None = None
        self._run_json = RunJson()
        self._config: Mapping[str, Any] = {}
        self._saved: SavedGrams | None = None
        self._next_saved_s = 0.0

    @never_raises
    def second(self, run: ActiveRun, caps: PowerLimits | None) -> None:
        """Show the figures of now.

        Args:
            run: The run.
            caps: The power limits of the run, where it sets some.
        """
        snapshot = self.snapshot(run, caps) if self._exporters else None
        if snapshot is not None:
            for exporter in self._exporters:
                _harmlessly(run, exporter.update, snapshot)

    @never_raises
    def close(self, run: ActiveRun | None = None) -> None:
        """Show the last figures of a run that has closed its books, and end. Idempotent."""
        if run is not None and self._exporters:
            self.second(run, None)
        while self._exporters:
            never_raises(self._exporters.pop().close)()

    def snapshot(self, run: ActiveRun, caps: PowerLimits | None) -> Snapshot | None:
        """Return the figures of now; None while the journal of an earlier part of the run is being read."""
        if self._tail is None:
            self._tail = JournalTail(rank_path(run.folder, run.topology.rank))
        for record in self._tail.read(CATCH_UP_BYTES):
            self._rank.add(record)
        if self._rank.opened is None or self._tail.behind:
            return None  # half of an earlier part would look like a counter that was reset
        if not self._config:
            self._config = {"name": run.config.run.name, "config": run.config.to_dict()}
        facts = {**self._config, **self._run_json.read(run.folder)}  # another node may not see rank 0's file
        return snapshot_of(
            self._rank,
            facts,
            t_unix_s=run.unix_s(),
            power_w=_power_w(run),
            caps=caps,
            saved=self._what_is_saved(facts),
        )

    def _what_is_saved(self, facts: Mapping[str, Any]) -> SavedGrams | None:
        now_s = time.monotonic()
        if facts.get("plan") and self._rank.decisions and now_s >= self._next_saved_s:
            self._next_saved_s = now_s + SAVED_S
            self._saved = _saved_so_far(facts, self._rank)
        return self._saved


class RunJson:
    """run.json of a folder, read again when it has changed."""

    def __init__(self) -> None:
        self._seen: tuple[int, int] | None = None
        self._facts: Mapping[str, Any] = {}

    def read(self, folder: Path) -> Mapping[str, Any]:
        """Return its content; empty where it cannot be read."""
        path = folder / RUN_JSON
        try:
            stat = path.stat()
            seen = (stat.st_mtime_ns, stat.st_ino)
            if seen != self._seen:
                self._facts, self._seen = read_object(path), seen
        except (OSError, RunFolderError):
            pass
        return self._facts


def _open_prometheus(config: PrometheusConfig, topology: Topology, run_id: str) -> list[Exporter]:
    from greentrain.report.live.prometheus import Page, Textfile

    if config.textfile is not None:
        return [Textfile(Path(config.textfile), f"greentrain-{run_id}-{topology.rank}")]
    try:
        return [Page(config, topology.local_rank)]
    except (OSError, OverflowError) as error:  # the latter for a port above 65535
        port = config.port + topology.local_rank
        why = getattr(error, "strerror", None) or error
        warn(
            f"nobody can listen at {config.host}:{port} ({why}), so Prometheus sees nothing of this"
            " rank: name another export.prometheus.port"
        )
    return []


_saved_so_far = never_raises(saved_so_far)


def _power_w(run: ActiveRun) -> Mapping[str, float] | None:
    """Return the mean of a second just past by device uid (W); None where some sensor has not reported it."""
    late_s = LATE_S + max((sensor.period_s for sensor in run.sensors), default=0.0)
    if late_s > LATEST_S:
        return None
    end_s = time.monotonic() - late_s
    found = run.window(end_s - 1.0, end_s, exact=False)  # each second, of up to eight GPUs
    return None if found is None else found.by_device_j


def _harmlessly(run: ActiveRun, update: Callable[[Snapshot], None], snapshot: Snapshot) -> None:
    try:
        update(snapshot)
    except Exception as error:
        run.warn(f"figures cannot be exported ({error})")


class Viewers:
    """Shows the figures of one run at a time; without an opening it shows nothing."""

    def __init__(self) -> None:
        self._exporting = Exporting(())
        self._line: LiveLine | None = None

    def open_exporters(self, config: ExportConfig, place: Topology, run_id: str) -> None:
        """Show the coming run through what the configuration names; without a word there nothing is shown.

        Args:
            config: The section ``export`` of the configuration.
            place: The place of this rank in the job.
            run_id: The id of the run.

        Raises:
            ConfigError: A token or a folder is wrong.
            MissingExtraError: A library is not installed.
        """
        found: list[Exporter] = []
        try:
            if config.prometheus is not None:
                found += _open_prometheus(config.prometheus, place, run_id)
            if config.otel is not None:
                from greentrain.report.live.otel import Otel

                found.append(Otel(config.otel, place, run_id))
        except BaseException:
            Exporting(found).close()
            raise
        self._exporting = Exporting(found)

    def open_line(self) -> None:
        """Show it in the terminal, where there is one."""
        self._line = LiveLine.open()

    def update(self, run: ActiveRun, caps: PowerLimits | None) -> None:
        """Show the figures of now, and the power limits, where the run sets some."""
        self._exporting.second(run, caps)
        if self._line is not None:
            self._line.update(run)

    def close(self, run: ActiveRun | None = None) -> None:
        """Show the last figures of a run that has closed its books, and end. Idempotent."""
        self._exporting.close(run)
        line, self._line = self._line, None
        if line is not None:
            line.close()
