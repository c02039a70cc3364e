"""A plan in a job of two real processes: both sleep and shift after the same step, and the weights stay the same."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from greentrain.ledger.journal import read_journal
from tests.helpers.ports import free_port

pytestmark = pytest.mark.slow

SCRIPT = """
import json, os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from greentrain import GreenSession

torch.set_num_threads(1)
torch.manual_seed(0)
folder, rank = sys.argv[1], int(os.environ["RANK"])
dist.init_process_group("gloo")
config = {
    "run": {"dir": folder, "id": "job", "report": rank == 0, "live": False, "book_s": 0.5},
    "power": {"meters": ["cpu_model"]},
    "carbon": {"signal": "trace", "trace_csv": f"{folder}/grid.csv", "replay_start": "2022-05-28T11:00Z",
               "speed": 7200.0},
    "precision": {"gears": ["bf16", "fp8"], "min_features": 16, "probe_every": 0},
    "policy": {"name": "mpc", "tokens": 1600, "deadline_h": 14, "idle_w": 0.0, "actions": f"{folder}/actions.yaml"},
    "actuators": {"checkpoint": False},
}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.seen = []

    def forward(self, x):
        self.seen.append(str(self.up._green.box.gear))
        return self.down(torch.relu(self.up(x))).pow(2).mean()

net = Net()
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
with GreenSession(config) as green:
    green.watch(model, optimizer)
    for step in range(60):
        x = torch.randn(16, 32, generator=torch.Generator().manual_seed(100 * step + rank))
        model(x).backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
        green.step(tokens=16)
answer = {
    "seen": net.seen,
    "weights": sum(p.double().sum() for p in net.parameters()).item(),
    "paused_s": green.totals().phase_s.get("paused", 0.0),
}
print(json.dumps(answer))
dist.barrier()
dist.destroy_process_group()
"""


def _run(folder: Path) -> list[dict[str, Any]]:
    port = free_port()
    processes = []
    for rank in range(2):
        place = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2}
        env = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        env |= {name: str(value) for name, value in place.items()}
        command = [sys.executable, "-c", SCRIPT, str(folder)]
        processes.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    answers = []
    for process in processes:
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err[-3000:]
        assert "Warning" not in err, err[-3000:]
        answers.append(json.loads(out.strip().splitlines()[-1]))
    return answers


@pytest.mark.long
def test_ddp_ranks_sleep_and_shift_after_the_same_step(tmp_path: Path) -> None:
    hours = [f"2022-05-{day:02}T{h:02}:00Z,{500 if h < 14 else 100}" for day in range(20, 31) for h in range(24)]
    (tmp_path / "grid.csv").write_text("timestamp_utc,g_per_kwh\n" + "\n".join(hours) + "\n", encoding="utf-8")
    rows = "- {gear: bf16, ranks: 2, tokens_per_s: 1000, power_w: 500}\n"
    rows += "- {gear: fp8, ranks: 2, tokens_per_s: 1300, power_w: 500}\n"
    (tmp_path / "actions.yaml").write_text(rows, encoding="utf-8")
    first, second = _run(tmp_path)
    assert first["seen"] == second["seen"]
    assert set(first["seen"]) == {"bf16", "fp8"}
    assert first["weights"] == second["weights"]
    assert first["paused_s"] > 0.3
    assert first["paused_s"] == pytest.approx(second["paused_s"], abs=0.6)
    decisions = [r for r in read_journal(tmp_path / "job" / "rank-00000.jsonl") if r.get("name") == "decision"]
    assert decisions[0]["action"] is None
    assert {d["action"]["gear"] for d in decisions if d["action"] is not None} == {"fp8"}
    assert not [r for r in read_journal(tmp_path / "job" / "rank-00001.jsonl") if r.get("name") == "decision"]
