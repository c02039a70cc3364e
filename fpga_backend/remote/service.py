"""What the server answers, apart from sockets."""

import hmac
import json
import re
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from greentrain.fpga_backend.batch import Result
from greentrain.fpga_backend.device import OffloadDevice
from greentrain.fpga_backend.remote import wire
from greentrain.fpga_backend.remote.answers import Answers
from greentrain.fpga_backend.remote.models import Models, UnknownArtifactError
from greentrain.fpga_backend.remote.uploads import received
from greentrain.fpga_backend.remote.wire import MalformedError

ARRAYS = "application/octet-stream"
JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request whose head has been read."""

    method: str
    path: str
    """Without the query."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Names in small letters."""
    length: int | None
    """Bytes of the body; None: the client does not say."""
    read: Callable[[int], bytes]
    """Reads so many bytes of it, or raises OSError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer."""

    status: int
    body: bytes
    kind: str = JSON


class Refused(Exception):
    """A request that is not even looked at.

    Args:
        status: HTTP status.
        text: What to do.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Service:
    """Answers requests for one device. Any thread may call.

    Args:
        device: Whose.
        token: What a client must send.
        limits: What is taken.
    """

    def __init__(self, device: OffloadDevice, token: str, limits: Limits) -> None:
        self._device = device
        self._token = token.encode()
        self._limits = limits
        self._instance = uuid4().hex
        self._models = Models(device, lease_s=limits.lease_s)
        self._answers = Answers(most=limits.batches, keep_s=limits.keep_s)
        self._uploads = tempfile.TemporaryDirectory(prefix="greentrain-uploads-")

    def answer(self, request: Request) -> Reply:
        """Answer a request. Never raises but for OSError of its body."""
        try:
            client = self._admitted(request)
            return self._routed(request, client)
        except Refused as refusal:
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

    def close(self) -> None:
        """End what waits."""
        self._answers.close()
        self._uploads.cleanup()

    def _admitted(self, request: Request) -> str:
        """Return who asks.

        Raises:
            Refused: Without the token, or without a name.
        """
        sent = request.headers.get(wire.TOKEN_HEADER, "").encode()
        if not hmac.compare_digest(sent, b"Bearer " + self._token):
            raise Refused(401, "the token is not this server's: give RemoteDevice the one that the server printed")
        client = request.headers.get(wire.CLIENT_HEADER, "")
        if not 8 <= len(client) <= 64:
            raise Refused(400, f"the header {wire.CLIENT_HEADER} names no client")
        self._models.seen(client)
        return client

    def _routed(self, request: Request, client: str) -> Reply:
        match (request.method, *request.path.strip("/").split("/")):
            case ("GET", "v1", "device"):
                return self._about()
            case ("GET", "v1", "energy"):
                return _json({"instance": self._instance, **wire.energy_json(self._device.energy())})
            case ("PUT", "v1", "artifacts", digest):
                return self._upload(request, digest)
            case ("POST", "v1", "models"):
                return self._load(request, client)
            case ("DELETE", "v1", "models", number):
                self._models.release(_number(number), client)
                return _json({})
            case ("POST", "v1", "batches"):
                return self._submit(request, client)
            case ("GET", "v1", "batches", name):
                return self._fetch(name, client, self._hold_s(request))
            case ("DELETE", "v1", "batches", name):
                self._answers.cancel(name, client)
                return _json({})
            case ("DELETE", "v1", "client"):
                self._answers.end(client)
                self._models.end(client)
                return _json({})
        raise Refused(404, f"{request.method} {request.path[:80]} is nothing that this version ({wire.VERSION}) knows")

    def _about(self) -> Reply:
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

    def _upload(self, request: Request, digest: str) -> Reply:
        left = self._length(request, self._limits.artifact_bytes)
        with tempfile.NamedTemporaryFile(dir=self._uploads.name) as file:
            while left:
                piece = request.read(min(left, 2**20))
                file.write(piece)
                left -= len(piece)
            file.flush()
            self._models.upload(received(Path(file.name), digest))
        return _json({})

    def _load(self, request: Request, client: str) -> Reply:
        asked = wire.json_of(self._body(request, self._limits.json_bytes))
        digest, replacing = asked.get("digest"), asked.get("replacing")
        if not isinstance(digest, str) or not (replacing is None or isinstance(replacing, int)):
            raise MalformedError("a load names a digest, and the number of the model that is replaced or null")
        return _json({"number": self._models.load(digest, client, replacing)})

    def _submit(self, request: Request, client: str) -> Reply:
        number, hold_s = _number(request.query.get("model", "")), self._hold_s(request)
        handle = self._models.handle(number, client)
        batch = wire.read_batch(self._body(request, self._limits.batch_bytes))

        def submit() -> Future[Result]:
            return self._device.submit(handle, batch, wait_s=hold_s)

        return self._fetch(self._answers.add(submit, client), client, hold_s)

    def _fetch(self, name: str, client: str, hold_s: float) -> Reply:
        result = self._answers.wait(name, client, hold_s)
        if result is None:
            return _json({"batch": name}, 202)
        return Reply(status=200, body=wire.result_body(result), kind=ARRAYS)

    def _hold_s(self, request: Request) -> float:
        text = request.query.get("hold_s", "0")
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
            raise Refused(400, f"hold_s={text[:20]!r} is no number of seconds")
        return min(float(text), self._limits.longest_hold_s)

    def _length(self, request: Request, most: int) -> int:
        if request.length is None:
            raise Refused(411, "the request must say its Content-Length")
        if request.length > most:
            raise Refused(413, f"the body has {request.length} bytes, this server takes {most}")
        return request.length

    def _body(self, request: Request, most: int) -> bytes:
        left, pieces = self._length(request, most), []
        while left:
            pieces.append(request.read(min(left, 2**20)))
            left -= len(pieces[-1])
        return b"".join(pieces)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise Refused(400, f"{text[:20]!r} is no number of a model")
    return int(text)


def _json(body: Mapping[str, Any], status: int = 200) -> Reply:
    return Reply(status=status, body=json.dumps(dict(body)).encode())
