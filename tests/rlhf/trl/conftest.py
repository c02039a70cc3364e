"""Trainings in this process."""

from tests.rlhf.calm import calm

__all__ = ["calm"]
