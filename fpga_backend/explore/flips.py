"""Ranks of a reward model's folder by precision: measured, on the user's own texts or preferences."""

import gzip
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from greentrain.errors import ConfigError
from greentrain.fpga_backend.explore.space import compiled_to
from greentrain.fpga_backend.quality.flips import Floats, Pairs, exact_interval, flip_rate, flips, rank_correlation
from greentrain.utils.imports import try_import

if TYPE_CHECKING:
    from greentrain.fpga_backend.artifact import Artifact
    from greentrain.fpga_backend.batch import Batch, Result

LEAST_TEXTS: Final = 8
MAX_TOKENS: Final = 512
BATCH: Final = 16
"""Texts at a time."""
FP32: Final = "fp32"


def measure(folder: Path, texts: Sequence[str], precisions: Sequence[str]) -> dict[str, float]:
    """Return flips a pair against FP32 over all pairs of texts, by precision.

    INT8 is computed by the integer contract, the others in floating point with the weights that they would have.

    Args:
        folder: A Hugging Face model with one score a text, its weights and its tokenizer.
        texts: Texts that the model scores, cut to 512 tokens.
        precisions: Keys of ``RANKED``.

    Raises:
        ConfigError: Too few texts, or the folder holds no such model.
        MissingExtraError: transformers is not installed.
        UnsupportedModelError: The model cannot be compiled.
    """
    if len(texts) < LEAST_TEXTS:
        raise ConfigError(
            f"{len(texts)} texts make {len(texts) * (len(texts) - 1) // 2} pairs; give {LEAST_TEXTS} or more"
        )
    model, tokenizer = _opened(folder)
    limit = min(MAX_TOKENS, _longest(model, tokenizer))
    ids = tokenizer(list(texts), truncation=True, max_length=limit)["input_ids"]
    found = _by_precision(model, ids, precisions, limit)
    return {name: flip_rate(found[FP32], found[name]) for name in precisions}


def rank(
    folder: Path, preferences: Sequence[tuple[str, str]], precisions: Sequence[str]
) -> tuple[list[dict[str, Any]], int]:
    """Return a row for FP32 and for each precision, and how many dialogues were longer than the model takes.

    ``agreement`` is the share of pairs ordered as the labels do, ``flip_rate`` the share of those ordered in FP32 that
    turn round (None: FP32 orders none), with its exact 95 % interval; the same score twice is half. ``error`` is of a
    reward against FP32, absolute, in the model's unit; ``rank_correlation`` Spearman's. A dialogue that is too long
    loses its beginning: what differs in a pair is the last answer. In BF16 all but the score's own layer is computed in
    BF16; the others as in :func:`measure`, which also says what is raised.

    Args:
        folder: A Hugging Face model with one score a text, its weights and its tokenizer.
        preferences: The dialogue that people chose and the one that they rejected, pair by pair.
        precisions: Keys of ``RANKED``.
    """
    model, tokenizer = _opened(folder)
    tokenizer.truncation_side = "left"
    texts = [text for pair in preferences for text in pair]
    lengths = np.array([len(row) for row in tokenizer(texts, verbose=False)["input_ids"]])
    limit = min(_longest(model, tokenizer), int(lengths.max()))
    found = _by_precision(model, tokenizer(texts, truncation=True, max_length=limit)["input_ids"], precisions, limit)
    items = np.arange(0, len(texts), 2)
    pairs = Pairs(better=items, worse=items + 1, margin=np.full(len(items), np.nan))
    rows = []
    for name, scores in found.items():
        counts = flips(found[FP32], scores, pairs)
        counts = counts[~np.isnan(counts)]
        low, high = exact_interval(float(counts.sum()), len(counts))
        apart = np.abs(scores - found[FP32])
        rows.append(
            {
                "precision": name,
                "pairs": len(pairs),
                "agreement": float((1 + np.sign(scores[items] - scores[items + 1])).mean() / 2),
                "flip_rate": float(counts.mean()) if len(counts) else None,
                "flip_low": low,
                "flip_high": high,
                "error_mean": float(apart.mean()),
                "error_p95": float(np.quantile(apart, 0.95)),
                "error_max": float(apart.max()),
                "rank_correlation": rank_correlation(found[FP32], scores),
            }
        )
    return rows, int((lengths > limit).sum())


ENOUGH: Final = 0.01
"""Flips a pair up to which 8-bit activations are taken: what the upper end of the 95 % interval must not exceed (ours;
EcoRL-Sched publishes 0.38 % of an 8B reward model)."""
EIGHT, SIXTEEN = "int8", "int8a16"


def references(folder: Path, texts: Sequence[str], precisions: Sequence[str]) -> tuple[list[dict[str, Any]], int]:
    """Return a row for FP32 and for each precision of a causal language model, and how many texts were cut.

    ``error`` is of a log-probability against FP32 (nats); ``kl`` what a KL penalty would estimate (e^d - d - 1, nats a
    token) of a policy that is the reference: it should be 0.

    Args:
        folder: A Hugging Face causal language model, its weights and its tokenizer.
        texts: Texts like those that it will see.
        precisions: Keys of ``RANKED``.

    Raises:
        ConfigError: The folder cannot be read, or no text has two tokens.
        MissingExtraError: transformers is not installed.
        UnsupportedModelError: The model cannot be compiled.
    """
    model, tokenizer = _opened(folder, "CausalLM")
    limit = min(MAX_TOKENS, _longest(model, tokenizer))
    whole = [ids for ids in tokenizer(list(texts), verbose=False)["input_ids"] if len(ids) > 1]
    if not whole:
        raise ConfigError("no text has two tokens: a reference needs texts like those that it will see")
    found = _by_precision(model, [ids[:limit] for ids in whole], precisions, limit, head="logprob")
    rows = []
    for name, logprobs in found.items():
        apart = logprobs - found[FP32]
        rows.append(
            {
                "precision": name,
                "tokens": len(apart),
                "error_mean": float(np.abs(apart).mean()),
                "error_p95": float(np.quantile(np.abs(apart), 0.95)),
                "error_max": float(np.abs(apart).max()),
                "kl": float((np.exp(apart) - apart - 1).mean()),
            }
        )
    return rows, sum(len(ids) > limit for ids in whole)


def advice(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return which bits of activations to take by the rows of :func:`rank` or :func:`references`, and the trade."""
    by_name = {row["precision"]: row for row in rows}
    if not {EIGHT, SIXTEEN} <= set(by_name):
        return ""
    eight, sixteen = by_name[EIGHT], by_name[SIXTEEN]
    if "kl" in eight:
        floor = by_name.get("bf16", sixteen)
        enough = eight["kl"] <= floor["kl"]
        why = f"KL of a policy that has not moved is {eight['kl']:.2g} nats a token, and {sixteen['kl']:.2g} with 16"
    else:
        enough = eight["flip_high"] <= ENOUGH
        why = (
            f"flips with 8 bits are at most {eight['flip_high']:.2%} (95 %, allowed {ENOUGH:.0%}), with 16"
            f" {sixteen['flip_high']:.2%}; more pairs narrow both"
        )
    return f"Take activation_bits={8 if enough else 16}: {why}. 16 takes twice the products of 8."


def read_preferences(path: Path, most: int | None = None) -> list[tuple[str, str]]:
    """Return the pairs of a file of JSON lines with the texts ``chosen`` and ``rejected``, as HH-RLHF's; gzip or plain.

    Args:
        path: The file.
        most: Read so many; None: all.

    Raises:
        ConfigError: The file cannot be read or has no pair, or a line is broken: the message has its number.
    """
    found: list[tuple[str, str]] = []
    number = 0
    try:
        with path.open("rb") as raw:
            opened = gzip.open if raw.read(2) == b"\x1f\x8b" else open
        with opened(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                number += 1
                if line.strip() and len(found) != most:
                    row = json.loads(line)
                    if not all(isinstance(row[name], str) and row[name].strip() for name in ("chosen", "rejected")):
                        raise ValueError("chosen or rejected is no text")
                    found.append((row["chosen"], row["rejected"]))
        if not found:
            raise ValueError("no pair")
    except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error) as error:
        said = f"{path}, line {number}: {error!r}; give lines of JSON with the texts chosen and rejected"
        raise ConfigError(said) from error
    return found


def kind_of(folder: Path) -> str:
    """Return ``CausalLM`` for the folder of a causal language model, else ``SequenceClassification``."""
    try:
        names = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("architectures") or [""]
    except (OSError, ValueError, AttributeError):
        names = [""]
    return "CausalLM" if str(names[0]).endswith(("ForCausalLM", "LMHeadModel")) else "SequenceClassification"


def _opened(folder: Path, kind: str = "SequenceClassification") -> tuple[Any, Any]:
    with try_import("transformers") as imports:
        import transformers
        from transformers import AutoConfig, AutoTokenizer
        from transformers.utils import logging
    imports.check()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # of loading: commands show their own, and none with --json
    try:
        names = AutoConfig.from_pretrained(folder).architectures or []
        if kind_of(folder) != kind or not any(str(name).endswith(("LMHeadModel", kind)) for name in names):
            raise ConfigError(f"{folder} holds {', '.join(names) or 'no model'}: rank flips need one that scores texts")
        model = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(folder).eval()
        return model, AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{folder} cannot be loaded for rank flips: {error}") from error


def _longest(model: Any, tokenizer: Any) -> int:
    return min(int(getattr(model.config, "max_position_embeddings", MAX_TOKENS)), int(tokenizer.model_max_length))


def _by_precision(
    model: Any, ids: Sequence[Any], precisions: Sequence[str], limit: int, head: Any = "score"
) -> Mapping[str, Floats]:
    """Return the first score of each text, or all log-probabilities, in FP32 and in each precision."""
    from greentrain.fpga_backend.compiler.compiling import compile as compiled

    traced = compiled(model, max_tokens=limit, head=head, precision="fp32")
    return {FP32: _scores(traced, ids)} | {name: _scores(_rounded(traced, model, name), ids) for name in precisions}


def _rounded(traced: "Artifact", model: Any, precision: str) -> "Artifact":
    """Return the compiled model in another precision, without tracing it again."""
    from greentrain.fpga_backend.artifact import Artifact
    from greentrain.fpga_backend.compiler.compiling import named_parameters
    from greentrain.fpga_backend.compiler.quantize import tensors_of
    from greentrain.fpga_backend.compiler.recipe import Recipe

    program = compiled_to(traced.program, precision)
    weights = tensors_of(Recipe.from_json(traced.recipe), named_parameters(model), program.precision)
    angles = {name: tensor for name, tensor in traced.tensors.items() if name.endswith((".cos", ".sin"))}
    return Artifact.of(program, {**weights, **angles})


def _scores(artifact: "Artifact", ids: Sequence[Any]) -> Floats:
    from greentrain.fpga_backend.batch import Batch

    run = _runner(artifact)
    found = [run(Batch.of(ids[start : start + BATCH])) for start in range(0, len(ids), BATCH)]
    return np.concatenate(found).astype(np.float64)


def _runner(artifact: "Artifact") -> "Callable[[Batch], Any]":
    if artifact.program.precision == "w8a8":
        from greentrain.fpga_backend.emulator.engine import Engine

        exact = Engine(artifact)
        return lambda batch: _flat(exact.run(batch))
    import torch

    from greentrain.fpga_backend.batch import pack
    from greentrain.fpga_backend.devices.torch_device import TorchEngine

    dtype = torch.bfloat16 if artifact.program.precision == "bf16" else torch.float32
    engine = TorchEngine(artifact, torch.device("cpu"), dtype)
    scored = artifact.program.labels > 0

    def floats(batch: "Batch") -> Any:
        found = engine.run(pack(batch, artifact.program)).numpy()
        return found[:, 0] if scored else found

    return floats


def _flat(result: "Result") -> Any:
    return result.scores[:, 0] if result.scores is not None else np.concatenate(result.logprobs or ())
