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
import functools
import itertools
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from greentrain.action_table import ActionTable
from greentrain.carbon.detect import open_signal
from greentrain.carbon.replayed import GridTime, ReplayedSignal
from greentrain.clock import Clock, SystemClock
from greentrain.config import GreenConfig, RunConfig
from greentrain.config_values import folder_name
from greentrain.control import Control
from greentrain.errors import ConfigError, SessionError
from greentrain.export.exporting import Exporting, open_exporters
from greentrain.handover import EXIT_REQUEUE
from greentrain.harmless import harmless
from greentrain.ledger import Totals
from greentrain.live import LiveLine
from greentrain.power.claims import claims_dir, other_pids
from greentrain.run_id import choose_run_id
from greentrain.runfolder import ESTIMATE, write_json
from greentrain.runtime import ActiveRun, wait_for_ranks
from greentrain.shown import Shown, View
from greentrain.shutdown import ShutdownHook
from greentrain.spans import PhaseSpan
from greentrain.topology import current_topology
from greentrain.types import CarbonSignal, PowerMeter, Topology
from greentrain.watch import Watcher

if TYPE_CHECKING:
    from greentrain.gears import Gears  # loads torch
    from greentrain.leaving import Launcher

log = logging.getLogger(__name__)

STATE_FORMAT = 1
_CLOSE_WAIT_S = 5.0


class GreenSession(Shown, contextlib.ContextDecorator):
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
        self._topology = topology
        self._meter = meter
        self._extra_meters = tuple(extra_meters)
        self._signal = signal if signal is not None else open_signal(self.config.carbon)
        self._own_signal = signal is None
        self._clock: Clock = clock or SystemClock()
        self._now: Callable[[], float] = self._clock.monotonic_s
        self._mark: Callable[[tuple[Any, ...]], None] = _ignore
        self._tokens = itertools.count(1)
        self._run: ActiveRun | None = None
        self._last: ActiveRun | None = None
        self._hook: ShutdownHook | None = None
        self._live: LiveLine | None = None
        self._exporting = Exporting(())
        self._watcher = Watcher(self)
        self._control = Control(self.config, self, launcher)
        self._estimate = _estimate(self.config.run)
        self._resume: dict[str, Any] | None = None
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
        grid_time = self._grid_time(run_id)
        signal = self._signal if grid_time.is_real else ReplayedSignal(self._signal, grid_time)
        meter = self._all_meters(place)
        run: ActiveRun | None = None
        try:
            self._exporting = open_exporters(self.config.export, place, run_id)
            _tell(self._signal, "start")
            run = ActiveRun(
                config=self.config,
                topology=place,
                meter=meter,
                signal=signal,
                clock=self._clock,
                run_id=run_id,
                carried=self._carried(place),
                parameters=self.parameters,
                on_second=self._each_second,
            )
            if self.config.run.live and place.rank == 0:
                self._live = LiveLine.open()
            run.start()
            run.know(grid=None if grid_time.is_real else dataclasses.asdict(grid_time))
            self._keep_estimate(run)
            self._control.started(run, self._signal, grid_time, resumed=self._resume is not None)
        except BaseException:
            self._close_live()
            self._exporting.close()
            meter.close() if run is None else run.close("exception")
            if self._own_signal:
                _tell(self._signal, "close")
            raise
        self._resume = None
        self._run = run
        self._last = run
        self._pid = os.getpid()
        self._mark = run.marks.append
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
        self._mark = _ignore
        self._watcher.release()
        self._control.closed()
        run.know(parameters=self.parameters)
        run.close(reason)
        self._exporting.close(run)
        if self._own_signal:
            _tell(self._signal, "close")
        self._close_live()
        if self._hook is not None:
            self._hook.remove()
        if run.topology.rank == 0 and self.config.run.report and reason != "left":
            self._report(run, wait=reason == "finished")

    def __enter__(self) -> "GreenSession":
        return self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        finished = exc is None or (isinstance(exc, SystemExit) and not exc.code)
        self.close("finished" if finished else "exception")

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

    # -- hot path ----------------------------------------------------------------------------------------------

    def step(self, tokens: int = 0, samples: int = 0) -> None:
        """Mark the end of an optimizer step.

        Args:
            tokens: Tokens of this rank's batches since the last step. Pass a number known on the host: a shape
                or ``numel()``, not a reduction on the device.
            samples: Samples of the same batches.
        """
        t_s = self._control.step_end(self._now())
        self._mark((t_s, "step", "", 0, tokens, samples))
        self._control.stepped(tokens, samples)

    def count(self, tokens: int = 0, samples: int = 0) -> None:
        """Count tokens or samples without ending a step: where a watched engine counts the steps itself."""
        self._mark((self._now(), "count", "", 0, tokens, samples))
        self._control.counted(tokens, samples)

    def begin(self, name: str) -> int:
        """Enter a phase, for frameworks whose hooks come in pairs; phases may nest and overlap.

        Returns:
            A token that pairs this begin with its ``end``.
        """
        token = next(self._tokens)
        self._mark((self._now(), "begin", name, token))
        return token

    def end(self, name: str, token: int = 0) -> None:
        """Leave a phase: the one of the token, or the one of this name that was entered last."""
        self._mark((self._now(), "end", name, token))

    def gear(self, name: str) -> None:
        """Note that time from now on, and the steps that end in it, belong to this precision gear; "": to none."""
        self._mark((self._now(), "gear", name))

    def mark(self, name: str, *what: Any) -> float:
        """Queue a mark of this moment, for what acts on the training, and return its time (s)."""
        t_s = self._now()
        self._mark((t_s, name, *what))
        return t_s

    def phase(self, name: str) -> PhaseSpan:
        """Return a context manager that spends its block in a phase: one of ``Phase`` or a name of your own."""
        return PhaseSpan(self, name)

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
        if self._last is None:
            return {}
        sums, entry = self._last.job_sums(), self._last.last_entry
        out: dict[str, float] = {}
        if self.totals().by_device or sums.energy_j:
            out["green/energy_j"] = sums.energy_j
        if sums.energy_j > sums.unpriced_j:
            out["green/emissions_g"] = sums.emissions_g
        if entry is not None and any(not device.missing_s for device in entry.devices.values()):
            out["green/power_w"] = sums.power_w
        if sums.energy_j > 0 and sums.tokens:
            out["green/tokens_per_j"] = sums.tokens / sums.energy_j
            if "green/emissions_g" in out:
                out["green/g_per_ktoken"] = 1000 * sums.emissions_g / sums.tokens
        elif sums.energy_j > 0 and sums.samples:
            out["green/samples_per_j"] = sums.samples / sums.energy_j
        if self._last.topology.world_size > 1:
            out["green/ranks"] = float(sums.ranks)
        return out | self._control.metrics()

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

    # -- training state ----------------------------------------------------------------------------------------

    def watch(self, model: Any = None, optimizer: Any = None, scaler: Any = None) -> None:
        """Mark the phases forward and optimizer from hooks on a torch model and optimizer, until close.

        Where the configuration names gears, the model gets them, and shifts after steps of the optimizer.

        A DeepSpeed engine may be passed as model: its forward, backward and step are followed, and each real
        optimizer step is counted; then call ``count`` for tokens, not ``step``.

        Args:
            model: A torch module, in its wrappers or not, or a DeepSpeed engine.
            optimizer: The optimizer whose steps are those of the run.
            scaler: The torch.amp.GradScaler in use; the gear fp16 needs one.

        Raises:
            ConfigError: The objects are no torch module, optimizer or engine, or a gear cannot work with them.
        """
        self._watcher.check(model, optimizer)
        boundary = self._control.watch(model, optimizer, scaler)
        self._watcher.watch(model, optimizer, boundary)

    def shift(self, gear: str) -> None:
        """Use a gear from the next optimizer step on, in place of the policy.

        Raises:
            ConfigError: It is not among ``precision.gears``.
        """
        self._control.shift(gear)

    def resume(self) -> None:
        """End a pause of the plan at once, from any thread; so does a SIGCONT. Without a pause, nothing happens."""
        self._control.wake()

    @property
    def checkpoint_due(self) -> bool:
        """True for one step before the plan pauses: write a checkpoint then, and a kill in the pause costs nothing.

        Call ``checkpoint()`` after it, on every rank: where the pause is long and a launcher brings the run back, or
        where the number of ranks is to change, the process ends there. Also true when ``should_stop`` is.
        """
        return self._control.checkpoint_due

    @property
    def should_stop(self) -> bool:
        """True when the carbon budget is spent and the configuration says to end: leave the loop."""
        return self._control.should_stop

    def prewarm(self, run: Callable[[], Any]) -> None:
        """Run something once in every gear, so that torch.compile makes its graphs before training does.

        Args:
            run: Forward and backward of one micro-batch of the usual shape; clear the gradients afterwards.
        """
        self._control.prewarm(run)

    def profile_gears(
        self, step: Callable[[], int | None] | None = None, *, refresh: bool = False, max_steps: int = 200
    ) -> ActionTable | None:
        """Measure speed, power and J/token of every gear, in blocks of ordinary training steps with warm-up.

        Tables are kept by model, layers, device, world size and batch (``GREENTRAIN_CACHE_DIR``, or else the user's
        cache), so the same training is measured once. The policy decides again afterwards.

        Args:
            step: Trains one step of the watched model and optimizer and returns its tokens; it is called until all is
                measured. None: the coming steps of the training are used, and ``action_table`` is set at the end.
            refresh: Measure even if there is a table.
            max_steps: Most steps that it may take, over all gears.

        Returns:
            The table; None without ``step``.

        Raises:
            ConfigError: ``precision.gears`` is empty, or the steps are too few.
            SessionError: The session does not run, or watches no model.
        """
        return self._control.profile_gears(step, refresh=refresh, max_steps=max_steps)

    @property
    def action_table(self) -> ActionTable | None:
        """What ``profile_gears`` has measured; None before."""
        return self._control.action_table

    @property
    def gears(self) -> "Gears | None":
        """The gears of the session; None where the configuration names none. Loads torch."""
        return self._control.gears

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
        if not state or state.get("run_id") is None:
            return
        if int(state.get("format", 0)) > STATE_FORMAT:
            raise ConfigError(
                f"the checkpoint's GreenTrain state has format {state['format']}, this version reads up to"
                f" {STATE_FORMAT}: upgrade greentrain-torch"
            )
        folder_name("the run id in the checkpoint's GreenTrain state", str(state["run_id"]))
        if self._run is not None:
            raise SessionError("load_state_dict() must come before start(): the run folder is open already")
        self._resume = {"run_id": str(state["run_id"]), "totals": dict(state["totals"]), "rank": state.get("rank")}
        self._control.load_state_dict(state)

    # -- inside ------------------------------------------------------------------------------------------------

    def _view(self) -> View:
        from greentrain.report.notebook import session_view

        state = "running" if self.running else "not started" if self._last is None else "closed"
        return session_view(self.totals(), state=state, folder=self.folder, page=self.report_path)

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

    def _all_meters(self, place: Topology) -> PowerMeter:
        own = self._meter if self._meter is not None else self._open_meters(place)
        if not self._extra_meters:
            return own
        from greentrain.power.composite import Borrowed, CompositeMeter

        members = own.meters if isinstance(own, CompositeMeter) else [own]
        return CompositeMeter([*members, *map(Borrowed, self._extra_meters)], clock=self._clock)

    def _open_meters(self, place: Topology) -> PowerMeter:
        from greentrain.power.detect import open_meters

        others = functools.partial(other_pids, claims_dir())
        return open_meters(self.config.power, topology=place, excluded_pids=others, clock=self._clock)

    def _run_id(self, place: Topology) -> str:
        carried = self._resume["run_id"] if self._resume else None
        return choose_run_id(self.config.run, place, self._clock.unix_s(), self._starts, carried)

    def _carried(self, place: Topology) -> Totals | None:
        """Return the totals to go on from: those of a checkpoint, unless another rank wrote it."""
        if self._resume is None or self._resume["rank"] not in (None, place.rank):
            return None
        return Totals.from_dict(self._resume["totals"])

    def _grid_time(self, run_id: str) -> GridTime:
        """Return the grid's time: a run that goes on keeps the one with which it began."""
        time = GridTime.of(self.config.carbon, self._control.began_unix_s or self._clock.unix_s())
        if time.is_real:
            return time
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            text = (Path(self.config.run.dir) / run_id / "run.json").read_text(encoding="utf-8")
            return GridTime.from_dict(json.loads(text)["grid"])
        return time

    def _keep_estimate(self, run: ActiveRun) -> None:
        if self._estimate is None or run.topology.rank != 0:
            return
        path = run.folder / ESTIMATE
        try:
            write_json(path, self._estimate)
        except OSError as error:
            run.event("warning", f"cannot write {path} ({error.strerror}): the report will show no estimate")

    def _close_live(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.close()

    def _each_second(self, run: ActiveRun) -> None:
        self._control.each_second(run)
        self._exporting.second(run, self._control.hands.power_cap)
        if self._live is not None:
            self._live.update(run)

    def _report(self, run: ActiveRun, wait: bool) -> None:
        from greentrain.report import write_report
        from greentrain.report.plan_text import plan_line

        if run.topology.world_size > 1 and wait:
            wait_for_ranks(run.folder, run.topology.world_size, _CLOSE_WAIT_S)
            run.look_at_others()
        try:
            self.report_path = write_report(run.folder)
            line = plan_line(json.loads((run.folder / "summary.json").read_text(encoding="utf-8")))
            if line is not None:
                log.info(line)
        except Exception as error:
            run.warn(f"the report could not be written ({error}); try: greentrain report {run.folder}")


@harmless
def _tell(signal: CarbonSignal, method: str) -> None:
    """Let a signal that asks a network begin or end; others have no such method."""
    call = getattr(signal, method, None)
    if call is not None:
        call()


def _estimate(config: RunConfig) -> Mapping[str, Any] | None:
    """Return the document that ``run.estimate`` names, checked."""
    if config.estimate is None:
        return None
    from greentrain.report.estimated import document

    return document(Path(config.estimate))


def _ignore(mark: tuple[Any, ...]) -> None:
    """Stand in for the queue while no run is open: a stray step outside a session is no error."""
