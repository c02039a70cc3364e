"""Whether gears, power caps and numbers of a profiling phase make sense together."""

import math
from collections.abc import Sequence

from greentrain.errors import ConfigError
from greentrain.profile_turns import LEAST_BLOCKS
from greentrain.types import Gear


def check_phase(
    gears: Sequence[Gear],
    caps: Sequence[float],
    rounds: int,
    warmup_steps: int,
    min_block_s: float,
    min_steps: int,
    max_steps: int,
) -> None:
    """Check what ``greentrain.profiling.GearProfiler`` is given; its arguments say what each means.

    Raises:
        ConfigError: The gears or numbers make no sense, or the steps do not suffice for two blocks a gear.
    """
    if not gears or len(set(gears)) != len(gears):
        raise ConfigError(f"profiling needs each gear once, at least one, not {[str(gear) for gear in gears]}")
    if not caps or len(set(caps)) != len(caps):
        raise ConfigError(f"profiling needs each power cap once, at least one, not {list(caps)}")
    for name, value, least in (
        ("rounds", rounds, LEAST_BLOCKS),
        ("warmup_steps", warmup_steps, 1),
        ("min_steps", min_steps, 1),
        ("max_steps", max_steps, LEAST_BLOCKS * len(gears) * (warmup_steps + min_steps)),
    ):
        if value < least:
            raise ConfigError(f"profiling {len(gears)} gears: {name} is {value}; it must be at least {least}")
    if not (math.isfinite(min_block_s) and min_block_s > 0):
        raise ConfigError(f"profiling: min_block_s is {min_block_s}; it must be a number of seconds above 0")
