"""What the offloading trainers share: when passes begin, which phase it is, what is logged.

In the mode ``stream`` a stopping criterion sees rollouts end while transformers still generates others.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Any, Final

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from greentrain.callbacks.transformers import GreenCallback
from greentrain.errors import ConfigError
from greentrain.rlhf.engine import OffloadEngine, PassStats
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.stream import Stream
from greentrain.rlhf.trl.attach import check_contract, check_reference, known_prompts, refuse_sync
from greentrain.rlhf.trl.late_values import submit_ahead
from greentrain.rlhf.trl.reference import IGNORED, key_of
from greentrain.rlhf.trl.reward import WHEN_TOLD, OffloadedReward
from greentrain.types import Phase
from greentrain.utils.never_raise import never_raises


class OffloadMetrics:
    """Averages of an engine's statistics over the steps of a log, of this process."""

    def __init__(self, engine: OffloadEngine, kinds: Iterable[PassKind]) -> None:
        self._engine = engine
        self._kinds = tuple(kinds)
        self._seen = dict(engine.stats())
        self._step: int | None = None

    def begin(self, step: int) -> None:
        """Count from a step on: the first one, or the one that a run resumes at; nothing within a run."""
        if self._step is None or step < self._step:
            self._seen, self._step = dict(self._engine.stats()), step

    def since(self, step: int) -> dict[str, float]:
        """Return the figures a step since the last call; nothing where there was no step.

        ``offload/<pass>/busy_s`` and ``wait_s`` (s a step), ``redone`` (parts a step), and ``hidden``, the share of
        the busy time for which nobody waited.
        """
        if self._step is None or step <= self._step:
            return {}
        steps, now = step - self._step, self._engine.stats()
        out: dict[str, float] = {}
        for kind in self._kinds:
            ran = now.get(kind, PassStats()) - self._seen.get(kind, PassStats())
            if ran.calls:
                out |= {f"offload/{kind}/{name}": getattr(ran, name) / steps for name in ("busy_s", "wait_s", "redone")}
            if ran.calls and ran.hidden_fraction is not None:
                out[f"offload/{kind}/hidden"] = ran.hidden_fraction
        self._seen, self._step = dict(now), step
        return out


Told = Callable[[Mapping[int, tuple[list[int], list[int]]]], None]  # of rows that just ended, prompt and completion


class _EndedRows(StoppingCriteria):
    """A stopping criterion that stops nothing. Rows that end by length are not told of: generation is over then."""

    def __init__(self, prompt_mask: torch.Tensor, eos_token_ids: Sequence[int], told: Told) -> None:
        self._mask = prompt_mask.bool()
        self._eos = torch.tensor(list(eos_token_ids), device=prompt_mask.device)
        self._told = told
        self._ended = torch.zeros(len(prompt_mask), dtype=torch.bool, device=prompt_mask.device)

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Look at the newest token of each row."""
        self._look(input_ids)
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    @never_raises
    def _look(self, input_ids: torch.Tensor) -> None:
        if len(input_ids) != len(self._ended):
            return  # several sequences a prompt: not what TRL asks for
        fresh = torch.isin(input_ids[:, -1], self._eos) & ~self._ended
        numbers = fresh.nonzero()[:, 0].tolist()
        self._ended |= fresh
        width = self._mask.shape[1]
        self._told({i: (input_ids[i, :width][self._mask[i]].tolist(), input_ids[i, width:].tolist()) for i in numbers})


@contextlib.contextmanager
def _observed(model: Any, eos_token_ids: Sequence[int], told: Told) -> Iterator[None]:
    """Tell at each token of the rows that end in ``model.generate`` inside the block, by one of ``eos_token_ids``."""
    generate, own = model.generate, vars(model).get("generate")

    def watched(*args: Any, **kwargs: Any) -> Any:
        criteria = StoppingCriteriaList(kwargs.pop("stopping_criteria", None) or [])
        criteria.append(_EndedRows(kwargs["attention_mask"], eos_token_ids, told))
        return generate(*args, **kwargs, stopping_criteria=criteria)

    model.generate = watched
    try:
        yield
    finally:
        del model.generate
        if own is not None:
            model.generate = own


class OffloadMode(StrEnum):
    """When a pass begins, and when it is waited for. On exact devices the weights are the same in all, bit for bit."""

    EAGER = "eager"
    """Where TRL has it: the reference, then the reward, each waited for."""
    LATE = "late"
    """Rewards begin when the completions are there; log-probabilities are waited for where they are read."""
    STREAM = "stream"
    """As late, and what has ended begins while the rest is still generated."""


AHEAD: Final = 2
"""How many hand-ins of ended rollouts may be under way in ``stream``; more wait and go together. The reference gets the
device where no reward wants it."""
_Trainer: Any = object
"""In whose place TRL's trainer stands, behind the mixin."""


class Offloading(_Trainer):  # type: ignore[misc]  # any trainer: its attributes are TRL's
    """Mixed into a trainer of TRL, before it.

    Args:
        *args: Positional arguments of the trainer.
        engine: Engine that has a reference pass, unless ``args.beta`` is 0.
        mode: An :class:`OffloadMode`.
        **kwargs: Keyword arguments of the trainer.

    Raises:
        ConfigError: The trainer cannot be offloaded; the message says why and what to do.
    """

    _library: Any
    _completions_at: int
    """Where ``_generate`` returns the completions."""
    _later: Any
    """Returns what stands in the place of the reference's log-probabilities until they are read."""
    _refers_at_once = False
    """The reference is handed in with the rollouts, as the reward is."""

    def __init__(
        self, *args: Any, engine: OffloadEngine, mode: OffloadMode | str = OffloadMode.LATE, **kwargs: Any
    ) -> None:
        if mode not in tuple(OffloadMode):
            raise ConfigError(f"mode={mode!r}: choose one of {', '.join(OffloadMode)}")
        check_contract(self._library)
        config = inspect.signature(self._library).bind_partial(*args, **kwargs).arguments.get("args")
        if config is None:
            kind = self._library.__name__.removesuffix("Trainer")
            raise ConfigError(f"give args={kind}Config(...): its beta says whether there is a reference at all")
        refuse_sync(config)
        beta, config.beta = config.beta, 0.0  # with beta the trainer would load a reference model of its own
        try:
            super().__init__(*args, **kwargs)
        finally:
            config.beta = beta
        self.engine = engine
        self.offload_mode = OffloadMode(mode)
        self._stream: Stream | None = None
        self._prompts: list[Any] | None = None
        self.beta = beta
        self.ref_model: Any = check_reference(self, engine) if beta else None
        if self.offload_mode is OffloadMode.STREAM:
            _refuse_stream(self)
        self._rewards = [one for one in self.reward_funcs if isinstance(one, OffloadedReward)]
        for prompt in known_prompts(self, 1):  # what cannot be read is said before training
            for reward in self._rewards:
                reward.ids([prompt], ["" if isinstance(prompt, str) else [{"role": "assistant", "content": ""}]])
        self._figures = [OffloadMetrics(engine, [PassKind.REFERENCE])] if beta else []
        self._figures += [OffloadMetrics(one.engine, [PassKind.REWARD]) for one in self._rewards[:1]]

    def _generate(self, prompts: list[Any]) -> Any:
        late = self._late
        for figures in self._figures:
            figures.begin(self.state.global_step)
        for reward in self._rewards:  # of a step that an exception ended
            reward.forget()
        self._stream = Stream(self.engine, PassKind.REFERENCE, sequences=WHEN_TOLD) if late and self.ref_model else None
        self._prompts = prompts
        with self._phase(Phase.GENERATE):
            made = super()._generate(prompts)
        if late:
            completions = made[self._completions_at]
            for reward in self._rewards:
                reward.prefetch(prompts, completions)
            if self._refers_at_once:
                self.refer(*made[:2])
        return made

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        if not self._late or self.offload_mode is not OffloadMode.STREAM:
            return super()._generate_single_turn(*args, **kwargs)
        model = self.accelerator.unwrap_model(self.model_wrapped)
        with _observed(model, self.eos_token_ids, self._ended):
            return super()._generate_single_turn(*args, **kwargs)

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        with self._phase(Phase.REWARD):
            return super()._calculate_rewards(*args, **kwargs)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log, with ``offload/<pass>/hidden``, ``busy_s``, ``wait_s`` and ``redone``: of this process, a step."""
        if self.model.training:
            for figures in self._figures:
                logs.update(figures.since(self.state.global_step))
        super().log(logs, *args, **kwargs)

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: Any, *args: Any, **kwargs: Any
    ) -> Any:
        ours = self.ref_model is not None and model is self.ref_model
        if ours and self._late:
            return self._later(input_ids, attention_mask, logits_to_keep), None, None
        with self._phase(Phase.REFERENCE) if ours else contextlib.nullcontext():
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
            )

    def refer(self, prompt_ids: list[list[int]], completion_ids: list[list[int]]) -> None:
        """Hand in finished rollouts to the reference, where it runs beside."""
        if self._stream is not None:
            for prompt, ids in zip(prompt_ids, completion_ids, strict=True):
                self._stream.add(key_of([*prompt, *ids], len(prompt)), [*prompt, *ids], prompt_tokens=len(prompt))
            with submit_ahead("a reference pass"):
                self._stream.flush()

    @property
    def _late(self) -> bool:
        """True where passes may overlap: in training. An evaluation takes each number at once."""
        return self.offload_mode is not OffloadMode.EAGER and bool(self.model.training)

    def _begin(self, ids: torch.Tensor, mask: torch.Tensor, keep: int) -> Callable[[], torch.Tensor]:
        """Hand in the reference pass of padded rollouts; what is returned waits for its last ``keep`` columns."""
        assert self.ref_model is not None
        labels = ids.masked_fill(mask == 0, IGNORED)
        labels[:, :-keep] = IGNORED
        pending = self.ref_model.submit(ids, mask, labels, stream=self._stream)

        def wait() -> torch.Tensor:
            with self._phase(Phase.REFERENCE):
                every: torch.Tensor = pending()
            return every[:, -keep:]

        return wait

    def _phase(self, phase: Phase) -> AbstractContextManager[Any]:
        """Return the block of a phase of the GreenCallback's session, where the trainer has one."""
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, GreenCallback):
                return callback.phase(phase)
        return contextlib.nullcontext()

    def _ended(self, rows: Mapping[int, tuple[list[int], list[int]]]) -> None:
        """Begin with rollouts that have ended: the device scores first, since scores are due first."""
        prompts = [(self._prompts or [])[i] for i in rows]
        answers: list[Any] = self.processing_class.batch_decode(
            [ids for _, ids in rows.values()], skip_special_tokens=True
        )
        if prompts and not isinstance(prompts[0], str):
            answers = [[{"role": "assistant", "content": text}] for text in answers]
        for reward in self._rewards:
            reward.prefetch(prompts, answers, ahead=AHEAD)
        if self._stream is None:
            return
        for prompt_ids, ids in rows.values():
            whole = [*prompt_ids, *ids]
            self._stream.add(key_of(whole, len(prompt_ids)), whole, prompt_tokens=len(prompt_ids))
        if not self._stream.under_way and not any(reward.under_way for reward in self._rewards):
            self._stream.flush()


def _refuse_stream(trainer: Any) -> None:
    for name, why in (
        ("use_vllm", "vLLM generates elsewhere"),
        ("use_transformers_continuous_batching", "continuous batching has no criterion that sees rows end"),
        ("rollout_func", "a rollout_func generates by itself"),
        ("tools", "a tool's answer lengthens what has ended"),
    ):
        if getattr(trainer, name, None):
            raise ConfigError(f"mode='stream' with {name}: {why}; use mode='late'")
