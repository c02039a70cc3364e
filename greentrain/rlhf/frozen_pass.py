"""A frozen model, on the devices that may run it, and how many sequences they take best at a time.

An exact device gives a sequence the same bits in any part. A device that is not exact is as far off between two sizes
as between two batches (docs/fpga.md).
"""

from dataclasses import dataclass

from greentrain.errors import ConfigError
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.device import Handle, OffloadDevice
from greentrain.fpga_backend.program import Program
from greentrain.rlhf.kinds import PassKind, Place


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
    temperature: float = 1.0
    """By which the logits were divided when the model was compiled."""

    def __post_init__(self) -> None:
        if self.sequences is not None and self.sequences < 1:
            raise ConfigError(f"sequences={self.sequences} of the {self.kind} pass: give at least 1, or None for all")

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
    temperature: float = 1.0,
) -> FrozenPass:
    """Load a compiled model where its pass may run.

    Args:
        kind: Kind of the pass.
        artifact: The model.
        device: The offload device.
        home: Device on which the pass is redone if the first fails; without it a failure reaches the training.
        sequences: Number of sequences of a part, as in :class:`FrozenPass`.
        temperature: Temperature with which the artifact was compiled.

    Raises:
        ArtifactError: A device cannot run it.
        DeviceError: A device failed, or has no room.
        ConfigError: ``sequences`` is below 1.
    """
    return FrozenPass(
        kind=kind,
        program=artifact.program,
        device=LoadedPass(device=device, handle=device.load(artifact)),
        home=None if home is None else LoadedPass(device=home, handle=home.load(artifact)),
        sequences=sequences,
        temperature=temperature,
    )
