"""One power limit for a run without a plan: the same on all ranks, also where they differ."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from greentrain.config.schema import GreenConfig
from greentrain.control.controller import choose_cap
from greentrain.errors import GreenTrainWarning
from greentrain.policy.action_table import ActionObjective, ActionTable
from greentrain.power.detect import NullMeter
from greentrain.session.session import GreenSession
from greentrain.types import Gear
from tests.helpers.ports import free_port

ROOT = Path(__file__).resolve().parents[3]


def test_where_there_is_no_choice_the_limit_stays_as_it_was_found(tmp_path: Path) -> None:
    config = GreenConfig.load({"run": {"dir": str(tmp_path), "id": "one", "report": False, "live": False}})
    table = ActionTable(costs=(), device="a", world_size=2, tokens_per_step=None, created_unix_s=0.0, versions={})

    def broken() -> ActionObjective:
        raise ZeroDivisionError("no grid at all")

    with GreenSession(config, meter=NullMeter()) as green:
        active = green.active()
        assert active is not None
        with pytest.warns(GreenTrainWarning, match="stays as it was found: no grid at all"):
            assert choose_cap(table, broken, active, Gear.BF16, (1.0, 0.8)) is None


RANKS = """
import os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from greentrain import GreenSession
from greentrain.control.controller import GpuLimits
from tests.helpers.capped import FakeCaps
from tests.helpers.flat_meter import FlatMeter

class Caps(FakeCaps):
    limit_w = 700.0
    def close(self):
        pass

rank = int(os.environ["RANK"])
torch.set_num_threads(1)
dist.init_process_group("gloo")
for without in (0, 1):
    caps = None if rank == without else Caps()
    GpuLimits.open = classmethod(lambda cls, *_: cls(caps))
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = nn.parallel.DistributedDataParallel(model)
    run = {"dir": sys.argv[1], "id": f"without-{without}", "report": False, "live": False}
    config = {"run": run, "precision": {"gears": ["fp32"], "probe_every": 0}, "actuators": {"power_cap": {}}}
    with GreenSession(config, meter=FlatMeter()) as green:
        green.watch(model, optimizer)
        for _ in range(5):
            wrapped(torch.ones(4, 8)).sum().backward()
            optimizer.step()
            green.step(samples=4)
    assert caps is None or caps.asked == []
print("trained")
dist.destroy_process_group()
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_rank_without_limits_does_not_stop_the_others(tmp_path: Path) -> None:
    port = free_port()
    processes = []
    for rank in range(2):
        env = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        env |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", RANKS, str(tmp_path)],
                env=env,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        for process in processes:
            out, err = process.communicate(timeout=400)
            assert process.returncode == 0 and "trained" in out, err[-3000:]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
