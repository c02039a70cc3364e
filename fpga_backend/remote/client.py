"""A device that is served on another machine, as the training's machine uses it.

Requests have limits of time and size, and patience with a network that stumbles. The joules are what the server tells
now and then, so that reading the meter never waits for the network.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from greentrain.fpga_backend.artifact import Artifact, as_artifact
from greentrain.fpga_backend.batch import Batch, Result, fitting
from greentrain.fpga_backend.device import DeviceInfo, EnergyReading, Handle
from greentrain.fpga_backend.devices.base import CLOSED, Loaded, WorkQueue
from greentrain.fpga_backend.errors import ArtifactError, DeviceError, DeviceLostError, OffloadError, QueueFullError
from greentrain.fpga_backend.remote import wire
from greentrain.fpga_backend.remote.wire import Upload
from greentrain.types import Device, DeviceKind, PowerMeter, PowerSample, Provenance, Sensor
from greentrain.utils import redact
from greentrain.utils.http_client import HttpAnswer, HttpClient, HttpError

PAUSE_S = 0.2
"""Before a request is sent again (s)."""
MOST_BYTES = 2**30
"""Largest reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTimeouts:
    """How long the client of a served device waits."""

    batch_s: float = 600.0
    """For a batch's result, from sending it (s)."""
    load_s: float = 600.0
    """For the device to load an artifact, once it is there (s)."""
    silence_s: float = 10.0
    """For a connection, and between two pieces of a request or an answer (s)."""
    lost_s: float = 30.0
    """A server that does not answer for this long is lost, with all that waits (s)."""
    hold_s: float = 1.0
    """A request is held by the server for so long while its batch runs (s): how fast a client notices that it ends."""
    poll_s: float = 2.0
    """Between two readings of the other machine's joules (s)."""


class ServerConnection:
    """Asks one server. Any thread may call.

    Args:
        url: Address of the server.
        token: Token of the server.
        patience: Limits of time.

    Raises:
        MissingExtraError: httpx is not installed.
        ValueError: ``url`` is none, or the token is no ASCII.
    """

    def __init__(self, url: str, token: str, patience: "RemoteTimeouts") -> None:
        self.patience = patience
        self.client = uuid4().hex
        """Name of this client at the server."""
        self._stop = threading.Event()
        try:
            parts = urlsplit(url.rstrip("/"))
            self.where = f"{parts.hostname}:{parts.port or parts.scheme}"
            """Host and port, for people."""
        except ValueError as error:
            raise ValueError(f"url={redact.text(url)!r}: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url={redact.text(url)!r}: write it like http://127.0.0.1:8765")
        if not token.isascii() or not token.isprintable():
            raise ValueError("token: the one that the server printed, printable ASCII")
        self.place = f"the server at {self.where}"
        self._http = HttpClient(
            url,
            extra="remote",
            silence_s=patience.silence_s,
            most_bytes=MOST_BYTES,
            headers={
                wire.TOKEN_HEADER: f"Bearer {token}",
                wire.CLIENT_HEADER: self.client,
                "Accept-Encoding": "identity",
            },
            env_proxies=False,
            unpack=False,  # as it was sent: nothing that unpacks, and nothing that fails to
        )
        self.url = self._http.url
        self.close = self._stop.set
        """Ends requests that wait for the network."""
        self.release = self._http.close
        """Closes the sockets, when no thread asks any more."""

    def ask(self, method: str, path: str, *, patient: bool = False, **options: Any) -> HttpAnswer:
        """Return the answer of the server.

        Args:
            method: Method of HTTP.
            path: Path behind ``/v1/``.
            patient: True: ask again while the network fails, for ``lost_s``.
            **options: Options of :meth:`greentrain.utils.http_client.HttpClient.ask`; an iterable body must be able to
                start anew.

        Raises:
            DeviceError: There is none, and it was asked without patience, or one that is too large.
            DeviceLostError: There was none for ``lost_s``, or the connection was closed here.
        """
        failing_s: float | None = None
        while not self._stop.is_set():
            try:
                return self._http.ask(method, f"/v{wire.VERSION}/{path}", **options)
            except HttpError as error:
                if error.kind == "large":
                    raise DeviceError(f"{self.place} answered with {error}") from error
                if not patient:
                    raise DeviceError(f"{self.place} does not answer ({error})") from error
                now_s = time.monotonic()
                failing_s = now_s if failing_s is None else failing_s
                if now_s - failing_s >= self.patience.lost_s:
                    raise DeviceLostError(
                        f"{self.place} did not answer for {now_s - failing_s:.0f} s ({error}): is it running, "
                        "and can this machine reach it?"
                    ) from error
            self._stop.wait(PAUSE_S)
        raise DeviceLostError(CLOSED)

    def json(self, answer: HttpAnswer) -> dict[str, Any]:
        """Return the JSON of an answer that is no failure.

        Raises:
            DeviceError: The failure, as the server tells it, or that it speaks something else.
        """
        try:
            reply = wire.json_of(answer.body)
        except wire.MalformedError as error:
            raise DeviceError(
                f"{self.place} answered HTTP {answer.status} with {error}: is it a GreenTrain server?"
            ) from error
        if answer.status in (200, 202):
            return reply
        failure = wire.read_error(reply, answer.status)
        raise failure if isinstance(failure, DeviceError | ArtifactError) else DeviceError(str(failure))


class RemoteMeter:
    """The joules that were last heard. It is fed from outside, so a read waits for no network.

    Args:
        device: Device under which the joules are booked.
        first: First reading; what the device used before is not this run's.
        place: Name of the server, for people.
        poll_s: Time between two readings (s).
    """

    def __init__(self, device: Device, first: EnergyReading, *, place: str, poll_s: float) -> None:
        self._stale_s = 5 * poll_s
        self._lock = threading.Lock()
        self._start_j = first.energy_j or 0.0
        self._provenance = first.provenance
        self._place = place
        self._problem = ""
        self._latest = PowerSample(device_uid=device.uid, t_s=time.monotonic())
        self._uid = device.uid
        note = f"of another machine, as {place} tells it; other clients' batches on it are included"
        self._sensor = Sensor(
            device=device,
            provenance=first.provenance,
            method=f"{place}: what its device says",
            period_s=poll_s,
            note=f"{note}; {first.note}" if first.note else note,
        )
        self.take(first, time.monotonic())

    @property
    def sensors(self) -> Sequence[Sensor]:
        """The device on the other machine."""
        return (self._sensor,)

    def take(self, reading: EnergyReading, t_s: float, anew: bool = False) -> None:
        """Note a reading of that time (s). One that falls, or comes from elsewhere than the first, counts as none.

        ``anew``: the first of a server that was started again; what it used in between is not known.
        """
        with self._lock:
            if anew:
                self._start_j = (reading.energy_j or 0.0) - (self._latest.energy_j or 0.0)
            if reading.provenance is not self._provenance:
                self._problem = f"its joules were {self._provenance}, now they are {reading.provenance}"
            elif reading.energy_j is None:
                self._problem = reading.note
            elif (since_j := reading.energy_j - self._start_j) < (self._latest.energy_j or 0.0):
                self._problem = "its joules have fallen: was it restarted?"
            else:
                self._problem = ""
                self._latest = PowerSample(device_uid=self._uid, t_s=t_s, energy_j=since_j)

    def fail(self, problem: str) -> None:
        """Note that there was no reading."""
        with self._lock:
            self._problem = problem

    def read(self) -> Sequence[PowerSample]:
        """Return the newest reading; one too old to be true is a failed one."""
        with self._lock:
            latest, problem = self._latest, self._problem
        age_s = time.monotonic() - latest.t_s
        if not latest.missing and age_s <= self._stale_s:
            return (latest,)
        note = self._sensor.note if latest.missing else f"{self._place} was last heard {age_s:.0f} s ago"
        return (
            PowerSample(device_uid=self._uid, t_s=time.monotonic(), note=f"{note}; {problem}" if problem else note),
        )

    def reading(self) -> EnergyReading:
        """Return the energy since the device was opened here."""
        (sample,) = self.read()
        if sample.energy_j is None:
            return EnergyReading(energy_j=None, provenance=Provenance.MISSING, note=sample.note)
        return EnergyReading(energy_j=sample.energy_j, provenance=self._provenance, note=self._sensor.note)

    def close(self) -> None:
        """Do nothing: the device asks the server, and ends with it."""


class _RemoteModel:
    """A model on the server, and the batches that are to run on it."""

    def __init__(self, artifact: Artifact, number: int, instance: str, keep: bool) -> None:
        self.program, self.digest, self.artifact = artifact.program, artifact.digest, artifact if keep else None
        self.number, self.instance = number, instance  # which that instance of the server gave
        self.futures: set[Future[Result]] = set()


class RemoteDevice:
    """Runs batches on the device behind :func:`greentrain.fpga_backend.remote.server.serve`.

    Results are that device's, bit for bit. Its joules are asked for in the background and booked under a name of this
    client's; the kind of hardware is the server's word, or ``fpga`` where the server has none. A server that is started
    again, with the same token, gets the models again and the batches that it had not answered.

    Args:
        url: The server, for example ``http://127.0.0.1:8765``.
        token: Token that the server printed.
        depth: Number of batches that may wait here.
        patience: Limits of time.
        reconnect: Keep the artifacts in memory for a server that is started again. False: with it the device is lost.

    Raises:
        MissingExtraError: httpx is not installed.
        DeviceError: The server does not answer, speaks another version, or refuses the token.
        ValueError: ``url``, ``token`` or ``depth`` is wrong.
    """

    def __init__(
        self, url: str, *, token: str, depth: int = 16, patience: RemoteTimeouts | None = None, reconnect: bool = True
    ) -> None:
        self._reconnect = reconnect
        self._owner_pid = os.getpid()
        self._patience = patience or RemoteTimeouts()
        self._connection = ServerConnection(url, token, self._patience)
        self._stop = threading.Event()
        try:
            about = self._about()
            self._info = replace(_info(about, self._connection), returns=reconnect)
            self._instance = str(about["instance"])
            self._batch_bytes, self._artifact_bytes = int(about["batch_bytes"]), int(about["artifact_bytes"])
            self._meter = self._first_meter(about)
            self._lane = WorkQueue(f"greentrain-remote-{self._info.uid}", depth)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._connection.release()
            raise DeviceError(f"{self._connection.place} is of another version: {error!r}") from error
        except BaseException:
            self._connection.release()
            raise
        self._loaded: Loaded[_RemoteModel] = Loaded(self._info.uid)
        self._lock = threading.Lock()
        self._problem = ""
        self._watch = threading.Thread(target=self._listen, name="greentrain-remote-watch", daemon=True)
        self._watch.start()

    def probe(self) -> DeviceInfo:
        """Ask the server what it says now."""
        if self._stop.is_set() or self._problem:
            return replace(self._info, available=False, reason=self._problem or CLOSED)
        try:
            return replace(_info(self._about(), self._connection), returns=self._reconnect)
        except Exception as error:  # whatever a server of another version says: probing never raises
            return replace(self._info, available=False, reason=str(error))

    def load(self, artifact: Artifact, *, replacing: Handle | None = None) -> Handle:
        """Let the server load an artifact, and send it only if the server has it not.

        Waits, where one is replaced, for the batches that were submitted to it, and with ``reconnect`` for a server
        that is away, for up to ``lost_s``.

        Raises:
            ArtifactError: The device cannot run it, or it is larger than the server takes.
            DeviceError: The device or the network failed, or ``replacing`` is unknown.
            DeviceLostError: The device is closed, or the server gone.
        """
        until_s = time.monotonic() + self._patience.lost_s
        while self._problem and self._reconnect and time.monotonic() < until_s and not self._stop.wait(PAUSE_S):
            pass  # the listener takes the server up again when it answers
        self._check()
        old = None if replacing is None else self._loaded.get(replacing)
        if old is not None:
            with self._lock:
                before = list(old.futures)
            wait(before)
        instance = self._about(patient=self._reconnect)["instance"]
        number = self._put(as_artifact(artifact), old.number if old is not None and old.instance == instance else None)
        model = _RemoteModel(artifact, number, instance, self._reconnect)
        return self._loaded.put(model, artifact.digest, replacing)

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
                f"the batch has {len(body)} bytes, the server takes {self._batch_bytes}: send parts of it"
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
                self._connection.ask("DELETE", "client")
        self._connection.close()
        self._watch.join()  # before the lane, in whose place it may just have put another
        self._lane.close(CLOSED)
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

    def _put(self, artifact: Artifact, replacing: int | None) -> int:
        asked = {"digest": artifact.digest, "replacing": replacing}
        number = self._load(asked)
        if number is None:
            self._send(artifact, artifact.digest)
            number = self._load(asked)
        if number is None:
            raise DeviceError(f"{self._connection.place} took artifact {artifact.digest[:12]} and does not know it")
        return number

    def _about(self, *, patient: bool = False) -> dict[str, Any]:
        return self._connection.json(self._connection.ask("GET", "device", patient=patient))

    def _load(self, asked: dict[str, Any]) -> int | None:
        """Return the number of the loaded model, or None if the server needs the artifact first."""
        body = json.dumps(asked).encode()
        read_s = self._patience.load_s
        answer = self._connection.ask("POST", "models", patient=self._reconnect, body=body, read_s=read_s)
        if answer.status == 404 and b"UnknownArtifactError" in answer.body:
            return None
        return int(self._connection.json(answer)["number"])

    def _send(self, artifact: Artifact, digest: str) -> None:
        with Upload(artifact) as upload:
            if upload.nbytes > self._artifact_bytes:
                raise ArtifactError(f"the artifact has {upload.nbytes} bytes, the server takes {self._artifact_bytes}")
            headers, read_s = {"Content-Length": str(upload.nbytes)}, self._patience.load_s
            path = f"artifacts/{digest}"
            answer = self._connection.ask("PUT", path, patient=True, body=upload, headers=headers, read_s=read_s)
        self._connection.json(answer)

    def _run(self, model: _RemoteModel, body: bytes) -> Result:
        """Run a batch, in the lane's thread; where the server was started again meanwhile, anew."""
        while True:
            try:
                return self._result(model, body)
            except DeviceLostError as error:
                self._lose(str(error))
                raise
            except DeviceError as error:
                if self._stop.is_set():  # the server has heard of the end before this batch was done
                    raise DeviceLostError(CLOSED) from error
                if not self._renewed(model):
                    raise

    def _renewed(self, model: _RemoteModel) -> bool:
        """Load a model again on a server that was started again; return False if it was not, or cannot take it."""
        with contextlib.suppress(OffloadError):
            instance = self._about(patient=True)["instance"]
            if model.artifact is not None and instance != model.instance:
                model.number, model.instance = self._put(model.artifact, None), instance
                return True
        return False

    def _result(self, model: _RemoteModel, body: bytes) -> Result:
        hold_s = self._patience.hold_s
        end_s = time.monotonic() + self._patience.batch_s
        name = ""
        while True:
            if name:
                answer = self._connection.ask("GET", f"batches/{name}", patient=True, params={"hold_s": hold_s})
            else:
                asked = {"model": model.number, "digest": model.digest, "hold_s": hold_s}
                answer = self._connection.ask("POST", "batches", patient=True, params=asked, body=body)
            if answer.status == 200:
                try:
                    return wire.read_result(answer.body)
                except wire.MalformedError as error:
                    raise DeviceError(f"{self._connection.place} sent {error}") from error
            try:
                reply = self._connection.json(answer)
                if "batch" not in reply:
                    raise DeviceError(f"{self._connection.place} names no batch: is it a GreenTrain server?")
                name = str(reply["batch"])
            except QueueFullError:
                name = ""
                self._stop.wait(PAUSE_S)
            if time.monotonic() > end_s:
                if name:
                    self._connection.ask("DELETE", f"batches/{name}", patient=True)
                raise DeviceError(
                    f"{self._connection.place} had no result after {self._patience.batch_s:g} s: smaller batches, or a "
                    "larger RemoteTimeouts.batch_s"
                )

    def _first_meter(self, about: dict[str, Any]) -> RemoteMeter:
        kind = DeviceKind(about["kind"] or DeviceKind.FPGA.value)
        device = Device(uid=self._info.uid, kind=kind, name=self._info.name)
        first = wire.read_energy(self._connection.json(self._connection.ask("GET", "energy")))
        return RemoteMeter(device, first, place=self._connection.place, poll_s=self._patience.poll_s)

    def _listen(self) -> None:
        """Ask for the joules, which also tells the server that this client lives."""
        while not self._stop.wait(self._patience.poll_s) and (self._reconnect or not self._problem):
            begun_s = time.monotonic()
            try:
                reply = self._connection.json(self._connection.ask("GET", "energy"))
                reading = wire.read_energy(reply)
            except (OffloadError, wire.MalformedError) as error:
                self._meter.fail(str(error))
                continue
            anew = reply.get("instance") != self._instance
            if anew and not self._reconnect:
                self._lose(f"{self._connection.place} was restarted and has lost its models: open the device again")
            self._instance = str(reply.get("instance"))
            self._meter.take(reading, (begun_s + time.monotonic()) / 2, anew)
            if self._problem and self._reconnect:
                self._lane.close(self._problem)  # waits until its last batch was heard of
                self._lane, self._problem = WorkQueue(self._lane.name, self._lane.depth), ""


def _info(about: dict[str, Any], connection: ServerConnection) -> DeviceInfo:
    """Return what the device says of itself, under a name that tells it from a device of this machine."""
    if about["version"] != wire.VERSION:
        raise ValueError(f"it speaks version {about['version']}, this is {wire.VERSION}")
    device, where = about["device"], connection.where
    memory = device["memory_bytes"]
    return DeviceInfo(
        uid=f"remote:{where}:{device['uid']}",
        name=f"{device['name']} at {where}",
        available=bool(device["available"]),
        reason=str(device["reason"]),
        exact=bool(device["exact"]),
        simulated=bool(device["simulated"]),
        memory_bytes=None if memory is None else int(memory),
        details={**{str(name): str(value) for name, value in device["details"].items()}, "server": connection.url},
    )
