"""Real text that every machine has: the source code of Python's standard library, as tokens.

The files are split by name into training and validation, a byte-level BPE is trained on the training files, and
both are kept in the user's cache: the first run takes seconds, later ones nothing. No network.
"""

import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from filelock import FileLock
from torch import Tensor
from torch.utils.data import Dataset

Tokens = npt.NDArray[np.uint16]
_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}
_BPE_BYTES = 4_000_000
"""Text that the BPE is trained on (bytes); more makes no better merges for a small vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Tokens of the standard library."""

    train: Tokens
    val: Tokens
    vocab: int
    tokenizer: Path
    """tokenizer.json of the ``tokenizers`` library."""


class Blocks(Dataset[dict[str, Tensor]]):
    """Consecutive blocks of tokens: ``input_ids`` and, shifted by one, ``labels``.

    Args:
        tokens: The text.
        context: Tokens a block.
        limit: Use only the first so many blocks.
    """

    def __init__(self, tokens: Tokens, context: int, limit: int | None = None) -> None:
        self.tokens = tokens
        self.context = context
        self.blocks = (len(tokens) - 1) // context
        if limit is not None:
            self.blocks = min(self.blocks, limit)

    def __len__(self) -> int:
        return self.blocks

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        start = i * self.context
        text = torch.from_numpy(self.tokens[start : start + self.context + 1].astype(np.int64))
        return {"input_ids": text[:-1], "labels": text[1:]}

    def unigram_entropy(self) -> float:
        """Return the entropy of single tokens (nats): the loss of the best model that ignores all context."""
        text = self.tokens[1 : self.blocks * self.context + 1]
        share = np.unique(text, return_counts=True)[1] / len(text)
        return float(-(share * np.log(share)).sum())


def corpus(vocab: int = 2048, max_bytes: int | None = None) -> Corpus:
    """Return the standard library as tokens, from the cache where it is there already.

    Args:
        vocab: Tokens of the BPE, at most 65,536.
        max_bytes: Use only about so much text (bytes).
    """
    files = _files(max_bytes)
    key = hashlib.sha256(f"1 {vocab} {sys.version}".encode())
    for path in files:
        key.update(f"{path.name} {path.stat().st_size}".encode())
    folder = _cache() / f"stdlib-{key.hexdigest()[:16]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):  # the ranks of a job come here together
        if not (folder / "done").exists():
            _build(files, vocab, folder)
    return Corpus(
        train=np.load(folder / "train.npy"),
        val=np.load(folder / "val.npy"),
        vocab=int(json.loads((folder / "done").read_text())["vocab"]),
        tokenizer=folder / "tokenizer.json",
    )


def _files(max_bytes: int | None) -> list[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    found = [path for path in root.rglob("*.py") if not _SKIPPED & set(path.relative_to(root).parts)]
    # Sorted by a hash of the name: any prefix of the list is a fair sample, the same on every machine.
    found.sort(key=lambda path: hashlib.sha256(path.relative_to(root).as_posix().encode()).digest())
    if len(found) < 100:
        raise SystemExit(f"{root} holds {len(found)} Python files; this recipe needs the library's source as .py files")
    if max_bytes is None:
        return found
    sizes = np.cumsum([path.stat().st_size for path in found])
    return found[: int(np.searchsorted(sizes, max_bytes)) + 1]


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "greentrain" / "recipes"


def _build(files: list[Path], vocab: int, folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    texts = [path.read_text(encoding="utf-8", errors="ignore") for path in files]
    val, train = texts[::20], [text for i, text in enumerate(texts) if i % 20]
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(_head(train, _BPE_BYTES), trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, part in (("train", train), ("val", val)):
        ids = [np.array(line.ids, dtype=np.uint16) for line in tokenizer.encode_batch(part)]
        np.save(folder / f"{name}.npy", np.concatenate(ids))
    (folder / "done").write_text(json.dumps({"vocab": tokenizer.get_vocab_size()}))


def _head(texts: list[str], limit: int) -> Iterator[str]:
    for text in texts:
        if limit <= 0:
            return
        limit -= len(text)
        yield text
