"""The list of devices, as a user sees it."""

import json
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from typer.testing import CliRunner

from greentrain.cli import app
from greentrain.fpga_backend import discovery
from greentrain.fpga_backend.discovery import Installed
from greentrain.fpga_backend.xrt import pci


def _installed(**targets: str) -> dict[str, Installed]:
    return {
        name: Installed(
            name=name, distribution="x", entry=EntryPoint(name=name, value=value, group="greentrain.offload_devices")
        )
        for name, value in targets.items()
    }


@pytest.fixture
def some(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _installed(
        emulator="greentrain.fpga_backend.emulator.device:Emulator",
        null="greentrain.fpga_backend.devices.null_device:NullDevice",
        remote="greentrain.fpga_backend.remote.client:RemoteDevice",
        absent="no_such_module:Device",
    )
    monkeypatch.setattr(discovery, "devices", lambda: found)
    monkeypatch.setattr(pci, "find", tuple)


@pytest.mark.usefixtures("some")
def test_each_says_whether_and_why() -> None:
    result = CliRunner().invoke(app.app, ["fpga", "devices", "--json"])
    assert result.exit_code == 0
    told: dict[str, Any] = json.loads(result.stdout)["devices"]
    assert told["emulator"] == {
        "available": True,
        "exact": True,
        "simulated": False,
        "name": "emulator",
        "reason": "",
    }
    assert not told["null"]["available"] and told["null"]["reason"]
    assert told["remote"]["reason"] == "is opened with arguments (url, token), so it was not tried"
    assert "no_such_module" in told["absent"]["reason"]


@pytest.mark.usefixtures("some")
def test_the_table_and_an_empty_bus() -> None:
    result = CliRunner().invoke(app.app, ["fpga", "devices"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    lines = {line.split()[1]: line for line in result.stdout.splitlines() if line.startswith("│")}
    assert "usable" in lines["emulator"] and "exact" in lines["emulator"]
    assert "not now" in lines["absent"] and "cannot be imported" in lines["absent"]
    assert "No card that is known is on the PCI bus." in result.stdout


def test_a_card_on_the_bus_without_a_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    folder = tmp_path / "0000:c1:00.1"
    folder.mkdir()
    (folder / "vendor").write_text("0x10ee\n")
    (folder / "device").write_text("0x505d\n")
    real = pci.find
    monkeypatch.setattr(discovery, "devices", dict)
    monkeypatch.setattr(pci, "find", lambda: real(tmp_path))
    result = CliRunner().invoke(app.app, ["fpga", "devices"], env={"COLUMNS": "200"})
    assert "0000:c1:00.1: Alveo U55C, user: " in result.stdout
    assert "xocl" in result.stdout
