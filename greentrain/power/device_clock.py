"""When a device gets to the marks of a training: it works behind the host, which only queues its work.

Beside each mark of the training thread an event is recorded on the stream that the training uses. Nothing waits for it,
and events are used again in turn. The thread that books asks which of them have passed, and gives each its time on the
monotonic clock by anchors: events on a stream of their own, of which the host knows to microseconds when they passed.
Times lie on the line between two anchors, so that a clock which drifts is followed.

An event that is not recorded (a stream that captures a graph, more marks than events) or is lost (a device that was
reset) leaves its mark the host's time, and whoever books is told so. torch is asked only where the training has loaded
it, and has begun to use a device.
"""

import contextlib
import ctypes
import itertools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from greentrain.utils.clock import Clock

T = TypeVar("T")
Stamps = Sequence[tuple[str, int]]
"""Uid of each device on which an event was recorded, and which of its events that is."""

EVENTS: Final = 8192
"""Events of a device that may wait at once: 2 s of steps of 2 ms with four phases each."""
LOST_S: Final = 60.0
"""An event that has not passed after so long (s) is taken for lost: a queue of 1,024 kernels of 50 ms has passed."""
ANCHOR_S: Final = 1.0
"""Shortest time between two anchors (s)."""
RENEW_S: Final = 8.0
"""Time (s) after which an anchor replaces the one before, however late the host saw it pass: ``elapsed_time`` has
float32 milliseconds, whose steps are 0.5 us from 4 to 8 s, 1 us to 16 s, 2 us to 33 s."""
COARSE_S: Final = 16.384
"""Farther from an anchor (s), steps of ``elapsed_time`` are larger than 1 us, and nothing is dated by it."""
TIGHT_S: Final = 5e-5
"""Uncertainty of an anchor (s) with which it is taken at once."""
TRIES: Final = 3
"""Anchors that are tried, of which the tightest counts."""
POLLS: Final = 2000
"""How often an anchor is asked whether it has passed, about 1 us each."""
MAX_DRIFT: Final = 1e-3
"""Clocks of devices drift by less: crystals are off by up to 1e-4."""
LOOK_S: Final = 10.0
"""How often to look for further devices (s) where one is used."""
POLL_S: Final = 0.002
"""How often who waits for a device looks (s)."""
RELAXED_HIP: Final = (7, 3)
"""From when on hipEventQuery leaves other threads' captures alone (ROCm/rocm-systems, merged in February 2026)."""
_RELAXED: Final = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED and hipStreamCaptureModeRelaxed."""


class DeviceClock(Generic[T]):
    """The devices on which this process computes, and when they get to its marks.

    Args:
        uids: The GPUs whose energy is known.
        clock: The clock that the run goes by.
        on_event: Called with a name and a sentence when a device's clock is not known any more.
        numbered: They are all that the process sees, in the order in which torch numbers them.
    """

    def __init__(
        self, uids: Sequence[str], clock: Clock, on_event: Callable[[str, str], None], *, numbered: bool = True
    ) -> None:
        self.devices: dict[str, _Device[T]] = {}
        """By uid, those that are used, as far as is known."""
        self.uids = uids
        """Of these, those that may be used: none once torch is loaded and was built for no device."""
        self._clock, self._on_event = clock, on_event
        self._numbered = numbered
        self._next_look_s = -float("inf")
        self._looking = False
        self._pid = os.getpid()

    def look(self) -> bool:
        """Look which devices are used; return True if any is. Costs a microsecond where torch has none."""
        now_s = self._clock.monotonic_s()
        if self.uids and now_s >= self._next_look_s and not self._looking:
            try:  # no lock: Ctrl-C between taking it and this block would leave it taken, and nobody would look again
                self._looking = True
                torch = sys.modules.get("torch")
                kind = None if torch is None else torch.accelerator.current_accelerator()
                if torch is not None and kind is None:
                    self.uids = ()
                for uid, device, index in _in_use(torch, kind, self.uids, numbered=self._numbered):
                    if uid not in self.devices:
                        self.devices = {**self.devices, uid: _Device(uid, torch, device, index, self)}
                if self.devices:
                    self._next_look_s = now_s + LOOK_S
            except Exception:  # torch is the training's, and may be only half imported
                pass
            finally:
                self._looking = False
        return bool(self.devices)

    def record(self) -> Stamps:
        """Record an event on the current stream of each device; never waits, never raises."""
        if os.getpid() != self._pid:  # a fork must not touch a device
            return ()
        return [(uid, n) for uid, device in self.devices.items() if (n := device.record()) is not None]

    def wait(self, stamps: Stamps, wait_s: float) -> None:
        """Wait until all devices have got to a mark, at most so long (s)."""
        for _ in range(int(wait_s / POLL_S)):
            if all(self.devices[uid].has_passed(n) for uid, n in stamps):
                return
            time.sleep(POLL_S)

    def now_s(self) -> float:
        """Return the host's time (s)."""
        return self._clock.monotonic_s()

    def lose(self, text: str) -> None:
        """Tell that the clock of a device is not known any more."""
        self._on_event("warning", f"{text}: its phases are cut by the host's times from here on")


class _Anchor(NamedTuple):
    event: Any
    t_s: float
    """When the device got to it, on the monotonic clock (s)."""
    off_s: float
    """By how much that may be wrong (s)."""


class _Device(Generic[T]):
    """The events of one device.

    Args:
        uid: Its uid.
        torch: The module.
        device: How torch calls it.
        index: Its number among those of its kind.
        owner: Whose it is.
    """

    def __init__(self, uid: str, torch: Any, device: str, index: int, owner: DeviceClock[T]) -> None:
        self._uid, self._torch, self._device, self._index, self._owner = uid, torch, device, index, owner
        self._capturing = getattr(getattr(torch, device.partition(":")[0]), "is_current_stream_capturing", bool)
        self._events: list[Any] = [None] * EVENTS
        self._numbers = itertools.count()
        self._taken = self._done = 0
        """Events recorded, and those of them that nobody needs any more."""
        self._waiting: deque[tuple[float, int | None, T]] = deque()
        self._side: Any = None
        self._anchors: list[_Anchor] = []
        self._rate = 1.0
        """Seconds of the host in one of the device."""
        self._last_s = -float("inf")
        self._lost = False
        self._thread: int | None = None

    def record(self) -> int | None:
        """Record an event where the training works; return its number, None where there is none."""
        if self._lost or self._taken - self._done >= EVENTS:
            return None
        try:
            stream = self._torch.accelerator.current_stream(self._index)
            if getattr(stream, "is_capturing", self._capturing)():  # it would be a node of the graph, and never pass
                return None
            n = next(self._numbers)
            event = self._events[n % EVENTS]
            if event is None:
                event = self._events[n % EVENTS] = self._new_event()
            event.record(stream)
        except Exception as error:
            self._lose(repr(error))
            return None
        self._taken = n + 1
        return n

    def has_passed(self, n: int) -> bool:
        """Return whether the device got to an event, or never will."""
        try:
            return self._lost or self._events[n % EVENTS].query()
        except Exception as error:
            self._lose(repr(error))
            return True

    def expect(self, marks: Iterable[tuple[float, int | None, T]]) -> None:
        """Add marks in their order: the host's time (s), the number of the event, and the mark."""
        self._waiting.extend(marks)

    def passed(self, end_s: float = float("inf")) -> list[tuple[float, bool, T]]:
        """Return the marks that the device has got to since it was last asked.

        What is not among them is still to come: the device got to none of it before this call.

        Args:
            end_s: The end, after which nobody asks again (s): of what has not passed, the host's time counts.

        Returns:
            Time (s), increasing; whether it is the device's own; the mark.
        """
        found: list[tuple[float, int | None, T]] = []
        now_s = self._owner.now_s()
        self._enter()
        while self._waiting:
            host_s, n, item = self._waiting[0]
            if n is not None and not self.has_passed(n):
                if now_s - host_s > LOST_S:
                    self._lose(f"an event has not passed in {LOST_S:g} s")
                elif end_s > now_s:
                    break
                n = None
            self._waiting.popleft()
            found.append((host_s, None if self._lost else n, item))
        if any(n is not None for _, n, _ in found) or not self._anchors:
            self._anchor()
        times = []
        for host_s, n, item in found:
            own_s = None if n is None else self._time_s(n)
            self._last_s = min(max(self._last_s, host_s if own_s is None else max(host_s, own_s)), end_s)
            times.append((self._last_s, own_s is not None, item))
            if n is not None:
                self._done = n + 1
        if not self._waiting and self._taken - self._done >= EVENTS:
            self._done = self._taken  # the marks of these were dropped
        return times

    def _enter(self) -> None:
        """Let this thread ask for events, whatever the training does meanwhile."""
        if self._lost or self._thread == threading.get_ident():
            return
        try:
            self._torch.accelerator.set_device_index(self._index)  # this thread's alone; or it would wake the first GPU
            if self._device.startswith("cuda"):
                _relax_capture(self._torch.version.hip)
            self._side = self._torch.Stream(device=self._device)
            self._thread = threading.get_ident()
        except Exception as error:
            self._lose(repr(error))

    def _anchor(self) -> None:
        """Find out when it is, on the device."""
        now_s = self._owner.now_s()
        if self._lost or (self._anchors and now_s - self._anchors[-1].t_s < ANCHOR_S):
            return
        with contextlib.suppress(Exception):  # then those before hold, as long as they can
            best = min(filter(None, [self._try_anchor() for _ in range(TRIES)]), key=lambda anchor: anchor.off_s)
            if not self._anchors:
                self._anchors = [best]
                return
            before = self._anchors[-1]
            if best.off_s > TIGHT_S and best.t_s - before.t_s < RENEW_S:
                return
            rate = (best.t_s - before.t_s) / (before.event.elapsed_time(best.event) / 1e3)
            steady = abs(rate - 1) <= MAX_DRIFT + (best.off_s + before.off_s) / (best.t_s - before.t_s)
            self._anchors, self._rate = ([before, best], rate) if steady else ([best], 1.0)

    def _try_anchor(self) -> _Anchor | None:
        event = self._new_event()
        low_s = self._owner.now_s()
        event.record(self._side)
        for _ in range(POLLS):
            if event.query():
                high_s = self._owner.now_s()
                return _Anchor(event, (low_s + high_s) / 2, (high_s - low_s) / 2)
        return None

    def _time_s(self, n: int) -> float | None:
        """Return when the device got to an event, on the monotonic clock (s); None where that is not known."""
        try:
            anchor = self._anchors[-1]
            gone_s = anchor.event.elapsed_time(self._events[n % EVENTS]) / 1e3  # negative before it
        except Exception:
            return None
        return anchor.t_s + self._rate * gone_s if abs(gone_s) <= COARSE_S else None

    def _new_event(self) -> Any:
        return self._torch.Event(self._device, enable_timing=True)

    def _lose(self, why: str) -> None:
        if not self._lost:
            self._lost = True
            self._owner.lose(f"the clock of {self._uid} is lost ({why})")


def _in_use(torch: Any, kind: Any, uids: Sequence[str], *, numbered: bool) -> Iterable[tuple[str, str, int]]:
    """Yield uid, torch's name and its number, of the devices of a kind on which torch holds memory."""
    module: Any = None if kind is None else getattr(torch, kind.type)
    if kind is None or not module.is_initialized():  # asking whether it is available breaks CUDA for forks
        return
    count = module.device_count()
    for index in range(count):
        uid = f"GPU-{getattr(module.get_device_properties(index), 'uuid', None)}"
        if uid not in uids and numbered and count == len(uids):
            uid = uids[index]
        if uid in uids and module.memory_reserved(index) > 0:
            yield uid, f"{kind.type}:{index}", index


def _relax_capture(hip: str | None) -> None:
    """Let this thread's calls be no part of the graphs that other threads capture.

    To ask for an event is forbidden in any thread while one captures a graph, as torch does by default, and ends the
    capture with an error, unless the thread is relaxed (cuThreadExchangeStreamCaptureMode in the CUDA driver API).

    Args:
        hip: Version of ROCm that torch is built for, if it is.

    Raises:
        OSError, AttributeError: There is no such function: then no event may be asked for.
    """
    if hip is None:
        exchange = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1").cuThreadExchangeStreamCaptureMode
    elif tuple(map(int, hip.split(".")[:2])) < RELAXED_HIP:
        raise OSError(f"ROCm {hip} lets no thread ask for events while another one captures a graph")
    else:
        exchange = ctypes.CDLL("libamdhip64.so").hipThreadExchangeStreamCaptureMode
    if failed := exchange(ctypes.byref(ctypes.c_int(_RELAXED))):
        raise OSError(failed, "cannot leave the capture of graphs alone")
