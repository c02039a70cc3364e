"""gt_tile clock by clock: handshakes, flushing in the middle, tiles one after the other."""

import os
import shutil
from pathlib import Path

import pytest

from tools.rtl_simulator import SOURCES, missing, toolchain

ROOT = Path(__file__).resolve().parents[3]
CHECKS = 8


def _missing() -> str:
    try:
        import cocotb_tools  # noqa: F401
    except ImportError:
        return "cocotb is missing: pip install 'cocotb>=2.1'"
    programs = [name for name in ("make", "perl") if shutil.which(name) is None]
    return missing() or (
        f"{programs[0]} is missing, which cocotb's build of a Verilator model needs" if programs else ""
    )


@pytest.mark.long
@pytest.mark.skipif(bool(_missing()), reason=_missing() or "nothing is missing")
def test_the_tile_keeps_its_handshakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cocotb_tools.check_results import get_results
    from cocotb_tools.runner import get_runner

    monkeypatch.setenv("PATH", f"{toolchain().verilator_root / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("MAKEFLAGS", "-j2")
    monkeypatch.syspath_prepend(ROOT)
    runner = get_runner("verilator")
    runner.build(
        sources=[*SOURCES],
        hdl_toplevel="gt_tile",
        parameters={"R2": 2, "C": 3},
        build_args=["--x-initial", "unique", "-CFLAGS", "-O0"],
        build_dir=tmp_path / "build",
        log_file=tmp_path / "build.log",
    )
    results = runner.test(
        hdl_toplevel="gt_tile",
        test_module="tests.fpga_backend.rtl.cocotb_tile",
        test_dir=tmp_path,
        results_xml=str(tmp_path / "results.xml"),
        plusargs=["+verilator+rand+reset+2"],
        log_file=tmp_path / "test.log",
    )
    said = (tmp_path / "test.log").read_text(encoding="utf-8")
    assert get_results(results) == (CHECKS, 0), said[-4000:]
