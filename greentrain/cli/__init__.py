"""Commands of the shell, and of notebook cells."""

from greentrain.cli.app import main

__all__ = ["main"]
