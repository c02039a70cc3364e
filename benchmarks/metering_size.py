"""Case size: what is installed, and which processes run beside the training."""

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import greentrain
from benchmarks.metering_common import (
    CODECARBON,
    GREENTRAIN,
    TOOLS,
    ZEUS,
    Bench,
    Row,
    Value,
    Worker,
    installed,
    run_together,
    values_of,
)

DISTRIBUTIONS = {GREENTRAIN: "greentrain-torch", CODECARBON: CODECARBON, ZEUS: ZEUS}


def size(bench: Bench) -> list[Row]:
    """Installed size of the code, of what comes with it, and helper processes."""
    torch = set(_closure("torch"))
    added = {tool: [name for name in _closure(DISTRIBUTIONS[tool]) if name not in torch] for tool in TOOLS}
    rows = [
        Row(case="size", what="own code", unit="MB", values=values_of(lambda tool: _bytes(DISTRIBUTIONS[tool]) / 1e6)),
        Row(
            case="size",
            what="added to an environment that has torch (ours has codecarbon in it, for its tables)",
            unit="MB",
            values=values_of(lambda tool: sum(map(_bytes, added[tool])) / 1e6),
        ),
        Row(
            case="size",
            what="packages added to an environment that has torch, itself included",
            unit="",
            values=values_of(lambda tool: float(len(added[tool]))),
        ),
    ]
    return rows + _helpers(bench)


def _helpers(bench: Bench) -> list[Row]:
    root = bench.scratch / "powercap"
    for package in (0, 1):
        zone = root / f"intel-rapl:{package}"
        _zone(zone, f"package-{package}")
        _zone(zone / f"intel-rapl:{package}:0", "dram")
    helpers: dict[str, Value] = {}
    sizes: dict[str, Value] = {}
    with bench.driver(1) as driver:
        for tool in filter(installed, TOOLS):
            worker = Worker("rapl", tool, driver, scratch=bench.scratch, root=str(root))
            answer = run_together([worker])[0]
            helpers[tool] = answer.get("error") or float(answer["helpers"])
            sizes[tool] = answer.get("error") or float(answer["helpers_mb"])
    what = "a GPU and a fake RAPL tree of 2 packages with DRAM"
    return [
        Row(
            case="size",
            what=f"helper processes while running, {what}",
            unit="",
            values=values_of(lambda tool: helpers[tool]),
            bar=0.0,
        ),
        Row(case="size", what="their memory (RSS)", unit="MB", values=values_of(lambda tool: sizes[tool])),
    ]


def _zone(path: Path, name: str) -> None:
    path.mkdir(parents=True)
    for file, text in {"name": name, "energy_uj": "1000000", "max_energy_range_uj": "262143328850"}.items():
        (path / file).write_text(text + "\n", encoding="utf-8")


def _closure(name: str) -> Iterator[str]:
    seen, queue = set(), [canonicalize_name(name)]
    while queue:
        one = queue.pop()
        if one in seen:
            continue
        seen.add(one)
        try:
            requires = importlib.metadata.requires(one) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        yield one
        for requirement in map(Requirement, requires):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                queue.append(canonicalize_name(requirement.name))


def _bytes(name: str) -> int:
    if name == DISTRIBUTIONS[GREENTRAIN]:
        root = Path(greentrain.__file__).parent
        folders = [root, root / "callbacks"]  # a link where it is a checkout
        files = {file.resolve() for folder in folders for file in folder.rglob("*") if file.is_file()}
        return sum(file.stat().st_size for file in files if file.suffix != ".pyc")
    files = {Path(str(file.locate())) for file in importlib.metadata.files(name) or ()}
    return sum(file.stat().st_size for file in files if file.suffix != ".pyc" and file.is_file())
