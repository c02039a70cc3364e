"""The process that owns a card, or several: it takes models and batches and runs them, and nothing of torch is in it.

It is started by :class:`greentrain.fpga_backend.xrt.worker_client.Process`, ends with its parent, and says what goes
wrong as
a message. One message is answered before the next is read::

    open    addresses, api, xclbin, silicon, memory_bytes,
            activation_bytes                              -> memory_bytes, api
    load    model; the model's memory                     -> used_bytes
    unload  model                                         -> used_bytes
    region  the memory of batches from now on             -> nothing
    run     model, digest, shape                          -> run_s, rows, notes; the numbers in the region
    ping    nbytes                                        -> nothing; that many bytes of the region were read
"""

import hashlib
import os
import signal
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.csim.kernels import WEIGHTS
from greentrain.fpga_backend.csim.schedule import BatchSchedule
from greentrain.fpga_backend.errors import DeviceError, DeviceLostError
from greentrain.fpga_backend.xrt import ipc
from greentrain.fpga_backend.xrt.api import CtypesApi, PyxrtApi, XrtApi, load_pyxrt
from greentrain.fpga_backend.xrt.card import Tenant, XrtCard, simulated_kernels
from greentrain.fpga_backend.xrt.ipc import SharedRegion
from greentrain.fpga_backend.xrt.tensor_parallel import TensorParallelSchedule

WATCH_S = 0.5
"""How often the worker looks whether its parent is alive while a kernel runs (s); between batches it knows at once."""


class LoadedModel:
    """A model on one card or divided over several, with a mark in each card's memory by which it is known again.

    Args:
        cards: The cards.
        weights: The model.
        activation_bytes: Bound of the memory of one batch.

    Raises:
        DeviceError: It does not fit; nothing of it stays on the cards.
    """

    def __init__(self, cards: Sequence[XrtCard], weights: ipc.Weights, activation_bytes: int) -> None:
        _check_room(cards, weights)
        self.digest = weights.digest
        self._mark = np.frombuffer(hashlib.sha256(weights.digest.encode()).digest(), np.uint8)
        self._tenants = [Tenant(card) for card in cards]
        try:
            self._schedule: BatchSchedule | TensorParallelSchedule
            if len(cards) == 1:
                self._schedule = BatchSchedule(weights, self._tenants[0], activation_bytes=activation_bytes)
            else:
                self._schedule = TensorParallelSchedule(weights, self._tenants, activation_bytes=activation_bytes)
            self._marked = [tenant.allocate(self._mark.nbytes, WEIGHTS.bank) for tenant in self._tenants]
            for tenant, marked in zip(self._tenants, self._marked, strict=True):
                tenant.write(marked, self._mark)
        except BaseException:
            self.close()
            raise

    def run(self, batch: Batch) -> Result:
        """Run a batch.

        Raises:
            DeviceLostError: A card's memory does not hold the model any more: it was reset or programmed anew.
        """
        for tenant, marked in zip(self._tenants, self._marked, strict=True):
            found = np.empty_like(self._mark)
            tenant.read(marked, found)
            if found.tobytes() != self._mark.tobytes():
                raise DeviceLostError(
                    f"the card does not hold model {self.digest[:12]} any more: somebody has reset it or loaded "
                    "another design; load the model again"
                )
        return self._schedule.run(batch)

    def close(self) -> None:
        """Free its memory."""
        for tenant in self._tenants:
            tenant.close()


class Worker:
    """What the messages do."""

    def __init__(self) -> None:
        self._cards: list[XrtCard] = []
        self._activation_bytes = 0
        self._models: dict[int, LoadedModel] = {}
        self._region: SharedRegion | None = None

    def answer(self, message: dict[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """Do what a message asks for.

        Raises:
            OffloadError: It cannot be done.
        """
        match message.pop("do"):
            case "open":
                return self._open(**message)
            case "load":
                return self._load(message["model"], fds[0])
            case "unload":
                self._models.pop(message["model"]).close()
                return self._used()
            case "region":
                if self._region is not None:
                    self._region.close()
                self._region = SharedRegion(fds[0])
                return {}
            case "run":
                return self._run(message["model"], message["digest"], ipc.BatchShape(**message["shape"]))
            case "ping":
                return self._ping(message["nbytes"])
            case other:
                raise DeviceError(f"the worker knows no {other!r}")

    def close(self) -> None:
        """Give the cards back."""
        while self._cards:
            self._cards.pop().close()

    def _open(
        self,
        *,
        addresses: Sequence[str | int],
        api: str,
        xclbin: str,
        silicon: str | None,
        memory_bytes: int | None,
        activation_bytes: int,
    ) -> dict[str, Any]:
        self._activation_bytes = activation_bytes
        fabric = None if silicon is None else simulated_kernels(Path(silicon))
        try:
            for address in addresses:
                opened = open_api(api, address)
                try:
                    self._cards.append(XrtCard(opened, Path(xclbin), silicon=fabric, memory_bytes=memory_bytes))
                except BaseException:
                    opened.close()
                    raise
        except BaseException:
            self.close()
            raise
        return {"memory_bytes": sum(card.memory_bytes for card in self._cards), "api": type(opened).__name__}

    def _load(self, number: int, fd: int) -> dict[str, Any]:
        region = SharedRegion(fd)
        try:
            if not self._cards:
                raise DeviceError("the worker has no card yet")
            self._models[number] = LoadedModel(self._cards, ipc.get_model(region), self._activation_bytes)
        finally:
            region.close()
        return self._used()

    def _run(self, number: int, digest: str, shape: ipc.BatchShape) -> dict[str, Any]:
        model = self._models.get(number)
        if model is None or model.digest != digest or self._region is None:
            held = "nothing" if model is None else model.digest[:12]
            raise DeviceError(f"the worker holds {held} as model {number}, not {digest[:12]}: load the artifact again")
        batch = ipc.get_batch(shape, self._region)
        start_s = time.perf_counter()
        result = model.run(batch)
        run_s = time.perf_counter() - start_s
        ipc.put_result(result, shape, self._region)
        return {"run_s": run_s, "rows": result.rows, "notes": list(result.notes)}

    def _ping(self, nbytes: int) -> dict[str, Any]:
        if self._region is not None:
            self._region.array(np.uint8, nbytes, 0).copy()
        return {}

    def _used(self) -> dict[str, Any]:
        return {"used_bytes": sum(card.used_bytes for card in self._cards)}


def open_api(name: str, address: str | int) -> XrtApi:
    """Open a card through ``pyxrt`` or ``ctypes``, or through whichever is there (``auto``).

    Raises:
        DeviceError: It cannot be opened.
    """
    if name == "auto":
        try:
            return PyxrtApi(address, module=load_pyxrt())
        except DeviceError:
            return CtypesApi(address)
    return PyxrtApi(address) if name == "pyxrt" else CtypesApi(address)


def _check_room(cards: Sequence[XrtCard], weights: ipc.Weights) -> None:
    needed = sum(tensor.nbytes for tensor in weights.tensors.values())
    memory = sum(card.memory_bytes for card in cards)
    free = memory - sum(card.used_bytes for card in cards)
    if needed > free:
        raise DeviceError(
            f"the model's weights take {needed} bytes, {free} of the card's {memory} are free: unload another model, "
            "or divide this one over more cards (addresses=)"
        )


def serve(link: ipc.WorkerLink, worker: Worker) -> None:
    """Answer messages until the other side is gone."""
    while (received := link.receive()) is not None:
        message, fds = received
        try:
            reply = worker.answer(message, fds)
        except Exception as error:
            reply = ipc.from_error(error)
        try:
            link.send(reply)
        except OSError:
            return


def main(fd: int, parent: int) -> None:
    """Run the worker.

    Args:
        fd: The socket to the parent.
        parent: The parent's process id.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group: the parent decides
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    worker = Worker()
    try:
        serve(ipc.WorkerLink(socket.socket(fileno=fd)), worker)
    finally:
        worker.close()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH_S)
    os._exit(0)
