"""When devices get to marks, on a fake accelerator whose true times are known."""

import numpy as np
import pytest

from greentrain.power import device_clock
from greentrain.power.device_clock import DeviceClock
from tests.helpers.fake_accelerator import BusyHost, FakeGpu, fake_torch


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
