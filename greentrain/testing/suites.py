"""Conformance suites in one line of a test file: what a suite needs, as arguments in place of a subclass."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

Suite = TypeVar("Suite")


def filled(suite: type[Suite], members: dict[str, Any], settings: dict[str, Any]) -> type[Suite]:
    """Return a suite with its methods and settings filled in.

    Raises:
        TypeError: The suite has no such setting.
    """
    unknown = sorted(name for name in settings if name.startswith("_") or not hasattr(suite, name))
    if unknown:
        raise TypeError(f"{suite.__name__} has no {', '.join(unknown)}: its settings are its attributes")
    return type(suite.__name__, (suite,), {**members, **settings, "__doc__": suite.__doc__})


def opened(name: str, make: Callable[[], Any]) -> Any:
    """Return a pytest fixture of that name, which gives what ``make`` returns and closes it after the test."""
    import pytest

    @pytest.fixture(name=name)
    def fixture(self: object) -> Iterator[Any]:
        thing = make()
        yield thing
        thing.close()

    return fixture
