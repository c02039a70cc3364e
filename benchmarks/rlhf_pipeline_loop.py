"""A real training step with passes on a device of emulated speed, timed in every mode: what the simulator is held to.

The loop is torch on one CPU thread, the engine and its devices are those of a run, and the devices sleep out their time
(``benchmarks/paced_device.py``), so they hide behind the loop as a card does. Stages come from the sequential
mode alone; all other modes are predicted from them.
"""

import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Final

import torch

from benchmarks.paced_device import Paced
from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.policy.offload.stages import Stage
from greentrain.rlhf.engine import OffloadEngine, Ticket
from greentrain.rlhf.frozen_pass import place
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.stream import Stream
from greentrain.simulator.pipeline.simulate import Mode, Setting, simulate
from greentrain.simulator.pipeline.table import PipelineTable, StageRow
from greentrain.simulator.pipeline.table_sources import with_engine
from greentrain.testing.offload_models import decoder, encoder
from greentrain.utils.quantities import SourcedNumber, SourceKind

SEQUENCES: Final = 16
TOKENS: Final = 12
CHUNKS: Final = 8
MICRO_BATCHES: Final = 4
WIDTH: Final = 256
KINDS: Final = (PassKind.REWARD, PassKind.REFERENCE)
MODES: Final = (Mode.SEQUENTIAL, Mode.PARALLEL, Mode.LATE, Mode.STREAM)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """A mode: what the simulator says, and what the loop took."""

    mode: Mode
    cards: int
    s_per_sequence: float
    """Of the device, for each pass."""
    predicted_s: float
    """Median over the rounds."""
    measured_s: float
    error: float
    """Median over the rounds of predicted / measured - 1, each round predicted from its own sequential step."""


@dataclasses.dataclass(slots=True)
class Clocked:
    """A step's stages (s)."""

    generate_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    step_s: float = 0.0


class Loop:
    """The step: products of matrices as generation, and a forward and a backward a micro-batch as training."""

    def __init__(self, engine: OffloadEngine, width: int, rounds: int = 24) -> None:
        generator = torch.Generator().manual_seed(0)
        self._engine = engine
        self._rounds = rounds
        self._policy = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(12)])
        self._x = torch.randn(512, width, generator=generator)
        self._ids = [torch.randint(0, 100, (TOKENS,), generator=generator).tolist() for _ in range(SEQUENCES)]

    def step(self, mode: Mode) -> Clocked:
        """Run one step and return what it took."""
        clocked = Clocked()
        begun_s = time.perf_counter()
        streams = {kind: Stream(self._engine, kind, sequences=SEQUENCES // CHUNKS) for kind in KINDS}
        for chunk in range(CHUNKS):
            self._generate()
            if mode is Mode.STREAM:
                for row in range(chunk * SEQUENCES // CHUNKS, (chunk + 1) * SEQUENCES // CHUNKS):
                    for kind in KINDS:
                        streams[kind].add(row, self._ids[row], **self._prompt(kind))
        clocked.generate_s = time.perf_counter() - begun_s
        late = self._scored(mode, streams)
        for ticket in late:
            start_s = time.perf_counter()
            loss = self._policy(self._x).square().mean()
            clocked.forward_s += time.perf_counter() - start_s
            if ticket is not None:
                ticket.result()
            start_s = time.perf_counter()
            loss.backward()
            clocked.backward_s += time.perf_counter() - start_s
        clocked.step_s = time.perf_counter() - begun_s
        return clocked

    def _generate(self) -> None:
        with torch.no_grad():
            for _ in range(self._rounds // CHUNKS):
                self._policy(self._x)

    def _scored(self, mode: Mode, streams: Mapping[PassKind, Stream]) -> Sequence[Ticket | None]:
        """Hand the passes in, wait as the mode does, and return what each micro-batch has to wait for."""
        nothing: list[Ticket | None] = [None] * MICRO_BATCHES
        if mode is Mode.STREAM:
            for kind in KINDS:
                streams[kind].result(range(SEQUENCES))
            return nothing
        if mode is Mode.SEQUENTIAL:
            for kind in (PassKind.REFERENCE, PassKind.REWARD):
                self._engine.submit(kind, self._batch(kind, range(SEQUENCES)), sequential=True)
            return nothing
        reward = self._engine.submit(PassKind.REWARD, self._batch(PassKind.REWARD, range(SEQUENCES)))
        size = SEQUENCES // MICRO_BATCHES
        parts = [range(i * size, (i + 1) * size) for i in range(MICRO_BATCHES)]
        tickets = [self._engine.submit(PassKind.REFERENCE, self._batch(PassKind.REFERENCE, rows)) for rows in parts]
        reward.result()
        if mode is Mode.PARALLEL:
            for ticket in tickets:
                ticket.result()
            return nothing
        return tickets

    def _batch(self, kind: PassKind, rows: Sequence[int]) -> Batch:
        prompts = [TOKENS // 2] * len(rows) if kind is PassKind.REFERENCE else None
        return Batch.of([self._ids[row] for row in rows], prompt_tokens=prompts)

    def _prompt(self, kind: PassKind) -> dict[str, int]:
        return {"prompt_tokens": TOKENS // 2} if kind is PassKind.REFERENCE else {}


def validate(s_per_sequence: float, cards: int, rounds: int, *, width: int = WIDTH) -> list[Validated]:
    """Return each mode's prediction beside its median step, the modes taking turns.

    Args:
        s_per_sequence: Emulated time of a sequence, for each pass (s).
        cards: 1: both passes on one device; 2: one each.
        rounds: In which each mode runs a step.
        width: Of the loop's matrices.
    """
    devices = [Paced(Emulator(), s_per_sequence=s_per_sequence) for _ in range(cards)]
    try:
        engine = OffloadEngine(
            [
                place(PassKind.REWARD, encoder(layers=1, types=0), devices[0]),
                place(PassKind.REFERENCE, decoder(layers=1), devices[-1]),
            ]
        )
        loop = Loop(engine, width)
        for mode in MODES:
            loop.step(mode)
        pairs: dict[Mode, list[tuple[float, float]]] = {mode: [] for mode in MODES}
        for i in range(rounds):
            found, table = _round(loop, engine, MODES[i % len(MODES) :] + MODES[: i % len(MODES)])
            for mode in MODES:
                predicted_s = simulate(table, mode, Setting(cards=cards, chunks=CHUNKS)).line.step_s
                pairs[mode].append((predicted_s, found[mode].step_s))
    finally:
        for device in devices:
            device.close()
    return [
        Validated(
            mode=mode,
            cards=cards,
            s_per_sequence=s_per_sequence,
            predicted_s=statistics.median(predicted for predicted, _ in pairs[mode]),
            measured_s=statistics.median(measured for _, measured in pairs[mode]),
            error=statistics.median(predicted / measured - 1 for predicted, measured in pairs[mode]),
        )
        for mode in MODES
    ]


def _round(loop: Loop, engine: OffloadEngine, modes: Sequence[Mode]) -> tuple[dict[Mode, Clocked], PipelineTable]:
    """Run each mode once; return what they took, and the table that the sequential one gives."""
    found: dict[Mode, Clocked] = {}
    busy_s: dict[PassKind, float] = {}
    for mode in modes:
        before = engine.stats()
        found[mode] = loop.step(mode)
        if mode is Mode.SEQUENTIAL:
            busy_s = {kind: stats.busy_s - before[kind].busy_s for kind, stats in engine.stats().items()}
    return found, _table(found[Mode.SEQUENTIAL], busy_s)


def _table(step: Clocked, busy_s: Mapping[PassKind, float]) -> PipelineTable:
    """Return the table of a sequential step: its own stages, and the engine's seconds of the passes."""
    train_s = step.forward_s + step.backward_s
    nothing = _measured(0.0)  # nobody runs the passes on the CPU here: only modes with a device are asked for
    table = PipelineTable(
        name="toy loop",
        rows={
            Stage.GENERATE: StageRow(gpu_s=_measured(step.generate_s)),
            Stage.REFERENCE: StageRow(gpu_s=nothing),
            Stage.REWARD: StageRow(gpu_s=nothing),
            Stage.TRAIN: StageRow(gpu_s=_measured(train_s)),
        },
        tokens=SEQUENCES * TOKENS,
        micro_batches=MICRO_BATCHES,
        forward_share=_measured(step.forward_s / train_s),
    )
    stats = {"steps": 1, "passes": {str(kind): {"busy_s": value} for kind, value in busy_s.items()}}
    return with_engine(table, stats, "engine")


def _measured(value: float) -> SourcedNumber:
    return SourcedNumber(value=value, unit="s", kind=SourceKind.MEASURED, source="the loop's own clock")
