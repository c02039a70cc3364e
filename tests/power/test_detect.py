import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from greentrain.config.schema import PowerConfig
from greentrain.errors import MeterError
from greentrain.power import nvml, prometheus
from greentrain.power import nvml as nvml_survey
from greentrain.power.cpu_model import CpuModelMeter
from greentrain.power.detect import open_meters, survey
from greentrain.power.rapl import RaplMeter
from greentrain.types import Device, DeviceKind, PowerSample, Provenance, Sensor, Topology

RANGE_UJ = 262_143_328_850


def zone(root: Path, folder: str, name: str, energy_uj: int) -> None:
    path = root / folder
    path.mkdir(parents=True)
    for file, text in (("name", name), ("energy_uj", str(energy_uj)), ("max_energy_range_uj", str(RANGE_UJ))):
        (path / file).write_text(text)


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000_000)
    zone(tmp_path, "intel-rapl:0:0", "dram", 7_000_000_000)
    return tmp_path


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise MeterError("libnvidia-ml.so.1 is not found")

    monkeypatch.setattr(nvml.NvmlMeter, "__init__", refuse)
    monkeypatch.setattr(nvml_survey, "open_nvml", refuse)


def deny(monkeypatch: pytest.MonkeyPatch, *folders: str) -> None:
    read_text = Path.read_text

    def refuse(path: Path, encoding: str | None = None, errors: str | None = None) -> str:
        if path.name == "energy_uj" and path.parent.name in folders:
            raise PermissionError(13, "Permission denied", str(path))
        return read_text(path, encoding, errors)

    monkeypatch.setattr(Path, "read_text", refuse)


def opened(config: PowerConfig, topology: Topology | None = None) -> dict[str, tuple[Provenance, str]]:
    meter = open_meters(config, topology=topology)
    try:
        assert len(meter.read()) == len(meter.sensors)
        return {s.device.uid: (s.provenance, s.note) for s in meter.sensors}
    finally:
        meter.close()


def test_auto_measures_with_rapl_and_models_nothing(powercap: Path) -> None:
    found = opened(PowerConfig(rapl_root=str(powercap)))
    assert {uid: p for uid, (p, _) in found.items()} == {
        "rapl:package-0": Provenance.MEASURED,
        "rapl:dram-0": Provenance.MEASURED,
    }


def test_auto_models_memory_where_rapl_has_packages_only(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000_000)
    assert list(opened(PowerConfig(rapl_root=str(tmp_path)))) == ["rapl:package-0", "model:dram"]


def test_auto_models_both_without_any_sensor(tmp_path: Path) -> None:
    found = opened(PowerConfig(rapl_root=str(tmp_path)))
    assert {uid: p for uid, (p, _) in found.items()} == {
        "model:cpu": Provenance.MODELLED,
        "model:dram": Provenance.MODELLED,
    }


def test_auto_names_unreadable_rapl_in_the_note_of_the_model(powercap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deny(monkeypatch, "intel-rapl:0", "intel-rapl:0:0")
    found = opened(PowerConfig(rapl_root=str(powercap)))
    assert list(found) == ["model:cpu", "model:dram"]
    for folder, uid in (("intel-rapl:0", "model:cpu"), ("intel-rapl:0:0", "model:dram")):
        assert found[uid][1].startswith("Modelled because RAPL is not readable")
        assert str(powercap / folder / "energy_uj") in found[uid][1]
        assert "CVE-2020-8694" in found[uid][1]


def test_auto_keeps_one_unreadable_package_of_two_visible_as_missing(
    powercap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone(powercap, "intel-rapl:1", "package-1", 9_000_000_000)
    deny(monkeypatch, "intel-rapl:1")
    found = opened(PowerConfig(rapl_root=str(powercap)))
    assert found["rapl:package-1"][0] is Provenance.MISSING
    assert "model:cpu" not in found


def test_idle_power_is_shared_by_the_ranks_of_a_node(tmp_path: Path) -> None:
    config = PowerConfig(rapl_root=str(tmp_path), cpu_tdp_w=100.0)
    alone = opened(config)["model:cpu"][1]
    four = opened(config, Topology(rank=1, world_size=4, local_rank=1, local_world_size=4))["model:cpu"][1]
    assert alone != four


def test_a_list_is_exactly_its_meters(powercap: Path) -> None:
    assert opened(PowerConfig(meters=("null",), rapl_root=str(powercap))) == {}
    assert list(opened(PowerConfig(meters=("cpu_model",), rapl_root=str(powercap)))) == ["model:cpu", "model:dram"]
    assert list(opened(PowerConfig(meters="rapl", rapl_root=str(powercap)))) == ["rapl:package-0", "rapl:dram-0"]


def test_the_model_beside_a_sensor_books_no_joule_twice(powercap: Path) -> None:
    config = PowerConfig(meters=("cpu_model", "rapl"), rapl_root=str(powercap))
    assert list(opened(config)) == ["rapl:package-0", "rapl:dram-0"]


def test_a_named_meter_that_cannot_be_opened_is_an_error(powercap: Path, tmp_path: Path) -> None:
    with pytest.raises(MeterError, match="libnvidia-ml"):
        open_meters(PowerConfig(meters=("nvml", "cpu_model")))
    with pytest.raises(MeterError, match="no RAPL counter"):
        open_meters(PowerConfig(meters=("rapl",), rapl_root=str(tmp_path / "absent")))


def test_replay_is_opened_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "rec.csv"
    path.write_text("t_s,device_uid,kind,name,power_w\n0,GPU-1,gpu,H100,300\n900,GPU-1,gpu,H100,300\n")
    assert list(opened(PowerConfig(meters=("replay",), replay_csv=str(path)))) == ["GPU-1"]


def test_what_was_opened_is_closed_when_a_later_meter_fails(powercap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    monkeypatch.setattr(RaplMeter, "close", lambda self: closed.append(self))
    with pytest.raises(MeterError, match="libnvidia-ml"):
        open_meters(PowerConfig(meters=("rapl", "nvml"), rapl_root=str(powercap)))
    assert len(closed) == 1


def test_survey_lists_every_sensor_with_reason_and_accuracy(powercap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deny(monkeypatch, "intel-rapl:0")
    config = PowerConfig(rapl_root=str(powercap), replay_csv=str(powercap / "absent.csv"))
    found = {(f.meter, f.uid): f for f in survey(config)}
    assert not found["nvml", ""].usable and "libnvidia-ml" in found["nvml", ""].detail
    package = found["rapl", "rapl:package-0"]
    assert not package.usable and package.provenance is Provenance.MISSING and "chmod" in package.detail
    memory = found["rapl", "rapl:dram-0"]
    assert memory.usable and memory.uncertainty == 0.2 and "RAPL dram" in memory.detail
    assert found["cpu_model", "model:cpu"].usable and found["cpu_model", "model:cpu"].uncertainty
    assert "absent.csv" in found["replay", ""].detail


def test_survey_of_this_machine_never_raises() -> None:
    assert {"nvml", "rapl", "cpu_model"} <= {finding.meter for finding in survey()}


def test_the_survey_says_whether_the_model_is_needed(powercap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def said() -> set[str]:
        config = PowerConfig(rapl_root=str(powercap))
        return {f.detail.rpartition("(")[2] for f in survey(config) if f.meter == "cpu_model"}

    assert said() == {"not needed, RAPL measures CPU and memory)"}
    zone(powercap, "intel-rapl:1", "package-1", 9_000_000_000)
    deny(monkeypatch, "intel-rapl:0:0")
    assert said() == {"used for what has no sensor)"}, "two packages, but no memory"


class Recorded:
    """A meter of one GPU that keeps how it was opened."""

    opened: ClassVar[list[tuple[object, ...]]] = []

    def __init__(self, *args: object, **options: object) -> None:
        options.pop("clock")
        self.opened.append((*args, *options.values()))
        device = Device(uid="GPU-1", kind=DeviceKind.GPU, name="G")
        self.sensors = [Sensor(device=device, provenance=Provenance.MEASURED, method="fake", period_s=0.1)]

    def read(self) -> Sequence[PowerSample]:
        return [PowerSample("GPU-1", 0.0, 1.0)]

    def close(self) -> None:
        pass


def test_meters_are_opened_with_what_the_configuration_says(powercap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "NvmlMeter", Recorded)
    monkeypatch.setattr(prometheus, "PrometheusMeter", Recorded)
    monkeypatch.setattr(Recorded, "opened", [])
    assert list(opened(PowerConfig(rapl_root=str(powercap)))) == ["GPU-1", "rapl:package-0", "rapl:dram-0"]
    open_meters(PowerConfig(meters=("nvml",), gpus=("1",)), environ={"A": "b"})
    open_meters(PowerConfig(meters=("prometheus",), prometheus_url="http://p:9090", prometheus_query="x"))
    assert Recorded.opened == [(os.environ, (), "auto"), ({"A": "b"}, ("1",), "auto"), ("http://p:9090", "x")]


def test_a_survey_closes_what_it_has_opened(powercap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    for meter in (RaplMeter, CpuModelMeter):
        monkeypatch.setattr(meter, "close", lambda self: closed.append(type(self).__name__))
    survey(PowerConfig(rapl_root=str(powercap)))
    assert sorted(closed) == ["CpuModelMeter", "RaplMeter"]
