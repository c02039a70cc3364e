"""Run the code of verl, OpenRLHF and ROLL that calls the adapters, out of checkouts, against the adapters and a server.

    python benchmarks/rlhf_frameworks.py verl=../verl openrlhf=../OpenRLHF roll=../ROLL

Nothing of a framework is installed: functions and classes are taken out of its files and run as they stand, with
stand-ins for configuration files, GPUs and, but for OpenRLHF's actors, Ray. A case fails where the framework's own code
and the adapter disagree on a number, a place in a tensor or an argument. What is not run: GPUs, a training step.
"""

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from typing import Any

import torch

from benchmarks.rlhf_frameworks_common import Cases, Letters
from benchmarks.rlhf_frameworks_openrlhf import openrlhf
from benchmarks.rlhf_frameworks_roll import roll
from benchmarks.rlhf_frameworks_verl import verl
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.frozen_pass import place
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.serve.server import Server
from greentrain.rlhf.text import TextEncoder
from greentrain.testing.offload_models import decoder, encoder

FRAMEWORKS = {"verl": verl, "openrlhf": openrlhf, "roll": roll}


def main(arguments: Sequence[str]) -> int:
    """Run what is given as NAME=CHECKOUT; return 1 if anything disagrees."""
    torch.set_num_threads(1)
    cases = Cases()
    with contextlib.closing(Emulator()) as device:
        engine = OffloadEngine(
            [place(PassKind.REWARD, encoder(types=0), device), place(PassKind.REFERENCE, decoder(), device)]
        )
        text = TextEncoder(_ForServer(), 64, special_tokens=False)

        def wanted(one: str) -> float:
            scores = engine.submit(PassKind.REWARD, text.batch([one])).result().scores
            assert scores is not None
            return float(scores[0, 0])

        with Server(engine, {PassKind.REWARD: text}) as server:
            os.environ["GREENTRAIN_URL"] = server.url
            print("| framework | its code | our numbers |\n|---|---|---|")
            for one in arguments:
                name, _, checkout = one.partition("=")
                FRAMEWORKS[name](Path(checkout).resolve(), server.url, wanted, cases)
    print(f"{cases.failed} disagree")
    return int(cases.failed > 0)


class _ForServer(Letters):
    def __call__(self, text: Any, **_: Any) -> dict[str, Any]:
        return {"input_ids": [[ord(letter) % 99 + 2 for letter in one] for one in text]}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
