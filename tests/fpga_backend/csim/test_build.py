"""Building the kernels: once, whole, and with an error that helps where it cannot be done."""

import os
import stat
from pathlib import Path

import pytest

from greentrain.fpga_backend.csim import build as module
from greentrain.fpga_backend.csim.build import FLAGS, build
from greentrain.fpga_backend.csim.card import functions
from greentrain.fpga_backend.errors import DeviceError

QUICK = ("-std=c++17", "-O0", "-fPIC", "-shared", "-ffp-contract=off", "-Wall", "-Wextra", "-Wno-unknown-pragmas")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources of one line, so that a build takes no time."""
    folder = tmp_path / "hls"
    folder.mkdir()
    (folder / "one.cpp").write_text('extern "C" int one() { return 1; }\n')
    monkeypatch.setattr(module, "SOURCES", folder)
    return folder


def test_the_second_build_is_the_first(small: Path, tmp_path: Path) -> None:
    first = build(tmp_path / "cache", flags=QUICK)
    before = first.stat().st_mtime_ns
    assert build(tmp_path / "cache", flags=QUICK) == first
    assert first.stat().st_mtime_ns == before
    assert [path.name for path in first.parent.iterdir()] == [first.name]


def test_sources_headers_and_flags_decide(small: Path, tmp_path: Path) -> None:
    made = {build(tmp_path / "cache", flags=QUICK)}
    made.add(build(tmp_path / "cache", flags=(*QUICK, "-g")))
    (small / "new.h").write_text("\n")
    made.add(build(tmp_path / "cache", flags=QUICK))
    (small / "one.cpp").write_text('extern "C" int one() { return 2; }\n')
    made.add(build(tmp_path / "cache", flags=QUICK))
    assert len(made) == 4


def test_a_broken_source_leaves_nothing_and_says_where(small: Path, tmp_path: Path) -> None:
    (small / "one.cpp").write_text("int broken( {\n")
    with pytest.raises(DeviceError, match=r"one\.cpp:1"):
        build(tmp_path / "cache", flags=QUICK)
    assert list((tmp_path / "cache").iterdir()) == []


def test_without_a_compiler_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match=r"g\+\+ is not on PATH.*install it"):
        build(tmp_path)


def test_without_hls4ml_ap_int_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ap_types", lambda: None)
    with pytest.raises(DeviceError, match="hls4ml"):
        build(tmp_path, ap_int=True)


def test_headers_are_found_without_importing_hls4ml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "hls4ml"
    headers = package / module.AP_TYPES
    headers.mkdir(parents=True)
    (headers / "ap_int.h").write_text("")
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert module.ap_types() == headers


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written(small: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(DeviceError, match="cannot be built"):
        build(tmp_path / "cache", flags=QUICK)


def test_a_foreign_library_is_refused(small: Path, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="remove it"):
        functions(build(tmp_path / "cache", flags=QUICK))


def test_no_flag_changes_a_bit() -> None:
    """Contraction is off, and nothing that reassociates or approximates is on."""
    assert "-ffp-contract=off" in FLAGS and "-fno-fast-math" in FLAGS
    assert not {"-ffast-math", "-Ofast", "-funsafe-math-optimizations", "-fassociative-math"} & set(FLAGS)
