"""Whole checkpoints are found, torn ones are named."""

import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from greentrain.control.launch.checkpoints import newest


def at(path: Path, unix_s: float) -> Path:
    for entry in [path, *path.rglob("*")]:
        os.utime(entry, (unix_s, unix_s))
    return path


def torch_file(path: Path, unix_s: float, keep: float = 1.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"w": torch.arange(1000.0)}, path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    return at(path, unix_s)


def trainer_folder(path: Path, unix_s: float, *, state: bool = True, weights: float = 1.0) -> Path:
    path.mkdir(parents=True)
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    data = len(header).to_bytes(8, "little") + header + bytes(16)
    (path / "model.safetensors").write_bytes(data[: int(len(data) * weights)])
    torch_file(path / "optimizer.pt", unix_s)
    if state:
        (path / "trainer_state.json").write_text('{"global_step": 5}')
    return at(path, unix_s)


def test_the_newest_whole_file_of_torch_or_lightning(tmp_path: Path) -> None:
    torch_file(tmp_path / "version_0" / "checkpoints" / "epoch=0-step=5.ckpt", 100)
    best = torch_file(tmp_path / "version_0" / "checkpoints" / "epoch=0-step=9.ckpt", 200)
    torch_file(tmp_path / "step_12.pt", 300, keep=0.6)
    (tmp_path / "step_13.pt").touch()
    found = newest(tmp_path)
    assert found.newest is not None and found.newest.path == best and found.newest.unix_s == 200
    assert len(found.skipped) == 2
    assert "no directory" in found.skipped[0] and "is empty" in found.skipped[1]


@pytest.mark.parametrize(
    ("torn", "why"),
    [({"state": False}, "no trainer_state.json"), ({"weights": 0.5}, "is torn: model.safetensors")],
)
def test_folders_of_the_trainer(tmp_path: Path, torn: dict[str, float], why: str) -> None:
    best = trainer_folder(tmp_path / "checkpoint-5", 100)
    trainer_folder(tmp_path / "checkpoint-10", 200, **torn)  # type: ignore[arg-type]
    found = newest(tmp_path)
    assert found.newest is not None and found.newest.path == best
    assert len(found.skipped) == 1 and why in found.skipped[0]


def test_folders_of_accelerate_lack_their_last_file_when_torn(tmp_path: Path) -> None:
    whole, torn = tmp_path / "checkpoint_0", tmp_path / "checkpoint_1"
    for folder, unix_s in ((whole, 100.0), (torn, 200.0)):
        folder.mkdir()
        torch_file(folder / "optimizer.bin", unix_s)
        if folder is whole:
            (folder / "random_states_0.pkl").write_bytes(b"\x80x")
        at(folder, unix_s)
    found = newest(tmp_path)
    assert found.newest is not None and found.newest.path == whole
    assert "random_states" in found.skipped[0]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_folders_of_distributed_checkpoint(tmp_path: Path) -> None:
    for name, unix_s in (("step-1", 100.0), ("step-2", 200.0)):
        dcp.save({"w": torch.ones(4)}, checkpoint_id=tmp_path / name, no_dist=True)  # type: ignore[attr-defined]
        if name == "step-2":
            (tmp_path / name / ".metadata").unlink()
        at(tmp_path / name, unix_s)
    found = newest(tmp_path)
    assert found.newest is not None and found.newest.path.name == "step-1"
    assert ".metadata" in found.skipped[0]


def test_folders_without_a_known_form_must_hold_something(tmp_path: Path) -> None:
    (tmp_path / "step_2").mkdir()
    (tmp_path / "step_1").mkdir()
    (tmp_path / "step_1" / "weights.npz").write_bytes(b"x")
    at(tmp_path / "step_1", 100)
    found = newest(tmp_path)
    assert found.newest is not None and found.newest.path.name == "step_1"
    assert "step_2 is empty" in found.skipped[0]


def test_of_the_same_time_the_higher_step_counts(tmp_path: Path) -> None:
    for step in (9, 10):
        torch_file(tmp_path / f"step_{step}.pt", 100)
    found = newest(tmp_path)
    assert found.newest is not None and found.newest.path.name == "step_10.pt"


@pytest.mark.parametrize("made", [False, True])
def test_no_folder_and_an_empty_one_hold_none(tmp_path: Path, made: bool) -> None:
    folder = tmp_path / "ck"
    if made:
        folder.mkdir()
        (folder / "half.pt.tmp").write_bytes(b"x")
        (folder / "notes.txt").write_text("x")
    assert newest(folder).newest is None and newest(folder).skipped == ()
