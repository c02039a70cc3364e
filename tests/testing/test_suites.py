"""Conformance suites in one line: they find what is wrong, and pass what is right."""

import subprocess
import sys
from pathlib import Path

import pytest

from greentrain.testing import MeterContract, PolicyContract
from greentrain.testing.suites import filled

FILE = """
from greentrain.power.detect import NullMeter
from greentrain.testing import MeterContract

class Wrong(NullMeter):
    closed = 0

    def read(self):
        raise OSError("gone")

    def close(self):
        Wrong.closed += 1

TestRight = MeterContract.of(NullMeter, reads=2)
TestWrong = MeterContract.of(Wrong)

def test_each_was_closed():
    assert Wrong.closed >= 8
"""


def test_a_line_runs_the_whole_suite(tmp_path: Path) -> None:
    (tmp_path / "test_line.py").write_text(FILE)
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300).stdout
    checks = [name for name in dir(MeterContract) if name.startswith("test_")]
    assert {name for name in checks if f"PASSED test_line.py::TestRight::{name}" in said} == set(checks)
    assert "FAILED test_line.py::TestWrong::test_close_twice_and_read_after" in said
    assert "PASSED test_line.py::test_each_was_closed" in said


def test_settings_are_those_of_the_suite() -> None:
    assert PolicyContract.of(lambda menu: menu, draws=True).draws  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="MeterContract has no speed"):
        filled(MeterContract, {}, {"speed": 3})
