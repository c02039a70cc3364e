"""The first samples of a batch, however its tensors are nested.

What is a batch dimension nobody says. Here it is the first dimension of the first tensor, and of every other tensor
whose first dimension is as long. What else there is (a causal mask, a number of tokens, a flag) is the same for every
sample and stays whole.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map


class Rows:
    """The kept samples of one call's arguments; what training does to its own tensors afterwards does not matter.

    Args:
        tree: Tensors in tuples, lists, mappings and dataclasses.
        keep: How many samples.
    """

    def __init__(self, tree: Any, keep: int) -> None:
        self.size = batch_size(tree)
        """Samples in the batch; 0 if no tensor has a dimension."""
        self.kept = min(keep, self.size)
        """Samples of it that are kept."""
        self._tree = change_leaves(tree, self._keep)

    def take(self, rows: range) -> Any:
        """Return the arguments with some of the kept samples in them, for one use.

        Args:
            rows: Consecutive, within ``range(self.kept)``.
        """
        return change_leaves(self._tree, lambda leaf: leaf.take(rows) if isinstance(leaf, _Kept) else leaf)

    def _keep(self, leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.dim() and leaf.shape[0] == self.size:
            return _Kept(leaf[: self.kept].detach().clone(), leaf.requires_grad)
        return leaf


@dataclasses.dataclass(frozen=True, slots=True)
class _Kept:
    """A tensor with a batch dimension. Others of that length by chance must not be cut the second time."""

    tensor: Tensor
    requires_grad: bool

    def take(self, rows: range) -> Tensor:
        # A copy again: forward may work in place, and reentrant code wants leaves of its own.
        return self.tensor[rows.start : rows.stop].clone().requires_grad_(self.requires_grad)


def batch_size(tree: Any) -> int:
    """Return the length of the first tensor's first dimension; 0 if there is none."""
    return next((int(t.shape[0]) for t in tensors(tree) if t.dim()), 0)


def tensors(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors of a tree in a fixed order."""
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor):
            yield leaf
        elif isinstance(leaf, MutableMapping):  # one that pytree does not know, such as a UserDict
            yield from tensors(list(leaf.values()))
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            yield from tensors([getattr(leaf, field.name) for field in dataclasses.fields(leaf)])


def change_leaves(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Return a tree of the same shape with every leaf changed; mappings and dataclasses in it are copied."""

    def at(leaf: Any) -> Any:
        if isinstance(leaf, MutableMapping):
            out: Any = copy.copy(leaf)
            for key, value in leaf.items():
                out[key] = change_leaves(value, change)
            return out
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, (type, _Kept)):
            out = copy.copy(leaf)
            for field in dataclasses.fields(leaf):
                object.__setattr__(out, field.name, change_leaves(getattr(leaf, field.name), change))
            return out
        return change(leaf)

    return tree_map(at, tree)
