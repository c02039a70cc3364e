"""Texts and token ids in a request. They are checked by hand: pydantic would list each wrong one of millions."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

_TEXTS = {"type": "array", "items": {"type": "string"}, "minItems": 1}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}


def _texts(given: Any) -> list[str]:
    if not isinstance(given, list) or not given or not all(isinstance(one, str) for one in given):
        raise ValueError("give a list of at least one text")
    for text in given:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError("a text holds half of a surrogate pair, which is no character") from None
    return given


def _sequences(given: Any) -> str | list[Any]:
    if isinstance(given, str):
        return _texts([given])[0]
    if isinstance(given, list) and given and isinstance(given[0], str):
        return _texts(given)
    rows = given if isinstance(given, list) and given and isinstance(given[0], list) else [given]
    if not all(isinstance(row, list) and row and all(type(i) is int for i in row) for row in rows):
        raise ValueError("give a text, a list of texts, a list of token ids, or a list of such; none of them empty")
    found: list[Any] = given
    return found


Texts = Annotated[list[str], BeforeValidator(_texts), WithJsonSchema(_TEXTS)]
"""At least one text."""
Sequences = Annotated[
    Any,
    BeforeValidator(_sequences),
    WithJsonSchema({"anyOf": [{"type": "string"}, _TEXTS, _IDS, {"type": "array", "items": _IDS, "minItems": 1}]}),
]
"""One text, several, the token ids of one, or of several."""


def listed(given: str | list[Any]) -> Sequence[Any]:
    """Return one sequence as a list of it, and several as they are."""
    return [given] if isinstance(given, str) or isinstance(given[0], int) else given
