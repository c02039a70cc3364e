"""The live line: energy, power, carbon and tokens per joule, once a second, while training runs in a terminal.

The line stands below the cursor and moves nothing: what the program prints, progress bars that redraw themselves
included, reaches the terminal character by character as it would without us. ``rich.live`` is not used, as it takes
the program's output over: it wraps and colours it and makes a line of every refresh of a progress bar.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from greentrain.ledger.active_run import ActiveRun
from greentrain.types import Provenance
from greentrain.utils import quantities

if TYPE_CHECKING:
    from rich.console import Console

# ECMA-48 and DEC VT100 (https://vt100.net/docs/vt100-ug/chapter3.html, read 2026-11-21): IND goes down a line and
# scrolls at the bottom, RI goes up, DECSC and DECRC save and restore the cursor, EL 2 clears the line.
_BELOW: Final = "\x1bD\x1bM\x1b7\x1bD\r\x1b[2K"
_BACK: Final = "\x1b8"
_FIRST_TO_GO: Final = ("grid", "step", "work", "name", "power", "carbon", "energy")
"""Parts of the line, the least important first: the grid changes once in an hour, programs count their own steps."""
_PLAIN: Final = str.maketrans({"\N{SUBSCRIPT TWO}": "2", "\N{THIN SPACE}": " ", "\N{MICRO SIGN}": "u"})


class LiveLine:
    """One line below the cursor of the terminal.

    Args:
        console: The console on which it is drawn.
        stream: The terminal that the console writes to.
    """

    def __init__(self, console: "Console", stream: TextIO) -> None:
        self._console = console
        self._stream = stream
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._shown = False
        self._through: list[tuple[str, _Through]] = []

    @classmethod
    def open(cls) -> "LiveLine | None":
        """Return a live line, or None where standard output is no terminal."""
        from rich.console import Console

        stream = sys.stdout
        console = Console(file=stream)
        if not stream.isatty() or not console.is_terminal or console.is_jupyter or console.is_dumb_terminal:
            return None
        line = cls(console, stream)
        for name in ("stdout", "stderr"):
            original = getattr(sys, name)
            if original is not None and original.isatty():
                line._through.append((name, _Through(original, line)))
                setattr(sys, name, line._through[-1][1])
        return line

    def update(self, run: ActiveRun) -> None:
        """Show the figures of now, as many as the terminal is wide enough for."""
        markup = live_text(run, self._console.width - 1)
        with self._console.capture() as shown:
            self._console.print(markup, end="", no_wrap=True, highlight=False, emoji=False)
        with self._lock:
            self._write(f"{_BELOW}{_encodable(shown.get(), self._stream)}{_BACK}")
            self._shown = True

    def make_room(self) -> None:
        """Clear the line, because the program goes on to a new one."""
        if self._shown and os.getpid() == self._pid:
            with self._lock:
                self._shown = False
                self._write(f"{_BELOW}{_BACK}")

    def close(self) -> None:
        """Give the terminal back."""
        self.make_room()
        for name, through in self._through:
            if getattr(sys, name) is through:
                setattr(sys, name, through.stream)
        self._through = []

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()


class _Through:
    """A stream that passes everything on unchanged, and clears the live line before a new line."""

    def __init__(self, stream: TextIO, line: LiveLine) -> None:
        self.stream = stream
        self._line = line

    def write(self, text: str) -> int:
        if "\n" in text:
            self._line.make_room()
        return self.stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self._line.make_room()
        self.stream.writelines(lines)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def live_text(run: ActiveRun, columns: int | None = None) -> str:
    """Return the live line of a run, with rich markup. Figures nobody knows are left out.

    Args:
        run: The run.
        columns: The width beyond which the least important parts go, each as a whole. None: all stay.
    """
    from rich.text import Text

    parts = _parts(run)
    for name in _FIRST_TO_GO:
        if columns is None or Text.from_markup(_joined(parts), emoji=False).cell_len <= columns:
            break
        parts.pop(name, None)
    return _joined(parts)


def name_report(path: Path | None) -> None:
    """Say where a report is: on standard error, as what the program prints stays its own; an open bar makes room."""
    if path is not None:
        tqdm = sys.modules.get("tqdm")
        say = print if tqdm is None else tqdm.tqdm.write
        with contextlib.suppress(OSError, ValueError):  # the working folder is gone, or another
            path = path.relative_to(Path.cwd())
        say(f"greentrain: report {path}", file=sys.stderr)


def _parts(run: ActiveRun) -> dict[str, str]:
    from rich.markup import escape

    energy_j, power_w = run.now()
    totals = run.ledger.totals
    parts = {"name": "[bold green]greentrain[/]"}
    known = {sensor.provenance for sensor in run.sensors} - {Provenance.MISSING}
    if known:
        label = "measured" if known == {Provenance.MEASURED} else "modelled" if len(known) == 1 else "part modelled"
        parts["power"] = quantities.power(power_w)
        parts["energy"] = f"{quantities.joules(energy_j)} ({label})"
    else:
        parts["energy"] = "energy missing: no sensor"
    entry = run.last_entry
    if entry is not None and entry.carbon.g_per_kwh is not None:
        parts["carbon"] = quantities.carbon(totals.operational_g)
        parts["grid"] = f"grid {quantities.intensity(entry.carbon.g_per_kwh)} ({escape(entry.carbon.zone)})"
    if totals.tokens and totals.energy_j:
        parts["work"] = f"{quantities.significant(totals.tokens / totals.energy_j)} tokens/J"
    elif totals.samples and totals.energy_j:
        parts["work"] = f"{quantities.significant(totals.samples / totals.energy_j)} samples/J"
    if totals.steps:
        parts["step"] = f"step {quantities.count(totals.steps)}"
    return parts


def _joined(parts: dict[str, str]) -> str:
    return "  ".join(parts.values())


def _encodable(text: str, stream: TextIO) -> str:
    """Return a text that the stream can write: with CO2e and plain spaces where its encoding has no others."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
    return text
