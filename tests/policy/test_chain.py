"""How intensity goes on, counted."""

import json
from pathlib import Path

import numpy as np
import pytest

from greentrain.errors import ConfigError
from greentrain.policy.chain import LEVELS, SHIPPED, STATES, TRENDS, IntensityChain, state, trailing_mean
from tests.policy.cases import grid
from tools.make_chain import MADE_BY, TRACES, count, make_chain


def test_the_shipped_chain_is_what_its_script_counts_on_the_traces_it_names(traces: Path) -> None:
    shipped, made = IntensityChain.shipped(), make_chain(traces)
    with np.load(SHIPPED, allow_pickle=False) as file:
        told = json.loads(str(file["about"]))
    assert (told["made_by"], tuple(told["traces"])) == (MADE_BY, TRACES)
    moved = np.abs(shipped.counts - made.counts).sum() / 2
    assert moved <= 0.002 * made.counts.sum(), "the forecast has changed: run tools.make_chain again"


def test_the_file_says_where_it_is_from_and_is_small() -> None:
    with np.load(SHIPPED, allow_pickle=False) as file:
        about = json.loads(str(file["about"]))
    assert about["made_by"] == MADE_BY
    assert about["traces"] == list(TRACES)
    assert set(about["sha256"]) == set(TRACES)
    assert "EIA" in about["source"] and "seed" in about
    assert SHIPPED.stat().st_size < 300_000


def test_a_grid_of_another_size_gives_the_same_chain() -> None:
    g_per_kwh = grid(np.random.default_rng(0), 60 * 24)
    one, eighth = (count([g]) for g in (g_per_kwh, g_per_kwh / 8.0))
    assert (one.counts == eighth.counts).all()
    assert one.levels() == pytest.approx(eighth.levels())
    assert one.counts.sum() == 60 * 24 - 21 * 24


def test_probabilities_are_shares_of_what_was_seen_and_the_unseen_goes_on_like_its_level() -> None:
    counts = np.zeros((STATES, STATES), np.int64)
    counts[3, 4], counts[3, 9] = 3, 1
    level_sum = np.zeros(STATES)
    level_sum[3] = 1.2
    chain = IntensityChain(counts=counts, level_sum=level_sum)
    p = chain.probabilities()
    assert p.sum(axis=1) == pytest.approx(np.ones(STATES))
    assert (p[3, 4], p[3, 9]) == (0.75, 0.25)
    assert (p[7] == p[3]).all(), "another trend of the same level"
    assert p[100, [4, 9]] == pytest.approx([0.75, 0.25]), "a level that was never seen"
    assert chain.levels()[3] == pytest.approx(0.3)


def test_every_state_has_a_level_within_its_bin() -> None:
    levels = IntensityChain.shipped().levels().reshape(len(LEVELS) + 1, len(TRENDS) + 1)
    assert (levels[:-1] <= LEVELS[:, None]).all()
    assert (levels[1:] >= LEVELS[:, None]).all()


def test_states_are_told_apart_by_level_and_by_trend() -> None:
    cleaner, dirtier = state(np.array([0.8, 1.1]), np.zeros(2))
    falling, rising = state(np.ones(2), np.array([-0.2, 0.2]))
    assert cleaner != dirtier and falling != rising
    everything = state(np.repeat([0.0, 1.0, 9.0], 3), np.tile([-9.0, 0.0, 9.0], 3))
    assert everything.min() == 0 and everything.max() == STATES - 1 and len(set(everything)) == 9


def test_a_dirty_hour_is_followed_by_dirty_ones() -> None:
    chain = IntensityChain.shipped()
    expected = chain.probabilities() @ chain.levels()
    seen = chain.counts.sum(axis=1) > 50
    assert np.corrcoef(expected[seen], chain.levels()[seen])[0, 1] > 0.95


def test_the_trailing_mean_looks_back_14_days_at_any_spacing() -> None:
    past = np.concatenate([np.full((1, 24 * 30), 900.0), np.full((1, 14 * 24 - 1), 100.0)], axis=1)
    assert trailing_mean(past, np.array([100.0]), 3600.0) == pytest.approx([100.0])
    assert trailing_mean(past, np.array([436.0]), 3600.0) == pytest.approx([101.0])
    assert trailing_mean(np.zeros((1, 0)), np.array([42.0]), 3600.0) == pytest.approx([42.0])
    assert trailing_mean(np.full((1, 9000), 7.0), np.array([7.0]), 300.0) == pytest.approx([7.0])


def test_a_history_without_a_day_to_count_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"504 h is too short .* 528 h are needed"):
        count([np.full(504, 100.0)])
