"""When a card has saved the carbon that went into making it. ``never`` where it saves nothing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from greentrain.errors import ConfigError
from greentrain.ledger.embodied_table import DEVICES
from greentrain.simulator.pipeline.simulate import StepOutcome
from greentrain.types import G_PER_KG, S_PER_HOUR
from greentrain.utils.validation import bound


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFootprint:
    """Embodied carbon of one card (kgCO2e)."""

    low_kg: float
    mid_kg: float
    high_kg: float
    source: str

    def __post_init__(self) -> None:
        bound("embodied kg", self.low_kg, 0, 1e6)
        if not self.low_kg <= self.mid_kg <= self.high_kg <= 1e6:
            raise ConfigError(
                f"embodied kg {self.low_kg:g}, {self.mid_kg:g}, {self.high_kg:g}: give low, mid and high in this order"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """Until the grams that a step saves have paid for making the cards."""

    cards: int
    saved_g_per_step: float
    """Operational grams, PUE included; below 0: the cards emit more."""
    embodied_kg: tuple[float, float, float]
    """Of all cards: low, mid, high."""
    steps: tuple[float, float, float] | None
    """None: never."""
    hours: tuple[float, float, float] | None
    """Of training with the cards, without a break; None: never."""
    source: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; ``steps`` and ``hours`` are null where it is never."""
        return {
            "cards": self.cards,
            "saved_g_per_step": self.saved_g_per_step,
            "embodied_kg": list(self.embodied_kg),
            "never": self.steps is None,
            "steps": None if self.steps is None else list(self.steps),
            "hours": None if self.hours is None else list(self.hours),
            "source": self.source,
        }


def footprint(card: str, given_kg: Sequence[float] | None = None) -> CardFootprint | None:
    """Return the embodied carbon of a card: given, or of the table of devices; None where nobody knows.

    Args:
        card: Its name.
        given_kg: One number, or low, mid and high.

    Raises:
        ConfigError: Another number of numbers, or they are not in order.
    """
    if given_kg is not None:
        if len(given_kg) not in (1, 3):
            raise ConfigError(f"{len(given_kg)} figures of embodied carbon: give one, or low,mid,high (kg)")
        low, mid, high = given_kg if len(given_kg) == 3 else (given_kg[0],) * 3
        return CardFootprint(low_kg=low, mid_kg=mid, high_kg=high, source="given by the user")
    row = next((row for row in DEVICES if row.matches(card)), None)
    if row is None:
        return None
    return CardFootprint(
        low_kg=row.low_kg, mid_kg=row.mid_kg + row.server_kg, high_kg=row.high_kg + row.server_kg, source=row.source
    )


def break_even(home: StepOutcome, away: StepOutcome, card: CardFootprint, *, cards: int | None = None) -> BreakEven | None:
    """Return when cards are paid for; None where the grams of a step are unknown.

    Both outcomes do the same step, so the work is the same. Nothing is credited for the GPUs' own embodied carbon, of
    which a shorter step uses less time.

    Args:
        home: Without cards.
        away: With them.
        card: Embodied carbon of one.
        cards: How many; None: those of ``away``.
    """
    if home.g is None or away.g is None:
        return None
    number = away.cards if cards is None else cards
    kg = (number * card.low_kg, number * card.mid_kg, number * card.high_kg)
    saved_g = home.g - away.g
    steps = None
    if saved_g > 1e-12 * max(home.g, away.g) and number:
        low, mid, high = (math.ceil(value * G_PER_KG / saved_g) for value in kg)
        steps = (float(low), float(mid), float(high))
    hours = None if steps is None else tuple(count * away.line.step_s / S_PER_HOUR for count in steps)
    return BreakEven(
        cards=number,
        saved_g_per_step=saved_g,
        embodied_kg=kg,
        steps=steps,
        hours=None if hours is None else (hours[0], hours[1], hours[2]),
        source=card.source,
    )
