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
no file is written. A background thread does the rest. Hooks on torch objects (:class:`PhaseHooks`) mark phases; numbers
in the model are not touched.

When the process is told to end, the session is closed (:class:`ShutdownHook`). SIGTERM handlers are chained, never
replaced: ours runs first, then the one that was there. Where that one is the default, which kills, the session is
closed before; a program with a handler of its own may go on for minutes to save a checkpoint, so there the books are
only brought up to date. A handler that the user installs later stays. Forked children (data loader workers) inherit
the handler but not the session.
"""

import atexit
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from greentrain.carbon.detect import open_signal
from greentrain.carbon.price import ReplayedPrice, open_price
from greentrain.carbon.replayed import ReplayedSignal
from greentrain.config.schema import GreenConfig
from greentrain.control.controller import Controller, is_engine
from greentrain.control.launcher_protocol import EXIT_REQUEUE
from greentrain.errors import ConfigError, SessionError
from greentrain.ledger.active_run import CLOSE_S, HURRY_MARKS, SAVE_S, ActiveRun, metrics_of
from greentrain.ledger.reader import read_run
from greentrain.ledger.run_folder import STATE_FORMAT, ResumeState, choose_run_id, grid_time_of, run_of_session
from greentrain.ledger.totals import Totals
from greentrain.policy.action_table import ActionTable
from greentrain.power.detect import open_run_meter
from greentrain.report import RunReport, report_at_close
from greentrain.report.estimated import keep_estimate, read_estimate
from greentrain.report.live.exporting import Viewers
from greentrain.report.live.terminal import name_report
from greentrain.session.work_count import WorkCount
from greentrain.types import CarbonSignal, Phase, PowerMeter, Topology, WindowEnergy
from greentrain.utils.background import BackgroundCall
from greentrain.utils.clock import Clock, SystemClock
from greentrain.utils.display import Displayable, View
from greentrain.utils.never_raise import call_if_present, never_raises
from greentrain.utils.topology import current_topology

if TYPE_CHECKING:
    from greentrain.control.gears import Gears
    from greentrain.control.preemption import Launcher


class Marks(Protocol):
    """The part of a session that hooks use."""

    parameters: int | None

    def begin(self, name: str) -> int:
        """Enter a phase."""

    def end(self, name: str, token: int = 0) -> None:
        """Leave a phase."""

    def step(self, tokens: int = 0, samples: int = 0) -> None:
        """Mark the end of a step."""


class PhaseHooks:
    """Holds the hooks of one session and takes them off again.

    Args:
        session: Session in which phases and steps are marked.
    """

    def __init__(self, session: Marks) -> None:
        self._session = session
        self._undo: list[Callable[[], None]] = []
        self.watched: list[Any] = []
        """Models, engines and optimizers with hooks, each once."""

    def check(self, model: Any, optimizer: Any) -> None:
        """Check what is to be watched before anything is changed.

        Raises:
            ConfigError: An object is neither module, engine nor optimizer.
        """
        if model is not None and not is_engine(model) and not hasattr(model, "register_forward_pre_hook"):
            raise ConfigError(
                f"watch(model=...) got a {type(model).__name__}; pass a torch.nn.Module or a DeepSpeed engine"
            )
        if optimizer is not None and not hasattr(optimizer, "register_step_pre_hook"):
            raise ConfigError(f"watch(optimizer=...) got a {type(optimizer).__name__}; pass a torch.optim.Optimizer")

    def watch(self, model: Any, optimizer: Any, stepped: Callable[[], None] | None = None) -> None:
        """Hook a model and an optimizer; a DeepSpeed engine as model brings its own optimizer.

        Args:
            model: A torch module or an engine; None: no model.
            optimizer: A torch optimizer; None: no optimizer.
            stepped: Called after each optimizer step of an engine, which is no optimizer's step hook: ZeRO-3 steps
                once a sub-group.

        Raises:
            ConfigError: An object is neither module, engine nor optimizer.
        """
        self.check(model, optimizer)
        kind = self._watch_module
        if model is not None and is_engine(model):
            kind = functools.partial(self._watch_engine, stepped=stepped)
        for item, hook in ((model, kind), (optimizer, self._watch_optimizer)):
            if item is not None and not any(item is known for known in self.watched):
                self.watched.append(item)
                hook(item)

    def release(self) -> None:
        """Take every hook off. Idempotent."""
        self.watched.clear()
        while self._undo:
            self._undo.pop()()

    def _watch_module(self, module: Any) -> None:
        session = self._session
        session.parameters = sum(getattr(p, "ds_numel", p.numel()) for p in module.parameters())  # ZeRO-3's, sharded
        open_tokens: list[tuple[str, int]] = []
        from greentrain.control.precision.gearbox import around_calls  # imports torch

        def before(module: Any, args: Any, kwargs: Any) -> None:
            name = Phase.FORWARD.value if module.training else Phase.EVAL.value
            open_tokens.append((name, session.begin(name)))

        def after(module: Any, output: Any) -> None:
            if open_tokens:
                session.end(*open_tokens.pop())

        self._undo.append(around_calls(module, before, after))

    def _watch_optimizer(self, optimizer: Any) -> None:
        session = self._session
        name = Phase.OPTIMIZER.value
        import torch

        def before(*_: Any) -> None:
            session.begin(name)

        disable: Any = torch.compiler.disable  # dynamo would follow a compiled step into the session
        self._undo.append(optimizer.register_step_pre_hook(disable(before)).remove)
        self._undo.append(optimizer.register_step_post_hook(disable(lambda *_: session.end(name))).remove)

    def _watch_engine(self, engine: Any, stepped: Callable[[], None] | None) -> None:
        def on_step() -> None:
            if stepped is not None:
                stepped()
            self._session.step()

        self._watch_module(engine)
        self._wrap(engine, "backward", Phase.BACKWARD.value)
        self._wrap(engine, "step", Phase.OPTIMIZER.value, steps=lambda: int(engine.global_steps), on_step=on_step)

    def _wrap(
        self,
        engine: Any,
        method: str,
        phase: str,
        steps: Callable[[], int] = lambda: 0,
        on_step: Callable[[], None] = lambda: None,
    ) -> None:
        session, original, own = self._session, getattr(engine, method), vars(engine).get(method)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            before = steps()
            token = session.begin(phase)
            try:
                return original(*args, **kwargs)
            finally:
                session.end(phase, token)
                if steps() > before:
                    on_step()

        setattr(engine, method, wrapped)
        self._undo.append(lambda: vars(engine).pop(method, None) if own is None else setattr(engine, method, own))


class ShutdownHook:
    """Calls ``close(reason)`` once on a deadly SIGTERM or at interpreter exit, ``book()`` on a SIGTERM that is handled.

    Args:
        close: Called with ``sigterm``, ``exit`` or ``exception``; must not raise.
        book: Called when the program itself handles SIGTERM; must not raise.
    """

    def __init__(self, close: Callable[[str], None], book: Callable[[], None] = lambda: None) -> None:
        self._close = close
        self._book = book
        self._pid = os.getpid()
        self._previous: Any = None
        self._installed = False
        self._held = False
        self._waiting = False

    def install(self) -> None:
        """Start listening. Signals only from the main thread, where Python allows it."""
        atexit.register(self._at_exit)
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.getsignal(signal.SIGTERM)
            if self._previous is not None:
                signal.signal(signal.SIGTERM, self._on_sigterm)
                self._installed = True

    def hold(self) -> None:
        """Let a SIGTERM wait until :meth:`remove`: the session is being closed already."""
        # A handler runs on the main thread in the middle of whatever that does. In the middle of close() a second
        # close() would meet files half written and locks held by the very code that it interrupts.
        self._held = True

    def remove(self, *, closed: bool = True) -> None:
        """Stop listening and put the previous handler back, unless somebody replaced ours meanwhile.

        Args:
            closed: All is done; otherwise whoever closed was interrupted, and the interpreter's exit does the rest.
        """
        self._held = False  # first: who is interrupted in here leaves no process behind that a SIGTERM cannot end
        if closed:
            atexit.unregister(self._at_exit)
        if self._installed and threading.current_thread() is threading.main_thread():
            self._installed = False
            # Somebody who installed a handler after us has ours as "previous" and may call it, so theirs stays; ours
            # then finds the session closed and passes the signal on.
            if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
                signal.signal(signal.SIGTERM, self._earlier(of_sessions=True))
        if self._waiting:  # the signal that came meanwhile goes to the handler that stands there now
            self._waiting = False
            signal.raise_signal(signal.SIGTERM)

    def _earlier(self, *, of_sessions: bool) -> Any:
        """Return the handler before ours, but for those of sessions that were closed meanwhile, or of any session."""
        previous = self._previous
        while isinstance(hook := getattr(previous, "__self__", None), ShutdownHook):
            if of_sessions and hook._installed:
                break
            previous = hook._previous
        return previous

    def _at_exit(self) -> None:
        if os.getpid() == self._pid:
            # Set where the interpreter ends with an uncaught exception.
            error = getattr(sys, "last_type", None)
            self._close("exception" if error is not None else "exit")
            if error is KeyboardInterrupt:
                # The interpreter ends by SIGINT, as shells expect, where a flag says that nobody has caught it. Each
                # exec() of a text, as of a dataclass, clears that flag (run_eval_code_obj in CPython's pythonrun.c),
                # and one that is interrupted sets it.
                with contextlib.suppress(KeyboardInterrupt):
                    exec("raise KeyboardInterrupt")

    def _on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        previous = self._earlier(of_sessions=True)
        if os.getpid() == self._pid:
            if self._held:
                self._waiting = True
                return
            # The root decides, not the handler before ours: that may be another session's, which ends in the same
            # default. A default kills as soon as it is reached, so this is the last moment to write anything.
            if self._earlier(of_sessions=False) == signal.SIG_DFL:
                self._close("sigterm")
            else:
                self._book()
        if callable(previous):
            previous(signum, frame)
        elif previous == signal.SIG_DFL:
            # Python cannot call a default action: it is put back and the signal raised anew, so that the parent sees
            # a process which a SIGTERM has ended, not one which exited.
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)


__all__ = ["STATE_FORMAT", "GreenSession"]

MIXED = (
    "some steps of this rank told tokens and others samples alone, so neither is all the work of the run: figures per"
    " token and per sample are left out"
)
PER_WORK = ("green/tokens_per_j", "green/g_per_ktoken", "green/samples_per_j")
"""Metrics that are not made of work that was counted in two units."""


EARLY_MARKS = 64
"""Marks at which the training thread looks whether a device is used, a microsecond each; then the books look."""
REPORT_S = 60.0
"""Longest wait for the report of a run that has ended (s): that of 512 ranks of 1 MB takes up to 40 s."""


class PhaseSpan:
    """The block of one ``with session.phase(name)``; an instance may be entered again, not nested in itself."""

    __slots__ = ("_name", "_session", "_t0_s", "_t1_s", "_token")

    _t1_s: float | None

    def __init__(self, session: "GreenSession", name: str) -> None:
        self._session = session
        self._name = name

    def __enter__(self) -> "PhaseSpan":
        session = self._session  # as begin() and end() do, but for their calls, and with the times kept
        self._t0_s, self._t1_s, self._token = session._now_s(), None, next(session._tokens)
        session._enqueue((self._t0_s, "begin", self._name, self._token))
        return self

    def __exit__(self, *exc: object) -> None:
        self._t1_s = self._session._now_s()
        self._session._enqueue((self._t1_s, "end", self._name, self._token))

    def energy(self, wait_s: float = 1.0) -> WindowEnergy | None:
        """Return what the block has used, with all that was nested in it, up to now where it has not ended.

        Args:
            wait_s: Longest wait for the sensors to report past its end (s).

        Returns:
            Joules with their interval and provenance, also by device; None where they are not known by then, or no
            longer, or there is no run.

        Raises:
            SessionError: The block was never entered.
        """
        session, t0_s = self._session, getattr(self, "_t0_s", None)
        if t0_s is None:
            raise SessionError(f"phase({self._name!r}) has no energy before its block: enter it `with`")
        return session._window(t0_s, session._now_s() if self._t1_s is None else self._t1_s, wait_s)


def _ignore(mark: tuple[Any, ...]) -> None:
    """Stand in for the queue while no run is open: a stray step outside a session is no error."""


class GreenSession(Displayable, contextlib.ContextDecorator):
    """Measures the energy and carbon of what runs between ``start`` and ``close``.

    Use it as a context manager, as a decorator of a training function, or through one of the callbacks. It can be
    started again after it was closed; each start is a run of its own unless a checkpoint's state was loaded.

    Args:
        config: Path of a YAML file, mapping, GreenConfig, or None for the defaults (measure only).
        topology: Place of this process in the job; None reads the launcher's variables at each start. ``Topology()``
            for a session of one rank alone: it takes no part in the id that all ranks agree on.
        meter: Power meter to use instead of those the configuration names; closed with the run.
        extra_meters: Meters beside these, of devices that the configuration does not know, such as an offload
            device's ``meter``; read but not closed.
        signal: Carbon signal to use instead of the one the configuration names.
        clock: Time, for tests and replays.
        launcher: Launcher that starts the training again once it left; None: ``greentrain launch``, if that started it.
        data_parallel: (rank, size) of this process among the ranks that get batches of their own, or a torch DeviceMesh
            with named dimensions; the others (tensor, pipeline, context parallel) share a batch, and its tokens count
            once. None: the framework says, or Megatron's state, a DeepSpeed engine's or the watched model's DTensors;
            where nobody does, each rank has its own.

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
        data_parallel: Any = None,
    ) -> None:
        self.config = GreenConfig.load(config)
        home = str(Path(self.config.run.dir).absolute())  # wherever the program goes between its trainings
        self._placed = dataclasses.replace(self.config, run=dataclasses.replace(self.config.run, dir=home))
        self._clock: Clock = clock or SystemClock()
        self._topology = topology
        self._data_parallel = data_parallel
        self._work = WorkCount(Topology())
        self._meter = meter
        self._extra_meters = tuple(extra_meters)
        self._signal = signal if signal is not None else open_signal(self.config.carbon)
        self._own_signal = signal is None
        self._price = open_price(self.config.price)
        self._now_s = self._clock.monotonic_s
        self._controller = Controller(self.config, self, launcher)
        self._enqueue: Callable[[tuple[Any, ...]], None] = _ignore
        self._tokens = itertools.count(1)
        self._counts = itertools.count(1)
        """Numbers steps, so that the books know if one fell out."""
        self._run: ActiveRun | None = None
        self._last: ActiveRun | None = None
        self._copied: tuple[Totals, Path | None] = Totals(), None
        """Figures of the session that this is a copy of."""
        self._home = secrets.token_hex(8), os.getpid(), time.time()
        """By which name runs of processes that were given this session are found (none: not sent since its own last
        run), the process that made it, and when (s since the epoch)."""
        self._closing: ActiveRun | None = None
        """Being closed, or left half closed by an interrupt."""
        self._hook: ShutdownHook | None = None
        self._viewers = Viewers()
        self._card: BackgroundCall[None] | None = None
        self._phase_hooks = PhaseHooks(self)
        self._estimate = read_estimate(self.config.run)
        self._resume: ResumeState | None = None
        self._starts = 0
        self._pid = os.getpid()
        self.parameters: int | None = None
        """Number of parameters of the watched model, for carbon per parameter."""
        self._report_path: Path | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy or a pickle gets: how the session was made, and its figures, but no run, thread or hook.

        Frameworks copy their trainers, and send them to the processes that they spawn.
        """
        made: dict[str, Any] = {"config": self.config, "topology": self._topology, "clock": self._clock}
        made |= {"meter": self._meter, "extra_meters": self._extra_meters, "data_parallel": self._data_parallel}
        made["signal"] = None if self._own_signal else self._signal
        if not self._home[0]:
            self._home = secrets.token_hex(8), *self._home[1:]
        figures = {"_copied": (self.totals(), self.folder), "_report_path": self.report_path, "_home": self._home}
        return {"made": made, "figures": figures | {"parameters": self.parameters, "_resume": self._resume}}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        GreenSession.__init__(self, **state["made"])
        same = self._home[1] == state["figures"]["_home"][1]  # a copy there has children of its own
        vars(self).update(state["figures"], **({"_home": self._home} if same else {}))

    # -- life --------------------------------------------------------------------------------------------------

    def start(self, topology: Topology | None = None, data_parallel: Any = None) -> "GreenSession":
        """Open the meters and the run folder and begin to measure.

        Args:
            topology: Place of this process, where the caller (a framework's callback) knows better than the
                environment.
            data_parallel: What a framework knows of it, in place of looking; what the user said comes first.

        Raises:
            ConfigError: ``data_parallel`` does not fit the job.
            SessionError: The session is running already.
            MeterError: A meter that was asked for by name cannot be opened.
            RunFolderError: The run folder cannot be written.
        """
        if self.active() is not None:
            raise SessionError("this GreenSession is running already; close() it before start(), or make a second one")
        self.close("exception")  # what an interrupt has left of it
        place = topology or self._topology or current_topology()
        self._work = WorkCount(place, data_parallel if self._data_parallel is None else self._data_parallel)
        for watched in self._phase_hooks.watched:  # before start
            self._work.look(watched)
        self._starts += 1
        self._report_path = None
        run_id = self._run_id(place)
        grid_time = grid_time_of(self._placed, run_id, self._controller.began_unix_s or self._clock.unix_s())
        signal, price = self._signal, self._price
        if not grid_time.is_real:
            signal = ReplayedSignal(signal, grid_time)
            price = price and ReplayedPrice(signal=price, time=grid_time)
        meter = open_run_meter(self.config.power, place, self._clock, own=self._meter, extra=self._extra_meters)
        run: ActiveRun | None = None
        try:
            self._viewers.open_exporters(self.config.export, place, run_id)
            _call_if_present(self._signal, "start")
            _call_if_present(self._price, "start")
            run = ActiveRun(
                config=self.config,
                folder=Path(self._placed.run.dir) / run_id,
                topology=place,
                meter=meter,
                signal=signal,
                price=price,
                clock=self._clock,
                run_id=run_id,
                carried=None if self._resume is None else self._resume.carried(place),
                parameters=self.parameters,
                on_second=self._each_second,
            )
            if self.config.run.live and place.rank == 0:
                self._viewers.open_line()
            run.start()
            given = None if self._home[1] == os.getpid() else self._home[0]
            run.know(grid=None if grid_time.is_real else dataclasses.asdict(grid_time), session=given)
            keep_estimate(self._estimate, run)
            self._controller.started(run, self._signal, grid_time, price=self._price, resumed=self._resume is not None)
            self._resume = None
            self._run = self._last = run
            self._pid = os.getpid()
            self._home = given or "", *self._home[1:]
            self._queue_marks_into(run)
            self._hook = ShutdownHook(self.close, self._on_handled_sigterm)
            self._hook.install()
        except BaseException:
            self._run = None
            self._queue_marks_into(None)
            if self._hook is not None:
                self._hook.remove()
            never_raises(self._controller.gpu_limits.close)()
            self._viewers.close()
            meter.close() if run is None else run.close("exception")
            _call_if_present(self._price, "close")
            if self._own_signal:
                _call_if_present(self._signal, "close")
            raise
        self._controller.show()
        return self

    def close(self, reason: str = "finished", exit_code: int | None = None) -> None:
        """End the run: book the rest and, on rank 0, write the report. Idempotent; never raises.

        What Ctrl-C has cut short, another call does, or the interpreter's exit.

        Args:
            reason: ``finished``, ``left``, ``exception``, ``failed``, ``sigterm`` or ``exit``; kept in the journal.
            exit_code: Of the program that was measured from outside.
        """
        run = self._run or self._closing
        if run is None or self._pid != os.getpid():
            return
        self._closing = run
        try:
            if self._hook is not None:
                self._hook.hold()
            self._run = None
            self._queue_marks_into(None)
            self._phase_hooks.release()
            self._controller.closed()
            run.know(parameters=self.parameters, exit_code=exit_code)
            run.close(reason)
            if self._card is not None:
                with contextlib.suppress(TimeoutError):
                    self._card.result(CLOSE_S)
            _at_most(run, "last figures", CLOSE_S, lambda: self._viewers.close(run))
            _call_if_present(self._price, "close")
            if self._own_signal:
                _call_if_present(self._signal, "close")
            self._closing = None
        finally:
            if self._hook is not None:
                self._hook.remove(closed=self._closing is None)
        if run.topology.rank == 0 and self.config.run.report and reason != "left":
            self._report(run, reason)

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
        """Folder of the current or last run; None before the first start. See :meth:`totals` for spawned processes."""
        return self._of_children() or (self._copied[1] if self._last is None else self._last.folder)

    @property
    def report_path(self) -> Path | None:
        """report.html of the last closed run (rank 0)."""
        theirs = self._of_children()
        page = theirs and theirs / "report.html"
        return page if page and page.exists() else self._report_path

    # -- marks: each call only queues one ------------------------------------------------------------------------

    def step(self, tokens: int = 0, samples: int = 0) -> None:
        """Mark the end of an optimizer step.

        Ranks that share a batch (``data_parallel``) are each told the whole of it, and book their parts. Tell tokens at
        every step or at none: where some steps tell samples alone, no figure is made of either.

        Args:
            tokens: Tokens of this rank's batches since the last step. Pass a number known on the host: a shape
                or ``numel()``, not a reduction on the device.
            samples: Samples of the same batches.
        """
        t_s = self._controller.step_end(self._now_s())
        # The usual step is not asked whose tokens it has: that takes as long as all the rest of this.
        plain = tokens and self._work.plain
        if not plain:
            was_mixed = self._work.mixed
            tokens, samples = self._work.step(tokens, samples)
            if self._work.mixed > was_mixed and (run := self.active()) is not None:
                run.event("warning", MIXED, mixed=True)
        self._enqueue((t_s, "step", "", next(self._counts), tokens, samples))
        if self._run is not None and len(self._run.marks) > HURRY_MARKS:
            self._run.hurry()
        if not plain:
            tokens, samples = self._work.progress(tokens, samples)
        self._controller.stepped(tokens, samples)

    def count(self, tokens: int = 0, samples: int = 0) -> None:
        """Count tokens or samples as ``step`` does, but end none: where a watched engine counts the steps itself."""
        tokens, samples = self._work.count(tokens, samples)
        self._enqueue((self._now_s(), "count", "", next(self._counts), tokens, samples))
        self._controller.counted(tokens, samples)

    def begin(self, name: str) -> int:
        """Enter a phase, for frameworks whose hooks come in pairs; phases may nest and overlap.

        Returns:
            A token that pairs this begin with its ``end``.
        """
        token = next(self._tokens)
        self._enqueue((self._now_s(), "begin", name, token))
        return token

    def end(self, name: str, token: int = 0) -> None:
        """Leave a phase: the one of the token, or the one of this name that was entered last."""
        self._enqueue((self._now_s(), "end", name, token))

    def gear(self, name: str) -> None:
        """Note that time from now on, and the steps that end in it, belong to this precision gear; "": to none."""
        self.mark("gear", name)

    def mark(self, name: str, *what: Any) -> float:
        """Queue a mark of this moment, for what acts on the training, and return its time (s)."""
        t_s = self._now_s()
        self._enqueue((t_s, name, *what))
        if self._run is not None:
            self._run.changes(t_s)
        return t_s

    def phase(self, name: str) -> PhaseSpan:
        """Return a context manager that spends its block in a phase: one of ``Phase`` or a name of your own."""
        return PhaseSpan(self, name)

    def _queue_marks_into(self, run: ActiveRun | None) -> None:
        """Queue marks from now on; None: drop them."""
        self._enqueue = _ignore if run is None else functools.partial(self._queue_early, run, itertools.count(1))
        self._counts = itertools.count(1)

    def _queue_early(self, run: ActiveRun, number: Iterator[int], mark: tuple[Any, ...]) -> None:
        """Queue one of the first marks: at these a device may come into use, of which marks are recorded from then."""
        stamped = run.has_device_clock
        queue = run.queue_stamped if stamped else run.marks.append
        if stamped or next(number) >= EARLY_MARKS:
            self._enqueue = queue
            if stamped:
                run.hurry()  # to begin with what the device's clock says now
        queue(mark)

    # -- acting on the training --------------------------------------------------------------------------------

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
        self._phase_hooks.check(model, optimizer)
        boundary = self._controller.watch(model, optimizer, scaler)
        self._work.look(model)
        self._phase_hooks.watch(model, optimizer, boundary)

    def shift(self, gear: str) -> None:
        """Use a gear from the next optimizer step on, in place of the policy.

        Raises:
            ConfigError: It is not among ``precision.gears``.
        """
        self._controller.shift(gear)

    def resume(self) -> None:
        """End a pause of the plan at once, from any thread; so does a SIGCONT. Without a pause, nothing happens."""
        self._controller.wake()

    @property
    def checkpoint_due(self) -> bool:
        """True for one step before the plan pauses: write a checkpoint then, and a kill in the pause costs nothing.

        Call ``checkpoint()`` after it, on every rank: where the pause is long and a launcher brings the run back, or
        where the number of ranks is to change, the process ends there. Also true when ``should_stop`` is.
        """
        return self._controller.checkpoint_due

    @property
    def should_stop(self) -> bool:
        """True when the carbon budget is spent and the configuration says to end: leave the loop."""
        return self._controller.should_stop

    def prewarm(self, run: Callable[[], Any]) -> None:
        """Run something once in every gear, so that torch.compile makes its graphs before training does.

        Args:
            run: Forward and backward of one micro-batch of the usual shape; clear the gradients afterwards.
        """
        self._controller.prewarm(run)

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
            max_steps: Most steps that are measured, over all gears, warm-up included. Beside them steps run while
                sensors tell of a block: for up to 4 s at the end, and after each block of a search for power limits.

        Returns:
            The table; None without ``step``.

        Raises:
            ConfigError: ``precision.gears`` is empty, or the steps are too few.
            SessionError: The session does not run, or watches no model.
        """
        own = None if step is None else lambda: self._work.own(step())
        return self._controller.profiling.profile(own, refresh=refresh, max_steps=max_steps)

    @property
    def action_table(self) -> ActionTable | None:
        """What ``profile_gears`` has measured; None before."""
        return self._controller.profiling.table

    @property
    def gears(self) -> "Gears | None":
        """The gears of the session; None where the configuration names none. Loads torch."""
        return self._controller.gears

    # -- results -----------------------------------------------------------------------------------------------

    def totals(self) -> Totals:
        """Return the totals of this rank, resumed parts included, as of the last booking. Reads no sensor.

        After ``close`` they are final. Where processes that were spawned or forked here have trained with this session,
        as those of ``ddp_spawn``, they are those of all ranks of their last run, as its folder tells.
        """
        theirs = self._of_children()
        read = theirs and never_raises(read_run)(theirs)
        return read.totals if read else self._own_totals()

    def _own_totals(self) -> Totals:
        return self._copied[0] if self._last is None else self._last.ledger.totals

    def _of_children(self) -> Path | None:
        name, pid, made_unix_s = self._home
        if not name or pid != os.getpid() or self._run is not None:
            return None
        return run_of_session(Path(self._placed.run.dir), name, made_unix_s)

    def metrics(self) -> dict[str, float]:
        """Return figures for a logger: ``green/energy_j`` and so on. What is not known is left out.

        On rank 0 they are sums over all ranks whose journals it can see, as of their last bookings, and
        ``green/ranks`` says how many; on other ranks they are the rank's own. No collective, no sensor read.
        """
        if self._last is None:
            return {}
        found = metrics_of(self._last) | self._controller.metrics()
        return {key: found[key] for key in found if not (self._work.mixed and key in PER_WORK)}

    def energy(self, t0_s: float, t1_s: float, wait_s: float = 0.0) -> dict[str, float] | None:
        """Return the energy by device uid (J) between two ``time.monotonic()`` times of the last half hour.

        Args:
            t0_s: Start (s).
            t1_s: End (s).
            wait_s: Longest wait for the sensors to report past ``t1_s`` (s).

        Returns:
            None if the window is not (or no longer) known, or holds a gap.
        """
        found = self._window(t0_s, t1_s, wait_s)
        return None if found is None else found.by_device_j

    def _window(self, t0_s: float, t1_s: float, wait_s: float) -> WindowEnergy | None:
        left_s, deadline_s, asked = SAVE_S, time.monotonic() + wait_s, False
        while self._last is not None:
            found = self._last.window(t0_s, t1_s, wait_s=left_s)
            if found is not None or self._run is None:
                return found
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                self._last.changes(self._now_s())
                return None
            if not asked:  # a CPU's load is read every few seconds, and would be waited for
                asked = True
                self._last.read_now()
            time.sleep(0.02)
        return None

    # -- checkpoints ------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Tell that a checkpoint was written just now; call it on every rank. Waits at most a second for the disk.

        Where the plan, or the launcher, wants the run to leave, this call ends the process: its books are closed, all
        ranks are waited for, and it exits with code 75, to be started again from this checkpoint.

        Raises:
            SystemExit: With code 75, where the run was asked to leave.
        """
        run = self.active()
        if run is None:
            return
        # the books are late, and hold the steps that a crash undid
        steps = self._controller.steps or self._own_totals().steps
        run.event("checkpoint", f"checkpoint after {steps} steps", steps=steps)
        run.save()
        if self._controller.checkpointed():
            self._leave()

    @never_raises
    def write_card(self, path: str | Path, wait_s: float = 0.0) -> None:
        """Write what the run has emitted until now as metadata of a model card; on rank 0 alone.

        A thread does so; where the one before still writes, none is written. Never raises.

        Args:
            path: A ``README.md``, in which only ``co2_eq_emissions`` of the metadata changes, or a file of YAML, whose
                folder is made where it is missing.
            wait_s: Longest wait for it (s).
        """
        run = self._run or self._last
        if run is None or run.topology.rank != 0 or not (self._card is None or self._card.has_ended):
            return

        @never_raises
        def write() -> None:
            from greentrain.report.exports import write_model_card

            if not run.closed:
                run.book_now()
            summary = RunReport.read(run.folder).summary
            Path(path).parent.mkdir(exist_ok=True)
            write_model_card(summary, Path(path))

        self._card = BackgroundCall("greentrain-card", write)
        if wait_s:
            with contextlib.suppress(TimeoutError):
                self._card.result(wait_s)

    def state_dict(self) -> dict[str, Any]:
        """Return what a training checkpoint must hold to continue the totals: plain JSON types.

        Waits at most a second; a warning says so where the books, or the disk, are further behind.
        """
        run = self.active()
        if run is not None:
            run.book_now()
        state = {
            "format": STATE_FORMAT,
            "run_id": None if self._last is None else self._last.run_id,
            "rank": None if self._last is None else self._last.topology.rank,
            "totals": self._own_totals().to_dict(),
            **self._controller.state_dict(),
        }
        # torch.load(weights_only=True) takes no names that are an enum's, and no number of another library.
        plain: dict[str, Any] = json.loads(json.dumps(state, default=float))
        return plain

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the run of a checkpoint at the next start.

        If the run's folder is still there, its journal counts, lost work after the checkpoint included; otherwise
        the totals of the checkpoint are carried.

        Raises:
            ConfigError: The state is of a newer format, or names a run as no run is named.
            SessionError: The session is running.
        """
        earlier = ResumeState.of(state)
        if earlier is None:
            return
        if self._run is not None:
            raise SessionError("load_state_dict() must come before start(): the run folder is open already")
        self._resume = earlier
        self._controller.load_state_dict(state)

    # -- inside ------------------------------------------------------------------------------------------------

    def _view(self) -> View:
        from greentrain.ledger.totals import session_view
        from greentrain.report.summary import told_of

        state = "running" if self.running else "not started" if self._last is None else "closed"
        record = None if self._last is None else self._last.rank_record()
        told = None if record is None else told_of(record)
        return session_view(self.totals(), state=state, folder=self.folder, page=self.report_path, told=told)

    @never_raises
    def _name_report(self) -> None:
        if sys.stderr is not None and sys.stderr.isatty():
            name_report(self.report_path)

    def _report(self, run: ActiveRun, reason: str) -> None:
        def write() -> None:
            self._report_path = report_at_close(run, wait=reason == "finished")

        # Who sent a signal waits for the end.
        _at_most(run, "report", CLOSE_S if reason == "sigterm" else REPORT_S, write)

    def _leave(self) -> None:
        preemption = self._controller.preemption
        if preemption is None or not preemption.request_leave():
            return
        self.close("left")
        preemption.together()
        raise SystemExit(EXIT_REQUEUE)

    def _on_handled_sigterm(self) -> None:
        run = self.active()
        if run is not None:
            run.event("sigterm", "the process was told to end and goes on with its own handler")
            run.book_now()
            self._controller.wake()  # in a pause, the program could not end itself

    def _run_id(self, place: Topology) -> str:
        carried = None if self._resume is None else self._resume.run_id
        return choose_run_id(self._placed.run, place, self._clock.unix_s(), self._starts, carried)

    def _each_second(self, run: ActiveRun) -> None:
        if run is self._run and run.has_device_clock:
            self._enqueue = run.queue_stamped
        self._controller.each_second(run)
        self._viewers.update(run, self._controller.gpu_limits.power_cap)


def _at_most(run: ActiveRun, what: str, wait_s: float, write: Callable[[], None]) -> None:
    """Write the last files of a run, and wait at most so long (s): the disk may hang."""
    try:
        BackgroundCall("greentrain-closing", write).result(wait_s)
    except TimeoutError:
        why = f"not written after {wait_s:g} s, as the disk hangs or the run is large"
        run.warn(f"{what} of {run.folder}: {why}", f"try: greentrain report {run.folder}")


_call_if_present = never_raises(call_if_present)
