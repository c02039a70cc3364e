"""The curves hold the booked energy, whatever the number of bins."""

from pathlib import Path

import numpy as np
import pytest

from greentrain.ledger.reader import read_run
from greentrain.report.series import RunSeries, build_series
from greentrain.types import Provenance
from tests.report.run_folders import CPU, GPU, T0_S, Folder, device, entry, four_ranks, showcase


def _series(folder: Path, bins: int = 480) -> RunSeries:
    series = build_series(read_run(folder), bins)
    assert series is not None
    return series


@pytest.mark.parametrize("bins", [7, 480, 1999])
def test_the_area_under_the_curve_is_the_energy(tmp_path: Path, bins: int) -> None:
    folder = showcase(tmp_path, hours=2.0)
    record = read_run(folder)
    series = _series(folder, bins)
    assert sum(float(d.energy_j.sum()) for d in series.devices) == pytest.approx(record.totals.energy_j, rel=1e-6)
    assert series.measured_j[-1] == pytest.approx(record.totals.by_provenance["measured"], rel=1e-6)
    assert series.modelled_j[-1] == pytest.approx(record.totals.by_provenance["modelled"], rel=1e-6)
    assert series.operational_g[-1] == pytest.approx(record.totals.operational_g, rel=1e-6)


def test_ranks_stack(tmp_path: Path) -> None:
    series = _series(four_ranks(tmp_path))
    assert np.allclose(series.total_w, 4 * 300 + 60 + 50)
    assert series.peak_w == pytest.approx(1310)


def test_a_pause_is_not_zero_watts(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.rank(0, [GPU], [entry(T0_S, T0_S + 10, {"GPU-0": device(3000.0)})])
    folder.rank(0, [GPU], [entry(T0_S + 30, T0_S + 40, {"GPU-0": device(3000.0)})])
    series = _series(folder.path, 40)
    assert np.all(np.isnan(series.total_w[11:29]))
    assert np.allclose(series.total_w[:10], 300)


def test_a_gap_of_one_device_leaves_the_others(tmp_path: Path) -> None:
    entries = [
        entry(
            T0_S + 10 * i,
            T0_S + 10 * (i + 1),
            {"GPU-0": device(0.0 if i else 3000.0, missing_s=10.0 * i), "cpu": device(500.0, Provenance.MODELLED)},
        )
        for i in range(2)
    ]
    series = _series(Folder(tmp_path).rank(0, [GPU, CPU], entries).path, 20)
    gpu, cpu = series.devices
    assert np.all(np.isnan(gpu.power_w[11:]))
    assert np.allclose(cpu.power_w, 50)
    assert (gpu.modelled, cpu.modelled) == (False, True)


def test_single_steps_are_drawn_where_they_are_finer(tmp_path: Path) -> None:
    groups = [(1, T0_S + 0.5 * (k + 1), 100.0 if k % 2 else 200.0, 0) for k in range(40)]
    entries = [
        entry(T0_S + 10 * i, T0_S + 10 * (i + 1), {"GPU-0": device(3000.0)}, step_groups=groups[20 * i : 20 * i + 20])
        for i in range(2)
    ]
    series = _series(Folder(tmp_path).rank(0, [GPU], entries).path, 40)
    assert series.fine_w is not None
    known = series.fine_w[np.isfinite(series.fine_w)]
    assert len(known) >= 38
    assert {round(float(v)) for v in known} == {200, 400}


def test_intensity_is_energy_weighted_and_unknown_stays_unknown(tmp_path: Path) -> None:
    entries = [
        entry(T0_S, T0_S + 10, {"GPU-0": device(1000.0)}, g_per_kwh=100),
        entry(T0_S + 10, T0_S + 20, {"GPU-0": device(3000.0)}, g_per_kwh=900),
        entry(T0_S + 20, T0_S + 30, {"GPU-0": device(3000.0)}, g_per_kwh=None),
        entry(T0_S + 30, T0_S + 40, {"GPU-0": device(3000.0)}, g_per_kwh=900),
    ]
    series = _series(Folder(tmp_path).rank(0, [GPU], entries).path, 2)
    assert series.intensity_g_per_kwh == pytest.approx([700, 900])
    series = _series(Folder(tmp_path / "b").rank(0, [GPU], entries).path, 4)
    assert np.isnan(series.intensity_g_per_kwh[2])


def test_no_interval_no_curve(tmp_path: Path) -> None:
    assert build_series(read_run(Folder(tmp_path).rank(0, [GPU], [], t_s=T0_S).path)) is None
