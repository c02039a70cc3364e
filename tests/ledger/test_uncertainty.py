"""Intervals of joules and grams: what adds up linearly, what in quadrature, and what is not known is not narrow."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from greentrain.ledger.reader import read_run
from greentrain.ledger.uncertainty import RunIntervals, intervals
from greentrain.types import Provenance
from tests.report.run_folders import T0_S, Folder, device, entry, sensor

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
    return intervals(read_run(Folder(folder).rank(0, sensors, [booked], events=more.get("events", ())).path).ranks)


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
    also = run(tmp_path / "c", [gpu(), unread], {"GPU-0": 5e5, "GPU-1": 0.0}, missing_s={"GPU-1": HOUR_S}).total[0]
    assert also is not None and also.high is None, "a device that was never read may have used anything"


def test_grams_have_an_interval_where_the_source_of_the_intensity_states_its_error(tmp_path: Path) -> None:
    stated = run(tmp_path / "a", [gpu()], {"GPU-0": 1e6}, entry={"pue": 1.0, "relative_error": 0.2}).total[1]
    grams = 1e6 / 3.6e6 * 400.0
    assert stated is not None and stated.low is not None and stated.high is not None
    assert (stated.low / grams, stated.high / grams) == pytest.approx((1 - 0.333, 1 + 0.333), abs=0.01)
    assert next(iter(stated.parts)) == "carbon intensity"
    silent = run(tmp_path / "b", [gpu()], {"GPU-0": 1e6}, entry={"pue": 1.0})
    assert silent.total[1] is not None and silent.total[1].low is None and silent.total[1].high is None
    assert any("grid's intensity" in note for note in silent.notes)


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
