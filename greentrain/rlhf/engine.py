"""Runs frozen passes beside the training: submit early, wait late."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from greentrain.errors import ConfigError
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result, fitting
from greentrain.fpga_backend.errors import ArtifactError, DeviceError
from greentrain.rlhf.batching import parts
from greentrain.rlhf.engine_state import EngineState
from greentrain.rlhf.frozen_pass import FrozenPass, Placement
from greentrain.rlhf.kinds import PassKind, Place
from greentrain.rlhf.pass_task import PassTask
from greentrain.rlhf.stats import PassStats
from greentrain.rlhf.ticket import Ticket


class OffloadEngine:
    """Gives passes to their devices and their results to whoever holds the ticket. Any thread may call.

    A device that fails costs one warning: the part is redone at the pass's home. A device that is lost is not asked
    again, one that hangs not until it answers, and one that fails several times in a row more and more seldom. Without
    a home the error is raised where the result is needed. A pass that is kept at home and fails there is redone on the
    device in the same way.

    Args:
        passes: One of each kind.
        depth: Parts that may be under way at a time; more wait in ``submit``.
        timeout_s: How long a barrier, or a ``submit`` without room, waits before the device counts as hanging and its
            passes are redone at home (s); None: for ever.
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
        by_kind = {one.kind: one for one in given}
        if not given or len(by_kind) < len(given):
            raise ConfigError(f"passes: {[str(p.kind) for p in given]}; give at least one, and one of each kind")
        if depth < 1:
            raise ConfigError(f"depth={depth}: at least 1 part must be able to be under way")
        if timeout_s is not None and not timeout_s > 0:
            raise ConfigError(f"timeout_s={timeout_s}: give a time above 0, or None to wait for ever")
        self._sequential = sequential
        self._desk = EngineState(by_kind, depth, timeout_s)

    @property
    def passes(self) -> Mapping[PassKind, FrozenPass]:
        """The passes by kind."""
        return dict(self._desk.passes)

    def of(self, kind: PassKind) -> FrozenPass:
        """Return the pass of a kind.

        Raises:
            ConfigError: There is none.
        """
        return self._desk.of(kind)

    def submit(
        self, kind: PassKind, batch: Batch, *, at: Place = Place.DEVICE, sequential: bool | None = None
    ) -> Ticket:
        """Hand in a batch. Its tokens are not copied: leave them as they are until the result is there.

        Args:
            kind: Of the pass.
            batch: Finished rollouts.
            at: Where it runs; a device that is lost, or hangs, is replaced by home.
            sequential: Wait for it here; None: as the engine was told.

        Raises:
            BatchError: The batch does not fit the model.
            ConfigError: There is no such pass, or it has no home.
            PassTimeoutError: There was no room in time.
            QueueFullError: There is no room, and a callback of a result must not wait for any.
            OffloadError: The device failed at once, and there is no home.
        """
        desk = self._desk
        desk.check_process()
        what = desk.of(kind)
        what.at(at)
        batch = fitting(batch, what.program)
        runs: list[PassTask] = []
        with desk.counts.waiting(kind):
            try:
                for piece in parts(batch, what.sequences if what.part_size is None else what.part_size.next):
                    run = PassTask(desk, kind, piece, at)
                    runs.append(run)  # before it takes room, which is given back wherever an exception comes from
                    desk.enter(run)
                    run.start(0.0 if desk.in_callback else desk.timeout_s)
            except BaseException:
                for run in runs:
                    run.cancel()
                raise
            desk.counts.add(kind, PassStats(calls=1, sequences=len(batch.ids), tokens=batch.tokens))
            ticket = Ticket(kind, runs, desk)
            if self._sequential if sequential is None else sequential:
                ticket.result()
        return ticket

    def barrier(self, tickets: Sequence[Ticket], timeout_s: float | None = None) -> list[Result]:
        """Wait for several results, for all of them together no longer than ``timeout_s``.

        Raises:
            OffloadError: As :meth:`Ticket.result` does.
        """
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        return [ticket.result(None if end_s is None else max(0.0, end_s - time.monotonic())) for ticket in tickets]

    def replace(self, kind: PassKind, artifact: Artifact) -> None:
        """Give a pass new weights, wherever it may run. Waits for the batches under way, which keep the old ones.

        A place that fails to take them is not used until it takes later ones: nothing is computed with old weights.

        Raises:
            ArtifactError: It does not fit.
            DeviceError: No place could take it.
        """
        desk = self._desk
        desk.check_process()
        for part in desk.under_way(kind):
            part.settled(desk.timeout_s)
        places = [Place.DEVICE] if self.of(kind).home is None else [Place.DEVICE, Place.HOME]
        done: list[Place] = []
        for place in places:
            try:
                self._replaced(kind, place, artifact)
                done.append(place)
            except ArtifactError:
                if done:  # two places with different weights
                    desk.stale.add((kind, place))
                raise
            except DeviceError as error:
                desk.stale.add((kind, place))
                if place is places[-1] and not done:
                    raise
                name = desk.health(self.of(kind).at(place).device).info.name
                desk.tell(f"{name} {kind}", f"{name} did not take new weights of the {kind} pass ({error})")

    def close(self) -> None:
        """Cancel what has not begun; what fails from now on is not redone. The devices stay open. Idempotent."""
        self._desk.close()

    def stats(self) -> Mapping[PassKind, PassStats]:
        """Return sums by kind since the engine was made."""
        return self._desk.counts.all()

    def _replaced(self, kind: PassKind, place: Place, artifact: Artifact) -> None:
        desk, what = self._desk, self._desk.of(kind)
        old = what.at(place)
        new = Placement(device=old.device, handle=old.device.load(artifact, replacing=old.handle))
        if place is Place.DEVICE:
            desk.passes[kind] = replace(what, program=artifact.program, device=new)
        else:
            desk.passes[kind] = replace(what, program=artifact.program, home=new)
        desk.stale.discard((kind, place))
