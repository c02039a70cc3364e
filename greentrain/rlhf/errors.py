"""Exceptions of passes.

* OffloadError (greentrain.fpga_backend.errors)
  * PassTimeoutError    a result did not come in time (also a TimeoutError)
  * PassCancelledError  the pass was cancelled before it ran
"""

from greentrain.fpga_backend.errors import OffloadError


class PassTimeoutError(OffloadError, TimeoutError):
    """A result did not come within the time given; the message says from where."""


class PassCancelledError(OffloadError):
    """The pass was cancelled: there is no result."""
