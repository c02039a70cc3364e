"""What physics allows a step with cards, and when cards have paid for their making.

The split of a step that was published for an RLHF pipeline with cards beside the GPUs stands here as an example. Cards
are paid for once they have saved the carbon that went into making them, which is never where they save nothing.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from greentrain.errors import ConfigError
from greentrain.ledger.embodied import DEVICES
from greentrain.policy.offload.stages import MOVABLE, Stage
from greentrain.simulator.pipeline.simulate import StepOutcome, amdahl
from greentrain.simulator.pipeline.table import PipelineTable
from greentrain.simulator.pipeline.table_sources import read_table
from greentrain.types import G_PER_KG, S_PER_HOUR
from greentrain.utils.validation import bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """The most that moving some passes can bring."""

    passes: tuple[Stage, ...]
    share: float
    """Of the step with everything on the GPUs."""
    speedup: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {"passes": [str(stage) for stage in self.passes], "share": self.share, "speedup": self.speedup}


def caps(table: PipelineTable) -> tuple[Cap, ...]:
    """Return the caps of Amdahl's law: of the reward alone, with the reference, and of all passes of the step."""
    sets = [(Stage.REWARD,), (Stage.REWARD, Stage.REFERENCE), MOVABLE]
    found: dict[frozenset[Stage], Cap] = {}
    for wanted in sets:
        there = tuple(stage for stage in wanted if stage in table.rows)
        if there:
            speedup = amdahl(table, there)
            found.setdefault(frozenset(there), Cap(passes=there, share=1 - 1 / speedup, speedup=speedup))
    return tuple(found.values())


NAME: Final = "published"


def published() -> PipelineTable:
    """Return the table of ``published.yaml``."""
    found = read_table(Path(__file__).with_name("published.yaml"))
    note = (
        "Published: the shares 43/21/36 and the 21 s. Assumed: into which passes the 21 % fall, 256 rollouts of "
        "512 tokens, and all watts, of one GPU."
    )
    rows = {stage: found.rows[stage] for stage in (Stage.GENERATE, *MOVABLE, Stage.TRAIN)}
    return dataclasses.replace(found, rows=rows, embodied_source="", notes=(note,))


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
        return {**dataclasses.asdict(self), "never": self.steps is None}


def footprint(card: str, given_kg: Sequence[float] | None = None) -> CardFootprint | None:
    """Return the embodied carbon of a card: given, or of the table of devices; None where nobody knows.

    Args:
        card: Name of the card.
        given_kg: Embodied carbon of a card (kgCO2e): one number, or low, mid and high; None: the table's.

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


def break_even(home: StepOutcome, away: StepOutcome, card: CardFootprint) -> BreakEven | None:
    """Return when cards are paid for; None where the grams of a step are unknown.

    Both outcomes do the same step, so the work is the same. Nothing is credited for the GPUs' own embodied carbon, of
    which a shorter step uses less time.

    Args:
        home: Step without cards.
        away: Step with the cards.
        card: Embodied carbon of one card.
    """
    if home.g is None or away.g is None:
        return None
    kg = (away.cards * card.low_kg, away.cards * card.mid_kg, away.cards * card.high_kg)
    saved_g = home.g - away.g
    steps = None
    if saved_g > 1e-12 * max(home.g, away.g) and away.cards:
        low, mid, high = (math.ceil(value * G_PER_KG / saved_g) for value in kg)
        steps = (float(low), float(mid), float(high))
    hours = None if steps is None else tuple(count * away.line.step_s / S_PER_HOUR for count in steps)
    return BreakEven(
        cards=away.cards,
        saved_g_per_step=saved_g,
        embodied_kg=kg,
        steps=steps,
        hours=None if hours is None else (hours[0], hours[1], hours[2]),
        source=card.source,
    )
