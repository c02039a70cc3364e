"""An artifact on disk is whole and of one piece, or an error that says what differs."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from greentrain.fpga_backend import artifact as artifacts
from greentrain.fpga_backend.artifact import MANIFEST, WEIGHTS, Artifact, load
from greentrain.fpga_backend.errors import ArtifactError
from greentrain.fpga_backend.program import Program
from greentrain.testing.offload_models import decoder, encoder


@pytest.mark.parametrize("make", [encoder, decoder])
def test_what_was_saved_is_loaded(make: type, tmp_path: Path) -> None:
    made: Artifact = make(seed=3)
    made.save(tmp_path / "a")
    found = load(tmp_path / "a")
    assert found.program == made.program
    assert found.digest == made.digest
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in made.tensors.items())
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == sorted([MANIFEST, WEIGHTS])


def test_a_folder_by_its_name_and_a_short_repr(tmp_path: Path) -> None:
    made = encoder()
    made.save(str(tmp_path / "a"))
    assert load(str(tmp_path / "a")).digest == made.digest
    assert len(repr(made)) < 200 and "w8a8" in repr(made)


def test_the_digest_is_of_every_number() -> None:
    made = encoder()
    name = next(name for name in made.tensors if name.endswith(".q"))
    changed = dict(made.tensors)
    changed[name] = changed[name].clone()
    changed[name].view(-1)[-1] += 1
    assert made.with_tensors(changed).digest != made.digest
    program = dataclasses.replace(made.program, max_tokens=made.program.max_tokens + 1)
    assert Artifact.of(program, made.tensors).digest != made.digest
    assert Artifact.of(made.program, made.tensors).digest == made.digest


def _bytes(path: Path, change: dict[int, int] | None = None, cut: int | None = None) -> None:
    data = bytearray(path.read_bytes())
    for at, flip in (change or {}).items():
        data[at] ^= flip
    path.write_bytes(bytes(data[:cut]))


def test_a_flipped_bit_is_found_and_its_tensor_named(tmp_path: Path) -> None:
    made = encoder()
    made.save(tmp_path)
    _bytes(tmp_path / WEIGHTS, {-1: 1})
    with pytest.raises(ArtifactError, match=r"tensor \S+ has checksum .* different compilations or damaged"):
        load(tmp_path)


def test_a_file_cut_short_is_found(tmp_path: Path) -> None:
    encoder().save(tmp_path)
    _bytes(tmp_path / WEIGHTS, cut=-10)
    with pytest.raises(ArtifactError, match=f"{WEIGHTS} cannot be read"):
        load(tmp_path)
    encoder().save(tmp_path)
    _bytes(tmp_path / MANIFEST, cut=-10)
    with pytest.raises(ArtifactError, match=f"{MANIFEST} cannot be read"):
        load(tmp_path)


def test_files_of_two_compilations_are_told_apart(tmp_path: Path) -> None:
    encoder(seed=1).save(tmp_path / "1")
    encoder(seed=2).save(tmp_path / "2")
    (tmp_path / "1" / WEIGHTS).replace(tmp_path / "2" / WEIGHTS)
    with pytest.raises(ArtifactError, match="the manifest says"):
        load(tmp_path / "2")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"contract": 99}, "contract 99, this version reads 1"),
        ({"format": 0}, "format 0, this version reads 1"),
        ({"digest": "0" * 64}, "changed by hand"),
        ({"program": {"ops": []}}, "the program"),
        ({"tensors": []}, "no checksums"),
        ({"tensors": None}, "no checksums"),
        ({"program": {"ops": [{"op": "convolution"}]}}, "the program cannot be read"),
    ],
)
def test_a_manifest_of_something_else_is_refused(change: dict[str, object], said: str, tmp_path: Path) -> None:
    encoder().save(tmp_path)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps({**manifest, **change}))
    with pytest.raises(ArtifactError, match=said):
        load(tmp_path)


def test_an_unfinished_folder_is_no_artifact(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="never finished"):
        load(tmp_path)
    (tmp_path / MANIFEST).write_text("[]")
    with pytest.raises(ArtifactError, match="no manifest"):
        load(tmp_path)


def test_a_crash_while_writing_leaves_no_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder(seed=1).save(tmp_path)

    def crash(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(artifacts, "save_file", crash)
    with pytest.raises(OSError, match="disk full"):
        encoder(seed=2).save(tmp_path)
    with pytest.raises(ArtifactError, match="never finished"):
        load(tmp_path)


def test_broken_weights_are_refused_by_name() -> None:
    made = encoder()
    name = next(name for name in made.tensors if name.endswith(".g"))
    with pytest.raises(ArtifactError, match=f"{name} holds NaN"):
        made.with_tensors({**made.tensors, name: torch.full_like(made.tensors[name], float("nan"))})


def test_other_shapes_are_no_new_weights() -> None:
    made = encoder()
    name = next(name for name in made.tensors if name.endswith(".q"))
    with pytest.raises(ArtifactError, match=f"{name} is"):
        made.with_tensors({**made.tensors, name: made.tensors[name][:-1]})
    missing = {key: value for key, value in made.tensors.items() if key != name}
    with pytest.raises(ArtifactError, match=f"{name} is missing"):
        made.with_tensors(missing)


def test_programs_survive_json() -> None:
    for made in (encoder(pooler=True), decoder(), encoder(activation_bits=16), decoder(activation_bits=16)):
        assert Program.from_json(made.program.to_json()) == made.program


def test_programs_of_8_bits_are_written_as_before_there_were_16() -> None:
    """So their digests stay, and a program without the field reads as 8 bits."""
    assert "activation_bits" not in decoder().program.to_json()
    assert decoder(activation_bits=16).program.to_json().count('"activation_bits": 16') == 9
    assert decoder(activation_bits=16).digest != decoder().digest
