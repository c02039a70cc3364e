"""A training device as its makers and its auditors describe it."""

from collections.abc import Mapping
from dataclasses import dataclass

from greentrain.estimate.values import Kind, Range
from greentrain.types import Gear


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One figure of a device."""

    value: float
    kind: Kind
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One device. What nobody states is None, never 0."""

    name: str
    family: str
    """Class of devices that reach similar shares of their peak: ``v100``, ``a100``, ``h100``, ``b200``, ``tpu``."""
    year: int
    peak_flop_s: Mapping[Gear, Constant]
    """Dense peak by precision (FLOP/s)."""
    memory_bytes: Constant
    memory_bytes_s: Constant
    link_bytes_s: Constant
    """To the others of its node, one direction (bytes/s)."""
    node: int
    """Devices of a node, or of a pod's fast network."""
    network_bytes_s: Constant
    """To other nodes, one direction (bytes/s)."""
    tdp_w: Constant
    idle_w: Constant | None
    embodied_kg: Range | None
    """Of the card: low, mid, high (kgCO2e)."""
    embodied_source: str
    server_kg: Range | None
    """Share of the server around it (kgCO2e)."""
