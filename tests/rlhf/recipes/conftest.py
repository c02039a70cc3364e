"""Recipes in this process: no telemetry, one thread, no variable left behind, no walk over all objects after a run."""

import gc
from collections.abc import Iterator
from importlib import import_module

import pytest
import torch

with pytest.MonkeyPatch.context() as patch:  # a recipe sets the variable when it is imported
    patch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("dpo_offload", "grpo_offload", "models"):
        import_module(f"recipes.trl.{name}")


@pytest.fixture(scope="module", autouse=True)
def calm() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.freeze()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)
        yield
    gc.unfreeze()
    torch.set_num_threads(threads)
