"""An FPGA card as an offload device: a worker process owns it, and a queue feeds the worker."""

import contextlib
import dataclasses
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar, cast

from greentrain.fpga_backend.artifact import Artifact, as_artifact
from greentrain.fpga_backend.batch import Batch, Result, fitting
from greentrain.fpga_backend.csim.schedule import ACTIVATION_BYTES
from greentrain.fpga_backend.device import DeviceInfo, EnergyReading, Handle
from greentrain.fpga_backend.devices.base import Loaded, WorkQueue
from greentrain.fpga_backend.errors import ArtifactError, DeviceError, DeviceLostError
from greentrain.fpga_backend.xrt import pci, xclbin
from greentrain.fpga_backend.xrt.sensors import CardMeter, meter_of
from greentrain.fpga_backend.xrt.worker_client import CardModel, WorkerClient
from greentrain.types import PowerMeter
from greentrain.utils.never_raise import warn_experimental

Answer = TypeVar("Answer")
CLOSE_S = 10.0
"""How long ``close`` lets a batch run before it ends the worker (s)."""


class XrtDevice:
    """An OffloadDevice on a card that XRT drives.

    Experimental: it ran in XRT's no-op emulation, never on a card (docs/status.md).

    Args:
        design: The xclbin: linked for the card, or, for no-op emulation, of metadata only (:mod:`.xclbin`).
        addresses: PCI address of the card's user function (``0000:c1:00.1``), as a text or alone in a list; none: the
            first card that is found.
        depth: Number of batches that may wait.
        timeout_s: A batch that takes longer fails, and the worker with it (s); None: no limit.
        restarts: Most times a dead worker is replaced, its models loaded and its batch handed in again. With 0 the
            device is lost with its worker, and the artifacts are not kept in memory.
        activation_bytes: Bound of the memory that a batch's rows take; a larger batch runs in waves.
        memory_bytes: Use no more of the card's memory; None: all that the design names.
        silicon: A library of the kernels (``csim.build``), which computes in no-op emulation; a card needs none.
        environ: The worker's environment; None: as this process has it.
        bus: Folder in which Linux shows the PCI bus.

    Raises:
        DeviceError: There is no card, no driver, no XRT, several addresses were given, or the design does not fit; the
            message says what to do.
    """

    def __init__(
        self,
        design: Path | str,
        *,
        addresses: Sequence[str] | str = (),
        depth: int = 8,
        timeout_s: float | None = 600.0,
        restarts: int = 0,
        activation_bytes: int = ACTIVATION_BYTES,
        memory_bytes: int | None = None,
        silicon: Path | None = None,
        environ: Mapping[str, str] | None = None,
        bus: Path = pci.ROOT,
    ) -> None:
        design = Path(design)
        addresses = addresses.split(",") if isinstance(addresses, str) else addresses
        if len(addresses) > 1:
            raise DeviceError(
                f"addresses={','.join(addresses)}: a device has one card; open a device for each, as DataParallel of "
                "recipes/common/data_parallel.py takes them"
            )
        environ = os.environ if environ is None else environ
        emulation = environ.get("XCL_EMULATION_MODE", "")
        _check(timeout_s, restarts, memory_bytes, emulation, silicon)
        found = xclbin.read(design)
        card = None if emulation else pci.choose(addresses[0] if addresses else None, bus)
        settings: dict[str, Any] = {
            "do": "open",
            "address": 0 if card is None else card.address,  # emulation counts its cards
            "xclbin": str(design.resolve()),
            "silicon": None if silicon is None else str(silicon.resolve()),
            "memory_bytes": memory_bytes,
            "activation_bytes": activation_bytes,
        }
        self._owner_pid = os.getpid()
        self._reason = ""
        self._keep_artifacts = restarts > 0
        self._lock = threading.Lock()
        self._number = 0
        self._keeper = WorkerClient(settings, environ, timeout_s=timeout_s, restarts=restarts)
        uid = f"xrt-{emulation}:{self._keeper.pid}" if card is None else card.uid
        self._info = DeviceInfo(
            uid=uid,
            name=f"XRT in {emulation} emulation" if card is None else card.name,
            available=True,
            exact=True,
            simulated=card is None,
            memory_bytes=self._keeper.opened["memory_bytes"],
            details={"xclbin": found.uuid, "platform": found.platform},
        )
        if card is not None:
            warn_experimental("the XRT device", "it ran in XRT's no-op emulation, never on a card")
        self._loaded: Loaded[CardModel] = Loaded(uid)
        self._meter = meter_of(card)
        self._lane = WorkQueue(f"greentrain {uid}", depth)
        self._ending = weakref.finalize(self, _end, self._owner_pid, self._lane, self._keeper, self._meter)

    def probe(self) -> DeviceInfo:
        """Say what the card is. Never raises."""
        if not self._reason:
            return self._info
        return dataclasses.replace(self._info, available=False, reason=self._reason)

    def load(self, artifact: Artifact, *, replacing: Handle | None = None) -> Handle:
        """Put a model on the card, after the batches that wait.

        Raises:
            ArtifactError: It is of a precision that the card does not compute.
            DeviceError: It does not fit beside the others, or the card failed.
            DeviceLostError: The device is closed or gone.
        """
        self._alive()
        program = as_artifact(artifact).program
        if program.precision != "w8a8" or program.activations != "token":
            raise ArtifactError(
                f"the card computes w8a8 with one scale a token; this artifact is {program.precision} with one scale a "
                f"{program.activations}: compile the model again"
            )
        old = None if replacing is None else self._loaded.get(replacing)
        with self._lock:
            self._number += 1
            number = self._number
        kept = artifact if self._keep_artifacts else None
        model = CardModel(program=program, number=number, digest=artifact.digest, artifact=kept)
        self._queued(lambda: self._keeper.put(model, artifact, old), None).result()
        handle = self._loaded.put(model, model.digest, replacing)
        if old is not None:  # after whatever was queued for it until now
            replaced = old
            with contextlib.suppress(DeviceLostError):  # then it is free anyway
                self._queued(lambda: self._keeper.drop(replaced), None)
        return handle

    def submit(self, handle: Handle, batch: Batch, *, wait_s: float | None = None) -> Future[Result]:
        """Queue a batch.

        Raises:
            BatchError: It does not fit the model.
            QueueFullError: No room within ``wait_s``.
            DeviceLostError: The device is closed or gone.
        """
        self._alive()
        model = self._loaded.get(handle)
        batch = fitting(batch, model.program)
        return self._queued(lambda: self._keeper.run(model, batch), wait_s)

    def energy(self) -> EnergyReading:
        """Return the card's joules since opening. Never raises."""
        return self._meter.energy()

    @property
    def meter(self) -> PowerMeter:
        """The card's sensor; in emulation there is none."""
        return self._meter

    @property
    def worker_pid(self) -> int:
        """Process id of the worker; another one after a restart."""
        return self._keeper.pid

    def close(self) -> None:
        """Give the card back; a batch that runs gets ``CLOSE_S`` to finish. Idempotent, never raises."""
        if os.getpid() != self._owner_pid:
            return
        self._reason = self._reason or "the device is closed"
        self._lane.close(self._reason, join=False)
        self._keeper.close(CLOSE_S)
        self._lane.close(self._reason)
        self._keeper.close(CLOSE_S)  # a worker that was just being started again
        self._keeper.forget()
        self._loaded.close()
        self._meter.close()
        self._ending.detach()

    def _queued(self, job: Callable[[], Answer], wait_s: float | None) -> Future[Answer]:
        def run() -> Answer:
            try:
                return job()
            except DeviceLostError:
                if gone := self._keeper.gone:
                    self._reason = self._reason or gone
                    self._lane.close(gone, join=False)
                raise

        return cast(Future[Answer], self._lane.submit(cast(Callable[[], Result], run), wait_s))

    def _alive(self) -> None:
        if self._reason:
            raise DeviceLostError(self._reason)
        if os.getpid() != self._owner_pid:
            raise DeviceLostError("a forked process has no card: open it there, or use it from the process that did")


def _check(
    timeout_s: float | None, restarts: int, memory_bytes: int | None, emulation: str, silicon: Path | None
) -> None:
    if timeout_s is not None and not timeout_s > 0:
        raise DeviceError(f"timeout_s={timeout_s}: more than 0, or None for no limit")
    if restarts < 0:
        raise DeviceError(f"restarts={restarts}: 0 or more")
    if memory_bytes is not None and memory_bytes <= 0:
        raise DeviceError(f"memory_bytes={memory_bytes}: more than 0, or None for the whole card")
    if emulation == "noop" and silicon is None:
        raise DeviceError("no-op emulation computes nothing: give silicon=, a library of csim.build, that does")
    if emulation != "noop" and silicon is not None:
        raise DeviceError("silicon= is for no-op emulation (XCL_EMULATION_MODE=noop): a card computes itself")


def _end(owner_pid: int, lane: WorkQueue, keeper: WorkerClient, meter: CardMeter) -> None:
    """End what a forgotten device has left."""
    if os.getpid() == owner_pid:
        lane.close(join=False)
        keeper.close(0.1)
        meter.close()
