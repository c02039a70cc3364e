"""Many clients of one server, a sequence a request: latency, requests/s, device batches, and every answer checked.

    python benchmarks/rlhf_server.py                     # two minutes on two idle cores
    python benchmarks/rlhf_server.py --quick             # few requests: to see that it runs
    python benchmarks/rlhf_server.py --into docs/serve.md

The clients are a process of their own, each with one connection, and ask again as soon as they are answered. Two
devices: the emulator, which computes on the core that the server needs too, and a device that sleeps for a time a batch
and a sequence, as a card computes while the CPU is free. Its times are assumed, not those of a card. Every answer is
compared with the score of the same sequence computed directly, bit for bit.
"""

import argparse
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from benchmarks.marks import facts, put
from benchmarks.metering import machine
from benchmarks.paced_device import Paced
from benchmarks.rlhf_server_clients import asking
from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.device import OffloadDevice
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.frozen_pass import place
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.serve.limits import ServeLimits
from greentrain.rlhf.serve.server import Server
from greentrain.testing.offload_models import encoder

TOKENS: Final = 128
"""Longest sequence; they have 16 to 128 tokens."""
S_PER_BATCH: Final = 0.005
S_PER_SEQUENCE: Final = 0.0002
"""Of the device that sleeps."""
DEVICES: Final[Mapping[str, Callable[[], OffloadDevice]]] = {
    "emulator": Emulator,
    "sleeps": lambda: Paced(Emulator(), s_per_batch=S_PER_BATCH, s_per_sequence=S_PER_SEQUENCE),
}
WAYS: Final[Mapping[str, ServeLimits]] = {
    "one by one": ServeLimits(batch_sequences=1),
    "coalesced": ServeLimits(),
    "coalesced, window 2 ms": ServeLimits(window_s=0.002),
    "coalesced, window 5 ms": ServeLimits(window_s=0.005),
    "coalesced, 2 in flight": ServeLimits(in_flight=2),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way, measured."""

    device: str
    way: str
    clients: int
    requests: int
    requests_per_s: float
    p50_s: float
    p99_s: float
    batches: int
    wrong: int
    """Answers that differ from the direct score in any bit, or did not come."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=128, help="at a time")
    parser.add_argument("--requests", type=int, default=20, help="of each client")
    parser.add_argument("--quick", action="store_true", help="two requests a client, two ways")
    parser.add_argument("--into", type=Path, help="also put the table into this text, between its two marks")
    args = parser.parse_args(argv)
    if args.into is not None and args.quick:
        parser.error("--into replaces the whole table, so it goes without --quick")
    torch.set_num_threads(1)
    rows = []
    with _clients() as ask:
        for device in DEVICES:
            ways = list(WAYS)[:2] if args.quick else list(WAYS)
            requests = 2 if args.quick else args.requests
            with _engine(device, 64 if args.quick else 512) as (engine, sequences, wanted):
                for clients, way in [(args.clients, way) for way in ways] + [(1, way) for way in ways[1:3]]:
                    rows.append(_row(ask, engine, sequences, wanted, device, way, clients, requests))
                    print(f"{rows[-1]}", file=sys.stderr)
    text = markdown(rows, machine("benchmarks/rlhf_server.py"))
    print(text)
    if args.into is not None:
        put(text, args.into)
    return int(any(row.wrong for row in rows))


def markdown(rows: Sequence[Row], about: Mapping[str, str]) -> str:
    """Return the table and where it was made."""
    lines = [facts(about)]
    lines += [
        "",
        "| device | batches are made | clients | requests | requests/s | p50 ms | p99 ms | device batches | wrong |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.device} | {row.way} | {row.clients} | {row.requests} | {row.requests_per_s:,.0f} "
        f"| {1e3 * row.p50_s:.1f} | {1e3 * row.p99_s:.1f} | {row.batches} | {row.wrong} |"
        for row in rows
    ]
    return "\n".join(lines)


@contextmanager
def _engine(device: str, number: int) -> Iterator[tuple[OffloadEngine, list[list[int]], list[float]]]:
    """Yield an engine, sequences, and what it says of each directly."""
    artifact = encoder(layers=4, hidden=128, heads=4, inner=512, vocabulary=1000, max_tokens=TOKENS)
    rng = np.random.default_rng(0)
    sequences = [rng.integers(1, 1000, int(rng.integers(16, TOKENS + 1))).tolist() for _ in range(number)]
    opened = DEVICES[device]()
    try:
        engine = OffloadEngine([place(PassKind.REWARD, artifact, opened)])
        scores = engine.submit(PassKind.REWARD, Batch.of(sequences)).result().scores
        if scores is None:
            raise RuntimeError("the encoder has no score head")
        yield engine, sequences, scores[:, 0].tolist()
    finally:
        opened.close()


def _row(
    ask: Any,
    engine: OffloadEngine,
    sequences: Sequence[Sequence[int]],
    wanted: Sequence[float],
    device: str,
    way: str,
    clients: int,
    requests: int,
) -> Row:
    """Measure one way."""
    each = requests if clients > 1 else 10 * requests
    with Server(engine, limits=WAYS[way]) as server:
        ask.send((server.url, sequences, clients, 1))
        ask.recv()  # connections, threads and caches are warm now
        before = engine.stats()[PassKind.REWARD].calls
        ask.send((server.url, sequences, clients, each))
        took_s, found = ask.recv()
        batches = engine.stats()[PassKind.REWARD].calls - before
    seconds = [seconds for _, seconds, _ in found]
    return Row(
        device=device,
        way=way,
        clients=clients,
        requests=clients * each,
        requests_per_s=len(found) / took_s,
        p50_s=float(np.percentile(seconds, 50)),
        p99_s=float(np.percentile(seconds, 99)),
        batches=batches,
        wrong=clients * each - sum(answer == wanted[i] for i, _, answer in found),
    )


@contextmanager
def _clients() -> Iterator[Any]:
    """Yield a pipe to the process of the clients."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=asking, args=(theirs,), daemon=True)
    process.start()
    try:
        yield ours
    finally:
        ours.send(None)
        process.join()
        ours.close()
        theirs.close()


if __name__ == "__main__":
    sys.exit(main())
