"""OpenVINO's plugins as an offload device: Intel's and other CPUs, and by name Intel's NPU."""

import time
from concurrent.futures import Future
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.device import DeviceInfo, EnergyReading, Handle
from greentrain.fpga_backend.devices.base import CLOSED, InProcess
from greentrain.fpga_backend.devices.buckets import length_groups
from greentrain.fpga_backend.devices.float_results import result
from greentrain.fpga_backend.devices.openvino_graph import IDS, LENGTHS, TARGETS, TYPES, graph, imports
from greentrain.fpga_backend.devices.unmetered import Unmetered
from greentrain.fpga_backend.errors import DeviceError
from greentrain.fpga_backend.program import Program
from greentrain.types import PowerMeter, Provenance

PRECISIONS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
MOST_ROWS = 2**15
"""Sequences times tokens of one call."""
LOGITS = 2**25
"""Rows times vocabulary of one call: 128 MB of binary32."""


class OpenVinoDevice:
    """Runs artifacts of any precision by OpenVINO, in floating point.

    Sequences run in calls of like lengths, padded; shared prompts are computed for each of their sequences.

    Args:
        device: ``CPU``, which is tested, or another one that OpenVINO lists here, such as ``NPU``, which is not.
        dtype: Of the arithmetic, where the plugin can.
        static: True: every call is one sequence padded to the longest the model takes, as the NPU's compiler needs;
            None: True for the NPU alone.
        depth: How many batches may wait.

    Raises:
        MissingExtraError: OpenVINO is not installed.
        DeviceError: OpenVINO does not list the device.
        ValueError: Unknown ``dtype``, or ``depth`` below 1.
    """

    def __init__(
        self,
        device: str = "CPU",
        dtype: Literal["fp32", "bf16", "fp16"] = "fp32",
        *,
        static: bool | None = None,
        depth: int = 16,
    ) -> None:
        imports.check()
        import openvino

        if dtype not in PRECISIONS:
            raise ValueError(f"dtype={dtype!r}: choose one of {', '.join(PRECISIONS)}")
        self._core: Any = openvino.Core()
        listed = list(self._core.available_devices)
        if device not in listed:
            raise DeviceError(f"device={device!r}: OpenVINO {openvino.__version__} lists {', '.join(listed)} here")
        self._device = device
        self._dtype = dtype
        self._version = str(openvino.__version__)
        self._model = str(self._core.get_property(device, "FULL_DEVICE_NAME"))
        self._static = device.startswith("NPU") if static is None else static
        self._uid = f"openvino:{device}:{dtype}"
        self._meter = Unmetered()
        self._work = InProcess(self._uid, depth, self._open)

    def probe(self) -> DeviceInfo:
        """Say which plugin it is."""
        return DeviceInfo(
            uid=self._uid,
            name=f"OpenVINO {self._version} on {self._model}, {self._dtype}",
            available=not self._work.closed,
            reason=CLOSED if self._work.closed else "",
            exact=False,
            simulated=False,
            details={"device": self._device, "dtype": self._dtype, "static": str(self._static)},
        )

    def load(self, artifact: Artifact, *, replacing: Handle | None = None) -> Handle:
        """Compile the artifact for the plugin.

        Raises:
            ArtifactError: The artifact's tensors do not fit its program.
            DeviceError: The plugin cannot compile it, or ``replacing`` is unknown.
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
        where = (
            "the CPU's joules are in the ledger under the CPU; the share of this device is not known"
            if self._device == "CPU"
            else f"OpenVINO tells no joules of {self._device}"
        )
        return EnergyReading(energy_j=None, provenance=Provenance.MISSING, note=where)

    @property
    def meter(self) -> PowerMeter:
        """No sensors: the hardware's own meter has them."""
        return self._meter

    def close(self) -> None:
        """Fail what waits, and free the models. Idempotent."""
        self._work.close()

    def _open(self, artifact: Artifact) -> "_Model":
        model = graph(artifact)
        if self._static:
            longest = artifact.program.max_tokens
            model.reshape({name: [1] if name == LENGTHS else [1, longest] for name in _names(model)})
        options = {"INFERENCE_PRECISION_HINT": PRECISIONS[self._dtype], "PERFORMANCE_HINT": "LATENCY"}
        if self._device == "CPU":
            options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = "0"  # activations stay floats
        try:
            compiled = self._core.compile_model(model, self._device, options)
        except RuntimeError as error:
            raise DeviceError(f"OpenVINO's {self._device} plugin cannot compile {artifact.source}: {error}") from error
        return _Model(artifact.program, compiled, static=self._static)


class _Model:
    """A compiled model."""

    def __init__(self, program: Program, compiled: Any, *, static: bool) -> None:
        self._program = program
        self._inputs = _names(compiled)
        self._request = compiled.create_infer_request()
        self._static = static

    @property
    def program(self) -> Program:
        """Of the artifact."""
        return self._program

    def run(self, batch: Batch) -> Result:
        """Compute a batch, in the lane's thread."""
        labels, vocabulary = self._program.labels, self._program.vocabulary
        most = 1 if self._static else MOST_ROWS if labels else max(1, min(MOST_ROWS, LOGITS // vocabulary))
        order: list[int] = []
        found: list[npt.NDArray[np.float32]] = []
        rows, run_s = 0, 0.0
        for group in length_groups(batch, most):
            width = self._program.max_tokens if self._static else max(len(batch.ids[i]) for i in group)
            fed = self._fed(batch, group, width)
            begun_s = time.perf_counter()
            self._request.infer(fed)
            run_s += time.perf_counter() - begun_s
            values = self._request.get_output_tensor(0).data
            found += [values[j].copy() if labels else values[j, _wanted(batch, i)].copy() for j, i in enumerate(group)]
            order += group
            rows += len(group) * width
        targets = [len(row) for row in found]
        whole = np.stack(found) if labels else np.concatenate(found)
        return result(whole, targets, order, labels=labels, rows=rows, run_s=run_s)

    def _fed(self, batch: Batch, group: tuple[int, ...], width: int) -> dict[str, npt.NDArray[np.int32]]:
        """Return the inputs of a call, padded with token 0."""
        fed = {name: np.zeros((len(group), width), dtype=np.int32) for name in self._inputs}
        fed[LENGTHS] = np.array([len(batch.ids[i]) for i in group], dtype=np.int32)
        for j, i in enumerate(group):
            ids = batch.ids[i]
            fed[IDS][j, : len(ids)] = ids
            if TYPES in fed and batch.types is not None:
                fed[TYPES][j, : len(ids)] = batch.types[i]
            if TARGETS in fed:
                fed[TARGETS][j, : len(ids) - 1] = ids[1:]
        return {name: fed[name] for name in self._inputs}


def _wanted(batch: Batch, i: int) -> slice:
    """Return the rows of a sequence whose prediction is wanted."""
    first = 1 if batch.prompt_tokens is None else max(batch.prompt_tokens[i], 1)
    return slice(first - 1, len(batch.ids[i]) - 1)


def _names(model: Any) -> list[str]:
    return [port.get_any_name() for port in model.inputs]
