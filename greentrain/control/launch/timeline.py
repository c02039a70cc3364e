"""Where the seconds of a resize went, read from the moments that launcher and training have noted.

::

    training  request ──► left ──► (exit)                    up ──► group ──► ready ──► step
    launcher                        ended ──(wait)──► start
              checkpoint  teardown                   process  script, group     first step

The wait was asked for, so it is no cost of the resize.
"""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from greentrain.control.launcher_protocol import EXIT_REQUEUE

FILE: Final = "timeline.jsonl"
NEWEST: Final = 8
"""Resizes that the mean is taken of: what they cost changes with the size of a checkpoint."""
_LAST: Final = ("request", "left", "ended")
"""Of these the last moment of an attempt counts, of the others the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeTiming:
    """One restart that the training asked for, in seconds; None: a moment is missing."""

    attempt: int
    """The new one."""
    ranks: int | None
    """Of the new one."""
    checkpoint_s: float | None
    """From the request to the exit: a checkpoint is written."""
    teardown_s: float | None
    """Until all processes were gone."""
    wait_s: float | None
    """Until the new attempt began."""
    process_s: float | None
    """Until the first line of the script: processes and imports that a fork server has done."""
    group_s: float | None
    """Inside ``init_process_group``."""
    script_s: float | None
    """From the first line of the script to the session's start, without ``group_s``."""
    first_step_s: float | None
    """From there to the end of the first optimizer step."""
    total_s: float | None
    """Without training: all of these but the wait."""


def read(folder: Path) -> list[ResizeTiming]:
    """Return the resizes in a launch folder, oldest first; lines that are torn count as none."""
    moments: dict[int, dict[str, Mapping[str, Any]]] = {}
    for line in _lines(folder / FILE):
        of_attempt = moments.setdefault(line["attempt"], {})
        if line["what"] in _LAST or line["what"] not in of_attempt:
            of_attempt[line["what"]] = line
    return [
        _resize(number, moments[number - 1], moments[number])
        for number in sorted(moments)
        if _asked(moments.get(number - 1, {})) and "start" in moments[number]
    ]


def mean_resize_s(folder: Path) -> float | None:
    """Return the mean seconds without training of the newest resizes; None where none is complete."""
    totals = [resize.total_s for resize in read(folder) if resize.total_s is not None]
    return statistics.fmean(totals[-NEWEST:]) if totals else None


def table(resizes: Sequence[ResizeTiming]) -> str:
    """Return a table for people; empty where there is nothing to show."""
    if not resizes:
        return ""
    head = ("attempt", "ranks", "checkpoint", "teardown", "process", "group", "script", "first step", "total", "waited")
    rows: list[tuple[str, ...]] = [head]
    for r in resizes:
        times = (r.checkpoint_s, r.teardown_s, r.process_s, r.group_s, r.script_s, r.first_step_s, r.total_s, r.wait_s)
        rows.append((str(r.attempt), "?" if r.ranks is None else str(r.ranks), *map(_text, times)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(("restarts that the training asked for, seconds (measured; ? = no moment was noted)", *lines))


def _asked(moments: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether an attempt ended as it had asked to, and not later, by a crash, as nobody wrote a checkpoint."""
    return "request" in moments and ("left" in moments or moments.get("ended", {}).get("code") in (None, EXIT_REQUEUE))


def _resize(number: int, old: Mapping[str, Mapping[str, Any]], new: Mapping[str, Mapping[str, Any]]) -> ResizeTiming:
    def between(first: tuple[Mapping[str, Any], str], then: tuple[Mapping[str, Any], str]) -> float | None:
        a, b = first[0].get(first[1]), then[0].get(then[1])
        return None if a is None or b is None else max(0.0, b["t_unix_s"] - a["t_unix_s"])

    group = new.get("group", {}).get("took_s")
    group_s = float(group) if isinstance(group, (int, float)) else None
    script_s, first_step_s = between((new, "up"), (new, "ready")), between((new, "ready"), (new, "step"))
    if group_s is not None and {"group", "ready"} <= new.keys():
        if new["group"]["t_unix_s"] <= new["ready"]["t_unix_s"]:
            script_s = None if script_s is None else max(0.0, script_s - group_s)
        else:
            first_step_s = None if first_step_s is None else max(0.0, first_step_s - group_s)
    away_s, back_s = between((old, "request"), (old, "ended")), between((new, "start"), (new, "step"))
    ranks = new["start"].get("ranks")
    return ResizeTiming(
        attempt=number,
        ranks=ranks if isinstance(ranks, int) else None,
        checkpoint_s=between((old, "request"), (old, "left")),
        teardown_s=between((old, "left"), (old, "ended")),
        wait_s=between((old, "ended"), (new, "start")),
        process_s=between((new, "start"), (new, "up")),
        group_s=group_s,
        script_s=script_s,
        first_step_s=first_step_s,
        total_s=None if away_s is None or back_s is None else away_s + back_s,
    )


def _lines(path: Path) -> Iterable[Mapping[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        try:
            data = json.loads(line)
            if (
                isinstance(data["attempt"], int)
                and isinstance(data["what"], str)
                and isinstance(data["t_unix_s"], (int, float))
                and math.isfinite(data["t_unix_s"])
            ):
                yield data
        except (ValueError, KeyError, TypeError, OverflowError):
            continue


def _text(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds:.2f}"
