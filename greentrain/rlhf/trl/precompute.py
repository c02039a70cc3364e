"""DPO and KTO whose reference log-probabilities are computed on an offload device, once, before training."""

from typing import Any

import torch

from greentrain.errors import ConfigError
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.trl.attach import check_contract, refuse_sync
from greentrain.rlhf.trl.reference import OffloadedReference
from greentrain.utils.imports import try_import

with try_import("trl") as _imports:
    from trl.trainer.dpo_trainer import DPOTrainer
    from trl.trainer.kto_trainer import KTOTrainer
_imports.check()


class Precomputing:
    """Mixed into DPOTrainer or KTOTrainer, before it.

    The data are tokenized, truncated, collated and cached by TRL, which then adds the columns ``ref_chosen_logps`` and
    ``ref_rejected_logps`` (KTO: ``ref_logps`` and ``ref_KL_logps``) and loads no reference model. The cache is told
    apart by the compiled model, so log-probabilities of another model or precision are never mixed up. Set
    ``precompute_ref_batch_size`` to what the device takes best at a time.

    Args:
        *args: Positional arguments of the trainer, whose ``args.precompute_ref_log_probs`` must be True.
        engine: Engine that has a reference pass, compiled for temperature 1.
        **kwargs: Keyword arguments of the trainer.

    Raises:
        ConfigError: The trainer cannot be offloaded; the message says why and what to do.
    """

    _library: Any
    _precompute_model_hash: str | None

    def __init__(self, *args: Any, engine: OffloadEngine, **kwargs: Any) -> None:
        check_contract(self._library)
        given = dict(zip(("model", "ref_model", "args"), args, strict=False)) | kwargs
        config = given.get("args")
        if config is None or not config.precompute_ref_log_probs:
            raise ConfigError(
                "precompute_ref_log_probs is False: set it to True, since the offloaded reference is read once, "
                "before training"
            )
        if given.get("ref_model") is not None:
            raise ConfigError("ref_model is given, and so is an engine with a reference: leave ref_model out")
        refuse_sync(config)
        self._reference = OffloadedReference(engine, temperature=1.0)
        program = engine.of(PassKind.REFERENCE).program
        if config.max_length is None or config.max_length > program.max_tokens:
            raise ConfigError(
                f"max_length={config.max_length} and the reference was compiled for max_tokens={program.max_tokens}: "
                "set max_length to that or less, or compile it for longer sequences"
            )
        self._compiled = engine.of(PassKind.REFERENCE).device.handle.digest
        super().__init__(*args, **kwargs)

    def _precompute_ref_logps(self, dataset: Any, name: str, batch_size: int) -> Any:
        self._precompute_model_hash = f"greentrain {self._compiled}"
        return super()._precompute_ref_logps(dataset, name, batch_size)  # type: ignore[misc]

    def compute_ref_log_probs(self, model: Any, inputs: Any) -> tuple[torch.Tensor, Any]:
        """Compute one padded batch, summed over each sequence, on the device."""
        found: tuple[torch.Tensor, Any] = super().compute_ref_log_probs(self._reference, inputs)  # type: ignore[misc]
        return found


class OffloadDPOTrainer(Precomputing, DPOTrainer):
    """A DPOTrainer whose reference is read from the device before training; see :class:`Precomputing`."""

    _library = DPOTrainer


class OffloadKTOTrainer(Precomputing, KTOTrainer):
    """A KTOTrainer whose reference is read from the device before training; see :class:`Precomputing`."""

    _library = KTOTrainer
