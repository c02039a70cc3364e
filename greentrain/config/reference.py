"""The configuration for people: a commented green.yaml with every value in use, and the reference in the docs."""

import dataclasses
import json
import textwrap
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Final

from greentrain.config.json_schema import FILE, default_of, describe, plain, schema, section_of
from greentrain.config.schema import GreenConfig

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
    docs = describe(type(section))
    hints = typing.get_type_hints(type(section))
    for field in dataclasses.fields(section):
        value, found = getattr(section, field.name), facts["properties"][field.name]
        default = default_of(field)
        told = [docs[field.name], *_limits(found)]
        inner = section_of(hints[field.name])
        if inner is None and plain(value) != plain(default):
            told.append(f"Default: {_value(default)}.")
        for line in textwrap.wrap(" ".join(filter(None, told)), _WIDTH - len(indent), break_on_hyphens=False):
            yield f"{indent}# {line}"
        if inner is not None and value is not None:
            yield f"{indent}{field.name}:"
            yield from _yaml(value, found, f"{indent}  ")
        else:
            yield f"{indent}{field.name}: {_value(value)}"


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
