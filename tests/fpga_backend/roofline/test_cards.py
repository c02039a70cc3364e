"""Constants: each with its source, none guessed."""

import math

import pytest

from greentrain.errors import ConfigError
from greentrain.fpga_backend.roofline.cards import (
    ASSUMED,
    CARDS,
    CONSTANTS,
    U55C,
    V80,
    CardSpec,
    assume,
    named,
)
from greentrain.fpga_backend.roofline.latency import check_card
from greentrain.utils.quantities import SourcedNumber, SourceKind


def test_cards_have_the_constants_of_the_table_and_no_others() -> None:
    for card in CARDS.values():
        assert card.constants.keys() <= CONSTANTS.keys()


@pytest.mark.parametrize("card", CARDS.values(), ids=lambda card: card.name)
def test_every_known_constant_says_where_it_is_from_and_none_is_assumed(card: CardSpec) -> None:
    for name in CONSTANTS:
        quantity = card.constants.get(name)
        if quantity is not None:
            assert quantity.kind in ("datasheet", "measured"), name
            assert len(quantity.source) > 20, name
            assert quantity.unit == CONSTANTS[name][0]


@pytest.mark.parametrize("card", CARDS.values(), ids=lambda card: card.name)
def test_what_has_no_figure_is_missing_and_the_error_names_all_of_it(card: CardSpec) -> None:
    missing = card.missing()
    assert {"idle_power_w", "mac8_j", "clock_hz"} <= set(missing)
    assert set(missing) == set(ASSUMED[card.name])
    with pytest.raises(ConfigError) as caught:
        check_card(card)
    for name in missing:
        if name != "queue_depth":
            assert f"{name} ({CONSTANTS[name][0]})" in str(caught.value)
    assert "--set" in str(caught.value) and "with_" in str(caught.value)


@pytest.mark.parametrize("card", CARDS.values(), ids=lambda card: card.name)
def test_assumed_values_are_taken_on_demand_only_and_labelled(card: CardSpec) -> None:
    full = assume(card)
    assert full.missing() == ()
    for name in CONSTANTS:
        assert (full.kind(name) == "assumed") == (name not in card.constants)
    check_card(full)


def test_assuming_leaves_what_the_user_gave() -> None:
    card = assume(U55C.with_(idle_power_w=21.0))
    assert card.value("idle_power_w") == 21.0
    assert "given by the user" in str(card.constant("idle_power_w"))


def test_a_constant_of_a_command_line() -> None:
    card = U55C.given("idle_power_w=21.5:measured").given("clock_hz=2.5e8")
    assert (card.value("idle_power_w"), card.kind("idle_power_w")) == (21.5, "measured")
    assert (card.value("clock_hz"), card.kind("clock_hz")) == (250e6, "assumed")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("idle_power=3", "Did you mean 'idle_power_w'"),
        ("idle_power_w", "name=value"),
        ("idle_power_w=nan", "finite"),
        ("idle_power_w=-1", "not negative"),
        ("idle_power_w=3:guessed", "known: datasheet, measured, assumed"),
        ("dsp_share=1.5", "(0, 1]"),
        ("clock_hz=0", "positive"),
    ],
)
def test_a_constant_that_cannot_be(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("(", r"\(").replace("]", r"\]")):
        U55C.given(text)


def test_a_quantity_of_another_unit() -> None:
    with pytest.raises(ConfigError, match="it is in W"):
        U55C.with_(idle_power_w=SourcedNumber(value=1.0, unit="mW", source="x", kind=SourceKind.MEASURED))


def test_cards_by_name() -> None:
    assert named("v80") is V80
    with pytest.raises(ConfigError, match="U55C, V80"):
        named("u280")


def test_bandwidth_of_the_data_sheet() -> None:
    assert U55C.value("memory_bytes_per_s") == 32 * 14.375e9
    assert math.isclose(U55C.value("memory_bytes_per_s") * U55C.value("memory_efficiency"), 400e9)
