"""Tests whose body runs in a child: a signal that it sends to itself never ends pytest's own process."""

import functools
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import ParamSpec

import pytest

Given = ParamSpec("Given")


def in_a_child(test: Callable[Given, None]) -> Callable[Given, None]:
    """Run a test in a fork of pytest's process; it fails where the child does, and where a signal ends the child.

    Args:
        test: Test function. What it changes in memory, pytest does not see.
    """

    @functools.wraps(test)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> None:
        read, write = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads that the child lacks
            child = os.fork()
        if child == 0:
            code = 1
            try:
                if "torch" in sys.modules:  # threads of OpenMP are not there after a fork, and would be waited for
                    sys.modules["torch"].set_num_threads(1)
                test(*args, **kwargs)
                code = 0
            except BaseException:
                os.write(write, traceback.format_exc()[-60_000:].encode())  # less than a pipe holds
            finally:
                os._exit(code)
        os.close(write)
        try:
            with os.fdopen(read, encoding="utf-8") as said:
                told = said.read()
        finally:
            os.kill(child, signal.SIGKILL)  # already over, unless the reading was given up
            status = os.waitpid(child, 0)[1]
        code = os.waitstatus_to_exitcode(status)
        if told or code:
            pytest.fail(told or f"the child ended with {code}", pytrace=False)

    return run
