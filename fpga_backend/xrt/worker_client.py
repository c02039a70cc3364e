"""Keeps a card's worker at work: what is loaded, what is asked of it, and a new one where it died. For one thread.

A worker is a process of its own, because XRT may end the process it is in (``std::terminate`` where it is not set up),
and because a fresh one has neither the training's CUDA context nor its threads.
"""

import contextlib
import fcntl
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.errors import DeviceError, DeviceLostError
from greentrain.fpga_backend.program import Program
from greentrain.fpga_backend.xrt import ipc
from greentrain.fpga_backend.xrt.ipc import SharedRegion

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
        environ: Environment of the worker; None: as this process has it.

    Raises:
        DeviceError: It cannot be started.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        if not sys.executable:
            raise DeviceError("no worker can be started: this interpreter does not know its own program")
        ours, theirs = ipc.pair()
        self._link = ours
        self._lock = threading.Lock()
        self._lost = ""
        self.hung = False  # it was killed because it gave no answer
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
            message: Message as :mod:`greentrain.fpga_backend.xrt.worker` lists them.
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
        if error := ipc.to_error(received):
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
            self.hung = True
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


log = logging.getLogger(__name__)

START_S = 120.0
"""Longest wait for a worker that starts and programs its card (s); a large design takes tens of seconds."""
LOAD_S = 600.0
"""Longest wait for a model to be copied to the card (s)."""
SMALLEST_BYTES = 1 << 16
"""Shared memory of batches is at least this, and doubled where a batch needs more."""
TRIES = 3
"""Workers that may die under one batch, or idle before it, until it is given up: it may be what kills them."""
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class CardModel:
    """A model that is on the card."""

    program: Program
    number: int
    digest: str
    artifact: Artifact | None
    """Kept only where a worker may be started again."""


class WorkerClient:
    """One card's worker.

    Args:
        settings: The message ``open`` of :mod:`greentrain.fpga_backend.xrt.worker`.
        environ: The worker's environment.
        timeout_s: Longest batch (s); None: no limit.
        restarts: Number of times that a dead worker is replaced.

    Raises:
        DeviceError: The worker cannot open the card.
    """

    def __init__(
        self, settings: Mapping[str, Any], environ: Mapping[str, str], *, timeout_s: float | None, restarts: int
    ) -> None:
        self._settings, self._environ = dict(settings), dict(environ)
        self._timeout_s, self._left = timeout_s, restarts
        self._models: dict[int, CardModel] = {}
        self._region: SharedRegion | None = None
        self._region_sent = False
        self._closed = ""
        self._process = Process(self._environ)
        self.opened = self._open()

    @property
    def gone(self) -> str:
        """Why nothing more can come from the card; empty where something can."""
        return self._closed or (self._process.lost if self._left <= 0 else "")

    @property
    def pid(self) -> int:
        """Of the worker."""
        return self._process.pid

    def put(self, model: CardModel, artifact: Artifact, old: CardModel | None) -> None:
        """Copy a model to the card. The one that it is to replace is freed only where there is no room for both.

        Raises:
            DeviceError: It does not fit, or the card failed.
        """

        def load() -> None:
            try:
                self._load(model, artifact)
            except DeviceError as error:
                if old is None or isinstance(error, DeviceLostError):
                    raise
                self.drop(old)
                self._load(model, artifact)

        self._surely(load)
        self._models[model.number] = model

    def drop(self, model: CardModel) -> None:
        """Free a model, if it is there.

        Raises:
            DeviceError: The card failed.
        """
        if self._models.pop(model.number, None) is not None and not self._process.lost:
            self._call({"do": "unload", "model": model.number}, timeout_s=LOAD_S)

    def run(self, model: CardModel, batch: Batch) -> Result:
        """Run a batch; where its worker died, on the next one.

        Raises:
            DeviceLostError: No worker is left, several died, or one hung and was killed, or the card was reset.
            DeviceError: The batch failed.
        """
        return self._surely(lambda: self._run(model, batch))

    def _run(self, model: CardModel, batch: Batch) -> Result:
        shape = ipc.BatchShape.of(batch, model.program)
        region = self._room(shape.nbytes)
        ipc.put_batch(batch, shape, region)
        message = {"do": "run", "model": model.number, "digest": model.digest, "shape": asdict(shape)}
        reply = self._call(message, timeout_s=self._timeout_s)
        return ipc.get_result(batch, model.program, shape, region, reply)

    def close(self, patience_s: float) -> None:
        """End the worker; from another thread, a batch that runs gets some time. Idempotent, never raises."""
        self._closed = self._closed or "the device is closed"
        self._process.close(patience_s)

    def forget(self) -> None:
        """Drop what is held for the worker, once nobody uses it any more."""
        self._models.clear()
        if self._region is not None:
            self._region.close()
            self._region = None

    def _open(self) -> dict[str, Any]:
        try:
            return self._process.call(self._settings, timeout_s=START_S)
        except BaseException:
            self._process.kill("the card could not be opened")
            raise

    def _surely(self, job: Callable[[], Answer]) -> Answer:
        """Do a job, and again from its beginning where a worker died: every pass is pure."""
        died = 0
        while True:
            try:
                self._ready()
                return job()
            except DeviceLostError:
                died += 1
                if died >= TRIES or self.gone or self._process.hung:
                    raise

    def _ready(self) -> None:
        """Replace a worker that has died, if that is still allowed."""
        if not self._process.lost:
            return
        if self.gone:
            raise DeviceLostError(self.gone)
        self._left -= 1
        log.warning("%s; another one is started (%d more may be)", self._process.lost, self._left)
        self._process = Process(self._environ)
        self._region_sent = False
        try:
            self._open()
            if self._closed:  # while the worker started
                raise DeviceLostError(self._closed)
            for model in self._models.values():
                if model.artifact is not None:
                    self._load(model, model.artifact)
        except DeviceError as error:
            self._process.kill(f"the card could not be opened again: {error}")
            raise DeviceLostError(self._process.lost) from error

    def _load(self, model: CardModel, artifact: Artifact) -> None:
        arrays = {name: tensor.numpy() for name, tensor in artifact.tensors.items()}
        region = ipc.put_model(model.program, arrays, model.digest)
        try:
            self._call({"do": "load", "model": model.number}, (region.fd,), timeout_s=LOAD_S)
        finally:
            region.close()

    def _room(self, nbytes: int) -> SharedRegion:
        """Return shared memory of at least this size, known to the worker."""
        if self._region is None or self._region.nbytes < nbytes:
            if self._region is not None:
                self._region.close()
            self._region = SharedRegion.of(max(SMALLEST_BYTES, 1 << (nbytes - 1).bit_length()))
            self._region_sent = False
        if not self._region_sent:
            self._call({"do": "region"}, (self._region.fd,), timeout_s=LOAD_S)
            self._region_sent = True
        return self._region

    def _call(
        self, message: dict[str, Any], fds: tuple[int, ...] = (), *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        try:
            return self._process.call(message, fds, timeout_s=timeout_s)
        except DeviceLostError as error:  # a worker that says so itself is of no use any more either
            self._process.kill(str(error))
            raise
