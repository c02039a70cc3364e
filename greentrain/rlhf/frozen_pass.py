"""A frozen model, on the devices that may run it."""

from dataclasses import dataclass

from greentrain.errors import ConfigError
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.device import Handle, OffloadDevice
from greentrain.fpga_backend.program import Program
from greentrain.rlhf.kinds import PassKind, Place
from greentrain.rlhf.part_size import PartSize


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A model on a device."""

    device: OffloadDevice
    handle: Handle


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenPass:
    """A pass and where it may run. Made by :func:`place`."""

    kind: PassKind
    program: Program
    """What a batch must fit: ``Batch.check(program)`` before it waits in somebody's queue."""
    device: Placement
    home: Placement | None = None
    """Where the pass is redone if the device fails, and where a scheduler may keep it."""
    sequences: int | None = None
    """Sequences that the device takes best at a time; None: all."""
    part_size: PartSize | None = None
    """Finds that number while the device works, in the place of ``sequences``."""
    temperature: float = 1.0
    """By which the logits were divided when the model was compiled."""

    def __post_init__(self) -> None:
        if self.sequences is not None and self.sequences < 1:
            raise ConfigError(f"sequences={self.sequences} of the {self.kind} pass: give at least 1, or None for all")
        if self.sequences is not None and self.part_size is not None:
            raise ConfigError(f"the {self.kind} pass has sequences={self.sequences} and a part_size: give one of them")

    def at(self, place: Place) -> Placement:
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
    part_size: PartSize | None = None,
    temperature: float = 1.0,
) -> FrozenPass:
    """Load a compiled model where its pass may run.

    Args:
        kind: Of the pass.
        artifact: The model.
        device: The offload device.
        home: Where the pass is redone if the device fails; without it a failure reaches the training.
        sequences: As in :class:`FrozenPass`.
        part_size: The same.
        temperature: With which the artifact was compiled.

    Raises:
        ArtifactError: A device cannot run it.
        DeviceError: A device failed, or has no room.
        ConfigError: ``sequences`` is below 1, or both it and ``part_size`` are given.
    """
    return FrozenPass(
        kind=kind,
        program=artifact.program,
        device=Placement(device=device, handle=device.load(artifact)),
        home=None if home is None else Placement(device=home, handle=home.load(artifact)),
        sequences=sequences,
        part_size=part_size,
        temperature=temperature,
    )
