"""``benchmarks/carbon_quality.py``: its device, its tests and its table."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks import carbon_quality as united
from benchmarks.carbon_quality import ARMS, BASE, FIGURES, AssumedDevice, Run


def _run(grams: float, loss: float, *, speed: float = 100.0) -> Run:
    return Run(
        grams=grams, joules=10 * grams, tokens_per_s=speed, paused=0.0, fp8=0.0, in_time=True,
        loss=[6.0, 5.0, 4.5, 4.0, loss], joules_then=[0.0, 10.0, 20.0, 30.0, 10 * grams],
        grams_then=[0.0, 1.0, 2.0, 3.0, grams],
    )  # fmt: skip


def test_the_device_ages_by_its_table_and_by_what_passes() -> None:
    device = AssumedDevice({"bf16": 100.0, "fp8": 200.0})
    t_s = device.monotonic_s()
    assert device.monotonic_s() == t_s, "it stands still while a step is computed"
    device.ran("bf16", 100)
    device.ran("fp8", 100)
    assert device.monotonic_s() - t_s == pytest.approx(1.5)
    (sample,) = device.read()
    assert sample.energy_j == pytest.approx(1.5 * united.DEVICE_W) and sample.t_s == device.monotonic_s()
    with device.passing():
        assert device.monotonic_s() > t_s + 1.5
    later_s = device.monotonic_s()
    assert device.monotonic_s() == later_s > t_s + 1.5
    assert device.read()[0].energy_j == sample.energy_j, "given back, it draws nothing"


def test_what_was_spent_to_a_loss_is_interpolated_and_unknown_where_it_was_never_reached() -> None:
    run = _run(4.0, 3.5)
    assert run.to(4.75, run.joules_then) == pytest.approx(15.0)
    assert run.to(3.75, run.grams_then) == pytest.approx(3.5)
    assert run.to(7.0, run.joules_then) == 0.0
    assert math.isnan(run.to(3.0, run.joules_then))


def test_welch_and_holm_are_those_of_the_books() -> None:
    a, b = [1.0, 2.0, 4.0, 4.5], [2.5, 5.0, 7.0]
    found, expected = united.welch(a, b, 4), stats.ttest_ind(a, b, equal_var=False)
    bounds = expected.confidence_interval(1 - 0.05 / 4)
    assert (found.p, found.low, found.high) == pytest.approx((expected.pvalue, bounds.low, bounds.high))
    one = united.welch(a, [1.0] * 4, 1)
    assert one.p == pytest.approx(stats.ttest_1samp(a, 1.0).pvalue), "against a constant it is that of one sample"
    assert united.welch([2.0, 2.0], [1.0, 1.0], 1).p == 0.0 and united.welch([1.0, 1.0], [1.0, 1.0], 1).p == 1.0
    assert math.isnan(united.welch([math.nan, 1.0], [1.0, 1.0], 1).p)
    assert united.holm([0.04, 0.001, 0.02, math.nan]) == [False, True, False, False]
    assert united.holm([0.012, 0.001, 0.02, 0.04]) == [True, True, True, True]


def test_figures_are_those_of_the_same_seed() -> None:
    runs = {BASE: [_run(4.0, 3.5), _run(8.0, 3.0)], "mpc": [_run(2.0, 3.6), _run(4.0, 3.1)]}
    target, values = united.figures_of(runs)
    assert target == 4.0, "what all runs of static BF16 have at three quarters"
    assert values["mpc"][0] == [0.5, 0.5] and values["mpc"][3] == pytest.approx([0.1, 0.1])
    found = united.compare(values)
    assert len(found) == len(FIGURES)
    assert found["mpc", "grams, share of BF16's"].apart and not found["mpc", "tokens/s"].apart


@pytest.mark.long
def test_quick_trains_every_arm_and_writes_a_picture_and_its_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(united, "ARMS", {name: ARMS[name] for name in (BASE, "mpc")})
    assert united.main(["--quick", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"| {BASE} |" in said and "| mpc |" in said and "Losses are measured" in said
    with (tmp_path / "carbon_quality.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    assert len(rows) == 2 * len(FIGURES)
    by = {(row["arm"], row["figure"]): row for row in rows}
    assert {row["provenance"] for row in rows} == {"measured", "modelled", "assumed"}
    assert float(by[BASE, "J"]["mean"]) == pytest.approx(40 * united.STEP_S * united.DEVICE_W, rel=1e-4)
    assert float(by["mpc", "J"]["mean"]) < 0.8 * float(by[BASE, "J"]["mean"]), "in FP8"
    assert np.isfinite(float(by["mpc", "loss less BF16's (nats)"]["mean"]))
    assert (tmp_path / "carbon_quality.png").read_bytes()[:4] == b"\x89PNG"
