"""Recipes in this process: no variable is left behind by their import."""

from importlib import import_module

import pytest

from tests.rlhf.calm import calm

with pytest.MonkeyPatch.context() as patch:  # a recipe sets the variable when it is imported
    patch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("dpo_offload", "grpo_offload", "models"):
        import_module(f"recipes.trl.{name}")

__all__ = ["calm"]
