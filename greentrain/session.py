"""GreenSession: measure any training loop from one ``with`` line.

Example::

    with GreenSession("green.yaml") as green:      # no argument = measure only
        green.watch(model, optimizer)
        for batch in loader:
            loss = model(batch)
            loss.backward()
            optimizer.step()
            green.step(tokens=batch.numel())
    print(green.totals())

The calls on the training thread only append a timestamp to a queue: no sensor is read, nothing is synchronised,
no file is written. A background thread does the rest.
"""

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from greentrain.acting import Acting
from greentrain.carbon.detect import open_signal
from greentrain.carbon.replayed import ReplayedSignal
from greentrain.clock import Clock, SystemClock
from greentrain.closing import report_at_close
from greentrain.config import GreenConfig
from greentrain.control import Control
from greentrain.errors import SessionError
from greentrain.handover import EXIT_REQUEUE
from greentrain.harmless import harmless
from greentrain.kept_estimate import keep_estimate, read_estimate
from greentrain.ledger import Totals
from greentrain.live import name_report
from greentrain.marking import Marking
from greentrain.resuming import STATE_FORMAT, EarlierPart, grid_time_of
from greentrain.run_id import choose_run_id
from greentrain.run_meter import open_run_meter
from greentrain.run_metrics import metrics_of
from greentrain.runtime import ActiveRun
from greentrain.shown import Shown, View
from greentrain.shutdown import ShutdownHook
from greentrain.topology import current_topology
from greentrain.types import CarbonSignal, PowerMeter, Topology
from greentrain.viewers import Viewers
from greentrain.watch import Watcher

if TYPE_CHECKING:
    from greentrain.leaving import Launcher

__all__ = ["STATE_FORMAT", "GreenSession"]


class GreenSession(Marking, Acting, Shown, contextlib.ContextDecorator):
    """Measures the energy and carbon of what runs between ``start`` and ``close``.

    Use it as a context manager, as a decorator of a training function, or through one of the callbacks. It can be
    started again after it was closed; each start is a run of its own unless a checkpoint's state was loaded.

    Args:
        config: Path of a YAML file, mapping, GreenConfig, or None for the defaults (measure only).
        topology: Place of this process in the job; None reads the launcher's variables at each start.
        meter: Power meter to use instead of those the configuration names; closed with the run.
        extra_meters: Meters beside these, of devices that the configuration does not know, such as an offload
            device's ``meter``; read but not closed.
        signal: Carbon signal to use instead of the one the configuration names.
        clock: Time, for tests and replays.
        launcher: Who starts the training again after it left; None: ``greentrain launch``, if that started it.

    Raises:
        ConfigError: The configuration is wrong. Raised here, before training starts.
    """

    def __init__(
        self,
        config: "str | Path | Mapping[str, Any] | GreenConfig | None" = None,
        *,
        topology: Topology | None = None,
        meter: PowerMeter | None = None,
        extra_meters: Sequence[PowerMeter] = (),
        signal: CarbonSignal | None = None,
        clock: Clock | None = None,
        launcher: "Launcher | None" = None,
    ) -> None:
        self.config = GreenConfig.load(config)
        self._clock: Clock = clock or SystemClock()
        self._topology = topology
        self._meter = meter
        self._extra_meters = tuple(extra_meters)
        self._signal = signal if signal is not None else open_signal(self.config.carbon)
        self._own_signal = signal is None
        super().__init__(self._clock.monotonic_s, Control(self.config, self, launcher))
        self._run: ActiveRun | None = None
        self._last: ActiveRun | None = None
        self._hook: ShutdownHook | None = None
        self._viewers = Viewers()
        self._watcher = Watcher(self)
        self._estimate = read_estimate(self.config.run)
        self._resume: EarlierPart | None = None
        self._starts = 0
        self._pid = os.getpid()
        self.parameters: int | None = None
        """Number of parameters of the watched model, for carbon per parameter."""
        self.report_path: Path | None = None
        """report.html of the last closed run (rank 0)."""

    # -- life --------------------------------------------------------------------------------------------------

    def start(self, topology: Topology | None = None) -> "GreenSession":
        """Open the meters and the run folder and begin to measure.

        Args:
            topology: Place of this process, where the caller (a framework's callback) knows better than the
                environment.

        Raises:
            SessionError: The session is running already.
            MeterError: A meter that was asked for by name cannot be opened.
            RunFolderError: The run folder cannot be written.
        """
        if self.active() is not None:
            raise SessionError("this GreenSession is running already; close() it before start(), or make a second one")
        place = topology or self._topology or current_topology()
        self._starts += 1
        self.report_path = None
        run_id = self._run_id(place)
        grid_time = grid_time_of(self.config, run_id, self._control.began_unix_s or self._clock.unix_s())
        signal = self._signal if grid_time.is_real else ReplayedSignal(self._signal, grid_time)
        meter = open_run_meter(self.config.power, place, self._clock, own=self._meter, extra=self._extra_meters)
        run: ActiveRun | None = None
        try:
            self._viewers.open_exporters(self.config.export, place, run_id)
            _tell(self._signal, "start")
            run = ActiveRun(
                config=self.config,
                topology=place,
                meter=meter,
                signal=signal,
                clock=self._clock,
                run_id=run_id,
                carried=None if self._resume is None else self._resume.carried(place),
                parameters=self.parameters,
                on_second=self._each_second,
            )
            if self.config.run.live and place.rank == 0:
                self._viewers.open_line()
            run.start()
            run.know(grid=None if grid_time.is_real else dataclasses.asdict(grid_time))
            keep_estimate(self._estimate, run)
            self._control.started(run, self._signal, grid_time, resumed=self._resume is not None)
        except BaseException:
            self._viewers.close()
            meter.close() if run is None else run.close("exception")
            if self._own_signal:
                _tell(self._signal, "close")
            raise
        self._resume = None
        self._run = run
        self._last = run
        self._pid = os.getpid()
        self._mark_into(run.marks.append)
        self._hook = ShutdownHook(self.close, self._told_to_end)
        self._hook.install()
        self._control.show()
        return self

    def close(self, reason: str = "finished") -> None:
        """End the run: book the rest and, on rank 0, write the report. Idempotent; never raises.

        Args:
            reason: ``finished``, ``left``, ``exception``, ``sigterm`` or ``exit``; kept in the journal.
        """
        run = self.active()
        if run is None:
            return
        if self._hook is not None:
            self._hook.hold()
        self._run = None
        self._mark_into(None)
        self._watcher.release()
        self._control.closed()
        run.know(parameters=self.parameters)
        run.close(reason)
        self._viewers.close(run)
        if self._own_signal:
            _tell(self._signal, "close")
        if self._hook is not None:
            self._hook.remove()
        if run.topology.rank == 0 and self.config.run.report and reason != "left":
            self.report_path = report_at_close(run, wait=reason == "finished")

    def __enter__(self) -> "GreenSession":
        return self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        finished = exc is None or (isinstance(exc, SystemExit) and not exc.code)
        self.close("finished" if finished else "exception")
        self._name_report()

    @property
    def running(self) -> bool:
        """True between start and close, in the process that started it."""
        return self.active() is not None

    def active(self) -> ActiveRun | None:
        """Return the run being measured, None when closed. A forked child inherits the object, not the run."""
        return self._run if self._pid == os.getpid() else None

    @property
    def folder(self) -> Path | None:
        """Folder of the current or last run; None before the first start."""
        return None if self._last is None else self._last.folder

    # -- results -----------------------------------------------------------------------------------------------

    def totals(self) -> Totals:
        """Return the totals of this rank, resumed parts included, as of the last booking. Reads no sensor.

        After ``close`` they are final.
        """
        return Totals() if self._last is None else self._last.ledger.totals

    def metrics(self) -> dict[str, float]:
        """Return figures for a logger: ``green/energy_j`` and so on. What is not known is left out.

        On rank 0 they are sums over all ranks whose journals it can see, as of their last bookings, and
        ``green/ranks`` says how many; on other ranks they are the rank's own. No collective, no sensor read.
        """
        return {} if self._last is None else metrics_of(self._last) | self._control.metrics()

    def energy(self, t0_s: float, t1_s: float, wait_s: float = 0.0) -> dict[str, float] | None:
        """Return the energy by device uid (J) between two ``time.monotonic()`` times of the last half hour.

        Args:
            t0_s: Start (s).
            t1_s: End (s).
            wait_s: How long to wait for the sensors to report past ``t1_s`` (s).

        Returns:
            None if the window is not (or no longer) known, or holds a gap.
        """
        deadline_s = time.monotonic() + wait_s
        while self._last is not None:
            found = self._last.window(t0_s, t1_s)
            if found is not None:
                return found[0] if found[1] == 0 else None
            if time.monotonic() >= deadline_s or self._run is None:
                return None
            time.sleep(0.02)
        return None

    # -- checkpoints ------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Tell that a checkpoint was written just now; call it on every rank.

        Where the plan, or the launcher, wants the run to leave, this call ends the process: its books are closed, all
        ranks are waited for, and it exits with code 75, to be started again from this checkpoint.

        Raises:
            SystemExit: With code 75, where the run was asked to leave.
        """
        run = self.active()
        if run is None:
            return
        steps = self._control.steps or self.totals().steps  # the books are late, and hold the steps that a crash undid
        run.event("checkpoint", f"checkpoint after {steps} steps", steps=steps)
        if self._control.checkpointed():
            self._leave()

    def state_dict(self) -> dict[str, Any]:
        """Return what a training checkpoint must hold to continue the totals: plain JSON types."""
        run = self.active()
        if run is not None:
            run.book_now()
        return {
            "format": STATE_FORMAT,
            "run_id": None if self._last is None else self._last.run_id,
            "rank": None if self._last is None else self._last.topology.rank,
            "totals": self.totals().to_dict(),
            **self._control.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the run of a checkpoint at the next start.

        If the run's folder is still there, its journal counts, lost work after the checkpoint included; otherwise
        the totals of the checkpoint are carried.

        Raises:
            ConfigError: The state is of a newer format, or names a run as no run is named.
            SessionError: The session is running.
        """
        earlier = EarlierPart.of(state)
        if earlier is None:
            return
        if self._run is not None:
            raise SessionError("load_state_dict() must come before start(): the run folder is open already")
        self._resume = earlier
        self._control.load_state_dict(state)

    # -- inside ------------------------------------------------------------------------------------------------

    def _view(self) -> View:
        from greentrain.report.notebook import session_view

        state = "running" if self.running else "not started" if self._last is None else "closed"
        return session_view(self.totals(), state=state, folder=self.folder, page=self.report_path)

    @harmless
    def _name_report(self) -> None:
        if sys.stderr is not None and sys.stderr.isatty():
            name_report(self.report_path)

    def _leave(self) -> None:
        leaving = self._control.leaving
        if leaving is None or not leaving.tell():
            return
        self.close("left")
        leaving.together()
        raise SystemExit(EXIT_REQUEUE)

    def _told_to_end(self) -> None:
        run = self.active()
        if run is not None:
            run.event("sigterm", "the process was told to end and goes on with its own handler")
            run.book_now()
            self._control.wake()  # in a pause, the program could not end itself

    def _run_id(self, place: Topology) -> str:
        carried = None if self._resume is None else self._resume.run_id
        return choose_run_id(self.config.run, place, self._clock.unix_s(), self._starts, carried)

    def _each_second(self, run: ActiveRun) -> None:
        self._control.each_second(run)
        self._viewers.update(run, self._control.hands.power_cap)


@harmless
def _tell(signal: CarbonSignal, method: str) -> None:
    """Let a signal that asks a network begin or end; others have no such method."""
    call = getattr(signal, method, None)
    if call is not None:
        call()
