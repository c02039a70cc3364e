"""A card's worker, seen from the training process: started, asked, and, where it hangs or dies, found out and ended.

A process of its own, because XRT may end the process it is in (``std::terminate`` where it is not set up), and because
a fresh one has neither the training's CUDA context nor its threads.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from greentrain.fpga_backend.errors import DeviceError, DeviceLostError
from greentrain.fpga_backend.xrt import wire

BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[3]); "
    "from greentrain.fpga_backend.xrt.worker import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)
"""The worker imports from where its parent does."""
WORDS_BYTES = 1 << 20
"""What the worker prints is kept up to this size, to be quoted where it dies."""
QUOTED_CHARS = 600
END_S = 2.0
"""Longest wait for a worker that is to end by itself, and for one that was killed (s)."""


class Process:
    """One worker.

    Args:
        environ: Its environment; None: as this process has it.

    Raises:
        DeviceError: It cannot be started.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        if not sys.executable:
            raise DeviceError("no worker can be started: this interpreter does not know its own program")
        ours, theirs = wire.pair()
        self._link = ours
        self._lock = threading.Lock()
        self._lost = ""
        self._words_fd = os.memfd_create("greentrain-xrt-words", os.MFD_CLOEXEC)
        fcntl.fcntl(self._words_fd, fcntl.F_SETFL, os.O_APPEND)
        fd = theirs.socket.fileno()
        command = [sys.executable, "-c", BOOT, str(fd), str(os.getpid()), json.dumps(sys.path)]
        try:
            self._process = subprocess.Popen(
                command,
                env=None if environ is None else dict(environ),
                pass_fds=(fd,),
                stdin=subprocess.DEVNULL,
                stdout=self._words_fd,
                stderr=self._words_fd,
            )
        except OSError as error:
            self._close_files()
            raise DeviceError(f"the worker cannot be started: {error}") from error
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def lost(self) -> str:
        """Why nothing more comes from it; empty while it lives."""
        return self._lost

    def call(
        self, message: dict[str, Any], fds: Sequence[int] = (), *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Send a message and wait for its answer.

        Args:
            message: See :mod:`greentrain.fpga_backend.xrt.worker`.
            fds: File descriptors that go with it.
            timeout_s: A worker that does not answer in this time is killed (s); None: wait as long as it lives.

        Raises:
            DeviceLostError: It has died, or was killed; says how.
            OffloadError: It answered with an error.
        """
        with self._lock:
            if self._lost:
                raise DeviceLostError(self._lost)
            try:
                self._link.send(message, fds)
                received = self._receive(timeout_s)
            except OSError:
                received = None
            if received is None:
                self._end(f"the worker of the card has died: it {self._status()}")
                raise DeviceLostError(self._lost)
            if os.fstat(self._words_fd).st_size > WORDS_BYTES:
                os.ftruncate(self._words_fd, 0)
        if error := wire.to_error(received):
            raise error
        return received

    def kill(self, why: str) -> None:
        """End it at once; a call that waits fails with ``why``. Idempotent, never raises."""
        self._lost = self._lost or why
        self._process.kill()
        with self._lock:
            self._end(why)

    def close(self, patience_s: float = END_S) -> None:
        """Let it finish what it does for some time, then end it. Idempotent, never raises."""
        if self._lock.acquire(timeout=patience_s):
            try:
                if not self._lost:
                    self._lost = "the device is closed"
                    self._link.close()  # the worker sees the end, gives the card back and leaves
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._process.wait(END_S)
                self._end(self._lost)
            finally:
                self._lock.release()
        else:
            self.kill("the device was closed in the middle of a batch")

    def _receive(self, timeout_s: float | None) -> dict[str, Any] | None:
        poll = select.poll()
        poll.register(self._link.socket, select.POLLIN)
        if not poll.poll(None if timeout_s is None else max(timeout_s * 1000, 1)):
            self._end(f"the worker of the card gave no answer within {timeout_s:g} s and was killed: the card hangs")
            raise DeviceLostError(self._lost)
        received = self._link.receive()
        return None if received is None else received[0]

    def _end(self, why: str) -> None:
        """Kill, reap and forget it; called with the lock held."""
        self._lost = self._lost or why
        if self._process.poll() is None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the driver: no signal reaches it
                self._process.wait(END_S)
        self._close_files()

    def _status(self) -> str:
        """Say how it ended, quoting its last words."""
        deadline_s = time.monotonic() + END_S
        while self._process.poll() is None and time.monotonic() < deadline_s:
            time.sleep(0.001)
        code = self._process.returncode
        if code is None:
            status = "closed its socket"
        elif code < 0:
            status = f"was ended by signal {-code} ({signal.Signals(-code).name})"
        else:
            status = f"ended with exit status {code}"
        words = self._words()
        return f"{status}{f'; its last words: {words}' if words else ''}"

    def _words(self) -> str:
        try:
            size = os.fstat(self._words_fd).st_size
            tail = os.pread(self._words_fd, QUOTED_CHARS, max(size - QUOTED_CHARS, 0))
        except OSError:
            return ""
        return " / ".join(line.strip() for line in tail.decode("utf-8", "replace").splitlines() if line.strip())

    def _close_files(self) -> None:
        self._link.close()
        if self._words_fd >= 0:
            os.close(self._words_fd)
            self._words_fd = -1
