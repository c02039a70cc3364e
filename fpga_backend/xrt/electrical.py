"""XRT's electrical report: JSON from ``xrt-smi`` (once ``xbutil``), or from pyxrt's ``get_info``.

Fields of ``src/runtime_src/core/common/sensor.cpp`` of Xilinx/XRT at 963c58e, 2026-11-21: ``power_consumption_watts``
is a string, "N/A" where the card does not say.
"""

import json
import math
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from greentrain.errors import MeterError

INPUTS = ("12v_pex", "12v_aux", "3v3_pex")
"""Rails that enter the card; their products are the board's power in the driver too (``xmc.c``)."""
TIMEOUT_S = 10.0
TOOLS = ("xrt-smi", "xbutil")


def power_w(text: str) -> float:
    """Return the watts of an electrical report.

    Raises:
        MeterError: It is no report, or says "N/A" and has no rails to compute from.
    """
    try:
        report = next(_reports(json.loads(text)), None)
    except ValueError as error:
        raise MeterError(f"the electrical report is no JSON ({error})") from error
    if report is None:
        raise MeterError("the electrical report has no power_consumption_watts")
    said = str(report["power_consumption_watts"])
    watts = _number(said)
    if watts is None:
        watts = _rails_w(report.get("power_rails"))
    if watts is None:
        raise MeterError(f"the card reports {said!r} for its power, and no voltage and current of its inputs")
    return watts


class XrtSmi:
    """Asks AMD's tool, once a reading: a process each, so not more than once in a second.

    Args:
        address: PCI address of the card.
        tool: Path of the tool; None: looked for on PATH.

    Raises:
        MeterError: The tool is not there.
    """

    def __init__(self, address: str, tool: str | None = None) -> None:
        found = tool or next((path for name in TOOLS if (path := shutil.which(name))), None)
        if found is None:
            raise MeterError(f"none of {', '.join(TOOLS)} is on PATH: source the setup.sh of XRT")
        self._tool, self._address = found, address
        self.method = f"{Path(found).name} examine -r electrical"

    def read_w(self) -> float:
        """Return the watts.

        Raises:
            MeterError: The tool fails, hangs, or the card does not say.
        """
        with tempfile.TemporaryDirectory(prefix="greentrain-") as folder:
            report = Path(folder, "electrical.json")
            command = [self._tool, "examine", "-d", self._address, "-r", "electrical", "-f", "JSON", "-o", str(report)]
            try:
                subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)
                text = report.read_text(encoding="utf-8")
            except (OSError, subprocess.SubprocessError) as error:
                raise MeterError(f"{self._tool} gives no electrical report: {error}") from error
        return power_w(text)


def _reports(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the reports within a report of the tool, which wraps them by device."""
    if isinstance(value, dict):
        if "power_consumption_watts" in value:
            yield value
        for part in value.values():
            yield from _reports(part)
    elif isinstance(value, list):
        for part in value:
            yield from _reports(part)


def _rails_w(rails: Any) -> float | None:
    """Return volts times amps of the inputs; None unless each that is present has both, and 12 V is among them."""
    total_w, seen = 0.0, False
    for rail in rails if isinstance(rails, list) else ():
        if not isinstance(rail, dict) or rail.get("id") not in INPUTS:
            continue
        volts, amps = (_present(rail.get(what), unit) for what, unit in (("voltage", "volts"), ("current", "amps")))
        if volts is None and amps is None:
            continue
        if volts is None or amps is None:
            return None
        total_w += volts * amps
        seen = seen or rail["id"] != "3v3_pex"
    return total_w if seen else None


def _present(part: Any, unit: str) -> float | None:
    if not isinstance(part, dict) or str(part.get("is_present")).lower() != "true":
        return None
    return _number(str(part.get(unit)))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
