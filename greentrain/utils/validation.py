"""Checks and conversions of configured values: every error names key, value, bound and remedy."""

import contextlib
import dataclasses
import difflib
import math
import re
import reprlib
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

from greentrain.errors import ConfigError

T = typing.TypeVar("T")
_EXPONENT: Final = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")
"""YAML 1.1 reads ``2.0e9`` as text: it wants ``2.0e+9`` (https://yaml.org/type/float.html, 2026-11-21)."""
_YES_NO: Final = {"yes": True, "on": True, "no": False, "off": False}
"""What YAML 1.1 reads as true and false, too (https://yaml.org/type/bool.html, 2026-11-22)."""
_STEP: Final = re.compile(r"[0-9]{1,18}")
UNIONS: Final = (typing.Union, types.UnionType)


_MOST_SHOWN: Final = 300
"""Characters of a value in a message."""


_BRIEF: Final = reprlib.Repr()
_BRIEF.maxlevel, _BRIEF.maxlist, _BRIEF.maxtuple, _BRIEF.maxdict = 3, 12, 12, 12
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = _MOST_SHOWN


def shown(value: object) -> str:
    """Return a value as a message names it: as ``repr``, but never longer than a few lines, whatever it is."""
    try:
        text = _BRIEF.repr(value)
    except ValueError:  # a whole number of more than 4300 digits, which Python prints nowhere
        return "a number of thousands of digits"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


@dataclass(frozen=True, slots=True)
class Bound:
    """The rule of a field that its number is finite and within bounds, as in ``Annotated[float, Bound(0.0, 1.0)]``."""

    low: float
    high: float

    def __call__(self, key: str, value: float) -> None:
        """Check the value of a key."""
        bound(key, value, self.low, self.high)


@dataclass(frozen=True, slots=True)
class Choice:
    """The rule of a field that its word is one of these."""

    allowed: tuple[str, ...]

    def __call__(self, key: str, value: str) -> None:
        """Check the value of a key."""
        choice(key, value, self.allowed)


@dataclass(frozen=True, slots=True)
class NotEmpty:
    """The rule of a field that its text or list holds something."""

    remedy: str

    def __call__(self, key: str, value: typing.Sized) -> None:
        """Check the value of a key."""
        if not value:
            raise ConfigError(f"{key} is empty: {self.remedy}")


def check_fields(values: Any, where: str = "") -> None:
    """Check every field of a dataclass by the rules in its annotation.

    A rule is a callable that takes key and value and raises ConfigError: Bound, Choice, NotEmpty, or a function such
    as :func:`folder_name`. It may stand at a field, at the items of a tuple or mapping, or at one kind of several.

    Args:
        values: The dataclass, usually in its own ``__post_init__``.
        where: Section that the keys of the message begin with, as ``actuators.width``.

    Raises:
        ConfigError: A value breaks a rule; names the key, the value and what it may be.
    """
    cls: type = type(values)
    for name, hint in _rules(cls).items():
        _check(hint, getattr(values, name), f"{where}.{name}" if where else name)


@cache
def _rules(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _check(hint: Any, value: Any, key: str) -> None:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        _check(args[0], value, key)
        for rule in args[1:]:
            rule(key, value)
    elif origin in UNIONS:
        for option in args:
            if _takes(option, value):
                _check(option, value, key)
    elif origin is tuple:
        for item_hint, item in zip(args[:1] * len(value) if args[1:] == (...,) else args, value, strict=True):
            _check(item_hint, item, key)
    elif origin is Mapping:
        for name, item in value.items():
            _check(args[1], item, f"{key}[{shown(name)}]")


def _takes(hint: Any, value: Any) -> bool:
    """Return whether a value is of one kind of several, where Python's own callers may pass 1 for 1.0 and a list."""
    plain = typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint
    kind = typing.get_origin(plain) or plain
    return isinstance(value, {float: (float, int), tuple: (tuple, list)}.get(kind, kind))


def bound(key: str, value: float, low: float, high: float) -> None:
    """Check that a number is finite and within its bounds."""
    if not (low <= value <= high and abs(value) != math.inf):  # isfinite() takes no whole number above 1e308
        raise ConfigError(f"{key} is {shown(value)}; it must be between {low:g} and {high:g}")


def moment(key: str, text: str) -> datetime:
    """Return a point in time that was written with its offset."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"{key} is {shown(text)}; write it as ISO 8601, such as 2022-06-01T00:00Z") from error
    if found.tzinfo is None:
        raise ConfigError(f"{key} is {shown(text)}, without a time zone: append Z for UTC, or an offset such as +02:00")
    return found


def folder_name(key: str, name: str) -> None:
    """Check that a text can be the name of a folder, and of none that lies elsewhere."""
    if not name or name.startswith(".") or any(c in name for c in "/\\\0\n") or not name.isprintable():
        raise ConfigError(
            f"{key} is {shown(name)}, but it becomes a folder's name: use letters, digits, '-', '_' and '.' only, not"
            " starting with '.'"
        )


def choice(key: str, value: str, allowed: tuple[str, ...]) -> None:
    """Check that a word is one of those allowed."""
    if value not in allowed:
        raise ConfigError(f"{key} is {shown(value)}; known: {', '.join(allowed)}{nearest(value, allowed)}")


def nearest(word: str, known: typing.Iterable[str]) -> str:
    """Return a question that names the nearest known word; empty if none is near."""
    near = difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.5)
    return f". Did you mean {str(near[0])!r}?" if near else ""


def load(cls: type[T], source: Any, what: str, keys: str) -> T:
    """Return settings that are given as a YAML file, a mapping or an object, every key checked.

    Args:
        cls: Dataclass of the settings.
        source: Path of a YAML file, a mapping, or settings of this class, which are returned as they are.
        what: Name of the settings in messages.
        keys: Words for what a file should hold, for the message where it holds something else.

    Raises:
        ConfigError: Names the file, key, value, bound and remedy.
    """
    if isinstance(source, cls):
        return source
    if isinstance(source, Mapping):
        return build(cls, source, where="")
    if not isinstance(source, (str, Path)):
        raise ConfigError(f"{what} is a {type(source).__name__}; pass a path, a mapping or a {cls.__name__}")
    from greentrain.utils.yaml_file import read  # loads yaml

    data = read(Path(source), what)
    if data is not None and not isinstance(data, Mapping):
        raise ConfigError(f"{source} holds {type(data).__name__}; expected {keys}")
    try:
        return build(cls, data or {}, where="")
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error


def build(cls: type[T], data: Mapping[str, Any], where: str) -> T:
    """Return a section from its mapping, every key checked."""
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for key, value in data.items():
        if key not in hints:
            raise ConfigError(
                f"unknown key {where}{key!s:.200}; known here: {', '.join(sorted(hints))}{nearest(str(key), hints)}"
            )
        values[key] = _convert(hints[key], value, where + str(key))
    for needed in dataclasses.fields(cls):  # type: ignore[arg-type]
        without = needed.default is dataclasses.MISSING and needed.default_factory is dataclasses.MISSING
        if without and needed.init and needed.name not in values:
            raise ConfigError(f"{where}{needed.name} is missing, and there is no default for it")
    return cls(**values)


def _convert(hint: Any, value: Any, key: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if value is None:
            value = {}
        if isinstance(value, hint):  # type: ignore[arg-type]
            return value
        if not isinstance(value, Mapping):
            known = ", ".join(sorted(typing.get_type_hints(hint)))
            raise ConfigError(f"{key} is {shown(value)}; it must be a section with keys: {known}")
        return build(hint, value, where=f"{key}.")  # type: ignore[arg-type]
    if typing.get_origin(hint) in UNIONS:
        if value is None and type(None) in typing.get_args(hint):
            return None
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        if isinstance(value, list) and any(isinstance(one, Mapping) for one in value):  # whose own mistake says more
            options = [option for option in options if _takes(option, value)] or options
        if len(options) == 1:
            return _convert(options[0], value, key)
        for option in options:
            with contextlib.suppress(ConfigError):
                return _convert(option, value, key)
        raise _mismatch(key, value, *options)
    return _convert_leaf(hint, value, key)


def _convert_leaf(hint: Any, value: Any, key: str) -> Any:
    if hint is Any:  # checked by whoever it is handed to
        return value
    origin = typing.get_origin(hint) or hint
    if typing.get_args(hint)[:1] == (tuple[int, str],) and isinstance(value, (list, tuple, Mapping)):
        return _pairs(value, key)
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            raise ConfigError(f"{key} is {shown(value)}; it must be below {sys.float_info.max:.2g}") from error
    if hint is float and isinstance(value, str) and _EXPONENT.fullmatch(value):
        return float(value)
    if hint is int and _is_whole(value):
        return int(value)
    if hint is bool and isinstance(value, str) and value.lower() in _YES_NO:
        return _YES_NO[value.lower()]
    if hint in (bool, str) and type(value) is hint:
        return value
    if origin is tuple and isinstance(value, (list, tuple)):
        inner = typing.get_args(hint)[0]
        return tuple(_convert(inner, item, f"{key}[{i}]") for i, item in enumerate(value))
    if origin is Mapping and isinstance(value, Mapping):
        item = typing.get_args(hint)[1]
        return {str(k): _convert_leaf(item, v, f"{key}[{k!r}]") for k, v in value.items()}
    raise _mismatch(key, value, hint)


def _pairs(value: Any, key: str) -> tuple[tuple[int, str], ...]:
    rows = list(value)
    if isinstance(value, Mapping):  # whose keys are text in JSON
        rows = [(int(k) if type(k) is str and _STEP.fullmatch(k) else k, name) for k, name in value.items()]
    if all(isinstance(r, (list, tuple)) and len(r) == 2 and _is_whole(r[0]) and type(r[1]) is str for r in rows):
        return tuple((int(step), name) for step, name in rows)
    raise ConfigError(f"{key} is {shown(value)}; expected a list of [step, gear], such as [[0, bf16], [100, fp8]]")


def _is_whole(value: Any) -> bool:
    return type(value) is int or (type(value) is float and value.is_integer())


def _mismatch(key: str, value: Any, *hints: Any) -> ConfigError:
    wanted = " or ".join(_name(hint) for hint in hints)
    quotes = "; put text in quotes" if str in hints and not isinstance(value, (list, tuple, Mapping)) else ""
    return ConfigError(f"{key} is {shown(value)} ({type(value).__name__}); expected {wanted}{quotes}")


def _name(hint: Any) -> str:
    if typing.get_origin(hint) is tuple:
        return f"list of {_name(typing.get_args(hint)[0])}"
    return str(getattr(hint, "__name__", hint))
