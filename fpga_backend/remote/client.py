"""A device that is served on another machine."""

import contextlib
import json
import os
import threading
import time
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import Any

from greentrain.fpga_backend.artifact import Artifact, as_artifact
from greentrain.fpga_backend.batch import Batch, Result, fitting
from greentrain.fpga_backend.device import DeviceInfo, EnergyReading, Handle
from greentrain.fpga_backend.devices.base import CLOSED, Loaded, WorkQueue
from greentrain.fpga_backend.errors import ArtifactError, DeviceError, DeviceLostError, OffloadError, QueueFullError
from greentrain.fpga_backend.program import Program
from greentrain.fpga_backend.remote import wire
from greentrain.fpga_backend.remote.connection import PAUSE_S, Connection, Patience
from greentrain.fpga_backend.remote.meter import RemoteMeter
from greentrain.fpga_backend.remote.uploads import Upload
from greentrain.types import Device, DeviceKind, PowerMeter


class _Model:
    """A model on the server, and the batches that are to run on it."""

    def __init__(self, program: Program, number: int) -> None:
        self.program = program
        self.number = number
        self.futures: set[Future[Result]] = set()


class RemoteDevice:
    """Runs batches on the device behind :func:`greentrain.fpga_backend.remote.server.serve`.

    Results are that device's, bit for bit. Its joules are asked for in the background and booked under a name of this
    client's; the kind of hardware is the server's word, or ``fpga`` where the server has none.

    Args:
        url: The server, for example ``http://127.0.0.1:8765``.
        token: The one that it printed.
        depth: How many batches may wait here.
        patience: How long to wait for what.

    Raises:
        MissingExtraError: httpx is not installed.
        DeviceError: The server does not answer, speaks another version, or refuses the token.
        ValueError: ``url``, ``token`` or ``depth`` is wrong.
    """

    def __init__(self, url: str, *, token: str, depth: int = 16, patience: Patience | None = None) -> None:
        self._owner_pid = os.getpid()
        self._patience = patience or Patience()
        self._connection = Connection(url, token, self._patience)
        self._stop = threading.Event()
        try:
            about = self._about()
            self._info, self._instance = _info(about, self._connection), str(about["instance"])
            self._batch_bytes, self._artifact_bytes = int(about["batch_bytes"]), int(about["artifact_bytes"])
            self._meter = self._first_meter(about)
            self._lane = WorkQueue(f"greentrain-remote-{self._info.uid}", depth)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._connection.release()
            raise DeviceError(f"{self._connection.place} is of another version: {error!r}") from error
        except BaseException:
            self._connection.release()
            raise
        self._loaded: Loaded[_Model] = Loaded(self._info.uid)
        self._lock = threading.Lock()
        self._problem = ""
        self._watch = threading.Thread(target=self._listen, name="greentrain-remote-watch", daemon=True)
        self._watch.start()

    def probe(self) -> DeviceInfo:
        """Ask the server what it says now."""
        if self._stop.is_set() or self._problem:
            return replace(self._info, available=False, reason=self._problem or CLOSED)
        try:
            return _info(self._about(), self._connection)
        except Exception as error:  # whatever a server of another version says: probing never raises
            return replace(self._info, available=False, reason=str(error))

    def load(self, artifact: Artifact, *, replacing: Handle | None = None) -> Handle:
        """Let the server load an artifact, and send it only if the server has it not.

        Waits, where one is replaced, for the batches that were submitted to it.

        Raises:
            ArtifactError: The device cannot run it, or it is larger than the server takes.
            DeviceError: The device or the network failed, or ``replacing`` is unknown.
            DeviceLostError: The device is closed, or the server gone.
        """
        self._check()
        old = None if replacing is None else self._loaded.get(replacing)
        if old is not None:
            with self._lock:
                before = list(old.futures)
            wait(before)
        digest = as_artifact(artifact).digest
        asked = {"digest": digest, "replacing": None if old is None else old.number}
        number = self._load(asked)
        if number is None:
            self._send(artifact, digest)
            number = self._load(asked)
        if number is None:
            raise DeviceError(f"{self._connection.place} took artifact {digest[:12]} and does not know it")
        return self._loaded.put(_Model(artifact.program, number), digest, replacing)

    def submit(self, handle: Handle, batch: Batch, *, wait_s: float | None = None) -> Future[Result]:
        """Queue a batch here; it is sent when those before it are done.

        Raises:
            BatchError: The batch does not fit the model.
            DeviceError: The handle is unknown, or the batch larger than the server takes.
            QueueFullError: No room within ``wait_s``.
            DeviceLostError: The device is closed, or the server gone.
        """
        self._check()
        model = self._loaded.get(handle)
        batch = fitting(batch, model.program)
        body = wire.batch_body(batch)
        if len(body) > self._batch_bytes:
            raise DeviceError(
                f"the batch has {len(body)} bytes, the server takes {self._batch_bytes}: send it in parts"
            )
        future = self._lane.submit(lambda: self._run(model, body), wait_s)
        with self._lock:
            model.futures = {earlier for earlier in model.futures if not earlier.done()} | {future}
        return future

    def energy(self) -> EnergyReading:
        """Return what the server last said, since this device was opened."""
        return self._meter.reading()

    @property
    def meter(self) -> PowerMeter:
        """The joules of the other machine's device."""
        return self._meter

    def close(self) -> None:
        """Fail what waits and tell the server that it may forget this client. Idempotent; in a fork, nothing."""
        if self._stop.is_set() or os.getpid() != self._owner_pid:
            return
        self._stop.set()
        self._lane.close(CLOSED, join=False)
        if not self._problem:
            with contextlib.suppress(OffloadError):
                self._connection.once("DELETE", "client")
        self._connection.close()
        self._lane.close(CLOSED)
        self._watch.join()
        self._loaded.close()
        self._meter.fail(CLOSED)
        self._connection.release()

    def _check(self) -> None:
        if self._stop.is_set() or self._problem:
            raise DeviceLostError(self._problem or CLOSED)
        if os.getpid() != self._owner_pid:  # whose connections these are
            raise DeviceLostError("a forked process has no connection to the server: open a device in it")

    def _lose(self, reason: str) -> None:
        """Fail all that waits and all that comes."""
        if not self._stop.is_set():
            self._problem = self._problem or reason
            self._lane.close(self._problem, join=False)

    def _about(self) -> dict[str, Any]:
        return self._connection.json(self._connection.once("GET", "device"))

    def _load(self, asked: dict[str, Any]) -> int | None:
        """Return the number of the loaded model, or None if the server needs the artifact first."""
        body = json.dumps(asked).encode()
        answer = self._connection.once("POST", "models", body=body, answer_s=self._patience.load_s)
        if answer.status == 404 and b"UnknownArtifactError" in answer.body:
            return None
        return int(self._connection.json(answer)["number"])

    def _send(self, artifact: Artifact, digest: str) -> None:
        upload = Upload(artifact)
        if upload.nbytes > self._artifact_bytes:
            raise ArtifactError(f"the artifact has {upload.nbytes} bytes, the server takes {self._artifact_bytes}")
        self._connection.json(
            self._connection.ask(
                "PUT", f"artifacts/{digest}", body=upload, length=upload.nbytes, answer_s=self._patience.load_s
            )
        )

    def _run(self, model: _Model, body: bytes) -> Result:
        """Run a batch, in the lane's thread."""
        try:
            return self._result(model.number, body)
        except DeviceLostError as error:
            self._lose(str(error))
            raise
        except DeviceError as error:
            if self._stop.is_set():  # the server has heard of the end before this batch was done
                raise DeviceLostError(CLOSED) from error
            raise

    def _result(self, number: int, body: bytes) -> Result:
        hold_s = self._patience.hold_s
        end_s = time.monotonic() + self._patience.batch_s
        name = ""
        while True:
            if name:
                answer = self._connection.ask("GET", f"batches/{name}", params={"hold_s": hold_s})
            else:
                answer = self._connection.ask("POST", "batches", params={"model": number, "hold_s": hold_s}, body=body)
            if answer.status == 200:
                try:
                    return wire.read_result(answer.body)
                except wire.MalformedError as error:
                    raise DeviceError(f"{self._connection.place} sent {error}") from error
            try:
                reply = self._connection.json(answer)
                if "batch" not in reply:
                    raise DeviceError(
                        f"{self._connection.place} took a batch without naming it: is it a GreenTrain server?"
                    )
                name = str(reply["batch"])
            except QueueFullError:
                name = ""
                self._stop.wait(PAUSE_S)
            if time.monotonic() > end_s:
                if name:
                    self._connection.ask("DELETE", f"batches/{name}")
                raise DeviceError(
                    f"{self._connection.place} had no result after {self._patience.batch_s:g} s: smaller batches, or a "
                    "larger Patience.batch_s"
                )

    def _first_meter(self, about: dict[str, Any]) -> RemoteMeter:
        device = Device(
            uid=self._info.uid, kind=DeviceKind(about["kind"] or DeviceKind.FPGA.value), name=self._info.name
        )
        first = wire.read_energy(self._connection.json(self._connection.once("GET", "energy")))
        return RemoteMeter(device, first, place=self._connection.place, poll_s=self._patience.poll_s)

    def _listen(self) -> None:
        """Ask for the joules, which also tells the server that this client lives."""
        while not self._stop.wait(self._patience.poll_s) and not self._problem:
            begun_s = time.monotonic()
            try:
                reply = self._connection.json(self._connection.once("GET", "energy"))
                reading = wire.read_energy(reply)
            except (OffloadError, wire.MalformedError) as error:
                self._meter.fail(str(error))
                continue
            if reply.get("instance") != self._instance:
                self._lose(f"{self._connection.place} was restarted and has lost its models: open the device again")
            else:
                self._meter.take(reading, (begun_s + time.monotonic()) / 2)


def _info(about: dict[str, Any], connection: Connection) -> DeviceInfo:
    """Return what the device says of itself, under a name that tells it from a device of this machine."""
    if about["version"] != wire.VERSION:
        raise ValueError(f"it speaks version {about['version']}, this is {wire.VERSION}")
    device, url = about["device"], connection.url
    where = f"{url.host}:{url.port or url.scheme}"
    memory = device["memory_bytes"]
    return DeviceInfo(
        uid=f"remote:{where}:{device['uid']}",
        name=f"{device['name']} at {where}",
        available=bool(device["available"]),
        reason=str(device["reason"]),
        exact=bool(device["exact"]),
        simulated=bool(device["simulated"]),
        memory_bytes=None if memory is None else int(memory),
        details={**{str(name): str(value) for name, value in device["details"].items()}, "server": str(url)},
    )
