"""Which GPUs of the node ``CUDA_VISIBLE_DEVICES`` leaves to this process.

The rules are those of the CUDA C++ Programming Guide (appendix "CUDA Environment Variables") and the MIG User
Guide (docs.nvidia.com, read 2026-11-21); where they are silent, PyTorch's ``torch.cuda._parse_visible_devices``
and ``_transform_uuid_to_ordinals`` (2.13) decide: the kind of the first entry rules the list, an entry of
another kind or without a device ends it, a duplicate leaves no device at all.

An index counts in CUDA's order. NVML's order is that of the PCI bus, which is also CUDA's unless the GPUs differ
in speed and ``CUDA_DEVICE_ORDER`` is not ``PCI_BUS_ID``: see :func:`index_order_is_sure`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

VARIABLE: Final = "CUDA_VISIBLE_DEVICES"

_LEGACY_MIG = re.compile(r"MIG-(GPU-[0-9a-fA-F-]+)/(\d+)/(\d+)")
"""Name of a MIG device before driver R470: parent UUID, GPU instance, compute instance (MIG User Guide)."""
_INDEX = re.compile(r"[+-]?\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleGpu:
    """One entry: a physical GPU, or a slice of one."""

    position: int
    """Of the physical GPU in the list that was asked about."""
    mig_uuid: str | None = None
    """The slice; None: the whole GPU."""


def visible_devices(environ: Mapping[str, str], devices: Sequence[tuple[str, Sequence[str]]]) -> tuple[VisibleGpu, ...]:
    """Return what a process with this environment can compute on, in CUDA's order of enumeration.

    A GPU with slices that is named as a whole stands for its first slice: CUDA takes one compute instance a GPU.

    Args:
        environ: Environment variables.
        devices: Every GPU of the node in NVML's order: its UUID, and the UUIDs of its MIG slices.
    """
    text = environ.get(VARIABLE)
    if text is None:
        return tuple(_whole(position, devices) for position in range(len(devices)))
    entries = [entry.strip() for entry in text.split(",")]
    return _resolve(entries, _resolver(entries[0]), devices)


def index_order_is_sure(environ: Mapping[str, str], names: Sequence[str]) -> bool:
    """Return False if an index in the environment may mean another GPU than the one NVML gives that index.

    Args:
        environ: Environment variables.
        names: Product names of all GPUs of the node.
    """
    first = environ.get(VARIABLE, "").split(",")[0].strip()
    by_index = _INDEX.match(first) is not None
    return not by_index or len(set(names)) < 2 or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"


_Devices = Sequence[tuple[str, Sequence[str]]]
_Resolver = Callable[[str, _Devices], VisibleGpu | None]


def _resolver(first: str) -> _Resolver:
    if first.startswith("GPU-"):
        return _by_uuid
    if first.startswith("MIG-"):
        return _by_slice
    return _by_index


def _resolve(entries: Sequence[str], resolver: _Resolver, devices: _Devices) -> tuple[VisibleGpu, ...]:
    found: list[VisibleGpu] = []
    for entry in entries:
        gpu = resolver(entry, devices)
        if gpu is None:
            break
        if gpu in found:
            return ()
        found.append(gpu)
    return tuple(found)


def _whole(position: int, devices: _Devices) -> VisibleGpu:
    slices = devices[position][1]
    return VisibleGpu(position=position, mig_uuid=slices[0] if slices else None)


def _by_index(entry: str, devices: _Devices) -> VisibleGpu | None:
    number = _INDEX.match(entry)  # like strtoul: "1gpu" is 1
    index = int(number.group()) if number else -1
    return _whole(index, devices) if 0 <= index < len(devices) else None


def _by_uuid(entry: str, devices: _Devices) -> VisibleGpu | None:
    if not entry.startswith("GPU-"):
        return None
    matches = [position for position, (uuid, _) in enumerate(devices) if uuid.startswith(entry)]
    return _whole(matches[0], devices) if len(matches) == 1 else None


def _by_slice(entry: str, devices: _Devices) -> VisibleGpu | None:
    if not entry.startswith("MIG-"):
        return None
    for position, (_, slices) in enumerate(devices):
        if entry in slices:
            return VisibleGpu(position=position, mig_uuid=entry)
    legacy = _LEGACY_MIG.fullmatch(entry)
    if legacy is None:
        return None
    parents = [position for position, (uuid, _) in enumerate(devices) if uuid == legacy.group(1)]
    return VisibleGpu(position=parents[0], mig_uuid=entry) if parents else None
