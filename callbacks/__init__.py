"""Thin adapters from the hooks of a framework to GreenSession; import them by name, greentrain.callbacks.NAME."""

import os

CONFIG = "GREENTRAIN_CONFIG"
"""Environment variable with the path of a green.yaml, for adapters whose program names none."""


def lightning_callbacks() -> list[object]:
    """Return what Lightning adds to a Trainer: a GreenCallback where GREENTRAIN_CONFIG is set and it has none yet."""
    if not os.environ.get(CONFIG):
        return []
    from greentrain.callbacks.driver import calling
    from greentrain.callbacks.lightning import GreenCallback, Trainer

    trainer = calling(Trainer)
    return [] if trainer is None or any(isinstance(c, GreenCallback) for c in trainer.callbacks) else [GreenCallback()]
