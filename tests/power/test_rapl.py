import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from greentrain.errors import MeterError
from greentrain.power.rapl import MAX_ZONE_W, SETTLE_S, RaplMeter, find_zones
from greentrain.testing.meter_contract import MeterContract
from greentrain.types import DeviceKind, PowerMeter, Provenance
from tests.helpers.hand_clock import HandClock

RANGE_UJ = 262_143_328_850


def zone(root: Path, folder: str, name: str, energy_uj: int, range_uj: int = RANGE_UJ) -> Path:
    path = root / folder
    path.mkdir(parents=True)
    (path / "name").write_text(f"{name}\n")
    (path / "energy_uj").write_text(f"{energy_uj}\n")
    (path / "max_energy_range_uj").write_text(f"{range_uj}\n")
    return path


def two_packages(root: Path) -> Path:
    """A dual-socket Intel server: flat links of the class folder, with psys, core and the mmio window."""
    zone(root, "intel-rapl:0", "package-0", 5_000_000_000)
    zone(root, "intel-rapl:0:0", "core", 1_000_000)
    zone(root, "intel-rapl:0:1", "dram", 700_000_000)
    zone(root, "intel-rapl:1", "package-1", 9_000_000_000)
    zone(root, "intel-rapl:1:0", "dram", 800_000_000)
    zone(root, "intel-rapl:2", "psys", 20_000_000_000)
    zone(root, "intel-rapl-mmio:0", "package-0", 5_000_000_001)
    (root / "intel-rapl").mkdir()
    return root


class TestRaplContract(MeterContract):
    @pytest.fixture
    def meter(self, tmp_path: Path) -> Iterator[PowerMeter]:
        self.root = two_packages(tmp_path)
        meter = RaplMeter(self.root)
        yield meter
        meter.close()

    def advance(self) -> None:
        for file in self.root.glob("*/energy_uj"):
            text = file.read_text()
            if text:
                file.write_text(str((int(text) + 10_000) % RANGE_UJ))

    def vanish(self) -> None:
        for file in self.root.glob("*/energy_uj"):
            file.write_text("")


def test_finds_packages_and_their_memory_only(tmp_path: Path) -> None:
    zones = find_zones(two_packages(tmp_path))
    assert [z.device.uid for z in zones] == ["rapl:package-0", "rapl:dram-0", "rapl:package-1", "rapl:dram-1"]
    assert zones[0].range_j == pytest.approx(RANGE_UJ / 1e6)


def test_finds_nested_zones_dies_and_amd(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0-die-0", 5_000_000_000)
    zone(tmp_path, "intel-rapl:0/intel-rapl:0:0", "dram", 100_000_000)
    zone(tmp_path, "intel-rapl:1", "package-0-die-1", 6_000_000_000)
    zone(tmp_path, "intel-rapl:1/intel-rapl:1:0", "core", 100_000_000)
    uids = [z.device.uid for z in find_zones(tmp_path)]
    assert uids == ["rapl:package-0-die-0", "rapl:dram-0-die-0", "rapl:package-0-die-1"]


def test_ten_packages_sort_by_number(tmp_path: Path) -> None:
    for i in range(11):
        zone(tmp_path, f"intel-rapl:{i}", f"package-{i}", (i + 1) * 1_000_000_000)
    assert [z.device.uid for z in find_zones(tmp_path)] == [f"rapl:package-{i}" for i in range(11)]


def test_a_counter_mirrored_by_each_die_counts_once(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 50_000_000_000)
    zone(tmp_path, "intel-rapl:1", "package-1", 50_000_400_000)
    assert [z.device.uid for z in find_zones(tmp_path)] == ["rapl:package-0"]


def test_wrap_is_added_once(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", 100, range_uj=105) / "energy_uj"
    clock = HandClock()
    meter = RaplMeter(tmp_path, clock=clock)
    clock.now_s += 1e-8
    path.write_text("10")
    (sample,) = meter.read()
    assert sample.energy_j == pytest.approx(15e-6)
    meter.close()


def test_wrap_sequence(tmp_path: Path) -> None:
    """Zeus's sequence: 8 wraps; and 80000 uJ read after 5 of them is 580 mJ from zero."""
    path = zone(tmp_path, "intel-rapl:0", "package-0", 100_000, range_uj=100_000) / "energy_uj"
    clock = HandClock()
    meter = RaplMeter(tmp_path, clock=clock)
    energy_j = 0.0
    for value in (90_000, 80_000, 70_000, 60_000, 50_000, 40_000, 50_000, 20_000, 10_000):
        clock.now_s += 1e-4
        path.write_text(str(value))
        (sample,) = meter.read()
        assert sample.energy_j is not None and sample.energy_j > energy_j
        energy_j = sample.energy_j
    assert 0.1 + energy_j == pytest.approx(8 * 0.1 + 0.01)
    meter.close()


def test_safe_gap_is_stated_and_longer_gaps_are_missing(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000_000) / "energy_uj"
    clock = HandClock()
    meter = RaplMeter(tmp_path, clock=clock)
    safe_s = RANGE_UJ / 1e6 / MAX_ZONE_W
    assert f"every {safe_s:.0f} s" in meter.sensors[0].note
    clock.now_s += safe_s + 1
    path.write_text("6000000000")
    (late,) = meter.read()
    assert late.missing and "wrapped more than once" in late.note
    clock.now_s += 1
    path.write_text("6000100000")
    (after,) = meter.read()
    assert after.energy_j == pytest.approx(0.1)
    meter.close()


def test_reset_is_not_taken_for_a_wrap(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000_000) / "energy_uj"
    clock = HandClock()
    meter = RaplMeter(tmp_path, clock=clock)
    clock.now_s += 1
    path.write_text("7")
    (sample,) = meter.read()
    assert sample.missing and "reset" in sample.note
    clock.now_s += 1
    path.write_text("2000007")
    (sample,) = meter.read()
    assert sample.energy_j == pytest.approx(2.0)
    meter.close()


@pytest.mark.parametrize(("watts", "wrapped"), [(0.9, True), (1.1, False)])
def test_a_fall_is_a_wrap_as_far_as_a_package_can_draw(tmp_path: Path, watts: float, wrapped: bool) -> None:
    """A wrap is believed up to the power that no zone exceeds, over the time since the last reading and a little."""
    used_j, gap_s = 500.0, 500.0 / (watts * MAX_ZONE_W) - SETTLE_S
    path = zone(tmp_path, "intel-rapl:0", "package-0", int(RANGE_UJ - 100e6)) / "energy_uj"
    clock = HandClock()
    meter = RaplMeter(tmp_path, clock=clock)
    clock.now_s += gap_s
    path.write_text(str(int(used_j * 1e6 - 100e6)))
    (sample,) = meter.read()
    assert sample.missing is not wrapped
    if wrapped:
        assert sample.energy_j == pytest.approx(used_j)
    meter.close()


def test_a_counter_that_starts_over_between_two_quick_reads_is_a_reset(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", int(RANGE_UJ - 100e6)) / "energy_uj"
    clock = HandClock()
    meter = RaplMeter(tmp_path, clock=clock)
    clock.now_s += 0.1
    path.write_text(str(300_000_000))  # 400 J of a wrap in a tenth of a second: no package draws 4 kW
    (sample,) = meter.read()
    assert sample.missing and "reset" in sample.note
    meter.close()


def test_a_process_without_standard_input_gets_its_number_for_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    opened: list[str] = []
    closed: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", lambda path, flags: opened.append(path) or 0)  # type: ignore[func-returns-value]
        patch.setattr(os, "pread", lambda fd, size, offset: b"1000000\n")
        patch.setattr(os, "close", closed.append)
        meter = RaplMeter(tmp_path, clock=HandClock())
        assert not meter.read()[0].missing and not meter.read()[0].missing
        meter.close()
    assert (len(opened), closed) == (1, [0])


def test_a_probe_says_what_a_read_costs(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 100)

    class Ticking(HandClock):
        """A clock on which each look costs 10 ms."""

        def monotonic_s(self) -> float:
            self.now_s += 0.01
            return self.now_s

    meter = RaplMeter(tmp_path, clock=Ticking())
    meter.probe()
    # Two looks at the start and end and one a read: six intervals of 10 ms, over five reads.
    assert meter.sensors[0].read_cost_s == pytest.approx(0.012)
    meter.close()


def test_a_file_that_was_closed_is_opened_again(tmp_path: Path) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000) / "energy_uj"
    clock = HandClock()
    meter = RaplMeter(tmp_path, clock=clock)
    path.rename(path.with_name("gone"))
    path.with_name("energy_uj").write_text("nonsense")
    clock.now_s += 1
    assert not meter.read()[0].missing, "the open file is still the old one"
    path.unlink()
    path.with_name("gone").write_text("")
    clock.now_s += 1
    assert meter.read()[0].missing, "an empty file holds no number"
    path.write_text("3000000")
    clock.now_s += 1
    (sample,) = meter.read()
    assert sample.energy_j == pytest.approx(2.0), "the joules of the gap are in the counter"
    meter.close()


def test_packages_that_have_used_nothing_yet_are_no_mirrors(tmp_path: Path) -> None:
    for i in range(2):
        zone(tmp_path, f"intel-rapl:{i}", f"package-{i}", 0)
    assert len(find_zones(tmp_path)) == 2


def test_a_counter_without_a_range_is_refused_as_its_wraps_could_not_be_seen(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 5, range_uj=0)
    with pytest.raises(MeterError, match="max_energy_range_uj says 0; the counter's range must be positive"):
        RaplMeter(tmp_path)


def test_no_counter_is_an_error_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(MeterError, match=r"no RAPL counter under .*cpu_model"):
        RaplMeter(tmp_path)
    with pytest.raises(MeterError, match="no RAPL counter"):
        RaplMeter(tmp_path / "absent")


def deny(monkeypatch: pytest.MonkeyPatch, *folders: str) -> None:
    """As for a user without rights; chmod alone does not stop root, as which containers run tests."""
    read_text = Path.read_text

    def refuse(path: Path, encoding: str | None = None, errors: str | None = None) -> str:
        if path.name == "energy_uj" and path.parent.name in folders:
            raise PermissionError(13, "Permission denied", str(path))
        return read_text(path, encoding, errors)

    monkeypatch.setattr(Path, "read_text", refuse)


def test_unreadable_counter_names_file_and_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_packages(tmp_path)
    deny(monkeypatch, "intel-rapl:1")
    with pytest.raises(MeterError) as error:
        RaplMeter(tmp_path)
    for text in (str(tmp_path / "intel-rapl:1" / "energy_uj"), "CVE-2020-8694", "chmod", "chgrp", "udev"):
        assert text in str(error.value)


def test_unreadable_counter_is_a_missing_sensor_when_not_strict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_packages(tmp_path)
    deny(monkeypatch, "intel-rapl:1")
    meter = RaplMeter(tmp_path, strict=False)
    by_uid = {sensor.device.uid: sensor for sensor in meter.sensors}
    assert by_uid["rapl:package-1"].provenance is Provenance.MISSING
    assert "CVE-2020-8694" in by_uid["rapl:package-1"].note
    assert by_uid["rapl:package-0"].provenance is Provenance.MEASURED
    assert (by_uid["rapl:package-1"].tick_s, by_uid["rapl:package-1"].uncertainty) == (None, None)
    package, memory = by_uid["rapl:package-0"], by_uid["rapl:dram-0"]
    assert package.tick_s and package.uncertainty and memory.uncertainty
    assert package.uncertainty < memory.uncertainty, "as published: a few percent, and 20 %"
    samples = {sample.device_uid: sample for sample in meter.read()}
    assert samples["rapl:package-1"].missing and not samples["rapl:package-0"].missing
    meter.close()


def test_kinds_choose_counters(tmp_path: Path) -> None:
    meter = RaplMeter(two_packages(tmp_path), kinds=[DeviceKind.DRAM])
    assert [sensor.device.uid for sensor in meter.sensors] == ["rapl:dram-0", "rapl:dram-1"]
    meter.close()


def test_device_gone_then_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000_000) / "energy_uj"
    clock = HandClock()
    meter = RaplMeter(tmp_path, clock=clock)

    def gone(fd: int, size: int, offset: int) -> bytes:
        raise OSError(19, "No such device")

    clock.now_s += 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", gone)
        (sample,) = meter.read()
    assert sample.missing and "No such device" in sample.note
    path.write_text("5003000000")
    clock.now_s += 1
    (sample,) = meter.read()
    assert sample.energy_j == pytest.approx(3.0)
    meter.close()


def test_close_frees_the_files(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    meter = RaplMeter(two_packages(tmp_path))
    assert len(os.listdir("/proc/self/fd")) == before + 4
    meter.probe()
    assert all(sensor.read_cost_s is not None and sensor.read_cost_s < 0.01 for sensor in meter.sensors)
    meter.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert {sample.note for sample in meter.read()} == {"the meter is closed"}
    assert len(os.listdir("/proc/self/fd")) == before, "nothing is opened again"


def limits(path: Path, enabled: str = "1", **limit_w: float) -> None:
    """Give a zone limits, as Intel's have them."""
    (path / "enabled").write_text(f"{enabled}\n")
    for number, (name, watts) in enumerate(limit_w.items()):
        (path / f"constraint_{number}_name").write_text(f"{name}\n")
        (path / f"constraint_{number}_power_limit_uw").write_text(f"{watts * 1e6:.0f}\n")


def test_a_package_draws_at_most_its_own_limit_and_where_it_has_none_nobody_says_so(tmp_path: Path) -> None:
    limits(zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000), long_term=205.0, short_term=246.0, peak_power=400.0)
    limits(zone(tmp_path, "intel-rapl:1", "package-1", 9_000_000), enabled="0", long_term=205.0)
    limits(zone(tmp_path, "intel-rapl:2", "package-2", 13_000_000), long_term=125.0, short_term=4095.9)
    limits(zone(tmp_path, "intel-rapl:0:0", "dram", 700_000), long_term=0.0)
    zone(tmp_path, "intel-rapl:3", "package-3", 17_000_000)
    meter = RaplMeter(tmp_path, cpuinfo=tmp_path / "absent", clock=HandClock())
    assert {s.device.uid: s.limit_w for s in meter.sensors} == {
        "rapl:package-0": 246.0,
        "rapl:dram-0": None,
        "rapl:package-1": None,
        "rapl:package-2": None,
        "rapl:package-3": None,
    }
    meter.close()


def test_an_amd_package_draws_at_most_what_its_socket_allows_for_its_tdp(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000)
    zone(tmp_path, "intel-rapl:0:0", "dram", 700_000)
    for model, limit_w in {
        "AMD EPYC 7763 64-Core Processor": 1.35 * 280.0,
        "AMD EPYC 0000 1-Core Processor": None,
    }.items():
        (tmp_path / "cpuinfo").write_text(f"vendor_id\t: AuthenticAMD\nmodel name\t: {model}\n")
        meter = RaplMeter(tmp_path, cpuinfo=tmp_path / "cpuinfo", clock=HandClock())
        assert [s.limit_w for s in meter.sensors] == [limit_w and pytest.approx(limit_w), None]
        meter.close()


def test_a_counter_that_cannot_be_read_has_a_limit_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits(zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000), long_term=205.0)
    deny(monkeypatch, "intel-rapl:0")
    meter = RaplMeter(tmp_path, strict=False, cpuinfo=tmp_path / "absent", clock=HandClock())
    (sensor,) = meter.sensors
    assert (sensor.provenance, sensor.limit_w) == (Provenance.MISSING, 205.0)
    meter.close()
