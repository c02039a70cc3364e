"""The meter of a device whose joules are somewhere else, or nowhere."""

from collections.abc import Sequence

from greentrain.types import PowerSample, Sensor


class Unmetered:
    """Has no sensors: what is not known is not booked, and what the ledger has already is not booked twice."""

    @property
    def sensors(self) -> Sequence[Sensor]:
        """Nothing."""
        return ()

    def read(self) -> Sequence[PowerSample]:
        """Return nothing."""
        return ()

    def close(self) -> None:
        """Do nothing."""
