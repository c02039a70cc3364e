"""A reward function of TRL whose model runs on an offload device."""

from collections.abc import Sequence
from typing import Any

from greentrain.errors import ConfigError
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.stream import Stream
from greentrain.rlhf.text import TextEncoder
from greentrain.rlhf.trl.late_values import submit_ahead
from greentrain.rlhf.trl.reference import key_of
from greentrain.utils.imports import try_import
from greentrain.utils.never_raise import once, warn

with try_import("trl") as _imports:
    from trl.data_utils import apply_chat_template, is_conversational

WHEN_TOLD = 2**31
"""A stream hands in when it is told to, not after so many sequences."""


class OffloadedReward:
    """Scores completions for GRPO, RLOO and online DPO: one of their ``reward_funcs``, alone or among others.

    Plain prompts are scored as prompt and completion in one text. Conversational ones go through the chat template of
    the reward model's tokenizer and then get no special tokens, which the template has written. TRL gives its own
    reward models no special tokens in either case: ``TextEncoder(..., special_tokens=False)`` does the same here.

    A score that is no finite number is a fault of the device, and redone: it never reaches TRL.

    Args:
        engine: Engine that has a reward pass.
        text: Encoder by which the reward model reads texts.
        label: Number of the score of a sequence; may be left out where there is one.
        name: Name in TRL's logs.

    Raises:
        ConfigError: There is no reward pass, or it does not have that score.
        MissingExtraError: TRL is not installed.
    """

    def __init__(
        self, engine: OffloadEngine, text: TextEncoder, *, label: int | None = None, name: str = "offloaded_reward"
    ) -> None:
        _imports.check()
        self.__name__ = name
        self.engine = engine
        frozen = engine.of(PassKind.REWARD)
        self._label, program = frozen.score_at(label), frozen.program
        if text.max_tokens > program.max_tokens:
            raise ConfigError(
                f"texts are cut after {text.max_tokens} tokens, and the reward model was compiled for "
                f"{program.max_tokens}: compile it with max_tokens={text.max_tokens}, or cut earlier"
            )
        self._text = text
        self._templated = TextEncoder(text.tokenizer, text.max_tokens, special_tokens=False)
        self.stream: Stream | None = None
        """What was handed in and not asked for."""
        self._tell = once(warn)

    def prefetch(self, prompts: Sequence[Any], completions: Sequence[Any], *, ahead: int | None = None) -> None:
        """Hand in completions whose scores will be asked for; what is not asked for in the end is forgotten.

        Args:
            prompts: Prompts as TRL gives them; none hands in what was held back.
            completions: Completions as TRL gives them.
            ahead: Hold them back while so many hand-ins are under way, to go together; None: do not.
        """
        if self.stream is None:
            self.stream = Stream(self.engine, PassKind.REWARD, sequences=WHEN_TOLD)
        for ids in self.ids(prompts, completions):
            self.stream.add(key_of(ids), ids)
        if ahead is None or self.stream.under_way < ahead:
            with submit_ahead("a reward pass"):
                self.stream.flush()

    def forget(self) -> None:
        """Cancel what was handed in and never asked for."""
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.cancel()

    @property
    def under_way(self) -> int:
        """How many hand-ins have no scores yet."""
        return 0 if self.stream is None else self.stream.under_way

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], completion_ids: Any = None, **columns: Any
    ) -> list[float | None]:
        """Return a score a completion, in order."""
        rows = self.ids(prompts, completions)
        stream, self.stream = self.stream or Stream(self.engine, PassKind.REWARD, sequences=WHEN_TOLD), None
        try:
            for ids in rows:
                stream.add(key_of(ids), ids)
            scores = stream.result([key_of(ids) for ids in rows]).scores
        finally:
            stream.cancel()
        if scores is None:
            return [None] * len(rows)
        found: list[float | None] = scores[:, self._label].tolist()
        return found

    def ids(self, prompts: Sequence[Any], completions: Sequence[Any]) -> list[list[int]]:
        """Return the token ids that the reward model gets of each completion.

        Raises:
            ConfigError: The prompts are conversations, and the reward model's tokenizer has no chat template.
        """
        if not prompts:
            return []
        text, tokenizer = self._text, self._text.tokenizer
        if is_conversational({"prompt": prompts[0]}):
            if getattr(tokenizer, "chat_template", None) is None:
                raise ConfigError(
                    "the prompts are conversations and the reward model's tokenizer has no chat template: set "
                    "tokenizer.chat_template, or use prompts that are plain texts"
                )
            text = self._templated
            texts = [
                apply_chat_template({"messages": [*prompt, *answer]}, tokenizer)["text"]
                for prompt, answer in zip(prompts, completions, strict=True)
            ]
        else:
            texts = [prompt + answer for prompt, answer in zip(prompts, completions, strict=True)]
        rows = text.ids(texts)
        full = sum(len(row) >= text.max_tokens for row in rows)
        if full:
            self._tell(
                f"{full} of {len(rows)} texts fill the reward model's {text.max_tokens} tokens and may have lost some "
                f"on the {getattr(tokenizer, 'truncation_side', 'right')}; compile it for more, or set "
                "tokenizer.truncation_side"
            )
        return rows
