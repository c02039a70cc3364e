"""What people and Vitis read of the table of kernels: the register map and the link configuration in ``hls/``.

``python -m tools.kernel_documents`` writes both files anew; a test compares them with the table.
"""

from pathlib import Path

from greentrain.fpga_backend.csim.kernels import KERNELS, REGIONS, Argument, KernelSpec

CONTROL_BYTES = 0x10
"""Control, global interrupt enable, interrupt enable, interrupt status: UG1399 2021.1, "S_AXILITE Control Register
Map"; 2026-11-21."""
POINTER_STRIDE = 12
"""Bytes of a 64-bit pointer in the register map: two words and a reserved one (same source)."""
SCALAR_STRIDE = 8
"""Bytes of a 32-bit scalar: a word and a reserved one (same source)."""
FOLDER = Path(__file__).resolve().parents[1] / "fpga_backend" / "hls"
PLATFORM = "xilinx_u55c_gen3x16_xdma_3_202210_1"
"""The shell of the Alveo U55C: docs.amd.com, UG1120; 2026-11-21."""
CLOCK_HZ = 250_000_000
"""Asked of v++ (``[clock] freqHz``, UG1393); the clock assumed in ``devices.toml``. No tool has confirmed it."""
SLRS = {
    "gt_gemm": "",
    "gt_embed": "SLR0",
    "gt_quantise": "SLR0",
    "gt_norm": "SLR0",
    "gt_gate": "SLR1",
    "gt_pool": "SLR1",
    "gt_attention": "SLR2",
    "gt_rotary": "SLR2",
    "gt_score": "SLR2",
    "gt_logprob": "SLR2",
}
"""Floorplan, calculated from DSPs and never placed: a third of the device's 9,024 lies in each SLR (DS978), an array of
gt_gemm takes 2,048 of them, both of gt_attention 1,024. So gt_gemm has no SLR of its own: its ports and first array
stay beside the HBM in SLR0, and floorplan.tcl asks for its second array in SLR1."""
WRITTEN = "Written by tools.kernel_documents from csim/kernels.py; do not change by hand."


def offsets(kernel: KernelSpec) -> tuple[int, ...]:
    """Return each argument's address in the kernel's s_axilite registers."""
    found, address = [], CONTROL_BYTES
    for argument in kernel.arguments:
        found.append(address)
        address += POINTER_STRIDE if argument.kind == "pointer" else SCALAR_STRIDE
    return tuple(found)


def ctype(argument: Argument) -> str:
    """Return an argument's type as C writes it."""
    plain = {"float32": "float", "float64": "double"}.get(argument.dtype, f"{argument.dtype}_t")
    return f"{plain}*" if argument.kind == "pointer" else plain


def register_map() -> str:
    """Return ``REGISTERS.md``."""
    lines = [
        "# Register map of the kernels",
        "",
        f"{WRITTEN}",
        "",
        "Each kernel has one s_axilite port. Addresses below 0x10 are the same for all; arguments follow in the order",
        "of the C++ function, pointers as 64 bits in two words, scalars as 32 bits, each with a reserved word behind.",
        "Vitis assigns addresses when it compiles a kernel: these follow its rule, and no report of its was ever read.",
        "",
        "| address | register |",
        "|---|---|",
        "| 0x00 | control: start, done, idle, ready |",
        "| 0x04 | global interrupt enable |",
        "| 0x08 | interrupt enable |",
        "| 0x0c | interrupt status |",
        "",
        "| region | banks of the U55C | holds |",
        "|---|---|---|",
    ]
    lines += [f"| {region.bank} | {region.tag} | {region.name} |" for region in REGIONS]
    for kernel in KERNELS:
        lines += ["", f"## {kernel.name}", "", *_table(kernel)]
    return "\n".join(lines) + "\n"


def link_config() -> str:
    """Return ``u55c.cfg``, the configuration of ``v++ --link``."""
    lines = [
        f"# {WRITTEN}",
        "# Never used to build a bitstream by this project.",
        f"platform={PLATFORM}",
        "[clock]",
        *(f"freqHz={CLOCK_HZ}:{kernel.name}_1" for kernel in KERNELS),
        "[vivado]",
        "prop=run.impl_1.STEPS.OPT_DESIGN.TCL.POST=floorplan.tcl",
        "[connectivity]",
    ]
    for kernel in KERNELS:
        lines.append(f"nk={kernel.name}:1:{kernel.name}_1")
        if slr := SLRS[kernel.name]:
            lines.append(f"slr={kernel.name}_1:{slr}")
        lines += [
            f"sp={kernel.name}_1.{argument.name}:{argument.region.tag}"
            for argument in kernel.arguments
            if argument.region is not None
        ]
    return "\n".join(lines) + "\n"


def write(folder: Path = FOLDER) -> None:
    """Write both files.

    Raises:
        OSError: The folder cannot be written.
    """
    (folder / "REGISTERS.md").write_text(register_map(), encoding="utf-8")
    (folder / "u55c.cfg").write_text(link_config(), encoding="utf-8")


def _table(kernel: KernelSpec) -> list[str]:
    lines = ["| address | argument | type | port | region |", "|---|---|---|---|---|"]
    for address, argument in zip(offsets(kernel), kernel.arguments, strict=True):
        kind = ctype(argument) if argument.written or argument.kind == "scalar" else f"const {ctype(argument)}"
        region = "" if argument.region is None else argument.region.name
        lines.append(f"| 0x{address:02x} | {argument.name} | `{kind}` | {argument.bundle} | {region} |")
    return lines


if __name__ == "__main__":
    write()
