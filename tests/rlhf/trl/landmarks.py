"""What the methods of TRL that the adapters override do inside, and in which order, read with ``ast``.

A landmark is a thing that a method does; the barrier rests on their order in the source. A new release of TRL is judged
by it before it stands in ``greentrain.rlhf.trl.attach.VERSIONS``.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

_FORWARD = "call self._get_per_token_logps_and_entropies"
_REFERENCE = f"{_FORWARD} ref_model"
_READ = "read ref_per_token_logps"
_LOGPROBS = {
    "_get_per_token_logps_and_entropies": ("call model fused_lm_head labels", "attribute log_probs"),
    "_prepare_inputs": (
        "call self._generate_and_score_completions", "call shuffle_sequence_dict", "call split_tensor_dict",
        "store self._buffered_inputs", "read self._buffered_inputs",
    ),
    "_generate_single_turn": ("call unwrapped_model.generate",),
    "_calculate_rewards": ("call reward_func completion_ids completions prompts",),
}  # fmt: skip
_PRECOMPUTED = {
    "_precompute_ref_logps": ("read self._precompute_model_hash", "call self.compute_ref_log_probs"),
    "compute_ref_log_probs": ("call model fused_lm_head labels", "attribute log_probs"),
}
CONTRACTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "GRPOTrainer": {
        **_LOGPROBS,
        "_generate": (
            "call self._generate_single_turn", "return 0 prompt_ids", "return 1 completion_ids", "return 3 completions",
            "return 4 logprobs",
        ),
        "_compute_loss": (_FORWARD, "read advantages", _READ, "read self.use_vllm", "read importance_sampling_ratio"),
        "_generate_and_score_completions": (
            "call self._generate", "read self.use_vllm", _FORWARD, "read self.vllm_importance_sampling_mode",
            _REFERENCE, "call self._calculate_rewards",
        ),
    },
    "RLOOTrainer": {
        **_LOGPROBS,
        "_generate": ("call self._generate_single_turn", "return 0 prompt_ids", "return 2 completions"),
        "_generate_and_score_completions": (
            "call self._generate", _FORWARD, _REFERENCE, "call self._calculate_rewards", "use ref_per_token_logps",
        ),
    },
    "DPOTrainer": _PRECOMPUTED,
    "KTOTrainer": _PRECOMPUTED,
}  # fmt: skip
"""By class and method, landmarks in the order in which they must stand."""


def sources_of(trainer: Any) -> dict[str, str]:
    """Return the source code of the methods of a class that have landmarks."""
    names = CONTRACTS[trainer.__name__]
    return {n: textwrap.dedent(inspect.getsource(inspect.unwrap(getattr(trainer, n)))) for n in names}


def breaches(trainer: str, sources: Mapping[str, str]) -> list[str]:
    """Return what a class does not do, in words.

    Args:
        trainer: Name of the class.
        sources: Source code of its methods, by name.
    """
    wrong = []
    for name, wanted in CONTRACTS[trainer].items():
        if name not in sources:
            wrong.append(f"there is no {name}")
            continue
        left = iter(landmarks(sources[name]))
        for landmark in wanted:
            if landmark not in left:
                wrong.append(f"{name} does not '{landmark}' where it did")
                break
    if trainer == "GRPOTrainer" and "_compute_loss" in sources:
        order = list(landmarks(sources["_compute_loss"]))
        if _READ in order and _FORWARD in order and order.index(_READ) < order.index(_FORWARD):
            wrong.append("_compute_loss reads the reference before the policy's forward")
    return wrong


def landmarks(source: str) -> Iterator[str]:
    """Yield the landmarks of a method's source, in order."""
    tree = ast.parse(source)
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.expr | ast.Return)]
    for node in sorted(nodes, key=_place):
        yield from _landmarks(node)


def _place(node: ast.expr | ast.Return) -> tuple[int, ...]:
    """Where a node begins, and what is inside another one first."""
    return node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0


def _landmarks(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        yield f"call {called}"
        if node.args and isinstance(first := node.args[0], ast.Attribute) and first.attr == "ref_model":
            yield f"call {called} ref_model"
        names = sorted(word.arg for word in node.keywords if word.arg in _WORDS)
        if names:
            yield f"call {called} {' '.join(name for name in names if name)}"
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        if ast.unparse(node.value) == "inputs":
            yield f"read {node.slice.value!s}"
    elif isinstance(node, ast.Attribute):
        kind = "store" if isinstance(node.ctx, ast.Store) else "read"
        yield f"{kind} {ast.unparse(node)}"
        yield f"attribute {node.attr}"
    elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
        for i, value in enumerate(node.value.elts):
            yield f"return {i} {ast.unparse(value)}"
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield f"use {node.id}"


_WORDS = {"labels", "fused_lm_head", "prompts", "completions", "completion_ids"}
