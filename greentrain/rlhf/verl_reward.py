"""verl's rewards from ``greentrain serve``. Read against verl 0.9.1 and 0.10.0.dev (1dda039b), not run in verl.

Either a function, ``compute_score``, which knows the response alone, or with the prompt's text out of the data set, or
a manager, which reads the prompt as well (docs/rlhf-frameworks.md, recipes/verl/grpo.sh). The token comes from the
environment (``GREENTRAIN_TOKEN`` or ``GREENTRAIN_TOKEN_FILE``): verl prints its configuration. verl scores a rollout as
soon as it is finished, so the passes run beside the rest of the generation.
"""

import asyncio
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from greentrain.errors import ConfigError
from greentrain.rlhf.client import ServeClient

if TYPE_CHECKING:
    _Base = object
else:
    try:
        from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase as _Base
    except ImportError:  # the function needs nothing of verl
        _Base = object

_OPTIONS = ("url", "timeout_s", "patience_s", "tries", "batch", "parallel")


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    url: str | None = None,
    prompt_key: str | None = None,
    timeout_s: float = 180.0,
    patience_s: float | None = None,
    tries: int | None = None,
    **_: Any,
) -> dict[str, float]:
    """Return the reward of a response.

    Args:
        data_source: Not used.
        solution_str: The response, decoded by verl.
        ground_truth: Not used: the reward model judges.
        extra_info: The data set's column of that name.
        url: URL of the server; None: the environment's ``GREENTRAIN_URL``.
        prompt_key: Key of the prompt's text in ``extra_info``, which then precedes the response; None: the response
            is scored alone.
        timeout_s: Longest wait for one answer (s).
        patience_s: As :class:`greentrain.rlhf.client.ServeClient` has it: until the run is stopped (s).
        tries: Most tries as well.

    Raises:
        ServeError: The server gave no reward.
        ConfigError: ``extra_info`` has no such key.
    """
    prompt = ""
    if prompt_key is not None:
        found = (extra_info or {}).get(prompt_key)
        if not isinstance(found, str):
            known = ", ".join(sorted(extra_info or {})) or "nothing"
            raise ConfigError(
                f"prompt_key={prompt_key!r} names no text in extra_info, which has {known}: "
                "write the prompt there when the data set is made, or use OffloadRewardManager"
            )
        prompt = found
    return {"score": (await _client(url, timeout_s, patience_s, tries).rewards_async([prompt + solution_str]))[0]}


class OffloadRewardManager(_Base):
    """Scores prompt and response as one text.

    Args:
        config: verl's. Reads what :func:`client_options` knows, and ``greentrain.tokenizer``: the folder of the reward
            model's tokenizer, whose chat template then makes the text; without it the policy's tokenizer decodes the
            tokens, less the special ones.
        tokenizer: Tokenizer of the policy.
        compute_score: Function that verl passes; not used.
        reward_router_address: Address that verl passes; not used.
        reward_model_tokenizer: Tokenizer that verl passes; not used.
    """

    def __init__(
        self,
        config: Any,
        tokenizer: Any,
        compute_score: Any = None,
        reward_router_address: str | None = None,
        reward_model_tokenizer: Any = None,
    ) -> None:
        if _Base is object:
            raise ConfigError("OffloadRewardManager works inside verl, which cannot be imported here: install verl")
        super().__init__(config, tokenizer, compute_score)  # type: ignore[call-arg]  # object, to mypy
        self.tokenizer = tokenizer
        self.client = ServeClient(**client_options(config))
        folder = (config.get("greentrain") or {}).get("tokenizer")
        self.chat = None
        if folder is not None:
            from transformers import AutoTokenizer

            self.chat = AutoTokenizer.from_pretrained(folder)

    async def run_single(self, data: Any) -> dict[str, Any]:
        """Return the reward of the last sequence of a trajectory, as verl's own managers do.

        Raises:
            ServeError: The server gave no reward.
        """
        text = await asyncio.to_thread(self._text, data[-1:][0])
        score = (await self.client.rewards_async([text]))[0]
        return {"reward_score": score, "reward_extra_info": {"score": score}}

    def _text(self, item: Any) -> str:
        batch, kept = item.batch, item.batch["attention_mask"].bool()
        ids = batch["input_ids"] if "input_ids" in batch else torch.cat([batch["prompts"], batch["responses"]])
        if self.chat is None:
            return str(self.tokenizer.decode(ids[kept], skip_special_tokens=True))
        turns = list(item.non_tensor_batch["raw_prompt"])
        length = len(batch["responses"])
        response = batch["responses"][: int(kept[-length:].sum())] if length else batch["responses"]
        turns.append({"role": "assistant", "content": self.tokenizer.decode(response, skip_special_tokens=True)})
        return str(self.chat.apply_chat_template(turns, add_generation_prompt=False, tokenize=False))


def client_options(config: Any) -> dict[str, Any]:
    """Return what verl's configuration says of the client: ``+greentrain.url=...`` and other arguments.

    Raises:
        ConfigError: It holds another key.
    """
    block = dict(config.get("greentrain") or {})
    unknown = sorted(set(block) - {*_OPTIONS, "tokenizer"})
    if unknown:
        raise ConfigError(f"greentrain.{unknown[0]} is no key: use {', '.join(_OPTIONS)} or tokenizer")
    return {key: value for key, value in block.items() if key in _OPTIONS}


@lru_cache(maxsize=8)
def _client(url: str | None, timeout_s: float, patience_s: float | None, tries: int | None) -> ServeClient:
    """Return one client a worker process, so that connections are kept."""
    return ServeClient(url, timeout_s=timeout_s, patience_s=patience_s, tries=tries)
