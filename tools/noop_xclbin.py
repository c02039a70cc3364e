"""The xclbin of the no-op emulation: metadata only, which XRT's emulation takes and a card does not.

``python -m tools.noop_xclbin`` writes ``greentrain/testing/kernels.xclbin`` anew; a test compares it with the table of
kernels.
"""

import uuid
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path

from greentrain.fpga_backend.csim.kernels import KERNELS, REGIONS, KernelSpec, MemoryRegion
from greentrain.fpga_backend.xrt.xclbin import (
    BANK,
    CONNECTIVITY,
    COUNT,
    EMBEDDED_METADATA,
    GROUP_CONNECTIVITY,
    GROUP_TOPOLOGY,
    HEADER,
    IP_LAYOUT,
    KIB,
    LINK,
    MAGIC,
    MEM_TOPOLOGY,
    SECTION,
    TOP,
    UNIT,
)
from tools.kernel_documents import PLATFORM, ctype, offsets

FILE = Path(__file__).resolve().parents[1] / "greentrain" / "testing" / "kernels.xclbin"
ALIGNMENT = 8
CHANNEL_BYTES = 512 * 2**20
"""One of the card's 32 HBM pseudo channels: UG1393, "HBM Configuration and Use"; 2026-11-21."""
HBM = 6
"""``MEM_HBM``."""
KERNEL_UNIT = 1
"""``IP_KERNEL``."""
CHAINED = 0x0101
"""Interrupts enabled, ``AP_CTRL_CHAIN``."""
UNIT_BASE = 0x1800000
UNIT_BYTES = 0x10000
"""Where the registers of the units begin, and their distance; any free place of the shell's control bus does."""


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


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def write(
    path: Path, kernels: Sequence[KernelSpec], regions: Sequence[MemoryRegion], *, channel_bytes: int = CHANNEL_BYTES
) -> None:
    """Write an xclbin of metadata only, with one unit a kernel and one memory a region.

    Args:
        path: Path of the file to write.
        kernels: Kernels that it lists.
        regions: Memory regions in the order of their ``bank``.
        channel_bytes: Size of one pseudo channel; a test makes a card small with it.
    """
    topology = COUNT.pack(len(regions)) + bytes(4)
    base = 0
    for region in regions:
        size = (region.last - region.first + 1) * channel_bytes
        topology += BANK.pack(HBM, 1, size // KIB, base, region.tag.encode())
        base += size
    layout = COUNT.pack(len(kernels)) + bytes(4)
    links = []
    for i, kernel in enumerate(kernels):
        layout += UNIT.pack(KERNEL_UNIT, CHAINED, UNIT_BASE + i * UNIT_BYTES, f"{kernel.name}:{kernel.name}_1".encode())
        links += [LINK.pack(j, i, a.bank) for j, a in enumerate(kernel.arguments) if a.bank is not None]
    connectivity = COUNT.pack(len(links)) + b"".join(links)
    path.write_bytes(
        build(
            PLATFORM,
            {
                EMBEDDED_METADATA: _xml(kernels),
                MEM_TOPOLOGY: topology,
                CONNECTIVITY: connectivity,
                IP_LAYOUT: layout,
                GROUP_TOPOLOGY: topology,
                GROUP_CONNECTIVITY: connectivity,
            },
        )
    )


def _xml(kernels: Sequence[KernelSpec]) -> bytes:
    project = ET.Element("project", name="greentrain")
    platform = ET.SubElement(
        project, "platform", vendor="xilinx", boardid="u55c", name="gen3x16_xdma", featureRomTime="0"
    )
    ET.SubElement(platform, "version", major="0", minor="0")
    device = ET.SubElement(platform, "device", name="fpga0", fpgaDevice="", addrWidth="0")
    core = ET.SubElement(
        device,
        "core",
        name="OCL_REGION_0",
        target="bitstream",
        type="clc_region",
        clockFreq="0MHz",
        numComputeUnits=str(len(kernels)),
    )
    ET.SubElement(core, "kernelClocks")
    for i, kernel in enumerate(kernels):
        item = ET.SubElement(
            core,
            "kernel",
            name=kernel.name,
            language="c",
            vlnv="",
            preferredWorkGroupSizeMultiple="0",
            workGroupSize="1",
            interrupt="true",
            hwControlProtocol="ap_ctrl_chain",
        )
        for j, (argument, offset) in enumerate(zip(kernel.arguments, offsets(kernel), strict=True)):
            pointer = argument.kind == "pointer"
            size = hex(8 if pointer else 4)
            ET.SubElement(
                item,
                "arg",
                name=argument.name,
                addressQualifier="1" if pointer else "0",
                id=str(j),
                port=f"M_AXI_{argument.bundle.upper()}" if pointer else "S_AXI_CONTROL",
                size=size,
                offset=hex(offset),
                hostOffset="0x0",
                hostSize=size,
                type=ctype(argument),
            )
        unit = ET.SubElement(item, "instance", name=f"{kernel.name}_1")
        ET.SubElement(
            unit, "addrRemap", base=hex(UNIT_BASE + i * UNIT_BYTES), range=hex(UNIT_BYTES), port="S_AXI_CONTROL"
        )
    return b'<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(project)


if __name__ == "__main__":
    write(FILE, KERNELS, REGIONS)
