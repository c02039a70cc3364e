"""Opening the driver for actuators: repair what dead jobs left, find this process's GPUs, take part in a guardian."""

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from greentrain.control.actuators import guardian_main
from greentrain.control.actuators.gpu_knobs import BoundSettings, GpuKnobs
from greentrain.control.actuators.guardian import Guardian
from greentrain.control.actuators.own_gpus import choose, own_of, writable
from greentrain.errors import MeterError
from greentrain.power.claims import ENV_DIR, claims_dir
from greentrain.power.nvml_devices import open_nvml
from greentrain.types import Topology
from greentrain.utils.never_raise import warn_experimental


class Opened:
    """NVML, the GPUs that may be changed, and a part in the guardian.

    Args:
        nvml: The initialised bindings; released by :meth:`close`.
        gpus: Those that may be changed.
        visible: All that the process sees.
        topology: Where it stands among the ranks.
        guardian: Joined here, left by :meth:`close`.
        named: True where the configuration names the GPUs.
    """

    def __init__(
        self,
        nvml: Any,
        gpus: Sequence[GpuKnobs],
        visible: Sequence[GpuKnobs],
        topology: Topology,
        guardian: Guardian,
        *,
        named: bool,
    ) -> None:
        self.nvml = nvml
        self.gpus = gpus
        self.topology = topology
        self.guardian = guardian
        self._visible = visible
        self._named = named
        self._closed = False
        guardian.join()

    def now_own(self) -> Sequence[GpuKnobs]:
        """Return those of the GPUs that the process trains on, as is known by now."""
        if self._named:
            return self.gpus
        own = {gpu.uuid for gpu in own_of(self._visible, self.topology)}
        return [gpu for gpu in self.gpus if gpu.uuid in own]

    def close(self) -> None:
        """Leave the guardian and release NVML. Idempotent; never raises."""
        if not self._closed:
            self._closed = True
            self.guardian.leave()
            with contextlib.suppress(Exception):
                self.nvml.nvmlShutdown()


def open_gpus(
    named: Sequence[str],
    topology: Topology,
    warn: Callable[[str], None],
    *,
    key: str,
    what: str,
    guardian: Guardian | None,
) -> Opened | None:
    """Return the GPUs that may be changed; None, and one sentence to ``warn``, where there are none.

    Args:
        named: UUIDs from the configuration; empty: those the process trains on.
        topology: Where this process stands among the ranks.
        warn: Called with each sentence that the user should read.
        key: Configuration key of ``named``.
        what: ``power limits`` or ``clocks``, for the sentences.
        guardian: To take part in; None: a new one.

    Raises:
        ConfigError: A named GPU is not visible to this process.
    """
    try:
        nvml = open_nvml()
    except MeterError as error:
        warn(f"{what} are left alone: {error}")
        return None
    opened = None
    try:
        opened = _open(nvml, named, topology, warn, key, what, guardian)
    except nvml.NVMLError as error:
        warn(f"{what} are left alone: NVML cannot list the GPUs ({error})")
    finally:
        if opened is None:
            nvml.nvmlShutdown()
    if opened is not None and not hasattr(nvml.nvmlLib, "fake_nvml_configure"):  # of greentrain.testing.fake_nvml
        warn_experimental("changing power limits and clocks of GPUs", "it ran on a fake driver, never on a card")
    return opened


def _open(
    nvml: Any,
    named: Sequence[str],
    topology: Topology,
    warn: Callable[[str], None],
    key: str,
    what: str,
    guardian: Guardian | None,
) -> Opened | None:
    library = getattr(getattr(nvml, "nvmlLib", None), "_name", None)
    guardian = guardian or (Guardian(library=library) if library else Guardian())
    chosen = choose(nvml, named, topology, key)
    problem = writable(guardian.folder)
    if problem:
        warn(
            f"{what} are left alone: {problem}, where what was found is recorded; {ENV_DIR} names a folder of this node"
        )
        return None
    for sentence in guardian_main.repair(str(guardian.folder), BoundSettings(nvml)):
        warn(sentence)
    free, left = [], list(chosen.left)
    for gpu in chosen.gpus:
        holder = holder_of(gpu.uuid, guardian)
        if holder:
            left.append(f"{gpu.label} is left alone: {holder}")
        else:
            free.append(gpu)
    if not free:
        warn(f"{what} are left alone: {'; '.join(left) or 'this process has no GPU'}")
        return None
    if left:
        warn("; ".join(left))
    if os.getpid() == 1:
        warn(
            "this process is PID 1 of its container, and a kill of it ends its guardian too: what is set then stays"
            f" until the next start with this {ENV_DIR}. Run it under an init (docker run --init; Kubernetes:"
            " shareProcessNamespace)"
        )
    return Opened(nvml, free, chosen.visible, topology, guardian, named=bool(named))


def refusal(what: str, error: Exception) -> str:
    """Return the sentence about a right that is missing, or another reason of the driver.

    Args:
        what: ``power limits`` or ``clocks``.
        error: What the driver said.
    """
    if type(error).__name__ == "NVMLError_NoPermission":
        return (
            f"{what} are left alone: this process may not set them (NVML: {error}). It takes root with CAP_SYS_ADMIN:"
            " give it to the container (docker run --cap-add SYS_ADMIN; Kubernetes: securityContext, capabilities, add"
            " SYS_ADMIN), or let an administrator set one limit: sudo nvidia-smi -i <uuid> -pl <watts>"
        )
    if type(error).__name__ == "NVMLError_NotSupported":
        return f"{what} are left alone: this card has none that can be set (NVML: {error})"
    return f"{what} are left alone: the driver does not answer as it should ({error})"


def holder_of(uuid: str, guardian: Guardian) -> str:
    """Return who has changed a GPU's settings now; empty if nobody but this guardian has.

    Args:
        uuid: Of the GPU.
        guardian: Whose own records do not count.
    """
    path = guardian_main.record_path(str(guardian.folder), uuid)
    if uuid in guardian.held:
        return ""
    record = guardian_main.read(path)
    try:
        lock = guardian_main.take_lock(path)
    except OSError as error:
        return f"its lock cannot be opened ({error.strerror})"
    if lock is not None:
        guardian_main.let_go(lock)
        if record is None or not guardian_main.owner_lives(record):
            return ""
    pid = f"process {record.owner[1]}" if record is not None else "another job"
    return f"{pid} has set its power limit or clocks with GreenTrain, so what it shows is not the administrator's"


def repair(folder: Path | None = None) -> list[str]:
    """Put right what dead jobs left on the GPUs of this node, without opening anything where there is nothing to do.

    Args:
        folder: Of the records; None: that of the device claims.

    Returns:
        What was done, one sentence a GPU. Never raises.
    """
    place = claims_dir() if folder is None else folder
    if not any(place.glob("cap-*.state")):
        return []
    try:
        nvml = open_nvml()
    except MeterError as error:
        return [
            f"a dead job may have left a power limit or clocks changed ({place}), and NVML cannot be opened: {error}"
        ]
    try:
        return guardian_main.repair(str(place), BoundSettings(nvml))
    finally:
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()
