"""Optional imports whose failure is deferred to first use and names the extra to install.

Usage::

    with try_import("lightning") as _imports:
        import lightning
    ...
    _imports.check()      # raises MissingExtraError, chained to the original ImportError
"""

from types import TracebackType

from greentrain.errors import MissingExtraError


class try_import:
    """Swallow an ImportError in the block and raise it, with the remedy, from :meth:`check`.

    Args:
        extra: Name of the extra of ``greentrain-torch`` that installs what the block imports.
    """

    def __init__(self, extra: str) -> None:
        self.extra = extra
        self.error: ImportError | None = None

    def __enter__(self) -> "try_import":
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if isinstance(exc, ImportError):
            exc.__cause__ = exc.__context__ = None
            self.error = exc.with_traceback(None)  # its frames would keep what all callers hold, for ever
            return True
        return False

    def check(self) -> None:
        """Raise MissingExtraError if the block failed to import.

        Raises:
            MissingExtraError: Names the extra; the original ImportError is its cause.
        """
        if self.error is not None:
            raise MissingExtraError(
                f"{self.error}. Install it with: pip install 'greentrain-torch[{self.extra}]'"
            ) from self.error
