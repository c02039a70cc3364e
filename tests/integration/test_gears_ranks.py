"""Gears under DDP, FSDP 2 and DeepSpeed, in real processes under gloo."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.ports import free_port

pytestmark = pytest.mark.slow

COMMON = """
import json, os, sys
import torch
import torch.distributed as dist
from torch import nn
from greentrain import GreenSession
from greentrain.errors import ConfigError

torch.set_num_threads(1)
torch.manual_seed(0)
rank = int(os.environ["RANK"])
config = {
    "run": {"dir": sys.argv[1], "id": "job", "report": False, "live": False},
    "power": {"meters": ["null"]},
    "precision": {"gears": ["bf16", "fp8", "fp32"], "min_features": 16, "probe_every": 0},
    "policy": {"name": "scripted", "schedule": [[0, "bf16"], [2, "fp8"], [4, "fp32"]]},
}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.seen = []

    def forward(self, x):
        if self.training:
            self.seen.append(str(self.up._green.box.gear))
        return self.down(torch.relu(self.up(x))).pow(2).mean()

def train(model, optimizer, steps=6):
    losses = []
    with GreenSession(config) as green:
        green.watch(model, optimizer)
        for step in range(steps):
            x = torch.randn(16, 32, generator=torch.Generator().manual_seed(100 * step + rank))
            loss = model(x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            green.step(samples=16)
            losses.append(loss.item())
    return losses
"""
DDP = """
dist.init_process_group("gloo")
net = Net()
model = nn.parallel.DistributedDataParallel(net)
losses = train(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
total = sum(p.double().sum() for p in net.parameters()).item()
print(json.dumps({"seen": net.seen, "losses": losses, "weights": total}))
dist.destroy_process_group()
"""
FSDP = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
net = Net()
for layer in (net.up, net.down):
    if sys.argv[2] == "layers":
        fully_shard(layer, mesh=mesh)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if sys.argv[2] == "bf16" else MixedPrecisionPolicy()
fully_shard(net, mesh=mesh, mp_policy=policy)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
try:
    losses = train(net, optimizer)
    answer = {"seen": net.seen, "losses": losses, "kind": type(net).__name__}
except ConfigError as error:
    answer = {"error": str(error)}
print(json.dumps(answer))
dist.barrier()
dist.destroy_process_group()
"""
PARALLEL = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
dist.init_process_group("gloo")
gears = ["fp32", "bf16", "fp8", "mxfp8"]
config["precision"] = {"gears": gears, "min_features": 16, "probe_every": 0}
config["policy"] = {"name": "scripted", "schedule": [[0, "fp32"], [1, "bf16"], [2, "fp8"], [3, "mxfp8"]]}

class Wide(Net):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

def run(net):
    optimizer, losses, grads = torch.optim.SGD(net.parameters(), lr=0.0), [], []
    with GreenSession(config | {"run": config["run"] | {"id": f"job-{len(found)}"}}) as green:
        green.watch(net, optimizer)
        for step in range(4):
            loss = net(torch.randn(48, 64, generator=torch.Generator().manual_seed(1)))
            loss.backward()
            got = [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in net.parameters()]
            grads.append([g.clone() for g in got])
            losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
            green.step(samples=48)
        chosen = [layer.name for layer in green.gears.box.plan if layer.chosen] if hasattr(green, "gears") else []
    found.append((losses, grads, net.seen, chosen))

found = []
for kind in ("whole", "split"):
    torch.manual_seed(0)
    net = Wide()
    if kind == "split":
        mesh = init_device_mesh("cpu", (2,))
        parallelize_module(net, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    run(net)
(losses, grads, seen, chosen), (other, others, _, same) = found
off = [max(float((a - b).norm() / a.norm()) for a, b in zip(*pair)) for pair in zip(grads, others)]
print(json.dumps({"losses": losses, "split": other, "off": off, "seen": seen, "chosen": [chosen, same]}))
dist.barrier()
dist.destroy_process_group()
"""
ZERO = """
import deepspeed
deepspeed.init_distributed("gloo")
stage, accumulate = int(sys.argv[2]), 2
net = Net()
engine, *_ = deepspeed.initialize(
    model=net,
    optimizer=torch.optim.AdamW(net.parameters(), lr=1e-2),
    config={
        "train_micro_batch_size_per_gpu": 16,
        "gradient_accumulation_steps": accumulate,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "torch_autocast": {"enabled": True, "dtype": "bfloat16"} if stage else {"enabled": False},
        "bf16": {"enabled": sys.argv[3] == "bf16"},
    },
)
try:
    with GreenSession(config) as green:
        green.watch(engine)
        for step in range(6 * accumulate):
            x = torch.randn(16, 32, generator=torch.Generator().manual_seed(step))
            engine.backward(engine(x))
            engine.step()
            green.count(samples=16)
    answer = {"seen": net.seen, "steps": green.totals().steps}
except ConfigError as error:
    answer = {"error": str(error)}
print(json.dumps(answer))
"""


def _run(script: str, folder: Path, *args: str, ranks: int = 2) -> list[dict[str, Any]]:
    port = free_port()
    processes = []
    for rank in range(ranks):
        env = os.environ | {
            "DS_ACCELERATOR": "cpu",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(ranks),
        }
        command = [sys.executable, "-c", COMMON + script, str(folder), *args]
        processes.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    answers = []
    for process in processes:
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err[-3000:]
        answers.append(json.loads(out.strip().splitlines()[-1]))
    return answers


SEEN = ["bf16"] * 2 + ["fp8"] * 2 + ["fp32"] * 2


def test_ddp_ranks_shift_at_the_same_step_and_keep_the_same_weights(tmp_path: Path) -> None:
    first, second = _run(DDP, tmp_path)
    assert first["seen"] == second["seen"] == SEEN
    assert first["weights"] == second["weights"]
    assert first["losses"] != second["losses"]


@pytest.mark.long
@pytest.mark.parametrize("how", ["whole", "layers"])
def test_fsdp2_shifts_all_gears_under_its_default_policy(tmp_path: Path, how: str) -> None:
    answers = _run(FSDP, tmp_path, how)
    if how == "layers":  # fully_shard gives a layer a class of its own
        assert "no layer of" in answers[0]["error"] and "FSDPLinear" in answers[0]["error"]
    else:
        assert [answer["seen"] for answer in answers] == [SEEN, SEEN]
        assert answers[0]["kind"] == "FSDPNet"


@pytest.mark.long
def test_fsdp2_with_bf16_weights_refuses_fp32(tmp_path: Path) -> None:
    for answer in _run(FSDP, tmp_path, "bf16"):
        assert "fp32" in answer["error"] and "gathers its weights in bfloat16" in answer["error"]


@pytest.mark.long
def test_layers_that_tensor_parallelism_split_run_in_every_gear(tmp_path: Path) -> None:
    for answer in _run(PARALLEL, tmp_path):
        assert answer["seen"] == ["fp32", "bf16", "fp8", "mxfp8"]
        assert answer["split"] == pytest.approx(answer["losses"], rel=0.02)
        off = answer["off"]  # of a gradient's norm, from the whole layer in the same gear: other factors, same format
        assert off[0] < 1e-5 and off[1] < 0.02 and 1e-3 < off[2] < 0.12 and off[3] < 0.12, off


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_deepspeed_shifts_at_its_own_boundary(tmp_path: Path, stage: int) -> None:
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed (extra 'deepspeed')")
    (answer,) = _run(ZERO, tmp_path, str(stage), "fp32", ranks=1)
    assert answer == {"seen": [gear for gear in SEEN for _ in range(2)], "steps": 6}


def test_deepspeed_with_bf16_weights_refuses_fp32(tmp_path: Path) -> None:
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed (extra 'deepspeed')")
    (answer,) = _run(ZERO, tmp_path, "1", "bf16", ranks=1)
    assert "DeepSpeed keeps the weights in bfloat16" in answer["error"]
