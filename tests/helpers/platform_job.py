"""A measured run on a simulated platform: python platform_job.py windows|macos|container FOLDER. Not a test itself.

What a platform does not have is taken away before greentrain is imported: modules, functions and constants of os and
signal, and the file systems /proc and /sys. Libraries are imported first, as theirs are chosen when they are built.
"""

import builtins
import importlib.abc
import os
import signal
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

WINDOWS_LACKS = (
    "getuid geteuid getgid getpgid getpgrp setsid setpgid killpg fork forkpty uname waitid WNOHANG WEXITED WNOWAIT"
    " P_PID sched_getaffinity sched_setaffinity pread pwrite preadv getloadavg mkfifo nice fchmod chown lchown"
    " O_CLOEXEC O_SYNC pidfd_open statvfs getpriority setpriority posix_spawn ttyname ctermid wait wait3 wait4 sysconf"
)
MACOS_LACKS = "sched_getaffinity sched_setaffinity pidfd_open waitid WNOWAIT P_PID preadv posix_fallocate"
_BEFORE = (
    "concurrent.futures filelock jinja2 multiprocessing numpy psutil rich.console subprocess tempfile typer uuid yaml"
)
NO_SIGNALS = (
    "SIGCONT SIGSTOP SIGTSTP SIGHUP SIGKILL SIGUSR1 SIGUSR2 SIGCHLD SIGALRM SIGPIPE SIGQUIT pthread_sigmask"
    " pthread_kill sigwait setitimer"
)
NO_MODULES = {
    "windows": ("fcntl", "resource", "pwd", "grp", "termios", "pty", "tty", "syslog", "posix"),
    "macos": (),
    "container": (),
}


class _Absent(importlib.abc.MetaPathFinder):
    """Says of some modules that there are none."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in self._names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _without_files(roots: tuple[str, ...]) -> None:
    """Let no file below some roots be there."""

    def hidden(call: Callable[..., Any]) -> Callable[..., Any]:
        def asked(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            reader = sys._getframe(1).f_globals.get("__name__", "")
            own = not reader.startswith(
                "psutil"
            )  # it stands for the one of the other platform, which has other sources
            if own and isinstance(path, (str, os.PathLike)) and str(os.fspath(path)).startswith(roots):
                raise FileNotFoundError(2, "No such file or directory", str(path))
            return call(path, *args, **kwargs)

        return asked

    import io

    for place, name in ((builtins, "open"), (io, "open"), (os, "open"), (os, "stat"), (os, "lstat"), (os, "listdir")):
        setattr(place, name, hidden(getattr(place, name)))
    os.scandir = hidden(os.scandir)


def pretend(platform: str) -> None:
    """Take away what a platform does not have."""
    for name in _BEFORE.split():
        importlib.import_module(name)
    sysconfig.get_config_vars()
    roots = ("/sys", "/proc") if platform != "container" else ("/sys", "/proc/cpuinfo", "/proc/meminfo")
    if platform != "container":
        sys.platform = {"windows": "win32", "macos": "darwin"}[platform]
    sys.meta_path.insert(0, _Absent(NO_MODULES[platform]))
    for name in NO_MODULES[platform]:
        sys.modules.pop(name, None)
    for name in {"windows": WINDOWS_LACKS, "macos": MACOS_LACKS, "container": ""}[platform].split():
        if hasattr(os, name):
            delattr(os, name)
    for name in (NO_SIGNALS if platform == "windows" else "").split():
        if hasattr(signal, name):
            delattr(signal, name)
    _without_files(roots)


def main() -> None:
    platform, folder = sys.argv[1], sys.argv[2]
    pretend(platform)
    import time

    from greentrain import GreenSession
    from greentrain.ledger.reader import read_run

    for scope in ("process_tree", "machine")[: 1 if platform == "container" else 2]:
        config = {
            "run": {"dir": folder, "id": scope, "book_s": 0.3},
            "power": {"meters": ["cpu_model"], "cpu_tdp_w": 65.0, "sample_s": 0.05, "cpu_scope": scope},
            "carbon": {"zone": "FR"},
        }
        for _ in range(2):  # the second continues the first
            with GreenSession(config) as green:
                for _ in range(5):
                    with green.phase("forward"):
                        sum(range(100_000))
                    time.sleep(0.05)
                    green.step(samples=8)
        record = read_run(Path(folder) / scope)
        totals, missing_s = record.totals, sum(record.totals.missing_s.values())
        opens = len(record.ranks[0].opens)
        print(scope, totals.steps, opens, totals.energy_j > 0, sorted(totals.by_provenance), green.report_path)
        print(f"missing {missing_s:.1f} of {totals.duration_s:.1f} s", sorted(totals.by_device))
    from typer.testing import CliRunner

    from greentrain.cli.app import app

    for words in (["doctor"], ["report", f"{folder}/process_tree"], ["config", "show"], ["launch", "python", "x.py"]):
        result = CliRunner().invoke(app, words)
        print(words[0], result.exit_code, repr(result.exception), result.output[-200:] if result.exit_code else "")


if __name__ == "__main__":
    main()
