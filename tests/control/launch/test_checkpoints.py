"""Whole checkpoints are found, torn ones are named."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from greentrain.control.launch import checkpoints
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


# -- what is looked at -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [PermissionError(errno.EACCES, "x"), OSError(errno.ESTALE, "x")], ids=["locked", "stale"]
)
def test_a_folder_that_may_not_be_looked_into_hides_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    """As the lost+found of every disk, and an NFS folder that was removed: the launcher had ended with a traceback."""
    best = torch_file(tmp_path / "step_1.pt", 100)
    hidden = tmp_path / "lost+found"
    hidden.mkdir()
    stat = Path.stat

    def refuse(self: Path, **how: Any) -> os.stat_result:
        if self.parent == hidden or (self == hidden and error.errno == errno.ESTALE):
            raise error
        return stat(self, **how)

    monkeypatch.setattr(Path, "stat", refuse)
    found = newest(tmp_path)
    assert found.newest is not None and found.newest.path == best and found.skipped == ()


def test_a_checkpoint_that_vanishes_while_it_is_looked_at_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = torch_file(tmp_path / "step_1.pt", 100)
    torch_file(tmp_path / "step_2.pt", 200)
    whole = checkpoints._file_lacks

    def vanishes(path: Path) -> str:
        if path.name == "step_2.pt":
            path.unlink()
        return whole(path)

    monkeypatch.setattr(checkpoints, "_file_lacks", vanishes)
    found = newest(tmp_path)
    assert found.newest is not None and found.newest.path == best
    assert found.newest.key == f"{best}@100.000000"


def test_what_is_older_than_the_newest_whole_one_is_not_told_and_the_rest_in_order(tmp_path: Path) -> None:
    torch_file(tmp_path / "step_2.pt", 200)
    for name, unix_s in (("old.pt", 100.0), ("same.pt", 200.0), ("z.pt", 300.0), ("a.pt", 400.0)):
        (tmp_path / name).touch()
        at(tmp_path / name, unix_s)
    assert [Path(text.split()[0]).name for text in newest(tmp_path).skipped] == ["z.pt", "a.pt"]


@pytest.mark.parametrize(
    ("place", "seen"),
    [
        ("a.ckpt", True),
        ("a.pth", True),
        ("a/b/c.pt", True),
        ("a/b/c/d.pt", False),
        (".cache/c.pt", False),
        ("c.safetensors", False),
        ("c.pt.tmp", False),
        ("step_5.part/c.pt", False),
        ("weights/c.bin", False),
    ],
)
def test_where_checkpoints_are_looked_for(tmp_path: Path, place: str, seen: bool) -> None:
    torch_file(tmp_path / place, 100)
    assert (newest(tmp_path).newest is not None) is seen


@pytest.mark.parametrize(
    ("name", "inside", "whole"),
    [
        ("global_step-3", "a.txt", True),
        ("checkpoint-5", "a.txt", False),  # the Trainer's, which lacks its state
        ("epoch-5", "a.txt", True),
        ("epoch_5", "a.txt", True),
        ("checkpoint_5", "a.txt", True),
        ("mine.ckpt", "a.txt", True),
        ("any", "trainer_state.json", False),  # without weights
        ("any", "random_states_0.pkl", True),
        ("any", "__0_0.distcp", False),
        ("any", ".metadata", True),
        ("step-last", "a.txt", None),
        ("other-5", "a.txt", None),
        ("other_5", "a.txt", None),
        ("any", "a.txt", None),
    ],
)
def test_which_folders_are_checkpoints(tmp_path: Path, name: str, inside: str, whole: bool | None) -> None:
    file = tmp_path / name / inside
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    found = newest(tmp_path)
    assert (found.newest is not None, bool(found.skipped)) == (whole is True, whole is False)


def test_the_time_of_a_folder_is_that_of_its_newest_file(tmp_path: Path) -> None:
    for name, times in (("step_1", (100.0, 500.0)), ("step_2", (300.0, 400.0))):
        for n, unix_s in enumerate(times):
            file = tmp_path / name / f"{n}.txt"
            file.parent.mkdir(exist_ok=True)
            file.write_text("x")
            at(file, unix_s)
        os.utime(tmp_path / name, (9e8, 9e8))
    found = newest(tmp_path).newest
    assert found is not None and found.path.name == "step_1" and found.unix_s == 500.0


@pytest.mark.parametrize(("name", "torn"), [("a.json", True), ("x.distcp", True), ("a.txt", False), ("a.bin", True)])
def test_an_empty_file_that_must_hold_something_is_torn(tmp_path: Path, name: str, torn: bool) -> None:
    folder = tmp_path / "step_1"
    folder.mkdir()
    (folder / name).touch()
    (folder / ".metadata").write_text("x")
    found = newest(tmp_path)
    assert (found.newest is None) is torn
    if torn:
        assert found.skipped[0].endswith(f"step_1 is torn: {name} is empty")


def test_a_distributed_checkpoint_with_other_files_beside_its_parts_needs_its_last_file_too(tmp_path: Path) -> None:
    folder = tmp_path / "step-1"
    folder.mkdir()
    for name in ("__0_0.distcp", "config.json"):
        (folder / name).write_text("{}")
    assert newest(tmp_path).newest is None
    (folder / ".metadata").write_text("x")
    assert newest(tmp_path).newest is not None


def test_a_folder_of_accelerate_without_an_optimizer_has_no_last_file(tmp_path: Path) -> None:
    torch_file(tmp_path / "checkpoint_0" / "model.bin", 100)
    assert newest(tmp_path).newest is not None


@pytest.mark.parametrize(
    ("data", "lacks"),
    [
        (b"\x80\x02older torch", ""),
        (b"\x81", "is no checkpoint of torch"),
        (b"hello", "is no checkpoint of torch"),
        (b"PK\x03\x04 and no directory", "is torn: its zip archive has no directory"),
    ],
)
def test_what_torch_has_written(tmp_path: Path, data: bytes, lacks: str) -> None:
    (tmp_path / "a.pt").write_bytes(data)
    assert newest(tmp_path).skipped == ((f"{tmp_path / 'a.pt'} {lacks}",) if lacks else ())


def safetensors(header: Any, tensors: int, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + bytes(tensors)


ONE: Any = {"w": {"data_offsets": [0, 16]}, "__metadata__": {"format": "pt"}}


@pytest.mark.parametrize(
    ("data", "lacks"),
    [
        (safetensors(ONE, 16), ""),
        (safetensors({"v": {"data_offsets": [16, 20]}, **ONE}, 20), ""),
        (safetensors({}, 0), ""),
        (safetensors(ONE, 15), "it has 89 bytes of 90"),
        (safetensors(ONE, 0, length=10**9), "its header is cut off"),
        (safetensors(b"{}", 0, length=3), "its header is cut off"),
        (safetensors(b"{x", 4), "no JSON"),
        (safetensors([1], 4), "no JSON"),
        (safetensors({"w": {}}, 4), "no JSON"),
        (safetensors({"w": {"data_offsets": []}}, 4), "no JSON"),
        (safetensors({"w": {"data_offsets": [0, "16"]}}, 16), "no JSON"),
    ],
)
def test_a_file_of_safetensors_says_how_long_it_is(tmp_path: Path, data: bytes, lacks: str) -> None:
    folder = tmp_path / "step_1"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(data)
    found = newest(tmp_path)
    assert (found.newest is not None) is (not lacks)
    assert all(lacks in text and "is torn: model.safetensors is torn" in text for text in found.skipped)


@pytest.mark.parametrize(
    ("weights", "whole"),
    [
        ("model.safetensors", True),
        ("model-00001-of-00002.safetensors", True),
        ("pytorch_model.bin", True),
        ("adapter_model.safetensors", True),
        ("pytorch_model_fsdp_0", True),
        ("optimizer.bin", False),
    ],
)
def test_the_weights_of_the_trainer(tmp_path: Path, weights: str, whole: bool) -> None:
    folder = tmp_path / "checkpoint-5"
    torch_file(folder / "a.pt", 100)
    if weights.endswith(".bin"):
        torch_file(folder / weights, 100)
    elif weights.endswith(".safetensors"):
        (folder / weights).write_bytes(safetensors(ONE, 16))
    else:
        (folder / weights).mkdir()
    (folder / "trainer_state.json").write_text("{torn")
    assert "trainer_state.json is no JSON" in newest(tmp_path).skipped[0]
    (folder / "trainer_state.json").write_text("{}")
    found = newest(tmp_path)
    assert (found.newest is not None) is whole and (whole or "it has no weights" in found.skipped[0])


def test_files_without_a_number_come_before_those_with_one(tmp_path: Path) -> None:
    for name in ("last.pt", "epoch3_step0.pt"):
        torch_file(tmp_path / name, 100)
    found = newest(tmp_path).newest
    assert found is not None and found.path.name == "epoch3_step0.pt"
