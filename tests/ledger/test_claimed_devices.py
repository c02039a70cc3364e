"""A process books the GPUs that it uses, once each on a node, and what it does not use is somebody else's."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
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

    def process(
        self,
        run_id: str,
        place: Topology | None = None,
        named: bool = False,
        sensors: Sequence[Sensor] = (),
    ) -> ClaimedDevices:
        self._asks = run_id
        devices = ClaimedDevices(
            sensors or [_sensor(uid) for uid in GPUS],
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


H100 = "NVIDIA H100 80GB HBM3"
RANKS = [Topology(rank=i, world_size=2, local_rank=i, local_world_size=2) for i in range(2)]


def _all_kinds() -> list[Sensor]:
    """Return a GPU, a RAPL package that all can read, one that nobody can, and a model of this process's CPU."""

    def of(uid: str, kind: DeviceKind, provenance: Provenance = Provenance.MEASURED, shared: bool = True) -> Sensor:
        device = Device(uid=uid, kind=kind, name=H100 if kind is DeviceKind.GPU else uid)
        return Sensor(device=device, provenance=provenance, method="test", period_s=0.1, shared=shared, note="a note")

    return [
        of("GPU-0", DeviceKind.GPU),
        of("rapl:0", DeviceKind.CPU),
        of("rapl:1", DeviceKind.CPU, Provenance.MISSING),
        of("model:cpu", DeviceKind.CPU, Provenance.MODELLED, shared=False),
    ]


def test_of_what_a_node_has_once_local_rank_0_books_it_and_each_rank_its_own_process(node: Node) -> None:
    first, second = (node.process("run", place, sensors=_all_kinds()) for place in RANKS)
    assert [sensor.device.uid for sensor in first.sensors] == ["GPU-0", "rapl:0", "model:cpu", "rapl:1"]
    assert [sensor.device.uid for sensor in second.sensors] == ["model:cpu"]
    assert [sensor.device.uid for sensor in first.unread] == ["rapl:1"] and not second.unread
    assert list(second) == ["model:cpu", "GPU-0", "rapl:0"] and (len(first), len(second)) == (3, 3)
    assert second["GPU-0"].sensor.device.uid == "GPU-0" and second["model:cpu"] is second.curves["model:cpu"]
    with pytest.raises(KeyError):
        second["rapl:1"]
    assert node.look("run", second, 0.0) == {"model:cpu"}
    assert second.excluded == [], "the other rank is of the same run"
    first.release()
    second.release()


def test_a_rank_that_starts_alone_leaves_the_nodes_own_devices_to_local_rank_0_for_a_while(node: Node) -> None:
    second = node.process("run", RANKS[1], sensors=_all_kinds())
    assert set(second.curves) == {"GPU-0", "model:cpu"}, "of one GPU that two ranks see, whoever comes first"
    assert node.look("run", second, 0.0) == {"GPU-0", "model:cpu", "rapl:0"}, "nobody else has come"
    second.release()


def test_embodied_carbon_of_a_node_is_booked_by_one_of_its_ranks(node: Node) -> None:
    without_gpu = [_all_kinds()[2], _all_kinds()[3]]
    first, second = (node.process("run", place, sensors=without_gpu) for place in RANKS)
    assert set(first.rates) == {"rapl:1", "model:cpu"}, "made, though it cannot be read"
    assert second.rates == {}
    assert all(record["embodied_g_per_h"] is None for record in second.records())
    first.release()
    second.release()


def test_the_journal_gets_what_a_sensor_is_and_what_is_not_known_of_it(node: Node) -> None:
    devices = node.process("run", sensors=_all_kinds())
    records = {record["uid"]: record for record in devices.records()}
    gpu = records["GPU-0"]
    known = {item.name for item in dataclasses.fields(Sensor)} - {"device", "shared", "tick_edge_s", "reference"}
    assert gpu.keys() == known | {"uid", "kind", "name", "embodied_g_per_h"}
    assert (gpu["kind"], gpu["name"], gpu["note"], gpu["period_s"]) == ("gpu", H100, "a note", 0.1)
    assert gpu["embodied_g_per_h"]["mid"] == devices.rates["GPU-0"].mid_g_per_h
    assert records["rapl:0"]["embodied_g_per_h"] is None
    assert "server share" in records["rapl:0"]["embodied_note"], "in the GPU's"
    devices.release()


def test_what_is_left_over_at_the_start_is_booked_from_there_and_at_the_end_nothing_is_taken_over(node: Node) -> None:
    a, b = node.process("a"), node.process("b")
    node._asks = "b"
    assert not b.claim_rest(5.0, closing=True, pids={}), "there is nothing to take over any more"
    a.release()
    assert not b.claim_rest(5.0, closing=True, pids={}) and not b.curves
    assert b.claim_rest(0.0, closing=True, pids={}), "those that read them are changed, though none was taken"
    assert not b.curves and any("was booked by another process up to now" in text for text in node.events)
    b.release()


def test_a_run_that_ends_keeps_no_device_from_the_next_one_of_a_faster_rank(node: Node) -> None:
    """Rank 1 has ended a fit and begins the next one while rank 0 still closes: rank 0 looked at rank 1's GPU."""
    before, slower = node.process("fit-1", RANKS[1]), node.process("fit-1", RANKS[0])
    before.release()
    slower.claim_rest(0.0, closing=True, pids={})
    assert set(slower.curves) == {"GPU-0"}
    after = node.process("fit-2", RANKS[1])
    assert set(after.curves) == {"GPU-1"}
    slower.release()
    after.claim_rest(0.0, closing=True, pids={})
    assert set(after.curves) == set(GPUS) - {"GPU-0"}, "GPU-0 was in the books of the first fit until its end"
    after.release()


def test_a_short_run_that_closes_before_it_looked_books_what_nobody_has(node: Node) -> None:
    b = node.process("b", RANKS[1], sensors=_all_kinds()[1:2])
    assert not b.curves
    assert b.claim_rest(0.0, closing=True, pids={}) and set(b.curves) == {"rapl:0"}
    assert b.curves["rapl:0"].frontier_s == 0.0
    assert not b.claim_rest(0.0, closing=True, pids={}), "nothing is left"
    b.release()


def test_a_device_of_another_run_is_named_with_its_holder_until_it_is_taken_over(node: Node) -> None:
    a, b = node.process("a"), node.process("b")
    assert node.look("b", b, 0.0) == set()
    assert [(item["uid"], item["name"]) for item in b.excluded] == [(uid, uid) for uid in GPUS]
    assert all("another run, a (pid" in item["reason"] for item in b.excluded)
    told = len(node.events)
    assert node.look("b", b, 3.0) == set() and len(node.events) == told, "once is enough"
    a.release()
    assert node.look("b", b, 6.0) == set(GPUS) and b.excluded == []
    assert sum("booked by this rank from here on" in text for text in node.events) == 2
    assert b.curves["GPU-0"].frontier_s >= 6.0
    b.release()


def test_a_counter_that_ticks_is_dated_by_its_ticks_after_it_was_taken_over(node: Node) -> None:
    ticking = [dataclasses.replace(_sensor("GPU-0"), tick_s=0.1)]
    a, b = node.process("a", sensors=ticking), node.process("b", sensors=ticking)
    a.release()
    assert node.look("b", b, 1.0) == {"GPU-0"} and b.curves["GPU-0"]._ticks is not None
    b.release()


def test_what_is_let_go_has_no_embodied_rate_any_more_and_may_come_back(node: Node) -> None:
    a = node.process("a", sensors=[*_all_kinds()[:1], _sensor("GPU-1")])
    node.uses = {"a": {"GPU-1"}}
    assert node.look("a", a, 4.0) == {"GPU-1"}
    assert a.rates == {} and a["GPU-0"].frontier_s == 4.0
    assert not a.let_go(5.0)
    node.uses = {"a": set(GPUS)}
    assert node.look("a", a, 7.0) == set(GPUS) and set(a.rates) == {"GPU-0"}
    a.release()


def test_where_claims_cannot_be_written_it_is_said_that_ranks_may_book_twice(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GREENTRAIN_CLAIMS_DIR", str(tmp_path / "file" / "claims"))
    a = node.process("a")
    assert any("may book the same device: no claims: cannot write" in text for text in node.events)
    assert set(a.curves) == set(GPUS)
    a.release()
