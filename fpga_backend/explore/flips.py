"""Rank flips of a model folder on the user's own texts: the one figure of the table that is measured."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from greentrain.errors import ConfigError
from greentrain.fpga_backend.explore.space import compiled_to
from greentrain.utils.imports import try_import

if TYPE_CHECKING:
    from greentrain.fpga_backend.artifact import Artifact
    from greentrain.fpga_backend.batch import Batch

LEAST_TEXTS: Final = 8
MAX_TOKENS: Final = 512
BATCH: Final = 16
"""Texts at a time."""


def measure(folder: Path, texts: Sequence[str], precisions: Sequence[str]) -> dict[str, float]:
    """Return flips a pair against FP32 over all pairs of texts, by precision.

    INT8 is computed by the integer contract, the others in floating point with the weights that they would have.

    Args:
        folder: A Hugging Face model with one score a text, its weights and its tokenizer.
        texts: Texts that the model scores, cut to 512 tokens.
        precisions: Keys of ``PRECISIONS``.

    Raises:
        ConfigError: Too few texts, or the folder holds no such model.
        MissingExtraError: transformers is not installed.
        UnsupportedModelError: The model cannot be compiled.
    """
    from greentrain.fpga_backend.compiler.compiling import compile as compiled
    from greentrain.fpga_backend.quality.flips import flip_rate

    if len(texts) < LEAST_TEXTS:
        raise ConfigError(
            f"{len(texts)} texts make {len(texts) * (len(texts) - 1) // 2} pairs; give {LEAST_TEXTS} or more"
        )
    model, tokenizer = _opened(folder)
    limit = min(MAX_TOKENS, int(getattr(model.config, "max_position_embeddings", MAX_TOKENS)))
    encoded = tokenizer(list(texts), truncation=True, max_length=limit)
    traced = compiled(model, max_tokens=limit, head="score", precision="fp32")
    exact = _scores(traced, encoded)
    return {name: flip_rate(exact, _scores(_rounded(traced, model, name), encoded)) for name in precisions}


def _opened(folder: Path) -> tuple[Any, Any]:
    with try_import("transformers") as imports:
        from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer
    imports.check()
    try:
        names = AutoConfig.from_pretrained(folder).architectures or []
        if not any(str(name).endswith("ForSequenceClassification") for name in names):
            raise ConfigError(f"{folder} holds {', '.join(names) or 'no model'}: rank flips need one that scores texts")
        model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        return model, AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{folder} cannot be loaded for rank flips: {error}") from error


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


def _scores(artifact: "Artifact", encoded: Any) -> list[float]:
    """Return the first score of each text."""
    from greentrain.fpga_backend.batch import Batch

    types = encoded.get("token_type_ids") if artifact.program.types else None
    run = _runner(artifact)
    found: list[float] = []
    for start in range(0, len(encoded["input_ids"]), BATCH):
        part = slice(start, start + BATCH)
        batch = Batch.of(encoded["input_ids"][part], types=None if types is None else types[part])
        found += [float(row[0]) for row in run(batch)]
    return found


def _runner(artifact: "Artifact") -> "Callable[[Batch], Any]":
    if artifact.program.precision == "w8a8":
        from greentrain.fpga_backend.emulator.engine import Engine

        exact = Engine(artifact)
        return lambda batch: exact.run(batch).scores
    import torch

    from greentrain.fpga_backend.batch import pack
    from greentrain.fpga_backend.devices.torch_device import TorchEngine

    engine = TorchEngine(artifact, torch.device("cpu"), torch.float32)
    return lambda batch: engine.run(pack(batch, artifact.program))
