"""What is handed in before its numbers are needed: a device that refuses it then may be asked again."""

import contextlib
from collections.abc import Iterator

from greentrain.fpga_backend.errors import BatchError, OffloadError
from greentrain.harmless import once, warn

_tell = once(warn)


@contextlib.contextmanager
def early(what: str) -> Iterator[None]:
    """Make a hand-in that fails one warning; whoever reads the numbers hands in again.

    Args:
        what: Is handed in.

    Raises:
        BatchError: It does not fit the model, now or later.
    """
    try:
        yield
    except BatchError:
        raise
    except OffloadError as error:
        _tell(f"{what} could not begin early ({error}) and runs where its numbers are needed")
