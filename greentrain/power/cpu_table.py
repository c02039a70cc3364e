"""Thermal design power of a CPU by its name, from the table that codecarbon ships.

The file ``data/hardware/cpu_power.csv`` of codecarbon (MIT; 4,918 parts in 3.3.2) is found and read without
importing codecarbon or pandas.
"""

import contextlib
import csv
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

W_PER_THREAD: Final = 4.0
"""For parts that no table knows: codecarbon's ``DEFAULT_POWER_PER_CORE`` (codecarbon/core/cpu.py 3.3.2, used per
thread; read 2026-11-21)."""
UNCERTAINTY_TABLE: Final = 0.3
"""Our judgement, nobody publishes one: packages draw 60 to 100 % of their TDP under a full load, 10 to 40 % idle."""
UNCERTAINTY_SHARE: Final = 0.5
"""Our judgement: the same, and the share of a package that a virtual machine holds is a guess."""
UNCERTAINTY_UNKNOWN: Final = 0.7
"""Our judgement: parts of the table range from 1.4 to 8 W a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuPower:
    """The full-load power of the CPUs that this machine sees."""

    model: str
    """Name as in /proc/cpuinfo."""
    tdp_w: float
    """Thermal design power of everything visible (W)."""
    uncertainty: float
    note: str
    """Where the number comes from."""


def cpu_power(cpuinfo: str, threads: int, *, tdp_w: float | None = None) -> CpuPower:
    """Return the thermal design power of a machine.

    Args:
        cpuinfo: Text of /proc/cpuinfo.
        threads: Hardware threads online.
        tdp_w: Known TDP of all packages (W), to override the table.
    """
    model = _field(cpuinfo, "model name") or _field(cpuinfo, "Model") or "unknown CPU"
    if tdp_w is not None:
        return CpuPower(
            model=model, tdp_w=tdp_w, uncertainty=UNCERTAINTY_TABLE, note=f"TDP {tdp_w:g} W from power.cpu_tdp_w"
        )
    found = find_tdp(model)
    fallback_w = W_PER_THREAD * threads
    if found is None:
        note = (
            f"{model!r} is not in codecarbon's CPU table: {W_PER_THREAD:g} W for each of {threads} threads assumed; set"
            " power.cpu_tdp_w"
        )
        return CpuPower(model=model, tdp_w=fallback_w, uncertainty=UNCERTAINTY_UNKNOWN, note=note)
    name, part_w = found
    source = f"TDP {part_w:g} W of {name} (codecarbon's CPU table)"
    if "hypervisor" not in _field(cpuinfo, "flags").split():
        packages = max(1, len(set(re.findall(r"^physical id\s*:\s*(\d+)", cpuinfo, re.MULTILINE))))
        note = f"{source}, {packages} package{'s' if packages > 1 else ''}"
        return CpuPower(model=model, tdp_w=part_w * packages, uncertainty=UNCERTAINTY_TABLE, note=note)
    cores = re.search(r"(\d+)-Core", model)
    if cores:
        part_threads = 2 * int(cores.group(1))
        share_w = part_w * threads / part_threads
        note = f"{source}; this virtual machine sees {threads} of about {part_threads} threads a package"
    else:
        share_w = min(part_w, fallback_w)
        note = f"{source}; this virtual machine sees {threads} threads of it: {share_w:g} W assumed"
    return CpuPower(model=model, tdp_w=share_w, uncertainty=UNCERTAINTY_SHARE, note=f"{note}; set power.cpu_tdp_w")


def find_tdp(model: str, table: Mapping[str, float] | None = None) -> tuple[str, float] | None:
    """Return the table's name and TDP (W) of a CPU, or None if the table does not know it.

    An entry matches if all its words occur in the model name; the entry with most words wins, and none does if two
    such entries disagree. An entry without a generation (``E5-2640``) never matches a model with one (``v4``).

    Args:
        model: Name as in /proc/cpuinfo.
        table: TDP (W) by part name; None reads codecarbon's.
    """
    table = read_table() if table is None else table
    wanted = _words(model)
    generation = {word for word in wanted if re.fullmatch(r"v\d", word)}
    best: list[tuple[str, float]] = []
    most = 0
    for name, tdp_w in table.items():
        words = _words(name)
        if not words <= wanted or not generation <= words or not any(c.isdigit() for w in words for c in w):
            continue
        if len(words) > most:
            best, most = [], len(words)
        if len(words) == most:
            best.append((name, tdp_w))
    return best[0] if len({tdp_w for _, tdp_w in best}) == 1 else None


def read_table() -> dict[str, float]:
    """Return TDP (W) by part name; empty where codecarbon is not installed or moved its table."""
    spec = importlib.util.find_spec("codecarbon")
    table: dict[str, float] = {}
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "data" / "hardware" / "cpu_power.csv"
        with contextlib.suppress(OSError), path.open(encoding="utf-8", newline="") as file:
            for row in csv.reader(file):
                with contextlib.suppress(ValueError, IndexError):  # the header and four rows such as "27.29.5"
                    table[row[0]] = float(row[1])
    return table


def _words(name: str) -> frozenset[str]:
    text = re.sub(r"\((r|tm)\)|@.*", "", name.lower())
    text = re.sub(r"\b(cpu|processor|\d+-core)\b", " ", text)
    return frozenset(re.findall(r"[a-z0-9][a-z0-9.+\-]*", text))


def _field(cpuinfo: str, key: str) -> str:
    match = re.search(rf"^{key}\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    return match.group(1).strip() if match else ""
