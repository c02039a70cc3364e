"""An upper bound on the graphics clocks of this process's own GPUs, and how low it should be while they are stalled.

Only the upper end moves: the clock stays free below it. What an administrator has locked cannot be read back, and a
reset unlocks (:mod:`greentrain.control.actuators.driver`), so a GPU that shows any sign of a clock setting is left
alone, at the opening and again just before the first change, when it computes.

A step that waits for its batch anyway loses nothing if it computes more slowly, nor does a kernel that waits for
memory, whose clock stays. How much more slowly is measured, not modelled: after every change the speed is compared
with that before it::

    Steady --stalls in the last windows--> Trial of a lower clock --as fast as before--> Steady, lower
      ^  |                                       |  too slow
      |  +--no stalls, or long ago: higher       +--> Trial half way back, then Steady where it was

After Eco-Orchestrator (15 to 30 % below the maximum above a stall share of 30 %), which lowers clocks by the share of
stalls alone; a loader that works only between steps, not beside them, then makes every step longer.

StallControl decides from numbers, without clock, driver or torch. Each rank decides for its own GPUs. All of them see
the speed of the slowest, so where their data comes at the same pace they come to the same level.
"""

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from greentrain.config.schema import ClocksConfig
from greentrain.control.actuators.driver import GpuKnobs, GpuSetting, Opened, open_gpus, unfit
from greentrain.control.actuators.guardian import Guardian
from greentrain.policy.action_table import student_t_95
from greentrain.types import IDLE_PHASES, Phase, Topology

PART: Final = "clocks"
LOWEST: Final = 0.5
"""Largest share below the maximum (config_actuators.ClocksConfig.down)."""


class ClockLimit(GpuSetting):
    """The clocks of one process's GPUs; :func:`open_clocks` makes it. Its methods may be called from any thread.

    Experimental: it ran on a fake driver, never on a card (docs/status.md).

    Args:
        opened: The GPUs, NVML and the guardian; closed with it.
        clocks_mhz: Supported graphics clocks of each GPU, descending (MHz).
        warn: Called with one sentence where something cannot be done; once a sentence.
    """

    what = "clocks"
    kind = "clock"

    def __init__(self, opened: Opened, clocks_mhz: dict[str, tuple[int, ...]], *, warn: Callable[[str], None]) -> None:
        super().__init__(opened, warn)
        self._gpus = list(opened.gpus)
        self._clocks_mhz = clocks_mhz
        self._share = 0.0
        self._set_mhz: dict[str, int] = {}

    @property
    def share_below_max(self) -> float:
        """How far below its maximum the clock is bounded now; 0 where it is free."""
        return self._share

    def apply(self, share_below_max: float) -> bool:
        """Bound every GPU's clock to a share below its maximum, at the nearest clock that it supports. Never raises.

        Args:
            share_below_max: 0 lets the clock free; at most 0.5.

        Returns:
            True if the bounds are now those; False if they could not be set, which is said once.
        """
        return self._change(lambda: self._apply(share_below_max))

    def _level(self) -> float:
        return self._share

    def _apply(self, share: float) -> bool:
        if not 0.0 <= share <= LOWEST:
            self._say(f"a clock {share:g} below the maximum is outside 0 to {LOWEST:g}")
            return False
        if share == self._share:
            return True
        if share == 0.0:
            left = self._put_back()
            if left:
                self._say(left)
            return not left
        if not self._started:
            self._start()
        self._leave_strangers()
        if not self._gpus:
            self._over = True
            return False
        for gpu in self._gpus:
            clocks = self._clocks_mhz[gpu.uuid]
            high_mhz = _nearest(clocks, (1.0 - share) * clocks[0])
            if self._set_mhz.get(gpu.uuid) != high_mhz and not self._bound(gpu, clocks[-1], high_mhz):
                return False
        self._share = share
        return True

    def _bound(self, gpu: GpuKnobs, low_mhz: int, high_mhz: int) -> bool:
        self.guardian.tell(gpu.uuid, PART)
        if self._was_closed():
            return False
        self._set_mhz[gpu.uuid] = high_mhz
        gpu.lock_clocks(low_mhz, high_mhz)
        if self._was_closed():  # by a signal's handler, in the middle of this
            gpu.reset_clocks()
        return not self._was_closed()

    def _start(self) -> None:
        own, kept = self._repair(), []
        for gpu in self._gpus:
            sign = gpu.clock_setting() if gpu.uuid in own else ""
            if sign:
                self._say(_left_alone(gpu, sign))
            elif gpu.uuid in own:
                kept.append(gpu)
        self._gpus, self._started = kept, True

    def _leave_strangers(self) -> None:
        for gpu in list(self._gpus):
            if others := unfit(gpu, self._opened.topology):
                self._free_one(gpu)
                self._gpus.remove(gpu)
                self._say(f"{gpu.label} is left alone: {others}")

    def _put_back(self) -> str:
        left = ""
        for gpu in self._gpus:
            try:
                self._free_one(gpu)
            except Exception as error:
                hope = "the guardian tries again when this process ends" if self.guardian.pid else "see nvidia-smi -rgc"
                left = f"the clock of {gpu.label} cannot be let free now ({error}); {hope}"
        self._share = 0.0
        return left

    def _free_one(self, gpu: GpuKnobs) -> None:
        if gpu.uuid in self._set_mhz:
            gpu.reset_clocks()
            del self._set_mhz[gpu.uuid]
            self.guardian.done(gpu.uuid, PART)


def open_clocks(
    config: ClocksConfig, topology: Topology, warn: Callable[[str], None], *, guardian: Guardian | None = None
) -> ClockLimit | None:
    """Return the clocks of this process's GPUs; None, and one sentence to ``warn``, where there are none to set.

    Whether this process may set them is tried on the power limit, by setting what is set: both take the same right,
    and an unlock would undo a lock that cannot be seen.

    Args:
        config: Section ``actuators.clocks``; how far down is for its reader to know.
        topology: Place of this process among the ranks.
        warn: Called with each sentence that the user should read.
        guardian: Guardian shared with :func:`~greentrain.control.actuators.power_cap.open_power_cap`; None: its own.
    """
    clocks_mhz: dict[str, tuple[int, ...]] = {}
    signs = []

    def check(gpu: GpuKnobs) -> None:
        if sign := gpu.clock_setting():
            signs.append(_left_alone(gpu, sign))
        else:
            clocks_mhz[gpu.uuid] = gpu.clocks_mhz()
            gpu.may_set()

    opened = open_gpus((), topology, warn, key="actuators.clocks", what="clocks", guardian=guardian, check=check)
    if opened is None:
        return None
    if signs:
        warn("; ".join(signs))
    opened.gpus = [gpu for gpu in opened.gpus if gpu.uuid in clocks_mhz]
    if not opened.gpus:
        opened.close()
        return None
    return ClockLimit(opened, clocks_mhz, warn=warn)


def _nearest(clocks_mhz: tuple[int, ...], wanted_mhz: float) -> int:
    return min(clocks_mhz, key=lambda mhz: abs(mhz - wanted_mhz))


def _left_alone(gpu: GpuKnobs, sign: str) -> str:
    return (
        f"the clocks of {gpu.label} are left alone: {sign}, so somebody has set them, and NVML could not put that back"
        " (nvidia-smi -rgc and -rac undo such settings)"
    )


SHALLOW: Final = 0.15
"""First step down; less saves little (Eco-Orchestrator's range is 15 to 30 %)."""
MARGIN: Final = 0.1
"""How much less than ``memory_share`` still counts while clocks are lower: slower kernels ask less of the memory."""
STEP: Final = 0.05
"""Two levels that are nearer to each other are one."""
NEED: Final = 3
"""Windows in a row that have to say the same before anything changes."""
MOST: Final = 12
"""Windows that a lower clock is compared with, and most windows of a trial: two means of 12 windows that vary by 4 %
differ by less than 3.5 % in 95 of 100 cases."""
FORGET: Final = 60
"""Windows until a level that was too low may be tried again, and until a lower clock is checked against the full one;
ten minutes of windows of 10 s. Doubled each time, so that a run that does not change is left alone."""
MOST_FORGET: Final = 16 * FORGET
LEAST_STEPS: Final = 20
"""Fewest steps in a window: one more or less is then 5 % of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StallWindow:
    """What a window of training has shown."""

    stalled_share: float | None
    """Share of the time in the phase ``data``, or in phases bound by memory, in 0..1; None where it is not known."""
    steps_per_s: float | None
    ordinary: bool = True
    """False where a pause, profiling, evaluation, a checkpoint or another change of power or gear falls into it."""


class StallControl:
    """Follows the windows of a run.

    Args:
        config: Shares, the lowest clock and the bound on the slowdown.
    """

    def __init__(self, config: ClocksConfig) -> None:
        self._config = config
        self.below = 0.0
        """Share below the maximum clock that is asked for: 0, or from 0.15 to ``config.down``."""
        self.reason = ""
        """Why, in a sentence, since the last change."""
        self.changes = 0
        """How often it has changed."""
        self._good = 0.0
        """The lowest level that is known to be fast enough; that of the last steady state."""
        self._kept = 1.0
        """Speed there, as a share of that at full clocks; while it is tried further down."""
        self._base: list[float] = []
        """Speeds before the trial that runs; empty: none runs."""
        self._before: list[float] = []
        """Speeds before the last trial, where it was kept."""
        self._recent: deque[StallWindow] = deque(maxlen=MOST)
        """Windows at the present level."""
        self._floor: float | None = None
        """A level that is too low."""
        self._floor_for = self._steady_for = 0
        """Windows since it was found to be so; windows since the last change."""
        self._forget = FORGET
        self._skip = False
        self._of_memory = config.stalls == "memory"
        self._what = "bound by memory" if self._of_memory else "waiting for data"
        self._seconds = self._known_s = self._stalled_s = 0.0
        self._steps = 0

    def observe(
        self,
        seconds: float,
        phase_s: Mapping[str, float],
        steps: int,
        states: Iterable[Mapping[str, Mapping[str, float]]] = (),
        *,
        ordinary: bool = True,
    ) -> float | None:
        """Take note of what was booked; windows of ``config.window_s`` and LEAST_STEPS are made of it.

        Args:
            seconds: Length of the interval (s).
            phase_s: Seconds of it by phase.
            steps: Optimizer steps in it.
            states: What the driver of each GPU told beside power, as ``DeviceEnergy.states``.
            ordinary: False where gears or power limits are being profiled or have changed; an interval with an
                evaluation, a checkpoint or a pause is recognised.

        Returns:
            The share below the maximum clock from now on, where a window has ended; else None.
        """
        if not ordinary or any(phase_s.get(phase, 0.0) > 0.0 for phase in IDLE_PHASES) or not seconds > 0.0:
            return None
        self._seconds += seconds
        known_s, stalled_s = self._bound_s(states) if self._of_memory else (seconds, phase_s.get(Phase.DATA, 0.0))
        self._known_s += known_s
        self._stalled_s += stalled_s
        self._steps += steps
        if self._seconds < self._config.window_s or self._steps < LEAST_STEPS:
            return None
        share = self._stalled_s / self._known_s if self._known_s > 0.0 else None
        window = StallWindow(stalled_share=share, steps_per_s=self._steps / self._seconds)
        self._seconds = self._known_s = self._stalled_s = 0.0
        self._steps = 0
        if share is None and self.below > 0.0:
            return self.stop("the driver tells no utilisation any more")
        return self.after(window)

    def _bound_s(self, states: Iterable[Mapping[str, Mapping[str, float]]]) -> tuple[float, float]:
        """Return the device-seconds whose utilisation is known, and those in phases that are bound by memory."""
        known_s = bound_s = 0.0
        least = self._config.memory_share - (MARGIN if self.below > 0.0 else 0.0)
        for phases in states:
            for told in phases.values():
                seconds = told.get("util_s", 0.0)
                known_s += seconds
                if told.get("memory_s", 0.0) >= least * seconds and told.get("sm_s", 0.0) <= (
                    self._config.sm_share * seconds + 1e-9
                ):
                    bound_s += seconds
        return known_s, bound_s

    def after(self, window: StallWindow) -> float:
        """Take note of a window.

        Returns:
            The share below the maximum clock that the next window should have.
        """
        if not window.ordinary or not _known(window.stalled_share) or not _known(window.steps_per_s):
            return self.below
        if self._skip:  # the change fell into it
            self._skip = False
            return self.below
        self._recent.append(window)
        self._steady_for += 1
        self._floor_for += 1
        if self._floor is not None and self._floor_for >= self._forget:
            self._floor = None
        if self._base:
            self._try()
        else:
            self._watch()
        return self.below

    def stop(self, reason: str) -> float:
        """Ask for full clocks, and start anew: they cannot be set, or somebody else sets them. Return 0."""
        self._base, self._floor, self._forget = [], None, FORGET
        self._settle(0.0, reason)
        return self.below

    # -- inside ------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Look whether the last windows ask for other clocks."""
        last = list(self._recent)[-NEED:]
        if len(last) < NEED:
            return
        shares = [window.stalled_share or 0.0 for window in last]
        lower = self._lower() if min(shares) >= self._config.stall_share else None
        if lower is not None and len(self._recent) == MOST:
            self._learn()
            self._base = self._before = self._speeds()
            self._change(lower, f"{statistics.fmean(shares):.0%} of the time is {self._what}")
        elif max(shares) < self._config.calm_share and self.below > 0.0:
            self._too_low(self.below)
            self._settle(self._half_way(0.0), f"only {statistics.fmean(shares):.0%} of the time is {self._what}")
        elif self.below > 0.0 and self._steady_for >= self._forget:
            self._forget = min(2 * self._forget, MOST_FORGET)
            self._settle(0.0, "to see what speed full clocks have by now")

    def _try(self) -> None:
        """Compare the speed of the trial with that before it."""
        speeds = self._speeds()
        if len(speeds) < 2:
            return
        ratio, half = _compared(speeds, self._base)
        least = (1.0 - self._config.max_slowdown) / self._kept
        done = len(speeds) >= MOST
        if ratio + half < least or (done and ratio < least):
            self._too_low(self.below)
            back, why = self._half_way(self._good), f"{1 - ratio * self._kept:.1%} slower at {self.below:.0%} below"
            if back > self._good:
                self._change(back, why)
            else:
                self._base = self._before = []
                self._settle(self._good, why)
        elif len(speeds) >= NEED and (ratio - half >= least or done):
            self._good, self._base = self.below, []
            self._steady_for = 0

    def _learn(self) -> None:
        """Note what the steady level that is left now has kept of the speed, from more windows than its trial had."""
        if self.below > 0.0 and self._before:
            self._kept = min(1.0, self._kept * _compared(self._speeds(), self._before)[0])

    def _lower(self) -> float | None:
        """Return the next level down; None where there is none, or none that differs from one that was too low."""
        target = SHALLOW if self.below == 0.0 else self._config.down
        if self._floor is not None and target >= self._floor:
            target = (self.below + self._floor) / 2
        return target if target >= SHALLOW and target - self.below >= STEP else None

    def _half_way(self, good: float) -> float:
        """Return the level between the present one and a good one; the good one where that is next to it."""
        half = (self.below + good) / 2
        return half if half >= SHALLOW and half - good >= STEP else good

    def _too_low(self, level: float) -> None:
        """Remember that a level is too low, for longer each time."""
        if self._floor is None and self._floor_for:
            self._forget = min(2 * self._forget, MOST_FORGET)
        self._floor, self._floor_for = level, 0

    def _settle(self, level: float, reason: str) -> None:
        """Go to a level that needs no trial."""
        if level == 0.0:
            self._kept, self._before = 1.0, []
        self._good = level
        self._change(level, reason)

    def _change(self, level: float, reason: str) -> None:
        self._recent.clear()
        self._steady_for = 0
        if level != self.below:
            self.below, self.reason, self._skip = level, reason, True
            self.changes += 1

    def _speeds(self) -> list[float]:
        return [window.steps_per_s for window in self._recent if window.steps_per_s is not None]


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value >= 0.0


def _compared(speeds: list[float], base: list[float]) -> tuple[float, float]:
    """Return the ratio of two means, and half of its interval of 95 % (two samples of equal spread)."""
    mean = statistics.fmean(base)
    if mean <= 0.0:
        return 1.0, math.inf
    degrees = len(speeds) + len(base) - 2
    spread = sum((len(part) - 1) * statistics.variance(part) for part in (speeds, base)) / degrees
    half = student_t_95(degrees) * math.sqrt(spread * (1 / len(speeds) + 1 / len(base)))
    return statistics.fmean(speeds) / mean, half / mean
