"""What a training loop calls."""

from greentrain.session.session import GreenSession

__all__ = ["GreenSession"]
