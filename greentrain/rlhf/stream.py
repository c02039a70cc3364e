"""Rollouts as they finish: the device begins with the first ones while the rest are still generated."""

import threading
import time
from collections.abc import Hashable, Sequence
from typing import Any

from greentrain.errors import ConfigError
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.rlhf.engine import OffloadEngine, Ticket
from greentrain.rlhf.errors import PassCancelledError
from greentrain.rlhf.kinds import PassKind


class Stream:
    """Collects finished rollouts and hands them in, a few at a time. Any thread may call.

    Results are kept as long as the stream: make one a training step.

    Args:
        engine: Engine that runs them.
        kind: Kind of the pass.
        sequences: Number of rollouts that are handed in together; the last ones may be fewer.

    Raises:
        ConfigError: The engine has no such pass, or ``sequences`` is below 1.
    """

    def __init__(self, engine: OffloadEngine, kind: PassKind, *, sequences: int = 1) -> None:
        if sequences < 1:
            raise ConfigError(f"sequences={sequences}: at least 1 rollout is handed in at a time")
        engine.of(kind)  # raises where there is none
        self._engine = engine
        self._kind = kind
        self._sequences = sequences
        self._lock = threading.Lock()
        self._open = self._group()
        self._known: dict[Hashable, tuple[_HandIn, int]] = {}

    def add(self, key: Hashable, ids: Any, *, prompt_tokens: int | None = None) -> None:
        """Take a finished rollout; one that is known already is not run again.

        Args:
            key: Key by which its result is asked for.
            ids: Token ids [tokens], without padding.
            prompt_tokens: Number of them that are the prompt; for all rollouts of a stream, or for none.

        Raises:
            BatchError: It does not fit the model. The others stay.
            ConfigError: It names its prompt and those before it did not, or the other way round.
            OffloadError: The device failed at once and the pass has no home. The rollouts stay: they are handed in
                again where their results are asked for.
        """
        row = Batch.of([ids], prompt_tokens=None if prompt_tokens is None else [prompt_tokens])
        row.check(self._engine.of(self._kind).program)
        with self._lock:
            if key in self._known:
                return
            group = self._open
            self._known[key] = (group, group.take(row))
            if len(group) < self._sequences:
                return
            self._open = self._group()
        group.ticket()

    def flush(self) -> None:
        """Hand in what waits for company. Raises as :meth:`add` does."""
        with self._lock:
            group = self._open
            if not len(group):
                return
            self._open = self._group()
        group.ticket()

    @property
    def under_way(self) -> int:
        """How many groups are handed in and not done: a caller may hold back while it is high."""
        with self._lock:
            groups = {group for group, _ in self._known.values()}
        return sum(group.under_way for group in groups)

    def __contains__(self, key: Hashable) -> bool:
        """Return True if the rollout was added."""
        with self._lock:
            return key in self._known

    def result(self, keys: Sequence[Hashable], timeout_s: float | None = None) -> Result:
        """Wait for the results of some rollouts, in this order: the barrier.

        Raises:
            KeyError: One was never added.
            OffloadError: As :meth:`Ticket.result`.
        """
        with self._lock:
            places = [self._known[key] for key in keys]
        self.flush()
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        known: dict[_HandIn, Result] = {}
        for group in dict.fromkeys(group for group, _ in places):
            left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
            known[group] = group.ticket().result(left_s)
        return Result.joined([known[group].some([row]) for group, row in places])

    def cancel(self) -> None:
        """Cancel what has not begun to run and forget everything."""
        with self._lock:
            groups = {group for group, _ in self._known.values()}
            self._known.clear()
            self._open = self._group()
        for group in groups:
            group.cancel()

    def _group(self) -> "_HandIn":
        return _HandIn(self._engine, self._kind)


class _HandIn:
    """Rollouts that are handed in together."""

    def __init__(self, engine: OffloadEngine, kind: PassKind) -> None:
        self._engine, self._kind = engine, kind
        self._rows: list[Batch] = []
        self._handing = threading.Lock()
        self._ticket: Ticket | None = None
        self._cancelled = False

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def under_way(self) -> bool:
        return self._ticket is not None and not self._ticket.done()

    def take(self, row: Batch) -> int:
        """Add a rollout and return its number; called before the group is handed in, under the stream's lock."""
        if self._rows and (self._rows[0].prompt_tokens is None) != (row.prompt_tokens is None):
            raise ConfigError("some rollouts of the stream name their prompt and some do not: name it for all")
        self._rows.append(row)
        return len(self._rows) - 1

    def ticket(self) -> Ticket:
        """Hand it in, if that is not done yet."""
        with self._handing:
            if self._ticket is None:
                if self._cancelled:
                    raise PassCancelledError(f"the stream of {self._kind} passes was cancelled")
                prompts = [prompt for row in self._rows for prompt in row.prompt_tokens or ()]
                batch = Batch(ids=tuple(row.ids[0] for row in self._rows), prompt_tokens=tuple(prompts) or None)
                self._ticket = self._engine.submit(self._kind, batch)
                self._rows = []
            ticket = self._ticket
        if self._cancelled:
            ticket.cancel()
        return ticket

    def cancel(self) -> None:
        self._cancelled = True
        if self._ticket is not None:
            self._ticket.cancel()
