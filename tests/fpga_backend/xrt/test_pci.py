from pathlib import Path

import pytest

from greentrain.fpga_backend.errors import DeviceError
from greentrain.fpga_backend.xrt import pci


def function(root: Path, address: str, device: int, driver: str = "", vendor: int = pci.XILINX) -> Path:
    """Make a function of a PCI bus as sysfs shows it."""
    folder = root / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"0x{vendor:04x}\n")
    (folder / "device").write_text(f"0x{device:04x}\n")
    if driver:
        target = root.parent / "drivers" / driver
        target.mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(target)
    return folder


def test_a_card_shows_both_functions(tmp_path: Path) -> None:
    root = tmp_path / "devices"
    function(root, "0000:c1:00.0", 0x505C, "xclmgmt")
    function(root, "0000:c1:00.1", 0x505D, "xocl")
    function(root, "0000:01:00.0", 0x2330, "nvidia", vendor=0x10DE)
    assert [(f.address, f.role, f.driver) for f in pci.find(root)] == [
        ("0000:c1:00.0", "management", "xclmgmt"),
        ("0000:c1:00.1", "user", "xocl"),
    ]
    chosen = pci.choose(None, root)
    assert (chosen.address, chosen.name, chosen.problem) == ("0000:c1:00.1", "Alveo U55C", "")
    assert pci.choose("0000:c1:00.1", root) == chosen


def test_a_bus_that_cannot_be_read_is_empty(tmp_path: Path) -> None:
    assert pci.find(tmp_path / "none") == ()
    (tmp_path / "file").write_text("")
    assert pci.find(tmp_path / "file") == ()
    broken = function(tmp_path / "devices", "0000:c1:00.1", 0x505D)
    (broken / "device").write_text("what?")
    assert pci.find(tmp_path / "devices") == ()
    (broken / "device").unlink()
    assert pci.find(tmp_path / "devices") == ()


def test_no_card_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"no card is on the PCI bus \(known: 10ee:505d Alveo U55C\)"):
        pci.choose(None, tmp_path)
    with pytest.raises(DeviceError, match=r"no PCI function '0000:c1:00.1' \(cards: none\)"):
        pci.choose("0000:c1:00.1", tmp_path)
    with pytest.raises(DeviceError, match=r"no PCI function '../etc'"):
        pci.choose("../etc", tmp_path)


def test_a_card_without_the_driver_is_refused_with_the_remedy(tmp_path: Path) -> None:
    root = tmp_path / "devices"
    function(root, "0000:c1:00.1", 0x505D)
    for address in (None, "0000:c1:00.1"):
        with pytest.raises(DeviceError, match=r"0000:c1:00.1 has no driver: load AMD's xocl"):
            pci.choose(address, root)
    function(root, "0000:e1:00.1", 0x505D, "vfio-pci")
    with pytest.raises(DeviceError, match=r"0000:e1:00.1 has driver vfio-pci"):
        pci.choose("0000:e1:00.1", root)
    function(root, "0000:f1:00.1", 0x505D, "xocl")
    assert pci.choose(None, root).address == "0000:f1:00.1"


def test_another_xrt_card_can_be_named(tmp_path: Path) -> None:
    root = tmp_path / "devices"
    function(root, "0000:af:00.1", 0x500D, "xocl")
    assert pci.users(root) == ()
    assert pci.choose("0000:af:00.1", root).name == "XRT card 500d"
