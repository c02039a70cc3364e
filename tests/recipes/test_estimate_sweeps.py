"""The recipe that draws the estimator's sweeps: what its tables say holds together."""

import csv
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from greentrain.types import Gear
from recipes.estimate import curves, sheet, sweeps

pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra 'simulate')")
ROOT = Path(__file__).resolve().parents[2]
FIGURES = ("device_generations", "technology_scaling", "few_bits", "grid_intensity")
GENERATIONS = {"V100-16GB", "A100-80GB", "H100-SXM", "B200", "TPUv4", "TPUv5p"}
RANGES = (
    *("g_per_kwh", "pue", "mfu", "node_w", "device_hours", "operational_g", "embodied_g", "total_g"),
    *("embodied_share", "crossing_g_per_kwh"),
)
Row = dict[str, str]
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the recipe writes, run as a stranger would run it."""
    folder = tmp_path_factory.mktemp("sweeps")
    command = [sys.executable, "recipes/estimate/sweeps.py", "--small", "--out", str(folder), "--zone", "FRA"]
    environ = os.environ | {"PYTHONWARNINGS": "error", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--pue", "1.2"], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(done.stdout.split()) == sorted(str(path) for path in folder.iterdir())
    return folder


def rows(out: Path, figure: str) -> list[Row]:
    lines = (out / f"{figure}.csv").read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def said(out: Path, figure: str) -> str:
    lines = (out / f"{figure}.csv").read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if line.startswith("#"))


def by_curve(found: list[Row]) -> dict[tuple[str, str], list[Row]]:
    curves: dict[tuple[str, str], list[Row]] = {}
    for row in found:
        curves.setdefault((row["law"], row["curve"]), []).append(row)
    return curves


def test_four_figures_say_that_they_are_modelled(out: Path) -> None:
    assert {path.name for path in out.iterdir()} == {f"{f}.{end}" for f in FIGURES for end in ("svg", "png", "csv")}
    for figure in FIGURES:
        assert (out / f"{figure}.png").read_bytes().startswith(b"\x89PNG")
        drawn = (out / f"{figure}.svg").read_text(encoding="utf-8")
        assert "<svg" in drawn and "modelled" in drawn
        assert {row["provenance"] for row in rows(out, figure)} == {"modelled"}


def test_bands_hold_their_middle_and_add_up(out: Path) -> None:
    for row in itertools.chain.from_iterable(rows(out, figure) for figure in FIGURES):
        for name in RANGES:
            low, mid, high = (float(row[f"{name}_{end}"]) for end in ("low", "mid", "high"))
            assert 0 <= low <= mid <= high, (name, row)
        for end in ("low", "mid", "high"):
            parts = float(row[f"operational_g_{end}"]) + float(row[f"embodied_g_{end}"])
            assert float(row[f"total_g_{end}"]) == pytest.approx(parts, rel=1e-4)
        assert row["pue_mid"] == "1.2"


def test_more_compute_takes_more_and_never_raises_the_loss(out: Path) -> None:
    for figure in ("device_generations", "technology_scaling"):
        for curve in by_curve(rows(out, figure)).values():
            for less, more in itertools.pairwise(curve):
                assert float(less["flop"]) < float(more["flop"])
                assert float(less["loss_nats_per_token"]) > float(more["loss_nats_per_token"])
                for name in ("operational_g_mid", "embodied_g_mid", "device_hours_mid"):
                    assert float(less[name]) < float(more[name])


def test_every_generation_stands_in_both_laws_and_what_is_extrapolated_says_so(out: Path) -> None:
    curves = by_curve(rows(out, "device_generations"))
    assert {law for law, _ in curves} == {"dense", "fine-grained mixture of experts"}
    for law in {law for law, _ in curves}:
        assert {name for of, name in curves if of == law} == GENERATIONS
    for curve in curves.values():
        for row in curve:
            inside = 129e6 <= float(row["total_parameters"]) <= 3.7e9 and 16e9 <= float(row["tokens"]) <= 130e9
            assert bool(row["extrapolated"]) is not inside
    dense = curves["dense", "H100-SXM"]
    assert not dense[0]["extrapolated"] and dense[-1]["extrapolated"]


def test_later_devices_take_less_carbon_and_what_is_assumed_of_them_is_written(out: Path) -> None:
    curves = by_curve(rows(out, "technology_scaling"))
    today, five, ten = (
        curves["dense", f"B200{later}"] for later in ("", " +5 years (assumed)", " +10 years (assumed)")
    )
    for now, soon, then in zip(today, five, ten, strict=True):
        assert now["loss_nats_per_token"] == soon["loss_nats_per_token"] == then["loss_nats_per_token"]
        for name in ("operational_g_mid", "embodied_g_mid"):
            assert float(now[name]) > float(soon[name]) > float(then[name])
    text = said(out, "technology_scaling")
    for growth in ("growth of peak", "growth of power", "growth of embodied"):
        assert f"{growth} [assumed]" in text
    assert "B200 +5 years (assumed): growth of peak" in text


def test_the_published_growth_rates_can_be_chosen(tmp_path: Path) -> None:
    """Factors of ten years by hand: table 2's rates, and carbon per area that grows or stays."""
    where = curves.place("world", None)
    found = {name: curves.projections([1e24], where, rates) for name, rates in curves.RATES.items()}
    today, _, ten = (curve.samples[0].found for curve in found["carbonscaling"][:3])
    flat = found["carbonscaling-flat"][2].samples[0].found
    assert ten.device.peak_flop_s[Gear.BF16].value / today.device.peak_flop_s[Gear.BF16].value == pytest.approx(1.3**10)
    assert ten.device.tdp_w.value / today.device.tdp_w.value == pytest.approx(1.03**10)
    grown, same, now = (of.device.embodied_kg.mid for of in (ten, flat, today) if of.device.embodied_kg)
    assert [grown / now, same / now] == pytest.approx([1.155**10, 1.05**10])
    assert found["epoch"][2].samples[0].found.total_g != ten.total_g
    sheet.write(tmp_path / "technology_scaling.csv", found["carbonscaling"])
    assert "+30.0% a year over 10 years (CarbonScaling (arXiv 2508.06524), table 2" in said(
        tmp_path, "technology_scaling"
    )


def test_few_bits_trade_speed_for_loss(out: Path) -> None:
    curves = by_curve(rows(out, "few_bits"))
    counted = curves["dense", "FP8, parameters count for 0.927"]
    for bf16, fp8, free in zip(curves["dense", "BF16"], counted, curves["dense", "FP8, no loss at all"], strict=True):
        assert float(fp8["loss_nats_per_token"]) > float(free["loss_nats_per_token"])
        assert free["loss_nats_per_token"] == bf16["loss_nats_per_token"]
        assert float(bf16["device_hours_mid"]) / float(free["device_hours_mid"]) == pytest.approx(1.35, rel=1e-4)
    equal = curves["dense", "FP8 for the loss of BF16"]
    assert len({row["loss_nats_per_token"] for row in equal}) == 1
    for worse, better in itertools.pairwise(equal):
        assert float(worse["effective_share"]) < float(better["effective_share"])
        assert float(worse["grams_over_bf16_mid"]) > float(better["grams_over_bf16_mid"])
    assert equal[-1]["effective_share"] == "1"
    assert float(equal[-1]["grams_over_bf16_mid"]) == pytest.approx(1 / 1.35, rel=1e-4)
    text = said(out, "few_bits")
    assert "arXiv 2411.04330" in text and "share for which parameters count in FP8 [assumed]: 0.9273" in text


def test_a_cleaner_grid_never_raises_grams_and_leaves_the_embodied(out: Path) -> None:
    curves = by_curve(rows(out, "grid_intensity"))
    swept = {name: curve for (_, name), curve in curves.items() if not name.startswith("zone ")}
    assert len(swept) == 4
    for curve in swept.values():
        assert float(curve[0]["g_per_kwh_mid"]) == 0 and float(curve[-1]["g_per_kwh_mid"]) == 1000
        assert float(curve[0]["operational_g_high"]) == 0 and float(curve[0]["embodied_share_low"]) == 1
        for cleaner, dirtier in itertools.pairwise(curve):
            assert cleaner["embodied_g_mid"] == dirtier["embodied_g_mid"]
            for end in ("low", "mid", "high"):
                assert float(cleaner[f"total_g_{end}"]) < float(dirtier[f"total_g_{end}"])
                assert float(cleaner[f"embodied_share_{end}"]) >= float(dirtier[f"embodied_share_{end}"])
        crossing = float(curve[0]["crossing_g_per_kwh_mid"])
        for row in curve:
            grid, share = float(row["g_per_kwh_mid"]), float(row["embodied_share_mid"])
            assert share == pytest.approx(crossing / (crossing + grid), rel=1e-4)
    zones = {name.removeprefix("zone "): curve for (_, name), curve in curves.items() if name.startswith("zone ")}
    assert list(zones) == ["CA-QC", "FRA", "DEU", "world", "IND"]
    assert {row["device"] for row in zones["IND"]} == set(swept)
    assert all(float(row["embodied_share_mid"]) > 0.5 for row in zones["CA-QC"])
    assert all(float(row["embodied_share_mid"]) < 0.5 for row in zones["world"])


def test_ones_own_share_is_taken(tmp_path: Path) -> None:
    found, equal, taken = curves.few_bits(3, 0.8, curves.place("US-CAL-CISO", None))
    assert taken == 0.8
    sheet.write(tmp_path / "few_bits.csv", [*found, equal])
    text = said(tmp_path, "few_bits")
    assert "share for which parameters count in FP8 [given]: 0.8 (--effective-share)" in text
    assert "2411.04330" not in text
    assert {row["pue_mid"] for row in rows(tmp_path, "few_bits")} == {"1.1"}
    assert 0.8 in {float(row["effective_share"]) for row in rows(tmp_path, "few_bits")}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--effective-share", "1.2"), "between 0.5 and 1"),
        (("--zone", "XXQ"), "XXQ"),
        (("--pue", "0.5"), "pue is 0.5"),
    ],
)
def test_wrong_input_ends_at_once(
    options: tuple[str, str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweeps.main(["--small", "--out", str(tmp_path / "never"), *options]) == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "never").exists()
