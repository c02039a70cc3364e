"""Jobs, windows and the times that people write."""

import numpy as np
import pytest

from greentrain.errors import ConfigError, TraceError
from greentrain.simulator.jobs import Jobs, terms_of, windows
from tests.simulator.grids import HOUR, START, moments, trace

YEAR = trace(np.full(8760, 300.0))


def test_windows_lie_one_behind_the_other_where_they_fit() -> None:
    starts = (windows(YEAR, 24, length_s=336 * HOUR) - START) / HOUR
    assert starts.tolist() == [504.0 + 336.0 * i for i in range(24)]


def test_more_windows_overlap() -> None:
    starts = (windows(YEAR, 40, length_s=336 * HOUR, history_h=0) - START) / HOUR
    assert starts[0] == 0 and len(starts) == 40
    assert set(np.diff(starts)) == {216.0}
    assert starts[-1] + 336 <= 8760


def test_a_trace_shorter_than_the_horizon() -> None:
    with pytest.raises(TraceError, match=r"covers 48 h, which is shorter than 504 h of history and the 24 h of a job"):
        windows(trace(np.full(48, 300.0)), 1, length_s=24 * HOUR)
    assert windows(trace(np.full(48, 300.0)), 1, length_s=24 * HOUR, history_h=24).tolist() == [START + 24 * HOUR]
    with pytest.raises(ConfigError, match="windows is 0"):
        windows(YEAR, 0, length_s=HOUR)


@pytest.mark.parametrize(
    ("tokens", "deadline_s", "said"),
    [
        (0.0, 1.0, "tokens of job 0 is 0; it must be above 0"),
        (-3.0, 1.0, "is -3"),
        (np.nan, 1.0, "is nan"),
        (1.0, 0.0, "deadline of job 0 is 0 s after its start"),
        (1.0, -5.0, "is -5 s after its start"),
    ],
)
def test_jobs_that_cannot_be(tokens: float, deadline_s: float, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Jobs.alike(np.array([START]), tokens=tokens, deadline_s=deadline_s)


def test_jobs_need_a_start() -> None:
    with pytest.raises(ConfigError, match="0 starts, 0 deadlines and 0 numbers of tokens"):
        Jobs.alike(np.array([]), tokens=1.0, deadline_s=1.0)


def test_seeds_repeat_each_window() -> None:
    jobs = Jobs.alike(np.array([1.0, 2.0]), tokens=3.0, deadline_s=4.0, seeds=2)
    assert jobs.start_unix_s.tolist() == [1.0, 1.0, 2.0, 2.0]


def test_times_need_their_zone_and_a_deadline_lies_ahead() -> None:
    assert moments(["2022-01-01T00:00Z", "2022-01-01T01:00+01:00"]).tolist() == [START, START]
    terms = terms_of(1.0, "2022-01-02T00:00Z", "2022-01-01T00:00Z")
    assert terms.deadline_s - terms.start_s == 24 * HOUR
    with pytest.raises(ConfigError, match=r"start is '2022-01-01T00:00', without a time zone"):
        moments(["2022-01-01T00:00"])
    with pytest.raises(ConfigError, match=r"deadline is '2022-01-01T00:00Z', 3 h before the start"):
        terms_of(1.0, "2022-01-01T00:00Z", "2022-01-01T03:00Z")
