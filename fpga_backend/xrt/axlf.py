"""The container of an xclbin: a header, then sections. Structures of XRT's ``xclbin.h`` (2.13.466, Apache-2.0)."""

import struct
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from greentrain.fpga_backend.errors import DeviceError

MAGIC = b"xclbin2\0"
TOP = struct.Struct("<8si28s256sQ")
"""``struct axlf`` up to its header: magic, length of the signature (-1: none), reserved, key block, unique id."""
HEADER = struct.Struct("<QQQHBBHH16s64s16s16sI4x")
"""``struct axlf_header``: length, time stamp, ROM time stamp, version (patch, major, minor), mode, actions, ROM UUID,
platform, UUID, debug file, number of sections."""
SECTION = struct.Struct("<I16s4xQQ")
"""``struct axlf_section_header``: kind, name, offset, size."""
ALIGNMENT = 8

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


def build(platform: str, sections: Mapping[int, bytes]) -> bytes:
    """Return the bytes of a container. The UUID is derived from the content: the same sections, the same UUID."""
    number = uuid.uuid5(uuid.NAMESPACE_OID, repr((platform, sorted(sections.items()))))
    offset = _aligned(TOP.size + HEADER.size + SECTION.size * len(sections))
    table, body = b"", b""
    for kind, data in sections.items():
        table += SECTION.pack(kind, f"section{kind}".encode(), offset + len(body), len(data))
        body += data + bytes(_aligned(len(data)) - len(data))
    header = HEADER.pack(
        offset + len(body), 0, 0, 0, 2, 1, 0, 0, bytes(16), platform.encode(), number.bytes, b"", len(sections)
    )
    head = TOP.pack(MAGIC, -1, b"\xff" * 28, b"\xff" * 256, 0) + header + table
    return head + bytes(offset - len(head)) + body


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


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
