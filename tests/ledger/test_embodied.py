import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greentrain.config.schema import CarbonConfig
from greentrain.ledger.embodied import DEVICES, embodied_rate, embodied_rates, why_unknown
from greentrain.types import Device, DeviceKind

CONFIG = CarbonConfig()


def gpu(name: str, uid: str = "GPU-0") -> Device:
    return Device(uid=uid, kind=DeviceKind.GPU, name=name)


def host(kind: DeviceKind, uid: str) -> Device:
    return Device(uid=uid, kind=kind, name=uid)


@pytest.mark.parametrize(
    ("name", "low", "mid", "high"),
    [
        # low: card / 6 y; mid: (card + 712 kg) / 4 y; high: (card + 712 kg) / (3 y x 85 %); a year is 8766 h
        ("NVIDIA H100 80GB HBM3", 3.118, 24.98, 39.19),
        ("NVIDIA H100 PCIe", 3.118, 24.98, 39.19),
        ("NVIDIA H200", 3.118, 24.98, 41.52),
        ("NVIDIA B200", 5.404, 28.41, 44.57),
        ("NVIDIA B100", 5.400, 28.41, 44.56),
        ("NVIDIA A100-SXM4-40GB", 2.426, 23.94, 39.95),
        ("NVIDIA A100-SXM4-80GB", 2.426, 24.92, 41.48),
        ("NVIDIA A100 80GB PCIe", 2.426, 24.92, 41.48),
        ("Tesla V100-SXM2-32GB", 1.521, 23.02, 36.77),
        ("TPU v4", 9.754, 19.76, 31.00),
        ("TPU v4i", 5.419, 11.01, 17.27),
        # Schneider et al., arXiv 2502.01671: manufacturing / 6 y; embodied / 4 y; the highest embodied / (3 y x 85 %)
        ("TPU v5e", 5.419, 11.46, 17.98),
        ("TPU v5p", 15.13, 28.80, 49.25),
        ("TPU v6e", 9.944, 19.73, 30.96),
        ("xilinx_u55c U55C", 0.856, 1.640, 3.132),
    ],
)
def test_rates_of_known_devices(name: str, low: float, mid: float, high: float) -> None:
    rate = embodied_rate(gpu(name), CONFIG)
    assert rate is not None
    assert (rate.low_g_per_h, rate.mid_g_per_h, rate.high_g_per_h) == pytest.approx((low, mid, high), rel=1e-3)


@pytest.mark.parametrize(
    "name", ["NVIDIA GH200 480GB", "NVIDIA GB200", "NVIDIA H1000", "AMD Instinct MI300X", "NVIDIA L4"]
)
def test_unknown_device_is_missing_with_a_reason(name: str) -> None:
    assert embodied_rate(gpu(name), CONFIG) is None
    why = why_unknown(gpu(name), [gpu(name)])
    assert "carbon.embodied_kg" in why and name in why


def test_every_row_is_ordered_and_says_who_says_so() -> None:
    for row in DEVICES:
        assert 0 < row.low_kg <= row.mid_kg <= row.high_kg, row.pattern
        assert len(row.source) > 20
    assumed = [row.pattern for row in DEVICES if "assumption" in row.source]
    assert assumed == [r"\bH200\b", r"\bB100\b", r"\bA100\b.*\b80GB|\bA100\b.*\b80 GB"]


def test_source_and_record() -> None:
    rate = embodied_rate(gpu("NVIDIA H100 80GB HBM3"), CONFIG)
    assert rate is not None
    assert "ISO 14067" in rate.source and "over 4 years" in rate.source
    assert set(rate.to_dict()) == {"low", "mid", "high", "source"}
    assert rate.to_dict()["mid"] == rate.mid_g_per_h


def test_override_by_part_of_the_name_wins_the_longest() -> None:
    config = CarbonConfig(embodied_kg={"h100": 350.64, "H100 80GB": 701.28})
    rate = embodied_rate(gpu("NVIDIA H100 80GB HBM3"), config)
    assert rate is not None
    assert rate.mid_g_per_h == pytest.approx(20.0)
    assert "carbon.embodied_kg['H100 80GB']" in rate.source
    other = embodied_rate(gpu("NVIDIA H100 PCIe"), config)
    assert other is not None and other.mid_g_per_h == pytest.approx(10.0)


def test_override_makes_an_unknown_device_known() -> None:
    rate = embodied_rate(gpu("AMD Instinct MI300X"), CarbonConfig(embodied_kg={"MI300X": 350.64}))
    assert rate is not None and rate.mid_g_per_h == pytest.approx(10.0)


@given(years=st.floats(0.1, 50))
def test_lifetime_overrides_mid_and_keeps_the_order(years: float) -> None:
    rate = embodied_rate(gpu("NVIDIA H100 80GB HBM3"), CarbonConfig(lifetime_years=years))
    assert rate is not None
    assert rate.mid_g_per_h == pytest.approx(876_000 / (years * 8766))
    assert 0 < rate.low_g_per_h < rate.mid_g_per_h < rate.high_g_per_h


def test_host_is_modelled_from_components() -> None:
    cpu = embodied_rate(host(DeviceKind.CPU, "cpu"), CONFIG)
    dram = embodied_rate(host(DeviceKind.DRAM, "dram"), CONFIG, memory_gb=512, share=0.5)
    assert cpu is not None and dram is not None
    assert cpu.mid_g_per_h == pytest.approx(135_370 / 35_064)
    assert dram.mid_g_per_h == pytest.approx(512 * 400 / 35_064 / 2)
    assert cpu.high_g_per_h == pytest.approx(135_370 * 1.6 / (3 * 8766 * 0.85))
    assert "modelled" in cpu.source and "LLMCarbon" in dram.source


def test_memory_of_this_host_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 16 * 2**18}  # 16 GiB
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    rate = embodied_rate(host(DeviceKind.DRAM, "dram"), CONFIG)
    assert rate is not None and rate.mid_g_per_h == pytest.approx(16 * 400 / 35_064)
    assert "16 GB" in rate.source

    def untold(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(os, "sysconf", untold)
    assert embodied_rate(host(DeviceKind.DRAM, "dram"), CONFIG) is None
    assert "carbon.embodied_kg" in why_unknown(host(DeviceKind.DRAM, "dram"), [])


def test_host_is_not_counted_twice_beside_an_accelerator() -> None:
    node = [gpu("NVIDIA H100 80GB HBM3"), host(DeviceKind.CPU, "package-0"), host(DeviceKind.DRAM, "dram-0")]
    assert set(embodied_rates(node, CONFIG)) == {"GPU-0"}
    assert "server share" in why_unknown(node[1], node)
    named = embodied_rates(node, CarbonConfig(embodied_kg={"package": 10.0}))
    assert set(named) == {"GPU-0", "package-0"}


def test_host_is_counted_beside_an_unknown_accelerator() -> None:
    node = [gpu("NVIDIA L4"), host(DeviceKind.CPU, "package-0")]
    assert set(embodied_rates(node, CONFIG)) == {"package-0"}


def test_two_packages_share_one_server() -> None:
    one = embodied_rates([host(DeviceKind.CPU, "package-0")], CONFIG)
    two = embodied_rates([host(DeviceKind.CPU, "package-0"), host(DeviceKind.CPU, "package-1")], CONFIG)
    assert sum(rate.mid_g_per_h for rate in two.values()) == pytest.approx(one["package-0"].mid_g_per_h)


def test_what_a_user_gives_for_one_of_two_packages_is_of_that_one_alone() -> None:
    node = [host(DeviceKind.CPU, f"package-{i}") for i in range(2)]
    rates = embodied_rates(node, CarbonConfig(embodied_kg={"package-0": 35.064}))
    assert rates["package-0"].mid_g_per_h == pytest.approx(1.0), "all of it, not the half"
    assert rates["package-1"].mid_g_per_h == pytest.approx(135_370 / 35_064 / 2)


def test_two_accelerators_are_two() -> None:
    one = embodied_rate(gpu("NVIDIA H100"), CONFIG)
    both = embodied_rates([gpu("NVIDIA H100", f"GPU-{i}") for i in range(2)], CONFIG)
    assert one is not None and [rate.mid_g_per_h for rate in both.values()] == [one.mid_g_per_h] * 2


def test_a_tpu_carries_no_server_so_its_host_is_counted() -> None:
    node = [gpu("TPU v4"), host(DeviceKind.CPU, "package-0")]
    assert set(embodied_rates(node, CONFIG)) == {"GPU-0", "package-0"}
    assert "carbon.embodied_kg" in why_unknown(node[1], node)


def test_names_are_searched_without_regard_to_case() -> None:
    assert embodied_rate(gpu("nvidia h100"), CONFIG) is not None
