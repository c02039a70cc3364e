"""Strict checks against the published shapes of Kubernetes and Kueue: an unknown field is an error."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PUBLISHED: Mapping[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "boolean": bool,
    "object": dict,
    "array": list,
    "number": (int, float),
}
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


def errors(value: object, definition: str, *, partial: bool = False) -> list[str]:
    """Return what is wrong with a value.

    Args:
        value: Plain JSON types.
        definition: Its published name.
        partial: Whether it is a patch, which may lack required fields.
    """
    return list(_errors(value, {"$ref": definition}, definition.rsplit(".", 1)[-1], partial))


def definition_of(thing: Mapping[str, Any]) -> str:
    """Return the name under which the shape of an object with apiVersion and kind is published."""
    group, _, version = thing["apiVersion"].rpartition("/")
    for name, definition in PUBLISHED["definitions"].items():
        for found in definition.get("x-kubernetes-group-version-kind", ()):
            if (found["group"], found["version"], found["kind"]) == (group, version, thing["kind"]):
                return str(name)
    raise AssertionError(f"the excerpt has no {thing['apiVersion']} {thing['kind']}")


def _errors(value: Any, shape: Mapping[str, Any], where: str, partial: bool) -> Iterator[str]:
    if "cut" in shape:
        yield f"{where}: {shape['cut']} is not in the excerpt"
        return
    if "$ref" in shape:
        shape = PUBLISHED["definitions"][shape["$ref"]]
    if value is None and partial:
        return  # a merge patch removes the field
    kind = shape.get("type", "object" if "properties" in shape else None)
    if shape.get("format") == "int-or-string" or where.startswith("Quantity"):
        kind = "string" if isinstance(value, str) else "integer"
    if kind is None:
        return
    fits = isinstance(value, _TYPES[kind])
    if not fits or (kind == "integer" and isinstance(value, bool)):
        yield f"{where} is {value!r}, no {kind}"
        return
    if "enum" in shape and value not in shape["enum"]:
        yield f"{where} is {value!r}, none of {shape['enum']}"
    if shape.get("format") == "date-time" and not _TIME.fullmatch(value):
        yield f"{where} is {value!r}, no time"
    if kind == "array":
        for i, item in enumerate(value):
            yield from _errors(item, shape["items"], f"{where}[{i}]", partial)
    elif kind == "object":
        yield from _object_errors(value, shape, where, partial)


def _object_errors(value: Mapping[str, Any], shape: Mapping[str, Any], where: str, partial: bool) -> Iterator[str]:
    properties = shape.get("properties")
    if properties is None:
        for key, item in value.items():
            yield from _errors(item, shape.get("additionalProperties", {}), f"{where}.{key}", partial)
        return
    if not partial:
        yield from (f"{where} lacks {key}" for key in shape.get("required", ()) if key not in value)
    for key, item in value.items():
        if key in properties:
            yield from _errors(item, properties[key], f"{where}.{key}", partial)
        else:
            yield f"{where} has no field {key}"
