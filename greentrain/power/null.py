"""The meter of a run that measures nothing."""

from collections.abc import Sequence

from greentrain.types import PowerSample, Sensor


class NullMeter:
    """Has no sensors."""

    @property
    def sensors(self) -> Sequence[Sensor]:
        """Nothing."""
        return ()

    def read(self) -> Sequence[PowerSample]:
        """Return nothing."""
        return ()

    def close(self) -> None:
        """Do nothing."""
