"""GreenTrain: measure, lower and plan the energy and carbon of PyTorch training.

* ``GreenSession``              any training loop, from one ``with`` line
* ``GreenConfig``               green.yaml, checked
* ``greentrain.callbacks``      Lightning, Accelerate, Hugging Face Trainer and Ray Train
* ``greentrain.ledger``         what a run folder says, read back: ``read_run``
* ``greentrain.rlhf``           frozen passes of RLHF on a second device
* ``greentrain.estimate``       a run before it starts
* ``greentrain.testing``        conformance suites for your own meters, signals, policies and devices

docs/architecture.md shows all rooms.
"""

import logging
from typing import TYPE_CHECKING, Any

from greentrain.utils import moved
from greentrain.utils.version import __version__

_LAZY = {
    "GreenSession": "greentrain.session.session",
    "GreenConfig": "greentrain.config.schema",
    "load_ipython_extension": "greentrain.cli.notebook",
    "unload_ipython_extension": "greentrain.cli.notebook",
}

__all__ = ["GreenConfig", "GreenSession", "__version__"]

logging.getLogger(__name__).addHandler(logging.NullHandler())
moved.install()

if TYPE_CHECKING:
    from greentrain.config.schema import GreenConfig as GreenConfig
    from greentrain.session.session import GreenSession as GreenSession


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'greentrain' has no attribute {name!r}")
