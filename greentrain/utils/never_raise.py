"""A fault of GreenTrain inside a framework's hook becomes a warning: training goes on."""

import functools
import logging
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from greentrain.errors import GreenTrainWarning
from greentrain.utils.topology import current_topology

log = logging.getLogger(__name__)
Hook = TypeVar("Hook", bound=Callable[..., Any])


def never_raises(hook: Hook) -> Hook:
    """Return the hook such that an exception in it is one warning, and its result None."""
    seen: set[str] = set()

    @functools.wraps(hook)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return hook(*args, **kwargs)
        except Exception as error:
            text = f"{getattr(hook, '__qualname__', hook)} failed with {error!r}"
            if text not in seen:
                seen.add(text)
                warn(text)
            return None

    return wrapped  # type: ignore[return-value]


def call_if_present(it: object, method: str) -> None:
    """Call a method that only some have, such as the ``start`` and ``close`` of a signal that asks a network.

    Args:
        it: Whose; None has no method.
        method: Name of the method, which takes nothing.
    """
    call = getattr(it, method, None)
    if call is not None:
        call()


def once(tell: Callable[[str], None]) -> Callable[[str], None]:
    """Return ``tell`` such that it is called once a sentence."""
    said: set[str] = set()

    def told(sentence: str) -> None:
        if sentence not in said:
            said.add(sentence)
            tell(sentence)

    return told


def warn(text: str, then: str = "training goes on") -> None:
    """Show a warning and what becomes of the training; where the user turns warnings into errors, log it instead."""
    _show(f"{text}; {then}")


_UNPROVEN: set[str] = set()


def warn_experimental(feature: str, proven: str) -> None:
    """Say once a process, on rank 0, that a feature has never met its hardware; never raises.

    Args:
        feature: Name of the feature that is about to be used, as the subject of a sentence.
        proven: Words for the tests that it had instead.
    """
    if feature in _UNPROVEN or current_topology().rank:
        return
    _UNPROVEN.add(feature)
    _show(f"{feature} is experimental: {proven}; docs/status.md says what ran where, reports are welcome")


def _show(text: str) -> None:
    try:
        warnings.warn(f"GreenTrain: {text}", GreenTrainWarning, stacklevel=4)
    except GreenTrainWarning:
        log.warning("%s", text)
