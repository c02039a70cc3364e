"""JSON Schema (draft 2020-12) of the configuration, derived from its dataclasses, for editors and other readers.

Types, bounds, choices and defaults are those of the fields, descriptions their docstrings. Rules between keys, and
those of the form of a text (a name, a time, a URL), are not in the schema: ``greentrain config check`` knows them.
"""

import ast
import dataclasses
import inspect
import itertools
import math
import re
import textwrap
import typing
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Final

from greentrain.config.schema import GreenConfig
from greentrain.utils.validation import UNIONS, Bound, Choice, NotEmpty
from greentrain.utils.version import __version__

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
ID: Final = f"urn:greentrain:config:{__version__}"
FILE: Final = "greentrain.schema.json"
"""Name that the documentation gives the written schema."""
NOT_IN_IT: Final = (
    "Rules between keys (such as: policy.name mpc needs policy.tokens) and of the form of names, times and URLs are not"
    " in this schema; greentrain config check knows them."
)
_TYPES: Final[Mapping[Any, str]] = {float: "number", int: "integer", str: "string", bool: "boolean", type(None): "null"}


def schema() -> dict[str, Any]:
    """Return the schema of green.yaml."""
    return {
        "$schema": DIALECT,
        "$id": ID,
        "title": "GreenTrain configuration",
        "description": f"{_text(GreenConfig.__doc__)} {NOT_IN_IT}",
        **_section(GreenConfig),
        "type": ["object", "null"],  # null: a file without a key
    }


def describe(cls: type) -> dict[str, str]:
    """Return the docstring of each field of a dataclass; of a section without one, that of its class."""
    found = _field_docs(cls)
    hints = typing.get_type_hints(cls)
    return {
        field.name: found.get(field.name) or _text(getattr(section_of(hints[field.name]), "__doc__", None))
        for field in dataclasses.fields(cls)
    }


@cache
def _field_docs(cls: type) -> dict[str, str]:
    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError):  # an installation without its sources
        return {}
    assert isinstance(node, ast.ClassDef)
    docs = {}
    for item, after in itertools.pairwise(node.body):
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and isinstance(after, ast.Expr):
            value = after.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                docs[item.target.id] = _text(value.value)
    return docs


def _text(doc: str | None) -> str:
    """Return a docstring in one line, in the words of YAML."""
    return re.sub(r"\bNone\b", "null", " ".join(doc.replace("``", "`").split())) if doc else ""


def section_of(hint: Any) -> type | None:
    """Return the dataclass of a section, also where it may be left out; None for other keys."""
    for option in _options(hint):
        if dataclasses.is_dataclass(option):
            return typing.cast(type, option)
    return None


def _options(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in UNIONS else (hint,)


def _section(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls, include_extras=True)
    docs = describe(cls)
    properties = {}
    for field in dataclasses.fields(cls):
        section = section_of(hints[field.name])
        if section is not None:
            found = {**_section(section), "type": ["object", "null"]}  # an empty section is YAML's null
        else:
            found = _key(hints[field.name])
            found["default"] = plain(default_of(field))
        properties[field.name] = {"description": docs[field.name], **found}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def default_of(field: "dataclasses.Field[Any]") -> Any:
    """Return the default of a field; None where it has none."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def plain(value: Any) -> Any:
    """Return a value in JSON's types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (tuple, list)) else value


def _key(hint: Any) -> dict[str, Any]:
    options = [_leaf(option) for option in _options(hint)]
    if len(options) == 1:
        return options[0]
    (first, *rest) = options
    simple = rest == [{"type": "null"}] and isinstance(first.get("type"), str) and "enum" not in first
    return {**first, "type": [first["type"], "null"]} if simple else {"anyOf": options}


def _leaf(hint: Any) -> dict[str, Any]:
    """Return the schema of one kind of value, with the rules of its annotation."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        found = _leaf(args[0])
        for rule in args[1:]:
            found |= _rule(rule, found["type"])
        return found
    if hint in _TYPES:
        return {"type": _TYPES[hint]}
    if origin is tuple and args[1:] == (Ellipsis,):
        inner = typing.get_args(args[0])
        return _pairs(inner) if typing.get_origin(args[0]) is tuple else {"type": "array", "items": _leaf(args[0])}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _leaf(args[1])}
    raise TypeError(f"{hint!r} is a kind of value that the schema has no word for: teach greentrain.config.json_schema")


def _pairs(kinds: tuple[Any, ...]) -> dict[str, Any]:
    """Return the schema of pairs of a step and a word, which may also be written as a mapping from step to word."""
    step, word = (_leaf(kind) for kind in kinds)
    pair = {"type": "array", "prefixItems": [step, word], "items": False, "minItems": 2}
    by_step = {"type": "object", "patternProperties": {"^[0-9]+$": word}, "additionalProperties": False}
    return {"anyOf": [{"type": "array", "items": pair}, by_step]}


def _rule(rule: Any, kind: str) -> dict[str, Any]:
    """Return what JSON Schema calls a rule; nothing for those of a text's form, which are functions."""
    if isinstance(rule, Bound):
        ends = {"minimum": rule.low, "maximum": rule.high}
        whole = kind == "integer"
        return {
            word: int(end) if whole or float(end).is_integer() else end
            for word, end in ends.items()
            if math.isfinite(end)
        }
    if isinstance(rule, Choice):
        return {"enum": list(rule.allowed)}
    if isinstance(rule, NotEmpty):
        return {"minItems" if kind == "array" else "minLength": 1}
    return {}
