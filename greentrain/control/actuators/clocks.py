"""An upper bound on the graphics clocks of this process's own GPUs.

Only the upper end moves: the clock stays free below it. What an administrator has locked cannot be read back, and a
reset unlocks (:mod:`greentrain.control.actuators.gpu_knobs`), so a GPU that shows any sign of a clock setting is left
alone,
at the opening and again just before the first change, when it computes.
"""

from collections.abc import Callable
from typing import Final

from greentrain.config.schema import ClocksConfig
from greentrain.control.actuators import guardian_main
from greentrain.control.actuators.driver import Opened, open_gpus, refusal
from greentrain.control.actuators.gpu_knobs import BoundSettings, GpuKnobs
from greentrain.control.actuators.gpu_setting import GpuSetting
from greentrain.control.actuators.guardian import Guardian, Refused
from greentrain.control.actuators.own_gpus import strangers
from greentrain.types import Topology

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
        with self._lock:
            if not self._may_change:
                return False
            try:
                return self._apply(share_below_max)
            except Refused as refused:
                self._refuse("clocks", refused)
            except Exception as error:
                left = self._put_back()
                self._say(f"{refusal('clocks', error)}{'; ' if left else ''}{left}")
                self._over = True
            return False

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
        self.guardian.tell_clocks(gpu.uuid)
        if self._was_closed():
            return False
        self._set_mhz[gpu.uuid] = high_mhz
        gpu.lock_clocks(low_mhz, high_mhz)
        if self._was_closed():  # by a signal's handler, in the middle of this
            gpu.reset_clocks()
        return not self._was_closed()

    def _start(self) -> None:
        for sentence in guardian_main.repair(str(self.guardian.folder), BoundSettings(self._opened.nvml)):
            self._say(sentence)
        own = {gpu.uuid for gpu in self._opened.now_own()}
        kept = []
        for gpu in self._gpus:
            sign = gpu.clock_setting() if gpu.uuid in own else ""
            if sign:
                self._say(_left_alone(gpu, sign))
            elif gpu.uuid in own:
                kept.append(gpu)
        self._gpus, self._started = kept, True

    def _leave_strangers(self) -> None:
        for gpu in list(self._gpus):
            others = strangers(gpu, self._opened.topology.local_world_size)
            if others:
                self._free_one(gpu)
                self._gpus.remove(gpu)
                pids = ", ".join(map(str, others))
                self._say(f"{gpu.label} is left alone: a process that is not of this job computes on it (pid {pids})")

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
        topology: Where this process stands among the ranks.
        warn: Called with each sentence that the user should read.
        guardian: To share with :func:`~greentrain.control.actuators.power_cap.open_power_cap`; None: one of its own.
    """
    opened = open_gpus((), topology, warn, key="actuators.clocks", what="clocks", guardian=guardian)
    if opened is None:
        return None
    clocks_mhz, signs = {}, []
    try:
        for gpu in opened.gpus:
            sign = gpu.clock_setting()
            if sign:
                signs.append(_left_alone(gpu, sign))
                continue
            clocks_mhz[gpu.uuid] = gpu.clocks_mhz()
            gpu.may_set()
    except Exception as error:
        warn(refusal("clocks", error))
        opened.close()
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
