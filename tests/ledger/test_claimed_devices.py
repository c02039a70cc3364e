"""A process books the GPUs that it uses, once each on a node, and what it does not use is somebody else's."""

from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from greentrain.config.schema import CarbonConfig
from greentrain.ledger import active_run
from greentrain.ledger.active_run import ClaimedDevices
from greentrain.types import Device, DeviceKind, PowerSample, Provenance, Sensor, Topology

GPUS = ("GPU-0", "GPU-1")


class Node:
    """Processes of one node, whose clock stands and whose drivers say which of them use which GPU."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.uses: dict[str, set[str]] = {}
        self.events: list[str] = []
        monkeypatch.setenv("GREENTRAIN_CLAIMS_DIR", str(folder))
        monkeypatch.setattr(active_run, "gpus_in_use", self._in_use)

    def process(self, run_id: str, place: Topology | None = None, named: bool = False) -> ClaimedDevices:
        self._asks = run_id
        devices = ClaimedDevices(
            [_sensor(uid) for uid in GPUS],
            place or Topology(),
            {"run_id": run_id},
            CarbonConfig(),
            lambda name, text: self.events.append(f"{run_id} {name}: {text}"),
            named,
        )
        devices.start(0.0)
        return devices

    def look(self, run_id: str, devices: ClaimedDevices, booked_s: float) -> set[str]:
        """Let a process look around and book up to a time; return what it books from then on."""
        self._asks = run_id
        devices.claim_rest(booked_s, closing=False, pids={})
        devices.let_go(booked_s)
        return set(devices.curves)

    def _in_use(self, uids: Collection[str], pids: Mapping[str, Collection[int]]) -> set[str]:
        return self.uses.get(self._asks, set())


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def _sensor(uid: str) -> Sensor:
    device = Device(uid=uid, kind=DeviceKind.GPU, name=uid)
    return Sensor(device=device, provenance=Provenance.MEASURED, method="test", period_s=0.1)


def test_a_process_of_which_nothing_is_known_books_all_that_it_sees(node: Node) -> None:
    a = node.process("a")
    assert node.look("a", a, 1.0) == set(GPUS)
    a.release()


def test_a_process_that_uses_a_gpu_at_its_start_never_books_the_other(node: Node) -> None:
    node.uses = {"a": {"GPU-1"}, "b": {"GPU-0"}}
    a, b = node.process("a"), node.process("b")
    assert (set(a.curves), set(b.curves)) == ({"GPU-1"}, {"GPU-0"})
    assert node.look("a", a, 0.0) == {"GPU-1"} and node.look("b", b, 0.0) == {"GPU-0"}
    assert not a.excluded and not b.excluded
    a.release()
    b.release()


def test_two_jobs_that_see_both_gpus_book_one_each_once_they_use_it(node: Node) -> None:
    a, b = node.process("a"), node.process("b")
    assert node.look("a", a, 0.0) == set(GPUS) and node.look("b", b, 0.0) == set()
    assert len(b.excluded) == 2
    node.uses = {"a": {"GPU-0"}, "b": {"GPU-1"}}
    assert node.look("a", a, 3.0) == {"GPU-0"}
    assert node.look("b", b, 2.0) == {"GPU-1"}
    assert b.curves["GPU-1"].frontier_s == 3.0, "up to then it is in the other's books"
    assert [item["uid"] for item in b.excluded] == ["GPU-0"]
    assert any("GPU-1" in text and "not used" in text for text in node.events)
    a.release()
    b.release()


def test_a_device_that_is_taken_over_is_missing_until_its_first_reading(node: Node) -> None:
    a, b = node.process("a"), node.process("b")
    node.look("b", b, 0.0)
    node.uses = {"a": {"GPU-0"}, "b": {"GPU-1"}}
    node.look("a", a, 3.0)
    node.look("b", b, 2.0)
    curve = b.curves["GPU-1"]
    for t_s, energy_j in ((5.0, 1000.0), (6.0, 1100.0)):
        curve.append(PowerSample("GPU-1", t_s, energy_j))
    assert curve.between(3.0, 6.0) == pytest.approx((100.0, 2.0))
    a.release()
    b.release()


def test_one_that_shows_no_use_gives_way_to_one_that_does(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = node.process("a"), node.process("b")
    node.uses = {"b": {"GPU-1"}}
    assert node.look("b", b, 1.0) == set()
    monkeypatch.setattr(a._claims, "is_asked_for", lambda uid: uid == "GPU-1")  # both are this very process here
    assert node.look("a", a, 1.0) == {"GPU-0"}
    assert node.look("b", b, 4.0) == {"GPU-1"}
    a.release()
    b.release()


def test_a_gpu_that_both_use_stays_with_the_one_that_has_it(node: Node) -> None:
    node.uses = {"a": {"GPU-0"}, "b": {"GPU-0"}}
    a, b = node.process("a"), node.process("b")
    for booked_s in (0.0, 3.0, 6.0):
        assert node.look("a", a, booked_s) == {"GPU-0"} and node.look("b", b, booked_s) == set()
    assert [item["uid"] for item in b.excluded] == ["GPU-0"]
    a.release()
    assert node.look("b", b, 9.0) == {"GPU-0"}
    b.release()


def test_gpus_that_were_named_are_booked_whether_or_not_they_are_used(node: Node) -> None:
    node.uses = {"a": {"GPU-0"}}
    a = node.process("a", named=True)
    assert node.look("a", a, 3.0) == set(GPUS)
    a.release()


def test_ranks_book_their_own_gpu_and_that_of_one_that_was_killed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [Topology(rank=i, world_size=2, local_rank=i, local_world_size=2) for i in range(2)]
    node.uses = {"run": {"GPU-0"}}
    first = node.process("run", places[0])
    node.uses = {"run": {"GPU-1"}}
    second = node.process("run", places[1])
    assert (set(first.curves), set(second.curves)) == ({"GPU-0"}, {"GPU-1"})
    node.uses = {"run": {"GPU-0"}}
    assert node.look("run", first, 3.0) == {"GPU-0"}
    monkeypatch.setattr(active_run, "has_ended", lambda words: True)
    second._claims._locks.pop("GPU-1").release()  # as the kernel does it: without a word
    assert node.look("run", first, 6.0) == set(GPUS)
    assert node.look("run", first, 9.0) == set(GPUS), "it is the run's, though this rank does not use it"
    first.release()
