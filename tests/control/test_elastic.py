"""The same samples in every step, whatever the width, each exactly once."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greentrain.control.elastic import ElasticBatchSampler, Share
from greentrain.errors import ConfigError
from greentrain.types import Topology


def share(global_batch: int, ranks: int = 1, rank: int = 0, micro_batch: int = 4) -> Share:
    return Share.of(global_batch, micro_batch=micro_batch, topology=Topology(rank=rank, world_size=ranks))


def step_sets(length: int, size: int, widths: list[int], steps_each: int, seed: int = 3) -> list[list[int]]:
    """Return the sorted samples of every step of a job whose width changes every so many steps."""
    found: list[list[int]] = []
    for width in widths:
        per_rank: list[list[list[int]]] = []
        for rank in range(width):
            own = share(size, width, rank)
            sampler = ElasticBatchSampler(length, own, seed=seed)
            sampler.go_to(len(found))
            batches: list[list[int]] = []
            while len(batches) < steps_each * own.accumulate:
                batches += list(sampler)
            n = own.accumulate
            per_rank.append([list(chain(*batches[k * n : (k + 1) * n])) for k in range(steps_each)])
        found += [sorted(chain(*step)) for step in zip(*per_rank, strict=True)]
    return found


@given(
    st.integers(12, 70),
    st.sampled_from([12, 24]),
    st.lists(st.sampled_from([1, 2, 3, 4, 6, 12]), min_size=1, max_size=4),
)
def test_a_resize_changes_no_step(length: int, size: int, widths: list[int]) -> None:
    if length < size:
        length += size
    fixed = step_sets(length, size, [1] * len(widths), 5)
    assert step_sets(length, size, widths, 5) == fixed


@given(st.integers(5, 60), st.integers(1, 5))
def test_every_epoch_holds_every_sample_once(length: int, size: int) -> None:
    sampler = ElasticBatchSampler(length, share(size), seed=1)
    seen: list[int] = []
    while len(seen) < 3 * length:
        seen += chain(*sampler)
    for epoch in range(3):
        assert sorted(seen[epoch * length : (epoch + 1) * length]) == list(range(length))


def test_epochs_are_shuffled_each_in_its_own_order_and_seeds_differ() -> None:
    def order(seed: int, epochs: int = 2, **more: bool) -> list[list[int]]:
        sampler = ElasticBatchSampler(20, share(5), seed=seed, **more)
        return [list(chain(*sampler)) for _ in range(epochs)]

    assert order(1)[0] != order(1)[1] and order(1) == order(1) and order(1) != order(2)
    assert order(1, shuffle=False) == [list(range(20))] * 2


def test_an_iteration_says_how_long_it_is() -> None:
    sampler = ElasticBatchSampler(10, share(4, micro_batch=2))
    lengths, epochs = [], []
    for _ in range(4):
        epochs.append(sampler.epoch)
        promised = len(sampler)
        assert promised == len(list(sampler))
        lengths.append(promised)
    assert lengths == [6, 4, 6, 4] and epochs == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("global_batch", "ranks", "micro_batch", "expected"),
    [
        (64, 1, 8, (8, 8)),
        (64, 2, 8, (8, 4)),
        (64, 8, 8, (8, 1)),
        (64, 4, 64, (16, 1)),
        (12, 2, 4, (3, 2)),
        (6, 1, 4, (3, 2)),
    ],
)
def test_micro_batches_fit_and_fill_the_batch(
    global_batch: int, ranks: int, micro_batch: int, expected: tuple[int, int]
) -> None:
    found = share(global_batch, ranks, 0, micro_batch)
    assert (found.micro_batch, found.accumulate) == expected
    assert found.micro_batch * found.accumulate * ranks == global_batch


def test_what_cannot_be_shared_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"64 cannot be shared equally by 3 ranks.*actuators\.width\.global_batch"):
        share(64, 3)
    with pytest.raises(ConfigError, match="micro_batch 0"):
        share(64, 1, 0, 0)
    with pytest.raises(ConfigError, match="3 samples, fewer than one global batch of 4"):
        ElasticBatchSampler(3, share(4))
    with pytest.raises(ConfigError, match="steps is -1"):
        ElasticBatchSampler(8, share(4)).go_to(-1)
