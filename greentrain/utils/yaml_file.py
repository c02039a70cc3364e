"""A user's file as a document: YAML in which no key is there twice, and words and dates stay the text that they are."""

import re
from pathlib import Path
from typing import Any, Final

import yaml

from greentrain.errors import ConfigError

_BOOL: Final = "tag:yaml.org,2002:bool"
_BY_FORM: Final = (_BOOL, "tag:yaml.org,2002:timestamp")
"""YAML 1.1 reads NO, the zone of Norway, as false, and 2022-06-01 as a date (https://yaml.org/type/, 2026-11-22);
YAML 1.2 and editors do not, and so they are text here."""

_MOST_BYTES: Final = 1 << 20
"""Of a file that somebody writes by hand; a configuration with every key has 20 kB."""
_MOST_VALUES: Final = 100_000


def read(path: Path, what: str = "configuration") -> Any:
    """Return what a YAML file holds.

    Args:
        path: The file.
        what: Name of the file's content in messages, as ``configuration``.

    Raises:
        ConfigError: It cannot be read, is no UTF-8, or no YAML; names the file, and the line where there is one.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ConfigError(f"the {what} {path} has more than {_MOST_BYTES} bytes: is it the file that you mean?")
        text = data.decode()
    except OSError as error:
        raise ConfigError(f"cannot read the {what} {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"cannot read the {what} {path}: byte {error.start + 1} is no UTF-8; save it as UTF-8"
        ) from error
    except ValueError as error:  # a NUL in the path
        raise ConfigError(f"cannot read the {what} {str(path)!r}: {error}") from error
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _count_values(node, {})
        return loader.construct_document(node)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid YAML: {_told(error)}") from error


def _count_values(node: yaml.Node, counted: dict[int, int]) -> int:
    """Return how many values a node stands for, those behind aliases each time: ten of ten of ten are a thousand.

    Args:
        node: The node.
        counted: What is known of nodes by their identity.

    Raises:
        MarkedYAMLError: They are more than anybody writes, or one holds itself.
    """
    if id(node) not in counted:
        counted[id(node)] = _MOST_VALUES  # for one that holds itself
        inside = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = [part for item in inside for part in (item if isinstance(item, tuple) else (item,))]
        counted[id(node)] = 1 + sum(_count_values(part, counted) for part in parts)
        if counted[id(node)] > _MOST_VALUES:
            problem = f"its aliases (*name) make more than {_MOST_VALUES} values of it; write them out"
            raise yaml.MarkedYAMLError(None, None, problem, node.start_mark)
    return counted[id(node)]


def _told(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return " ".join(str(error).split())
    assert isinstance(error, yaml.MarkedYAMLError)
    return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    problem = f"the key {key.value!r} is there twice; keep one"
                    raise yaml.MarkedYAMLError(None, None, problem, key.start_mark)
                seen.add(key.value)
        return node


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if tag not in _BY_FORM]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF"))
