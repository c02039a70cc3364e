"""torch.compile and gears: one graph a gear, and a warning where dynamo would silently give up.

Dynamo keeps at most ``recompile_limit`` graphs a code object, 8 by default (torch/_dynamo/config.py, torch 2.13): four
gears, two modes and two shapes are more, and what is beyond runs uncompiled without a word.
"""

import logging
import sys
import warnings
import weakref

from greentrain.errors import GreenTrainWarning

LIMIT = 64
"""Graphs a code object may have: 4 gears x {train, eval} x 8 shapes."""
LOGGER = "torch._dynamo.convert_frame"
"""Where dynamo says that it gives up (torch/_dynamo/convert_frame.py, torch 2.13)."""


class RecompileWatch:
    """Raises dynamo's limit once it is loaded, and warns if it is hit all the same.

    Args:
        gears: Number of gears; with one there is nothing to do.
    """

    def __init__(self, gears: int) -> None:
        self._gears = gears
        self._put_back: weakref.finalize[[_Listener, int], RecompileWatch] | None = None

    def prepare(self) -> None:
        """Raise the limit as soon as something has loaded dynamo. Cheap before and after."""
        if self._put_back is not None or self._gears < 2 or "torch._dynamo" not in sys.modules:
            return
        config = sys.modules["torch._dynamo"].config
        listener, limit = _Listener(), config.recompile_limit
        self._put_back = weakref.finalize(self, _put_back, listener, limit)  # a model may be dropped with its gears on
        config.recompile_limit = max(LIMIT, limit)
        logging.getLogger(LOGGER).addHandler(listener)

    def stop(self) -> None:
        """Put everything back. Idempotent."""
        if self._put_back is not None:
            self._put_back()
            self._put_back = None


def _put_back(listener: logging.Handler, limit: int) -> None:
    logging.getLogger(LOGGER).removeHandler(listener)
    if limit < LIMIT:  # otherwise another session has raised it, or the user
        sys.modules["torch._dynamo"].config.recompile_limit = limit


class _Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._told = False

    def emit(self, record: logging.LogRecord) -> None:
        if self._told or "recompile_limit" not in record.getMessage():
            return
        self._told = True
        text = (
            f"GreenTrain: torch.compile hit its limit of {LIMIT} graphs and runs the rest uncompiled; use fewer gears"
            " or input shapes, or raise torch._dynamo.config.recompile_limit; training goes on"
        )
        try:
            warnings.warn(text, GreenTrainWarning, stacklevel=2)
        except GreenTrainWarning:
            logging.getLogger(__name__).warning(text)
