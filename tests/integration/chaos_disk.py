"""Disks that are full, read-only, slow or hang for a while, without being root: a library that processes preload."""

import mmap
import os
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("chaos_disk.c")
SLOTS: Final = 8
SLOT: Final = struct.Struct("<q504s")
"""Mode and folder, as in chaos_disk.c."""
MODES: Final = {"well": 0, "full": 1, "read-only": 2, "slow": 3, "hung": 4, "stalled": 5}


class ChaosDisk:
    """Folders whose disk can be made ill.

    Args:
        place: Folder for the library and its state; where they are there already, they are used.
        folders: At most eight, by name.
    """

    def __init__(self, place: Path, folders: Mapping[str, Path]) -> None:
        self._library, self._state = place / "libchaosdisk.so", place / "disk"
        if not self._state.exists():
            options = ["-O1", "-std=gnu11", "-fPIC", "-shared", "-fno-builtin"]
            command = ["gcc", *options, "-o", str(self._library), str(SOURCE), "-ldl"]
            subprocess.run(command, check=True, capture_output=True, timeout=60)
            self._state.write_bytes(bytes(SLOTS * SLOT.size))
        with self._state.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SLOTS * SLOT.size)
        self._slots = {name: position for position, name in enumerate(folders)}
        for name, folder in folders.items():
            SLOT.pack_into(self._map, self._slots[name] * SLOT.size, 0, os.fsencode(folder.resolve()))

    def environ(self) -> dict[str, str]:
        """Return the variables with which a process meets these disks."""
        return {"LD_PRELOAD": str(self._library), "CHAOS_DISK": str(self._state)}

    def set(self, name: str, mode: str) -> None:
        """Make a folder's disk ``full``, ``read-only``, ``slow``, ``hung`` or ``stalled``, or ``well`` again."""
        struct.pack_into("<q", self._map, self._slots[name] * SLOT.size, MODES[mode])

    def close(self) -> None:
        """Let go of the state."""
        self._map.close()
