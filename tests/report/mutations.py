"""Run folders with a few values exchanged for odd but valid JSON: what a seeded fuzz of every reader is fed with."""

import copy
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from greentrain.types import GearUse, Provenance
from tests.report.planned_run import planned
from tests.report.run_folders import CPU, GPU, LAYERS, T0_S, Folder, device, entry

CONTROL: Final = "\x1b]0;title\x07\x1b[2J\x1b]52;c;eA==\x07\x9b31m\u202eexe\r\n\b"
"""Sets a terminal's title, clears it, writes its clipboard, colours it and turns letters around."""
ODD: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1e308, -1e308, float("nan"), float("inf"), "", "x", "\ud800", CONTROL, "[/x]", [], {},
    [[]], {"a": {}}, 10**30, 10**400, "9" * 50, [None], {"": None}, -5e-324, 1e-320, "missing", "measured", 2**63,
    [1, 2],
)  # fmt: skip


def sound(root: Path, which: int) -> Path:
    """Return one of a few runs that hold most kinds of record: gears, layers, a plan, a resume, several ranks."""
    if which == 0:
        return planned(root, ranks=2, modelled=0.1)
    use = GearUse(energy_j=3000.0, device_s=20.0, seconds=10.0, steps=10, tokens=100)
    told = {"util_s": 3.0, "sm_s": 2.0, "memory_s": 1.0, "temp_s": 3.0, "c_s": 180.0, "max_c": 61.0, "clocks_s": 3.0}
    devices = {"GPU-0": replace(device(3000.0), states={"forward": told}), "cpu": device(500.0, Provenance.MODELLED)}
    entries = [
        entry(
            T0_S + 10 * i,
            T0_S + 10 * i + 10,
            devices if i != 2 else {"GPU-0": device(0.0, Provenance.MISSING, 10.0), "cpu": devices["cpu"]},
            tokens=100,
            embodied_g=0.07,
            gears={"bf16": use},
            step_groups=[(5, T0_S + 10 * i + 5, 1700.0, 50), (5, T0_S + 10 * i + 10, 1700.0, 50)],
        )
        for i in range(4)
    ]
    folder = Folder(root, "geared", layers=LAYERS, gear_backend="torch", tags={"project": "p", "team": "t"})
    event = {"t": T0_S + 3, "name": "warning", "text": "a sensor was late"}
    folder.rank(0, [GPU, CPU], entries[:2], reason=None, events=[event, {**event, "name": "gear", "gear": "bf16"}])
    folder.rank(0, [GPU, CPU], entries[2:], excluded=[{"uid": "GPU-1", "name": "H100", "reason": "another run"}])
    return folder.path


@dataclass(frozen=True, slots=True)
class Mutation:
    """What was changed, for the message of a test that fails."""

    file: str
    at: tuple[Any, ...]
    value: Any


def mutate(folder: Path, originals: dict[str, bytes], seed: int) -> list[Mutation]:
    """Write the original files with one to three values exchanged, or keys left out.

    Args:
        folder: The run's folder.
        originals: Content of run.json and the journals by name.
        seed: Seed that decides what.
    """
    chance = random.Random(seed)
    name = chance.choice(["run.json", *(n for n in originals for _ in range(2) if n != "run.json")])
    lines: list[Any] = [json.loads(line) for line in originals[name].splitlines()]
    done = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        at = chance.choice(list(places(lines)))
        inside: Any = lines
        for step in at[:-1]:
            inside = inside[step]
        if isinstance(inside, dict) and chance.random() < 0.2:
            value: Any = "(left out)"
            del inside[at[-1]]
        else:
            value = inside[at[-1]] = copy.deepcopy(chance.choice(ODD))
        done.append(Mutation(name, at, repr(value)[:60]))
    for other, content in originals.items():
        (folder / other).write_bytes(content)
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return done


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every value in nested lists and mappings: the keys that lead to it."""
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, item in items:
        yield (*at, key)
        yield from places(item, (*at, key))
