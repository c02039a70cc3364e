"""ROLL's reward and reference workers on ``greentrain serve``. Read against ROLL v0.3.0 (8eb27cc2), not run in ROLL.

``worker_cls`` in a recipe's YAML chooses them (recipes/roll); both run on the CPU, so they have no ``device_mapping``.
ROLL scores each rollout as it finishes. It waits for the reference before it goes on (rlvr_pipeline.py: run), so that
pass is moved and not hidden. ROLL does not divide logits by the sampling temperature when it computes log-probabilities
(strategy.py: op_compute_log_probs): compile the reference with temperature 1.
"""

import time
from typing import Any

import torch
from roll.distributed.executor.worker import Worker  # type: ignore[import-not-found]
from roll.distributed.scheduler.decorator import Dispatch, register  # type: ignore[import-not-found]
from roll.distributed.scheduler.protocol import DataProto  # type: ignore[import-not-found]
from roll.models.model_providers import default_tokenizer_provider  # type: ignore[import-not-found]

from greentrain.rlhf.batching import padded_logprobs, unpadded
from greentrain.rlhf.client import ServeClient
from greentrain.utils.never_raise import warn_experimental


class OffloadRewardWorker(Worker):  # type: ignore[misc]  # ROLL is not installed where types are checked
    """Scores prompt and response as text, decoded by the policy's tokenizer without special tokens.

    Experimental: ROLL's own calling code was run against it, its training never (docs/status.md).

    Asynchronous: Ray then gives one worker up to 1,000 rollouts at a time, which the server puts into batches.
    """

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def initialize(self, pipeline_config: Any) -> None:
        """Load the policy's tokenizer and find the server. Raises ServeError if it does not answer."""
        super().initialize(pipeline_config)
        self.tokenizer = default_tokenizer_provider(model_args=pipeline_config.actor_train.model_args)
        warn_experimental("the workers for ROLL", "its own calling code was run against them, its training never")
        self.client = ServeClient()
        self.client.health()

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE, clear_cache=False)  # type: ignore[untyped-decorator]
    async def compute_rewards(self, data: Any) -> Any:
        """Return the rewards of rollouts.

        Returns:
            A DataProto of ``response_level_rewards`` and ``scores``, float32 [rollouts], and ``token_level_rewards``,
            zeros [rollouts, response]: a reward is of the whole response.

        Raises:
            ServeError: The server gave none.
        """
        ids = unpadded(data.batch["input_ids"], data.batch["attention_mask"])
        texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        scores = torch.tensor(await self.client.rewards_async(texts), dtype=torch.float32)
        return DataProto.from_dict(
            tensors={
                "token_level_rewards": torch.zeros_like(data.batch["responses"], dtype=torch.float32),
                "response_level_rewards": scores,
                "scores": scores.clone(),
            }
        )


class OffloadReferenceWorker(Worker):  # type: ignore[misc]
    """Log-probabilities of rollouts under the frozen policy.

    Experimental: ROLL's own calling code was run against it, its training never (docs/status.md).
    """

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def initialize(self, pipeline_config: Any) -> None:
        """Find the server. Raises ServeError if it does not answer."""
        super().initialize(pipeline_config)
        warn_experimental("the workers for ROLL", "its own calling code was run against them, its training never")
        self.client = ServeClient()
        self.client.health()

    @register(  # type: ignore[untyped-decorator]
        dispatch_mode=Dispatch.DP_MP_DISPATCH_FIRST, trace=True, prefetch=True, to_remote=True
    )
    def compute_log_probs(self, data: Any) -> Any:
        """Return ln p of each token but the first, 0 outside the response.

        Returns:
            A DataProto of ``log_probs``, float32 [rollouts, tokens - 1]. There is no ``entropy``: the server does not
            know it, and ROLL reads that of the actor alone.

        Raises:
            ServeError: The server gave none.
        """
        begun_s = time.perf_counter()
        mask = data.batch["attention_mask"]
        rows = self.client.logprobs(unpadded(data.batch["input_ids"], mask), temperature=1.0)
        logprobs = padded_logprobs(rows, mask) * data.batch["response_mask"][:, 1:].cpu().float()
        output = DataProto.from_dict(tensors={"log_probs": logprobs})
        output.meta_info = {"metrics": {"time/greentrain_reference_s": time.perf_counter() - begun_s}}
        return output
