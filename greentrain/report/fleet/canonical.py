"""JSON in one way only, so that equal documents have equal bytes: RFC 8785, JSON Canonicalization Scheme (June 2020).

Keys are sorted by their UTF-16 code units, there is no space, and numbers are written as ECMAScript writes them
(ECMA-262, Number::toString). https://www.rfc-editor.org/rfc/rfc8785, read 2026-11-22.
"""

import json
import math
import sys
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

EXACT: Final = 2**53
"""Integers up to here are the same in every reader of JSON (RFC 8785, 3.2.2.3)."""


def canonical(value: Any) -> bytes:
    """Return the canonical form of a JSON value, in UTF-8.

    Raises:
        ValueError: It has no such form: a number that is not finite or that no double holds, half a character, or
            another type than JSON has.
    """
    return "".join(_parts(value)).encode("utf-8")


def _parts(value: Any) -> "list[str]":
    if value is None or isinstance(value, bool | str):
        return [json.dumps(value, ensure_ascii=False)]
    if isinstance(value, int):
        if abs(value) > EXACT and (abs(value) > sys.float_info.max or str(value) != _number(float(value))):
            raise ValueError(f"{value} is above 2**53: not every reader of JSON keeps it")
        return [str(value)]
    if isinstance(value, float):
        return [_number(value)]
    if isinstance(value, Mapping):
        out = ["{"]
        for i, key in enumerate(sorted(value, key=_utf16)):
            out += ["," if i else "", json.dumps(key, ensure_ascii=False), ":", *_parts(value[key])]
        return [*out, "}"]
    if isinstance(value, list | tuple):
        out = ["["]
        for i, item in enumerate(value):
            out += ["," if i else "", *_parts(item)]
        return [*out, "]"]
    raise ValueError(f"JSON has no {type(value).__name__}")


def _utf16(key: object) -> bytes:
    if not isinstance(key, str):
        raise ValueError(f"a key is {key!r}, and JSON has text as keys")
    return key.encode("utf-16-be")


def _number(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"{value} is no number of JSON")
    if value == 0.0:
        return "0"
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    text = "".join(map(str, digits)).rstrip("0")
    point = len(digits) + int(exponent)  # of the decimal point, behind so many digits
    return "-" * sign + _placed(text, point)


def _placed(digits: str, point: int) -> str:
    if len(digits) <= point <= 21:
        return digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{fraction}e{point - 1:+d}"
