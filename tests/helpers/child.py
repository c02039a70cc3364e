"""Tests whose body runs in a process of its own: a signal that it sends to itself never ends pytest's own process."""

import contextlib
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, ParamSpec

import pytest

Given = ParamSpec("Given")
SH: Final = "/bin/sh"
ROOT: Final = Path(__file__).resolve().parents[2]
_HERE: Final = "PYTEST_TEST_RUNS_HERE"
"""Set in the child: there the body runs."""


def in_a_child(test: Callable[Given, None]) -> Callable[Given, None]:
    """Run a test by a pytest of its own; it fails where that one does, and where a signal ends it.

    A fork of pytest's process would do with less time, but libraries with threads, as torch, may crash in one.

    Args:
        test: Test function. What it changes in memory, this process does not see.
    """

    @functools.wraps(test)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> None:
        if _HERE in os.environ:
            test(*args, **kwargs)
            return
        name = os.environ["PYTEST_CURRENT_TEST"].removesuffix(" (call)")
        environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_XDIST")}
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={folder}/t", name]
            done = subprocess.run(
                command, cwd=ROOT, env=environ | {_HERE: "1"}, capture_output=True, text=True, timeout=240, check=False
            )
        if done.returncode or "1 passed" not in done.stdout:
            pytest.fail(f"the child ended with {done.returncode}\n{done.stdout[-20_000:]}{done.stderr}", pytrace=False)

    return run


@contextlib.contextmanager
def running(script: str, environ: Mapping[str, str] | None = None) -> Iterator["subprocess.Popen[str]"]:
    """Run a shell that says a line when it is ready; it is killed at the end."""
    with subprocess.Popen([SH, "-c", script], env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()
