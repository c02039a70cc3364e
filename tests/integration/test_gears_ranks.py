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
GATHER = """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
config["policy"] = {"name": "scripted", "schedule": [[0, "fp8"], [2, "bf16"], [4, "fp8"]]}
sent, plain = [0], dist.all_gather_single
def counted(output, input, *args, **kwargs):
    sent[0] += input.numel() * input.element_size()
    return plain(output, input, *args, **kwargs)
dist.all_gather_single = counted

class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.norm = nn.Sequential(*(Net() for _ in range(2))), nn.LayerNorm(64)
        self.top = nn.Sequential(nn.Linear(64, 96), nn.Linear(96, 7))  # 7: padded, and not chosen

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.top(self.norm(x)).pow(2).mean()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 112), nn.Linear(112, 64)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))

def shard(net, dtype):
    for module in (*net.blocks, net):
        fully_shard(module, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=dtype))

def run(ours, dtype=torch.float32, resumed=None):
    torch.manual_seed(0)
    net = Deep()
    shard(net, dtype)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    if resumed is not None:
        state = dict(zip(("model", "optim"), get_state_dict(net, optimizer)))
        dcp.load(state, checkpoint_id=resumed)
        set_state_dict(net, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    held = [id(p) for p in net.parameters()]
    config["precision"] = {"gears": ["bf16", "fp8"], "min_features": 16, "probe_every": 0, "fp8_all_gather": ours}
    losses, told, kinds = [], [], ()
    with GreenSession(config | {"run": config["run"] | {"id": f"job-{ours}-{dtype}-{resumed is None}"}}) as green:
        green.watch(net, optimizer)
        for step in range(6):
            sent[0] = 0
            x = torch.randn(48, 64, generator=torch.Generator().manual_seed(10 * step + rank))
            net(x)  # no backward: the root stays gathered
            net.eval()
            losses.append(net(x).item())
            net.train()
            loss = net(x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            told.append(sent[0])
            green.step(samples=48)
            if step == 4 and resumed is None and dtype is torch.float32:
                state = dict(zip(("model", "optim"), get_state_dict(net, optimizer)))
                kinds = {(type(v).__name__, type(v.to_local()).__name__, str(v.dtype)) for v in state["model"].values()}
                dcp.save(state, checkpoint_id=f"{sys.argv[1]}/saved-{ours}")
    assert held == [id(p) for p in net.parameters()]
    weights = [p.full_tensor().tolist() for p in net.parameters()]
    return losses, told, sorted(kinds), weights

answer = {}
for dtype in (torch.float32, torch.bfloat16):
    (losses, told, kinds, weights), (other, less, others, same) = run(False, dtype), run(True, dtype)
    found = {"losses": [losses, other], "sent": [told, less], "kinds": [kinds, others], "equal": weights == same}
    answer[str(dtype)] = found
folders = [f"{sys.argv[1]}/saved-{ours}" for ours in (True, False)]
answer["resumed"] = run(False, resumed=folders[0])[::3] == run(False, resumed=folders[1])[::3]

from greentrain.config.schema import PrecisionConfig  # a framework that shards what has its gears already
from greentrain.control.precision.gearbox import GearBox
torch.manual_seed(0)
net, late = Deep(), []
box = GearBox(PrecisionConfig(gears=("fp8", "bf16"), min_features=16, fp8_all_gather=True))
box.attach(net)
shard(net, torch.float32)
for way in ("before", "after", "neutral", "by hand", "detached"):
    sent[0], box.neutral = 0, way == "neutral"
    if way == "detached":
        box.detach()
    if way == "by hand":
        for module in (*net.blocks, net):
            module.unshard()
            module.reshard()
    else:
        net(torch.ones(48, 64)).backward()
    box.commit()
    late.append(sent[0])
answer["late"] = late
print(json.dumps(answer))
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


@pytest.mark.long
def test_fsdp2_gathers_fp8_weights_as_bytes_and_gives_the_same_numbers(tmp_path: Path) -> None:
    once, top, root = 4 * 64 * 112 // 2, 64 * 96 // 2, 3572  # a rank's elements: of FP8 in blocks and root; of the root
    for answer in _run(GATHER, tmp_path):
        for size, dtype in ((4, "torch.float32"), (2, "torch.bfloat16")):
            (losses, ours), (stored, less) = answer[dtype]["losses"], answer[dtype]["sent"]
            assert ours == losses and answer[dtype]["equal"], "bit for bit, through two shifts"
            # A step gathers the blocks in two forwards and a backward in FP8, and as stored for evaluation. The root
            # stays gathered where no backward comes: as stored once, and with FP8 once more before.
            saved = (size - 1) * 3 * once - (size * root - (size - 1) * top)
            assert [a - b for a, b in zip(stored, less, strict=True)] == [saved] * 2 + [0] * 2 + [saved] * 2
        plain, ours = answer["torch.float32"]["kinds"]
        assert plain == ours == [["DTensor", "Tensor", "torch.float32"]] and answer["resumed"], "a checkpoint is plain"
        before, after, neutral, by_hand, detached = answer["late"]
        assert before == neutral == detached and before - after == 3 * (2 * once + top) and after < 0.28 * before
        assert by_hand * 2 - before > 0  # each once, and all of it


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
