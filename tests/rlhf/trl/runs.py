"""Short trainings in each mode, and as a script: the same on each rank of several.

RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python -m tests.rlhf.trl.runs FOLDER
"""

import gc
import json
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_callback import PrinterCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_config import RLOOConfig
from trl.trainer.rloo_trainer import RLOOTrainer

from benchmarks.paced_device import Paced
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.device import OffloadDevice
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.trl.attach import offload_reference
from greentrain.rlhf.trl.grpo import OffloadGRPOTrainer
from greentrain.rlhf.trl.rloo import OffloadRLOOTrainer
from tests.rlhf.trl import tiny

MODES = ("sequential", "eager", "late", "stream")
"""The first is TRL's own trainer on an engine that waits for each pass."""


def trainer(
    algorithm: str,
    mode: str,
    folder: Path,
    compiled: Mapping[PassKind, Artifact],
    device: OffloadDevice,
    *,
    arguments: Mapping[str, Any] | None = None,
    engine: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Return a trainer with reward and reference on the device.

    Args:
        algorithm: ``grpo`` or ``rloo``.
        mode: One of ``MODES``.
        folder: For outputs.
        compiled: Both passes' models.
        device: Runs them.
        arguments: Of the trainer, instead of the usual ones.
        engine: Options of the engine.
        **options: Of the configuration, instead of the usual ones.
    """
    classes: dict[str, tuple[Any, Any, Any]] = {
        "grpo": (GRPOConfig, GRPOTrainer, OffloadGRPOTrainer),
        "rloo": (RLOOConfig, RLOOTrainer, OffloadRLOOTrainer),
    }
    config, stock, offloading = classes[algorithm]
    sequential = mode == "sequential"
    found = tiny.engine(compiled, device, sequential=sequential, **(engine or {}))
    given: dict[str, Any] = {
        "model": tiny.policy(),
        "reward_funcs": tiny.reward(found),
        "train_dataset": tiny.prompts(),
        "processing_class": tiny.tokenizer(),
    }
    given |= arguments or {}
    wanted = tiny.options(folder, **options)
    if sequential:
        made = stock(args=config(**wanted | {"beta": 0.0}), **given)
        offload_reference(made, found, beta=wanted["beta"])
    else:
        made = offloading(args=config(**wanted), engine=found, mode=mode, **given)
    made.remove_callback(PrinterCallback)
    return made


def main(folder: Path) -> None:
    """Train in each mode and write the weights' hashes of this rank."""
    warnings.simplefilter("ignore")
    gc.freeze()
    torch.set_num_threads(1)
    device, compiled = Emulator(), tiny.artifacts()
    found = {}
    for algorithm, modes in (("grpo", ("sequential", "late", "stream")), ("rloo", ("sequential", "stream"))):
        for mode in modes:
            made = trainer(algorithm, mode, folder, compiled, device, max_steps=2, per_device_train_batch_size=2)
            made.train()
            found[f"{algorithm} {mode}"] = tiny.digest(made)
    short: dict[str, Any] = {"max_steps": 4, "per_device_train_batch_size": 2}
    slow = Paced(Emulator(), s_per_sequence=0.02)  # scores are late on one rank, or both, as it comes
    for on, given in ((slow, {"staleness": 2}), (device, {"replay": folder / "out" / "rollouts"})):
        made = trainer("grpo", "late", folder, compiled, on, arguments=given, **short)
        made.train()
        found[f"async {next(iter(given))}"] = tiny.digest(made)
    slow.close()
    device.close()
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(found), encoding="utf-8")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
