import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from greentrain.fpga_backend.device import OffloadDevice
from greentrain.fpga_backend.discovery import GROUP, OWN, devices
from greentrain.fpga_backend.errors import DeviceError
from greentrain.testing.offload_contract import raised

OURS = ("csim", "emulator", "null", "remote", "torch", "xrt")
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install distributions into a folder that is first on the path."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(distribution: str, entries: str, **modules: str) -> None:
        folder = tmp_path / f"{distribution.replace('-', '_')}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[{GROUP}]\n{entries}\n")
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(text)

    yield install
    for name in [n for n in sys.modules if n.startswith("third_")]:
        del sys.modules[name]


def test_our_devices_are_found_and_can_be_imported() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert tuple(sorted(project["entry-points"][GROUP])) == OURS
    ours = {name: found for name, found in devices().items() if found.distribution == OWN and name in OURS}
    assert {name: found.reason for name, found in ours.items()} == dict.fromkeys(OURS, "")
    assert ours["torch"].options == ("device", "dtype", "depth")


def test_looking_imports_nothing(install: Install) -> None:
    install("third-party", "loud = third_loud:Device", third_loud="raise RuntimeError('imported')")
    assert "loud" in devices()
    assert "third_loud" not in sys.modules


def test_a_third_partys_device_opens(install: Install) -> None:
    text = "from greentrain.fpga_backend.devices.null_device import NullDevice as Card"
    install("third-party", "mycard = third_card:Card", third_card=text)
    found = devices()["mycard"]
    assert (found.distribution, found.reason) == ("third-party", "")
    device = found()
    assert isinstance(device, OffloadDevice)
    device.close()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("import surely_not_installed", "surely_not_installed"),
        ("raise RuntimeError('no driver')", "no driver"),
        ("raise SystemExit(3)", "SystemExit"),
        ("def broken(:", "SyntaxError"),
        ("", "Card"),
        ("Card = 3", "int"),
    ],
)
def test_a_broken_entry_stays_with_its_reason(install: Install, text: str, word: str) -> None:
    install("third-party", "mycard = third_broken:Card", third_broken=text)
    found = devices()["mycard"]
    for said in (found.reason, str(raised(found))):
        assert word in said
        assert "third-party" in said
    assert isinstance(raised(found), DeviceError)
    assert devices()["null"].reason == ""


def test_what_is_no_device_is_said_when_it_is_opened(install: Install) -> None:
    install("third-party", "mycard = third_dict:make", third_dict="make = dict")
    assert "dict" in str(raised(devices()["mycard"]))


def test_ours_keeps_its_name(install: Install) -> None:
    install("a-third", "null = third_a:X\nsame = third_a:X")
    install("b-third", "same = third_b:Y")
    found = devices()
    assert found["null"].distribution == OWN
    assert found["a-third:null"].distribution == "a-third"
    assert (found["same"].distribution, found["b-third:same"].distribution) == ("a-third", "b-third")


def test_a_list_that_cannot_be_read_spoils_no_other(install: Install) -> None:
    install("a-third", "malformed")
    install("b-third", "card = third_b:Y")
    found = devices()
    assert "entry_points.txt" in found["a-third"].reason
    assert isinstance(raised(found["a-third"]), DeviceError)
    assert found["card"].distribution == "b-third"
    assert found["null"].reason == ""


def test_an_older_copy_further_down_the_path_counts_for_nothing(tmp_path: Path, install: Install) -> None:
    install("third-party", "mycard = third_new:Card", third_new="Card = dict")
    older = tmp_path / "older"
    (older / "third_party-0.1.dist-info").mkdir(parents=True)
    for file, text in (
        ("METADATA", "Name: third-party\n"),
        ("entry_points.txt", f"[{GROUP}]\nmycard = third_old:Card\n"),
    ):
        (older / "third_party-0.1.dist-info" / file).write_text(text)
    sys.path.append(str(older))
    try:
        entry = devices()["mycard"].entry
        assert entry is not None and entry.value == "third_new:Card"
        assert "third-party:mycard" not in devices()
    finally:
        sys.path.remove(str(older))
