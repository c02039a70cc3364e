"""When devices get to marks, on a fake accelerator whose true times are known."""

import types
from typing import Any

import numpy as np
import pytest

from greentrain.power import device_clock
from greentrain.power.device_clock import DeviceClock
from tests.helpers.fake_accelerator import BusyHost, FakeGpu, fake_torch
from tests.helpers.interrupts import interrupted


class Training:
    """Marks of one thread, and the truth about them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, host: BusyHost, *gpus: FakeGpu) -> None:
        fake_torch(gpus, monkeypatch)
        self.host, self.gpus = host, gpus
        self.warned: list[str] = []
        uids = [f"GPU-{i}" for i in range(len(gpus))]
        self.clock: DeviceClock[int] = DeviceClock(uids, host, lambda name, text: self.warned.append(text))
        self.clock.look()
        self.host_s: list[float] = []
        self.true_s: list[float] = []
        self.found: list[tuple[float, bool, int]] = []

    def mark(self) -> None:
        host_s = self.host.monotonic_s()
        stamps = dict(self.clock.record())
        self.clock.devices["GPU-0"].expect([(host_s, stamps.get("GPU-0"), len(self.host_s))])
        self.host_s.append(host_s)
        self.true_s.append(max(self.gpus[0].stream.free_s, self.host.now_s))

    def books(self, end_s: float = np.inf) -> None:
        self.found += self.clock.devices["GPU-0"].passed(end_s)

    def step(self, kernels: int = 20, seconds: float = 0.002) -> None:
        self.mark()
        for _ in range(kernels):
            self.host.now_s += 1e-5
            self.gpus[0].launch(seconds, 400.0)

    def off_s(self) -> float:
        return max(abs(t_s - self.true_s[i]) for t_s, _, i in self.found)


@pytest.mark.parametrize("drift", [0.0, 8e-5, -8e-5])
def test_marks_have_the_times_at_which_the_device_gets_to_them(monkeypatch: pytest.MonkeyPatch, drift: float) -> None:
    host = BusyHost(held_s=4e-4)
    training = Training(monkeypatch, host, FakeGpu(host, drift=drift))
    due_s = host.now_s
    for _ in range(2500):  # 100 s of work
        training.step()
        if host.now_s >= due_s:
            due_s += 2.0
            training.books()
    training.gpus[0].synchronize()
    training.books()
    assert [i for _, _, i in training.found] == list(range(2500)) and all(own for _, own, _ in training.found)
    assert training.off_s() < 3e-5
    behind_s = np.array(training.true_s) - np.array(training.host_s)
    assert behind_s.max() > 1.9, "the host was 1,024 kernels ahead"
    assert np.all(np.diff([t_s for t_s, _, _ in training.found]) >= 0)


def test_what_has_not_passed_is_still_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    host = BusyHost()
    training = Training(monkeypatch, host, FakeGpu(host))
    for _ in range(10):
        training.step(10, 0.1)
    host.now_s += 3.5
    training.books()
    asked_s = host.now_s
    assert [i for _, _, i in training.found] == [0, 1, 2, 3]
    assert all(true_s > asked_s - 1e-3 for true_s in training.true_s[4:])
    training.books(host.now_s)
    assert [own for _, own, _ in training.found] == [True] * 4 + [False] * 6, "nobody asks again: the host's times"
    assert min(t_s for t_s, _, _ in training.found[4:]) >= training.found[3][0]


def test_an_event_is_made_once_and_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_clock, "EVENTS", 16)
    host = BusyHost()
    gpu = FakeGpu(host)
    training = Training(monkeypatch, host, gpu)
    for _ in range(10):
        for _ in range(12):
            training.step(1)
        host.now_s += 0.5
        training.books()
    assert training.off_s() < 1e-5 and all(own for _, own, _ in training.found)
    anchors = gpu.recorded - 120
    assert gpu.made == 16 + anchors, "an event of a mark is not made twice"
    for _ in range(40):
        training.step(1)
    host.now_s += 1.0
    training.books()
    assert [own for _, own, i in training.found if i >= 120] == [True] * 16 + [False] * 24, "more than may wait"
    training.step(1)
    host.now_s += 1.0
    training.books()
    assert training.found[-1][1]


def test_a_stream_that_captures_a_graph_gets_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    host = BusyHost()
    training = Training(monkeypatch, host, FakeGpu(host))
    training.step()
    training.gpus[0].stream.captures = True
    training.mark()
    training.gpus[0].stream.captures = False
    training.step()
    host.now_s += 1.0
    training.books()
    assert [own for _, own, _ in training.found] == [True, False, True] and not training.warned


def test_a_device_that_is_reset_leaves_the_host_s_times_and_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    host = BusyHost()
    training = Training(monkeypatch, host, FakeGpu(host))
    training.step()
    host.now_s += 1.0
    training.books()
    training.step()
    training.gpus[0].broken = True
    for _ in range(3):
        training.step()
        training.books()
    assert [own for _, own, _ in training.found] == [True] + 4 * [False] and len(training.warned) == 1
    assert [t_s for t_s, _, _ in training.found[1:]] == training.host_s[1:]
    training.clock.wait(training.clock.record(), 1.0)


def test_an_event_that_never_passes_is_lost_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    host = BusyHost()
    training = Training(monkeypatch, host, FakeGpu(host))
    training.step()
    training.gpus[0].lost = True
    training.step()
    host.now_s += 50.0
    training.books()
    assert len(training.found) == 1 and not training.warned
    host.now_s += 20.0
    training.books()
    assert training.found[1] == (training.host_s[1], False, 1) and "60 s" in training.warned[0]


def test_events_that_the_host_sees_late_have_their_true_times(monkeypatch: pytest.MonkeyPatch) -> None:
    host = BusyHost()
    training = Training(monkeypatch, host, FakeGpu(host))
    for _ in range(50):
        training.step()
    host.now_s += 2.0
    training.books()  # an anchor that was seen at once
    training.gpus[0].late_s = 0.003
    for _ in range(100):
        training.step()
        host.now_s += 0.03
        training.books()  # with an anchor a second, of which the host knows to milliseconds when it passed
    training.gpus[0].late_s = 0.0
    host.now_s += 1.0
    training.books()
    assert len(training.found) == 150 and training.off_s() < 3e-5


def test_after_a_long_rest_times_are_as_sharp(monkeypatch: pytest.MonkeyPatch) -> None:
    host = BusyHost()
    training = Training(monkeypatch, host, FakeGpu(host, drift=5e-5))
    training.step()
    host.now_s += 1.0
    training.books()
    host.now_s += 7200.0
    training.step()
    host.now_s += 1.0
    training.books()
    assert training.off_s() < 2e-5 and training.found[-1][1]


def test_only_devices_that_are_used_and_known_get_events(monkeypatch: pytest.MonkeyPatch) -> None:
    host = BusyHost()
    gpus = [FakeGpu(host), FakeGpu(host, used=False)]
    training = Training(monkeypatch, host, *gpus)
    assert set(training.clock.devices) == {"GPU-0"}
    gpus[1].used = True
    host.now_s += device_clock.LOOK_S
    assert training.clock.look() and set(training.clock.devices) == {"GPU-0", "GPU-1"}
    assert [uid for uid, _ in training.clock.record()] == ["GPU-0", "GPU-1"]
    none: DeviceClock[int] = DeviceClock(["GPU-x"], host, lambda name, text: None)
    assert not none.look() and none.record() == [], "of two devices, which is the one that is known?"


def test_an_interrupt_at_any_place_of_a_look_leaves_the_next_one_to_find_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = BusyHost()
    fake_torch((FakeGpu(host),), monkeypatch)
    for place in range(1, 200):
        clock: DeviceClock[int] = DeviceClock(["GPU-0"], host, lambda name, text: None)
        cut = interrupted(clock.look, place, "power/device_clock.py")
        assert clock.look() and list(clock.devices) == ["GPU-0"], f"after Ctrl-C at {cut}"
        if not cut:
            break
    assert place > 5 and not cut


def test_without_torch_nothing_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    host = BusyHost()
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    clock: DeviceClock[int] = DeviceClock(["GPU-0"], host, lambda name, text: None)
    assert not clock.look() and clock.record() == []
    clock.wait(clock.record(), 1.0)


def test_a_fork_touches_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    host = BusyHost()
    training = Training(monkeypatch, host, FakeGpu(host))
    recorded = training.gpus[0].recorded
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert training.clock.record() == () and training.gpus[0].recorded == recorded


def test_a_thread_that_may_end_a_capture_asks_for_nothing() -> None:
    with pytest.raises(OSError, match="ROCm"):
        device_clock._relax_capture("6.4.43483")


def test_who_waits_for_a_device_looks_now_and_then_and_no_longer_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    host, slept = BusyHost(), list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        host.now_s += seconds

    monkeypatch.setattr("time.sleep", sleep)
    training = Training(monkeypatch, host, FakeGpu(host))
    for seconds, waited_s in ((0.1, 0.1), (5.0, 1.0)):
        slept.clear()
        training.gpus[0].launch(seconds, 300.0)
        training.clock.wait(training.clock.record(), 1.0)
        assert sum(slept) == pytest.approx(waited_s, abs=0.005) and set(slept) == {0.002}, (
            "a hundredth of a short phase"
        )


def test_a_torch_for_no_device_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    host, asked = BusyHost(), list[str]()
    torch = fake_torch([FakeGpu(host)], monkeypatch)

    def none() -> None:
        asked.append("kind")

    torch.accelerator.current_accelerator = none
    clock: DeviceClock[int] = DeviceClock(["GPU-0"], host, lambda name, text: None)
    assert not clock.look() and not clock.look() and asked == ["kind"] and not clock.uids


def test_how_often_is_looked_for_further_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    host, asked = BusyHost(), list[str]()
    gpus = [FakeGpu(host), FakeGpu(host)]
    torch = fake_torch(gpus, monkeypatch)
    kind = torch.accelerator.current_accelerator()

    def current() -> Any:
        asked.append("kind")
        return kind

    torch.accelerator.current_accelerator = current
    clock: DeviceClock[int] = DeviceClock(["GPU-0", "GPU-1"], host, lambda name, text: None)
    gpus[0].used = gpus[1].used = False
    assert not clock.look() and not clock.look() and len(asked) == 2, "until one is found, each time"
    gpus[1].used = True
    assert clock.look() and clock.look() and len(asked) == 3
    host.now_s += device_clock.LOOK_S - 0.1
    assert clock.look() and len(asked) == 3
    host.now_s += 0.2
    device = clock.devices["GPU-1"]
    assert clock.look() and len(asked) == 4 and clock.devices["GPU-1"] is device


@pytest.mark.parametrize(
    ("uuids", "uids", "numbered", "found"),
    [
        (["a", "b"], ["GPU-b", "GPU-a"], True, {"GPU-a": 0, "GPU-b": 1}),
        (["a", "b"], ["GPU-b"], True, {"GPU-b": 1}),
        (["x", "y"], ["GPU-b", "GPU-a"], True, {"GPU-b": 0, "GPU-a": 1}),
        (["x", "y"], ["GPU-b", "GPU-a"], False, {}),
        (["a", "b"], ["GPU-b"], False, {"GPU-b": 1}),
        (["x"], ["GPU-b", "GPU-a"], True, {}),
    ],
)
def test_a_device_is_known_by_its_uuid_or_by_its_number_where_all_are_seen(
    monkeypatch: pytest.MonkeyPatch, uuids: list[str], uids: list[str], numbered: bool, found: dict[str, int]
) -> None:
    host = BusyHost()
    torch = fake_torch([FakeGpu(host) for _ in uuids], monkeypatch)
    torch.fake.get_device_properties = lambda index: types.SimpleNamespace(uuid=uuids[index])
    clock: DeviceClock[int] = DeviceClock(uids, host, lambda name, text: None, numbered=numbered)
    assert clock.look() == bool(found)
    assert {uid: device._index for uid, device in clock.devices.items()} == found
    torch.fake.is_initialized = lambda: False
    counted = list[int]()

    def count() -> int:
        counted.append(1)
        return 1

    torch.fake.device_count = count
    asleep: DeviceClock[int] = DeviceClock(uids, host, lambda name, text: None, numbered=numbered)
    assert not asleep.look() and not counted, "to ask would begin to use it"


def test_a_clock_that_jumps_is_not_followed_as_if_it_drifted(monkeypatch: pytest.MonkeyPatch) -> None:
    host = BusyHost()
    training = Training(monkeypatch, host, FakeGpu(host, drift=5e-4))
    for _ in range(2):
        training.step(1)
        host.now_s += 5.0
        training.books()
    device = training.clock.devices["GPU-0"]
    assert device._rate == pytest.approx(1 - 5e-4, abs=1e-5) and len(device._anchors) == 2
    training.gpus[0].drift = 0.002
    training.step(1)
    host.now_s += 5.0
    training.books()
    assert device._rate == 1.0 and len(device._anchors) == 1


def test_anchors_are_renewed_and_what_lies_far_from_one_has_the_host_s_time(monkeypatch: pytest.MonkeyPatch) -> None:
    host = BusyHost()
    training = Training(monkeypatch, host, FakeGpu(host))
    training.step(1)
    host.now_s += 1.0
    training.books()
    device = training.clock.devices["GPU-0"]
    first_s = device._anchors[-1].t_s
    training.gpus[0].late_s = 0.0003
    for wait_s, renewed in ((0.5, False), (6.0, False), (2.0, True)):
        training.step(1)
        host.now_s += wait_s
        training.books()
        assert (device._anchors[-1].t_s > first_s) is renewed, wait_s
    training.gpus[0].late_s = 0.0
    for wait_s, own in ((16.0, True), (17.0, False)):
        training.step(1)
        host.now_s += wait_s
        training.books()
        assert training.found[-1][1] is own, wait_s


def test_an_anchor_is_as_good_as_half_the_time_in_which_it_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    host = BusyHost()
    training = Training(monkeypatch, host, FakeGpu(host, late_s=6e-5))
    device, seen_s = training.clock.devices["GPU-0"], list[float]()
    for _ in range(2):
        training.step(1)
        host.now_s += 2.0
        training.books()
        seen_s.append(device._anchors[-1].t_s)
        assert device._anchors[-1].off_s == pytest.approx(3e-5, rel=0.3)
    assert seen_s[1] - seen_s[0] == pytest.approx(2.0, abs=0.01), "3e-5 s is tight: it is taken at once"
    training.gpus[0].late_s, training.gpus[0].drift = 0.001, 0.0011
    for _ in range(2):
        training.step(1)
        host.now_s += 9.0
        training.books()
    assert device._rate == pytest.approx(1 - 0.0011, abs=1e-5), "that far apart two may be, whose times are 0.5 ms off"
    training.gpus[0].drift = 0.003
    training.step(1)
    host.now_s += 9.0
    training.books()
    assert device._rate == 1.0, "and no farther"


def test_the_thread_that_asks_wakes_no_other_device(monkeypatch: pytest.MonkeyPatch) -> None:
    host, woken = BusyHost(), list[int]()
    gpus = [FakeGpu(host, used=False), FakeGpu(host)]
    torch = fake_torch(gpus, monkeypatch)
    torch.accelerator.set_device_index = woken.append
    clock: DeviceClock[int] = DeviceClock(["GPU-0", "GPU-1"], host, lambda name, text: None)
    clock.look()
    for _ in range(2):
        clock.devices["GPU-1"].passed()
    assert woken == [1]


def test_no_mark_is_later_than_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    host = BusyHost()
    training = Training(monkeypatch, host, FakeGpu(host))
    for _ in range(5):
        training.step(10, 0.1)
    end_s = host.now_s
    host.now_s += 10.0
    training.books(end_s)
    assert [(t_s, own) for t_s, own, _ in training.found[1:]] == [(end_s, True)] * 4


def test_a_stream_that_cannot_be_had_leaves_the_host_s_times(monkeypatch: pytest.MonkeyPatch) -> None:
    host = BusyHost()
    training = Training(monkeypatch, host, FakeGpu(host))
    training.clock.devices["GPU-0"]._torch.Stream = lambda device: 1 / 0
    training.step(1)
    host.now_s += 1.0
    training.books()
    assert [own for _, own, _ in training.found] == [False] and len(training.warned) == 1
    assert training.clock.record() == []


@pytest.mark.parametrize(
    ("hip", "library", "code"),
    [(None, "libcuda.so.1", 0), (None, "libcuda.so.1", 700), ("7.3.1", "libamdhip64.so", 0),
     ("10.0", "libamdhip64.so", 1)],
)  # fmt: skip
def test_a_thread_leaves_captures_alone_by_the_driver_s_own_call(
    monkeypatch: pytest.MonkeyPatch, hip: str | None, library: str, code: int
) -> None:
    loaded, modes = list[str](), list[int]()

    def exchange(mode: Any) -> int:
        modes.append(mode._obj.value)
        return code

    def load(name: str) -> types.SimpleNamespace:
        loaded.append(name)
        return types.SimpleNamespace(
            cuThreadExchangeStreamCaptureMode=exchange, hipThreadExchangeStreamCaptureMode=exchange
        )

    monkeypatch.setattr("ctypes.CDLL", load)
    if code:
        with pytest.raises(OSError, match="capture of graphs"):
            device_clock._relax_capture(hip)
    else:
        device_clock._relax_capture(hip)
    assert loaded == [library] and modes == [2]


def test_events_whose_marks_fell_out_are_used_again_once_all_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_clock, "EVENTS", 16)
    host = BusyHost()
    training = Training(monkeypatch, host, FakeGpu(host))
    device = training.clock.devices["GPU-0"]
    for _ in range(16):
        training.step(1)
    host.now_s += 1.0
    training.books()
    assert len(training.found) == 16
    recorded = [device.record() for _ in range(10)]
    training.books()
    recorded += [device.record() for _ in range(7)]
    assert recorded == [*range(16, 32), None], "their marks may still be in the queue"
    training.books()
    assert device.record() == 32


def test_an_anchor_serves_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    host = BusyHost()
    training = Training(monkeypatch, host, FakeGpu(host))
    made = []
    for wait_s in (0.1, 0.5, 0.2, 0.5):
        training.step(1)
        host.now_s += wait_s
        training.books()
        made.append(training.gpus[0].made - len(training.host_s))
    assert made == [device_clock.TRIES, device_clock.TRIES, device_clock.TRIES, 2 * device_clock.TRIES]
