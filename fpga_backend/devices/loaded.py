"""The models that are loaded on a device, by handle."""

import threading
from typing import Generic, TypeVar

from greentrain.fpga_backend.device import Handle
from greentrain.fpga_backend.errors import DeviceError, DeviceLostError

Model = TypeVar("Model")


class Loaded(Generic[Model]):
    """Gives out handles and refuses those that it did not give. Any thread may call.

    Args:
        uid: Of the device.
    """

    def __init__(self, uid: str) -> None:
        self._uid = uid
        self._lock = threading.Lock()
        self._models: dict[Handle, Model] = {}
        self._number = 0
        self._closed = False

    def put(self, model: Model, digest: str, replacing: Handle | None = None) -> Handle:
        """Keep a model and return its handle; the handle that it replaces is no longer known.

        Raises:
            DeviceError: ``replacing`` is not known.
            DeviceLostError: After :meth:`close`.
        """
        with self._lock:
            self._open()
            if replacing is not None:
                self._check(replacing)
                del self._models[replacing]
            self._number += 1
            handle = Handle(device=self._uid, number=self._number, digest=digest)
            self._models[handle] = model
        return handle

    def get(self, handle: Handle) -> Model:
        """Return the model of a handle.

        Raises:
            DeviceError: It is another device's, was replaced, or was never given out.
            DeviceLostError: After :meth:`close`.
        """
        with self._lock:
            self._open()
            self._check(handle)
            return self._models[handle]

    def close(self) -> None:
        """Forget every model, and take no more. Idempotent."""
        with self._lock:
            self._closed = True
            self._models.clear()

    def _open(self) -> None:
        if self._closed:
            raise DeviceLostError("the device is closed")

    def _check(self, handle: Handle) -> None:
        if handle.device != self._uid:
            raise DeviceError(
                f"the handle is of device {handle.device}, this is {self._uid}: load the artifact here first"
            )
        if handle not in self._models:
            known = sorted(known.number for known in self._models)
            raise DeviceError(
                f"model {handle.number} (artifact {handle.digest[:12]}) is not on {self._uid}, which holds {known}: it "
                "was replaced; use the handle that the last load() returned"
            )
