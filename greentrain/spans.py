"""A phase as a context manager."""

from typing import Protocol


class Phases(Protocol):
    """The part of a session that a span uses."""

    def begin(self, name: str) -> int:
        """Enter a phase."""
        ...

    def end(self, name: str, token: int = 0) -> None:
        """Leave a phase."""
        ...


class PhaseSpan:
    """The block of one ``with session.phase(name)``; an instance may be entered again, not nested in itself."""

    __slots__ = ("_name", "_session", "_token")

    def __init__(self, session: Phases, name: str) -> None:
        self._session = session
        self._name = name
        self._token = 0

    def __enter__(self) -> None:
        self._token = self._session.begin(self._name)

    def __exit__(self, *exc: object) -> None:
        self._session.end(self._name, self._token)
