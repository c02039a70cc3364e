"""What an xclbin says of its kernels and memories, read and checked.

The container of an xclbin: a header, then sections. Structures of XRT's ``xclbin.h`` (2.13.466, Apache-2.0).
"""

import struct
import uuid
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from greentrain.fpga_backend.csim.kernels import KernelSpec
from greentrain.fpga_backend.errors import DeviceError

MAGIC = b"xclbin2\0"
TOP = struct.Struct("<8si28s256sQ")
"""``struct axlf`` up to its header: magic, length of the signature (-1: none), reserved, key block, unique id."""
HEADER = struct.Struct("<QQQHBBHH16s64s16s16sI4x")
"""``struct axlf_header``: length, time stamp, ROM time stamp, version (patch, major, minor), mode, actions, ROM UUID,
platform, UUID, debug file, number of sections."""
SECTION = struct.Struct("<I16s4xQQ")
"""``struct axlf_section_header``: kind, name, offset, size."""

EMBEDDED_METADATA = 2
MEM_TOPOLOGY = 6
CONNECTIVITY = 7
IP_LAYOUT = 8
GROUP_TOPOLOGY = 26
GROUP_CONNECTIVITY = 27
"""``enum axlf_section_kind``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What a file holds."""

    uuid: str
    platform: str
    """Name of the shell that it was linked for."""
    sections: Mapping[int, bytes]
    """Bytes by kind; of several of one kind, the first."""


def parse(path: Path) -> Container:
    """Read a container.

    Raises:
        DeviceError: The file is missing, no xclbin, or cut short; the message says which.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DeviceError(f"the xclbin {path} cannot be read: {error.strerror}") from error
    if not data.startswith(MAGIC):
        raise DeviceError(f"{path} is no xclbin: it begins with {data[:8]!r} instead of {MAGIC!r}")
    if len(data) < TOP.size + HEADER.size:
        raise DeviceError(f"{path} is cut short: {len(data)} bytes, the header alone has {TOP.size + HEADER.size}")
    fields = HEADER.unpack_from(data, TOP.size)
    length, platform, number, count = fields[0], fields[9], fields[10], fields[12]
    table_end = TOP.size + HEADER.size + SECTION.size * count
    if len(data) < max(length, table_end):
        raise DeviceError(
            f"{path} is cut short: {len(data)} of {max(length, table_end)} bytes; copy or link the file again"
        )
    sections: dict[int, bytes] = {}
    for i in range(count):
        kind, _, start, size = SECTION.unpack_from(data, TOP.size + HEADER.size + SECTION.size * i)
        if start + size > len(data):
            raise DeviceError(f"{path} is damaged: section {kind} ends at byte {start + size} of {len(data)}")
        sections.setdefault(kind, data[start : start + size])
    return Container(uuid=str(uuid.UUID(bytes=number)), platform=_text(platform), sections=sections)


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "replace")


KIB = 1024
"""``mem_data.m_size`` counts these: xclbin.h."""

COUNT = struct.Struct("<i")
BANK = struct.Struct("<BB6xQQ16s")
"""``struct mem_data``: type, used, size in KiB, base address, tag."""
LINK = struct.Struct("<iii")
"""``struct connection``: argument, unit (index into the layout), memory."""
UNIT = struct.Struct("<IIQ64s")
"""``struct ip_data``: type, properties, base address, ``kernel:unit``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedArgument:
    """An argument of a kernel as it was linked."""

    name: str
    pointer: bool
    memory: int | None
    """Index of the memory of a pointer, as ``group_id`` gives it; None for a scalar, or where the file does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedKernel:
    """A kernel as it was linked."""

    name: str
    arguments: tuple[LinkedArgument, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBank:
    """Memory that pointers can lie in."""

    tag: str
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Xclbin:
    """What an xclbin says of itself."""

    path: Path
    uuid: str
    platform: str
    kernels: tuple[LinkedKernel, ...]
    memories: tuple[MemoryBank, ...]


def read(path: Path) -> Xclbin:
    """Read an xclbin's metadata.

    Raises:
        DeviceError: The file is missing, torn, or without kernels; the message says which.
    """
    found = parse(path)
    try:
        memories, links = _memories(found), _links(found)
        kernels = tuple(_kernels(found.sections[EMBEDDED_METADATA], links))
    except KeyError as error:
        raise DeviceError(f"{path} has no section {error} (xclbin.h): it is no linked design") from error
    except (ET.ParseError, struct.error, ValueError) as error:
        raise DeviceError(f"{path} is damaged: its metadata cannot be read ({error})") from error
    if not kernels:
        raise DeviceError(f"{path} holds no kernels: link the kernels of hls/ into it")
    return Xclbin(path=path, uuid=found.uuid, platform=found.platform, kernels=kernels, memories=memories)


def check(found: Xclbin, wanted: Sequence[KernelSpec]) -> dict[int, MemoryBank]:
    """Compare an xclbin with the kernels that the host will launch.

    Returns:
        The memory of each region of the card (``Region.bank``).

    Raises:
        DeviceError: A kernel, an argument or a memory differs; the message names the first.
    """
    kernels = {kernel.name: kernel for kernel in found.kernels}
    banks: dict[int, int] = {}
    for kernel in wanted:
        linked = kernels.get(kernel.name)
        if linked is None:
            raise DeviceError(
                f"{found.path} has no kernel {kernel.name} (it has {', '.join(sorted(kernels))}): link the kernels of "
                "this version of hls/"
            )
        _compare(found, kernel, linked)
        for argument, place in zip(kernel.arguments, linked.arguments, strict=True):
            if argument.bank is None or place.memory is None:
                continue
            if place.memory >= len(found.memories):
                raise DeviceError(
                    f"{found.path}: {kernel.name}.{argument.name} lies in memory {place.memory}, which "
                    f"is not there ({len(found.memories)} are)"
                )
            if banks.setdefault(argument.bank, place.memory) != place.memory:
                raise DeviceError(
                    f"{found.path}: {kernel.name}.{argument.name} lies in {found.memories[place.memory].tag}, other "
                    f"pointers of its region in {found.memories[banks[argument.bank]].tag}: link with connectivity.cfg"
                )
    return {bank: found.memories[memory] for bank, memory in banks.items()}


def _compare(found: Xclbin, kernel: KernelSpec, linked: LinkedKernel) -> None:
    if len(kernel.arguments) != len(linked.arguments):
        raise DeviceError(
            f"{found.path}: {kernel.name} has {len(linked.arguments)} arguments, this version passes "
            f"{len(kernel.arguments)}: it was linked from another version of hls/"
        )
    for i, (argument, place) in enumerate(zip(kernel.arguments, linked.arguments, strict=True)):
        pointer = argument.kind == "pointer"
        if argument.name != place.name or pointer != place.pointer:
            raise DeviceError(
                f"{found.path}: argument {i} of {kernel.name} is {'pointer' if place.pointer else 'scalar'} "
                f"{place.name}, this version passes {argument.kind} {argument.name}: it was linked from another "
                "version of hls/"
            )


def _memories(found: Container) -> tuple[MemoryBank, ...]:
    data = found.sections.get(GROUP_TOPOLOGY) or found.sections[MEM_TOPOLOGY]
    (count,) = COUNT.unpack_from(data)
    memories = []
    for i in range(count):
        _, used, size, _, tag = BANK.unpack_from(data, 8 + i * BANK.size)
        memories.append(MemoryBank(tag=_text(tag), nbytes=used and size * KIB))
    return tuple(memories)


def _links(found: Container) -> dict[tuple[str, int], int]:
    """Return the memory of each (kernel, argument): the largest, where an argument reaches several."""
    layout = found.sections[IP_LAYOUT]
    names = [
        UNIT.unpack_from(layout, 8 + i * UNIT.size)[3].split(b"\0", 1)[0].decode().partition(":")[0]
        for i in range(COUNT.unpack_from(layout)[0])
    ]
    data = found.sections.get(GROUP_CONNECTIVITY) or found.sections[CONNECTIVITY]
    links: dict[tuple[str, int], int] = {}
    for i in range(COUNT.unpack_from(data)[0]):
        argument, unit, memory = LINK.unpack_from(data, 4 + i * LINK.size)
        if not 0 <= unit < len(names):
            raise ValueError(f"connection {i} names unit {unit} of {len(names)}")
        # XRT takes the highest index of an argument: groups come after the banks that they are made of
        key = (names[unit], argument)
        links[key] = max(links.get(key, 0), memory)
    return links


def _kernels(metadata: bytes, links: dict[tuple[str, int], int]) -> Iterator[LinkedKernel]:
    for kernel in ET.fromstring(metadata.rstrip(b"\0")).iter("kernel"):
        name = kernel.get("name", "")
        arguments = sorted((int(a.get("id", "0")), a) for a in kernel.iter("arg") if a.get("id", "").isdigit())
        yield LinkedKernel(
            name=name,
            arguments=tuple(
                LinkedArgument(
                    name=a.get("name", ""), pointer=a.get("addressQualifier") == "1", memory=links.get((name, number))
                )
                for number, a in arguments
            ),
        )
