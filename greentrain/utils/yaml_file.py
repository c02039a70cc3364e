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


def read(path: Path, what: str = "configuration") -> Any:
    """Return what a YAML file holds.

    Args:
        path: The file.
        what: Name of the file's content in messages, as ``configuration``.

    Raises:
        ConfigError: It cannot be read, is no UTF-8, or no YAML; names the file, and the line where there is one.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the {what} {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"cannot read the {what} {path}: byte {error.start + 1} is no UTF-8; save it as UTF-8"
        ) from error
    except ValueError as error:  # a NUL in the path
        raise ConfigError(f"cannot read the {what} {str(path)!r}: {error}") from error
    try:
        return _Loader(text).get_single_data()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid YAML: {_told(error)}") from error


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
