"""Intervals of joules and grams: what adds up linearly, what in quadrature, and what is not known is not narrow."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from greentrain.ledger.reader import read_run
from greentrain.ledger.totals import Totals
from greentrain.ledger.uncertainty import Interval, RunIntervals, _up_to, intervals
from greentrain.types import Provenance, PueSource
from tests.report.run_folders import EMBODIED, PHASES, T0_S, Folder, device, entry, sensor

STEADY = {"other": 1.0}
HOUR_S = 3600.0


def gpu(uid: str = "GPU-0", **more: Any) -> dict[str, Any]:
    return sensor(uid, "gpu", "NVIDIA H100", **{"tick_s": None, "period_s": 0.0, "embodied_g_per_h": None, **more})


def run(folder: Path, sensors: list[dict[str, Any]], joules: Mapping[str, float], **more: Any) -> RunIntervals:
    devices = {}
    for one in sensors:
        missing_s = more.get("missing_s", {}).get(one["uid"], 0.0)
        provenance = Provenance(one["provenance"])
        devices[one["uid"]] = device(joules[one["uid"]], provenance, missing_s, more.get("phases", STEADY))
    booked = entry(T0_S, T0_S + HOUR_S, devices, **more.get("entry", {}))
    told = {"events": more.get("events", ()), "opened": more.get("opened")}
    return intervals(read_run(Folder(folder).rank(0, sensors, [booked], **told).path).ranks)


def width(found: RunIntervals) -> float:
    interval = found.total[0]
    assert interval is not None and interval.low is not None and interval.high is not None
    assert interval.low < interval.high
    return interval.high - interval.low


def test_what_a_data_sheet_allows_is_the_interval_of_a_steady_device(tmp_path: Path) -> None:
    found = run(tmp_path, [gpu()], {"GPU-0": 1e6}).total[0]
    assert found is not None
    assert (found.low, found.mid, found.high) == pytest.approx((955_000.0, 1e6, 1_045_000.0), rel=1e-3)
    assert found.parts == {"calibration of NVIDIA H100": 1.0}


def test_errors_of_two_gpus_partly_cancel_and_those_of_one_model_of_processors_do_not(tmp_path: Path) -> None:
    joules = {"a": 5e5, "b": 5e5}
    gpus = width(run(tmp_path / "gpu", [gpu("a"), gpu("b")], joules))
    cpu: dict[str, Any] = {"uncertainty": 0.05, "provenance": "modelled"}
    cpus = width(run(tmp_path / "cpu", [sensor(uid, "cpu", "EPYC 9654", **cpu) for uid in joules], joules))
    assert cpus == pytest.approx(90_000.0, rel=1e-3)
    assert gpus == pytest.approx(90_000.0 / 2**0.5, rel=0.1)


def test_a_sensor_without_a_data_sheet_has_no_interval_and_says_so(tmp_path: Path) -> None:
    found = run(tmp_path, [gpu(), sensor("card", "fpga", "U55C", uncertainty=None)], {"GPU-0": 1e6, "card": 1e3})
    assert found.total[0] is not None and (found.total[0].low, found.total[0].mid, found.total[0].high) == (None,) * 3
    assert any("U55C" in note and "nobody states" in note for note in found.notes)
    alone = found.devices["node-a", "GPU-0"][0]
    assert alone is not None and alone.low is not None and alone.high is not None


def test_missing_time_reaches_up_to_the_limit_and_has_no_bound_where_there_is_none(tmp_path: Path) -> None:
    missing_s = {"GPU-0": 0.5 * HOUR_S}
    limited = run(tmp_path / "a", [gpu(limit_w=700.0)], {"GPU-0": 5e5}, missing_s=missing_s).total[0]
    assert limited is not None and limited.high == pytest.approx(5e5 + 0.95 * 700.0 * 1800.0, rel=0.03)
    assert limited.low is not None and limited.low < 6e5 and next(iter(limited.parts)) == "missing time"
    found = run(tmp_path / "b", [gpu()], {"GPU-0": 5e5}, missing_s=missing_s)
    assert found.total[0] is not None and found.total[0].high is None and found.total[0].low is not None
    assert any("No upper bound" in note for note in found.notes)
    unread = sensor("GPU-1", "gpu", "H100", provenance="missing", uncertainty=None)
    both = run(tmp_path / "c", [gpu(), unread], {"GPU-0": 5e5, "GPU-1": 0.0}, missing_s={"GPU-1": HOUR_S})
    also = both.total[0]
    assert also is not None and also.high is None, "a device that was never read may have used anything"
    assert also.low is not None and not any("nobody states how far the readings" in note for note in both.notes)
    short = run(tmp_path / "d", [gpu()], {"GPU-0": 5e5}, missing_s={"GPU-0": 0.4}).total[0]
    assert short is not None and short.high is None


def test_a_gap_of_a_processor_reaches_up_to_its_own_limit(tmp_path: Path) -> None:
    for kind, method in (("cpu", "RAPL package"), ("dram", "used memory x W/GB"), ("fpga", "hwmon")):
        one = sensor(kind, kind, "host", method=method, uncertainty=0.0, limit_w=200.0)
        found = run(tmp_path / kind, [one], {kind: 3e5}, missing_s={kind: 0.5 * HOUR_S}).total[0]
        assert found is not None and found.high == pytest.approx(3e5 + 0.95 * 200.0 * 1800.0, rel=0.03)
        assert found.parts["missing time"] > 0.9


def test_grams_have_an_interval_where_the_source_of_the_intensity_states_its_error(tmp_path: Path) -> None:
    stated = run(tmp_path / "a", [gpu()], {"GPU-0": 1e6}, entry={"pue": 1.0, "relative_error": 0.2}).total[1]
    grams = 1e6 / 3.6e6 * 400.0
    assert stated is not None and stated.low is not None and stated.high is not None
    assert (stated.low / grams, stated.high / grams) == pytest.approx((1 - 0.333, 1 + 0.333), abs=0.01)
    assert next(iter(stated.parts)) == "carbon intensity"
    silent = run(tmp_path / "b", [gpu()], {"GPU-0": 1e6}, entry={"pue": 1.0})
    assert silent.total[1] is not None and silent.total[1].low is None and silent.total[1].high is None
    assert any("grid's intensity" in note for note in silent.notes)


def test_the_error_that_a_user_states_of_the_pue_counts_in_place_of_the_usual_one(tmp_path: Path) -> None:
    entry = {"pue": 1.5, "relative_error": 0.0}
    grams = 1e6 * 1.5 / 3.6e6 * 400.0
    exact = gpu(uncertainty=0.0)

    def bounds(name: str, **opened: float) -> tuple[float, float]:
        found = run(tmp_path / name, [exact], {"GPU-0": 1e6}, entry=entry, opened=opened).total[1]
        assert found is not None and found.low is not None and found.high is not None
        return found.low / grams, found.high / grams

    assert bounds("usual") == pytest.approx((1 - 0.09, 1 + 0.09), abs=2e-3), "30 % of the third that is above 1"
    assert bounds("stated", pue_error=0.02) == pytest.approx((1 - 0.0329, 1 + 0.0329), abs=1e-3)
    assert bounds("none", pue_error=0.0) == pytest.approx((1.0, 1.0))
    low, high = bounds("far", pue_error=1.0)
    assert low == pytest.approx(1 / 1.5), "a facility uses no less than its devices"
    assert high == pytest.approx(1 + 1.645, rel=0.02)


def test_a_phase_that_nothing_tells_apart_may_be_nearly_all_or_nothing_of_what_they_have(tmp_path: Path) -> None:
    phases = {"forward": 0.5, "backward": 0.4, "data": 0.1}
    rows = {name: {"how": "regressed", "error": 0.01, "w": 300.0} for name in phases}
    told = {"t": T0_S, "name": "attribution", "device": "GPU-0", "tick_s": 0.1, "sees_s": 0.1, "late_s": 0.0}
    clear = run(tmp_path / "a", [gpu()], {"GPU-0": 1e6}, phases=phases, events=[{**told, "phases": rows}])
    dim = run(tmp_path / "b", [gpu()], {"GPU-0": 1e6}, phases=phases)
    sharp, blurred = clear.phases["data"][0], dim.phases["data"][0]
    assert sharp is not None and sharp.low == pytest.approx(95_000.0, rel=0.01)
    assert blurred is not None and blurred.low is not None and blurred.high is not None
    assert blurred.low < 30_000.0 and blurred.high > 250_000.0
    assert width(clear) == pytest.approx(width(dim), rel=0.01), "the whole does not depend on how it is split"


def test_a_phase_that_alone_is_not_told_has_the_error_of_all_others(tmp_path: Path) -> None:
    phases = {"forward": 0.5, "backward": 0.4, "data": 0.1}
    rows = {name: {"how": "regressed", "error": 0.05, "w": 300.0} for name in ("forward", "backward")}
    told = {"t": T0_S, "name": "attribution", "device": "GPU-0", "tick_s": 0.1, "sees_s": 0.1, "late_s": 0.0}
    for number, row in enumerate(({"error": 1.0}, {"error": 0.3})):
        more = {"phases": {**rows, "data": {"how": "blurred", "w": 300.0, **row}}}
        found = run(
            tmp_path / str(number),
            [gpu(uncertainty=0.0)],
            {"GPU-0": 1e6},
            phases=phases,
            events=[{**told, **more}],
        )
        data = found.phases["data"][0]
        assert data is not None and data.low is not None and data.high is not None
        expected_j = 1.645 * (0.05 * (5e5**2 + 4e5**2) ** 0.5 if number == 0 else 0.3 * 1e5)
        assert (data.high - 1e5) == pytest.approx(expected_j, rel=0.06)
        assert data.low == pytest.approx(max(1e5 - expected_j, 0.0), rel=0.06)


def test_only_what_readings_share_is_not_known_of_a_phase_and_no_device_draws_more_than_its_limit(
    tmp_path: Path,
) -> None:
    phases = {"forward": 0.5, "backward": 0.5}
    cpu = sensor("cpu", "cpu", "EPYC", method="RAPL package", uncertainty=0.0, tick_s=None, period_s=0.0)

    def forward(name: str, share: float | None, limit_w: float | None = None) -> float:
        shared = {"t": T0_S, "name": "shared", "device": "cpu", "phases": dict.fromkeys(phases, share)}
        events = () if share is None else [shared]
        found = run(tmp_path / name, [{**cpu, "limit_w": limit_w}], {"cpu": 3.6e5}, phases=phases, events=events)
        interval = found.phases["forward"][0]
        assert interval is not None and interval.low is not None and interval.high is not None
        assert interval.low <= 1.8e5 <= interval.high
        return interval.high - interval.low

    nothing = forward("nothing", None)
    assert nothing == pytest.approx(0.9 * 3.6e5, rel=0.02), "a share of two exponentials is anything from 0 to 1"
    assert forward("long", 0.1) == pytest.approx(0.1 * nothing, rel=0.02)
    assert forward("limited", None, 100.0 / 0.9) < 0.35 * nothing, "100 W of 111 leave little to be other"
    assert forward("damaged", 7.0) == nothing


@pytest.mark.parametrize("most", [1.1, 1.5, 2.0, 3.0, 8.0, math.inf])
def test_what_is_spread_out_up_to_a_bound_has_the_mean_that_is_known(most: float) -> None:
    drawn = _up_to(most, "x")
    assert drawn.mean() == pytest.approx(1.0, abs=2e-3) and drawn.min() >= 0 and drawn.max() <= most
    assert drawn.std() == pytest.approx({2.0: 2 / 12**0.5, math.inf: 1.0}.get(most, drawn.std()), rel=0.01)


def test_the_same_books_have_the_same_interval(tmp_path: Path) -> None:
    first = run(tmp_path / "a", [gpu(limit_w=700.0)], {"GPU-0": 1e6}, missing_s={"GPU-0": 60.0})
    again = run(tmp_path / "b", [gpu(limit_w=700.0)], {"GPU-0": 1e6}, missing_s={"GPU-0": 60.0})
    assert first == again


@pytest.mark.filterwarnings("error")
def test_books_that_were_damaged_have_no_interval_and_break_no_report(tmp_path: Path) -> None:
    for name in ("uncertainty", "limit_w"):
        broken = run(tmp_path / name, [gpu("GPU-0", **{name: 1e308})], {"GPU-0": 1e6}, missing_s={"GPU-0": 60.0}).total[
            0
        ]
        assert broken is not None and (broken.low, broken.mid, broken.high) == (None, None, None)


# -- each source of error by itself --------------------------------------------------------------------------------


def deviation(found: Interval | None, source: str) -> float:
    """Return the standard deviation of a source (J), by its share beside the 5 % of 1 MJ that the sensor states."""
    assert found is not None
    return math.sqrt(found.parts[source] / found.parts["calibration of NVIDIA H100"]) * 0.05e6 / math.sqrt(3)


MEAN_W = 1e6 / HOUR_S


@pytest.mark.parametrize(("tick_s", "averaging_s"), [(60.0, 20.0), (20.0, 60.0)])
def test_the_ends_of_each_process_are_off_by_half_of_what_its_sensor_sees_at_once(
    tmp_path: Path, tick_s: float, averaging_s: float
) -> None:
    sensors = [gpu(tick_s=tick_s, averaging_s=averaging_s, seen_share=1.0)]
    found = run(tmp_path, sensors, {"GPU-0": 1e6}).total[0]
    assert deviation(found, "ends of the run") == pytest.approx(MEAN_W * 30.0 * math.sqrt(2 / 3), rel=0.1)
    half = [entry(T0_S + t_s, T0_S + t_s + HOUR_S / 2, {"GPU-0": device(j)}) for t_s, j in ((0, 8e5), (1800, 2e5))]
    folder = Folder(tmp_path, "two").rank(0, sensors, half[:1]).rank(0, sensors, half[1:])
    found = intervals(read_run(folder.path).ranks).total[0]
    peak_w = 8e5 / 1800.0
    assert deviation(found, "ends of the run") == pytest.approx(peak_w * 30.0 * math.sqrt(4 / 3), rel=0.1)


@pytest.mark.parametrize(
    ("known", "unseen_s"),
    [
        ({"tick_s": 2.0, "seen_share": 0.25}, 1.5),
        ({"tick_s": 2.0, "period_s": 9.0, "seen_share": 0.25}, 1.5),
        ({"averaging_s": 1.0, "period_s": 9.0}, 0.0),
        ({"period_s": 3.0}, 3.0),
        ({"period_s": 3.0, "seen_share": 1.5}, 3.0),
        ({"tick_s": 2.0, "seen_share": 1.5}, 0.0),
    ],
)
def test_between_readings_power_may_vary_up_to_the_limit(
    tmp_path: Path, known: dict[str, Any], unseen_s: float
) -> None:
    found = run(tmp_path, [gpu(limit_w=700.0, **known)], {"GPU-0": 1e6}).total[0]
    assert found is not None
    if unseen_s == 0.0:
        assert "between readings" not in found.parts
        return
    spread_w = math.sqrt(MEAN_W * (700.0 - MEAN_W))
    assert deviation(found, "between readings") == pytest.approx(spread_w * math.sqrt(unseen_s * HOUR_S), rel=0.02)


def test_where_phases_are_told_it_varies_as_they_do(tmp_path: Path) -> None:
    watts = dict(zip(PHASES, (300.0, 500.0, 200.0, 100.0, 150.0), strict=True))
    rows = {name: {"how": "regressed", "error": 0.01, "w": w} for name, w in watts.items()}
    told = {
        "t": T0_S,
        "name": "attribution",
        "device": "GPU-0",
        "tick_s": 2.0,
        "sees_s": 0.5,
        "late_s": 0.0,
        "phases": rows,
    }
    found = run(tmp_path, [gpu(tick_s=2.0, seen_share=1.0)], {"GPU-0": 1e6}, phases=PHASES, events=[told]).total[0]
    mean_w = sum(PHASES[name] * w for name, w in watts.items())
    spread_w = math.sqrt(sum(PHASES[name] * (w - mean_w) ** 2 for name, w in watts.items()))
    assert deviation(found, "between readings") == pytest.approx(spread_w * math.sqrt(1.5 * HOUR_S), rel=0.02)


def test_a_model_has_no_error_but_its_own(tmp_path: Path) -> None:
    cpu = sensor("cpu", "cpu", "EPYC 9654", "modelled", tick_s=60.0, limit_w=400.0)
    found = run(tmp_path, [cpu], {"cpu": 1e6}).total[0]
    assert found is not None and found.parts == {"model of EPYC 9654": 1.0}
    assert found.low == pytest.approx(1e6 * (1 - 0.9 * 0.4), rel=1e-3)


def priced(folder: Path, **of_entry: Any) -> RunIntervals:
    """Return the intervals of 1 MJ at 400 g/kWh, without an error of joules or of the grid."""
    booked = entry(T0_S, T0_S + HOUR_S, {"GPU-0": device(1e6)}, relative_error=0.0)
    sensors = [gpu(uncertainty=0.0, embodied_g_per_h=EMBODIED)]
    return intervals(read_run(Folder(folder).rank(0, sensors, [replace(booked, **of_entry)]).path).ranks)


@pytest.mark.parametrize(
    ("source", "relative"),
    [
        (PueSource.CONSTANT, 0.3 * 0.2 / 1.2),
        (PueSource.TRACE, 0.02),
        (PueSource.PROMETHEUS, 0.02),
    ],
)
def test_the_part_of_a_configured_pue_above_one_is_less_sure_than_two_meters(
    tmp_path: Path, source: PueSource, relative: float
) -> None:
    found = priced(tmp_path, pue_source=source)
    grams = found.total[1]
    assert not found.notes, "all is stated"
    assert grams is not None and grams.parts == {"PUE": 1.0}
    assert grams.low is not None and grams.mid is not None and grams.high is not None
    assert grams.low / grams.mid == pytest.approx(1 - 0.9 * relative, abs=1e-3)
    assert grams.high / grams.mid == pytest.approx(1 + 0.9 * relative, abs=1e-3)


def test_embodied_grams_lie_between_low_and_high_of_the_devices(tmp_path: Path) -> None:
    booked = {"pue": 1.0, "embodied_g": 25.0}
    found = priced(tmp_path / "a", **booked).emissions_g
    grid_g = 1e6 / 3.6e6 * 1.2 * 400.0
    assert found is not None and found.parts == {"embodied": 1.0}
    expected = (grid_g + 25.0 - 0.9 * 22.0, grid_g + 25.0, grid_g + 25.0 + 0.9 * 15.0)
    assert (found.low, found.mid, found.high) == pytest.approx(expected, rel=1e-3)
    unknown = run(tmp_path / "b", [gpu(uncertainty=0.0)], {"GPU-0": 1e6}, entry={**booked, "relative_error": 0.0})
    assert unknown.emissions_g is not None and (unknown.emissions_g.low, unknown.emissions_g.high) == (None, None)
    assert unknown.total[1] is not None and unknown.total[1].low is not None


def test_grams_of_an_hour_without_an_intensity_have_no_upper_bound(tmp_path: Path) -> None:
    dark = entry(T0_S, T0_S + 1800, {"GPU-0": device(5e5)}, g_per_kwh=None)
    lit = entry(T0_S + 1800, T0_S + HOUR_S, {"GPU-0": device(5e5)}, relative_error=0.1)
    found = intervals(read_run(Folder(tmp_path).rank(0, [gpu()], [dark, lit]).path).ranks)
    assert found.total[1] is not None and found.total[1].low is not None
    assert found.total[1].high is None and found.total[1].mid is None
    assert found.total[0] is not None and found.total[0].high is not None


def test_what_an_earlier_part_used_whose_journals_are_gone_is_as_uncertain(tmp_path: Path) -> None:
    booked = [entry(T0_S, T0_S + HOUR_S, {"GPU-0": device(1e6, phases=STEADY)}, relative_error=0.0, pue=1.0)]
    carried = Totals(energy_j=2e6, operational_g=300.0, embodied_g=7.0)
    found = intervals(read_run(Folder(tmp_path, "a").rank(0, [gpu()], booked, carried=carried).path).ranks)
    assert found.total[0] is not None and found.total[1] is not None
    expected = (3e6 * 0.955, 3e6, 3e6 * 1.045)
    assert (found.total[0].low, found.total[0].mid, found.total[0].high) == pytest.approx(expected, rel=1e-3)
    assert found.total[1].mid == pytest.approx(1e6 / 3.6e6 * 400.0 + 300.0, rel=1e-3)
    own, own_g = found.devices["node-a", "GPU-0"]
    assert own is not None and own_g is not None
    assert own.mid == pytest.approx(1e6, rel=1e-3) and own_g.mid == pytest.approx(1e6 / 3.6e6 * 400.0, rel=1e-3)
    lost = Totals(energy_j=2e6, missing_s={"GPU-0": 5.0})
    found = intervals(read_run(Folder(tmp_path, "b").rank(0, [gpu()], booked, carried=lost).path).ranks)
    assert found.total[0] is not None and found.total[0].high is None and found.total[0].low is not None
    assert any("earlier part" in note for note in found.notes)


def test_missing_time_is_of_the_phases_by_their_time(tmp_path: Path) -> None:
    sensors, missing_s = [gpu(limit_w=700.0, uncertainty=0.0)], {"GPU-0": 900.0}
    shares = {"forward": 0.9, "backward": 0.1}
    rows = {name: {"how": "regressed", "error": 0.02, "w": 300.0} for name in shares}
    told = {
        "t": T0_S,
        "name": "attribution",
        "device": "GPU-0",
        "tick_s": 0.1,
        "sees_s": 0.1,
        "late_s": 0.0,
        "phases": rows,
    }
    booked = {"relative_error": 0.0, "pue": 1.0}
    more: dict[str, Any] = {"phases": shares, "missing_s": missing_s, "events": [told], "entry": booked}
    found = run(tmp_path, sensors, {"GPU-0": 1e6}, **more)
    for name, joules in (("forward", 9e5), ("backward", 1e5)):
        energy, grams = found.phases[name]
        assert energy is not None and energy.mid is not None and grams is not None
        missing_j = 900.0 * 700.0 * PHASES[name]
        assert energy.mid == pytest.approx(joules + missing_j / 2, rel=0.01)
        ratio = energy.parts["phases"] / energy.parts["missing time"]
        assert ratio == pytest.approx((0.02 * joules) ** 2 / (missing_j**2 / 12), rel=0.05)
        assert grams.mid == pytest.approx(energy.mid / 3.6e6 * 400.0, rel=0.01)


def test_nothing_booked_has_no_interval(tmp_path: Path) -> None:
    found = run(tmp_path, [gpu()], {"GPU-0": 0.0})
    assert found.total == (None, None) and found.emissions_g is None and not found.devices
    whole = intervals(read_run(tmp_path / "demo").ranks, parts=False)
    assert whole.total == (None, None)


def test_devices_and_phases_may_be_left_out(tmp_path: Path) -> None:
    run(tmp_path, [gpu()], {"GPU-0": 1e6}, phases=PHASES)
    ranks = read_run(tmp_path / "demo").ranks
    whole, split = intervals(ranks, parts=False), intervals(ranks)
    assert whole.total == split.total and not whole.devices and not whole.phases
    assert set(split.phases) == set(PHASES) and set(split.devices) == {("node-a", "GPU-0")}


def test_of_two_equal_phases_that_nothing_tells_apart_each_may_be_anything(tmp_path: Path) -> None:
    found = run(tmp_path, [gpu(uncertainty=0.0)], {"GPU-0": 1e6}, phases={"forward": 0.5, "backward": 0.5})
    for name in ("forward", "backward"):
        part = found.phases[name][0]
        assert part is not None, "a share of two exponential parts is even between 0 and 1"
        assert (part.low, part.mid, part.high) == pytest.approx((5e4, 5e5, 9.5e5), rel=0.1)


def test_less_than_a_joule_in_less_than_a_second_has_intervals_too(tmp_path: Path) -> None:
    rows = {name: {"how": "regressed", "error": 0.01, "w": w} for name, w in (("forward", 2.0), ("backward", 0.5))}
    told = {"t": T0_S, "name": "attribution", "device": "GPU-0", "tick_s": 0.1, "sees_s": 0.05, "late_s": 0.0}
    split = {"forward": 0.5, "backward": 0.2, "data": 0.2, "other": 0.1}
    booked = entry(T0_S, T0_S + 0.5, {"GPU-0": device(0.4, phases=split)}, relative_error=0.1)
    folder = Folder(tmp_path).rank(0, [gpu(tick_s=0.1)], [booked], events=[{**told, "phases": rows}])
    found = intervals(read_run(folder.path).ranks)
    sides = ("calibration of NVIDIA H100", "ends of the run", "between readings")
    assert found.total[0] is not None and set(found.total[0].parts) == set(sides)
    shown = [found.total[1], *found.devices["node-a", "GPU-0"], *found.phases["data"], *found.phases["forward"]]
    assert all(one is not None and one.low is not None and one.high is not None for one in shown)
    assert shown[0] is not None and set(shown[0].parts) == {*sides, "PUE", "carbon intensity"}
    assert found.phases["data"][0] is not None and set(found.phases["data"][0].parts) == {"phases", *sides}
    spread_w = 0.75 * math.sqrt(1080 * 1620) / 2700  # phases of 2 W and 0.5 W that last as forward and backward do
    expected = spread_w * math.sqrt(0.05 * 0.5) / (0.05 * 0.4 / math.sqrt(3))
    ratio = math.sqrt(found.total[0].parts["between readings"] / found.total[0].parts[sides[0]])
    assert ratio == pytest.approx(2 * expected, rel=0.05)


def test_a_sensor_that_may_be_far_off_bounds_energy_at_none(tmp_path: Path) -> None:
    found = run(tmp_path / "a", [gpu(uncertainty=1.5)], {"GPU-0": 1e6}).total[0]
    assert found is not None and found.low == 0.0
    dark = entry(T0_S, T0_S + 1800, {"GPU-0": device(0.5)}, g_per_kwh=None)
    lit = entry(T0_S + 1800, T0_S + HOUR_S, {"GPU-0": device(5e5)}, relative_error=0.1)
    little = intervals(read_run(Folder(tmp_path).rank(0, [gpu()], [dark, lit]).path).ranks).total[1]
    assert little is not None and little.high is None, "half a joule without a price is also one"
    unstated = run(tmp_path / "b", [gpu()], {"GPU-0": 100.0})
    assert unstated.total[1] is not None and unstated.total[1].low is None is unstated.total[1].high
    assert any("grid's intensity" in note for note in unstated.notes)


def test_joules_without_a_price_have_no_grams_and_a_device_that_was_never_read_breaks_nothing(tmp_path: Path) -> None:
    dark = run(tmp_path / "a", [gpu()], {"GPU-0": 1e6}, entry={"g_per_kwh": None})
    assert dark.total[0] is not None and dark.total[1] is None and dark.emissions_g is None
    odd = run(tmp_path / "b", [gpu(tick_s=0.1)], {"GPU-0": 1e3}, missing_s={"GPU-0": HOUR_S})
    assert odd.total[0] is not None and odd.total[0].low is not None and odd.total[0].high is None
