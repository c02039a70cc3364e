"""GRPO with reward and reference passes beside generation and training."""

from typing import Any

import torch

from greentrain.rlhf.trl.common import Offloading
from greentrain.rlhf.trl.late_values import LateBatch, submit_ahead
from greentrain.utils.imports import try_import

with try_import("trl") as _imports:
    from trl.trainer.grpo_trainer import GRPOTrainer
_imports.check()

_KEY = "ref_per_token_logps"


class OffloadGRPOTrainer(Offloading, GRPOTrainer):
    """A GRPOTrainer that waits for the reference only between the policy's forward and its loss.

    The reference passes are handed in after TRL has shuffled the rollouts, micro-batch by micro-batch in the order in
    which the losses read them. DAPO, Dr. GRPO and the other ``loss_type`` read them the same way. With
    ``num_iterations`` above 1 the first iteration waits and the others have the numbers. Rewards cannot come later
    than TRL asks for them without a copy of its advantages, and on a device that runs one pass after the other that
    wins nothing: the reference behind them would wait as much longer.

    Takes the arguments of GRPOTrainer and of :class:`Offloading`::

        OffloadGRPOTrainer(model, reward, GRPOConfig("out", beta=0.04), data, engine=engine, mode="late")
    """

    _library = GRPOTrainer
    _completions_at = 3
    _due = False

    def _later(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int) -> torch.Tensor:
        self._due = True  # NaN: whoever reads it before it is replaced sees that
        return torch.full((len(input_ids), 1), torch.nan, device=input_ids.device)

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        self._due = False  # also of a generation whose reward raised
        inputs = super()._prepare_inputs(generation_batch)
        if not self._due:
            return inputs
        if self._stream is not None:
            with submit_ahead("a reference pass"):
                self._stream.flush()
        batches: Any = self._buffered_inputs
        first = self._step % len(batches)
        for i in (*range(first, len(batches)), *range(first)):
            batches[i] = self._late_reference(batches[i])
        return batches[first]

    def _late_reference(self, batch: dict[str, Any]) -> LateBatch:
        ids, mask = (torch.cat([batch[f"prompt_{x}"], batch[f"completion_{x}"]], dim=1) for x in ("ids", "mask"))
        return LateBatch(batch, {_KEY: self._begin(ids, mask, batch["completion_ids"].size(1))})
