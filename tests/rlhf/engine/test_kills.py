"""Workers and servers that are killed while passes run: every number is right, and the run goes on.

The long tier kills as often as the proof of the whole asks for; so does benchmarks/rlhf_kills.py.
"""

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.rlhf_kills import SCENES, run, sequential, storm
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.fpga_backend.remote.client import RemoteDevice, RemoteTimeouts
from greentrain.fpga_backend.remote.server import serve
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.frozen_pass import place
from greentrain.rlhf.kinds import PassKind
from greentrain.testing.xrt_noop import LIBRARIES, SHIM, noop_device
from tests.rlhf.engine.conftest import Closing

QUICK = RemoteTimeouts(batch_s=20.0, load_s=20.0, silence_s=1.0, lost_s=0.3, hold_s=0.1, poll_s=0.05)
TOKEN = "a-token-of-a-test-that-nobody-else-has"


needs_xrt = pytest.mark.skipif(
    not (LIBRARIES / SHIM).exists() or shutil.which("g++") is None,
    reason="needs XRT's no-op emulation (Debian 12: apt-get install libxrt1) and g++",
)


def scenes() -> Iterator[Any]:
    """Each scene with a kill or two; in the long tier with more, and those of XRT's workers."""
    for what, home, again in SCENES:
        name = f"{what}, {'home' if home else 'no home'}, {'started again' if again else 'not started again'}"
        worker = what == "worker"
        if not worker:
            yield pytest.param(what, home, again, 1 + (again and what == "device"), id=name)
        marks = [pytest.mark.long, *([needs_xrt] if worker else [])]
        yield pytest.param(what, home, again, 2 if worker else 6, id=f"{name}, often", marks=marks)


@pytest.mark.parametrize(("what", "home", "again", "kills"), list(scenes()))
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_storm_of_kills_leaves_the_weights_of_the_sequential_run(
    tmp_path: Path, what: str, home: bool, again: bool, kills: int
) -> None:
    """Or a training without a home waits and says for what. ``benchmarks/rlhf_kills.py --storm 100`` kills as often."""
    found = storm(what, tmp_path, home=home, again=again, kills=kills, seed=7)
    assert not found.errors
    assert not found.unlike
    assert found.sha == sequential(kills, 7)
    assert found.kills == (1 if home and not again else kills), "one that is not started again is killed once"
    assert found.waited == (0 if home or again else kills)


@pytest.mark.parametrize("kills", [1, pytest.param(8, marks=pytest.mark.long)])
@needs_xrt
def test_a_worker_of_the_whole_xrt_chain_killed_at_random(tmp_path: Path, kills: int) -> None:
    seed = int(os.environ.get("GREENTRAIN_SEED", random.randrange(2**31)))
    print(f"GREENTRAIN_SEED={seed}")
    with noop_device(tmp_path, restarts=kills + 1) as device:
        found = run(device, kills=kills, seed=seed, sequences=6 if kills == 1 else 24)
    assert (found.rounds, found.replaced, found.wrong) == (kills, kills, 0)
    assert len(found.warnings) <= 1


def lending() -> tuple[int, str]:
    """Fork a process that lends an emulator; return its id and address. A new interpreter would import for seconds."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            server = serve(Emulator(), token=TOKEN)
            os.write(write, server.url.encode())
            os.close(write)
            time.sleep(600.0)
        finally:
            os._exit(1)
    os.close(write)
    with os.fdopen(read) as address:
        return child, address.read()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_server_that_is_killed(reward: Artifact, closing: Closing) -> None:
    batch = Batch.of([[1, 2, 3], [4, 5], [6], [7, 8, 9, 10]])
    wanted = Engine(reward).run(batch).scores
    assert wanted is not None
    child, url = lending()
    try:
        device, home = RemoteDevice(url, token=TOKEN, patience=QUICK), Emulator()
        closing(device, home)
        engine = OffloadEngine([place(PassKind.REWARD, reward, device, home=home, sequences=1)])
        with pytest.warns(UserWarning, match="emulator at 127.0.0.1.* is lost .* with the same bits") as told:
            tickets = [engine.submit(PassKind.REWARD, batch) for _ in range(4)]
            os.kill(child, signal.SIGKILL)
            tickets += [engine.submit(PassKind.REWARD, batch) for _ in range(4)]
            for ticket in tickets:
                scores = ticket.result().scores
                assert scores is not None and np.array_equal(scores, wanted)
        assert len(told) == 1
        took_s: list[float] = []
        while len(took_s) < 5 or (min(took_s) >= QUICK.lost_s and len(took_s) < 100):
            begun_s = time.monotonic()
            engine.submit(PassKind.REWARD, batch).result()
            took_s.append(time.monotonic() - begun_s)
        assert min(took_s) < QUICK.lost_s, "it is not asked again, nor waited for"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
