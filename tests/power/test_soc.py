"""Apple silicon on a stand-in for zeus-apple-silicon, Jetson on copies of the kernel's files."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from greentrain.config.schema import PowerConfig
from greentrain.errors import MeterError, MissingExtraError
from greentrain.power import soc
from greentrain.power.detect import open_meters
from greentrain.power.soc import AppleMeter, JetsonMeter
from greentrain.testing.meter_contract import MeterContract
from greentrain.types import DeviceKind, PowerMeter, Provenance

pytestmark = pytest.mark.filterwarnings("ignore::greentrain.errors.GreenTrainWarning")


class FakeMac:
    """Has the names and units of zeus_apple_silicon 1.1.0; 10 W of CPU, 20 W of GPU, 1 W of SRAM, no figure of DRAM."""

    def __init__(self) -> None:
        self.t_s = 5.0
        self.gone = False

    def get_cumulative_energy(self) -> SimpleNamespace:
        if self.gone:
            raise RuntimeError("IOReport sample failed")
        mj = 1000 * self.t_s
        return SimpleNamespace(
            cpu_total_mj=int(10 * mj), gpu_mj=int(20 * mj), gpu_sram_mj=int(mj), dram_mj=None, ane_mj=0
        )


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> FakeMac:
    fake, module = FakeMac(), ModuleType("zeus_apple_silicon")
    module.AppleEnergyMonitor = lambda: fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", module)
    return fake


class TestAppleContract(MeterContract):
    @pytest.fixture
    def meter(self, mac: FakeMac) -> Iterator[PowerMeter]:
        self.mac = mac
        meter = AppleMeter()
        yield meter
        meter.close()

    def advance(self) -> None:
        self.mac.t_s += 0.1

    def vanish(self) -> None:
        self.mac.gone = True


def test_apple_tells_its_own_estimates(mac: FakeMac) -> None:
    meter = AppleMeter()
    assert {s.device.uid: s.provenance for s in meter.sensors} == {
        "apple:cpu": Provenance.MODELLED,
        "apple:gpu": Provenance.MODELLED,
    }
    first = meter.read()
    mac.t_s += 2.0
    last = meter.read()
    used_j = [float(b.energy_j or 0.0) - float(a.energy_j or 0.0) for a, b in zip(first, last, strict=True)]
    assert used_j == pytest.approx([20.0, 42.0])
    meter.close()


def test_no_mac_and_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", None)
    with pytest.raises(MissingExtraError, match=r"greentrain-torch\[apple\]"):
        AppleMeter()

    def no_mac() -> Any:
        raise RuntimeError("no Energy Model channels")

    module = ModuleType("zeus_apple_silicon")
    module.AppleEnergyMonitor = no_mac  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", module)
    with pytest.raises(MeterError, match="takes a Mac with Apple silicon"):
        AppleMeter()


def orin(root: Path) -> Path:
    """An Orin NX under JetPack 6: one INA3221, of which one channel is not connected."""
    place = root / "ina3221" / "1-0040" / "hwmon" / "hwmon1"
    place.mkdir(parents=True)
    for number, (name, mv, ma) in enumerate(
        (("VDD_IN", 5000, 3000), ("VDD_CPU_GPU_CV", 5000, 1000), ("VDD_SOC", 5000, 600)), 1
    ):
        for file, value in (("in{}_label", name), ("in{}_input", mv), ("curr{}_input", ma)):
            (place / file.format(number)).write_text(f"{value}\n")
    (place / "in4_label").write_text("NC\n")
    return place


class TestJetsonContract(MeterContract):
    @pytest.fixture
    def meter(self, tmp_path: Path) -> Iterator[PowerMeter]:
        self.place = orin(tmp_path)
        meter = JetsonMeter(tmp_path)
        yield meter
        meter.close()

    def vanish(self) -> None:
        for file in self.place.iterdir():
            file.unlink()


def test_the_input_contains_the_rails(tmp_path: Path) -> None:
    orin(tmp_path)
    meter = JetsonMeter(tmp_path)
    kinds = {s.device.uid: (s.device.kind, s.reference) for s in meter.sensors}
    assert kinds == {
        "jetson:VDD_CPU_GPU_CV": (DeviceKind.GPU, False),
        "jetson:VDD_IN": (DeviceKind.NODE, True),
        "jetson:VDD_SOC": (DeviceKind.CPU, False),
    }
    assert {s.device_uid: s.power_w for s in meter.read()} == {
        "jetson:VDD_CPU_GPU_CV": 5.0,
        "jetson:VDD_IN": 15.0,
        "jetson:VDD_SOC": 3.0,
    }
    meter.close()


def test_a_xavier_of_the_older_kernel(tmp_path: Path) -> None:
    place = tmp_path / "ina3221x" / "1-0040" / "iio:device0"
    place.mkdir(parents=True)
    for number, (name, mw) in enumerate((("GPU", 4000), ("CPU", 2500), ("SOC", 1500))):
        (place / f"rail_name_{number}").write_text(f"{name}\n")
        (place / f"in_power{number}_input").write_text(f"{mw}\n")
    meter = JetsonMeter(tmp_path)
    assert {s.device_uid: s.power_w for s in meter.read()} == {"jetson:CPU": 2.5, "jetson:GPU": 4.0, "jetson:SOC": 1.5}
    meter.close()


def test_nothing_is_modelled_beside_the_rails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orin(tmp_path)
    monkeypatch.setattr(soc, "DRIVERS", tmp_path)
    meter = open_meters(PowerConfig(rapl_root=str(tmp_path / "none")))
    assert {s.device.uid for s in meter.sensors} == {"jetson:VDD_IN", "jetson:VDD_CPU_GPU_CV", "jetson:VDD_SOC"}
    meter.close()


def test_no_jetson_and_no_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MeterError, match="this is no Jetson"):
        JetsonMeter(tmp_path)
    place = orin(tmp_path)
    real = Path.read_text

    def denied(self: Path, *args: Any, **options: Any) -> str:
        if self.name == "in2_input":
            raise PermissionError(13, "Permission denied", str(self))
        return real(self, *args, **options)

    monkeypatch.setattr(Path, "read_text", denied)
    meter = JetsonMeter(tmp_path)
    missing = [s for s in meter.sensors if s.provenance is Provenance.MISSING]
    assert [s.device.uid for s in missing] == ["jetson:VDD_CPU_GPU_CV"]
    assert "Permission denied" in missing[0].note and "chmod a+r" in missing[0].note
    meter.close()
    assert place.exists()
