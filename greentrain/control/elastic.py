"""One optimizer step, whatever the number of ranks: the same samples, each exactly once, and so the same learning rate.

A job whose width changes keeps its global batch. Each rank takes an equal share of it, in as many micro-batches as its
memory asks for, and the order of the data depends on nothing but the seed::

    samples   | 7 2 9 4 | 1 8 0 5 | 3 6 ...     epochs one after the other, each shuffled by (seed, epoch)
    step      |    0    |    1    |
    1 rank    | 0 0 0 0 | 0 0 0 0 |             4 micro-batches of 1, or 2 of 2
    2 ranks   | 0 0 1 1 | 0 0 1 1 |             half as many each

So a checkpoint needs one number, the optimizer steps done. The same numbers in another order of summation give the same
losses up to rounding.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from greentrain.errors import ConfigError
from greentrain.types import Topology
from greentrain.utils.topology import current_topology

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one rank does of every optimizer step."""

    global_batch: int
    """Samples of a step over all ranks."""
    ranks: int
    rank: int
    micro_batch: int
    """Samples of one forward and backward."""
    accumulate: int
    """Micro-batches of a step: divide the loss of each by it."""

    @classmethod
    def of(cls, global_batch: int, *, micro_batch: int, topology: Topology | None = None) -> "Share":
        """Return the share of this process.

        Args:
            global_batch: Samples of a step over all ranks.
            micro_batch: Most samples that fit into one forward and backward of a rank.
            topology: Place of this process; None: what the launcher says.

        Raises:
            ConfigError: The ranks cannot share the batch equally.
        """
        place = current_topology() if topology is None else topology
        if global_batch < 1 or micro_batch < 1:
            raise ConfigError(f"global_batch is {global_batch}, micro_batch {micro_batch}; both must be at least 1")
        if global_batch % place.world_size:
            raise ConfigError(
                f"a global batch of {global_batch} cannot be shared equally by {place.world_size} ranks: name it as"
                " actuators.width.global_batch, so that only widths that divide it are used"
            )
        own = global_batch // place.world_size
        accumulate = next(n for n in range(-(-own // micro_batch), own + 1) if own % n == 0)
        return cls(
            global_batch=global_batch,
            ranks=place.world_size,
            rank=place.rank,
            micro_batch=own // accumulate,
            accumulate=accumulate,
        )


class ElasticBatchSampler:
    """Indices of one rank's micro-batches, for ``DataLoader(data, batch_sampler=...)``.

    An iteration yields the rest of an epoch: all micro-batches of the steps whose first sample lies in it. A step at
    the end of an epoch takes its last samples from the next one, so that none is dropped or repeated.

    Args:
        length: Samples of the dataset.
        share: This rank's share of every optimizer step.
        seed: Seed of the order; the same on all ranks and in all attempts.
        shuffle: False: in the order of the dataset, every epoch.

    Raises:
        ConfigError: The dataset is smaller than one step.
    """

    def __init__(self, length: int, share: Share, *, seed: int = 0, shuffle: bool = True) -> None:
        if length < share.global_batch:
            raise ConfigError(f"the dataset has {length} samples, fewer than one global batch of {share.global_batch}")
        self._length, self._share, self._seed, self._shuffle = length, share, seed, shuffle
        self._next_step = 0

    def go_to(self, steps: int) -> None:
        """Continue after so many optimizer steps of the job, whatever the number of ranks that did them."""
        if steps < 0:
            raise ConfigError(f"steps is {steps}; it must be 0 or more: the optimizer steps of the checkpoint")
        self._next_step = steps

    @property
    def epoch(self) -> int:
        """Epoch of the next iteration, from 0 on."""
        return self._next_step * self._share.global_batch // self._length

    def __len__(self) -> int:
        """Return the micro-batches of the next iteration."""
        return (self._end() - self._next_step) * self._share.accumulate

    def __iter__(self) -> Iterator[list[int]]:
        first, end = self._next_step, self._end()
        self._next_step = end
        size, micro = self._share.global_batch, self._share.micro_batch
        own = micro * self._share.accumulate
        epoch = first * size // self._length
        orders = [self._order(epoch), self._order(epoch + 1)]
        for step in range(first, end):
            start = step * size - epoch * self._length + self._share.rank * own
            for at in range(start, start + own, micro):
                yield [int(orders[i // self._length][i % self._length]) for i in range(at, at + micro)]

    def _end(self) -> int:
        """Return the first step that begins in the epoch after that of the next iteration."""
        return -(-(self.epoch + 1) * self._length // self._share.global_batch)

    def _order(self, epoch: int) -> "NDArray[np.int64]":
        import numpy as np

        if not self._shuffle:
            return np.arange(self._length)
        return np.random.default_rng((self._seed, epoch)).permutation(self._length)
