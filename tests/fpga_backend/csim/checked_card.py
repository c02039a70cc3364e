"""A card that lets no kernel outside its buffers: how many bytes each pointer of a launch must reach.

Where rows are picked by an index (``index``, ``positions``, ``ids``, ``segments``), what the index can reach is the
schedule's to check.
"""

from collections.abc import Mapping, Sequence

from greentrain.fpga_backend.card import Buffer
from greentrain.fpga_backend.csim.card import CsimCard
from greentrain.fpga_backend.csim.kernels import KernelSpec
from greentrain.fpga_backend.errors import DeviceError

Bytes = Mapping[str, int]
BEAT = 64


def padded(elements: int, size: int) -> int:
    """Return the bytes of ``elements`` of ``size`` bytes each, in whole beats."""
    return -(-elements * size // BEAT) * BEAT


def extents(kernel: str, s: Mapping[str, int]) -> Bytes:
    """Return the least size of each pointer's buffer.

    Args:
        kernel: Name of a kernel.
        s: Scalar arguments of the launch by name.

    Returns:
        Bytes by pointer; a pointer that is not used, or whose reach depends on data alone, is left away.

    Raises:
        KeyError: No such kernel.
    """
    return {name: size for name, size in _reached(kernel, s).items() if size}


def _reached(kernel: str, s: Mapping[str, int]) -> Bytes:
    """Return the bytes that a launch can touch of each pointer whose reach its scalars say."""
    rows, width = s.get("rows", 0), s.get("width", 0)
    match kernel:
        case "gt_embed":
            return {"index": padded(rows, 4), "y": rows * padded(width, 4)}
        case "gt_norm":
            vector = padded(width, 4)
            return {"x": _slice(s, "x", rows, width), "g": vector, "b": vector * s["biased"], "y": rows * vector}
        case "gt_quantise":
            return {
                "x": 0 if s["indexed"] else _slice(s, "x", rows, width),
                "index": padded(s["first"] + rows, 4) * s["indexed"],
                "q": rows * s["groups"] * s["digits"] * padded(width // s["groups"], 1),
                "s": padded(rows * s["groups"], 4),
            }
        case "gt_gemm":
            outputs = padded(s["outputs"], 4)
            return {
                "q": rows * s["digits"] * s["inner_beats"] * BEAT,
                "qs": padded(rows, 4),
                **{f"w{i}": -(-s["outputs"] // 128) * s["inner_beats"] * BEAT * 32 for i in range(4)},
                "ws": outputs,
                "b": outputs * s["biased"],
                "y": rows * outputs,
            }
        case "gt_gate":
            return {
                "x": _slice(s, "x", rows, width),
                "up": _slice(s, "up", rows, width) * (s["gated"] or s["kind"] == 3),
                "table": 0 if s["kind"] > 1 else 8192 * 4,
                "y": rows * padded(width, 4),
            }
        case "gt_rotary":
            width = 2 * s["half"] * s["heads"]
            return {"x": _slice(s, "x", rows, width), "positions": padded(rows, 4), "y": rows * padded(width, 4)}
        case "gt_attention":
            return {"exp2": 4 * 4096, "segments": padded(4 * s["segment_count"], 4)}
        case "gt_pool":
            return {"segments": padded(4 * s["sequences"], 4), "y": s["sequences"] * padded(width, 4)}
        case "gt_score":
            labels = s["labels"]
            return {
                "x": _slice(s, "x", rows, width),
                "w": labels * padded(width, 2),
                "ws": padded(labels, 4),
                "b": padded(labels, 4) * s["biased"],
                "y": rows * padded(labels, 4),
            }
        case "gt_logprob":
            ends = padded(s["first"] + rows, 4)
            logits = rows * padded(s["vocabulary"], 4)
            return {"logits": logits, "ids": ends, "exp2": 4 * 4096, "ln": 8 * 4096, "y": ends}
    raise KeyError(kernel)


def _slice(s: Mapping[str, int], name: str, rows: int, width: int) -> int:
    stride, start = s[f"{name}_stride"], s[f"{name}_start"]
    return max(0, rows - 1) * stride * BEAT + padded(start + width, 4) if rows > 0 else 0


class CheckedCard(CsimCard):
    """A CsimCard that refuses a launch which a buffer is too small for.

    New buffers are filled with bytes that are NaN as a float, so that what is read before it was written shows.
    """

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(memory.nbytes for memory, _ in self._memory.values())

    def allocate(self, nbytes: int, bank: int = 0) -> Buffer:
        buffer = super().allocate(nbytes, bank)
        self._memory[buffer.number][0].fill(0xFF)
        return buffer

    def _checked(self, spec: KernelSpec, arguments: Sequence[Buffer | int]) -> list[int]:
        raw = super()._checked(spec, arguments)
        given = {argument.name: value for argument, value in zip(spec.arguments, arguments, strict=True)}
        scalars = {name: value for name, value in given.items() if isinstance(value, int)}
        for name, least in extents(spec.name, scalars).items():
            held = given[name]
            if isinstance(held, Buffer) and held.nbytes < least:
                raise DeviceError(f"{spec.name}: {name} needs {least} bytes, its buffer has {held.nbytes}")
        return raw
