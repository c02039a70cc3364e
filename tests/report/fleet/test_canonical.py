"""The canonical form, against the samples of RFC 8785."""

import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from greentrain.report.fleet.audit import canonical

NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}
"""RFC 8785, appendix B: bits of a double and its text."""


@pytest.mark.parametrize(("bits", "text"), NUMBERS.items())
def test_the_rfcs_numbers(bits: str, text: str) -> None:
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(value).decode() == text


def test_the_rfcs_order_of_keys() -> None:
    """RFC 8785, 3.2.3."""
    source = (
        '{"\\u20ac": "Euro Sign", "\\r": "Carriage Return", "\\ufb33": "Hebrew Letter Dalet With Dagesh",'
        ' "1": "One", "\\ud83d\\ude00": "Emoji: Grinning Face", "\\u0080": "Control",'
        ' "\\u00f6": "Latin Small Letter O With Diaeresis"}'
    )
    values = list(json.loads(canonical(json.loads(source))).values())
    assert [value.split()[0] for value in values] == [
        "Carriage", "One", "Control", "Latin", "Euro", "Emoji:", "Hebrew",
    ]  # fmt: skip


def test_the_rfcs_example() -> None:
    """RFC 8785, 3.2.2 and 3.2.4."""
    source = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": '\u20ac$\u000f\nA\'B"\\\\"/',
        "literals": [None, True, False],
    }
    assert canonical(source).decode() == (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), 2**60 + 1, 10**400, -(10**400), "\ud800", {1: 2}, {"a": {3}}, b"x"]
)
def test_what_has_no_form_is_refused(value: Any) -> None:
    with pytest.raises(ValueError):
        canonical(value)


_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
_NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
_LARGE = st.sampled_from([10**20, 67751274985178208.0])
_JSON = st.recursive(
    st.none() | st.booleans() | _NUMBERS | _LARGE | _TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(_TEXT, inner),
    max_leaves=10,
)


@settings(max_examples=50)
@given(_JSON)
def test_reading_it_back_changes_nothing(value: Any) -> None:
    once = canonical(value)
    again = json.loads(once)
    assert canonical(again) == once
    assert json.loads(once, parse_int=float) == json.loads(json.dumps(value), parse_int=float)  # as JavaScript reads
