"""A run of the tests always ends: a worker that dies and a test that hangs are told, and the run is red."""

import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.helpers.child import in_a_child
from tests.helpers.tiers import spread

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]["ini_options"]
PASSES = "import time\ndef test_it():\n    time.sleep(0.2)\ndef test_again():\n    pass\n"


def run(folder: Path, *words: str, **files: str) -> "subprocess.CompletedProcess[str]":
    """Run files of tests with the repository's options, two at a time as .ci/test does; four minutes at most."""
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *OPTIONS["addopts"], *words, str(folder)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(command, capture_output=True, text=True, timeout=240.0, cwd=folder, env=clean)


@pytest.mark.sweep
@pytest.mark.parametrize("dies", ["os._exit(3)", "os.kill(os.getpid(), signal.SIGTERM)"])
def test_a_worker_that_dies_at_the_end_makes_the_run_red(tmp_path: Path, dies: str) -> None:
    last = f"import os, signal\ndef test_last():\n    {dies}\ndef test_after():\n    pass\n"
    files = {"a": PASSES, "b": PASSES, "c": PASSES, "d": last}
    done = run(tmp_path, "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", **files)
    assert done.returncode == 1, done.stdout
    assert "test_d.py::test_last" in done.stdout and "crashed while running" in done.stdout


def test_a_test_that_hangs_fails_with_the_stack_of_where_it_is(tmp_path: Path) -> None:
    waits = (
        "import threading\ndef waits_for_ever():\n    threading.Event().wait()\ndef test_it():\n    waits_for_ever()\n"
    )
    done = run(tmp_path, "--timeout=1", a=waits, b=PASSES)
    assert done.returncode == 1 and "2 passed" in done.stdout
    assert "Timeout (>1.0s)" in done.stdout and "threading.Event().wait()" in done.stdout
    assert OPTIONS["timeout"] <= 300


@in_a_child
def test_a_child_may_signal_itself() -> None:
    heard = []
    signal.signal(signal.SIGTERM, lambda *_: heard.append("it"))
    signal.raise_signal(signal.SIGTERM)
    assert heard == ["it"]


@pytest.mark.parametrize(
    ("body", "told"),
    [(lambda: signal.raise_signal(signal.SIGKILL), "ended with -9"), (lambda: time.sleep(-1.0), "ValueError")],
)
def test_a_child_that_dies_or_fails_is_told(body: object, told: str) -> None:
    with pytest.raises(pytest.fail.Exception, match=told):
        in_a_child(body)()  # type: ignore[arg-type]


@pytest.mark.parametrize("sizes", [(144,), (100,), (7,), (1,), (2, 3, 4, 6), (5, 10), (4, 25)])
def test_a_fifth_of_a_sweep_lies_evenly_and_has_each_value(sizes: Sequence[int]) -> None:
    cases: list[dict[str, int]] = [{}]
    for axis, size in enumerate(sizes):
        cases = [{**case, str(axis): value} for case in cases for value in range(size)]
    taken = spread(cases)
    assert len(cases) // 5 <= len(taken) <= len(cases) / 5 + sum(sizes) * (len(sizes) > 1) + 1 and taken
    assert max(b - a for a, b in zip(sorted(taken), [*sorted(taken)[1:], len(cases)], strict=True)) <= 5
    if len(sizes) > 1:
        for axis, size in enumerate(sizes):
            assert {cases[index][str(axis)] for index in taken} == set(range(size))
