"""Seconds without training when a job changes its width, and where they go: workers started anew, spawned, or forked.

    python benchmarks/actuation_resize.py            # three minutes
    python benchmarks/actuation_resize.py --quick    # to see that it runs

One script with a model of a few numbers runs on one and two ranks in turn, over gloo, so what is measured is what
starting costs; a checkpoint of a real model adds its own time to writing and reading. ``greentrain launch`` does every
restart; the ways differ in its engine:

* torchrun anew: the command as it was typed, so torchrun and every worker import torch (and its framework);
* spawned: torch's agent stays, every worker imports;
* warm: the agent stays and forks workers from a process that has imported.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.gears_common import Bench, Row
from greentrain.control.launch.timeline import ResizeTiming, read

ROOT: Final = Path(__file__).resolve().parents[1]
WAYS: Final = {"warm": "elastic", "spawned": "spawn", "torchrun anew": "command"}
PARTS: Final = {
    "checkpoint": "checkpoint_s",
    "all processes gone": "teardown_s",
    "process up": "process_s",
    "process group": "group_s",
    "script until ready, its imports included": "script_s",
    "first step": "first_step_s",
}
TOTAL_BAR_S: Final = 3.0
"""Of a warm resize on a machine of two cores: it must cost less than the imports alone."""
SCRIPT: Final = """
import os, sys, time
from greentrain.control.launcher_protocol import LauncherFiles, Progress, Request
hand = LauncherFiles.from_env()
n, rank = hand.offer().attempt, int(os.environ["RANK"])
if rank == 0: hand.mark("up", n)
import torch, torch.distributed as dist
{imports}
torch.set_num_threads(1)
start_s = time.monotonic()
dist.init_process_group("gloo")
if rank == 0:
    hand.mark("group", n, took_s=time.monotonic() - start_s)
    hand.mark("ready", n)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    if rank == 0 and step == 0: hand.mark("step", n)
ranks = dist.get_world_size()
if n <= {resizes}:
    if rank == 0:
        hand.mark("request", n)
        torch.save(model.state_dict(), hand.folder / "model.pt")
        hand.write(Progress(attempt=n, steps=n, tokens=n, unix_s=time.time()))
        hand.write(Request(attempt=n, ranks=3 - ranks, not_before_unix_s=None, reason="to and fro"))
        hand.mark("left", n)
    dist.barrier()
dist.destroy_process_group()
sys.exit(75 if n <= {resizes} else 0)
"""
IMPORTS: Final = {
    "torch": "",
    "torch, transformers, accelerate": "from transformers import Trainer\nfrom accelerate import Accelerator",
}


def resize(bench: Bench) -> list[Row]:
    """Seconds of a resize by its parts, and in all, for each way to start workers."""
    rows: list[Row] = []
    for what, imports in IMPORTS.items():
        if bench.quick and imports:
            continue
        found = {way: _resizes(bench, imports, engine) for way, engine in WAYS.items()}
        for part, name in (*PARTS.items(), ("total without training", "total_s")):
            seconds = {way: _mean(resizes, name) for way, resizes in found.items()}
            bar = TOTAL_BAR_S if name == "total_s" else None
            peers = {way: value for way, value in seconds.items() if way != "warm"}
            rows.append(
                Row(case="resize", what=f"{part} ({what})", unit="s", ours=seconds["warm"], peers=peers, bar=bar)
            )
    return rows


def _resizes(bench: Bench, imports: str, engine: str) -> list[ResizeTiming]:
    """Return the resizes of one job."""
    with tempfile.TemporaryDirectory(dir=bench.scratch) as name:
        folder = Path(name)
        script = folder / "train.py"
        script.write_text(SCRIPT.format(imports=imports, resizes=bench.pick(4, 2)), encoding="utf-8")
        command = [sys.executable, "-c", "from greentrain.cli import main; main()", "launch", "--dir", "job"]
        command += ["--width", "1:2", "--engine", engine, "--"]
        command += [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)]
        bench.say(f"resize, {engine}")
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=600)
        if done.returncode:
            raise RuntimeError(f"greentrain launch ended with {done.returncode}:\n{done.stderr}")
        return read(folder / "job")


def _mean(resizes: Sequence[ResizeTiming], name: str) -> float | str:
    values = [getattr(resize, name) for resize in resizes if getattr(resize, name) is not None]
    return statistics.fmean(values) if values else "unknown"


def table(rows: Sequence[Row]) -> str:
    """Return the rows for the terminal."""
    ways = list(WAYS)
    cells = [("seconds, mean (measured)", *ways)]
    for row in rows:
        values: Mapping[str, object] = {"warm": row.ours, **row.peers}
        cells.append((row.what, *(f"{v:.2f}" if isinstance(v, float) else str(v) for v in map(values.get, ways))))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
        for line in cells
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run it and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two resizes, torch alone")
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        print(table(resize(Bench(quick=asked.quick, scratch=Path(name), say=lambda text: None))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
