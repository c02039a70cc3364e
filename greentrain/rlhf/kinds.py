"""The kinds of passes, and where one may run."""

from enum import StrEnum


class PassKind(StrEnum):
    """A forward pass over finished rollouts."""

    REWARD = "reward"
    """A score a sequence."""
    REFERENCE = "reference"
    """The log-probability of each token under the frozen policy."""
    CRITIC = "critic"
    """A value a sequence, of a model that moves: synchronise its weights."""
    STEP_REWARD = "step_reward"
    """A score a step of reasoning: each step's prefix is a sequence of its own."""


class Place(StrEnum):
    """Where a pass runs."""

    DEVICE = "device"
    """On the offload device."""
    HOME = "home"
    """Where the training is: on its GPU, or what else was given to redo passes on."""
