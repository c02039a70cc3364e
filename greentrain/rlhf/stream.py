"""Rollouts as they finish: the device begins with the first ones while the rest are still generated."""

import threading
import time
from collections.abc import Hashable, Sequence
from typing import Any

from greentrain.errors import ConfigError
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.kinds import PassKind, Place
from greentrain.rlhf.parts import joined, rows_of
from greentrain.rlhf.ticket import Ticket


class Stream:
    """Collects finished rollouts and hands them in, a few at a time. Any thread may call.

    Args:
        engine: What runs them.
        kind: Of the pass.
        sequences: How many are handed in together; the last ones may be fewer.
        at: Where they run.
    """

    def __init__(self, engine: OffloadEngine, kind: PassKind, *, sequences: int = 1, at: Place = Place.DEVICE) -> None:
        if sequences < 1:
            raise ConfigError(f"sequences={sequences}: at least 1 rollout is handed in at a time")
        self._engine = engine
        self._kind = kind
        self._sequences = sequences
        self._at = at
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, tuple[Any, int | None]] = {}
        self._begun: dict[Hashable, tuple[Ticket, int]] = {}

    def add(self, key: Hashable, ids: Any, *, prompt_tokens: int | None = None) -> None:
        """Take a finished rollout; one that is known already is not run again.

        Args:
            key: What it is asked for by.
            ids: Token ids [tokens], without padding.
            prompt_tokens: How many of them are the prompt; for all rollouts of a stream, or for none.

        Raises:
            BatchError: It does not fit the model.
        """
        with self._lock:
            if key in self._begun or key in self._waiting:
                return
            self._waiting[key] = (ids, prompt_tokens)
            if len(self._waiting) >= self._sequences:
                self._hand_in()

    def flush(self) -> None:
        """Hand in what waits for company."""
        with self._lock:
            self._hand_in()

    def __contains__(self, key: Hashable) -> bool:
        """Return True if the rollout was added."""
        with self._lock:
            return key in self._begun or key in self._waiting

    def result(self, keys: Sequence[Hashable], timeout_s: float | None = None) -> Result:
        """Wait for the results of some rollouts, in this order: the barrier.

        Raises:
            KeyError: One was never added.
            OffloadError: As :meth:`Ticket.result`.
        """
        self.flush()
        with self._lock:
            places = [self._begun[key] for key in keys]
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        known: dict[int, Result] = {}
        for ticket, _ in places:
            if id(ticket) not in known:
                left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
                known[id(ticket)] = ticket.result(left_s)
        return joined([rows_of(known[id(ticket)], [row]) for ticket, row in places])

    def cancel(self) -> None:
        """Cancel what has not begun to run and forget everything."""
        with self._lock:
            tickets = {id(ticket): ticket for ticket, _ in self._begun.values()}
            self._waiting.clear()
            self._begun.clear()
        for ticket in tickets.values():
            ticket.cancel()

    def _hand_in(self) -> None:
        if not self._waiting:
            return
        keys, rows = list(self._waiting), list(self._waiting.values())
        self._waiting.clear()
        prompts = [prompt for _, prompt in rows if prompt is not None]
        if prompts and len(prompts) < len(rows):
            raise ConfigError("some rollouts of the stream name their prompt and some do not: name it for all")
        batch = Batch.of([ids for ids, _ in rows], prompt_tokens=prompts or None)
        ticket = self._engine.submit(self._kind, batch, at=self._at)
        self._begun.update({key: (ticket, row) for row, key in enumerate(keys)})
