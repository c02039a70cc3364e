"""The search of a batch size: pure, repeatable, not worse than Zeus on Zeus' own sweeps."""

import math
import random
import statistics

import pytest

from benchmarks import tune_batch
from greentrain.errors import ConfigError
from greentrain.policy.batch_size import HOPELESS, SETTLED, BatchSearch, BatchTrial


def trial(batch: int, cost: float, reached: bool = True) -> BatchTrial:
    return BatchTrial(batch=batch, cost=cost, reached=reached)


def searched(cost: dict[int, float], default: int, spread: float = 0.0, seed: int = 0) -> list[BatchTrial]:
    """Search until it is settled; sizes that cost infinity never reach the target."""
    trials: list[BatchTrial] = []
    search, dice = BatchSearch(cost, default, seed=seed), random.Random(seed)
    while search.loss(trials) > SETTLED:
        batch = search.next(trials)
        spent = cost[batch] * math.exp(dice.gauss(0.0, spread))
        most = search.most(trials)
        trials.append(trial(batch, min(spent, most, 1e9), reached=spent <= min(most, 1e9)))
        assert len(trials) < 100
    return trials


def test_the_cheapest_of_a_valley_is_found_and_the_far_slopes_are_never_paid_for() -> None:
    cost = {8: 900.0, 16: 400.0, 32: 200.0, 64: 110.0, 128: 100.0, 256: 150.0, 512: 300.0, 1024: 700.0}
    trials = searched(cost, default=64)
    assert BatchSearch(cost, 64).best(trials) == 128
    tried = {t.batch for t in trials}
    assert 8 not in tried and 16 not in tried and 512 not in tried and 1024 not in tried
    assert sum(t.cost for t in trials) < sum(cost.values())


def test_a_size_that_fails_ends_its_side_and_its_cost_is_counted() -> None:
    trials = searched({16: math.inf, 32: math.inf, 64: 100.0, 128: 90.0}, default=64)
    assert {t.batch for t in trials} == {32, 64, 128}
    search = BatchSearch([32, 64])
    assert search.means([trial(64, 10.0, reached=False), trial(64, 100.0)]) == {64: 110.0}


def test_a_trial_is_hopeless_at_twice_the_best_and_never_before_one_reached_the_target() -> None:
    search = BatchSearch([32, 64])
    assert search.most([trial(64, 10.0, reached=False)]) == math.inf
    assert search.most([trial(64, 100.0), trial(32, 80.0)]) == HOPELESS * 80.0


def test_the_next_size_depends_on_the_trials_alone() -> None:
    trials = [trial(64, 100.0), trial(32, 101.0), trial(16, 200.0, reached=False), trial(128, 300.0, reached=False)]
    asked = {BatchSearch([16, 32, 64, 128], 64, seed=3).next(trials) for _ in range(20)}
    assert len(asked) == 1 and asked <= {32, 64}
    drawn = [BatchSearch([16, 32, 64, 128], 64, seed=seed).next(trials) for seed in range(50)]
    assert 5 < drawn.count(32) < 45  # two that nobody can tell apart are both trained with


def test_where_the_usual_size_fails_its_neighbours_are_tried_and_at_last_it_is_said() -> None:
    trials: list[BatchTrial] = []
    search = BatchSearch([16, 64, 128], 64)
    for expected in (64, 128, 16):
        assert search.next(trials) == expected
        trials.append(trial(expected, 5.0, reached=False))
    with pytest.raises(ConfigError, match=r"none of the batch sizes \[16, 64, 128\] reached the target"):
        search.next(trials)


@pytest.mark.parametrize(("batches", "default"), [([], None), ([0, 2], None), ([2, 4], 3)])
def test_wrong_sizes_fail_before_training(batches: list[int], default: int | None) -> None:
    with pytest.raises(ConfigError, match="batch"):
        BatchSearch(batches, default)


@pytest.mark.parametrize("seed", range(3))
def test_with_noise_the_choice_costs_little_above_the_cheapest(seed: int) -> None:
    cost = {8: 160.0, 16: 120.0, 32: 104.0, 64: 100.0, 128: 118.0, 256: 190.0}
    best = BatchSearch(cost).best(searched(cost, default=256, spread=0.1, seed=seed))
    assert best is not None and cost[best] <= 1.05 * 100.0


def test_it_costs_no_more_than_zeus_on_a_sweep_that_no_constant_was_chosen_on() -> None:
    sweep = tune_batch.sweep_of("p100", "cifar100", 0.5)
    ours, zeus = (
        statistics.fmean(tune_batch.course(sweep, tool, seed, recurrences=40).all for seed in range(3))
        for tool in (tune_batch.Ours, tune_batch.Zeus)
    )
    assert 1.0 <= ours <= zeus


def test_the_replay_is_the_one_of_zeus_own_simulator() -> None:
    """Where every size has one recorded training, nothing is drawn and both must spend the same."""
    pandas = pytest.importorskip("pandas")
    from zeus._legacy.job import Job
    from zeus._legacy.policy.optimizer import JITPowerLimitOptimizer, PruningGTSBatchSizeOptimizer
    from zeus._legacy.simulate import Simulator

    sweep = tune_batch.sweep_of("v100", "imagenet", 0.5)
    one = {batch: sweep.epochs[batch][:1] for batch in (192, 256, 360)}
    limits = {batch: sweep.limits[batch] for batch in one}
    sweep = tune_batch.Sweep(
        gpu="v100", dataset="imagenet", epochs=one, limits=limits, default=256, most_epochs=100, eta=0.5
    )
    key = {"dataset": "imagenet", "network": "resnet50", "optimizer": "adadelta"}
    train = pandas.DataFrame(
        [{**key, "batch_size": b, "target_metric": 0.65, "target_epoch": e[0]} for b, e in one.items()]
    )
    power = pandas.DataFrame(
        [
            {**key, "batch_size": b, "power_limit": limit, "time_per_epoch": s, "average_power": w}
            for b, found in limits.items()
            for limit, (s, w) in found.items()
        ]
    )
    recurrences = 6  # both rounds of pruning; behind them both draw
    policy = PruningGTSBatchSizeOptimizer(seed=0, verbose=False)
    simulator = Simulator(train, power, policy, JITPowerLimitOptimizer(verbose=False), seed=0, verbose=False)
    history = simulator.simulate_one_job(Job(*key.values(), 0.65, 100, 256), recurrences, 2.0, 0.5)
    theirs = sum(0.5 * entry.energy + 0.5 * 250 * entry.time for entry in history)
    ours = tune_batch.course(sweep, tune_batch.Zeus, 0, recurrences=recurrences).all * recurrences * sweep.optimum
    assert ours == pytest.approx(theirs, rel=1e-9)
