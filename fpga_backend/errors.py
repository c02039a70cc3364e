"""Exceptions of the offload backend.

* OffloadError             (GreenTrainError)
  * ArtifactError          an artifact is torn, foreign or of another contract (also a ValueError)
  * UnsupportedModelError  a module cannot be compiled; the message names it and the path to it (also a ValueError)
  * BatchError             a batch does not fit what was compiled (also a ValueError)
  * DeviceError            a device cannot be opened, or failed in the middle of a batch
    * DeviceLostError      the device or its worker is gone: nothing more will come from it
    * QueueFullError       no room in the queue within the time given
"""

from greentrain.errors import GreenTrainError


class OffloadError(GreenTrainError):
    """Base class of what goes wrong in the offload backend."""


class ArtifactError(OffloadError, ValueError):
    """An artifact cannot be loaded; the message says what differs from what was expected."""


class UnsupportedModelError(OffloadError, ValueError):
    """A model cannot be compiled; the message names the module, the path to it and what it does."""


class BatchError(OffloadError, ValueError):
    """A batch does not fit the compiled model; the message names sequence, value and bound."""


class DeviceError(OffloadError, RuntimeError):
    """A device cannot be opened, or a batch on it failed."""


class DeviceLostError(DeviceError):
    """The device is gone; every waiting and later batch fails with this."""


class QueueFullError(DeviceError):
    """The device's queue had no room within the time given."""
