"""What a rank draws while it rests between two steps, measured once."""

import time
from typing import Final

from greentrain.actors import Actors
from greentrain.actuators.pause import PHASE

SENSORS_S: Final = 4.0
"""How long to wait for the sensors to report a rest (s)."""


def resting_power_w(actors: Actors, rest_s: float, *, books_all: bool) -> float | None:
    """Return what this rank draws while it rests (W); None where no sensor says.

    Args:
        actors: Mark the phase and read the sensors.
        rest_s: How long (s); the first half is for clocks to fall.
        books_all: The rank books what others leave to it, so without a device nothing is known.
    """
    token = actors.begin(PHASE)
    time.sleep(rest_s / 2)
    t0_s = time.monotonic()
    time.sleep(rest_s / 2)
    t1_s = time.monotonic()
    actors.end(PHASE, token)
    joules = actors.energy(t0_s, t1_s, SENSORS_S)
    if joules is None or (books_all and not joules):  # the others' devices may be booked by rank 0
        return None
    return sum(joules.values()) / (t1_s - t0_s)
