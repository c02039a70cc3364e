"""An offload device of one's own: OpenVINO's plugins, for Intel's and other CPUs, and by name Intel's NPU.

    pip install 'openvino>=2025.1'

``place(..., OpenVinoDevice("CPU"))`` takes an instance; for ``greentrain fpga devices`` and configuration files, give a
package of yours an entry point in the group ``greentrain.offload_devices`` that names this class.

A program becomes an OpenVINO model operator by operator, without a detour over torch or ONNX. Registers are [sequences,
tokens, width], padded on the right; after pooling [sequences, width]. Integer weights stay integers times scales, a
pattern that OpenVINO's plugins keep compressed in memory. Operators:
docs.openvino.ai/2026/documentation/openvino-ir-format/operation-sets/available-opsets/opset15.html (read 2026-11-21).
"""

import time
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import openvino
from openvino import opset15 as ov

from greentrain.fpga_backend.artifact import Artifact, checked
from greentrain.fpga_backend.batch import SLACK, STRETCH, Batch, Result
from greentrain.fpga_backend.device import DeviceInfo
from greentrain.fpga_backend.devices.base import InProcess
from greentrain.fpga_backend.errors import DeviceError
from greentrain.fpga_backend.program import (
    Add,
    Attention,
    Columns,
    Embed,
    Gate,
    Linear,
    LogProb,
    Norm,
    Op,
    Pool,
    Program,
    Rotary,
    Score,
    widths,
)

Node = Any
"""An output of an OpenVINO operator."""
IDS, TYPES, LENGTHS, TARGETS = "ids", "types", "lengths", "targets"


def graph(artifact: Artifact) -> Any:
    """Return the model of an artifact.

    Its inputs are int32: ``ids`` and, where the program has them, ``types`` [sequences, tokens], ``lengths``
    [sequences], and for log-probabilities ``targets`` [sequences, tokens], the token that each row is asked about. Its
    output is scores [sequences, labels], or log-probabilities [sequences, tokens].

    Raises:
        ArtifactError: The artifact's tensors do not fit its program.
    """
    checked(artifact)
    return _Graph(artifact).model()


@dataclass(slots=True)
class _Graph:
    """Builds one model."""

    artifact: Artifact
    registers: dict[int, Node] = field(default_factory=dict)
    inputs: dict[str, Node] = field(default_factory=dict)
    positions: Node = None
    mask: Node = None
    """[sequences, 1, 1, tokens]: what is no padding."""

    def model(self) -> Any:
        program = self.artifact.program
        ids = self._input(IDS, [-1, -1])
        lengths = self._input(LENGTHS, [-1])
        tokens = ov.squeeze(ov.gather(ov.shape_of(ids, "i32"), _ints([1]), _ints(0)), _ints([0]))
        self.positions = ov.range(_ints(0), tokens, _ints(1), "i32")
        self.mask = ov.less(ov.reshape(self.positions, _ints([1, 1, 1, -1]), False), _column(lengths, 4))
        value: Node = None
        for op in program.ops:
            value = self._value(op)
            if not isinstance(op, LogProb):
                self.registers[op.out] = value
        parameters = [node for node in self.inputs.values()]
        return openvino.Model([ov.result(value)], parameters, "greentrain")

    def _value(self, op: Op) -> Node:
        match op:
            case Embed():
                return self._embedded(op)
            case Add():
                return ov.add(self._read(op.x), self._read(op.y))
            case Norm():
                return self._normed(op)
            case Linear() | Score():
                return self._affine(self._read(op.x), op.weight, op.bias)
            case Gate():
                y = _activated(self._read(op.x), op.table)
                return y if op.up is None else ov.multiply(y, self._read(op.up))
            case Rotary():
                return self._rotated(op)
            case Attention():
                return self._attended(op)
            case Pool():
                return self._pooled(op)
            case LogProb():
                ln_p = ov.log_softmax(self._affine(self._read(op.x), op.weight, op.bias), -1)
                wanted = ov.unsqueeze(self._input(TARGETS, [-1, -1]), _ints([2]))
                return ov.squeeze(ov.gather_elements(ln_p, wanted, 2), _ints([2]))
        raise TypeError(f"{type(op).__name__} is no operator of a program")

    def _embedded(self, op: Embed) -> Node:
        if op.index == "position":
            index = ov.unsqueeze(self.positions, _ints([0]))
        else:
            index = self._input({"token": IDS, "type": TYPES}[op.index], [-1, -1])
        if op.offset:
            index = ov.add(index, _ints(op.offset))
        if self.artifact.program.precision != "w8a8":
            return ov.gather(self._constant(f"{op.weight}.w"), index, _ints(0))
        rows = ov.convert(ov.gather(self._constant(f"{op.weight}.q"), index, _ints(0)), "f32")
        scales = ov.gather(self._constant(f"{op.weight}.s"), index, _ints(0))
        return ov.multiply(rows, ov.unsqueeze(scales, _ints([2])))

    def _normed(self, op: Norm) -> Node:
        x, last = self._read(op.x), _ints([-1])
        if op.kind == "layer":
            y = ov.mvn(x, last, True, op.eps, "inside_sqrt")
        else:
            squares = ov.reduce_mean(ov.multiply(x, x), last, True)
            y = ov.multiply(x, ov.divide(_floats(1.0), ov.sqrt(ov.add(squares, _floats(op.eps)))))
        y = ov.multiply(y, self._constant(f"{op.weight}.g"))
        return ov.add(y, self._constant(f"{op.weight}.b")) if op.bias else y

    def _affine(self, x: Node, stem: str, bias: bool) -> Node:
        if self.artifact.program.precision == "w8a8":
            integers = ov.convert(self._constant(f"{stem}.q"), "f32")
            weight = ov.multiply(integers, ov.constant(self.artifact.tensors[f"{stem}.s"].numpy()[:, None]))
        else:
            weight = self._constant(f"{stem}.w")
        y = ov.matmul(x, weight, False, True)
        return ov.add(y, self._constant(f"{stem}.b")) if bias else y

    def _rotated(self, op: Rotary) -> Node:
        half = op.x.width // op.heads // 2
        both = ov.reshape(self._read(op.x), _ints([0, 0, op.heads, 2 * half]), True)
        first, second = ov.split(both, _ints(3), 2).outputs()
        cos, sin = (self._angles(f"{op.weight}.{part}", half) for part in ("cos", "sin"))
        one = ov.subtract(ov.multiply(first, cos), ov.multiply(second, sin))
        other = ov.add(ov.multiply(second, cos), ov.multiply(first, sin))
        return ov.reshape(ov.concat([one, other], 3), _ints([0, 0, op.x.width]), True)

    def _angles(self, name: str, half: int) -> Node:
        """Return a table's rows for the positions, [1, tokens, 1, half a head]."""
        rows = ov.gather(self._constant(name), self.positions, _ints(0))
        return ov.reshape(rows, _ints([1, -1, 1, half]), False)

    def _attended(self, op: Attention) -> Node:
        q = _by_head(self._read(op.q), op.heads, op.q.width)
        k, v = (_repeated(_by_head(self._read(x), op.kv_heads, x.width), op, x.width) for x in (op.k, op.v))
        width = op.v.width // op.kv_heads * op.heads
        scale = _floats(op.scale)
        if op.causal:  # padding comes after every real query
            mixed = ov.scaled_dot_product_attention(q, k, v, _floats(0.0), scale, causal=True)
        else:
            mixed = ov.scaled_dot_product_attention(q, k, v, self.mask, scale, causal=False)
        return ov.reshape(ov.transpose(mixed, _ints([0, 2, 1, 3])), _ints([0, 0, width]), True)

    def _pooled(self, op: Pool) -> Node:
        x, lengths = self._read(op.x), self.inputs[LENGTHS]
        match op.how:
            case "first":
                return ov.gather(x, _ints(0), _ints(1))
            case "last":
                at = ov.unsqueeze(ov.subtract(lengths, _ints(1)), _ints([1]))
                return ov.squeeze(ov.gather(x, at, _ints(1), 1), _ints([1]))
            case "mean":
                real = ov.convert(ov.reshape(self.mask, _ints([0, -1, 1]), True), "f32")
                return ov.divide(
                    ov.reduce_sum(ov.multiply(x, real), _ints([1])), ov.convert(_column(lengths, 2), "f32")
                )

    def _read(self, columns: Columns) -> Node:
        held = self.registers[columns.register]
        if columns.width == widths(self.artifact.program)[columns.register]:
            return held
        stop = columns.start + columns.width
        return ov.slice(held, _ints([columns.start]), _ints([stop]), _ints([1]), _ints([-1]))

    def _constant(self, name: str) -> Node:
        return ov.constant(self.artifact.tensors[name].contiguous().numpy())

    def _input(self, name: str, shape: list[int]) -> Node:
        if name not in self.inputs:
            self.inputs[name] = ov.parameter(openvino.PartialShape(shape), np.int32, name)
            self.inputs[name].output(0).set_names({name})
        return self.inputs[name]


def _ints(value: int | list[int]) -> Node:
    return ov.constant(np.array(value, dtype=np.int32))


def _floats(value: float) -> Node:
    return ov.constant(np.array(value, dtype=np.float32))


def _column(lengths: Node, dimensions: int) -> Node:
    """Return [sequences] as [sequences, 1, ...]."""
    return ov.reshape(lengths, _ints([-1, *[1] * (dimensions - 1)]), False)


def _by_head(x: Node, heads: int, width: int) -> Node:
    """Return [sequences, tokens, width] as [sequences, heads, tokens, width of a head]."""
    return ov.transpose(ov.reshape(x, _ints([0, 0, heads, width // heads]), True), _ints([0, 2, 1, 3]))


def _repeated(x: Node, op: Attention, width: int) -> Node:
    """Return key heads as often as there are query heads for each."""
    if op.heads == op.kv_heads:
        return x
    wide = ov.broadcast(
        ov.unsqueeze(x, _ints([2])), _ints([1, 1, op.heads // op.kv_heads, 1, 1]), None, "BIDIRECTIONAL"
    )
    return ov.reshape(wide, _ints([0, op.heads, -1, width // op.kv_heads]), True)


def _activated(x: Node, table: str) -> Node:
    match table:
        case "gelu":
            return ov.gelu(x, "erf")
        case "gelu_tanh":
            return ov.gelu(x, "tanh")
        case "silu":
            return ov.swish(x)
        case "tanh":
            return ov.tanh(x)
    return ov.relu(x)


PRECISIONS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
MOST_ROWS = 2**15
"""Sequences times tokens of one call."""
LOGITS = 2**25
"""Rows times vocabulary of one call: 128 MB of binary32."""


class OpenVinoDevice(InProcess):
    """Runs artifacts of any precision by OpenVINO, in floating point.

    Sequences run in calls of like lengths, padded; shared prompts are computed for each of their sequences.

    Args:
        device: ``CPU``, which is tested, or another one that OpenVINO lists here, such as ``NPU``, which is not.
        dtype: Type of the arithmetic, where the plugin can.
        static: True: every call is one sequence padded to the longest the model takes, as the NPU's compiler needs;
            None: True for the NPU alone.
        depth: Number of batches that may wait.

    Raises:
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
        if dtype not in PRECISIONS:
            raise ValueError(f"dtype={dtype!r}: choose one of {', '.join(PRECISIONS)}")
        self._core: Any = openvino.Core()
        listed = list(self._core.available_devices)
        if device not in listed:
            raise DeviceError(f"device={device!r}: OpenVINO {openvino.__version__} lists {', '.join(listed)} here")
        self._device = device
        self._dtype = dtype
        self._static = device.startswith("NPU") if static is None else static
        uid = f"openvino:{device}:{dtype}"
        processor = str(self._core.get_property(device, "FULL_DEVICE_NAME"))
        info = DeviceInfo(
            uid=uid,
            name=f"OpenVINO {openvino.__version__} on {processor}, {dtype}",
            available=True,
            exact=False,
            simulated=False,
            details={"device": device, "dtype": dtype, "static": str(self._static)},
        )
        note = (
            "the CPU's joules are in the ledger under the CPU; the share of this device is not known"
            if device == "CPU"
            else f"OpenVINO tells no joules of {device}"
        )
        super().__init__(uid, depth, self._compiled, info=info, note=note)

    def _compiled(self, artifact: Artifact) -> "_CompiledModel":
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
        return _CompiledModel(artifact.program, compiled, static=self._static)


class _CompiledModel:
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
        return Result.of(whole, targets, labels=labels, rows=rows, run_s=run_s, order=order)

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


def length_groups(batch: Batch, most_rows: int) -> list[tuple[int, ...]]:
    """Return a batch's sequences in groups of like lengths, which lose little by being padded.

    Args:
        batch: Sequences.
        most_rows: Largest number of sequences times longest length in a group of more than one.
    """
    groups: list[tuple[int, ...]] = []
    for i in sorted(range(len(batch.ids)), key=lambda i: len(batch.ids[i])):
        size, group = len(batch.ids[i]), groups[-1] if groups else ()
        shortest = len(batch.ids[group[0]]) if group else 0
        if group and size <= max(shortest * STRETCH, shortest + SLACK) and (len(group) + 1) * size <= most_rows:
            groups[-1] = (*group, i)
        else:
            groups.append((i,))
    return groups


def _wanted(batch: Batch, i: int) -> slice:
    """Return the rows of a sequence whose prediction is wanted."""
    first = 1 if batch.prompt_tokens is None else max(batch.prompt_tokens[i], 1)
    return slice(first - 1, len(batch.ids[i]) - 1)


def _names(model: Any) -> list[str]:
    return [port.get_any_name() for port in model.inputs]
