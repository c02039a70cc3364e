"""Kill what computes frozen passes at random while a training waits for them, and compare every bit with no kill.

    python benchmarks/rlhf_kills.py --kills 20            # Debian 12: apt-get install libxrt1 g++
    python benchmarks/rlhf_kills.py --storm 100           # workers, device servers and servers; home or none

The device is the whole XRT chain in AMD's no-op emulation with the compiled kernels in the place of the silicon; home
is the emulator. Reward and reference run in parts and streamed; one SIGKILL comes at a random moment of each round.

The storm trains a policy of bigrams whose rollouts come from its weights, so that a single wrong number changes all
that follow, and compares the SHA-256 of its weights with that of the sequential run. What is killed: the worker of that
card, the server of a :class:`RemoteDevice`, and ``greentrain serve`` behind a :class:`ServeClient`; started again at
once, or never, with a home or without one, at moments around each time-out. What is not started again and has no home
is waited for: it is started when the training has said for what.
"""

import argparse
import contextlib
import hashlib
import os
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.paced_device import Paced
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.fpga_backend.remote.client import RemoteDevice, RemoteTimeouts
from greentrain.fpga_backend.remote.server import serve
from greentrain.fpga_backend.xrt.device import XrtDevice
from greentrain.rlhf.client import ServeClient
from greentrain.rlhf.engine import OffloadEngine, PassStats
from greentrain.rlhf.frozen_pass import place
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.serve.server import Server
from greentrain.rlhf.stream import Stream
from greentrain.rlhf.text import TextEncoder
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


def _kill_living(device: XrtDevice) -> None:
    """Kill the device's worker; where the last one is dead already, the next one, which starts when it is asked."""
    end_s = time.monotonic() + 120.0
    while time.monotonic() < end_s:
        with contextlib.suppress(ProcessLookupError):
            _kill(device, [])
            return
        time.sleep(0.01)


def _batch(rng: random.Random, sequences: int) -> Batch:
    return Batch.of([[rng.randrange(101) for _ in range(rng.randint(2, 32))] for _ in range(sequences)])


def _wrong(model: Artifact, batch: Batch, found: Result) -> int:
    """Return how many sequences have other bits than on the emulator's engine."""
    right = Engine(model).run(batch)
    rows = list(zip(_rows(found), _rows(right), strict=True))
    return sum(not np.array_equal(a, b) for a, b in rows)


def _rows(result: Result) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return list(result.scores if result.scores is not None else result.logprobs or ())


Rows = list[npt.NDArray[np.float32]]
Ask = Callable[[PassKind, Batch], Rows]
TOKEN: Final = "a-token-of-a-storm-that-nobody-else-has"
TIMEOUT_S: Final = 0.15
"""Of the engine (s); a batch takes about as long."""
PATIENCE: Final = RemoteTimeouts(batch_s=120.0, load_s=120.0, silence_s=1.0, lost_s=0.3, hold_s=0.1, poll_s=0.05)
SEQUENCES, TOKENS, WORDS = 6, 8, 90


def models() -> dict[PassKind, Artifact]:
    """Return the frozen models of a storm."""
    return {PassKind.REWARD: encoder(layers=1, types=0), PassKind.REFERENCE: decoder(layers=1)}


def train(steps: int, seed: int, ask: Ask, around: Callable[[], contextlib.AbstractContextManager[None]]) -> str:
    """Train a policy of bigrams by REINFORCE with a KL term; return the SHA-256 of its weights.

    Args:
        steps: Steps.
        seed: Of the rollouts.
        ask: Computes a pass.
        around: Opened around the passes of each step.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = torch.zeros(WORDS, WORDS, requires_grad=True)
    for _ in range(steps):
        rows = torch.randint(1, WORDS, (SEQUENCES, 1), generator=generator)
        for _ in range(TOKENS - 1):
            chances = weights.detach()[rows[:, -1]].softmax(-1)
            rows = torch.cat([rows, torch.multinomial(chances, 1, generator=generator)], dim=1)
        batch = Batch.of(rows.tolist())
        with around():
            rewards, reference = ask(PassKind.REWARD, batch), ask(PassKind.REFERENCE, batch)
        scores = torch.tensor(np.stack(rewards)[:, 0])
        logp = weights.log_softmax(-1)[rows[:, :-1], rows[:, 1:]]
        kl = logp - torch.tensor(np.stack(reference))
        loss = -((scores - scores.mean())[:, None] * logp).mean() + 0.05 * (kl * kl).mean()
        (slope,) = torch.autograd.grad(loss, [weights])
        weights = (weights.detach() - 30.0 * slope).requires_grad_()
    return hashlib.sha256(weights.detach().numpy().tobytes()).hexdigest()


class Lent:
    """A server in a process of its own that is killed and started again at the same address.

    A process that has no threads forks them: one that trains could not.

    Args:
        answer: Serves at a port, 0 for any that is free, and returns the address; in the server's process.
    """

    def __init__(self, answer: Callable[[int], str]) -> None:
        warm = Emulator()
        for model in models().values():
            warm.load(model)  # imports what each server would, each time
        warm.close()
        (asks, self._ask), (self._told, tells) = os.pipe(), os.pipe()
        self._forker = os.fork()
        if self._forker == 0:
            try:
                os.close(self._ask)
                _fork_servers(answer, asks, tells)
            finally:
                os._exit(0)
        os.close(asks)
        os.close(tells)
        self._lock = threading.Lock()
        self.url = self.start()

    def start(self) -> str:
        """Start it; return its address when it listens."""
        return self._say(b"s")

    def kill(self) -> None:
        """Kill it."""
        self._say(b"k")

    def close(self) -> None:
        """End it for good."""
        self.kill()
        os.close(self._ask)
        os.close(self._told)
        os.waitpid(self._forker, 0)

    def _say(self, word: bytes) -> str:
        with self._lock:
            os.write(self._ask, word)
            return os.read(self._told, 200).decode()


def _fork_servers(answer: Callable[[int], str], asks: int, tells: int) -> None:
    port = server = 0
    while word := os.read(asks, 1):
        said = b"killed"
        if server:
            os.kill(server, signal.SIGKILL)
            os.waitpid(server, 0)
            server = 0
        if word == b"s":
            read, write = os.pipe()
            server = os.fork()
            if server == 0:
                try:
                    os.close(asks)  # nobody but the forker hears of the end
                    os.write(write, answer(port).encode())
                    time.sleep(600.0)
                finally:
                    os._exit(1)
            os.close(write)
            said = os.read(read, 200)
            os.close(read)
            port = int(said.decode().rpartition(":")[2])
        os.write(tells, said)


def lend_device(port: int) -> str:
    """Lend an emulator that takes its time."""
    return serve(Paced(Emulator(), s_per_sequence=TIMEOUT_S / SEQUENCES), port=port, token=TOKEN).url


def lend_passes(port: int) -> str:
    """Serve the passes of an emulator."""
    device = Emulator()
    engine = OffloadEngine([place(kind, model, device) for kind, model in models().items()])
    return Server(
        engine, {PassKind.REWARD: TextEncoder(_Letters(), 64, special_tokens=False)}, port=port, token=TOKEN
    ).url


class _Letters:
    """A tokenizer whose texts are tokens as letters."""

    def __call__(self, texts: Sequence[str], **_: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [[ord(letter) - 32 for letter in text] for text in texts]}


@dataclass(kw_only=True)
class Victim:
    """What is killed while it is asked."""

    ask: Ask
    kill: Callable[[], None]
    start: Callable[[], object]
    """Again; nothing where that is another's affair."""
    waits: Callable[[], bool]
    """True when the training has said that it waits."""


@contextlib.contextmanager
def _opened(device: Any, told: list[str], *, home: bool) -> Iterator[Ask]:
    """Open an engine on a device, with or without a home, that asks for passes in parts."""
    at_home = Emulator()
    places = [
        place(kind, model, device, home=at_home if home else None, sequences=3) for kind, model in models().items()
    ]
    engine = OffloadEngine(places, depth=4, timeout_s=TIMEOUT_S)
    tell = engine._desk.tell

    def telling(key: str, text: str, then: str = "training goes on") -> None:
        told.append(text)
        tell(key, text, then)

    engine._desk.tell = telling  # type: ignore[method-assign]
    try:
        yield lambda kind, batch: _rows(engine.submit(kind, batch).result())
    finally:
        engine.close()
        device.close()
        at_home.close()


@contextlib.contextmanager
def victim(what: str, folder: Path, *, home: bool, kills: int) -> Iterator[Victim]:
    """Open a worker, a device server or a server.

    Args:
        what: ``worker``, ``device`` or ``server``.
        folder: Folder for XRT's files.
        home: A device to redo passes on; a ``server`` has none.
        kills: Most kills, for a worker.
    """
    told: list[str] = []
    with contextlib.ExitStack() as stack:
        if what == "worker":
            worker = stack.enter_context(noop_device(folder, restarts=kills + 1))
            ask = stack.enter_context(_opened(worker, told, home=home))
            yield Victim(ask=ask, kill=lambda: _kill_living(worker), start=lambda: None, waits=lambda: True)
            return
        lent = Lent(lend_device if what == "device" else lend_passes)
        stack.callback(lent.close)
        if what == "device":
            device = RemoteDevice(lent.url, token=TOKEN, patience=PATIENCE)
            ask = stack.enter_context(_opened(device, told, home=home))
            waits = lambda: any("waits for it" in text for text in told)  # noqa: E731
        else:
            client = stack.enter_context(ServeClient(lent.url, token=TOKEN, back_off_s=0.05))
            ask = lambda kind, batch: _asked(client, kind, batch)  # noqa: E731
            waits = lambda: client._waits  # noqa: E731
        yield Victim(ask=ask, kill=lent.kill, start=lent.start, waits=waits)


def _asked(client: ServeClient, kind: PassKind, batch: Batch) -> Rows:
    rows = [row.tolist() for row in batch.ids]
    if kind is PassKind.REWARD:
        found = client.rewards(["".join(chr(token + 32) for token in row) for row in rows])
        return [np.array([one], dtype=np.float32) for one in found]
    return [np.array(row, dtype=np.float32) for row in client.logprobs(rows)]


@dataclass(kw_only=True)
class Storm:
    """What became of a training under kills."""

    sha: str
    kills: int = 0
    waited: int = 0
    """Times that it said what it waited for before that was started again."""
    unlike: int = 0
    """Passes whose bits were others when they were asked for again."""
    errors: list[str] = field(default_factory=list)


def storm(what: str, folder: Path, *, home: bool, again: bool, kills: int, seed: int) -> Storm:
    """Train with a kill in every step.

    Args:
        what: ``worker``, ``device`` or ``server``.
        folder: Folder for XRT's files.
        home: Passes have a home.
        again: What is killed is started again after a moment; else where it is waited for, and with a home never.
        kills: Steps, each with one kill.
        seed: Of rollouts and moments.
    """
    rng, found = random.Random(seed), Storm(sha="")
    with warnings.catch_warnings(), victim(what, folder, home=home, kills=kills) as struck:
        warnings.simplefilter("ignore")
        gone = False

        def strike(kill_s: float, start_s: float) -> None:
            nonlocal gone
            try:
                time.sleep(kill_s)
                struck.kill()
                found.kills += 1
                if again:
                    time.sleep(start_s)
                elif home:
                    gone = True
                    return
                else:
                    end_s = time.monotonic() + 240.0
                    while not struck.waits() and time.monotonic() < end_s:
                        time.sleep(0.005)
                    found.waited += struck.waits()
                struck.start()
            except Exception as error:
                found.errors.append(repr(error))

        def moment() -> float:
            """Near the beginning, or near a time-out."""
            return max(0.0, rng.choice((0.0, TIMEOUT_S, PATIENCE.lost_s)) + rng.uniform(-0.03, 0.06))

        seen: list[tuple[PassKind, Batch, Rows]] = []

        def ask(kind: PassKind, batch: Batch) -> Rows:
            seen.append((kind, batch, struck.ask(kind, batch)))
            return seen[-1][2]

        @contextlib.contextmanager
        def around() -> Iterator[None]:
            striking = threading.Thread(target=strike, args=[moment(), moment()])
            if not gone:
                striking.start()
            seen.clear()
            yield
            once_more = True
            while not gone and (striking.is_alive() or once_more):  # each kill meets work
                once_more = striking.is_alive()
                kind, batch, rows = seen[rng.randrange(2)]
                same = zip(rows, struck.ask(kind, batch), strict=True)
                found.unlike += not all(np.array_equal(a, b) for a, b in same)
            if striking.ident is not None:
                striking.join()

        found.sha = train(kills, seed, ask, around)
    return found


def sequential(steps: int, seed: int) -> str:
    """Return the SHA-256 of the weights without any other device, and without any kill."""
    engines = {kind: Engine(model) for kind, model in models().items()}
    return train(steps, seed, lambda kind, batch: _rows(engines[kind].run(batch)), contextlib.nullcontext)


SCENES: Final = (
    ("worker", True, True),
    ("worker", False, True),
    ("device", True, True),
    ("device", False, True),
    ("device", True, False),
    ("device", False, False),
    ("server", False, True),
    ("server", False, False),
)
"""What is killed, whether there is a home, and whether it is started again at once. A worker without a replacement and
without a home is an error, and one with a home is told by tests/rlhf/engine/test_faults.py."""


def main() -> int:
    """Print what became of it; 1 where a number is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    parser.add_argument("--storm", type=int, help="so many kills of workers, device servers and servers instead")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"seed {asked.seed}", flush=True)
    if asked.storm:
        return _storms(asked.storm, asked.seed)
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


def _storms(kills: int, seed: int) -> int:
    """Print what became of each scene; 1 where a bit is wrong."""
    wrong = left = 0
    with tempfile.TemporaryDirectory() as folder:
        for i, (what, home, again) in enumerate(SCENES):
            each, begun_s = -(-(kills - left) // (len(SCENES) - i)), time.perf_counter()
            found = storm(what, Path(folder), home=home, again=again, kills=each, seed=seed + i)
            left += found.kills
            right = found.sha == sequential(each, seed + i) and not found.unlike and not found.errors
            wrong += not right
            print(
                f"{what}, {'home' if home else 'no home'}, {'started again' if again else 'not started again'}: "
                f"{each} steps, {found.kills} kills, waited and said so {found.waited} times, "
                f"{'weights of the sequential run' if right else f'WRONG: {found}'}, "
                f"{time.perf_counter() - begun_s:.1f} s",
                flush=True,
            )
    print(f"{left} kills, {wrong} trainings wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
