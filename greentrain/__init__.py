"""GreenTrain: measure, lower and plan the energy and carbon of PyTorch training.

* ``GreenSession``              any training loop, from one ``with`` line (``greentrain.session.session``)
* ``greentrain.callbacks``      Lightning, Accelerate and Hugging Face Trainer
* ``greentrain.power``          meters, the energy curve and its sampler
* ``greentrain.carbon``         carbon-intensity signals
* ``greentrain.report``         reports from run folders
* ``greentrain.testing``        conformance suites for your own meters and signals
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
