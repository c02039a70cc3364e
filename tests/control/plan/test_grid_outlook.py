"""What a plan sees of grid and facility."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from greentrain.carbon.constant import ConstantSignal
from greentrain.carbon.replayed import GridTime
from greentrain.config.schema import PolicyConfig
from greentrain.control.plan.planner import PAST_H, GridOutlook, Overhead, PlannedJob, Planner
from greentrain.ledger.pue import ConstantPue, Facility, TracePue
from greentrain.policy.mpc import Mpc
from tests.control.plan.test_planner import T0_S, H, menu, run

FLAT = ConstantSignal(300.0, zone="test", source="test")
DAY, NIGHT = 1.6, 1.2
HOURS = [DAY] * 12 + [NIGHT] * 12


def _trace(tmp_path: Path, values: Sequence[float], start_s: float = T0_S) -> TracePue:
    times = (datetime.fromtimestamp(start_s + i * H, UTC).isoformat() for i in range(len(values)))
    path = tmp_path / "pue.csv"
    path.write_text("timestamp_utc,pue\n" + "".join(f"{t},{v}\n" for t, v in zip(times, values, strict=True)))
    return TracePue(path, 1.0)


def _rows(facility: Facility) -> list[bool]:
    """Return in which hours mpc works: ten hours of work in a day on a grid that never changes."""
    tokens, deadline_s = 150.0 * 10 * H, T0_S + 24 * H
    plan = Planner(
        PolicyConfig(name="mpc", tokens=tokens, deadline_h=24.0),
        job=PlannedJob(tokens=tokens, start_s=T0_S, deadline_s=deadline_s),
        time=GridTime(unix_s=0.0, grid_s=T0_S),
        grid=GridOutlook(FLAT, Overhead.of(facility, T0_S, deadline_s)),
        menu=menu(),
        make=Mpc,
        pausable=True,
    )
    return [word.action is not None for word in run(plan, 150.0)[:-1]]


def test_mpc_moves_work_to_the_hours_of_low_pue(tmp_path: Path) -> None:
    assert _rows(_trace(tmp_path, HOURS)) == [False] * 12 + [True] * 10
    assert _rows(ConstantPue(1.5)) == [True] * 10
    assert _rows(_trace(tmp_path, HOURS[:23])) == [True] * 10, "records that end before the deadline are left out"


def test_intensity_is_multiplied_by_the_pue_of_its_hour(tmp_path: Path) -> None:
    overhead = Overhead.of(_trace(tmp_path, HOURS), T0_S, T0_S + 24 * H)
    outlook = GridOutlook(FLAT, overhead)
    assert outlook.with_pue and not GridOutlook(FLAT).with_pue
    past, ahead = outlook.at(T0_S, 24 * H)
    assert ahead == pytest.approx(300.0 * np.array(HOURS))
    assert outlook.means(T0_S + np.arange(25) * H) == pytest.approx(ahead)
    assert past == pytest.approx(np.full(PAST_H, 300.0 * (DAY + NIGHT) / 2)), "no record: the mean of the job's time"
    later, _ = outlook.at(T0_S + 13 * H, 11 * H)
    assert later[-13:] == pytest.approx(300.0 * np.array(HOURS[:13]))
    assert outlook.past(T0_S + 13 * H) == pytest.approx(later)


def test_an_hour_across_the_deadline_counts_until_then(tmp_path: Path) -> None:
    facility = _trace(tmp_path, HOURS)
    overhead = Overhead.of(facility, T0_S, T0_S + 24 * H)
    assert overhead is not None
    edges_s = T0_S + np.array([22.5, 23.5, 24.5, 25.5]) * H
    assert overhead.means(edges_s) == pytest.approx([NIGHT, NIGHT, (DAY + NIGHT) / 2])


def test_what_nobody_records_for_the_whole_job_is_left_out(tmp_path: Path) -> None:
    facility = _trace(tmp_path, HOURS)
    assert Overhead.of(facility, T0_S, T0_S + 24 * H) is not None
    assert Overhead.of(facility, T0_S, T0_S + 24 * H + 60) is None
    assert Overhead.of(facility, T0_S - 60, T0_S + 24 * H) is None
    assert Overhead.of(ConstantPue(1.3), T0_S, T0_S + H) is None
