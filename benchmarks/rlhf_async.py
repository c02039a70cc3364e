"""What staleness wins and costs: GRPO on a device that is slower than the trainer, synchronous and asynchronous.

    python benchmarks/rlhf_async.py                       # four minutes on two idle cores
    python benchmarks/rlhf_async.py --quick               # tiny: to see that it runs
    python benchmarks/rlhf_async.py --into docs/rlhf.md

A small random policy trains on one thread by TRL; the emulator computes rewards and reference on the other core and
sleeps until its assumed time is over. Each asynchronous run is replayed from its log on a device that does not sleep.
"""

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from transformers.trainer_callback import PrinterCallback

from benchmarks.marks import facts, put
from benchmarks.metering import machine
from benchmarks.paced_device import Paced
from benchmarks.rlhf_overlap_run import WARM_STEPS, StepClock
from greentrain import GreenSession
from greentrain.callbacks.transformers import GreenCallback
from greentrain.fpga_backend.device import OffloadDevice
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.rlhf.trl.ahead import weights_digest
from greentrain.rlhf.trl.grpo import OffloadGRPOTrainer
from greentrain.rlhf.trl.reward import OffloadedReward
from recipes.common.rl_parts import small
from recipes.trl.grpo_offload import config_of, engine_of

NEW: Final = 24
"""Tokens of the longest completion."""
MICRO_BATCHES: Final = 4
"""Of four rollouts, a step."""
S_PER_SEQUENCE: Final = 0.02
"""Assumed time of a rollout in each of the two passes."""
LAST: Final = 10
"""Steps whose mean reward counts."""
RUNS: Final[dict[str, dict[str, Any]]] = {
    "synchronous": {},
    "staleness 1, tis": {"staleness": 1, "correction": "tis"},
    "staleness 2, tis": {"staleness": 2, "correction": "tis"},
    "staleness 2, vtrace": {"staleness": 2, "correction": "vtrace"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One training."""

    step_s: float
    waited_s: float
    stale: tuple[float, float]
    """Mean and most, optimizer steps."""
    reward: float
    kl: float
    joules: float | None
    origin: str
    weights: str


def trained(given: dict[str, Any], seed: int, steps: int, device: OffloadDevice, folder: Path) -> Trained:
    """Train once.

    Args:
        given: Arguments of the trainer.
        seed: Seed of TRL.
        steps: Optimizer steps.
        device: Computes the passes, and is closed.
        folder: For checkpoints, log and run.
    """
    parts = small(NEW, 1.0, width=128, layers=2)
    options = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "max_steps": steps,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "seed": seed,
        "bf16": False,
        "gradient_checkpointing": False,
        "use_cpu": True,
    }
    clock = StepClock()
    with contextlib.closing(device), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = engine_of(parts, device)
        green = GreenSession({"run": {"dir": str(folder), "report": False}}, extra_meters=[device.meter])
        trainer = OffloadGRPOTrainer(
            parts.policy,
            OffloadedReward(engine, parts.judge),
            args=config_of("grpo", NEW, options),
            train_dataset=parts.prompts,
            processing_class=parts.tokenizer,
            engine=engine,
            mode="late",
            callbacks=[GreenCallback(green), clock],
            **given,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        waited_s = sum(sums.wait_s for sums in engine.stats().values()) / steps
    totals = green.totals()
    logs = trainer.state.log_history
    stale = [one.get("offload/staleness", 0.0) for one in logs if "reward" in one]
    return Trained(
        step_s=statistics.fmean(clock.steps_s[WARM_STEPS:]),
        waited_s=waited_s,
        stale=(statistics.fmean(stale), max(stale)),
        reward=statistics.fmean([one["reward"] for one in logs if "reward" in one][-LAST:]),
        kl=statistics.fmean([one["kl"] for one in logs if "kl" in one][-LAST:]),
        joules=totals.energy_j / steps if totals.by_device else None,
        origin=", ".join(name for name, joules in totals.by_provenance.items() if joules) or "missing",
        weights=weights_digest(parts.policy),
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two steps, one seed: to see that it runs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--into", type=Path, help="also put the table into this text, between its two marks")
    args = parser.parse_args(argv)
    if args.into is not None and args.quick:
        parser.error("--into is for the full size: leave out --quick")
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    seeds, steps = (1, 3) if args.quick else (args.seeds, args.steps)
    names = list(RUNS)[:2] if args.quick else list(RUNS)
    found: dict[str, list[Trained]] = {name: [] for name in names}
    same: dict[str, int] = dict.fromkeys(names, 0)
    for seed in range(7, 7 + seeds):
        for name in names:
            with tempfile.TemporaryDirectory(prefix="async-") as folder:
                device = Paced(Emulator(), s_per_sequence=S_PER_SEQUENCE)
                one = trained(RUNS[name], seed, steps, device, Path(folder) / "made")
                found[name].append(one)
                if RUNS[name]:
                    given = {"replay": Path(folder) / "made" / "rollouts", "correction": RUNS[name]["correction"]}
                    again = trained(given, seed, steps, Emulator(), Path(folder) / "again")
                    same[name] += again.weights == one.weights
            _log(f"seed {seed}, {name}: {one.step_s:.3f} s a step, reward {one.reward:.3f}, {one.weights[:12]}")
    text = markdown(found, same, steps, load)
    print(text)
    if args.into is not None:
        put(text, args.into, "async results")
    return 0


def markdown(found: dict[str, list[Trained]], same: dict[str, int], steps: int, load: float) -> str:
    """Return the facts and the table.

    Args:
        found: Trainings by run.
        same: Replays that gave the same weights, by run.
        steps: Steps of each.
        load: Load of the machine at the beginning.
    """
    origins = sorted({one.origin for runs in found.values() for one in runs})
    about = machine("benchmarks/rlhf_async.py") | {
        "load": f"{load:.1f} at the beginning: others used the machine where it is above 2",
        "training": f"GRPO of TRL, random policy; {4 * MICRO_BATCHES} rollouts a step of up to {NEW} new tokens;"
        f" {steps} steps, the first {WARM_STEPS} not timed; reward and KL of the last {min(LAST, steps)}",
        "device": f"{1000 * S_PER_SEQUENCE:.0f} ms a rollout and pass, an assumed time, or what the emulator takes",
        "energy": f"{', '.join(origins)}; of the trainer's process, the emulator in it; the device's own is unknown",
    }
    lines = [
        facts(about),
        "",
        "| run | s a step | waited, s a step | staleness: mean, most | reward | KL | J a step | replays alike |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, runs in found.items():
        joules = [one.joules for one in runs if one.joules is not None]
        cells = [
            f"{statistics.fmean(one.step_s for one in runs):.3f}",
            f"{statistics.fmean(one.waited_s for one in runs):.3f}",
            f"{statistics.fmean(one.stale[0] for one in runs):.2f}, {max(one.stale[1] for one in runs):.0f}",
            _spread([one.reward for one in runs]),
            _spread([one.kl for one in runs]),
            f"{statistics.fmean(joules):.2f}" if joules else "missing",
            f"{same[name]} of {len(runs)}" if RUNS[name] else "n/a",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    seeds = len(next(iter(found.values())))
    note = f"Means over {seeds} seeds, with the least and the most. Alike: the same SHA-256 of the weights."
    return "\n".join([*lines, "", note])


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.4f} ({min(values):.4f} to {max(values):.4f})"


def _log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
