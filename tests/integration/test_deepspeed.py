"""A real DeepSpeed engine on the CPU: its steps are counted at accumulation boundaries, its phases marked."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.ports import free_port

SCRIPT = """
import json, sys
import deepspeed, torch
from greentrain import GreenSession

deepspeed.init_distributed("gloo")
stage = int(sys.argv[2])
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
    config={
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": stage},
        "bf16": {"enabled": stage > 0},
    },
)
with GreenSession({"run": {"dir": sys.argv[1], "report": False}}) as green:
    green.watch(engine)
    for _ in range(10):
        x = torch.randn(8, 64, dtype=torch.bfloat16 if stage else torch.float32)
        engine.backward(engine(x).float().pow(2).mean())
        engine.step()
        green.count(samples=8)
totals = green.totals()
print(json.dumps([totals.steps, totals.samples, sorted(totals.phase_s), green.parameters]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1])
def test_an_engine_is_followed(tmp_path: Path, stage: int) -> None:
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed (extra 'deepspeed')")
    port = free_port()
    env = os.environ | {
        "DS_ACCELERATOR": "cpu",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), str(stage)], env=env, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-2000:]
    steps, samples, phases, parameters = json.loads(done.stdout.strip().splitlines()[-1])
    assert (steps, samples, parameters) == (5, 80, 64 * 64 + 64 + 64 + 1)
    assert {"forward", "backward", "optimizer"} <= set(phases)
