"""The models on a served device, and which clients use them.

Clients with the same artifact share one copy. A model that nobody uses any more stays, for a client that comes back,
until another one takes its place: so the device never holds more models than were once in use together.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.device import Handle, OffloadDevice
from greentrain.fpga_backend.errors import DeviceError


class UnknownArtifactError(LookupError):
    """The artifact must be uploaded first."""


@dataclass(slots=True)
class _Model:
    handle: Handle
    users: Counter[str] = field(default_factory=Counter)


class ServedModels:
    """Loads artifacts for clients. Any thread may call.

    Args:
        device: Where to.
        lease_s: A client that is silent for longer has ended without saying so (s).
        most_waiting: Uploaded artifacts that are kept until they are loaded.
        now_s: Monotonic time (s).
    """

    def __init__(
        self,
        device: OffloadDevice,
        *,
        lease_s: float,
        most_waiting: int = 2,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._device = device
        self._lease_s = lease_s
        self._most_waiting = most_waiting
        self._now_s = now_s
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        self._uploaded: dict[str, Artifact] = {}
        self._models: dict[int, _Model] = {}
        self._seen_s: dict[str, float] = {}

    def seen(self, client: str) -> None:
        """Note that a client lives."""
        with self._lock:
            self._seen_s[client] = self._now_s()

    def upload(self, artifact: Artifact) -> None:
        """Keep an artifact until it is loaded; of too many, the oldest is forgotten."""
        with self._lock:
            self._uploaded[artifact.digest] = artifact
            while len(self._uploaded) > self._most_waiting:
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
                known = _Model(self._device.load(artifact, replacing=None if victim is None else victim.handle))
            with self._lock:
                self._uploaded.pop(digest, None)
                if victim is not None:
                    del self._models[victim.handle.number]
                self._models[known.handle.number] = known
                known.users[client] += 1
                if old is not None and old is not victim:
                    self._drop(old, client)
            return known.handle.number

    def release(self, number: int, client: str) -> None:
        """End a client's use of a model.

        Raises:
            DeviceError: It is not the client's.
        """
        with self._lock:
            self._drop(self._of(number, client), client)

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

    def _of(self, number: int, client: str) -> _Model:
        model = self._models.get(number)
        if model is None or not model.users[client]:
            raise DeviceError(f"model {number} is not this client's: it was replaced, or the server was restarted")
        return model

    def _victim(self, old: _Model | None, client: str) -> _Model | None:
        """Return a model whose place can be taken: the client's old one, or one that nobody uses."""
        for gone in [c for c, seen_s in self._seen_s.items() if self._now_s() - seen_s > self._lease_s]:
            self._forget(gone)
        if old is not None and old.users == Counter({client: 1}):
            return old
        return next((model for model in self._models.values() if not model.users.total()), None)

    def _drop(self, model: _Model, client: str) -> None:
        model.users[client] -= 1
        model.users += Counter()  # leaves the positive ones

    def _forget(self, client: str) -> None:
        self._seen_s.pop(client, None)
        for model in self._models.values():
            model.users.pop(client, None)
