"""Change the code in small ways, one at a time, and see whether the tests notice.

    python tools/mutants.py                                 # a sample of the rooms that decide what is booked and done
    python tools/mutants.py greentrain/power --each 20      # 20 mutants of each file of a room
    python tools/mutants.py greentrain/power/rapl.py --each 0       # every mutant of one file

A mutant is one change: a comparison moved over its bound or turned round, a sum made a difference, a condition negated,
a number changed, a call or an addition left out. The tests of its file are those of ``tests/<room>`` that import it,
and of them those that come by the changed line, the quickest first; it is killed when one of them fails or takes five
times as long as without it. Each runs in a copy of the working tree, so nothing here is touched, as a fork of a process
that has loaded PyTorch and pytest already. What survives is printed as file, line and change: a test that is missing,
or a change that makes no difference (a search order, a size of a buffer), which a person has to judge.
"""

import argparse
import ast
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HEART = (
    *("greentrain/power", "greentrain/ledger", "greentrain/control/carbon_budget.py"),
    *("greentrain/control/coordination.py", "greentrain/control/plan", "greentrain/control/precision/gearbox.py"),
    *("greentrain/policy/decision_kernel.py", "greentrain/carbon/series.py", "optim", "callbacks"),
)
"""What is looked at where nothing is named: where joules, grams, tokens and decisions come from."""
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.And: ast.Or,
    ast.Or: ast.And,
}  # fmt: skip
TURNED: dict[type[ast.AST], type[ast.AST]] = {ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
ELSEWHERE = {"greentrain/ledger/active_run.py": "tests/session"}
"""Files that another room's tests drive as well."""
TALK = re.compile(r"(log|logger|warnings|_?warn|_?event|_?say|_on_event|event)\b")
"""Calls that tell a person something: what they say is not looked at."""


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    path: Path
    line: int
    before: str
    after: str
    source: str
    """The whole file with the change."""
    lines: range
    """Lines of the statement up to the end of what is changed."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before}  ->  {self.after}"


def _changes(node: ast.AST) -> Iterator[str]:
    """Yield what could stand in the place of a node."""
    new: ast.AST
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            for swaps in (SWAPS, TURNED):
                if type(op) in swaps:
                    yield f"({ast.unparse(ast.Compare(left, [swaps[type(op)]()], [right]))})"  # type: ignore[list-item]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in SWAPS:
            new = ast.BinOp(left, SWAPS[type(op)](), right)  # type: ignore[arg-type]
            yield f"({ast.unparse(new)})"
        case ast.BoolOp(op=op, values=values):
            new = ast.BoolOp(SWAPS[type(op)](), values)  # type: ignore[arg-type]
            yield f"({ast.unparse(new)})"
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield f"({ast.unparse(operand)})"
        case ast.Constant(value=bool(value)):
            yield repr(not value)
        case ast.Constant(value=int(value)):
            yield repr(value + 1)
        case ast.Constant(value=float(value)):
            yield repr(value * 10 if value else 1.0)
        case ast.Call(func=ast.Name(id=name)) if name in NAMES:
            yield ast.unparse(node).replace(name, NAMES[name], 1)
        case ast.AugAssign() | ast.Expr(value=ast.Call()):
            yield "pass"
        case ast.Continue() | ast.Break():
            yield "pass"
        case ast.IfExp(test=test, body=body, orelse=other):
            yield f"({ast.unparse(ast.IfExp(test, other, body))})"


def _nodes(node: ast.AST, statement: int = 1) -> Iterator[tuple[ast.AST, int]]:
    """Yield the nodes below one that do something, with the first line of their statement.

    No annotation, default text, message or import for checkers.
    """
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_comment", "format_spec", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr | ast.Raise):
                continue
            if isinstance(child, ast.Expr | ast.Call) and TALK.match(ast.unparse(child).rpartition("self.")[2]):
                continue
            if isinstance(child, ast.UnaryOp) and isinstance(child.operand, ast.Constant):
                continue  # -1 as a place in a list, or for "none"
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.keyword) and child.arg == "strict":
                continue  # of zip, whose parts are of one length anyway
            first = child.lineno if isinstance(child, ast.stmt) else statement
            yield child, first
            yield from _nodes(child, first)


def mutants(path: Path) -> list[Mutant]:
    """Return every mutant of a file."""
    text = (ROOT / path).read_text(encoding="utf-8")
    raw, starts, found = text.encode(), [0], []
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    for node, statement in _nodes(ast.parse(text)):
        if not isinstance(node, ast.expr | ast.stmt):
            continue
        first = starts[node.lineno - 1] + node.col_offset
        last = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        for after in _changes(node):
            source = (raw[:first] + after.encode() + raw[last:]).decode()
            before = " ".join(raw[first:last].decode().split())
            lines = range(statement, (node.end_lineno or node.lineno) + 1)
            found.append(Mutant(path, node.lineno, before[:90], after[:90], source, lines))
    return found


def tests_of(path: Path) -> list[str]:
    """Return the test files of a source file: those of its room that name its module, the one of its name first."""
    module = ".".join(path.with_suffix("").parts)
    if not module.startswith("greentrain."):
        module = f"greentrain.{module}"
    room = Path("tests", *module.split(".")[1:-1])
    folder = next(place for place in (room, *room.parents) if (ROOT / place).is_dir())
    own = folder / f"test_{path.stem}.py"
    named = re.compile(rf"{re.escape(module)}\b|from {re.escape(module.rpartition('.')[0])} import .*\b{path.stem}\b")
    files = sorted((ROOT / folder).rglob("test_*.py")) if folder != Path("tests") else []
    others = [file.relative_to(ROOT) for file in files if named.search(file.read_text(encoding="utf-8"))]
    others += [Path(ELSEWHERE[str(path)])] if str(path) in ELSEWHERE else []
    return [str(file) for file in dict.fromkeys([*([own] if (ROOT / own).is_file() else []), *others])]


def _copy(folder: Path) -> Path:
    """Return a copy of the working tree, as its tests need it."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, names.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


class Lines:
    """A plugin of pytest that writes down which lines of a file each test comes by, and how long it takes.

    Args:
        path: The file.
        out: Where to write it: JSON of seconds by test, and tests by line; "" is what no test, but their loading runs.
    """

    def __init__(self, path: str, out: str) -> None:
        self._path, self._out = path, out
        self._test, self._seconds = "", defaultdict[str, float](float)
        self._seen = defaultdict[int, set[str]](set)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Begin a test."""
        self._test = nodeid

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note how long a part of a test took."""
        self._seconds[report.nodeid] += report.duration
        if report.skipped:
            self._seconds.pop(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """End a test."""
        self._test = ""

    def pytest_sessionfinish(self) -> None:
        """Write what was seen."""
        sys.settrace(None)
        lines = {line: sorted(tests) for line, tests in self._seen.items()}
        Path(self._out).write_text(json.dumps({"seconds": self._seconds, "lines": lines}), encoding="utf-8")

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        """Follow the frames of the file."""
        if frame.f_code.co_filename != self._path:
            return None
        self._seen[frame.f_lineno].add(self._test)
        return self.trace


def serve() -> None:
    """Run tests on demand, each time in a fork of this process: pytest and PyTorch are loaded once."""
    import numpy  # noqa: F401
    import pytest
    import torch  # noqa: F401

    for plugin in entry_points(group="pytest11"):  # half of what a run of one small test takes
        with contextlib.suppress(Exception):
            plugin.load()
    early = "ignore::pytest.PytestAssertRewriteWarning"
    answers = os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_RDWR)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(BaseException):
                os.setsid()
                for fd in range(3):
                    os.dup2(null, fd)
                plugins: list[object] = []
                sys.dont_write_bytecode = "trace" not in asked  # two mutants of a second look alike to Python
                if "trace" in asked:
                    lines = Lines(*asked["trace"])
                    plugins.append(lines)
                    threading.settrace(lines.trace)
                    sys.settrace(lines.trace)
                words = ["-q", "-p", "no:cacheprovider", "--no-header", "-W", early, *asked["words"]]
                code = int(pytest.main(words, plugins))
            os._exit(code)
        end_s, status = time.monotonic() + asked["limit_s"], (0, 0)
        while status[0] == 0 and time.monotonic() < end_s:
            status = os.waitpid(child, os.WNOHANG)
            time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)  # what it has left, too
        if status[0] == 0:
            os.waitpid(child, 0)
        print(json.dumps(status[0] != 0 and os.waitstatus_to_exitcode(status[1]) == 0), file=answers, flush=True)


class Tree:
    """A copy of the working tree, and the process that runs its tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = _copy(folder)
        environ = os.environ | {"PYTHONPATH": str(folder), "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / ".hypothesis")}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--serve"],
            cwd=folder, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def passes(self, words: Sequence[str], limit_s: float, **more: object) -> bool:
        """Return whether tests pass in time."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps({"words": list(words), "limit_s": limit_s, **more}), file=self._process.stdin, flush=True)
        return bool(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def _chosen(seen: Mapping[str, Any], mutant: Mutant) -> tuple[list[str], float]:
    """Return the tests that may notice a mutant, the quickest first, and how long they take (s)."""
    seconds: Mapping[str, float] = seen["seconds"]
    by_line = [seen["lines"].get(str(line), ()) for line in mutant.lines]
    tests = {test for tests in by_line for test in tests if test in seconds}
    if not tests or any("" in line for line in by_line):  # what runs as it is loaded, or in another process alone
        tests = set(seconds)
    return sorted(tests, key=seconds.__getitem__), sum(seconds[test] for test in tests)


def survivors(paths: Sequence[Path], each: int, seed: int, jobs: int) -> dict[Path, tuple[int, list[Mutant]]]:
    """Try mutants of files and return for each file how many were tried, and which survived.

    Args:
        paths: Files, relative to the repository.
        each: Most mutants of a file; 0: all.
        seed: Seed of the choice.
        jobs: How many are tried at a time.

    Raises:
        SystemExit: The tests of a file fail without a change, or there are none.
    """
    out: dict[Path, tuple[int, list[Mutant]]] = {}
    trees: SimpleQueue[Tree] = SimpleQueue()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants"))
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        for number in range(jobs):
            tree = Tree(Path(folder, str(number)))
            stack.callback(tree.close)
            trees.put(tree)

        def survives(mutant: Mutant, seen: Mapping[str, Any]) -> bool:
            tree = trees.get()
            file = tree.folder / mutant.path
            tests, seconds = _chosen(seen, mutant)
            try:
                file.write_text(mutant.source, encoding="utf-8")
                return tree.passes(["-x", *tests], 20.0 + 5.0 * seconds)
            finally:
                shutil.copy2(ROOT / mutant.path, file)
                trees.put(tree)

        for path in paths:
            chosen, tests = mutants(path), tests_of(path)
            if each and len(chosen) > each:
                chosen = random.Random(f"{seed} {path}").sample(chosen, each)
            if not chosen:
                continue
            tree, lines = trees.get(), Path(folder, "lines.json")
            # once without a look at the lines: some tests count what they call, or what it costs
            if not tests or not tree.passes(tests, 900.0):
                raise SystemExit(f"{path}: its tests fail without any change, or there are none: {' '.join(tests)}")
            tree.passes(tests, 1800.0, trace=[str(tree.folder / path), str(lines)])
            trees.put(tree)
            seen = json.loads(lines.read_text(encoding="utf-8"))
            alive = list(pool.map(lambda mutant: survives(mutant, seen), chosen))  # noqa: B023
            out[path] = len(chosen), [mutant for mutant, lives in zip(chosen, alive, strict=True) if lives]
            tried, left = out[path]
            print(f"{path}: {tried - len(left)} of {tried} killed", *map(str, left), sep="\n    ", flush=True)
    return out


def main() -> None:
    """Print survivors and a table of the shares killed; end with 1 where a room is under the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", default=HEART, help="files or folders of the source")
    parser.add_argument("--each", type=int, default=8, help="most mutants of a file; 0: all (default 8)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--bar", type=float, default=0.85, help="least share killed in each room")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve()
        return
    files: list[Path] = []
    for name in args.paths:
        place = ROOT / name
        found = sorted(place.rglob("*.py")) if place.is_dir() else [place]
        files += [file.relative_to(ROOT) for file in found if file.name != "__init__.py"]
    rooms: dict[str, list[int]] = {}
    for path, (tried, left) in survivors(files, args.each, args.seed, args.jobs).items():
        of = rooms.setdefault(str(path.parent), [0, 0])
        of[0] += tried
        of[1] += tried - len(left)
    print("\n| room | mutants | killed | share |\n|---|---:|---:|---:|")
    for room, (tried, killed) in sorted(rooms.items()):
        print(f"| {room} | {tried} | {killed} | {killed / tried:.0%} |")
    sys.exit(any(killed < args.bar * tried for tried, killed in rooms.values()))


if __name__ == "__main__":
    main()
