"""torch.compile and gears: one graph a gear, and a warning where dynamo would silently give up.

Dynamo keeps at most ``recompile_limit`` graphs a code object, 8 by default (torch/_dynamo/config.py, torch 2.13): four
gears, two modes and two shapes are more, and what is beyond runs uncompiled without a word.
"""

import logging
import sys
import warnings

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
        self._limit: int | None = None
        self._handler: _Listener | None = None

    def prepare(self) -> None:
        """Raise the limit as soon as something has loaded dynamo. Cheap before and after."""
        if self._handler is not None or self._gears < 2 or "torch._dynamo" not in sys.modules:
            return
        config = sys.modules["torch._dynamo"].config
        self._limit = config.recompile_limit
        config.recompile_limit = max(LIMIT, self._limit)
        self._handler = _Listener()
        logging.getLogger(LOGGER).addHandler(self._handler)

    def stop(self) -> None:
        """Put everything back. Idempotent."""
        if self._handler is not None:
            logging.getLogger(LOGGER).removeHandler(self._handler)
            self._handler = None
            if self._limit is not None and self._limit < LIMIT:  # otherwise another session has raised it, or the user
                sys.modules["torch._dynamo"].config.recompile_limit = self._limit


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
