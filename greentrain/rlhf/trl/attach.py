"""Gives a stock trainer an offloaded reference, after checking that it, and the installed TRL, can have one."""

import functools
import inspect
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final

from greentrain.errors import ConfigError
from greentrain.fpga_backend.program import Embed
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.trl.reference import OffloadedReference
from greentrain.utils.never_raise import once, warn

VERSIONS: Final = ("1.15", "1.16")
"""Releases of TRL whose trainers were read and tried."""
_ROLLOUTS: Final = {
    "_get_per_token_logps_and_entropies": ("model", "input_ids", "attention_mask", "logits_to_keep"),
    "_prepare_inputs": ("generation_batch",),
    "_generate": ("prompts",),
    "_generate_single_turn": (),
    "_generate_and_score_completions": (),
    "_calculate_rewards": (),
}
_PRECOMPUTED: Final = {
    "_precompute_ref_logps": ("dataset", "name", "batch_size"),
    "compute_ref_log_probs": ("model", "inputs"),
}
METHODS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "GRPOTrainer": {**_ROLLOUTS, "_compute_loss": ("model", "inputs")},
    "RLOOTrainer": _ROLLOUTS,
    "DPOTrainer": _PRECOMPUTED,
    "KTOTrainer": _PRECOMPUTED,
}
"""By class of TRL, the methods that the adapters override or rest on, with their first parameters. In which order these
do their work is read in the sources of each release by tests/rlhf/trl/landmarks.py."""

_tell = once(warn)


def offload_reference(trainer: Any, engine: OffloadEngine, *, beta: float | None = None) -> OffloadedReference:
    """Put an offloaded reference in the place of a GRPOTrainer's or RLOOTrainer's own.

    Make the trainer with ``beta=0.0``: it then loads no reference model. The pass stays sequential, as TRL has it;
    ``OffloadGRPOTrainer`` and ``OffloadRLOOTrainer`` overlap it.

    Args:
        trainer: Trainer of TRL, before ``train``.
        engine: Engine that has a reference pass.
        beta: Weight of the KL term; None: the trainer's.

    Returns:
        The reference, ``trainer.ref_model`` from now on.

    Raises:
        ConfigError: The trainer cannot have one; the message says why and what to do.
    """
    weight = trainer.beta if beta is None else beta
    if not weight:
        raise ConfigError(
            f"beta={weight}: a KL term of weight 0 has no reference; give beta above 0, or leave the reference away"
        )
    own = next((cls for cls in type(trainer).__mro__ if cls.__module__.startswith("trl.")), None)
    if own is None:
        raise ConfigError(f"{type(trainer).__name__} is no trainer of TRL: give a GRPOTrainer or an RLOOTrainer")
    check_contract(own)
    reference = check_reference(trainer, engine)
    trainer.beta = weight
    trainer.args.beta = weight
    trainer.ref_model = reference
    return reference


def check_reference(trainer: Any, engine: OffloadEngine) -> OffloadedReference:
    """Return a reference that fits a trainer.

    Raises:
        ConfigError: As :func:`offload_reference`.
    """
    refuse_sync(trainer.args)
    reference = OffloadedReference(engine, trainer.temperature)
    program = engine.of(PassKind.REFERENCE).program
    if getattr(trainer, "_is_vlm", False):
        raise ConfigError("the policy reads images, which the offloaded reference cannot: keep beta=0.0")
    prompt = longest_prompt(trainer, program.max_tokens - trainer.max_completion_length)
    if prompt + trainer.max_completion_length > program.max_tokens:
        raise ConfigError(
            f"the longest prompt has {prompt} tokens, max_completion_length is {trainer.max_completion_length}, and "
            f"the reference was compiled for max_tokens={program.max_tokens}: compile it with "
            f"max_tokens={prompt + trainer.max_completion_length}, or shorten one of them"
        )
    if any(isinstance(op, Embed) and op.index == "position" for op in program.ops):
        warn(
            "the reference has learnt positions: it counts them from a prompt's first token, the policy from the "
            "padding before it, so their log-probabilities differ wherever prompts of a batch differ in length"
        )
    model = trainer.accelerator.unwrap_model(trainer.model)
    vocabulary = int(model.config.get_text_config().vocab_size)
    if vocabulary != program.vocabulary:
        raise ConfigError(
            f"the policy has {vocabulary} tokens and the compiled reference {program.vocabulary}: the reference must "
            "be compiled from the model that training starts from"
        )
    return reference


def longest_prompt(trainer: Any, room: int, rows: int = 100_000) -> int:
    """Return the tokens of the longest prompt that may have more than ``room``; 1 where none may.

    No tokenizer makes more tokens of a text than it has bytes, so short prompts need not be read; what a chat template
    adds to each is no more than the first prompt has.

    Args:
        trainer: Trainer that has data; prompts that come as a stream or from an environment are not known yet.
        room: Length that a prompt may have without being looked at (tokens).
        rows: Number of rows of each data set that are looked at.
    """
    prompts = known_prompts(trainer, rows)
    if not prompts:
        return 1
    template = len(trainer._tokenize_prompts(prompts[:1])[0][0])
    long = [prompt for prompt in prompts if len(str(prompt).encode()) + template > room]
    found = (trainer._tokenize_prompts(long[i : i + 1000])[0] for i in range(0, len(long), 1000))
    return max((len(ids) for some in found for ids in some), default=1)


def known_prompts(trainer: Any, rows: int) -> list[Any]:
    """Return the first prompts of each of a trainer's data sets, none where they are not known before training."""
    if getattr(trainer, "environment_factories", None):
        return []
    evaluated = trainer.eval_dataset
    found: list[Any] = []
    for data in (trainer.train_dataset, *(evaluated.values() if isinstance(evaluated, dict) else [evaluated])):
        if hasattr(data, "__len__") and "prompt" in data.column_names:
            found += data.select_columns(["prompt"])[: min(len(data), rows)]["prompt"]
    return found


def refuse_sync(args: Any) -> None:
    """Raise where the reference is to follow the policy.

    Raises:
        ConfigError: ``sync_ref_model`` is set.
    """
    if getattr(args, "sync_ref_model", False):
        raise ConfigError(
            "sync_ref_model=True mixes the policy into the reference's parameters every ref_model_sync_steps, and an "
            "offloaded reference has none in the trainer: the device would go on with the old weights. Set "
            "sync_ref_model=False, or keep the reference in the trainer"
        )


@functools.cache
def check_contract(trainer: type[Any]) -> None:
    """Check a class of the installed TRL.

    Raises:
        ConfigError: A method that the adapters take for granted is not there, or takes something else.
    """
    found, wrong = version("trl"), []
    for name, wanted in METHODS[trainer.__name__].items():
        method = getattr(trainer, name, None)
        given = () if method is None else tuple(inspect.signature(method).parameters)[1 : 1 + len(wanted)]
        if method is None:
            wrong.append(f"there is no {name}")
        elif given != wanted:
            wrong.append(f"{name} takes {', '.join(given)} instead of {', '.join(wanted)}")
    if wrong:
        raise ConfigError(
            f"{trainer.__name__} of trl {found} differs from what was read of {', '.join(VERSIONS)}: "
            f"{'; '.join(wrong)}. Install trl>=1.15,<1.17, or keep the reference in the trainer"
        )
    if not found.startswith(tuple(f"{known}." for known in VERSIONS)):
        _tell(
            f"trl {found} was never tried, only {' and '.join(VERSIONS)}; its {trainer.__name__} has the methods that "
            "theirs has, so the offload is used: compare a few steps with mode='eager'"
        )
