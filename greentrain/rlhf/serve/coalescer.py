"""One sequence each from many clients becomes one batch for the device."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend.batch import Batch, Ids
from greentrain.fpga_backend.errors import DeviceError
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.serve.limits import ServeLimits
from greentrain.rlhf.serve.requests import Refusal, busy, refusal_of

_logger = logging.getLogger(__name__)

Row = npt.NDArray[np.float32]


@dataclass(slots=True, kw_only=True, eq=False)
class _Entry:
    """Sequences that stay together."""

    rows: tuple[Ids, ...]
    tokens: int
    future: "asyncio.Future[list[Row]]"
    since_s: float


class Coalescer:
    """Collects sequences for one pass and gives them to the engine, a batch at a time. All calls from one event loop.

    A batch begins as soon as the engine has room: what comes meanwhile makes up the next one. Each entry's future is
    its own, so answers cannot be swapped; a future that is cancelled before its batch begins leaves the queue.

    Args:
        engine: What runs the batches.
        kind: Of the pass.
        limits: Bounds.
        seen: Told the sequences of each batch that begins.
    """

    def __init__(
        self, engine: OffloadEngine, kind: PassKind, limits: ServeLimits, seen: Callable[[int], None] = lambda _: None
    ) -> None:
        self._engine = engine
        self._kind = kind
        self._limits = limits
        self._seen = seen
        self._pool = ThreadPoolExecutor(limits.in_flight, thread_name_prefix=f"greentrain-serve-{kind}")
        self._queue: dict[int, _Entry] = {}
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None
        self._closed = False
        self.waiting = 0
        """Sequences that wait for their batch to begin."""

    @property
    def running(self) -> int:
        """Batches that the engine has."""
        return len(self._tasks)

    async def run(self, rows: Sequence[Ids]) -> list[Row]:
        """Return what the pass says of each sequence: scores [labels], or log-probabilities [tokens - 1].

        Args:
            rows: Sequences that fit the pass's program.

        Raises:
            Refusal: The queue is full, the server closes, or the device failed.
        """
        if self._closed:
            raise busy("the server is being closed")
        if self.waiting + len(rows) > self._limits.waiting:
            raise busy(
                f"{self.waiting} sequences wait already and at most {self._limits.waiting} may: come again later, "
                "or start the server with a larger queue"
            )
        loop = asyncio.get_running_loop()
        entries = [
            _Entry(rows=part, tokens=sum(map(len, part)), future=loop.create_future(), since_s=loop.time())
            for part in self._cut(rows)
        ]
        for entry in entries:
            self._add(entry)
        self._kick_soon(loop)
        try:
            return [row for part in await asyncio.gather(*(entry.future for entry in entries)) for row in part]
        except BaseException:
            for entry in entries:
                entry.future.cancel()
            raise

    def close(self) -> None:
        """Refuse what waits and what comes. Batches that run are not waited for. Idempotent."""
        self._closed = True
        _fail(self._queue.values(), busy("the server is being closed"))
        self._pool.shutdown(wait=False, cancel_futures=True)

    def fail_running(self) -> None:
        """Answer those whose batch still runs that the server is being closed."""
        for task in self._tasks:
            task.cancel()

    def _cut(self, rows: Sequence[Ids]) -> Iterator[tuple[Ids, ...]]:
        part: list[Ids] = []
        tokens = 0
        for row in rows:
            full = len(part) >= self._limits.batch_sequences or tokens + len(row) > self._limits.batch_tokens
            if part and full:
                yield tuple(part)
                part, tokens = [], 0
            part.append(row)
            tokens += len(row)
        if part:
            yield tuple(part)

    def _add(self, entry: _Entry) -> None:
        number = next(self._numbers)
        self._queue[number] = entry
        self.waiting += len(entry.rows)
        entry.future.add_done_callback(lambda _: self._taken(number))

    def _taken(self, number: int) -> _Entry | None:
        """Take an entry out of the queue; None where it is not there any more."""
        entry = self._queue.pop(number, None)
        if entry is not None:
            self.waiting -= len(entry.rows)
        return entry

    def _kick_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look after the requests that this turn of the loop still brings."""
        if self._soon is None:
            self._soon = loop.call_soon(self._kick)

    def _kick(self) -> None:
        self._soon = None
        if self._later is not None:
            self._later.cancel()
            self._later = None
        loop = asyncio.get_running_loop()
        while self._queue and self.running < self._limits.in_flight and not self._closed:
            first = next(iter(self._queue.values()))
            left_s = first.since_s + self._limits.window_s - loop.time()
            if left_s > 0 and self.waiting < self._limits.batch_sequences:
                self._later = loop.call_later(left_s, self._kick)
                return
            task = loop.create_task(self._compute(list(self._next())))
            self._tasks.add(task)
            task.add_done_callback(self._finished)

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._kick()

    def _next(self) -> Iterator[_Entry]:
        sequences = tokens = 0
        for number, entry in list(self._queue.items()):
            sequences += len(entry.rows)
            tokens += entry.tokens
            full = sequences > self._limits.batch_sequences or tokens > self._limits.batch_tokens
            if full and sequences > len(entry.rows):
                return
            self._taken(number)
            if not entry.future.done():
                yield entry

    async def _compute(self, entries: Sequence[_Entry]) -> None:
        rows = tuple(row for entry in entries for row in entry.rows)
        if not rows:
            return
        self._seen(len(rows))
        loop = asyncio.get_running_loop()
        try:
            found = iter(await loop.run_in_executor(self._pool, self._ask, rows))
        except asyncio.CancelledError:
            _fail(entries, busy("the server is being closed"))
        except Exception as error:
            why = refusal_of(error)
            if why.status == HTTPStatus.INTERNAL_SERVER_ERROR:
                _logger.exception("the %s pass failed", self._kind)
            _fail(entries, why)
        else:
            for entry in entries:
                part = list(itertools.islice(found, len(entry.rows)))
                if not entry.future.done():
                    entry.future.set_result(part)

    def _ask(self, rows: tuple[Ids, ...]) -> list[Row]:
        home = self._engine.of(self._kind).home
        limit_s = self._limits.request_s if home is None else self._limits.request_s / 2  # home needs time as well
        result: Any = self._engine.submit(self._kind, Batch(ids=rows)).result(limit_s)
        found = list(result.scores if result.logprobs is None else result.logprobs)
        if len(found) != len(rows):
            raise DeviceError(f"the device returned {len(found)} rows for {len(rows)} sequences")
        return found


def _fail(entries: Iterable[_Entry], why: Refusal) -> None:
    for entry in entries:
        if not entry.future.done():
            entry.future.set_exception(refusal_of(why))
