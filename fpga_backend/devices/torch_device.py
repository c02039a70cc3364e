"""A torch device as an offload device: the CPU, or a CUDA GPU beside the training on a stream of its own."""

import time
from concurrent.futures import Future

import torch

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.device import DeviceInfo, EnergyReading, Handle
from greentrain.fpga_backend.devices.base import CLOSED, InProcess
from greentrain.fpga_backend.devices.buckets import by_length
from greentrain.fpga_backend.devices.float_results import result
from greentrain.fpga_backend.devices.torch_engine import DTYPES, Dtype, TorchEngine
from greentrain.fpga_backend.devices.unmetered import Unmetered
from greentrain.fpga_backend.errors import DeviceError
from greentrain.fpga_backend.packing import Packed, pack
from greentrain.fpga_backend.program import Program
from greentrain.types import PowerMeter, Provenance
from greentrain.utils.never_raise import warn_experimental


class TorchDevice:
    """Runs artifacts of any precision in floating point.

    Experimental: on CUDA, where it never ran; on CPUs it is tested (docs/status.md).

    Its joules are those of hardware that the ledger has already, the GPU's or the CPU's: the device knows no share of
    them and its meter has no sensors, so that nothing is booked twice.

    Replaced weights leave the memory when the last batch that uses them has run.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:1``.
        dtype: Of weights and activations.
        depth: How many batches may wait.

    Raises:
        DeviceError: There is no such device.
        ValueError: Unknown ``dtype``, or ``depth`` below 1.
    """

    def __init__(self, device: str = "cpu", dtype: Dtype = "fp32", *, depth: int = 16) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype={dtype!r}: choose one of {', '.join(DTYPES)}")
        self._device = _opened(device)
        self._dtype = dtype
        self._uid = f"torch:{_name(self._device)}:{dtype}"
        self._meter = Unmetered()
        self._stream = _stream(self._device) if self._device.type == "cuda" else None
        self._work = InProcess(self._uid, depth, self._open)
        if self._device.type == "cuda":
            warn_experimental("TorchDevice on CUDA", "it ran on CPUs, its tests on a GPU never did")

    def probe(self) -> DeviceInfo:
        """Say which device it is."""
        cuda = self._device.type == "cuda"
        return DeviceInfo(
            uid=self._uid,
            name=f"torch {torch.__version__} on {_model(self._device)}, {self._dtype}",
            available=not self._work.closed,
            reason=CLOSED if self._work.closed else "",
            exact=False,
            simulated=False,
            memory_bytes=torch.cuda.get_device_properties(self._device).total_memory if cuda else None,
            details={"device": str(self._device), "dtype": self._dtype},
        )

    def load(self, artifact: Artifact, *, replacing: Handle | None = None) -> Handle:
        """Put the weights on the device.

        Raises:
            ArtifactError: The artifact's tensors do not fit its program.
            DeviceError: No memory, or ``replacing`` is unknown.
        """
        return self._work.load(artifact, replacing)

    def submit(self, handle: Handle, batch: Batch, *, wait_s: float | None = None) -> Future[Result]:
        """Queue a batch.

        Raises:
            BatchError: The batch does not fit the model.
            DeviceError: The handle is unknown.
            QueueFullError: No room within ``wait_s``.
            DeviceLostError: The device is closed.
        """
        return self._work.submit(handle, batch, wait_s)

    def energy(self) -> EnergyReading:
        """Say where the joules are."""
        where = "GPU" if self._device.type == "cuda" else "CPU"
        return EnergyReading(
            energy_j=None,
            provenance=Provenance.MISSING,
            note=f"the {where}'s joules are in the ledger under the {where}; the share of this device is not known",
        )

    @property
    def meter(self) -> PowerMeter:
        """No sensors: the hardware's own meter has them."""
        return self._meter

    def close(self) -> None:
        """Fail what waits, and free the weights. Idempotent."""
        self._work.close()

    def _open(self, artifact: Artifact) -> "_Model":
        """Return a model whose weights have arrived: on a GPU they are copied on a stream that waits for no batch."""
        dtype = DTYPES[self._dtype]
        try:
            if self._stream is None:
                return _Model(TorchEngine(artifact, self._device, dtype), None)
            with torch.cuda.device(self._device), torch.cuda.stream(_stream(self._device)):
                engine = TorchEngine(artifact, self._device, dtype)
                torch.cuda.current_stream().synchronize()
            return _Model(engine, self._stream)
        except RuntimeError as error:  # torch's OutOfMemoryError is one
            raise DeviceError(f"{artifact.nbytes} bytes of weights do not go on {self._device}: {error}") from error


class _Model:
    """An engine, and the stream on which it runs."""

    def __init__(self, engine: TorchEngine, stream: torch.cuda.Stream | None) -> None:
        self._engine = engine
        self._stream = stream

    @property
    def program(self) -> Program:
        """Of the artifact."""
        return self._engine.program

    def run(self, batch: Batch) -> Result:
        """Compute a batch, in the lane's thread."""
        inner, order = (batch, None) if batch.prompt_tokens is not None else by_length(batch)
        packed = pack(inner, self.program)
        found, run_s = self._on_cpu(packed) if self._stream is None else self._on_gpu(packed, self._stream)
        return result(found.numpy(), packed.targets, order, labels=self.program.labels, rows=packed.rows, run_s=run_s)

    def _on_cpu(self, packed: Packed) -> tuple[torch.Tensor, float]:
        begun_s = time.perf_counter()
        found = self._engine.run(packed)
        return found, time.perf_counter() - begun_s

    def _on_gpu(self, packed: Packed, stream: torch.cuda.Stream) -> tuple[torch.Tensor, float]:
        """Run on the device's stream; the thread sleeps until the event, so that it costs the training no core."""
        with torch.cuda.device(stream.device), torch.cuda.stream(stream):
            begun, ended = _event(), _event()
            begun.record()
            found = self._engine.run(packed)
            held = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
            held.copy_(found, non_blocking=True)
            ended.record()
            ended.synchronize()
            return held.clone(), begun.elapsed_time(ended) / 1000.0  # pinned memory is scarce, results are kept


def _event() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
    return event


def _stream(device: torch.device) -> torch.cuda.Stream:
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return stream


def _opened(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"device={name!r} is no torch device ({error}): write cpu, cuda or cuda:1") from error
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise DeviceError(f"device={name!r}: the torch device knows cpu and cuda")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = device.index or 0
    if index >= count:
        raise DeviceError(f"device={name!r}: torch {torch.__version__} sees {count} CUDA devices here")
    return torch.device("cuda", index)


def _name(device: torch.device) -> str:
    """Return a name that every process on the node uses for the same hardware."""
    if device.type == "cpu":
        return "cpu"
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return f"GPU-{uuid}" if uuid else str(device)


def _model(device: torch.device) -> str:
    return "the CPU" if device.type == "cpu" else torch.cuda.get_device_name(device)
