"""A frozen model, on the devices that may run it, and how many sequences they take best at a time.

The size of a part is found while the device works. It changes when a result is there and what it costs, not what it is:
an exact device gives a sequence the same bits in any part. A device that is not exact is as far off between two sizes
as between two batches (docs/fpga.md).
"""

import statistics
import threading
from dataclasses import dataclass
from typing import ClassVar

from greentrain.errors import ConfigError
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.device import Handle, OffloadDevice
from greentrain.fpga_backend.program import Program
from greentrain.rlhf.kinds import PassKind, Place


class BestPartSize:
    """Decides how a pass's batches are cut: climbs over powers of two to the size of most tokens a second, and stays.

    The same measurements give the same sizes. Called from any thread.
    """

    start: ClassVar[int] = 8
    """First size (sequences)."""
    smallest: ClassVar[int] = 1
    largest: ClassVar[int] = 1024
    samples: ClassVar[int] = 3
    """Parts of a size before it is judged, by their median."""
    margin: ClassVar[float] = 0.05
    """A size must be so much faster to take the place of another: less is noise."""
    again: ClassVar[int] = 512
    """Parts after which the neighbours are tried again: sequences grow while a policy learns."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.best = self._trial = self.start
        """The best size so far (sequences)."""
        self._best_rate = 0.0
        self._rates: list[float] = []
        self._ways: list[int] = [+1, -1]  # which are still to be tried: larger, smaller
        self._since = 0
        self._most = 1

    @property
    def settled(self) -> bool:
        """True while no other size is tried."""
        return self._best_rate > 0 and not self._ways

    def next(self, left: int) -> int:
        """Return how many of the sequences that are left go into the next part: the size on trial, or the best one."""
        with self._lock:
            self._most = max(self._most, left)
            return min(self._trial, left)

    def ran(self, sequences: int, tokens: int, run_s: float) -> None:
        """Take a measurement, if it is of the size on trial: the rest of a batch says nothing."""
        if run_s <= 0:
            return
        with self._lock:
            if self.settled:
                self._since += 1
                if self._since >= self.again:
                    self._since, self._ways, self._rates, self._best_rate = 0, [+1, -1], [], 0.0
                return
            if sequences != min(self._trial, self._most):
                return
            self._rates.append(tokens / run_s)
            if len(self._rates) >= self.samples:
                self._judge(statistics.median(self._rates))

    def failed(self, sequences: int) -> None:
        """A size that the device cannot take is as bad as one on which it is slow; one that is tried out, only."""
        with self._lock:
            if sequences == self._trial != self.best:
                self._judge(0.0)

    def _judge(self, rate: float) -> None:
        if self._trial == self.best:
            self._best_rate = rate
        elif rate > self._best_rate * (1 + self.margin):
            self.best, self._best_rate = self._trial, rate
            self._ways = self._ways[:1]  # it came from the other side
        else:
            self._ways = self._ways[1:]
        self._rates = []
        while self._ways:
            trial = self.best * 2 if self._ways[0] > 0 else self.best // 2
            if self.smallest <= trial <= self.largest and trial <= self._most:
                self._trial = trial
                return
            self._ways = self._ways[1:]
        self._trial = self.best


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPass:
    """A model on a device."""

    device: OffloadDevice
    handle: Handle


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenPass:
    """A pass and where it may run. Made by :func:`place`."""

    kind: PassKind
    program: Program
    """What a batch must fit: ``Batch.check(program)`` before it waits in somebody's queue."""
    device: LoadedPass
    home: LoadedPass | None = None
    """Where the pass is redone if the device fails, and where a scheduler may keep it."""
    sequences: int | None = None
    """Sequences that the device takes best at a time; None: all."""
    part_size: BestPartSize | None = None
    """Finds that number while the device works, in the place of ``sequences``."""
    temperature: float = 1.0
    """By which the logits were divided when the model was compiled."""

    def __post_init__(self) -> None:
        if self.sequences is not None and self.sequences < 1:
            raise ConfigError(f"sequences={self.sequences} of the {self.kind} pass: give at least 1, or None for all")
        if self.sequences is not None and self.part_size is not None:
            raise ConfigError(f"the {self.kind} pass has sequences={self.sequences} and a part_size: give one of them")

    def at(self, place: Place) -> LoadedPass:
        """Return the placement.

        Raises:
            ConfigError: The pass has no home.
        """
        if place is Place.DEVICE:
            return self.device
        if self.home is None:
            raise ConfigError(f"the {self.kind} pass has no home: give place(home=...) a device to keep it on")
        return self.home

    def score_at(self, label: int | None) -> int:
        """Return which of a sequence's scores is meant: the only one, where nobody says.

        Raises:
            ConfigError: The pass has no scores, or not that one, or several and nobody says which.
        """
        labels = self.program.labels
        if not labels:
            raise ConfigError(
                f"the {self.kind} pass returns log-probabilities, not scores: compile a sequence-classification model"
            )
        if label is None and labels > 1:
            raise ConfigError(
                f"the {self.kind} model has {labels} scores a sequence: say which one is the reward by "
                f"label=0 to {labels - 1}"
            )
        if label is not None and not 0 <= label < labels:
            raise ConfigError(f"label={label}: the {self.kind} model has {labels} scores, 0 to {labels - 1}")
        return label or 0


def place(
    kind: PassKind,
    artifact: Artifact,
    device: OffloadDevice,
    *,
    home: OffloadDevice | None = None,
    sequences: int | None = None,
    part_size: BestPartSize | None = None,
    temperature: float = 1.0,
) -> FrozenPass:
    """Load a compiled model where its pass may run.

    Args:
        kind: Kind of the pass.
        artifact: The model.
        device: The offload device.
        home: Device on which the pass is redone if the first fails; without it a failure reaches the training.
        sequences: Number of sequences of a part, as in :class:`FrozenPass`.
        part_size: Decides the size of parts while they run, as in :class:`FrozenPass`.
        temperature: Temperature with which the artifact was compiled.

    Raises:
        ArtifactError: A device cannot run it.
        DeviceError: A device failed, or has no room.
        ConfigError: ``sequences`` is below 1, or both it and ``part_size`` are given.
    """
    return FrozenPass(
        kind=kind,
        program=artifact.program,
        device=LoadedPass(device=device, handle=device.load(artifact)),
        home=None if home is None else LoadedPass(device=home, handle=home.load(artifact)),
        sequences=sequences,
        part_size=part_size,
        temperature=temperature,
    )
