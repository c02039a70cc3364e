"""Cards on the PCI bus, found without XRT: by the numbers that the kernel shows of every function."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from greentrain.fpga_backend.errors import DeviceError

ROOT = Path("/sys/bus/pci/devices")
XILINX = 0x10EE
CARDS: Mapping[int, tuple[str, Literal["management", "user"]]] = {
    0x505C: ("Alveo U55C", "management"),
    0x505D: ("Alveo U55C", "user"),
}
"""Device numbers of vendor 10ee: xocl/devices.h of Xilinx/XRT at 963c58e, 2026-11-21."""
ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True, slots=True, kw_only=True)
class PciFunction:
    """One function of a card."""

    address: str
    """``0000:c1:00.1``."""
    name: str
    role: Literal["management", "user"]
    """Only the user function runs kernels."""
    driver: str
    """Name of the kernel's driver; empty: none is bound, and XRT does not see the function."""
    folder: Path

    @property
    def uid(self) -> str:
        """What the card's joules are booked under."""
        return f"xrt:{self.address}"

    @property
    def problem(self) -> str:
        """Why it cannot be used, and what to do; empty where it can."""
        if self.role == "user" and self.driver != "xocl":
            bound = f"driver {self.driver}" if self.driver else "no driver"
            return (
                f"{self.name} at {self.address} has {bound}: load AMD's xocl (modprobe xocl; the xrt package builds it)"
            )
        return ""


def find(root: Path = ROOT) -> tuple[PciFunction, ...]:
    """Return the known functions, by address. Never raises: where nothing can be read, nothing is there."""
    try:
        folders = sorted(root.iterdir())
    except OSError:
        return ()
    return tuple(found for folder in folders for found in _function(folder))


def users(root: Path = ROOT) -> tuple[PciFunction, ...]:
    """Return the functions that kernels run on, in the order in which XRT counts them."""
    return tuple(found for found in find(root) if found.role == "user")


def choose(address: str | None = None, root: Path = ROOT) -> PciFunction:
    """Return the function to use.

    Args:
        address: PCI address of the function, also of a card that is not in ``CARDS``. None: the first that can be used.
        root: Folder in which Linux shows the bus.

    Raises:
        DeviceError: There is none, or it has no driver; says what to do.
    """
    cards = users(root)
    if address is None:
        for card in cards:
            if not card.problem:
                return card
        problems = "; ".join(card.problem for card in cards)
        known = ", ".join(f"{XILINX:x}:{n:x} {name}" for n, (name, role) in CARDS.items() if role == "user")
        raise DeviceError(problems or f"no card is on the PCI bus (known: {known}): name another one with addresses=")
    for card in cards:
        if card.address == address:
            if card.problem:
                raise DeviceError(card.problem)
            return card
    folder = root / address
    device = _number(folder / "device") if ADDRESS.fullmatch(address) else None
    if device is None:
        found = ", ".join(card.address for card in cards) or "none"
        raise DeviceError(f"there is no PCI function {address!r} (cards: {found}): give one like 0000:c1:00.1")
    return PciFunction(
        address=address, name=f"XRT card {device:04x}", role="user", driver=_driver(folder), folder=folder
    )


def _function(folder: Path) -> Iterator[PciFunction]:
    vendor, device = _number(folder / "vendor"), _number(folder / "device")
    if vendor != XILINX or device is None or device not in CARDS or not ADDRESS.fullmatch(folder.name):
        return
    name, role = CARDS[device]
    yield PciFunction(address=folder.name, name=name, role=role, driver=_driver(folder), folder=folder)


def _driver(folder: Path) -> str:
    try:
        return (folder / "driver").resolve(strict=True).name
    except (OSError, RuntimeError):
        return ""


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii").strip(), 16)
    except (OSError, ValueError):
        return None
