"""Small models with something changed in their program."""

import dataclasses
from collections.abc import Callable

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.program import Op


def with_ops(artifact: Artifact, change: Callable[[Op], Op]) -> Artifact:
    """Return the artifact with each operator as ``change`` returns it."""
    ops = tuple(change(op) for op in artifact.program.ops)
    return Artifact.of(dataclasses.replace(artifact.program, ops=ops), artifact.tensors)
