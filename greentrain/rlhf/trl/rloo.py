"""RLOO with reward and reference passes beside the policy's."""

from typing import Any

import torch

from greentrain.rlhf.trl.common import Offloading
from greentrain.rlhf.trl.late_values import DeferredTensor, submit_ahead
from greentrain.rlhf.trl.reference import key_of
from greentrain.utils.imports import try_import

with try_import("trl") as _imports:
    from trl.trainer.rloo_trainer import RLOOTrainer
_imports.check()


class OffloadRLOOTrainer(Offloading, RLOOTrainer):
    """An RLOOTrainer whose reference pass begins with the rollouts and is waited for where the KL is formed.

    RLOO puts the KL into the reward, so it is due before the advantages: what the passes run beside is the policy's
    forward for the old log-probabilities, and the rest of generation with ``mode="stream"``.

    Takes the arguments of RLOOTrainer and of :class:`Offloading`.
    """

    _library = RLOOTrainer
    _completions_at = 2

    def _generate(self, prompts: list[Any]) -> Any:
        made = super()._generate(prompts)
        if self._stream is not None:
            for prompt_ids, ids in zip(made[0], made[1], strict=True):
                whole = [*prompt_ids, *ids]
                self._stream.add(key_of(whole, len(prompt_ids)), whole, prompt_tokens=len(prompt_ids))
            with submit_ahead("a reference pass"):
                self._stream.flush()
        return made

    def _later(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int) -> DeferredTensor:
        return DeferredTensor(self._begin(input_ids, attention_mask, logits_to_keep))
