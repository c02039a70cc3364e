"""The devices that are installed: ours and third parties', found the same way, by entry points.

A package offers a device in its ``pyproject.toml``::

    [project.entry-points."greentrain.offload_devices"]
    mycard = "mypackage.device:MyCard"

and is then found under that name. An entry that cannot be imported stays in the list with its reason.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, distributions
from typing import Any

from greentrain.fpga_backend.device import OffloadDevice
from greentrain.fpga_backend.errors import DeviceError

GROUP = "greentrain.offload_devices"
OWN = "greentrain-torch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A device that some distribution offers. Calling it opens the device; nothing is imported before."""

    name: str
    distribution: str
    entry: EntryPoint | None
    """None where the distribution's list of entry points cannot be read."""
    problem: str = ""

    @property
    def reason(self) -> str:
        """Why it cannot be imported; empty where it can. Imports it."""
        try:
            self._loaded()
        except DeviceError as error:
            return str(error)
        return ""

    @property
    def options(self) -> tuple[str, ...]:
        """What its constructor takes; empty where that cannot be read. Imports it."""
        try:
            return tuple(inspect.signature(self._loaded()).parameters)
        except (DeviceError, TypeError, ValueError):
            return ()

    def __call__(self, *arguments: Any, **options: Any) -> OffloadDevice:
        """Open the device.

        Args:
            arguments: Positional arguments of the device's constructor.
            options: Keyword arguments of the device's constructor.

        Raises:
            DeviceError: It cannot be imported or opened. For wrong arguments its constructor may raise something else.
        """
        device = self._loaded()(*arguments, **options)
        if not isinstance(device, OffloadDevice):
            raise DeviceError(f"{self._place} made a {type(device).__name__}, which is no OffloadDevice")
        return device

    @property
    def _place(self) -> str:
        target = "" if self.entry is None else f"{self.entry.value}, "
        return f"device {self.name!r} ({target}from {self.distribution})"

    def _loaded(self) -> Any:
        if self.entry is None:
            raise DeviceError(f"{self._place} cannot be found: {self.problem}")
        try:
            found = self.entry.load()
        except (Exception, SystemExit) as error:  # a stranger's module may do anything when imported
            raise DeviceError(f"{self._place} cannot be imported: {type(error).__name__}: {error}") from error
        if not callable(found):
            raise DeviceError(f"{self._place} is a {type(found).__name__}, not a class or function that makes a device")
        return found


def devices() -> Mapping[str, Installed]:
    """Return what is installed, by name, ours first. Never raises and imports none of it.

    Where two distributions use one name, it is ours, or that of the distribution that comes first in the alphabet; the
    others are found as ``distribution:name``. Of one distribution, the entry that comes first on ``sys.path`` counts.
    """
    known: dict[str, Installed] = {}
    for found in sorted(_installed(distributions()), key=lambda one: (one.distribution != OWN, one.distribution)):
        before = known.get(found.name)
        if before is None:
            known[found.name] = found
        elif before.distribution != found.distribution:
            known.setdefault(f"{found.distribution}:{found.name}", found)
    return known


def _installed(all_: Iterable[Distribution]) -> Iterator[Installed]:
    """Yield the entries of each distribution; one whose files are broken spoils no other's."""
    for distribution in all_:
        try:
            owner = str(distribution.metadata["Name"])
            text = distribution.read_text("entry_points.txt") or ""
        except Exception:  # nobody can say what it offers
            continue
        if GROUP not in text:
            continue
        try:
            for entry in distribution.entry_points.select(group=GROUP):
                yield Installed(name=entry.name, distribution=owner, entry=entry)
        except Exception as error:  # importlib.metadata raises what its parser happens to
            yield Installed(
                name=owner,
                distribution=owner,
                entry=None,
                problem=f"its entry_points.txt cannot be read ({error!r}); install {owner} again",
            )
