"""Kill the worker of an offload device at random while passes run, and hold every number against the emulator's.

    python benchmarks/rlhf_kills.py --kills 20            # Debian 12: apt-get install libxrt1 g++

The device is the whole XRT chain in AMD's no-op emulation with the compiled kernels in the place of the silicon; home
is the emulator. Reward and reference run in parts and streamed; one SIGKILL comes at a random moment of each round.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.fpga_backend.xrt.device import XrtDevice
from greentrain.rlhf.engine import OffloadEngine, PassStats
from greentrain.rlhf.frozen_pass import place
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.stream import Stream
from greentrain.testing.offload_models import decoder, encoder
from greentrain.testing.xrt_noop import noop_device


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a run."""

    kills: int
    rounds: int
    replaced: int
    """Workers."""
    wrong: int
    """Sequences whose numbers are not the emulator's, bit for bit."""
    stats: dict[PassKind, PassStats]
    warnings: tuple[str, ...]
    took_s: float


def run(device: XrtDevice, *, kills: int, seed: int, sequences: int = 24, longest_s: float = 0.15) -> Outcome:
    """Train nothing, score everything, and kill the device's worker once a round.

    Args:
        device: With as many restarts as kills.
        kills: Rounds.
        seed: Of batches and moments.
        sequences: A round and pass.
        longest_s: A kill comes at a random moment of this time (s).
    """
    rng = random.Random(seed)
    models = {PassKind.REWARD: encoder(layers=1, types=0), PassKind.REFERENCE: decoder(layers=1)}
    home = Emulator()
    wrong = rounds = 0
    workers = {device.worker_pid}
    begun_s = time.perf_counter()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            engine = OffloadEngine(
                [place(kind, model, device, home=home, sequences=2) for kind, model in models.items()], depth=16
            )
            for _ in range(kills):
                killed: list[int] = []
                killer = threading.Timer(rng.uniform(0.0, longest_s), _kill, [device, killed])
                batches = {kind: _batch(rng, sequences) for kind in models}
                killer.start()
                stream = Stream(engine, PassKind.REWARD, sequences=3)
                for i, row in enumerate(batches[PassKind.REWARD].ids):
                    stream.add(i, row)
                while killer.is_alive() or device.worker_pid in killed:  # each kill meets work
                    ticket = engine.submit(PassKind.REFERENCE, batches[PassKind.REFERENCE])
                    wrong += _wrong(models[PassKind.REFERENCE], batches[PassKind.REFERENCE], ticket.result())
                killer.join()
                wrong += _wrong(models[PassKind.REWARD], batches[PassKind.REWARD], stream.result(range(sequences)))
                rounds += 1
                workers.add(device.worker_pid)
            stats = dict(engine.stats())
        finally:
            home.close()
    return Outcome(
        kills=kills,
        rounds=rounds,
        replaced=len(workers) - 1,
        wrong=wrong,
        stats=stats,
        warnings=tuple(str(one.message) for one in told),
        took_s=time.perf_counter() - begun_s,
    )


def _kill(device: XrtDevice, killed: list[int]) -> None:
    killed.append(device.worker_pid)
    os.kill(killed[0], signal.SIGKILL)


def _batch(rng: random.Random, sequences: int) -> Batch:
    return Batch.of([[rng.randrange(101) for _ in range(rng.randint(2, 32))] for _ in range(sequences)])


def _wrong(model: Artifact, batch: Batch, found: Result) -> int:
    """Return how many sequences have other bits than on the emulator's engine."""
    right = Engine(model).run(batch)
    rows = list(zip(_rows(found), _rows(right), strict=True))
    return sum(not np.array_equal(a, b) for a, b in rows)


def _rows(result: Result) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return list(result.scores if result.scores is not None else result.logprobs or ())


def main() -> int:
    """Print what became of it; 1 where a number is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"seed {asked.seed}", flush=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        noop_device(Path(folder), restarts=asked.kills + 1) as device,
    ):
        found = run(device, kills=asked.kills, seed=asked.seed)
    print(
        f"{found.rounds} rounds, {found.kills} kills, {found.replaced} workers replaced, {found.wrong} wrong, "
        f"{len(found.warnings)} warnings, {found.took_s:.1f} s"
    )
    for kind, sums in found.stats.items():
        print(f"{kind}: {sums.calls} passes, {sums.sequences} sequences, {sums.redone} parts redone at home")
    for text in found.warnings:
        print(text)
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
