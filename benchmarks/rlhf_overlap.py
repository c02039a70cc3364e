"""What overlap wins, and that it changes nothing: GRPO with its frozen passes sequential, eager, late and streamed.

    python benchmarks/rlhf_overlap.py                       # five minutes on two idle cores
    python benchmarks/rlhf_overlap.py --quick               # tiny: to see that it runs
    python benchmarks/rlhf_overlap.py --into docs/rlhf.md

The policy trains on one thread. First the device sleeps for an emulated time a rollout and then says what the emulator
computed in an earlier run of the same rollouts, so that this machine does nothing for it, as with a card. Then the
emulator itself computes on the second core, which shares caches and memory with the first.
"""

import argparse
import dataclasses
import importlib.metadata
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.marks import facts, put
from benchmarks.metering import machine
from benchmarks.rlhf_overlap_run import MODES, WARM_STEPS, Memory, Size, Trained, trained
from greentrain.rlhf.kinds import PassKind

QUICK: Final = Size(width=64, layers=2, new=12, micro_batches=2, steps=3, s_per_sequence=0.01)
LEAST_HIDDEN: Final = 0.70
MOST_OF_SEQUENTIAL: Final = 0.85
STAGES: Final = ("generate", "reward", "reference", "forward", "backward", "optimizer", "data", "other")
WAITS: Final = ("reward", "reference")
PACED, COMPUTED = "a device that sleeps", "the emulator on the second core"

Runs = Mapping[str, Sequence[Trained]]
"""Trainings by mode."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny models, one round: to see that it runs")
    parser.add_argument("--rounds", type=int, default=3, help="with the device that sleeps; the other gets two at most")
    parser.add_argument("--ms", type=float, help="what the sleeping device takes for a rollout and pass")
    parser.add_argument("--into", type=Path, help="also put the tables into this text, between its two marks")
    args = parser.parse_args(argv)
    if args.into is not None and args.quick:
        parser.error("--into is for the full size: leave out --quick")
    torch.set_num_threads(1)
    size, rounds = (QUICK, 1) if args.quick else (Size(), args.rounds)
    if args.ms is not None:
        size = dataclasses.replace(size, s_per_sequence=args.ms / 1e3)
    begun = os.getloadavg()[0]
    found = {
        PACED: _runs(size, rounds, paced=True),
        COMPUTED: _runs(size, min(rounds, 2), paced=False),
    }
    about = machine("benchmarks/rlhf_overlap.py") | _about(size, found[PACED], begun)
    text = markdown(found, about)
    print(text)
    if args.into is not None:
        put(text, args.into)
    return 0


def markdown(found: Mapping[str, Runs], about: Mapping[str, str]) -> str:
    """Return all tables, and where they were made."""
    lines = [facts(about)]
    for name, runs in found.items():
        lines += ["", f"With {name}:", "", *_modes(runs), "", *_stages(runs)]
    lines += ["", "| figure | value | bar | verdict |", "|---|---|---|---|", *_bars(found)]
    lines += ["", "Wasted is what the trainer's process used while it stood at a barrier; useful is all the rest."]
    return "\n".join(lines)


def _runs(size: Size, rounds: int, *, paced: bool) -> dict[str, list[Trained]]:
    """Train in every mode, round after round, so that a slow moment of the machine is not one mode's."""
    found: dict[str, list[Trained]] = {mode: [] for mode in MODES}
    memory: Memory | None = {} if paced else None
    if paced:
        _trained("sequential", size, memory, "to fill the sleeping device's memory")
    for turn in range(rounds):
        for mode in MODES:
            found[mode].append(_trained(mode, size, memory, f"round {turn + 1}"))
    return found


def _trained(mode: str, size: Size, memory: Memory | None, what: str) -> Trained:
    with tempfile.TemporaryDirectory(prefix="overlap-") as folder:
        done = trained(mode, size, Path(folder), memory)
    device = COMPUTED if memory is None else PACED
    _log(f"{device}, {what}: {mode}, {statistics.median(done.step_s):.3f} s a step, {done.weights[:12]}")
    return done


def _modes(runs: Runs) -> list[str]:
    lines = [
        "| mode | s a step, median | of sequential | reference hidden | reward hidden | waited, s a step "
        "| useful J a step | wasted J a step | SHA-256 of the weights |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for mode, done in runs.items():
        waited = statistics.median(sum(sums.wait_s for sums in one.passes.values()) / one.steps for one in done)
        hashes = ", ".join(sorted({one.weights[:12] for one in done}))
        cells = [mode, f"{_step_s(done):.3f}", f"{_step_s(done) / _step_s(runs['sequential']):.2f}"]
        cells += [_percent(_hidden(done, kind)) for kind in (PassKind.REFERENCE, PassKind.REWARD)]
        cells += [f"{waited:.3f}", _joules([one.useful_j for one in done]), _joules([one.wasted_j for one in done])]
        lines.append(f"| {' | '.join([*cells, f'`{hashes}`'])} |")
    return lines


def _stages(runs: Runs) -> list[str]:
    """Return time and energy a step by stage, as the ledger has them; stages without either are left out."""
    lines = [f"| stage | {' | '.join(f'{mode}: s, J a step' for mode in runs)} |", "|---" * (len(runs) + 1) + "|"]
    for stage in STAGES:
        times = [statistics.median(one.phase_s(stage) for one in done) for done in runs.values()]
        if max(times) < 5e-4:
            continue
        joules = [_joules([one.phase_j(stage) for one in done]) for done in runs.values()]
        name = f"{stage} (barrier)" if stage in WAITS else stage
        lines.append(f"| {name} | {' | '.join(f'{s:.3f}, {j}' for s, j in zip(times, joules, strict=True))} |")
    return lines


def _bars(found: Mapping[str, Runs]) -> list[str]:
    paced = found[PACED]
    ratio = _step_s(paced["late"]) / _step_s(paced["sequential"])
    hidden = _hidden(paced["late"], PassKind.REFERENCE) or 0.0
    hashes = {one.weights for runs in found.values() for done in runs.values() for one in done}
    rows: list[tuple[str, str, str, bool]] = [
        ("late: step, of sequential", f"{ratio:.2f}", f"at most {MOST_OF_SEQUENTIAL}", ratio <= MOST_OF_SEQUENTIAL),
        ("late: reference hidden", _percent(hidden), f"at least {_percent(LEAST_HIDDEN)}", hidden >= LEAST_HIDDEN),
        ("different weights after training, all modes and devices", str(len(hashes)), "1", len(hashes) == 1),
    ]
    return [f"| {what} | {value} | {bar} | {'PASS' if good else 'MISS'} |" for what, value, bar, good in rows]


def _step_s(done: Sequence[Trained]) -> float:
    return statistics.median(step for one in done for step in one.step_s)


def _hidden(done: Sequence[Trained], kind: PassKind) -> float | None:
    shares = [share for one in done if (share := one.passes[kind].hidden_fraction) is not None]
    return statistics.median(shares) if shares else None


def _percent(share: float | None) -> str:
    return "n/a" if share is None else f"{100 * share:.0f} %"


def _joules(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.2f}" if known else "unknown"


def _about(size: Size, runs: Runs, load: float) -> dict[str, str]:
    one = runs["sequential"][0]
    origins = ", ".join(name for name, joules in one.totals.by_provenance.items() if joules) or "missing"
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "trl", "transformers"))
    rollouts = 4 * size.micro_batches
    return {
        "load": f"{load:.1f} at the beginning",
        "versions": versions,
        "training": f"GRPO; policy, reference and reward model of {one.parameters / 1e6:.2f} M parameters each;"
        f" {rollouts} rollouts a step in {size.micro_batches} micro-batches, up to {size.new} new tokens; {size.steps}"
        f" steps, the first {WARM_STEPS} not timed",
        "the device that sleeps": f"{1000 * size.s_per_sequence:.0f} ms a rollout and pass, an assumed time, one pass"
        " after the other; its numbers are the emulator's, of an earlier run with the same rollouts",
        "energy": f"{origins}; of the trainer's process, the device's own is unknown",
    }


def _log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
