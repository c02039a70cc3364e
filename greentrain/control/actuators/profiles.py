"""Workload power profiles (Blackwell) and a memory clock that a run asks for, from its start to its end.

A profile is a bundle of the driver's settings for a kind of work, of which a GPU may be asked for several at a time
(NVML API reference, Power Profile Information, read 2026-11-28). What an administrator has asked for is read first, and
is what comes back; a locked memory clock cannot be read, so its reset unlocks, as with graphics clocks.
"""

from collections.abc import Callable
from typing import Final

from greentrain.config.schema import POWER_PROFILES, ActuatorsConfig
from greentrain.control.actuators.driver import GpuKnobs, GpuSetting, Opened, open_gpus
from greentrain.control.actuators.guardian import Guardian
from greentrain.errors import ConfigError
from greentrain.types import Topology

WHAT: Final = "workload power profiles and memory clocks"


class Profiles(GpuSetting):
    """Profiles and memory clock of one process's GPUs; :func:`open_profiles` makes it.

    Experimental: it ran on a fake driver, never on a card (docs/status.md).

    Args:
        opened: The GPUs, NVML and the guardian; closed with it.
        mask: Profiles to ask for, a bit each; None: they are left alone.
        memory_mhz: Clock to lock the memory at (MHz); None: it is left alone.
        warn: Called with one sentence where something cannot be done; once a sentence.
    """

    what = WHAT
    kind = "profile"

    def __init__(
        self, opened: Opened, mask: int | None, memory_mhz: int | None, *, warn: Callable[[str], None]
    ) -> None:
        super().__init__(opened, warn)
        self._mask, self._memory_mhz = mask, memory_mhz
        self._found: dict[str, int] = {}
        self._locked: set[str] = set()

    def apply(self) -> bool:
        """Ask every GPU for them. Never raises; False if that could not be done, which is said once."""
        return self._change(self._apply)

    def _apply(self) -> bool:
        for gpu in self._opened.gpus:
            if self._mask is not None and gpu.uuid not in self._found and not self._closed:
                found = gpu.profiles()
                self.guardian.tell(gpu.uuid, "profiles", f"{found:x} {self._mask:x}")
                self._found[gpu.uuid] = found
                gpu.request_profiles(self._mask)
            if self._memory_mhz is not None and gpu.uuid not in self._locked and not self._closed:
                self.guardian.tell(gpu.uuid, "memory")
                self._locked.add(gpu.uuid)
                gpu.lock_memory(self._memory_mhz)
        return True

    def _level(self) -> float:
        return float(bool(self._found or self._locked))

    def _put_back(self) -> str:
        left = ""
        for gpu in self._opened.gpus:
            try:
                if gpu.uuid in self._found:
                    if gpu.profiles() == self._mask:  # else somebody else has asked for others, which stay
                        gpu.request_profiles(self._found[gpu.uuid])
                    del self._found[gpu.uuid]
                    self.guardian.done(gpu.uuid, "profiles")
                if gpu.uuid in self._locked:
                    gpu.lock_memory(None)
                    self._locked.discard(gpu.uuid)
                    self.guardian.done(gpu.uuid, "memory")
            except Exception as error:
                left = f"{WHAT} of {gpu.label} cannot be put back now ({error}); see nvidia-smi power-profiles and -rmc"
        return left


def open_profiles(
    config: ActuatorsConfig, topology: Topology, warn: Callable[[str], None], *, guardian: Guardian | None = None
) -> Profiles | None:
    """Return what a run asks its GPUs for; None, and one sentence to ``warn``, where it cannot be.

    Args:
        config: Section ``actuators``.
        topology: Place of this process among the ranks.
        warn: Called with each sentence that the user should read.
        guardian: Guardian shared with the other actuators; None: one of its own.

    Raises:
        ConfigError: A GPU has no such profile, or no such memory clock.
    """
    asked, memory_mhz = config.power_profiles, config.memory_mhz
    mask = sum(1 << POWER_PROFILES[name] for name in asked) if asked else None

    def check(gpu: GpuKnobs) -> None:
        offered = gpu.profiles(offered=True) if mask is not None else 0
        if mask is not None and mask & ~offered:
            known = ", ".join(name for name, bit in POWER_PROFILES.items() if offered >> bit & 1)
            raise ConfigError(f"actuators.power_profiles is {list(asked or ())}; {gpu.label} has {known or 'none'}")
        clocks = gpu.memory_clocks_mhz() if memory_mhz is not None else ()
        if memory_mhz is not None and memory_mhz not in clocks:
            known = ", ".join(map(str, clocks))
            raise ConfigError(f"actuators.memory_mhz is {memory_mhz}; {gpu.label} has {known or 'none'}")
        gpu.may_set()

    key = "actuators.power_profiles"
    opened = open_gpus((), topology, warn, key=key, what=WHAT, guardian=guardian, check=check)
    return None if opened is None else Profiles(opened, mask, memory_mhz, warn=warn)
