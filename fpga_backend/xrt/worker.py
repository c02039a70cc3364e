"""The process that owns a card: it takes models and batches and runs them, and nothing of torch is in it.

It is started by :class:`greentrain.fpga_backend.xrt.worker_client.Process`, ends with its parent, and says what goes
wrong as a message. One message is answered before the next is read::

    open    address, xclbin, silicon, memory_bytes,
            activation_bytes                              -> memory_bytes
    load    model; the model's memory                     -> nothing
    unload  model                                         -> nothing
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
from greentrain.fpga_backend.card import Buffer
from greentrain.fpga_backend.csim.kernels import WORK
from greentrain.fpga_backend.csim.schedule import BatchSchedule
from greentrain.fpga_backend.errors import DeviceError, DeviceLostError
from greentrain.fpga_backend.xrt import ipc
from greentrain.fpga_backend.xrt.api import XrtApi
from greentrain.fpga_backend.xrt.card import XrtCard, simulated_kernels
from greentrain.fpga_backend.xrt.ipc import SharedRegion

WATCH_S = 0.5
"""How often the worker looks whether its parent is alive while a kernel runs (s); between batches it knows at once."""


class LoadedModel:
    """A model on the card, with a mark in the card's memory by which it is known again.

    Args:
        card: The card.
        weights: The model.
        activation_bytes: Bound of the memory of one batch.

    Raises:
        DeviceError: It does not fit; nothing of it stays on the card.
    """

    def __init__(self, card: XrtCard, weights: ipc.Weights, activation_bytes: int) -> None:
        _check_room(card, weights)
        self.digest = weights.digest
        self._card = card
        self._mark = np.frombuffer(hashlib.sha256(weights.digest.encode()).digest(), np.uint8)
        self._marked: Buffer | None = None
        self._schedule = BatchSchedule(weights, card, activation_bytes=activation_bytes)
        try:
            self._marked = card.allocate(self._mark.nbytes, WORK.bank)
            card.write(self._marked, self._mark)
        except BaseException:
            self.close()
            raise

    def run(self, batch: Batch) -> Result:
        """Run a batch.

        Raises:
            DeviceLostError: The card's memory does not hold the model any more: it was reset or programmed anew.
        """
        assert self._marked is not None, "the model is closed"
        found = np.empty_like(self._mark)
        self._card.read(self._marked, found)
        if found.tobytes() != self._mark.tobytes():
            raise DeviceLostError(
                f"the card does not hold model {self.digest[:12]} any more: somebody has reset it or loaded "
                "another design; load the model again"
            )
        return self._schedule.run(batch)

    def close(self) -> None:
        """Free its memory. Idempotent."""
        self._schedule.close()
        if self._marked is not None:
            self._card.free(self._marked)
            self._marked = None


class Worker:
    """What the messages do."""

    def __init__(self) -> None:
        self._card: XrtCard | None = None
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
                return {}
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
        """Give the card back."""
        if self._card is not None:
            self._card.close()
            self._card = None

    def _open(
        self, *, address: str | int, xclbin: str, silicon: str | None, memory_bytes: int | None, activation_bytes: int
    ) -> dict[str, Any]:
        self._activation_bytes = activation_bytes
        fabric = None if silicon is None else simulated_kernels(Path(silicon))
        opened = XrtApi(address)
        try:
            self._card = XrtCard(opened, Path(xclbin), silicon=fabric, memory_bytes=memory_bytes)
        except BaseException:
            opened.close()
            raise
        return {"memory_bytes": self._card.memory_bytes}

    def _load(self, number: int, fd: int) -> dict[str, Any]:
        region = SharedRegion(fd)
        try:
            if self._card is None:
                raise DeviceError("the worker has no card yet")
            self._models[number] = LoadedModel(self._card, ipc.get_model(region), self._activation_bytes)
        finally:
            region.close()
        return {}

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


def _check_room(card: XrtCard, weights: ipc.Weights) -> None:
    needed = sum(tensor.nbytes for tensor in weights.tensors.values())
    free = card.memory_bytes - card.used_bytes
    if needed > free:
        raise DeviceError(
            f"the model's weights take {needed} bytes, {free} of the card's {card.memory_bytes} are free: unload "
            "another model, or use a smaller one"
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
