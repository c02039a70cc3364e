"""JSON Schema (draft 2020-12) of the configuration, derived from its dataclasses, for editors and other readers.

Types and defaults are those of the fields, descriptions their docstrings. Bounds and choices are heard from the
checks themselves: each field is given a probe value, on its own and beside every choice of its section, and what
``bound`` and ``choice`` are called with is written down (``validation.rules_heard``). Rules between keys, and those
of the form of a text (a name, a time, a URL), are not in the schema: ``greentrain config check`` knows them.
"""

import ast
import dataclasses
import inspect
import itertools
import math
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from greentrain.config.schema import GreenConfig
from greentrain.errors import ConfigError
from greentrain.utils.validation import Bound, Choice, rules_heard
from greentrain.utils.version import __version__

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
ID: Final = f"urn:greentrain:config:{__version__}"
FILE: Final = "greentrain.schema.json"
"""Name that the documentation gives the written schema."""
NOT_IN_IT: Final = (
    "Rules between keys (such as: policy.name mpc needs policy.tokens) and of the form of names, times and URLs are not"
    " in this schema; greentrain config check knows them."
)
_PROBES: Final[Mapping[Any, Any]] = {float: 1.0, int: 1, str: "probe", bool: True}
_TYPES: Final[Mapping[Any, str]] = {float: "number", int: "integer", str: "string", bool: "boolean"}
_PAIRS: Final = tuple[tuple[int, str], ...]


def schema() -> dict[str, Any]:
    """Return the schema of green.yaml."""
    return {
        "$schema": DIALECT,
        "$id": ID,
        "title": "GreenTrain configuration",
        "description": f"{_text(GreenConfig.__doc__)} {NOT_IN_IT}",
        **_section(GreenConfig, ""),
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
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _section(cls: type, where: str) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    docs = describe(cls)
    properties = {}
    for field in dataclasses.fields(cls):
        key = where + field.name
        section = section_of(hints[field.name])
        if section is not None:
            found = {**_section(section, f"{key}."), "type": ["object", "null"]}  # an empty section is YAML's null
        else:
            found = _key(cls, field.name, key)
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


def _key(cls: type, name: str, key: str) -> dict[str, Any]:
    options = []
    for hint in _options(typing.get_type_hints(cls)[name]):
        if hint is type(None):
            options.append({"type": "null"})
        else:
            options.append(_leaf(hint, cls, name, key))
    if len(options) == 1:
        return options[0]
    (first, *rest) = options
    simple = rest == [{"type": "null"}] and isinstance(first.get("type"), str) and "enum" not in first
    return {**first, "type": [first["type"], "null"]} if simple else {"anyOf": options}


def _leaf(hint: Any, cls: type, name: str, key: str) -> dict[str, Any]:
    if hint in _TYPES:
        return _ruled(_TYPES[hint], _rules(cls, name, key, _PROBES[hint]))
    if hint == _PAIRS:
        return _pairs(_rules(cls, name, key, ((0, "probe"),)))
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and args[1:] == (Ellipsis,):
        items = _ruled(_TYPES[args[0]], _rules(cls, name, key, (_PROBES[args[0]],)))
        least = {} if _may_be(cls, name, ()) else {"minItems": 1}
        return {"type": "array", "items": items, **least}
    if origin is Mapping:
        rules = _rules(cls, name, key, {"probe": _PROBES[args[1]]})
        return {"type": "object", "additionalProperties": _ruled(_TYPES[args[1]], rules)}
    raise TypeError(f"{key} is a {hint!r}, which the schema has no word for: teach greentrain.config.json_schema")


def _pairs(rules: list[Bound | Choice]) -> dict[str, Any]:
    step = _ruled("integer", [rule for rule in rules if isinstance(rule, Bound)])
    word = _ruled("string", [rule for rule in rules if isinstance(rule, Choice)])
    pair = {"type": "array", "prefixItems": [step, word], "items": False, "minItems": 2}
    by_step = {"type": "object", "patternProperties": {"^[0-9]+$": word}, "additionalProperties": False}
    return {"anyOf": [{"type": "array", "items": pair}, by_step]}


def _ruled(kind: str, rules: list[Bound | Choice]) -> dict[str, Any]:
    """Return the schema of one value; of two rules for it, which hold in different company, the wider one."""
    out: dict[str, Any] = {"type": kind}
    bounds = [rule for rule in rules if isinstance(rule, Bound)]
    words = [rule.allowed for rule in rules if isinstance(rule, Choice)]
    if bounds:
        low, high = min(rule.low for rule in bounds), max(rule.high for rule in bounds)
        out |= {"minimum": _number(low, kind)} | ({"maximum": _number(high, kind)} if math.isfinite(high) else {})
    if words:
        out["enum"] = list(dict.fromkeys(itertools.chain.from_iterable(words)))
    return out


def _number(value: float, kind: str) -> float:
    return int(value) if kind == "integer" or float(value).is_integer() else value


def _rules(cls: type, name: str, key: str, probe: Any) -> list[Bound | Choice]:
    """Return the rules that the checks of a section ask of a value like the probe, whatever else is set."""
    found = []
    for beside in ({}, *_company(cls)):
        with rules_heard() as rules:
            _try(cls, {**beside, name: probe})
        found += [rule for told, rule in rules if told.partition("[")[0] == key]
    return found


@cache
def _company(cls: type) -> tuple[Mapping[str, Any], ...]:
    """Return every choice that a word of the section has: some rules are asked in its company only."""
    return tuple({name: word} for name, words in _words(cls) for word in words)


def _words(cls: type) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, hint in typing.get_type_hints(cls).items():
        if hint is str:
            with rules_heard() as rules:
                _try(cls, {name: "probe"})
            for told, rule in rules:
                if told.endswith(f".{name}") and isinstance(rule, Choice):
                    yield name, rule.allowed


def _may_be(cls: type, name: str, value: Any) -> bool:
    return _try(cls, {name: value})


def _try(cls: type, values: Mapping[str, Any]) -> bool:
    try:
        cls(**values)
    except ConfigError:
        return False
    return True
