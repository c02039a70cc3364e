"""verl's synchronous PPO trainer with its reference on ``greentrain serve``, for GRPO and PPO with a critic.

Read against verl 0.9.1 and 0.10.0.dev (1dda039b), not run in verl. ``trainer.v1.trainer_mode=greentrain_sync`` is it
where the variable ``VERL_USE_EXTERNAL_MODULES`` names this module (recipes/verl/grpo.sh).

No reference model is loaded on the GPUs. The pass begins before the old log-probabilities are computed and is waited
for where it is first read: before the advantages if the KL is in the reward, else before the actor's update, so the
critic's passes hide it too. The metric ``greentrain/reference_wait_s`` is what is left. Other steps are verl's own.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
import transfer_queue as tq  # type: ignore[import-not-found]
from verl.trainer.ppo.utils import Role  # type: ignore[import-not-found]
from verl.trainer.ppo.v1.trainer_base import register_trainer  # type: ignore[import-not-found]
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync  # type: ignore[import-not-found]

from greentrain.errors import ConfigError
from greentrain.rlhf.client import ServeClient
from greentrain.rlhf.verl_reward import client_options
from greentrain.utils.never_raise import warn_experimental


@register_trainer("greentrain_sync")
class GreenTrainSync(PPOTrainerSync):  # type: ignore[misc]  # verl is not installed where types are checked
    """verl's trainer ``sync``, which asks a server for the reference's log-probabilities.

    Experimental: verl's own calling code was run against it, its training never (docs/status.md).

    Args:
        config: Settings of verl, a ``greentrain`` block in it, see :func:`greentrain.rlhf.verl_reward.client_options`.

    Raises:
        ConfigError: There is no reference to offload, or it is the actor without its adapter.
    """

    def __init__(self, config: Any) -> None:
        config.trainer.v1.trainer_mode = "sync"  # verl compares this name to choose its replay buffer
        super().__init__(config)
        if not self.use_reference_policy:
            raise ConfigError(
                "trainer_mode=greentrain_sync has no reference to offload: set actor_rollout_ref.actor.use_kl_loss or "
                "algorithm.use_kl_in_reward, or trainer.v1.trainer_mode=sync"
            )
        warn_experimental("the trainer for verl", "verl's own calling code was run against it, its training never")
        self._client = ServeClient(**client_options(config))
        self._client.health()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="greentrain-reference")
        self._reference: Future[list[list[float]]] | None = None

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        if Role.ActorRolloutRef not in self.role_worker_mapping:
            raise ConfigError(
                "with LoRA verl's reference is the actor without its adapter, which costs no memory: keep it there, "
                "trainer.v1.trainer_mode=sync"
            )
        for mapping in (self.role_worker_mapping, self.mapping):
            mapping[Role.ActorRollout] = mapping.pop(Role.ActorRolloutRef)

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        if self._is_read():
            self._begin(batch)
        return super()._compute_old_log_prob(batch, metrics=metrics)

    def _is_read(self) -> bool:
        """Return False while the critic warms up alone and the KL is in the actor's loss."""
        warm = bool(self.config.trainer.critic_warmup <= self.global_steps)
        return warm or bool(self.config.algorithm.use_kl_in_reward)

    def _begin(self, batch: Any) -> None:
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["prompts", "responses"])
        pairs = list(zip(data["prompts"].unbind(), data["responses"].unbind(), strict=True))
        self._prompt_tokens = [len(prompt) for prompt, _ in pairs]
        self._reference = self._threads.submit(
            self._client.logprobs,
            [torch.cat(pair).tolist() for pair in pairs],
            temperature=float(self.config.actor_rollout_ref.rollout.temperature),
        )

    def _compute_ref_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        return batch  # under way since the old log-probabilities; see _take

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        if self.config.algorithm.use_kl_in_reward:
            self._take(batch, metrics)
        return super()._compute_advantage(batch, metrics=metrics)

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        self._take(batch, metrics)
        return super()._update_actor(batch, metrics=metrics)

    def _take(self, batch: Any, metrics: dict[str, Any]) -> None:
        """Wait for the reference and write it where verl reads it, once a batch."""
        if self._reference is None:
            return
        begun_s = time.perf_counter()
        rows, self._reference = self._reference.result(), None
        metrics["greentrain/reference_wait_s"] = time.perf_counter() - begun_s
        nested = torch.nested.as_nested_tensor(
            [torch.tensor(row[prompt - 1 :]) for row, prompt in zip(rows, self._prompt_tokens, strict=True)],
            layout=torch.jagged,
        )
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["responses"])
        data["ref_log_prob"] = nested
        tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=data.select("ref_log_prob"))
