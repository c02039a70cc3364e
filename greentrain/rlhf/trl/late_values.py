"""Numbers that are waited for where they are first read.

What is handed in before its numbers are needed: a device that refuses it then may be asked again.
"""

import contextlib
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from greentrain.fpga_backend.errors import BatchError, OffloadError
from greentrain.utils.never_raise import once, warn


class LateBatch(UserDict[str, Any]):
    """A batch some of whose entries come later: reading one is the barrier, and then it stays.

    TRL reads ``ref_per_token_logps`` behind the policy's forward, so the wait falls between forward and loss. Copies,
    ``items`` and ``values`` wait too: nobody sees the placeholder.

    Args:
        entries: The batch, placeholders included.
        late: Functions that wait for the late entries, by key.
    """

    def __init__(self, entries: Mapping[str, Any], late: Mapping[str, Callable[[], Any]]) -> None:
        self._late: dict[str, Callable[[], Any]] = {}
        super().__init__(entries)
        self._late |= late

    def __getitem__(self, key: str) -> Any:
        if key in self._late:
            self[key] = self._late[key]()
        return self.data[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._late.pop(key, None)
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        self._late.pop(key, None)
        super().__delitem__(key)

    def popitem(self) -> tuple[str, Any]:
        """Remove and return the last entry, as a dict does."""
        self.copy()  # waits
        return self.data.popitem()

    def copy(self) -> dict[str, Any]:  # type: ignore[override]  # waits, as whoever reads a copy cannot
        """Return a plain dict."""
        return dict(self)

    __copy__ = copy  # type: ignore[assignment]


class DeferredTensor:
    """A tensor that is waited for by the first operation on it. Not a tensor itself.

    Args:
        get: Function that waits for it.
    """

    def __init__(self, get: Callable[[], torch.Tensor]) -> None:
        self._get: Callable[[], torch.Tensor] | None = get
        self._value: torch.Tensor | None = None

    def tensor(self) -> torch.Tensor:
        """Wait for the tensor."""
        if self._get is not None:
            self._value, self._get = self._get(), None
        assert self._value is not None
        return self._value

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation of torch on the tensor: ``tensor - late`` comes here."""
        return func(*pytree.tree_map(_waited, args), **pytree.tree_map(_waited, dict(kwargs or {})))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.tensor(), name)


def _waited(value: Any) -> Any:
    return value.tensor() if isinstance(value, DeferredTensor) else value


_tell = once(warn)


@contextlib.contextmanager
def submit_ahead(what: str) -> Iterator[None]:
    """Make a hand-in that fails one warning; whoever reads the numbers hands in again.

    Args:
        what: Name of what is handed in, for the warning.

    Raises:
        BatchError: It does not fit the model, now or later.
    """
    try:
        yield
    except BatchError:
        raise
    except OffloadError as error:
        _tell(f"{what} could not begin early ({error}) and runs where its numbers are needed")
