"""Which tests a run takes: the fast tier, which every change has to pass, or with ``--long`` all of them.

A test marked ``long`` is left out of the fast tier: its subject is covered there by a shorter one. Of a test marked
``sweep`` the fast tier takes about a fifth of the cases. A test marked ``gpu`` is taken where an NVIDIA GPU is, or
where ``-m gpu`` asks for it; a case that reads a trace of Electricity Maps where ``--traces`` says where it is
(benchmarks/data/SOURCES.md). A test named with ``::`` on the command line is taken whatever its tier.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

EVERY: Final = 5
"""Of how many cases of a sweep the fast tier takes one."""
_DRIVERS: Final = ("/dev/nvidiactl", "/dev/dxg")
"""Device files of NVIDIA's driver: on Linux, and in Windows' subsystem for Linux."""


def add_options(parser: pytest.Parser) -> None:
    """Let pytest know ``--long`` and ``--traces``."""
    parser.addoption("--long", action="store_true", help="run the long tier, too: every test and every case of a sweep")
    parser.addoption("--traces", type=Path, help="folder of grid traces, those of Electricity Maps among them")


def wants_gpu(config: pytest.Config) -> bool:
    """Return whether tests that need a GPU are to be collected."""
    return "gpu" in config.option.markexpr or any(Path(driver).exists() for driver in _DRIVERS)


def spread(cases: Sequence[Mapping[str, int]], every: int = EVERY) -> set[int]:
    """Return which cases of a sweep stand for all of them.

    Args:
        cases: For each case the index of its value on each axis of the sweep.
        every: Of how many cases one is taken. They lie evenly; where a sweep has more than one axis, cases are added
            until each value of each axis is among them.

    Returns:
        Indices into the cases.
    """
    taken = set(range(min(every // 2, len(cases) - 1), len(cases), every))
    seen = {value for index in taken for value in cases[index].items()}
    for index, case in enumerate(cases):
        if len(case) > 1 and not seen.issuperset(case.items()):
            taken.add(index)
            seen.update(case.items())
    return taken


def _reads_another_trace(item: pytest.Item) -> bool:
    """Return whether a case names a trace of Electricity Maps, which the repository does not hold."""
    values = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    return any(isinstance(value, str) and value.endswith("_em") for value in values)


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take tests that are not of this run out of a list, and tell pytest so."""
    out: set[pytest.Item] = set()
    if config.getoption("traces") is None:
        out.update(item for item in items if _reads_another_trace(item))
    named = any("::" in word for word in config.args)
    if not named and not wants_gpu(config):
        out.update(item for item in items if item.get_closest_marker("gpu"))
    if not named and not config.getoption("long"):
        out.update(item for item in items if item.get_closest_marker("long"))
        sweeps: dict[str, list[pytest.Function]] = {}
        for item in items:
            if isinstance(item, pytest.Function) and item.get_closest_marker("sweep"):
                sweeps.setdefault(item.nodeid.partition("[")[0], []).append(item)
        for sweep in sweeps.values():
            taken = spread([dict(item.callspec.indices) for item in sweep])
            out.update(item for index, item in enumerate(sweep) if index not in taken)
    if out:
        config.hook.pytest_deselected(items=[item for item in items if item in out])
        items[:] = [item for item in items if item not in out]
