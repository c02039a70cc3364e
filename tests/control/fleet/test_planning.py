"""What a fleet's controller knows of its grids."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from greentrain.control.fleet import planning
from greentrain.control.fleet.planning import Grids
from greentrain.control.fleet.spec import JobTerms
from greentrain.types import CarbonKind, CarbonPoint
from tests.control.fleet.test_controller import HOUR, START, configured, job, spec_in

NOISE = np.random.default_rng(0).uniform(100.0, 500.0, 400_000)


class Measured:
    """A grid that is known until now, and whose hours have nothing to do with each other."""

    zone = "XX"

    def mean(self, t0_unix_s: float, t1_unix_s: float) -> CarbonPoint:
        value = float(NOISE[int(t0_unix_s / HOUR) % len(NOISE)])
        return CarbonPoint(
            t0_unix_s=t0_unix_s, t1_unix_s=t1_unix_s, g_per_kwh=value, zone="XX", source="a test",
            kind=CarbonKind.ACTUAL,
        )  # fmt: skip

    def describe(self) -> Mapping[str, str]:
        return {"zone": "XX"}


def test_what_a_source_says_is_believed_and_a_profile_as_far_as_it_came_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_in(tmp_path)
    grids = Grids(spec)
    assert grids.hours(START, 48)[0][10] == pytest.approx(100.0) and grids.trust.tolist() == [1.0]
    grids.close()
    monkeypatch.setattr(planning, "open_signal", lambda config: Measured())
    grids = Grids(spec)
    (hours,) = grids.hours(START, 48)
    assert hours[0] == pytest.approx(Measured().mean(START, START).g_per_kwh) and grids.trust[0] < 0.3
    grids.close()


def test_a_look_reads_what_was_written_since_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, run = spec_in(tmp_path), tmp_path / "run"
    run.mkdir()
    terms = JobTerms(run=str(run), hours=1.0)
    asked: list[str] = []

    def counted(read: Callable[..., Any]) -> Callable[..., Any]:
        def reading(where: Any) -> Any:
            asked.append(Path(where).name)
            return read(where)

        return reading

    for name in ("read_object", "read_actions"):
        monkeypatch.setattr(planning, name, counted(getattr(planning, name)))

    def look() -> tuple[bool | None, list[str]]:
        asked.clear()
        found = planning.known(spec, job("1", ""), terms, "gpt-1", None, START)
        return found.run.obeys, sorted(asked)

    assert look() == (None, ["actions.yaml", "run", "run.json"]) and look() == (None, [])
    configured(run, "bf16")
    assert look() == (False, ["run", "run.json"]) and look() == (False, [])
    configured(run, "bf16", "fp8", demand={})
    assert look() == (True, ["run", "run.json"]) and look() == (True, [])
