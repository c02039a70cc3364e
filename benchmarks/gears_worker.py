"""A process of its own for one measurement: ``python gears_worker.py TASK SETTINGS``. Started by gears.py."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch


def main(argv: Sequence[str]) -> None:
    task, settings = argv
    words: dict[str, Any] = json.loads(settings)
    torch.set_num_threads(1)
    if task == "optimizer":
        from benchmarks.gears_optimizer import peer_step_s

        print(json.dumps(peer_step_s(**words)))
    elif task == "memory":
        from benchmarks.gears_memory import step_bytes

        print(json.dumps(step_bytes(**words)))
    elif task == "gpu":
        from benchmarks.gears_gpu_worker import measure

        measure(**words)


if __name__ == "__main__":
    main(sys.argv[1:])
