"""The newest whole checkpoint in a folder: what a training is started again from.

Looks are cheap: of a file the directory of its zip archive is read, of a folder the names in it. A checkpoint that was
being written when its process was killed lacks one of these.
"""

import contextlib
import json
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ALONE: Final = (".ckpt", ".pt", ".pth")
"""Files that may hold a whole training state."""
FILES: Final = (*ALONE, ".bin", ".safetensors")
WEIGHTS: Final = (
    "model*.safetensors",
    "pytorch_model*.bin",
    "adapter_model*.safetensors",
    "model*.pt",
    "pytorch_model*",
)
"""Of transformers 5 (Trainer.save_model), accelerate 1 (Accelerator.save_state) and FSDP/DeepSpeed in them."""
DEPTH: Final = 3
"""Folders below the named one that are looked into: Lightning's is lightning_logs/version_0/checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint."""

    path: Path
    unix_s: float
    """When its newest file was written (s since the epoch)."""

    @property
    def key(self) -> str:
        """Names it and its time: another one is progress."""
        return f"{self.path}@{self.unix_s:.6f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a look into a folder brought."""

    newest: Checkpoint | None
    skipped: tuple[str, ...]
    """What is newer than that and not whole, and why."""


def newest(folder: Path) -> Found:
    """Return the newest whole checkpoint in a folder, and what newer ones lack."""
    skipped: list[tuple[float, str]] = []
    best: Checkpoint | None = None
    for path in _candidates(folder, DEPTH):
        try:
            unix_s = _time(path)
            lacks = _file_lacks(path) if path.is_file() else _folder_lacks(path)
        except OSError as error:
            lacks, unix_s = error.strerror or str(error), 0.0
        if lacks:
            skipped.append((unix_s, f"{path} {lacks}"))
        elif best is None or (unix_s, _step(path)) > (best.unix_s, _step(best.path)):
            best = Checkpoint(path=path, unix_s=unix_s)
    after_s = -1.0 if best is None else best.unix_s
    return Found(newest=best, skipped=tuple(text for unix_s, text in sorted(skipped) if unix_s > after_s))


def _candidates(folder: Path, depth: int) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for path in entries:
        if path.name.startswith(".") or path.name.endswith((".tmp", ".part")):
            continue
        with contextlib.suppress(OSError):  # what this user may not look into: the lost+found of a disk
            if path.is_dir():
                if _is_checkpoint_folder(path):
                    yield path
                elif depth > 1:
                    yield from _candidates(path, depth - 1)
            elif path.suffix in ALONE:
                yield path


def _is_checkpoint_folder(path: Path) -> bool:
    return (
        re.fullmatch(r"(checkpoint|step|epoch)[-_]\d+|global_step-\d+", path.name) is not None
        or path.suffix == ".ckpt"
        or any(any(path.glob(of)) for of in (".metadata", "*.distcp", "trainer_state.json", "random_states_*.pkl"))
    )


def _folder_lacks(path: Path) -> str:
    """Return what a folder lacks to be a whole checkpoint; empty for nothing."""
    names = [entry for entry in path.rglob("*") if entry.is_file()]
    if not names:
        return "is empty"
    for entry in names:
        if entry.stat().st_size == 0 and entry.suffix in (*FILES, ".distcp", ".json"):
            return f"is torn: {entry.relative_to(path)} is empty"
        if entry.suffix in FILES and (torn := _file_lacks(entry)):
            return f"is torn: {entry.relative_to(path)} {torn}"
    if any(entry.suffix == ".distcp" for entry in names) and not any(entry.name == ".metadata" for entry in names):
        return "is torn: it has parts (.distcp) and no .metadata, which torch.distributed.checkpoint writes last"
    if path.name.startswith("checkpoint-") or (path / "trainer_state.json").exists():
        return _trainer_lacks(path)
    if any(path.glob("optimizer*.bin")) and not any(path.glob("random_states_*.pkl")):
        return "is torn: it has no random_states_*.pkl, which Accelerate writes last"
    return ""


def _trainer_lacks(path: Path) -> str:
    """Return what a folder of the Hugging Face Trainer lacks, which writes its own state last."""
    state = path / "trainer_state.json"
    try:
        json.loads(state.read_text(encoding="utf-8"))
    except OSError:
        return "is torn: it has no trainer_state.json, which the Trainer writes last"
    except ValueError:
        return "is torn: its trainer_state.json is no JSON"
    if not any(next(path.glob(pattern), None) for pattern in WEIGHTS):
        return "is torn: it has no weights"
    return ""


def _file_lacks(path: Path) -> str:
    """Return what a file lacks: torch.save writes a zip archive, whose directory comes last."""
    size = path.stat().st_size
    if size == 0:
        return "is empty"
    if path.suffix == ".safetensors":
        return _safetensors_lacks(path, size)
    with path.open("rb") as file:
        start = file.read(4)
    if start == b"PK\x03\x04":
        return "" if zipfile.is_zipfile(path) else "is torn: its zip archive has no directory"
    # A pickle of protocol 2 on, as torch.save wrote before 1.6 and still does on request; nothing says where it ends
    # but its last byte.
    if start[:1] == b"\x80":
        return ""
    return "is no checkpoint of torch"


def _safetensors_lacks(path: Path, size: int) -> str:
    # 8 bytes with the length n of a JSON header, n bytes of it, then the tensors (huggingface/safetensors, README).
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length + 8 > size:
            return "is torn: its header is cut off"
        try:
            header = json.loads(file.read(length))
            ends = (entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__")
            end = 8 + length + max(ends, default=0)
        except (ValueError, LookupError, TypeError, AttributeError):
            return "is torn: its header is no JSON"
    return "" if end <= size else f"is torn: it has {size} bytes of {end}"


def _time(path: Path) -> float:
    if path.is_file():
        return path.stat().st_mtime
    return max((entry.stat().st_mtime for entry in path.rglob("*") if entry.is_file()), default=path.stat().st_mtime)


def _step(path: Path) -> int:
    """Return the last number in a name, to order what was written at the same time."""
    numbers = re.findall(r"\d+", path.stem)
    return int(numbers[-1]) if numbers else -1
