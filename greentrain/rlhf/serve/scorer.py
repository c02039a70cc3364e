"""A pass as the dialects ask for it: texts or token ids in, a row of numbers each out."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, Literal

import numpy as np

from greentrain.fpga_backend.batch import Batch, Ids
from greentrain.fpga_backend.errors import BatchError
from greentrain.fpga_backend.program import Program
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.serve.coalescer import Coalescer, Row
from greentrain.rlhf.serve.requests import Refusal
from greentrain.rlhf.text import TextEncoder

TooLong = Literal["refuse", "truncate"]
"""What is done with a text that has more tokens than the model takes. Token ids are never cut."""


class Scorer:
    """Checks, tokenizes and coalesces. All calls from one event loop.

    Args:
        engine: What runs the pass.
        kind: Of the pass.
        coalescer: Of this pass.
        encoder: Reads texts; None: only token ids are taken.
        tokenizing: One thread, as tokenizers are not safe in several.
        most: Sequences of a request.
        too_long: Of texts.
        truncated: Told how many texts were cut.
    """

    def __init__(
        self,
        engine: OffloadEngine,
        kind: PassKind,
        coalescer: Coalescer,
        *,
        encoder: TextEncoder | None,
        tokenizing: Executor,
        most: int,
        too_long: TooLong = "refuse",
        truncated: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.kind = kind
        self.coalescer = coalescer
        self._engine = engine
        self._encoder = encoder
        self._tokenizing = tokenizing
        self._most = most
        self._too_long = too_long
        self._truncated = truncated

    @property
    def program(self) -> Program:
        """What sequences must fit."""
        return self._engine.of(self.kind).program

    @property
    def temperature(self) -> float:
        """With which the pass was compiled."""
        return self._engine.of(self.kind).temperature

    async def ids(self, given: Sequence[str] | Sequence[list[int]]) -> list[Ids]:
        """Return texts or lists of token ids as sequences that fit the model.

        Raises:
            Refusal: One does not fit, there are too many, or there is no tokenizer for texts.
        """
        if len(given) > self._most:
            raise Refusal(400, f"{len(given)} sequences in a request, at most {self._most}: send them in several")
        texts = [one for one in given if isinstance(one, str)]
        rows: Any = await self._tokenized(texts) if texts else given
        try:
            batch = Batch.of(rows)
            batch.check(self.program)
        except (BatchError, OverflowError) as error:
            raise Refusal(400, str(error)) from error
        return list(batch.ids)

    async def rows(self, ids: Sequence[Ids]) -> list[Row]:
        """Return the numbers of each sequence: scores [labels], or log-probabilities [tokens - 1].

        Raises:
            Refusal: As :meth:`Coalescer.run`; or a score is no number, which JSON cannot say.
        """
        found = await self.coalescer.run(ids)
        if any(np.isnan(row).any() for row in found) or (self.program.labels and not all(map(_finite, found))):
            raise Refusal(500, f"the {self.kind} pass gave a value that is no finite number: its weights overflow")
        return found

    async def _tokenized(self, texts: Sequence[str]) -> list[list[int]]:
        encoder = self._encoder
        if encoder is None:
            raise Refusal(400, f"the {self.kind} model's folder holds no tokenizer: send token ids")
        loop = asyncio.get_running_loop()
        rows = await loop.run_in_executor(self._tokenizing, _uncut, encoder, texts)
        limit = min(encoder.max_tokens, self.program.max_tokens)
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


def _uncut(encoder: TextEncoder, texts: Sequence[str]) -> list[list[int]]:
    """Return the token ids of each text, however many; of an empty one, what the encoder makes of it."""
    rows = encoder.tokenizer(list(texts), add_special_tokens=encoder.special_tokens)["input_ids"]
    return [row or encoder.ids([text])[0] for row, text in zip(rows, texts, strict=True)]


def _finite(row: Row) -> bool:
    return bool(np.isfinite(row).all())
