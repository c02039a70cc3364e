from pathlib import Path

import pytest

from greentrain.errors import ConfigError
from greentrain.estimate import hardware
from greentrain.estimate.values import Range
from greentrain.fpga_backend.roofline.cards import U55C
from greentrain.types import Gear
from greentrain.utils.quantities import SourceKind


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("h100", "H100-SXM"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 SXM5 80 GB HBM3", "H100-SXM"),
        ("H100 PCIe", "H100-PCIe"),
        ("A100-80", "A100-80GB"),
        ("A100-40", "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("nvidia a100 80gb pcie", "A100-PCIe-80GB"),
        ("A800-80", "A800-80GB"),
        ("H800", "H800"),
        ("TPUv4", "TPUv4"),
        ("Google Cloud TPU v5e", "TPUv5e"),
        ("tpu-v3", "TPUv3"),
        ("Tesla V100-SXM2-32GB", "V100-32GB"),
        ("AMD Instinct MI300X", "MI300X"),
        ("B200", "B200"),
    ],
)
def test_a_device_is_found_however_it_is_written(spelling: str, name: str) -> None:
    assert hardware.find(spelling).name == name


def test_an_unknown_device_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"device 'H110' is not in the table.*Did you mean 'H100'"):
        hardware.find("H110")


@pytest.mark.parametrize("spelling", ["", "nvidia", "sxm", "40", "pcie 40", "tpu", "a100 16", "GH200", "H200 NVL"])
def test_what_could_be_several_devices_or_another_one_is_not_guessed(spelling: str) -> None:
    with pytest.raises(ConfigError, match="not in the table"):
        hardware.find(spelling)


def test_no_two_devices_share_a_spelling() -> None:
    table = hardware.catalogue()
    words: dict[frozenset[str], str] = {}
    for spelling, name in (*((n, n) for n in table.devices), *table.spellings.items()):
        assert words.setdefault(hardware._words(spelling), name) == name


def test_every_figure_is_a_plausible_number_of_its_unit() -> None:
    for name, device in hardware.known().items():
        assert device.memory_bytes_s.value / device.memory_bytes.value > 10, name
        assert 100 <= device.tdp_w.value <= 1000, name
        if device.idle_w is not None:
            assert device.idle_w.value < 0.5 * device.tdp_w.value
            assert device.idle_w.kind is SourceKind.MEASURED
        peaks = {gear: peak.value for gear, peak in device.peak_flop_s.items()}
        half = peaks.get(Gear.FP16, peaks.get(Gear.BF16, 0.0))
        assert half > peaks.get(Gear.FP32, 0.0)
        if Gear.FP8 in peaks:
            assert 1.0 <= peaks[Gear.FP8] / half <= 2.01
        if device.family != "fpga":
            assert 50e12 < half < 3e15


def test_peaks_are_dense_and_fp32_is_not_tf32() -> None:
    h100 = hardware.find("h100").peak_flop_s
    assert h100[Gear.BF16].value == 989.4e12
    assert h100[Gear.FP32].value == 67e12
    assert Gear.BF16 not in hardware.find("V100").peak_flop_s


def test_the_embodied_kilograms_are_those_of_the_accounting() -> None:
    h100 = hardware.find("h100")
    assert h100.embodied_kg == Range.exactly(164.0)
    assert h100.server_kg == Range.exactly(712.0)
    assert "ISO 14067" in h100.embodied_source
    assert "assumption" in hardware.find("H800").embodied_source
    v5p = hardware.find("TPUv5p").embodied_kg
    assert v5p is not None and v5p.high == 1101.0
    mi300x = hardware.find("MI300X")
    assert mi300x.embodied_kg is None and mi300x.server_kg is None
    assert "no life-cycle figure" in mi300x.embodied_source


def test_the_card_is_the_one_of_the_offload_roofline() -> None:
    card = hardware.find("U55C")
    assert card.tdp_w.value == U55C.value("tdp_w")
    assert card.memory_bytes.value == pytest.approx(U55C.value("memory_bytes"), rel=1e-3)


OWN = """
H100-SXM: {tdp_w: 500, idle_w: {value: 68, kind: measured, source: our rack}, peak_flop_s: {fp8: 1.5e15}}
Own-1:
  aliases: [mine]
  family: h100
  year: 2026
  peak_flop_s: {bf16: 1.0e+15}
  memory_bytes: 96.0e+9
  memory_bytes_s: 3.0e+12
  link_bytes_s: 4.0e+11
  node: 8
  network_bytes_s: 5.0e+10
  tdp_w: 600
  embodied_kg: [150, 180, 250]
"""


def test_devices_of_a_file_lie_over_the_table(tmp_path: Path) -> None:
    path = tmp_path / "devices.yaml"
    path.write_text(OWN, encoding="utf-8")
    h100 = hardware.find("h100", path)
    assert (h100.tdp_w.value, h100.tdp_w.kind, h100.tdp_w.source) == (500.0, SourceKind.GIVEN, str(path))
    assert h100.idle_w is not None and h100.idle_w.kind is SourceKind.MEASURED
    assert h100.memory_bytes == hardware.find("h100").memory_bytes
    assert h100.peak_flop_s[Gear.BF16] == hardware.find("h100").peak_flop_s[Gear.BF16]
    assert h100.peak_flop_s[Gear.FP8].value == 1.5e15
    mine = hardware.find("mine", path)
    assert mine.embodied_kg == Range(low=150.0, mid=180.0, high=250.0)
    assert mine.idle_w is None
    assert hardware.find("h100").tdp_w.value == 700.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("H100-SXM: {tdp: 500}", "unknown key tdp.*Did you mean 'tdp_w'"),
        ("H100-SXM: {tdp_w: -1}", "tdp_w is -1.0; it must be between"),
        ("H100-SXM: {tdp_w: hot}", "tdp_w is 'hot'; expected a number"),
        ("H100-SXM: {tdp_w: {value: 1, kind: guessed, source: me}}", "kind is 'guessed'; known: datasheet"),
        ("H100-SXM: {peak_flop_s: {bf61: 1.0e+15}}", "unknown key bf61.*Did you mean 'bf16'"),
        ("H100-SXM: {embodied_kg: [3, 2, 1]}", r"H100-SXM.embodied_kg is \[3, 2, 1\]; give low, mid and high"),
        ("H100-SXM: {embodied_kg: [1, 2]}", "give one number, or low, mid and high"),
        ("H100-SXM: {embodied_as: Z1}", "no such device"),
        ("H100-SXM: {node: 1.5}", "node is 1.5; it must be a whole number"),
        ("Own: {family: h100}", "year is missing"),
        ("- H100", "write devices by name"),
        ("{", "is not valid YAML: line 1"),
    ],
)
def test_a_wrong_file_of_devices_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "devices.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        hardware.catalogue(path)


@pytest.mark.parametrize("spelling", ["rtx4090", "RTX 4090", "rtx-4090", "NVIDIA GeForce RTX 4090"])
def test_an_own_device_is_found_however_it_is_written(tmp_path: Path, spelling: str) -> None:
    path = tmp_path / "devices.yaml"
    path.write_text(
        "RTX-4090: {family: ada, year: 2022, aliases: [GeForce RTX 4090], peak_flop_s: {bf16: 165.2e12}, node: 8,"
        " memory_bytes: 24e9, memory_bytes_s: 1008e9, link_bytes_s: 31.5e9, network_bytes_s: 3.1e9, tdp_w: 450}\n",
        encoding="utf-8",
    )
    assert hardware.find(spelling, path).name == "RTX-4090"
