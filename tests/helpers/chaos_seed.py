"""The seed of the tests of chaos and storms."""

import os
import random


def chaos_seed() -> int:
    """Return ``GREENTRAIN_CHAOS_SEED``; where it says ``any``, another each time; where it is not set, 1: CI's."""
    seed = os.environ.get("GREENTRAIN_CHAOS_SEED", "1")
    return random.SystemRandom().randrange(10**6) if seed == "any" else int(seed)
