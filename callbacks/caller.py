"""The object that calls us, for frameworks that do not hand it to their callbacks."""

import sys
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


def calling(kind: type[T]) -> T | None:
    """Return the nearest ``self`` of a class among the callers, or None."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, kind):
            return found
        frame = frame.f_back
    return None
