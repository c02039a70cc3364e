"""From a model to an artifact, and from new weights of the same model to a new one.

``compile`` traces a copy of the model that has weights of its own, so the model itself is left as it
is: its mode, its gradients, its hooks, its place. Before an artifact is handed out, :func:`verify` runs the program in
floating point on random tokens and compares it with the copy. ``sync`` makes the artifact of a reference or a reward
model that has moved, without tracing again.
"""

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import torch
from torch import nn

from greentrain.fpga_backend import contract
from greentrain.fpga_backend import program as ir
from greentrain.fpga_backend.artifact import Artifact, checksum
from greentrain.fpga_backend.batch import Batch, pack
from greentrain.fpga_backend.compiler.draft import Draft
from greentrain.fpga_backend.compiler.finish import Head, finish
from greentrain.fpga_backend.compiler.lower import Lowering
from greentrain.fpga_backend.compiler.quantize import tensors_of
from greentrain.fpga_backend.compiler.recipe import Recipe, TensorRecipe
from greentrain.fpga_backend.compiler.smooth import SmoothQuant
from greentrain.fpga_backend.compiler.trace import OperatorCall, Trace, trace
from greentrain.fpga_backend.compiler.values import GraphNode
from greentrain.fpga_backend.devices.torch_device import in_floats
from greentrain.fpga_backend.errors import ArtifactError, UnsupportedModelError
from greentrain.fpga_backend.program import with_activation_bits

COPY_SEED = 20261121
_WRAPPERS = ("DataParallel", "DistributedDataParallel", "OptimizedModule")


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside DataParallel, DistributedDataParallel and torch.compile."""
    while type(model).__name__ in _WRAPPERS:
        inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        if not isinstance(inner, nn.Module):
            break
        model = inner
    return model


def check(model: nn.Module, max_tokens: int) -> None:
    """Raise for what can be told before tracing.

    Raises:
        UnsupportedModelError: Adapters that are not merged, weights that are sharded, quantised or not there, or fewer
            positions than ``max_tokens``; names the module or parameter and what to do.
    """
    for path, module in model.named_modules():
        where = f"{path or 'the model'} ({type(module).__name__})"
        if type(module).__module__.startswith("peft."):
            raise UnsupportedModelError(f"{where} holds adapters that are not merged: compile model.merge_and_unload()")
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta:
                raise UnsupportedModelError(f"{where}: buffer {name} has no data (device 'meta'): load the model first")
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "full_tensor"):
            raise UnsupportedModelError(f"parameter {name} is sharded (DTensor): gather the model's state dict first")
        if parameter.is_meta:
            raise UnsupportedModelError(f"parameter {name} has no data (device 'meta'): load the model first")
        if parameter.dtype not in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            raise UnsupportedModelError(
                f"parameter {name} is of {parameter.dtype}: the model is quantised already; load it in bfloat16"
            )
    for path, limit, what in _positions(model):
        if max_tokens > limit:
            raise UnsupportedModelError(
                f"max_tokens={max_tokens}, but {path or 'the model'} has {what} for {limit} tokens: "
                f"compile with max_tokens={limit} or less"
            )


def meta_copy(model: nn.Module) -> nn.Module:
    """Return a copy in evaluation mode on the CPU, its parameters random binary32 numbers.

    Random numbers show a mistake of the lowering where the model's own hide it: biases that are still 0, gains that are
    still 1, a fresh head. They are scaled so that rows keep their size from layer to layer.

    Raises:
        UnsupportedModelError: The model cannot be copied.
    """
    generator = torch.Generator().manual_seed(COPY_SEED)
    memo: dict[int, Any] = {}
    for name, parameter in model.named_parameters():
        memo[id(parameter)] = nn.Parameter(_random(name, parameter.shape, generator), requires_grad=False)
    for buffer in model.buffers():
        memo[id(buffer)] = buffer.detach().cpu().clone()
    try:
        twin = copy.deepcopy(model, memo)
    except (RuntimeError, TypeError) as error:
        raise UnsupportedModelError(f"{type(model).__name__} cannot be copied for tracing: {error}") from error
    twin.eval()
    for module in twin.modules():
        if "dynamic" in str(getattr(module, "rope_type", "")):  # angles change beyond the positions that check() allows
            vars(module)["rope_type"] = "default"
            module.inv_freq = module.original_inv_freq
        if callable(choose := getattr(module, "set_attn_implementation", None)):
            try:
                choose("sdpa")
            except (ValueError, ImportError):
                continue  # it has one of its own; the walk says whether that can be compiled
    return twin


def _random(name: str, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    numbers = torch.randn(shape, generator=generator, dtype=torch.float32)
    if len(shape) < 2:
        return 1 + 0.3 * numbers if name.endswith("weight") else 0.3 * numbers
    return numbers.div_(math.sqrt(min(shape[0], shape[1])))


def _positions(model: nn.Module) -> Iterator[tuple[str, int, str]]:
    """Yield path, number and kind of the positions that a model inside has."""
    for path, module in model.named_modules():
        config = getattr(module, "config", None)
        limits = {"positions": getattr(config, "max_position_embeddings", None)}
        rope = getattr(config, "rope_parameters", None) or {}
        if rope.get("rope_type") == "longrope":
            own = getattr(config, "original_max_position_embeddings", None)
            limits["angles that hold for shorter sequences, too,"] = rope.get("original_max_position_embeddings", own)
        for what, limit in limits.items():
            if isinstance(limit, int) and limit > 0:
                yield path, limit, what


SEED = 20261122
LENGTHS = (1, 2, 3, 5, 8, 13, 21, 55)
"""Tokens of the sequences that are compared, as far as the model takes them."""
TOLERANCE = 1e-3
"""Largest difference, in units of the spread of the model's own results. Reordered sums differ by about 1e-5."""


def verify(
    model: nn.Module, call: OperatorCall, program: ir.Program, tensors: Mapping[str, torch.Tensor], avoid: set[int]
) -> None:
    """Compare a program with the model from which it was made.

    Args:
        model: Model in evaluation mode, binary32, on the CPU, with the weights that ``tensors`` hold.
        call: Function that calls the model.
        program: Lowering of the model.
        tensors: Tensors of the program in binary32.
        avoid: Token ids that mean something to the model: padding.

    Raises:
        UnsupportedModelError: They differ: the lowering is wrong, or the model has a state.
    """
    batch = _batch(program, avoid)
    mine = in_floats(program, tensors).run(pack(batch, program)).numpy()
    theirs = np.concatenate(_model(model, call, program, batch))
    if mine.shape != theirs.shape:
        raise UnsupportedModelError(
            f"{type(model).__name__} returns {list(theirs.shape)} where its program gives {list(mine.shape)}: "
            "it cannot be compiled; please report its class"
        )
    spread = float(np.ptp(theirs)) if theirs.size else 0.0
    worst = float(np.abs(mine - theirs).max(initial=0.0))
    if not worst <= TOLERANCE * spread + 1e-6:
        raise UnsupportedModelError(
            f"the program of {type(model).__name__} differs from the model by {worst:.3g} where its results spread "
            f"over {spread:.3g} (allowed: {TOLERANCE * spread:.3g}): something in it is not what it looks like, "
            "so it is not compiled; please report its class"
        )


def _batch(program: ir.Program, avoid: set[int]) -> Batch:
    random = np.random.default_rng(SEED)
    allowed = np.setdiff1d(np.arange(program.vocabulary), sorted(avoid))
    lengths = [n for n in LENGTHS if n <= program.max_tokens]
    ids = [random.choice(allowed, n) for n in lengths]
    prompts = [max(1, n // 2) for n in lengths]
    if len(ids[-1]) > 2 and program.causal:  # one more behind the same prompt, which is then shared
        ids.append(np.concatenate([ids[-1][: prompts[-1]], random.choice(allowed, 2)])[: program.max_tokens])
        prompts.append(prompts[-1])
    types = [random.integers(0, max(program.types, 1), len(row)) for row in ids]
    if len(ids) > len(lengths):
        types[-1][: prompts[-1]] = types[-2][: prompts[-1]]
    return Batch.of(ids, types=types, prompt_tokens=prompts)


@torch.inference_mode()
def _model(
    model: nn.Module, call: OperatorCall, program: ir.Program, batch: Batch
) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    found = []
    for i, row in enumerate(batch.ids):
        ids = torch.from_numpy(row).long()[None]
        types = torch.from_numpy(batch.types[i]).long()[None] if batch.types is not None else None
        output = first(model(**call.arguments(ids, types)))
        if program.labels:
            found.append(output.reshape(1, -1).numpy())
        else:
            start = max(batch.prompt_tokens[i], 1) if batch.prompt_tokens is not None else 1
            logs = output[0].log_softmax(-1)
            found.append(logs[torch.arange(start - 1, len(row) - 1), ids[0, start:]].numpy())
    return found


def first(output: object) -> torch.Tensor:
    """Return the first tensor of what a model returns: itself, or that of a tuple, a dict or a Hugging Face output."""
    if isinstance(output, torch.Tensor):
        return output
    values = list(output.values()) if isinstance(output, Mapping) else list(output)  # type: ignore[call-overload]
    found: torch.Tensor = next(v for v in values if isinstance(v, torch.Tensor))
    return found


def sync(artifact: Artifact, model: nn.Module) -> Artifact:
    """Quantise a model's weights into the program that was compiled of it, or of one like it. Nothing is traced.

    The result is that of a fresh ``compile``, byte for byte. Scales of SmoothQuant stay those of the calibration.

    Args:
        artifact: Artifact that ``compile`` returned, or that was loaded.
        model: Same class and shapes; as for ``compile``, it is not changed.

    Raises:
        ArtifactError: The artifact has no recipe, the model is another one (names what differs), or its weights hold
            NaN or infinity.
    """
    if not artifact.recipe:
        raise ArtifactError(
            "the artifact has no recipe of its tensors: it was not made by compile(); compile the model"
        )
    recipe = Recipe.from_json(artifact.recipe)
    model = unwrapped(model)
    if type(model).__name__ != recipe.model:
        raise ArtifactError(f"compiled was a {recipe.model}, this is a {type(model).__name__}: compile it")
    buffers = dict(model.named_buffers(remove_duplicate=False))
    for name, expected in recipe.buffers.items():
        if name not in buffers or checksum(buffers[name].detach().cpu()) != expected:
            raise ArtifactError(
                f"buffer {name} ({type(model).__name__}) is not the one that was compiled: the model's positions or "
                "constants have changed; compile it again"
            )
    with torch.device("cpu"):  # whatever the caller's default device is
        tensors = tensors_of(recipe, named_parameters(model), artifact.program.precision)
    kept = {name: tensor for name, tensor in artifact.tensors.items() if name.rpartition(".")[2] in ("cos", "sin")}
    return replace(artifact.with_tensors({**tensors, **kept}), recipe=artifact.recipe)


def compile(
    model: nn.Module,
    *,
    max_tokens: int,
    head: Head = "auto",
    precision: ir.Precision = "w8a8",
    activations: ir.Activations = "token",
    activation_bits: ir.ActivationBits | None = None,
    smooth: SmoothQuant | None = None,
    temperature: float = 1.0,
) -> Artifact:
    """Compile a frozen model: its scores, or the log-probabilities of its tokens.

    The model is not changed: it may be in training, on any device, in float32, bfloat16 or float16, inside
    DistributedDataParallel or torch.compile. Its structure is traced by torch.export, then checked: the program,
    in floating point, must return what the model's own code returns, on random tokens and random weights.

    A batch has no padding, so whatever a model does with padding is left away. A model that scores at the last token
    that is not padding scores at the last token here: cut trailing padding tokens off, also where they are the token
    that ends a text.

    Args:
        model: Token ids in; scores [1, labels] or logits [1, tokens, vocabulary] out, alone or first of several.
        max_tokens: Longest sequence (tokens), at least 2.
        head: Kind of output that the model must have; ``auto`` takes the one that it has.
        precision: ``w8a8`` for exact devices; the others round weights only, for comparison.
        activations: ``tensor`` is the published rule of one scale a batch, for comparison.
        activation_bits: Bits of the rows that linear layers and the head multiply. 16 is as exact on all exact devices,
            nearer to the model, and twice the products; of precision ``w8a8`` with one scale a token. None: 16 for
            log-probabilities, as a KL penalty is a small difference of them, and 8 for scores, which are ranked;
            ``greentrain fpga ranks`` says what either costs your model.
        smooth: Calibration for SmoothQuant, or None.
        temperature: Divisor of the logits before the log-probabilities, as in sampling at that temperature. Trainers
            of RLHF want their reference at the policy's sampling temperature.

    Returns:
        The artifact. It keeps a recipe for :func:`~greentrain.fpga_backend.compiler.compiling.sync`.

    Raises:
        UnsupportedModelError: Something in the model cannot be compiled; names the module, the path to it, the
            operator and what to do.
        ArtifactError: A parameter holds NaN or infinity, or does not fit the precision; names it.
        ValueError: An argument is out of bounds.
    """
    _check(max_tokens, head, precision, activations, activation_bits or 8)
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(f"temperature={temperature!r}: a number above 0; 1 leaves the logits as they are")
    if not isinstance(model, nn.Module):
        raise ValueError(f"model={model!r} is a {type(model).__name__}, not a torch.nn.Module: load the model first")
    model = unwrapped(model)
    check(model, max_tokens)
    with torch.device("cpu"):  # whatever the caller's default device is
        program, recipe, tables = _verified(model, head, max_tokens)
        if temperature != 1.0:
            recipe = _tempered(program, recipe, temperature)
        parameters = named_parameters(model)
        if smooth is not None:
            program, recipe = smooth.applied(program, recipe, {**tensors_of(recipe, parameters, "fp32"), **tables})
        program = replace(program, precision=precision, activations=activations)
        exact = (precision, activations) == ("w8a8", "token")
        program = with_activation_bits(program, activation_bits or (16 if exact and not program.labels else 8))
        tensors = {**tensors_of(recipe, parameters, precision), **tables}
    return Artifact.of(program, tensors, source=_source(model), recipe=recipe.to_json())


def named_parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return all parameters under all their names."""
    return dict(model.named_parameters(remove_duplicate=False))


def _check(max_tokens: int, head: str, precision: str, activations: str, activation_bits: int) -> None:
    if not 2 <= max_tokens <= contract.MAX_WIDTH:
        raise ValueError(
            f"max_tokens={max_tokens}: the integer contract allows 2 to {contract.MAX_WIDTH} tokens a sequence"
        )
    for name, value, allowed in (
        ("head", head, get_args(Head)),
        ("precision", precision, get_args(ir.Precision)),
        ("activations", activations, get_args(ir.Activations)),
    ):
        if value not in allowed:
            raise ValueError(f"{name}={value!r} is none of {', '.join(allowed)}")
    if activation_bits not in get_args(ir.ActivationBits):
        raise ValueError(f"activation_bits={activation_bits!r}: the integer contract has 8 and 16")
    if activation_bits == 16 and (precision, activations) != ("w8a8", "token"):
        raise ValueError(
            f"activation_bits=16 with precision={precision!r}, activations={activations!r}: it goes with 'w8a8' and "
            "'token' only; leave it out"
        )


def _verified(model: nn.Module, head: Head, max_tokens: int) -> tuple[ir.Program, Recipe, dict[str, torch.Tensor]]:
    """Lower a model and compare; the copy's weights are gone when this returns."""
    call = OperatorCall.of(model)
    shadow = meta_copy(model)
    traced = trace(shadow, call, max_tokens)
    program, recipe, tables = _lowered(traced, head, max_tokens, type(model).__name__, call)
    program = replace(program, precision="fp32")
    numbers = {**tensors_of(recipe, named_parameters(shadow), "fp32"), **tables}
    verify(shadow, call, program, numbers, _padding(model))
    return program, recipe, tables


def _tempered(program: ir.Program, recipe: Recipe, temperature: float) -> Recipe:
    """Divide the logits: the vocabulary head's weights and biases have the factor in them."""
    heads = {op.weight for op in program.ops if isinstance(op, ir.LogProb)}
    if not heads:
        raise ValueError(
            f"temperature={temperature:g}, but {recipe.model} is compiled to scores: it is of log-probabilities"
        )
    entries = dict(recipe.entries)
    for stem in heads:
        parts = tuple(part.then("multiply", 1.0 / temperature) for part in entries[stem].parts)
        entries[stem] = replace(entries[stem], parts=parts)
    return replace(recipe, entries=entries)


def _lowered(
    traced: Trace, head: Head, max_tokens: int, model: str, call: OperatorCall
) -> tuple[ir.Program, Recipe, dict[str, torch.Tensor]]:
    draft = Draft(max_tokens, types=call.types)
    outputs = Lowering(draft).run(traced.exported.graph_module, traced.inputs)
    place = GraphNode(path="", module=model, op="output")
    kept = [value for value in outputs if value is not None]
    finished = finish(draft, kept[0] if kept else None, head, traced.shapes, place)
    recipe = Recipe(
        model=model,
        entries=finished.entries,
        shapes={name: traced.shapes[name] for name in _read_by(finished.entries.values())},
        buffers=traced.buffers,
    )
    return _program(finished.ops, recipe, max_tokens, types=call.types), recipe, _used(draft.tables, finished.ops)


def _program(ops: tuple[ir.Op, ...], recipe: Recipe, max_tokens: int, *, types: bool) -> ir.Program:
    embeds = [op for op in ops if isinstance(op, ir.Embed)]
    rows = {op.weight: recipe.shapes[recipe.entries[op.weight].parts[0].weight.parameter][0] for op in embeds}
    tables = {kind: [rows[op.weight] for op in embeds if op.index == kind] for kind in ("token", "type")}
    if not tables["token"]:
        raise UnsupportedModelError(f"{recipe.model} looks up no token: what it returns does not depend on its input")
    attentions = [op for op in ops if isinstance(op, ir.Attention)]
    return ir.Program(
        ops=ops,
        vocabulary=min(tables["token"]),
        types=min(tables["type"], default=0) if types else 0,
        max_tokens=max_tokens,
        hidden=embeds[0].width,
        layers=len(attentions),
        causal=all(op.causal for op in attentions),
    )


def _used(tables: dict[str, torch.Tensor], ops: tuple[ir.Op, ...]) -> dict[str, torch.Tensor]:
    used = {getattr(op, "weight", "") for op in ops}
    return {name: table for name, table in tables.items() if name.rpartition(".")[0] in used}


def _read_by(entries: Iterable[TensorRecipe]) -> list[str]:
    sources = [s for entry in entries for part in entry.parts for s in (part.weight, part.bias) if s is not None]
    return sorted({source.parameter for source in sources})


def _padding(model: nn.Module) -> set[int]:
    """Return the token ids that models inside take for padding."""
    found = (getattr(getattr(module, "config", None), "pad_token_id", None) for module in model.modules())
    return {number for number in found if isinstance(number, int)}


def _source(model: nn.Module) -> str:
    name = str(getattr(getattr(model, "config", None), "name_or_path", "") or "")
    return f"{type(model).__name__} {name}".strip()
