"""Runs frozen passes beside the training: submit early, wait late."""

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future

from greentrain.errors import ConfigError
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.errors import DeviceError, DeviceLostError, QueueFullError
from greentrain.harmless import warn
from greentrain.rlhf.frozen_pass import FrozenPass, Placement
from greentrain.rlhf.kinds import PassKind, Place
from greentrain.rlhf.parts import parts
from greentrain.rlhf.stats import Counts, PassStats
from greentrain.rlhf.ticket import Ticket


class OffloadEngine:
    """Gives passes to their devices and their results to whoever holds the ticket. Any thread may call.

    A device that fails costs one warning: the part is redone at the pass's home. A device that is lost is not asked
    again. Without a home the error is raised where the result is needed.

    Args:
        passes: One of each kind.
        depth: Parts that may be under way at a time; more wait in ``submit``.
        timeout_s: How long a barrier waits before the pass is redone at home (s); None: for ever.
        sequential: ``submit`` returns when the pass has run, as if there were no other device: the order of the
            published baseline, and what concurrent results are compared with.

    Raises:
        ConfigError: Two passes of one kind, none at all, or a bound.
    """

    def __init__(
        self,
        passes: Iterable[FrozenPass],
        *,
        depth: int = 64,
        timeout_s: float | None = 600.0,
        sequential: bool = False,
    ) -> None:
        given = list(passes)
        self._passes = {one.kind: one for one in given}
        if not given or len(self._passes) < len(given):
            raise ConfigError(f"passes: {[str(p.kind) for p in given]}; give at least one, and one of each kind")
        if depth < 1:
            raise ConfigError(f"depth={depth}: at least 1 part must be able to be under way")
        if timeout_s is not None and not timeout_s > 0:
            raise ConfigError(f"timeout_s={timeout_s}: give a time above 0, or None to wait for ever")
        self._depth = depth
        self._timeout_s = timeout_s
        self._sequential = sequential
        self._room = threading.BoundedSemaphore(depth)
        self._counts = Counts()
        self._lock = threading.Lock()
        self._lost: set[PassKind] = set()
        self._warned: set[PassKind] = set()

    @property
    def passes(self) -> Mapping[PassKind, FrozenPass]:
        """The passes by kind."""
        return dict(self._passes)

    def of(self, kind: PassKind) -> FrozenPass:
        """Return the pass of a kind.

        Raises:
            ConfigError: There is none.
        """
        try:
            return self._passes[kind]
        except KeyError:
            known = ", ".join(self._passes)
            raise ConfigError(f"the engine has no {kind} pass, only {known}: give one to OffloadEngine") from None

    def submit(
        self, kind: PassKind, batch: Batch, *, at: Place = Place.DEVICE, sequential: bool | None = None
    ) -> Ticket:
        """Hand in a batch.

        Args:
            kind: Of the pass.
            batch: Finished rollouts.
            at: Where it runs; a device that was lost is replaced by home.
            sequential: Wait for it here; None: as the engine was told.

        Raises:
            BatchError: The batch does not fit the model.
            ConfigError: There is no such pass, or it has no home.
            OffloadError: The device failed at once, and there is no home.
        """
        begun_s = time.perf_counter()
        what = self.of(kind)
        runs = [_Run(self, what, piece) for piece in parts(batch, what.sequences)]
        for run in runs:
            self._room.acquire()
            run.outer.add_done_callback(lambda _: self._room.release())
            try:
                run.start(at)
            except BaseException as error:
                run.outer.set_exception(error)
                for begun in runs:
                    begun.outer.cancel()
                raise
        self._counts.add(
            kind,
            PassStats(calls=1, sequences=len(batch.ids), tokens=batch.tokens, wait_s=time.perf_counter() - begun_s),
        )
        ticket = Ticket(
            kind,
            [run.outer for run in runs],
            timeout_s=self._timeout_s,
            late=lambda numbers: all([runs[i].redo("it did not answer in time") for i in numbers]),
            count=lambda stats: self._counts.add(kind, stats),
        )
        if self._sequential if sequential is None else sequential:
            ticket.result()
        return ticket

    def barrier(self, tickets: Sequence[Ticket], timeout_s: float | None = None) -> list[Result]:
        """Wait for several results. Raises as :meth:`Ticket.result` does."""
        return [ticket.result(timeout_s) for ticket in tickets]

    def replace(self, kind: PassKind, artifact: Artifact) -> None:
        """Give a pass new weights, wherever it may run; batches under way keep the old ones.

        Raises:
            ArtifactError, DeviceError: As ``OffloadDevice.load``.
        """
        old = self.of(kind)
        self._passes[kind] = FrozenPass(
            kind=kind,
            program=artifact.program,
            device=_replaced(old.device, artifact),
            home=None if old.home is None else _replaced(old.home, artifact),
            sequences=old.sequences,
            temperature=old.temperature,
        )

    def stats(self) -> Mapping[PassKind, PassStats]:
        """Return sums by kind since the engine was made."""
        return self._counts.all()

    def _place(self, kind: PassKind, at: Place) -> Place:
        with self._lock:
            return Place.HOME if kind in self._lost and self._passes[kind].home is not None else at

    def _failed(self, what: FrozenPass, error: BaseException | str) -> None:
        """Remember a device that is lost, and warn of its pass once."""
        self._counts.add(what.kind, PassStats(redone=1))
        with self._lock:
            if isinstance(error, DeviceLostError):
                self._lost.add(what.kind)
            told = what.kind in self._warned
            self._warned.add(what.kind)
        if not told:
            alike = "with the same bits" if what.redone_alike else "whose numbers differ by rounding"
            home = what.at(Place.HOME).device.probe().name
            warn(f"the {what.kind} pass failed on its device ({error}); it is redone on {home}, {alike}")


class _Run:
    """A part of a pass: on the device, or, after a failure, at home."""

    def __init__(self, engine: OffloadEngine, what: FrozenPass, batch: Batch) -> None:
        self.outer: Future[Result] = Future()
        self._engine = engine
        self._what = what
        self._batch = batch
        self._lock = threading.Lock()
        self._at_home = False

    def start(self, at: Place) -> None:
        at = self._engine._place(self._what.kind, at)
        self._at_home = at is Place.HOME
        placement = self._what.at(at)
        try:
            inner = placement.device.submit(placement.handle, self._batch)
        except QueueFullError:
            raise
        except DeviceError as error:
            if not self.redo(error):
                raise
            return
        self._follow(inner)

    def redo(self, why: BaseException | str) -> bool:
        """Run at home what the device did not deliver; return False if there is no home or it runs there already."""
        with self._lock:
            if self._at_home or self._what.home is None or self.outer.done():
                return self.outer.done()
            self._at_home = True
        self._engine._failed(self._what, why)
        home = self._what.home
        self._follow(home.device.submit(home.handle, self._batch))
        return True

    def _follow(self, inner: Future[Result]) -> None:
        self.outer.add_done_callback(lambda outer: outer.cancelled() and inner.cancel())
        inner.add_done_callback(self._finished)

    def _finished(self, inner: Future[Result]) -> None:
        if self.outer.done() or inner.cancelled():
            return
        error = inner.exception()
        try:
            if isinstance(error, DeviceError) and self.redo(error):
                return
        except BaseException as second:
            error = second
        with self._lock:
            if self.outer.done():
                return
            if error is None:
                self.outer.set_result(inner.result())
            else:
                self.outer.set_exception(error)


def _replaced(old: Placement, artifact: Artifact) -> Placement:
    return Placement(device=old.device, handle=old.device.load(artifact, replacing=old.handle))
