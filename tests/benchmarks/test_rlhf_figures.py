"""EcoRL-Sched's figures of a step: values by hand from the published split and the assumed watts."""

import math

import pytest

from benchmarks import rlhf_figures
from benchmarks.rlhf_figures import front

GPU_J = 21.0 * 600
"""A step on the GPU alone."""


def test_the_front_holds_what_nothing_beats() -> None:
    assert front([(1.0, 1.0), (2.0, 2.0), (3.0, 1.0), (2.0, 2.0), (2.0, 1.5)]) == [False, True, True, True, False]


def test_no_mode_is_faster_than_the_passes_that_leave() -> None:
    rows = rlhf_figures.pareto().rows
    assert max(row["speedup"] for row in rows) == pytest.approx(1 / (1 - 0.16))
    home = next(row for row in rows if row["mode"] == "gpu")
    assert home["tokens_per_j"] == pytest.approx(131072 / GPU_J) and home["front"] == "no"
    assert home["samples_per_s_gpu"] == pytest.approx(256 / 21)
    shown = [row for row in rows if row["front"] == "yes"]
    assert shown and all(row["mode"] != "off-policy" for row in shown)


def test_grams_follow_grid_and_pue_and_the_share_saved_does_not() -> None:
    rows = rlhf_figures.grid().rows
    home = {row["g_per_kwh"]: row for row in rows if row["mode"] == "gpu"}
    away = {row["g_per_kwh"]: row for row in rows if row["mode"] == "stream-late"}
    assert home[650.0]["g_per_mtoken_pue_1.5"] == pytest.approx(GPU_J / 3.6e6 * 1.5 * 650 / 131072 * 1e6)
    shares = {
        round(1 - away[g][key] / home[g][key], 9) for g in home for key in home[g] if key.startswith("g_per_mtoken")
    }
    assert len(shares) == 1
    saved = rlhf_figures.steps().rows[-1]
    assert saved["saved_kg"] == pytest.approx(saved["gpu_kg"] - saved["with_card_kg"])
    assert {round(saved["saved_kg"] / saved["gpu_kg"], 9)} == shares


def test_costs_and_years_by_hand() -> None:
    home = rlhf_figures.cost().rows[0]
    assert home["gpu_usd"] == pytest.approx(1000 * 21 / 3600 * 2.5) and home["card_usd"] == 0
    assert home["energy_usd"] == pytest.approx(1000 * GPU_J / 3.6e6 * 1.5 * 0.10)
    for row in rlhf_figures.payback().rows:
        assert row["years"] * row["saved_usd_a_year"] == pytest.approx(row["card_usd"])
        assert math.isfinite(row["years"])


def test_weights_in_eight_bits_take_about_half() -> None:
    for row in rlhf_figures.memory().rows:
        assert 0.5 < row["sync_gb"] / row["freed_gb"] < 0.8
        assert row["sync_s_at_12_gb_per_s"] == pytest.approx(row["sync_gb"] / 12)
    llama = rlhf_figures.memory().rows[-1]
    assert llama["freed_gb"] == pytest.approx(15.0, abs=0.1), "7.5 G parameters of two bytes, no head of a vocabulary"


def test_weights_of_energy_alone_are_the_plans_of_least_joules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rlhf_figures, "DRAWS", 4)
    rows = {(row["throughput"], row["energy"], row["bubbles"]): row for row in rlhf_figures.weights().rows}
    assert len(rows) == 21 and all(sum(key) == pytest.approx(1.0) for key in rows)
    energy = rows[0.0, 1.0, 0.0]
    assert energy["joules_lost"] == min(row["joules_lost"] for row in rows.values())
    assert rows[1.0, 0.0, 0.0]["joules_lost"] > energy["joules_lost"]


def test_frameworks_differ_by_the_order_of_passes_alone() -> None:
    rows = {row["framework"]: row for row in rlhf_figures.frameworks().rows}
    assert {name for name, row in rows.items() if row["step_s"] == pytest.approx(21)} == {"DeepSpeed-Chat", "TRL"}
    # the reward leaves the step, 8 %, the last eighth of it but 0.21 s behind the old log-probabilities and the critic
    assert rows["verl (HybridFlow)"]["step_s"] == pytest.approx(21 * 0.92)
    assert rows["LlamaRL"]["speedup"] == pytest.approx(1 / (1 - 0.16)) == max(row["speedup"] for row in rows.values())
    assert rows["GreenTrain, stream-late"]["tokens_per_j"] == max(row["tokens_per_j"] for row in rows.values())
    assert all(row["source"] for name, row in rows.items() if not name.startswith("GreenTrain"))
