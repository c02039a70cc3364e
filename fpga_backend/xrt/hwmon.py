"""The card's power in sysfs, where XRT's driver puts it for everybody to read.

Files of ``hwmon_sdm.c`` and ``xmc.c`` (Xilinx/XRT at 963c58e, 2026-11-21): ``power1_input`` and ``power1_label``, and
from ``hwmon_sdm`` also ``power1_unitm``, the power of ten by which the number is multiplied to give watts; without it
the number counts microwatts, as hwmon does (kernel.org, hwmon sysfs interface).
"""

from pathlib import Path

from greentrain.errors import MeterError

MICROWATTS_PER_W = 1_000_000.0
UNKNOWN = 2**32 - 1
"""``sensor.cpp`` takes the largest 32-bit number for no value."""
ABSENT = ("Sensor Not Present", "Data Not Available")
"""Texts of ``power1_status`` with which the number means nothing: ``hwmon_sdm.c``."""


class Hwmon:
    """Reads the power of a card.

    Args:
        function: The card's folder on the PCI bus.

    Raises:
        MeterError: There is no power file there.
    """

    method = "XRT driver, hwmon power"

    def __init__(self, function: Path) -> None:
        found = sorted(function.glob("hwmon/hwmon*/power*_input"))
        if not found:
            raise MeterError(f"{function}/hwmon has no power*_input: the driver shows no power of this card")
        named = [path for path in found if _text(path, "label").lower() == "total power"]
        self._path = (named or found)[0]

    def read_w(self) -> float:
        """Return the watts.

        Raises:
            MeterError: The sensor gives no value.
        """
        status = _text(self._path, "status")
        if status in ABSENT:
            raise MeterError(f"{self._path}: {status}")
        try:
            value = int(self._path.read_text(encoding="ascii"))
            exponent = _text(self._path, "unitm")
            scale = 10.0 ** int(exponent) if exponent else 1 / MICROWATTS_PER_W
        except (OSError, ValueError) as error:
            raise MeterError(f"{self._path} cannot be read: {error}") from error
        if value == UNKNOWN or value < 0:
            raise MeterError(f"{self._path} says {value}, which stands for no value")
        return value * scale


def _text(path: Path, what: str) -> str:
    try:
        return path.with_name(path.name.replace("_input", f"_{what}")).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
