"""The keys of the configuration described: as JSON Schema, as a commented green.yaml and as the page in the docs.

All three are derived from the dataclasses: types, bounds, choices and defaults are those of the fields, descriptions
their docstrings. The JSON Schema (draft 2020-12) is for editors and other readers; rules between keys, and those of the
form of a text (a name, a time, a URL), are not in it: ``greentrain config check`` knows them.
"""

import ast
import dataclasses
import inspect
import itertools
import json
import math
import re
import textwrap
import typing
from collections.abc import Iterator, Mapping
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


def schema(cls: type = GreenConfig, title: str = "GreenTrain configuration") -> dict[str, Any]:
    """Return the schema of green.yaml, or of another file that a dataclass describes.

    Args:
        cls: Dataclass of the file.
        title: What the file is.
    """
    is_own = cls is GreenConfig
    return {
        "$schema": DIALECT,
        "$id": ID if is_own else ID.replace(":config:", f":{cls.__name__}:"),
        "title": title,
        "description": f"{_text(cls.__doc__)} {NOT_IN_IT if is_own else ''}".strip(),
        **_section(cls),
        "type": ["object", "null"] if is_own else "object",  # null: a file without a key
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


def _options(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in UNIONS else (hint,)


def _section(cls: type) -> dict[str, Any]:
    hints, docs = typing.get_type_hints(cls, include_extras=True), _field_docs(cls)
    properties, needed = {}, []
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        inner = next((option for option in _options(hint) if dataclasses.is_dataclass(option)), None)
        if isinstance(inner, type):
            found = {**_section(inner), "type": ["object", "null"]}  # an empty section is YAML's null
        else:
            found = _key(hint)
            if field.default is not dataclasses.MISSING:
                found["default"] = plain(field.default)
            elif field.default_factory is not dataclasses.MISSING:
                found["default"] = plain(field.default_factory())
        if field.default is field.default_factory is dataclasses.MISSING:
            needed.append(field.name)
        description = docs.get(field.name) or _text(inner.__doc__)
        properties[field.name] = {"description": description, **found}
    found = {"type": "object", "additionalProperties": False, "properties": properties}
    return {**found, "required": needed} if needed else found


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
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _section(hint)
    if origin is tuple and args[1:] == (Ellipsis,):
        inner = typing.get_args(args[0])
        return _pairs(inner) if typing.get_origin(args[0]) is tuple else {"type": "array", "items": _leaf(args[0])}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _leaf(args[1])}
    raise TypeError(f"{hint!r} is a kind of value that the schema has no word for: teach greentrain.config.reference")


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


HEADER: Final = f"# yaml-language-server: $schema={FILE}"
"""First line by which editors with the YAML language server find the schema."""
_WIDTH: Final = 100
_WORDS: Final[Mapping[str, str]] = {
    "string": "text",
    "number": "number",
    "integer": "whole number",
    "boolean": "true or false",
}


def commented_yaml(config: GreenConfig) -> str:
    """Return a configuration as YAML that can be loaded: every key with its value, docstring and default."""
    return "\n".join([HEADER, *_yaml(config, schema(), "")]) + "\n"


def _yaml(section: Any, facts: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, found in facts["properties"].items():
        value, is_section = getattr(section, name), "properties" in found
        told = [found["description"], *_limits(found)]
        if not is_section and plain(value) != found["default"]:
            told.append(f"Default: {_value(found['default'])}.")
        for line in textwrap.wrap(" ".join(filter(None, told)), _WIDTH - len(indent), break_on_hyphens=False):
            yield f"{indent}# {line}"
        if is_section and value is not None:
            yield f"{indent}{name}:"
            yield from _yaml(value, found, f"{indent}  ")
        else:
            yield f"{indent}{name}: {_value(value)}"


def _value(value: Any) -> str:
    import yaml

    text: str = yaml.safe_dump(plain(value), default_flow_style=True, width=10**9)
    return text.removesuffix("\n").removesuffix("\n...")


def reference() -> str:
    """Return the table of every key, in Markdown: key, type and bounds, default, meaning."""
    return "\n".join(_tables(schema(), "")).strip() + "\n"


def _tables(facts: Mapping[str, Any], where: str) -> Iterator[str]:
    for name, found in facts["properties"].items():
        if "properties" not in found:
            continue
        key = where + name
        yield from [f"### `{key}`", "", found["description"], ""]
        leaves = {k: v for k, v in found["properties"].items() if "properties" not in v}
        if leaves:
            yield from ["| Key | Value | Default | Meaning |", "|---|---|---|---|"]
            for leaf, says in leaves.items():
                cells = (f"`{key}.{leaf}`", _kind(says), f"`{json.dumps(says['default'])}`", says["description"])
                yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
            yield ""
        yield from _tables(found, f"{key}.")


def _kind(found: Mapping[str, Any]) -> str:
    """Return what a value may be, in a few words."""
    if "enum" in found:
        return ", ".join(f"`{word}`" for word in found["enum"])
    if "anyOf" in found:
        return " or ".join(dict.fromkeys(_kind(option) for option in found["anyOf"]))
    kinds = [found["type"]] if isinstance(found["type"], str) else found["type"]
    words = []
    for kind in kinds:
        if kind == "null":
            words.append("null")
        elif kind == "array":
            items = found["items"]
            words.append("list of [step, gear]" if "prefixItems" in items else f"list of {_kind(items)}")
        elif kind == "object":
            inner = found["additionalProperties"] or next(iter(found["patternProperties"].values()))
            words.append(f"mapping to {_kind(inner)}")
        else:
            words.append(" ".join([_WORDS[kind], *_bounds(found)]).removesuffix("."))
    return " or ".join(words)


def _limits(found: Mapping[str, Any]) -> list[str]:
    """Return bounds and choices of a key, with its kind where they are those of items or of one kind of several."""
    if any(word in found for word in ("minimum", "enum")):
        return list(_bounds(found))
    parts = [*found.get("anyOf", ()), found.get("items"), found.get("additionalProperties")]
    limited = any(isinstance(part, dict) and {"minimum", "enum", "items"} & part.keys() for part in parts)
    return [f"Value: {_kind(found)}."] if limited else []


def _bounds(found: Mapping[str, Any]) -> Iterator[str]:
    low, high = found.get("minimum"), found.get("maximum")
    if low is not None:
        yield f"{low:g} to {high:g}." if high is not None else f"At least {low:g}."
    if "enum" in found:
        yield f"One of {', '.join(found['enum'])}."
