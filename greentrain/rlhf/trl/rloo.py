"""RLOO with reward and reference passes beside the policy's."""

import torch

from greentrain.rlhf.trl.common import Offloading
from greentrain.utils.imports import try_import

with try_import("trl") as _imports:
    from trl.trainer.rloo_trainer import RLOOTrainer
_imports.check()


class OffloadRLOOTrainer(Offloading, RLOOTrainer):
    """An RLOOTrainer whose reference pass begins with the rollouts and is waited for behind the old log-probabilities.

    RLOO puts the KL into the reward, so it is due before the advantages: what the passes run beside is the policy's
    forward for the old log-probabilities, and the rest of generation with ``mode="stream"``. Takes the arguments of
    RLOOTrainer and of :class:`Offloading`.
    """

    _library = RLOOTrainer
    _completions_at = 2
    _refers_at_once = True

    def _later(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int) -> torch.Tensor:
        return self._begin(input_ids, attention_mask, logits_to_keep)()  # under way since the rollouts were there
