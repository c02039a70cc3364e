"""A pass as the dialects ask for it: texts or token ids in, a row of numbers each out, many clients in one batch."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend.batch import Batch, Ids
from greentrain.fpga_backend.errors import BatchError, DeviceError
from greentrain.rlhf.client import in_parts
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.frozen_pass import FrozenPass
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.serve.limits import ServeLimits
from greentrain.rlhf.serve.requests import Refusal, busy, refusal_of
from greentrain.rlhf.text import TextEncoder

_logger = logging.getLogger(__name__)

Row = npt.NDArray[np.float32]


@dataclass(slots=True, kw_only=True, eq=False)
class _QueuedSequences:
    """Sequences that stay together."""

    rows: Sequence[Ids]
    tokens: int
    future: "asyncio.Future[list[Row]]"
    since_s: float


class Coalescer:
    """Collects sequences for one pass and gives them to the engine, a batch at a time. All calls from one event loop.

    A batch begins as soon as the engine has room: what comes meanwhile makes up the next one. Each entry's future is
    its own, so answers cannot be swapped; a future that is cancelled before its batch begins leaves the queue.

    Args:
        engine: Runs the batches.
        kind: Kind of the pass.
        limits: Bounds of batches and of the queue.
        seen: Told the sequences of each batch that begins.
    """

    def __init__(
        self, engine: OffloadEngine, kind: PassKind, limits: ServeLimits, seen: Callable[[int], None] = lambda _: None
    ) -> None:
        self.kind = kind
        self.limits = limits
        self._engine = engine
        self._seen = seen
        self._pool = ThreadPoolExecutor(limits.in_flight, thread_name_prefix=f"greentrain-serve-{kind}")
        self._queue: dict[_QueuedSequences, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None
        self._closed = False
        self.waiting = 0
        """Sequences that wait for their batch to begin."""

    @property
    def frozen(self) -> FrozenPass:
        """The pass, as it is now."""
        return self._engine.of(self.kind)

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
        if self.waiting + len(rows) > self.limits.waiting:
            raise busy(
                f"{self.waiting} sequences wait already and at most {self.limits.waiting} may: come again later, "
                "or start the server with a larger queue"
            )
        loop = asyncio.get_running_loop()
        entries = [
            _QueuedSequences(rows=part, tokens=sum(map(len, part)), future=loop.create_future(), since_s=loop.time())
            for part in in_parts(rows, self.limits.batch_sequences, self.limits.batch_tokens)
        ]
        for entry in entries:
            self._add(entry)
        if self._soon is None:  # after the requests that this turn of the loop still brings
            self._soon = loop.call_soon(self._kick)
        try:
            return [row for part in await asyncio.gather(*(entry.future for entry in entries)) for row in part]
        except BaseException:
            for entry in entries:
                entry.future.cancel()
            raise

    def close(self) -> None:
        """Refuse what waits and what comes. Batches that run are not waited for. Idempotent."""
        self._closed = True
        _fail(self._queue, busy("the server is being closed"))
        self._pool.shutdown(wait=False, cancel_futures=True)

    def fail_running(self) -> None:
        """Answer those whose batch still runs that the server is being closed."""
        for task in self._tasks:
            task.cancel()

    def _add(self, entry: _QueuedSequences) -> None:
        self._queue[entry] = None
        self.waiting += len(entry.rows)
        entry.future.add_done_callback(lambda _: self._take(entry))

    def _take(self, entry: _QueuedSequences) -> None:
        """Take an entry out of the queue, if it is still there."""
        if entry in self._queue:
            del self._queue[entry]
            self.waiting -= len(entry.rows)

    def _kick(self) -> None:
        self._soon = None
        if self._later is not None:
            self._later.cancel()
            self._later = None
        loop = asyncio.get_running_loop()
        while self._queue and self.running < self.limits.in_flight and not self._closed:
            left_s = next(iter(self._queue)).since_s + self.limits.window_s - loop.time()
            if left_s > 0 and self.waiting < self.limits.batch_sequences:
                self._later = loop.call_later(left_s, self._kick)
                return
            task = loop.create_task(self._compute(list(self._next())))
            self._tasks.add(task)
            task.add_done_callback(self._finished)

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._kick()

    def _next(self) -> Iterator[_QueuedSequences]:
        sequences = tokens = 0
        for entry in list(self._queue):
            sequences += len(entry.rows)
            tokens += entry.tokens
            full = sequences > self.limits.batch_sequences or tokens > self.limits.batch_tokens
            if full and sequences > len(entry.rows):
                return
            self._take(entry)
            if not entry.future.done():
                yield entry

    async def _compute(self, entries: Sequence[_QueuedSequences]) -> None:
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
                _logger.exception("the %s pass failed", self.kind)
            _fail(entries, why)
        else:
            for entry in entries:
                part = list(itertools.islice(found, len(entry.rows)))
                if not entry.future.done():
                    entry.future.set_result(part)

    def _ask(self, rows: tuple[Ids, ...]) -> list[Row]:
        home = self.frozen.home
        limit_s = self.limits.request_s if home is None else self.limits.request_s / 2  # home needs time as well
        result: Any = self._engine.submit(self.kind, Batch(ids=rows)).result(limit_s)
        found = list(result.scores if result.logprobs is None else result.logprobs)
        if len(found) != len(rows):
            raise DeviceError(f"the device returned {len(found)} rows for {len(rows)} sequences")
        return found


def _fail(entries: Iterable[_QueuedSequences], why: Refusal) -> None:
    for entry in entries:
        if not entry.future.done():
            entry.future.set_exception(refusal_of(why))


TooLong = Literal["refuse", "truncate"]
"""What is done with a text that has more tokens than the model takes. Token ids are never cut."""


class Scorer:
    """Checks, tokenizes and coalesces. All calls from one event loop.

    Args:
        coalescer: Queue of the pass.
        encoder: Reads texts; None: only token ids are taken.
        tokenizing: One thread, as tokenizers are not safe in several.
        too_long: Says what is done with texts of more tokens than the model takes.
        truncated: Told how many texts were cut.
    """

    def __init__(
        self,
        coalescer: Coalescer,
        *,
        encoder: TextEncoder | None,
        tokenizing: Executor,
        too_long: TooLong = "refuse",
        truncated: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.kind = coalescer.kind
        self.coalescer = coalescer
        self._encoder = encoder
        self._tokenizing = tokenizing
        self._too_long = too_long
        self._truncated = truncated

    @property
    def frozen(self) -> FrozenPass:
        """The pass, as it is now."""
        return self.coalescer.frozen

    async def ids(self, given: Sequence[str] | Sequence[list[int]]) -> list[Ids]:
        """Return texts or lists of token ids as sequences that fit the model.

        Raises:
            Refusal: One does not fit, there are too many, or there is no tokenizer for texts.
        """
        most = self.coalescer.limits.request_sequences
        if len(given) > most:
            raise Refusal(400, f"{len(given)} sequences in a request, at most {most}: send them in several")
        texts = [one for one in given if isinstance(one, str)]
        rows: Any = await self._tokenized(texts) if texts else given
        try:
            batch = Batch.of(rows)
            batch.check(self.frozen.program)
        except (BatchError, OverflowError) as error:
            raise Refusal(400, str(error)) from error
        return list(batch.ids)

    async def rows(self, ids: Sequence[Ids]) -> list[Row]:
        """Return the numbers of each sequence: scores [labels], or log-probabilities [tokens - 1].

        Raises:
            Refusal: As :meth:`Coalescer.run`; or a score is no number, which JSON cannot say.
        """
        found = await self.coalescer.run(ids)
        scores = self.frozen.program.labels > 0  # a log-probability may be minus infinity
        if not all((np.isfinite(row) if scores else ~np.isnan(row)).all() for row in found):
            raise Refusal(500, f"the {self.kind} pass gave a value that is no finite number: its weights overflow")
        return found

    async def _tokenized(self, texts: Sequence[str]) -> list[list[int]]:
        encoder = self._encoder
        if encoder is None:
            raise Refusal(400, f"the {self.kind} model's folder holds no tokenizer: send token ids")
        loop = asyncio.get_running_loop()
        rows = await loop.run_in_executor(self._tokenizing, partial(encoder.ids, texts, cut=False))
        limit = min(encoder.max_tokens, self.frozen.program.max_tokens)
        long = [i for i, row in enumerate(rows) if len(row) > limit]
        if long and self._too_long == "refuse":
            raise Refusal(
                400,
                f"text {long[0]} has {len(rows[long[0]])} tokens, the {self.kind} model was compiled for {limit}: "
                "shorten it, compile with a larger max_tokens, or start the server with --too-long truncate",
            )
        if long:
            self._truncated(len(long))
            cut = await loop.run_in_executor(self._tokenizing, encoder.ids, [texts[i] for i in long])
            for i, row in zip(long, cut, strict=True):
                rows[i] = row
        return rows
