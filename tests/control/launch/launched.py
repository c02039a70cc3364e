"""``greentrain launch`` as a process, and scripts that follow its contract by hand."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from greentrain.control.launcher_protocol import ENV_DIR

START = """
import json, os, signal, sys, time
from pathlib import Path
from greentrain.control.launcher_protocol import LauncherFiles, Progress, Request
hand = LauncherFiles.from_env()
offer = hand.offer()
n = offer.attempt
def say(*words):
    with open(hand.folder / "said.txt", "a") as file:
        print(n, *words, file=file)
def leave(ranks=1, in_s=None, steps=None):
    if steps is not None:
        hand.write(Progress(attempt=n, steps=steps, tokens=float(steps), unix_s=time.time()))
    not_before = None if in_s is None else time.time() + in_s
    hand.write(Request(attempt=n, ranks=ranks, not_before_unix_s=not_before, reason="the test says so"))
    sys.exit(75)
say("up", os.getpid())
"""


class _Launcher(subprocess.Popen[str]):
    """The launcher, which a test that has failed does not wait for."""

    def __exit__(self, exc_type: type[BaseException] | None, *rest: Any) -> None:
        if exc_type is not None:
            self.kill()
        super().__exit__(exc_type, *rest)


@dataclass
class Launched:
    """A job in a folder of its own."""

    folder: Path
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def dir(self) -> Path:
        """Folder of the job."""
        return self.folder / "job"

    def script(self, body: str, name: str = "train.py") -> Path:
        """Write a script that knows ``hand``, ``offer``, ``n`` (the attempt), ``say`` and ``leave``."""
        path = self.folder / name
        path.write_text(START + body, encoding="utf-8")
        return path

    def start(self, *words: str, **more: Any) -> "subprocess.Popen[str]":
        """Start the launcher; words from ``--`` on are the command."""
        command = [sys.executable, "-c", "from greentrain.cli import main; main()", "launch", "--dir", str(self.dir)]
        environ = {**os.environ, "PYTHONPATH": str(Path.cwd()), **self.environ}
        return _Launcher(
            [*command, *words],
            env=environ,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
            **more,
        )

    def run(self, *words: str, timeout_s: float = 240.0) -> tuple[int, str]:
        """Run the launcher to its end; return its exit code and what it said."""
        with self.start(*words) as process:
            try:
                out, _ = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return process.returncode, out

    @property
    def state(self) -> dict[str, Any]:
        """The job's state on disk."""
        found: dict[str, Any] = json.loads((self.dir / "state.json").read_text(encoding="utf-8"))
        return found

    @property
    def said(self) -> list[str]:
        """What the scripts said, a line each."""
        path = self.dir / "said.txt"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def processes(self) -> list[int]:
        """All processes that were started for the job, zombies left out."""
        wanted = f"{ENV_DIR}={self.dir}".encode()
        out = []
        for entry in Path("/proc").iterdir():
            try:
                ours = entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0")
                if ours and (entry / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                    out.append(int(entry.name))
            except OSError:
                continue
        return out


def until(condition: Callable[[], object], timeout_s: float = 180.0) -> None:
    """Wait for something to become true."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "it did not become true in time"
        time.sleep(0.02)
