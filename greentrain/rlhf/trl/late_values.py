"""Numbers that are waited for where they are first read.

What is handed in before its numbers are needed: a device that refuses it then may be asked again.
"""

import contextlib
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

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

    def copy(self) -> dict[str, Any]:  # type: ignore[override]  # waits, as whoever reads a copy cannot
        """Return a plain dict."""
        return dict(self)

    __copy__ = copy  # type: ignore[assignment]


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
