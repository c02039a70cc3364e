"""What the comparisons with verl, OpenRLHF and ROLL share: code out of checkouts, stand-ins, a model, a table."""

import ast
import contextlib
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

TOLERANCE = 1e-5
"""Nats between the same float32 model with and without padding."""


class Letters:
    """A tokenizer: a letter is a token."""

    eos_token_id = 1

    def __call__(self, text: Any, **_: Any) -> dict[str, Any]:
        """Return the ids of a text, or of several."""
        rows = [[ord(letter) % 99 + 2 for letter in one] for one in ([text] if isinstance(text, str) else text)]
        return {"input_ids": torch.tensor(rows) if isinstance(text, str) else rows}

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        """Return the text of ids; 0 and 1 are nothing."""
        return "".join("" if i < 2 else chr(i - 2 + 99 * (i < 34)) for i in map(int, ids))

    def batch_decode(self, rows: Any, skip_special_tokens: bool = False) -> list[str]:
        """Return the texts of rows."""
        return [self.decode(row) for row in rows]


class Config(dict[str, Any]):
    """A dict with attributes, as omegaconf's."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class Model:
    """A frozen float32 policy, asked as a server is: the truth for where log-probabilities belong."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        config: Any = LlamaConfig(
            vocab_size=101,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=64,
        )
        self.model = LlamaForCausalLM(config)
        self.model.train(False)

    @torch.no_grad()
    def logprobs(self, ids: Sequence[Sequence[int]], *, temperature: float = 1.0) -> list[list[float]]:
        """Return ln p of each token but the first, without any padding."""
        out = []
        for row in ids:
            logits = self.model(torch.tensor([row])).logits[0, :-1] / temperature
            out.append(logits.log_softmax(-1).gather(1, torch.tensor(row)[1:, None])[:, 0].tolist())
        return out


def taken(file: Path, *names: str, **around: Any) -> dict[str, Any]:
    """Run some top-level definitions of a file as they stand, among the given names.

    ``Class.method`` takes the class without its bases and with the named methods alone.
    """
    wanted: dict[str, set[str]] = {}
    for name in names:
        owner, _, member = name.partition(".")
        wanted.setdefault(owner, set()).update({member} - {""})
    body: list[ast.stmt] = []
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        found = getattr(node, "name", None)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            found = getattr(target, "id", None)
        if found not in wanted:
            continue
        if isinstance(node, ast.ClassDef) and wanted[found]:
            node.bases = []
            node.decorator_list = []
            node.body = [one for one in node.body if getattr(one, "name", None) in wanted[found]]
            missing = wanted[found] - {getattr(one, "name", "") for one in node.body}
            if missing:
                raise LookupError(f"{file} has no {found}.{missing}")
        body.append(node)
    code = ast.Module(
        [ast.ImportFrom("__future__", [ast.alias("annotations")], 0), *body],
        [],
    )
    space: dict[str, Any] = {"__name__": file.stem, "torch": torch, **around}
    exec(compile(ast.fix_missing_locations(code), str(file), "exec"), space)
    absent = set(wanted) - set(space)
    if absent:
        raise LookupError(f"{file} has no {absent}")
    return space


@contextlib.contextmanager
def modules(contents: dict[str, dict[str, Any]], *fresh: str) -> Iterator[None]:
    """Stand modules in, and import ``fresh`` ones anew; afterwards all is as before."""
    before = dict(sys.modules)
    for path in [*contents, *fresh]:
        for end in range(1, path.count(".") + 2):
            name = ".".join(path.split(".")[:end])
            if name in contents or (name not in sys.modules and not name.startswith("greentrain")):
                sys.modules[name] = types.ModuleType(name)
    for path, given in contents.items():
        vars(sys.modules[path]).update(given)
    for name in fresh:
        sys.modules.pop(name, None)
    try:
        yield
    finally:
        for name in set(sys.modules) - set(before):
            del sys.modules[name]
        sys.modules.update(before)


def rollouts() -> tuple[list[list[int]], list[list[int]]]:
    """Return prompts and responses of unequal lengths."""
    return [[5, 6, 7], [8], [9, 10]], [[11, 12], [13, 14, 15, 16], [17]]


def padded(left: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, attention mask and response mask with prompts padded on the left, or all padding on the right."""
    prompts, responses = rollouts()
    wide = [max(map(len, part)) for part in (prompts, responses)]
    width = sum(wide) if left else max(len(p) + len(r) for p, r in zip(prompts, responses, strict=True))
    ids, mask, response = (torch.zeros(len(prompts), width, dtype=torch.long) for _ in range(3))
    for i, (p, r) in enumerate(zip(prompts, responses, strict=True)):
        start = wide[0] - len(p) if left else 0
        end = start + len(p) + len(r)
        ids[i, start:end] = torch.tensor(p + r)
        mask[i, start:end] = 1
        response[i, end - len(r) : end] = 1
    return ids, mask, response


def close(one: Tensor, other: Tensor) -> bool:
    """Return True if two tensors are the same but for rounding."""
    return one.shape == other.shape and bool((one - other).abs().max() < TOLERANCE)


class Cases:
    """What was run, and what disagreed."""

    def __init__(self) -> None:
        self.failed = 0

    def row(self, framework: str, what: str, good: bool) -> None:
        """Print a case."""
        self.failed += not good
        print(f"| {framework} | {what} | {'agrees' if good else 'DISAGREES'} |", flush=True)
