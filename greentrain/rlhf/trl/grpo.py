"""GRPO with reward and reference passes beside generation and training."""

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from greentrain.errors import ConfigError
from greentrain.rlhf.stream import Stream
from greentrain.rlhf.trl.ahead import BOUNDS, Ahead
from greentrain.rlhf.trl.common import Offloading, OffloadMode
from greentrain.rlhf.trl.late_values import LateBatch, submit_ahead
from greentrain.utils.imports import try_import
from greentrain.utils.validation import nearest

with try_import("trl") as _imports:
    from trl.trainer.grpo_trainer import GRPOTrainer
_imports.check()

_KEY = "ref_per_token_logps"


class OffloadGRPOTrainer(Offloading, GRPOTrainer):
    """A GRPOTrainer that waits for the reference only between the policy's forward and its loss.

    The reference passes are handed in after TRL has shuffled the rollouts, micro-batch by micro-batch in the order in
    which the losses read them. DAPO, Dr. GRPO and the other ``loss_type`` read them the same way. With
    ``num_iterations`` above 1 the first iteration waits and the others have the numbers.

    With ``staleness`` above 0 a generation whose passes are not done waits, and others are generated and trained on
    meanwhile. What it is trained on then is weighted by (weights of then) / (weights that made it), by TRL's own
    correction, with decoupled PPO's proximal weights: those at which training on it begins.

    Args:
        *args: As of GRPOTrainer and of :class:`Offloading`.
        staleness: Most generations that may be trained on between one that is made and itself; 0: on policy.
        correction: Published bound of the weight, one of :data:`greentrain.rlhf.trl.ahead.BOUNDS`; None: that of the
            configuration's ``vllm_importance_sampling_mode`` and ``vllm_importance_sampling_clip_max``.
        replay: Folder of a log, ``OUTPUT_DIR/rollouts``, to train from in the place of generating.
        **kwargs: As of GRPOTrainer and of :class:`Offloading`.
    """

    _library = GRPOTrainer
    _completions_at = 3
    _due = False
    _ahead: Ahead | None = None

    def __init__(
        self,
        *args: Any,
        staleness: int = 0,
        correction: str | None = None,
        replay: str | Path | None = None,
        **kwargs: Any,
    ) -> None:
        own = {name: value for name, value in kwargs.items() if name not in ("engine", "mode")}
        given = inspect.signature(GRPOTrainer).bind_partial(*args, **own).arguments
        asynchronous = _is_ahead(given, staleness, correction, kwargs.get("mode", OffloadMode.LATE), replay)
        super().__init__(*args, **kwargs)
        if asynchronous:
            self._ahead = Ahead(self, staleness, replay, super()._generate)
            self.add_callback(self._ahead)

    def take_streams(self, new: tuple[Stream | None, ...] | None) -> tuple[Stream | None, ...]:
        """Put in the streams of a generation, the reference's and each reward's, and return those that were there."""
        old = (self._stream, *(reward.stream for reward in self._rewards))
        self._stream, *rest = new or (None,) * len(old)
        for reward, stream in zip(self._rewards, rest, strict=True):
            reward.stream = stream
        return old

    # -- what TRL calls ----------------------------------------------------------------------------------------

    def _generate(self, prompts: list[Any]) -> Any:
        if self._ahead is None or not self._late:
            return super()._generate(prompts)
        assert self._ahead.current is not None
        return self._ahead.current.output

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        own = super()._generate_single_turn
        if self._ahead is None or not self._late:
            return own(prompt_ids, *args, **kwargs)
        return self._ahead.rollouts(prompt_ids, lambda: own(prompt_ids, *args, **kwargs))

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        with self._corrected():
            return super()._generate_and_score_completions(inputs)

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        with self._corrected():
            return super()._compute_loss(model, inputs)  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def _corrected(self) -> Iterator[None]:
        """Let TRL weigh rollouts as it weighs those of vLLM: by their own log-probabilities."""
        own, self.use_vllm = self.use_vllm, self.use_vllm or (self._ahead is not None and self._late)
        try:
            yield
        finally:
            self.use_vllm = own

    def _later(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int) -> torch.Tensor:
        self._due = True  # NaN: whoever reads it before it is replaced sees that
        return torch.full((len(input_ids), 1), torch.nan, device=input_ids.device)

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        self._due = False  # also of a generation whose reward raised
        if self._ahead is not None and self._ahead.due:
            generation_batch = self._ahead.next()
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


def _is_ahead(given: Mapping[str, Any], staleness: int, correction: str | None, mode: str, replay: Any) -> bool:
    """Return True if rollouts are generated ahead; the correction's bound is then put into the configuration."""
    if isinstance(staleness, bool) or not isinstance(staleness, int) or staleness < 0:
        raise ConfigError(f"staleness={staleness!r}: give a number of generations, 0 for on-policy training")
    if correction is not None and correction not in BOUNDS:
        raise ConfigError(f"correction={correction!r}: choose one of {', '.join(BOUNDS)}{nearest(correction, BOUNDS)}")
    if not staleness and replay is None:
        if correction is not None:
            raise ConfigError(f"correction={correction!r} with staleness=0: nothing is stale; give staleness=1 or more")
        return False
    if mode == "eager":
        raise ConfigError(f"mode='eager' with staleness={staleness}: no pass would begin early; use mode='late'")
    for name in ("tools", "environment_factory", "rollout_func"):
        if given.get(name):
            raise ConfigError(f"{name} with staleness={staleness}: such rollouts are not logged; use staleness=0")
    data, config = given.get("train_dataset"), given.get("args")
    if not hasattr(data, "__len__") or {"image", "images"} & set(getattr(data, "column_names", None) or ()):
        raise ConfigError(f"staleness={staleness} with data that are a stream or have images: use staleness=0")
    if config is not None and not config.vllm_importance_sampling_correction:
        raise ConfigError(
            f"vllm_importance_sampling_correction=False with staleness={staleness}: rollouts of old weights would be "
            "taken for new ones; set it to True"
        )
    if config is not None and correction is not None:
        config.vllm_importance_sampling_mode, config.vllm_importance_sampling_clip_max = BOUNDS[correction]
    return True
