"""Whatever is submitted, streamed, cancelled or broken, in any order: each result has the bits of its rows alone."""

import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.device import OffloadDevice
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.rlhf.engine import OffloadEngine, Ticket
from greentrain.rlhf.errors import PassCancelledError, PassTimeoutError
from greentrain.rlhf.frozen_pass import place
from greentrain.rlhf.kinds import PassKind, Place
from greentrain.rlhf.stream import Stream
from tests.helpers.flaky_device import Fault, Flaky

Answer = TypeVar("Answer")
EXAMPLES = int(os.environ.get("GREENTRAIN_EXAMPLES", "40"))
KINDS = (PassKind.REWARD, PassKind.REFERENCE)
ROWS = [[1 + (3 * i + j) % 90 for j in range(1 + (5 * i) % 11)] for i in range(12)]
SOME = st.lists(st.integers(0, len(ROWS) - 1), min_size=1, max_size=6)
ACTIONS = st.one_of(
    st.tuples(st.just("submit"), st.sampled_from(KINDS), SOME, st.sampled_from(Place), st.booleans()),
    st.tuples(st.just("stream"), SOME),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.tuples(st.just("result"), st.integers(0, 9)),
    st.tuples(st.just("close")),
)
FAULTS = st.dictionaries(st.integers(0, 12), st.sampled_from(Fault), max_size=4)


@dataclass
class Under:
    """Test."""

    engine: OffloadEngine
    device: OffloadDevice
    alone: dict[PassKind, list[bytes]]
    stream: Stream = field(init=False)
    streamed: set[int] = field(default_factory=set)
    tickets: list[tuple[Ticket, list[int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stream = Stream(self.engine, PassKind.REWARD, sequences=2)

    def do(self, action: tuple[object, ...]) -> None:
        match action:
            case "submit", PassKind() as kind, list() as some, Place() as at, bool() as waits:
                batch = Batch.of([ROWS[i] for i in some])
                ticket = patiently(lambda: self.engine.submit(kind, batch, at=at, sequential=waits))
                self.tickets.append((ticket, some))
            case "stream", list() as some:
                for i in some:
                    patiently(lambda i=i: self.stream.add(i, ROWS[i]))  # type: ignore[misc]
                self.streamed.update(some)
            case "cancel", int(i) if self.tickets:
                self.tickets[i % len(self.tickets)][0].cancel()
            case "result", int(i) if self.tickets:
                self.check(*self.tickets[i % len(self.tickets)])
            case ("close",):
                self.device.close()

    def check(self, ticket: Ticket, some: list[int]) -> None:
        try:
            found = patiently(ticket.result)
        except PassCancelledError:
            return
        assert bits(found) == [self.alone[ticket.kind][i] for i in some]

    def end(self) -> None:
        for ticket, some in self.tickets:
            self.check(ticket, some)
        keys = sorted(self.streamed)
        if keys:
            assert bits(patiently(lambda: self.stream.result(keys))) == [self.alone[PassKind.REWARD][i] for i in keys]


def patiently(ask: Callable[[], Answer]) -> Answer:
    """Ask again where home is slower than the time-out: on a busy machine."""
    for _ in range(300):
        try:
            return ask()
        except PassTimeoutError:
            continue
    return ask()


def bits(found: Result) -> list[bytes]:
    rows: list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]] = list(
        found.scores if found.scores is not None else found.logprobs or ()
    )
    return [row.tobytes() for row in rows]


@pytest.fixture(scope="module")
def alone(reward: Artifact, reference: Artifact) -> dict[PassKind, list[bytes]]:
    return {
        kind: [bits(engine.run(Batch.of([row])))[0] for row in ROWS]
        for kind, engine in zip(KINDS, (Engine(reward), Engine(reference)), strict=True)
    }


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    actions=st.lists(ACTIONS, max_size=12),
    faults=FAULTS,
    depth=st.sampled_from([1, 2, 16]),
    cut=st.sampled_from([None, 1, 2]),
)
def test_any_order_gives_the_same_bits(
    reward: Artifact,
    reference: Artifact,
    alone: dict[PassKind, list[bytes]],
    actions: list[tuple[object, ...]],
    faults: dict[int, Fault],
    depth: int,
    cut: int | None,
) -> None:
    device, home = Flaky(Emulator(), faults), Emulator(depth=2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            engine = OffloadEngine(
                [
                    place(kind, model, device, home=home, sequences=cut)
                    for kind, model in zip(KINDS, (reward, reference), strict=True)
                ],
                depth=depth,
                timeout_s=0.1,
            )
            under = Under(engine, device, alone)
            for action in actions:
                under.do(action)
            under.end()
    finally:
        device.close()
        home.close()
    room, end_s = engine._desk._room, time.monotonic() + 60
    while room._value < depth and time.monotonic() < end_s:
        time.sleep(0.001)
    assert room._value == depth, "room that was taken and not given back"
