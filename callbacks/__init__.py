"""Thin adapters from the hooks of a framework to GreenSession; import them by name, greentrain.callbacks.NAME."""

import os

CONFIG = "GREENTRAIN_CONFIG"
"""Environment variable with the path of a green.yaml, for adapters whose program names none."""


def lightning_callbacks() -> list[object]:
    """Return what Lightning adds to a Trainer: a GreenCallback where GREENTRAIN_CONFIG is set and it has none yet."""
    if not os.environ.get(CONFIG):
        return []
    from lightning.pytorch import Trainer

    from greentrain.callbacks.driver import calling
    from greentrain.callbacks.lightning import GreenCallback

    trainer = calling(Trainer)
    has = trainer is None or any(isinstance(one, GreenCallback) for one in getattr(trainer, "callbacks", ()))
    return [] if has else [GreenCallback()]
