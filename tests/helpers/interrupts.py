"""Ctrl-C at a chosen place of a call: between any two instructions at which Python looks for signals."""

import dis
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

LOOKS: Final = {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "CALL_FUNCTION", "CALL_METHOD", "JUMP_BACKWARD", "RESUME"}
"""Instructions after which CPython looks whether a signal has come (Python/ceval.c, CHECK_EVAL_BREAKER)."""


def interrupted(call: Callable[[], object], nth: int, *files: str) -> str:
    """Call a function, and raise a KeyboardInterrupt in it at the nth place where a signal may come in.

    Args:
        call: The function.
        nth: Which of the places, from 1.
        files: Ends of the paths of files in whose code it may come.

    Returns:
        Where it came; "" where the call has not so many places.
    """
    before: dict[FrameType, str] = {}
    found: list[str] = []
    places = 0

    def enter(frame: FrameType, event: str, arg: Any) -> Any:
        if found or not frame.f_code.co_filename.endswith(files):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return follow

    def follow(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal places
        if event == "opcode" and not found:
            last, before[frame] = before.get(frame), dis.opname[frame.f_code.co_code[frame.f_lasti]]
            places += last in LOOKS
            if last in LOOKS and places == nth:
                found.append(f"line {frame.f_lineno}, {frame.f_code.co_name}")
                sys.settrace(None)
                raise KeyboardInterrupt
        return follow

    outer = sys.gettrace()
    sys.settrace(enter)
    try:
        call()
    except KeyboardInterrupt:
        assert found
    finally:
        sys.settrace(outer)
    return found[0] if found else ""
