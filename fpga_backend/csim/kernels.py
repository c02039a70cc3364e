"""The kernels of the card: one table, from which bindings, the check of an xclbin and the register map are derived.

Registers of the program are matrices of binary32 whose rows are padded to whole beats of 64 bytes; ``_stride`` counts
beats, ``_start`` and ``_width`` columns. Rows of 8-bit and 16-bit integers are padded with zeros in the same way. The
C++ of a kernel is ``hls/<name without gt_>.cpp``; what it computes is said in ``CONTRACT.md``.

Scalars are 32-bit integers, because XRT's ``set_arg`` takes buffers and ints: a float travels as its bits, a truth
value as 0 or 1. A kernel always gets every pointer; where one is not used (a bias that is not there), any buffer of
the same region does.
"""

import functools
import itertools
from dataclasses import dataclass
from typing import Literal

DType = Literal["int8", "int16", "int32", "float32", "float64"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """Shape of the systolic arrays in a kernel (``rtl/gt_tile.v``)."""

    rows: int
    columns: int
    arrays: int = 1
    """How many take the same rows, each its own columns."""

    @property
    def outputs(self) -> int:
        """Columns of all of them."""
        return self.arrays * self.columns


GEMM = Array(rows=64, columns=64, arrays=2)
"""``ROWS``, ``COLUMNS`` and ``ARRAYS`` of ``hls/gemm.cpp``."""
ATTENTION = Array(rows=32, columns=32)
"""``QUERIES`` and ``KEYS`` of ``hls/attention.cpp``, which has two: of queries and keys, of weights and values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRegion:
    """Banks of the card's memory that one kind of data lies in: number ``bank`` in :meth:`Card.allocate`."""

    bank: int
    name: str
    first: int
    last: int
    """HBM pseudo channels, as in ``HBM[first:last]`` of a link configuration."""

    @property
    def tag(self) -> str:
        """The region in a link configuration."""
        return f"HBM[{self.first}]" if self.first == self.last else f"HBM[{self.first}:{self.last}]"


WORK = MemoryRegion(bank=0, name="work", first=0, last=11)
STREAMS = tuple(
    MemoryRegion(bank=1 + i, name=f"weights {i}", first=12 + 5 * i, last=16 + 5 * i) for i in range(2 * GEMM.arrays)
)
REGIONS = (WORK, *STREAMS)
"""A port reaches every bank of its region, so that what one kernel wrote can be read by each other. The weights of
products lie in four regions with a port each; all else in the first. The card has 32 pseudo channels of 512 MB: UG1393,
"HBM Configuration and Use"; 2026-11-21."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of a kernel."""

    name: str
    kind: Literal["pointer", "scalar"]
    dtype: DType
    region: MemoryRegion | None = None
    """Where a pointer's buffer lies; None for a scalar."""
    bundle: str = ""
    """The m_axi port of a pointer."""
    written: bool = False
    """True for what the kernel writes."""

    @property
    def bank(self) -> int | None:
        """Number of the region of a pointer."""
        return None if self.region is None else self.region.bank


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSpec:
    """A kernel: its name, and its arguments in order."""

    name: str
    arguments: tuple[Argument, ...]

    @property
    def source(self) -> str:
        """The file in ``hls/`` that holds it."""
        return f"{self.name.removeprefix('gt_')}.cpp"


def _kernel(name: str, *pointers: tuple[Argument, ...], scalars: str) -> KernelSpec:
    ints = tuple(Argument(name=scalar, kind="scalar", dtype="int32") for scalar in scalars.split())
    return KernelSpec(name=name, arguments=(*itertools.chain(*pointers), *ints))


def _in(
    names: str, dtype: DType, region: MemoryRegion = WORK, bundle: int = 0, *, written: bool = False
) -> tuple[Argument, ...]:
    """Return the pointers of these names, which share type, region and port."""
    port = f"gmem{bundle}"
    return tuple(
        Argument(name=name, kind="pointer", dtype=dtype, region=region, bundle=port, written=written)
        for name in names.split()
    )


_out = functools.partial(_in, written=True)

KERNELS = (
    _kernel(
        "gt_embed",
        _in("q", "int16"),
        _in("s", "float32"),
        _in("index", "int32"),
        _out("y", "float32"),
        scalars="rows width offset",
    ),
    _kernel(
        "gt_norm",
        _in("x g b", "float32"),
        _out("y", "float32"),
        scalars="rows x_stride x_start width layer biased eps groups",
    ),
    _kernel(
        "gt_quantise",
        _in("x", "float32"),
        _in("index", "int32"),
        _out("q", "int8"),
        _out("s", "float32"),
        scalars="rows x_stride x_start width groups indexed first digits",
    ),
    _kernel(
        "gt_gemm",
        _in("q", "int8"),
        _in("qs", "float32", WORK, 5),
        *(_in(f"w{i}", "int8", region, 1 + i) for i, region in enumerate(STREAMS)),
        _in("ws b", "float32", WORK, 5),
        _out("y", "float32"),
        scalars="rows inner_beats outputs biased digits",
    ),
    _kernel(
        "gt_gate",
        _in("x up", "float32"),
        _in("table", "int32"),
        _out("y", "float32"),
        scalars="rows x_stride x_start up_stride up_start width kind gated",
    ),
    _kernel(
        "gt_rotary",
        _in("x cos sin", "float32"),
        _in("positions", "int32"),
        _out("y", "float32"),
        scalars="rows x_stride x_start heads half",
    ),
    _kernel(
        "gt_attention",
        _in("q", "int8"),
        _in("qs", "float32"),
        _in("k", "int8"),
        _in("ks", "float32"),
        _in("v", "int8", WORK, 1),
        _in("vs", "float32"),
        _in("exp2 segments", "int32"),
        _out("y", "float32"),
        scalars="segment_count heads kv_heads key_beats value_beats value_width scale causal window softcap",
    ),
    _kernel(
        "gt_pool",
        _in("x", "float32"),
        _in("segments", "int32"),
        _out("y", "float32"),
        scalars="sequences x_stride x_start width how",
    ),
    _kernel(
        "gt_score",
        _in("x", "float32"),
        _in("w", "int16"),
        _in("ws b", "float32"),
        _out("y", "float32"),
        scalars="rows x_stride x_start width labels biased",
    ),
    _kernel(
        "gt_logprob",
        _in("logits", "float32"),
        _in("ids exp2", "int32"),
        _in("ln", "float64"),
        _out("y", "float32"),
        scalars="rows vocabulary first",
    ),
)
"""All kernels of the card, in the order in which a program first needs them. Each has one port of 512 bits, but the
product (six) and attention (two): 16 of the HBM's 32, which leaves room for a second unit of both."""
