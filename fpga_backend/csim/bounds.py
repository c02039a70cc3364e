"""How many bytes each pointer of a launch must reach: this keeps a wrong launch from memory that is not its own.

Where rows are picked by an index (``index``, ``positions``, ``ids``, ``segments``), what the index can reach is the
caller's to check: the schedule checks the program's tables once, and each batch before it is packed.
"""

from collections.abc import Mapping

Bytes = Mapping[str, int]
BEAT = 64


def padded(elements: int, size: int) -> int:
    """Return the bytes of ``elements`` of ``size`` bytes each, in whole beats."""
    return -(-elements * size // BEAT) * BEAT


def extents(kernel: str, s: Mapping[str, int]) -> Bytes:
    """Return the least size of each pointer's buffer.

    Args:
        kernel: Name of a kernel.
        s: Its scalars by name.

    Returns:
        Bytes by pointer; a pointer that is not used, or whose reach depends on data alone, is left away.

    Raises:
        KeyError: No such kernel.
    """
    return {name: size for name, size in _EXTENTS[kernel](s).items() if size}


def _slice(s: Mapping[str, int], name: str, rows: int, width: int) -> int:
    stride, start = s[f"{name}_stride"], s[f"{name}_start"]
    return max(0, rows - 1) * stride * BEAT + padded(start + width, 4) if rows > 0 else 0


def _embed(s: Mapping[str, int]) -> Bytes:
    return {"index": 4 * s["rows"], "y": s["rows"] * padded(s["width"], 4)}


def _add(s: Mapping[str, int]) -> Bytes:
    rows, width = s["rows"], s["width"]
    return {
        "x": _slice(s, "x", rows, width),
        "z": _slice(s, "z", rows, width),
        "y": rows * padded(width, 4),
    }


def _norm(s: Mapping[str, int]) -> Bytes:
    rows, width = s["rows"], s["width"]
    vector = padded(width, 4)
    return {"x": _slice(s, "x", rows, width), "g": vector, "b": vector * s["biased"], "y": rows * vector}


def _quantise(s: Mapping[str, int]) -> Bytes:
    rows, width, groups = s["rows"], s["width"], s["groups"]
    return {
        "x": 0 if s["indexed"] else _slice(s, "x", rows, width),
        "index": 4 * (s["first"] + rows) * s["indexed"],
        "q": rows * groups * s["digits"] * padded(width // groups, 1),
        "s": 4 * rows * groups,
    }


def _gemm(s: Mapping[str, int]) -> Bytes:
    rows, outputs = s["rows"], s["outputs"]
    return {
        "q": rows * s["digits"] * s["inner_beats"] * BEAT,
        "qs": 4 * rows,
        "w": outputs * s["inner_beats"] * BEAT,
        "ws": padded(outputs, 4),
        "b": padded(outputs, 4) * s["biased"],
        "y": rows * padded(outputs, 4),
    }


def _gate(s: Mapping[str, int]) -> Bytes:
    rows, width = s["rows"], s["width"]
    return {
        "x": _slice(s, "x", rows, width),
        "up": _slice(s, "up", rows, width) * s["gated"],
        "table": 0 if s["kind"] == 2 else 8192 * 4,
        "y": rows * padded(width, 4),
    }


def _rotary(s: Mapping[str, int]) -> Bytes:
    rows, width = s["rows"], 2 * s["half"] * s["heads"]
    return {"x": _slice(s, "x", rows, width), "positions": 4 * rows, "y": rows * padded(width, 4)}


def _attention(s: Mapping[str, int]) -> Bytes:
    return {"exp2": 4 * 4096, "segments": 16 * s["segment_count"]}


def _pool(s: Mapping[str, int]) -> Bytes:
    return {"segments": 16 * s["sequences"], "y": s["sequences"] * padded(s["width"], 4)}


def _score(s: Mapping[str, int]) -> Bytes:
    rows, labels = s["rows"], s["labels"]
    return {
        "x": _slice(s, "x", rows, s["width"]),
        "w": labels * padded(s["width"], 2),
        "ws": 4 * labels,
        "b": 4 * labels * s["biased"],
        "y": rows * padded(labels, 4),
    }


def _logprob(s: Mapping[str, int]) -> Bytes:
    end = s["first"] + s["rows"]
    return {
        "logits": s["rows"] * padded(s["vocabulary"], 4),
        "ids": 4 * end,
        "exp2": 4 * 4096,
        "ln": 8 * 4096,
        "y": 4 * end,
    }


_EXTENTS = {
    "gt_embed": _embed,
    "gt_add": _add,
    "gt_norm": _norm,
    "gt_quantise": _quantise,
    "gt_gemm": _gemm,
    "gt_gate": _gate,
    "gt_rotary": _rotary,
    "gt_attention": _attention,
    "gt_pool": _pool,
    "gt_score": _score,
    "gt_logprob": _logprob,
}
