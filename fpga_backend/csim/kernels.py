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


ACTIVATIONS = MemoryRegion(bank=0, name="activations", first=0, last=7)
ROWS = MemoryRegion(bank=1, name="rows", first=8, last=9)
WEIGHTS = MemoryRegion(bank=2, name="weights", first=10, last=30)
TABLES = MemoryRegion(bank=3, name="tables", first=31, last=31)
REGIONS = (ACTIVATIONS, ROWS, WEIGHTS, TABLES)
"""A port reaches every bank of its region, so that what one kernel wrote can be read by each other. The card has 32
pseudo channels of 512 MB: UG1393, "HBM Configuration and Use"; 2026-11-21."""


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


def _in(names: str, dtype: DType, region: MemoryRegion, bundle: int, *, written: bool = False) -> tuple[Argument, ...]:
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
        _in("q", "int16", WEIGHTS, 0),
        _in("s", "float32", WEIGHTS, 0),
        _in("index", "int32", TABLES, 1),
        _out("y", "float32", ACTIVATIONS, 2),
        scalars="rows width offset",
    ),
    _kernel(
        "gt_add",
        _in("x z", "float32", ACTIVATIONS, 0),
        _out("y", "float32", ACTIVATIONS, 0),
        scalars="rows x_stride x_start z_stride z_start width",
    ),
    _kernel(
        "gt_norm",
        _in("x", "float32", ACTIVATIONS, 0),
        _in("g b", "float32", WEIGHTS, 1),
        _out("y", "float32", ACTIVATIONS, 0),
        scalars="rows x_stride x_start width layer biased eps groups",
    ),
    _kernel(
        "gt_quantise",
        _in("x", "float32", ACTIVATIONS, 0),
        _in("index", "int32", TABLES, 1),
        _out("q", "int8", ROWS, 2),
        _out("s", "float32", ROWS, 2),
        scalars="rows x_stride x_start width groups indexed first digits",
    ),
    _kernel(
        "gt_gemm",
        _in("q", "int8", ROWS, 0),
        _in("qs", "float32", ROWS, 1),
        _in("w", "int8", WEIGHTS, 2),
        _in("ws b", "float32", WEIGHTS, 3),
        _out("y", "float32", ACTIVATIONS, 4),
        scalars="rows inner_beats outputs biased digits",
    ),
    _kernel(
        "gt_gate",
        _in("x up", "float32", ACTIVATIONS, 0),
        _in("table", "int32", TABLES, 1),
        _out("y", "float32", ACTIVATIONS, 0),
        scalars="rows x_stride x_start up_stride up_start width kind gated",
    ),
    _kernel(
        "gt_rotary",
        _in("x", "float32", ACTIVATIONS, 0),
        _in("cos sin", "float32", WEIGHTS, 1),
        _in("positions", "int32", TABLES, 2),
        _out("y", "float32", ACTIVATIONS, 0),
        scalars="rows x_stride x_start heads half",
    ),
    _kernel(
        "gt_attention",
        _in("q", "int8", ROWS, 0),
        _in("qs", "float32", ROWS, 0),
        _in("k", "int8", ROWS, 1),
        _in("ks", "float32", ROWS, 1),
        _in("v", "int8", ROWS, 2),
        _in("vs", "float32", ROWS, 2),
        _in("exp2 segments", "int32", TABLES, 3),
        _out("y", "float32", ACTIVATIONS, 4),
        scalars="segment_count heads kv_heads key_beats value_beats value_width scale causal window softcap",
    ),
    _kernel(
        "gt_pool",
        _in("x", "float32", ACTIVATIONS, 0),
        _in("segments", "int32", TABLES, 1),
        _out("y", "float32", ACTIVATIONS, 0),
        scalars="sequences x_stride x_start width how",
    ),
    _kernel(
        "gt_score",
        _in("x", "float32", ACTIVATIONS, 0),
        _in("w", "int16", WEIGHTS, 1),
        _in("ws b", "float32", WEIGHTS, 1),
        _out("y", "float32", ACTIVATIONS, 0),
        scalars="rows x_stride x_start width labels biased",
    ),
    _kernel(
        "gt_logprob",
        _in("logits", "float32", ACTIVATIONS, 0),
        _in("ids exp2", "int32", TABLES, 1),
        _in("ln", "float64", TABLES, 1),
        _out("y", "float32", ACTIVATIONS, 0),
        scalars="rows vocabulary first",
    ),
)
"""All kernels of the card, in the order in which a program first needs them."""
