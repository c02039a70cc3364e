"""Lends a device to other machines over HTTP, with the standard library alone.

Clients with the same artifact share one copy. A model that nobody uses any more stays, for a client that comes back,
until another one takes its place: so the device never holds more models than were once in use together. Batches run
while their client asks again and again for the result: only so many are kept, and none for ever.
"""

import json
import re
import secrets
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qsl
from uuid import uuid4

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Result
from greentrain.fpga_backend.device import Handle, OffloadDevice
from greentrain.fpga_backend.errors import DeviceError, DeviceLostError, QueueFullError
from greentrain.fpga_backend.remote import wire
from greentrain.fpga_backend.remote.wire import MalformedError, received
from greentrain.utils.http_access import Access
from greentrain.utils.http_server import HostLimits, HttpReply, HttpRequest, ThreadHost, listen

MOST_UPLOADED = 2
"""Uploaded artifacts that are kept until they are loaded."""


class UnknownArtifactError(LookupError):
    """The artifact must be uploaded first."""


@dataclass(slots=True)
class _ServedModel:
    handle: Handle
    users: Counter[str] = field(default_factory=Counter)


class ServedModels:
    """Loads artifacts for clients. Any thread may call.

    Args:
        device: Device that the artifacts are loaded to.
        lease_s: A client that is silent for longer has ended without saying so (s).
    """

    def __init__(self, device: OffloadDevice, *, lease_s: float) -> None:
        self._device = device
        self._lease_s = lease_s
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        self._uploaded: dict[str, Artifact] = {}
        self._models: dict[int, _ServedModel] = {}
        self._seen_s: dict[str, float] = {}

    def seen(self, client: str) -> None:
        """Note that a client lives."""
        with self._lock:
            self._seen_s[client] = time.monotonic()

    def upload(self, artifact: Artifact) -> None:
        """Keep an artifact until it is loaded; of too many, the oldest is forgotten."""
        with self._lock:
            self._uploaded[artifact.digest] = artifact
            while len(self._uploaded) > MOST_UPLOADED:
                del self._uploaded[next(iter(self._uploaded))]

    def load(self, digest: str, client: str, replacing: int | None = None) -> int:
        """Let a client use an artifact, instead of a model that it used, and return the model's number.

        Raises:
            UnknownArtifactError: It is not here.
            ArtifactError: The device cannot run it.
            DeviceError: The device failed, or ``replacing`` is not the client's.
        """
        with self._loading:
            with self._lock:
                old = None if replacing is None else self._of(replacing, client)
                known = next((m for m in self._models.values() if m.handle.digest == digest), None)
                artifact = self._uploaded.get(digest)
                victim = None if known is not None else self._victim(old, client)
            if known is None:
                if artifact is None:
                    raise UnknownArtifactError(digest)
                known = _ServedModel(self._device.load(artifact, replacing=None if victim is None else victim.handle))
            with self._lock:
                self._uploaded.pop(digest, None)
                if victim is not None:
                    del self._models[victim.handle.number]
                self._models[known.handle.number] = known
                known.users[client] += 1
                if old is not None and old is not victim:
                    old.users[client] -= 1
                    old.users += Counter()  # leaves the positive ones
            return known.handle.number

    def end(self, client: str) -> None:
        """End all that a client uses."""
        with self._lock:
            self._forget(client)

    def handle(self, number: int, client: str) -> Handle:
        """Return the device's handle of a client's model.

        Raises:
            DeviceError: It is not the client's.
        """
        with self._lock:
            return self._of(number, client).handle

    def _of(self, number: int, client: str) -> _ServedModel:
        model = self._models.get(number)
        if model is None or not model.users[client]:
            raise DeviceError(f"model {number} is not this client's: it was replaced, or the server was restarted")
        return model

    def _victim(self, old: _ServedModel | None, client: str) -> _ServedModel | None:
        """Return a model whose place can be taken: the client's old one, or one that nobody uses."""
        for gone in [c for c, seen_s in self._seen_s.items() if time.monotonic() - seen_s > self._lease_s]:
            self._forget(gone)
        if old is not None and old.users == Counter({client: 1}):
            return old
        return next((model for model in self._models.values() if not model.users.total()), None)

    def _forget(self, client: str) -> None:
        self._seen_s.pop(client, None)
        for model in self._models.values():
            model.users.pop(client, None)


@dataclass(slots=True)
class _PendingBatch:
    future: Future[Result]
    client: str
    asked_s: float


class PendingBatches:
    """Batches that were taken and not yet fetched, by name. Any thread may call.

    Args:
        most: Number of batches that are kept.
        keep_s: A batch that nobody asks after for longer is cancelled and forgotten (s).
    """

    def __init__(self, *, most: int, keep_s: float) -> None:
        self._most = most
        self._keep_s = keep_s
        self._lock = threading.Lock()
        self._waiting: dict[str, _PendingBatch] = {}
        self._closed = threading.Event()

    def add(self, submit: Callable[[], Future[Result]], client: str) -> str:
        """Submit a batch and return its name.

        Raises:
            QueueFullError: Too many are here.
            OffloadError: What ``submit`` raises.
        """
        with self._lock:
            old_s = time.monotonic() - self._keep_s
            self._drop(lambda _, one: one.asked_s < old_s)
            if self._closed.is_set():
                raise DeviceLostError("the server is closed")
            if len(self._waiting) >= self._most:
                raise QueueFullError(f"{self._most} batches of this server are not fetched yet")
        future, name = submit(), uuid4().hex
        with self._lock:
            self._waiting[name] = _PendingBatch(future, client, time.monotonic())
            if self._closed.is_set():
                future.cancel()
        return name

    def wait(self, name: str, client: str, hold_s: float) -> Result | None:
        """Return a batch's result and forget it, or None if it takes longer than ``hold_s``.

        Raises:
            DeviceError: There is no such batch of this client, or it failed, as the device says.
        """
        with self._lock:
            waiting = self._waiting.get(name)
            if waiting is None or waiting.client != client:
                raise DeviceError(
                    f"batch {name} is not here: it was fetched, cancelled or not asked after for too long"
                )
            waiting.asked_s = time.monotonic() + hold_s
        if not wait([waiting.future], hold_s).done:
            return None
        with self._lock:
            self._waiting.pop(name, None)
        try:
            return waiting.future.result()
        except CancelledError:
            raise DeviceLostError("the server is closing, or the batch was cancelled") from None

    def cancel(self, client: str, name: str | None = None) -> None:
        """Forget a client's batch, or all of them; one that has not begun does not.

        Args:
            client: Client whose batches they are.
            name: Name of the batch; None: all.
        """
        with self._lock:
            self._drop(lambda key, one: one.client == client and name in (None, key))

    def close(self) -> None:
        """Cancel what has not begun, and take no more."""
        with self._lock:
            self._closed.set()
            for waiting in self._waiting.values():
                waiting.future.cancel()

    def _drop(self, is_gone: Callable[[str, _PendingBatch], bool]) -> None:
        for name in [name for name, one in self._waiting.items() if is_gone(name, one)]:
            self._waiting.pop(name).future.cancel()


ARRAYS = "application/octet-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceServerLimits:
    """What a server takes."""

    json_bytes: int = 2**16
    batch_bytes: int = 2**24
    """4 million tokens."""
    artifact_bytes: int = 2**36
    connections: int = 32
    batches: int = 256
    """Taken and not yet fetched."""
    silence_s: float = 30.0
    """Between two pieces of a request (s)."""
    slowest_bytes_per_s: float = 1e5
    """A body that comes slower than this is given up, after ``silence_s``."""
    longest_hold_s: float = 10.0
    """A request is held for at most this long until its batch is done (s)."""
    keep_s: float = 120.0
    """A result that nobody asks after is forgotten (s)."""
    lease_s: float = 900.0
    """A client that is silent for longer has ended (s)."""


class RefusedRequest(Exception):
    """A request that is not even looked at; ``Refused`` for the client.

    Args:
        status: HTTP status.
        text: Tells the client what to do.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def serve(
    device: OffloadDevice,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    limits: DeviceServerLimits | None = None,
) -> "DeviceServer":
    """Lend a device to whoever has the token, until the server is closed; the device stays its owner's to close.

    Args:
        device: The device that is lent.
        host: Address to listen at: by default this machine's own alone. Another one sends token and tokens in the clear
            through the network; ``ssh -L`` or a proxy with TLS does not.
        port: TCP port; 0: any that is free.
        token: Token that clients must send; None: a new one.
        limits: Sizes, numbers and times that the server takes.

    Raises:
        OSError: The port is taken.
        ValueError: The token is shorter than 16 characters or not ASCII.
    """
    return DeviceServer(device, host, port, token or secrets.token_urlsafe(32), limits or DeviceServerLimits())


class DeviceServer:
    """Answers requests for one device, from any thread, until it is closed. Made by :func:`serve`."""

    def __init__(self, device: OffloadDevice, host: str, port: int, token: str, limits: DeviceServerLimits) -> None:
        self.token = token
        self._access = Access(token)
        listener = listen(host, port)
        self._device = device
        self._limits = limits
        self._instance = uuid4().hex
        self._models = ServedModels(device, lease_s=limits.lease_s)
        self._batches = PendingBatches(most=limits.batches, keep_s=limits.keep_s)
        self._host = ThreadHost(
            listener,
            self.answer,
            name="offload-server",
            limits=HostLimits(connections=limits.connections, receive_s=limits.silence_s, send_s=limits.silence_s),
            busy=_json({"error": "QueueFullError", "message": "the server has no free connection"}, 503),
            slowest_bytes_per_s=limits.slowest_bytes_per_s,
            drain_s=limits.longest_hold_s,
        )
        self.url = self._host.url
        """Where it listens."""

    def close(self) -> None:
        """Stop listening, end what waits, close every connection. Idempotent."""
        self._batches.close()
        self._host.close()

    def __enter__(self) -> "DeviceServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def answer(self, request: HttpRequest) -> HttpReply:
        """Answer a request. Never raises but for OSError of its body."""
        try:
            client = self._admitted(request)
            return self._routed(request, client)
        except RefusedRequest as refusal:
            return _json({"error": "Refused", "message": str(refusal)}, refusal.status)
        except MalformedError as error:
            return _json({"error": "MalformedError", "message": str(error)}, 400)
        except UnknownArtifactError as error:
            return _json({"error": "UnknownArtifactError", "message": str(error)}, 404)
        except OSError:
            raise
        except Exception as error:  # whatever a device raises; it belongs to the one who asked
            status, body = wire.error_json(error)
            return _json(body, status)

    def _admitted(self, request: HttpRequest) -> str:
        """Return who asks.

        Raises:
            RefusedRequest: It comes without the token, or without a name.
        """
        if not self._access.allows(request.raw_headers):
            raise RefusedRequest(
                401, "the token is not this server's: give RemoteDevice the one that the server printed"
            )
        client = request.headers.get(wire.CLIENT_HEADER, "")
        if not 8 <= len(client) <= 64:
            raise RefusedRequest(400, f"the header {wire.CLIENT_HEADER} names no client")
        self._models.seen(client)
        return client

    def _routed(self, request: HttpRequest, client: str) -> HttpReply:
        match (request.method, *request.path.strip("/").split("/")):
            case ("GET", "v1", "device"):
                return self._about()
            case ("GET", "v1", "energy"):
                return _json({"instance": self._instance, **wire.energy_json(self._device.energy())})
            case ("PUT", "v1", "artifacts", digest):
                return self._upload(request, digest)
            case ("POST", "v1", "models"):
                return self._load(request, client)
            case ("POST", "v1", "batches"):
                return self._submit(request, client)
            case ("GET", "v1", "batches", name):
                return self._fetch(name, client, self._hold_s(request))
            case ("DELETE", "v1", "batches", name):
                self._batches.cancel(client, name)
                return _json({})
            case ("DELETE", "v1", "client"):
                self._batches.cancel(client)
                self._models.end(client)
                return _json({})
        raise RefusedRequest(
            404, f"{request.method} {request.path[:80]} is nothing that this version ({wire.VERSION}) knows"
        )

    def _about(self) -> HttpReply:
        info = self._device.probe()
        kinds = [sensor.device.kind.value for sensor in self._device.meter.sensors if sensor.device.uid == info.uid]
        return _json(
            {
                "version": wire.VERSION,
                "instance": self._instance,
                "device": wire.info_json(info),
                "kind": kinds[0] if kinds else None,
                "batch_bytes": self._limits.batch_bytes,
                "artifact_bytes": self._limits.artifact_bytes,
            }
        )

    def _upload(self, request: HttpRequest, digest: str) -> HttpReply:
        with tempfile.TemporaryFile() as file:  # without a name, as whoever kills the server would leave it behind
            file.writelines(_pieces(request, self._limits.artifact_bytes))
            file.flush()
            self._models.upload(received(Path(f"/dev/fd/{file.fileno()}"), digest))
        return _json({})

    def _load(self, request: HttpRequest, client: str) -> HttpReply:
        asked = wire.json_of(b"".join(_pieces(request, self._limits.json_bytes)))
        digest, replacing = asked.get("digest"), asked.get("replacing")
        if not isinstance(digest, str) or not (replacing is None or isinstance(replacing, int)):
            raise MalformedError("a load names a digest, and the number of the model that is replaced or null")
        return _json({"number": self._models.load(digest, client, replacing)})

    def _submit(self, request: HttpRequest, client: str) -> HttpReply:
        number, hold_s = _number(_query(request, "model", "")), self._hold_s(request)
        handle = self._models.handle(number, client)
        if _query(request, "digest", handle.digest) != handle.digest:  # the number is of a server before this one
            raise DeviceError(f"model {number} is not the one that was loaded: the server was restarted")
        batch = wire.read_batch(b"".join(_pieces(request, self._limits.batch_bytes)))

        def submit() -> Future[Result]:
            return self._device.submit(handle, batch, wait_s=hold_s)

        return self._fetch(self._batches.add(submit, client), client, hold_s)

    def _fetch(self, name: str, client: str, hold_s: float) -> HttpReply:
        result = self._batches.wait(name, client, hold_s)
        if result is None:
            return _json({"batch": name}, 202)
        return HttpReply(status=200, body=wire.result_body(result), headers={"Content-Type": ARRAYS})

    def _hold_s(self, request: HttpRequest) -> float:
        text = _query(request, "hold_s", "0")
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
            raise RefusedRequest(400, f"hold_s={text[:20]!r} is no number of seconds")
        return min(float(text), self._limits.longest_hold_s)


def _pieces(request: HttpRequest, most: int) -> Iterator[bytes]:
    """Yield the body of a request as it comes.

    Raises:
        RefusedRequest: It does not say its length, or is longer than ``most`` bytes.
    """
    if request.length is None:
        raise RefusedRequest(411, "the request must say its Content-Length")
    if request.length > most:
        raise RefusedRequest(413, f"the body has {request.length} bytes, this server takes {most}")
    left = request.length
    while left:
        piece = request.read(min(left, 2**20))
        yield piece
        left -= len(piece)


def _query(request: HttpRequest, name: str, default: str) -> str:
    return dict(parse_qsl(request.query)).get(name, default)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise RefusedRequest(400, f"{text[:20]!r} is no number of a model")
    return int(text)


def _json(body: Mapping[str, Any], status: int = 200) -> HttpReply:
    return HttpReply(status=status, body=json.dumps(dict(body)).encode())
