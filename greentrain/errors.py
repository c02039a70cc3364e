"""Every exception that GreenTrain raises on purpose.

All of them are raised before training starts or by tools that read a finished run. While training runs,
faults become labelled gaps and one warning instead (``GreenTrainWarning``).
"""

from typing import Final

_LONGEST: Final = 4000
"""Characters of a message; in it may stand what a file of somebody else holds."""


class GreenTrainError(Exception):
    """Base class of all exceptions raised by GreenTrain."""

    def __str__(self) -> str:
        text = super().__str__()
        more = len(text) - _LONGEST
        return text if more <= 0 else f"{text[:_LONGEST]} ... and {more} more characters"


class ConfigError(GreenTrainError, ValueError):
    """A configuration key or value is wrong; the message names key, value, bound and remedy."""


class MissingExtraError(GreenTrainError, ImportError):
    """An optional dependency is missing; the message names the extra to install."""


class MeterError(GreenTrainError):
    """A power meter that was asked for by name cannot be opened."""


class CarbonSignalError(GreenTrainError):
    """A carbon signal cannot be built from what was given."""


class UnknownZoneError(CarbonSignalError, ValueError):
    """A country, region or zone is not in the tables; the message lists the nearest names."""


class TraceError(CarbonSignalError, ValueError):
    """A carbon-intensity trace is malformed; the message names file, line, value and remedy."""


class RunFolderError(GreenTrainError):
    """A run folder cannot be created, read or written."""


class NewerFormatError(RunFolderError):
    """A newer GreenTrain wrote the run folder; the message says to upgrade."""


class SessionError(GreenTrainError, RuntimeError):
    """A session method is called in an order that makes no sense."""


class GreenTrainWarning(UserWarning):
    """A fault while training runs: it was turned into a labelled gap and training goes on."""
