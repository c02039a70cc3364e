"""A process like a training: it changes the limits and clocks of its GPUs at random until it is killed.

Words: ``fork`` leaves a child that holds every open file, as data loader workers do; ``slow`` stops after one change;
``leave`` ends by os._exit then; ``old`` is a kernel without pidfd_open.
Prints its guardian's pid after the first change, then the child's.
"""

import os
import random
import sys
import time

from greentrain.config.schema import ClocksConfig, PowerCapConfig
from greentrain.control.actuators.clocks import open_clocks
from greentrain.control.actuators.guardian import Guardian
from greentrain.control.actuators.power_cap import open_power_cap
from greentrain.types import Topology


def main(words: list[str]) -> None:
    def said(sentence: str) -> None:
        print(f"WARNED {sentence}", flush=True)

    if "old" in words:
        del os.pidfd_open
    guardian = Guardian()
    cap = open_power_cap(PowerCapConfig(fractions=(1.0, 0.9, 0.8, 0.7, 0.6, 0.5)), Topology(), said, guardian=guardian)
    clocks = open_clocks(ClocksConfig(), Topology(), said, guardian=guardian)
    if cap is None or clocks is None:
        sys.exit(3)
    cap.apply(0.6, at_once=True)
    clocks.apply(0.3)
    child = os.fork() if "fork" in words else None
    if child == 0:
        time.sleep(60)
        os._exit(0)
    print(f"{guardian.pid} {child or 0}", flush=True)
    if "leave" in words:
        os._exit(7)
    while "slow" in words:
        time.sleep(1)
    chance = random.Random(os.getpid())
    while True:
        cap.apply(chance.choice(cap.fractions), at_once=True)
        clocks.apply(chance.choice((0.0, 0.15, 0.3)))
        time.sleep(chance.choice((0.0, 0.0, 0.001, 0.01)))


if __name__ == "__main__":
    main(sys.argv[1:])
