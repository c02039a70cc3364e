"""Hygiene for every test: no thread, child process, environment variable or temporary file is left behind."""

import contextlib
import gc
import itertools
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import hypothesis
import psutil
import pytest

from benchmarks import held_traces
from tests.helpers import tiers

# A busy machine is no bug, and a red run is of its change: the same examples each time, as with the seed of chaos.
_ANY: Final = os.environ.get("GREENTRAIN_CHAOS_SEED") == "any"
hypothesis.settings.register_profile("greentrain", deadline=None, derandomize=not _ANY)
hypothesis.settings.load_profile("greentrain")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let pytest know what tests/helpers/tiers.py reads."""
    tiers.add_options(parser)


_SCRATCH: Final = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Give this process, its workers and all children a temporary folder of their own, whose name is short for sockets.

    What a test's own folder is made of (``tmp_path``) stays where pytest keeps that of its last three runs, and what
    torch compiled in ``build``.
    """
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(config.rootpath / "build" / "inductor"))
    config.stash[_SCRATCH] = Path(tempfile.mkdtemp(prefix="gt"))
    config.stash[_SCRATCH].chmod(0o1777)  # as /tmp: munged refuses less, and tests have children of other users
    os.environ["TMPDIR"] = tempfile.tempdir = str(config.stash[_SCRATCH])


def pytest_collection() -> None:
    """Walk over no library's objects while test files import them: fifteen times most of a second."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Walk over what tests make from now on, and not behind each training over all that was imported."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the temporary folder, and let the interpreter take down at its end what was imported."""
    gc.unfreeze()  # some libraries call what is not taken down a leak
    scratch = config.stash[_SCRATCH]
    os.environ["TMPDIR"] = tempfile.tempdir = str(scratch.parent)
    shutil.rmtree(scratch, ignore_errors=True)  # a child that was killed left something, or still writes


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of this run's tier."""
    tiers.select(config, items)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file whose tests all need a GPU where none is wanted."""
    return True if collection_path.name.endswith("_gpu.py") and not tiers.wants_gpu(config) else None


# Threads that libraries keep for the life of the process, not ours: torch's inductor and tqdm's monitor.
_FOREIGN_THREADS = ("tqdm", "TQDM", "pydevd", "Dummy", "QueueFeeder", "ThreadPool", "asyncio")


@pytest.fixture(scope="session")
def claim_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Names of folders that nobody had; mktemp would look through those of all tests before each."""
    folder = tmp_path_factory.mktemp("claims")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def no_leaks(claim_folders: Iterator[Path], pytestconfig: pytest.Config) -> Iterator[None]:
    """Fail a test that leaves a thread, a child process, a changed environment variable or a temporary file of ours."""
    environ = dict(os.environ)
    threads = set(threading.enumerate())
    children = _children(os.getpid())
    files = _files(pytestconfig.stash[_SCRATCH])
    claimed = next(claim_folders)
    claimed.mkdir(mode=0o700)
    os.environ["GREENTRAIN_CLAIMS_DIR"] = str(claimed)
    before = dict(os.environ)
    yield
    after = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "KMP_"))}
    os.environ.clear()
    os.environ.update(environ)
    changed = {k for k in before.keys() | after.keys() if before.get(k) != after.get(k) and k not in _OWN_VARIABLES}
    changed = {k for k in changed if not k.startswith(("PYTEST_", "KMP_"))}
    deadline_s = time.monotonic() + 30.0  # a thread that was told to end gets the CPU late on a busy machine
    while time.monotonic() < deadline_s and (_new_threads(threads) or _new_children(children)):
        time.sleep(0.02)
    assert not changed, f"environment variables changed: {sorted(changed)}"
    assert not _new_threads(threads), f"threads left: {_new_threads(threads)}"
    assert not _new_children(children), f"processes left: {_new_children(children)}"
    left = _files(pytestconfig.stash[_SCRATCH]) - files
    assert not left, f"temporary files left: {sorted(left)}"


_LISTED: Final = Path(f"/proc/self/task/{os.getpid()}/children").exists()
"""Whether the kernel lists a thread's children: Linux with CONFIG_PROC_CHILDREN (proc(5))."""
_OWN_VARIABLES = {
    "TOKENIZERS_PARALLELISM",
    "TORCHELASTIC_ERROR_FILE",
    "OMP_NUM_THREADS",
    "COLUMNS",
    "TORCHINDUCTOR_CACHE_DIR",
    "PYGAME_HIDE_SUPPORT_PROMPT",  # of gymnasium, when it is imported
}


def _files(folder: Path) -> set[str]:
    """Return our temporary files; what other libraries leave where a child of theirs is killed, the end removes."""
    return {name for name in os.listdir(folder) if name.startswith("greentrain-") and "-traces-" not in name}


def _new_threads(before: set[threading.Thread]) -> list[str]:
    return [
        t.name
        for t in threading.enumerate()
        if t not in before and t.is_alive() and not any(word in t.name for word in _FOREIGN_THREADS)
    ]


def _children(pid: int) -> set[int]:
    """Return a process's children and theirs, as the kernel lists them: a twentieth of the time of all of /proc."""
    if not _LISTED:
        return {child.pid for child in psutil.Process(pid).children(recursive=True)}
    found: set[int] = set()
    with contextlib.suppress(OSError):  # it has ended
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found.update(map(int, Path(f"/proc/{pid}/task/{task}/children").read_text("ascii").split()))
    return found.union(*map(_children, found))


def _new_children(before: set[int]) -> list[str]:
    out = []
    for pid in _children(os.getpid()) - before:
        try:
            child = psutil.Process(pid)
            if child.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in " ".join(child.cmdline()):
                out.append(" ".join(child.cmdline())[:200])
        except psutil.NoSuchProcess:
            continue
    return out


@pytest.fixture(scope="session")
def traces(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of hourly grid traces: the one that --traces names, else those that the repository holds."""
    given: Path | None = pytestconfig.getoption("traces")
    return held_traces.unpack(tmp_path_factory.mktemp("traces")) if given is None else given
