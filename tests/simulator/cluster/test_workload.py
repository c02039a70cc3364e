"""Jobs of a fleet: drawn like those of the traces, written, read, refused."""

from pathlib import Path

import numpy as np
import pytest

from greentrain.errors import ConfigError
from greentrain.policy.action_sources import reference_table
from greentrain.policy.menu import Menu
from greentrain.simulator.cluster.workload import AT_LEAST_H, LONGEST_H, MOST_H, Workload, menu_of_width
from tests.simulator.cluster.fleets import drawn, jobs

HOUR = 3600.0


def test_a_job_of_eight_nodes_has_the_reference_table() -> None:
    of_fleet, reference = menu_of_width(64), Menu.of(reference_table("T6"))
    assert np.allclose(of_fleet.tokens_per_s, reference.tokens_per_s)
    assert np.allclose(of_fleet.power_w, reference.power_w)
    assert (of_fleet.width == 8 * reference.width).all()


def test_what_is_drawn_brings_the_load_within_its_limits() -> None:
    work = Workload.drawn(count=2000, days=14, gpus=10_000, load=0.7)
    gpu_h = float(work.shortest_s @ work.gpus) / HOUR
    assert gpu_h == pytest.approx(0.7 * 10_000 * 14 * 24, rel=1e-3)
    assert (np.diff(work.release_s) >= 0).all() and work.release_s[-1] < 14 * 24 * HOUR
    assert work.shortest_s.min() >= HOUR * (1 - 1e-9) and work.shortest_s.max() <= LONGEST_H * HOUR * (1 + 1e-9)
    room_h = (work.deadline_s - work.release_s - work.shortest_s) / HOUR
    assert room_h.min() >= AT_LEAST_H - 1e-6 and room_h.max() <= MOST_H + 1
    assert (work.deadline_s % HOUR == 0).all()


def test_few_take_most_and_some_hours_are_busier() -> None:
    work = Workload.drawn(count=4000, days=14, gpus=20_000, load=0.7)
    gpu_s = np.sort(work.shortest_s * work.gpus)
    assert gpu_s[-400:].sum() > 0.5 * gpu_s.sum()
    by_hour = np.bincount((work.release_s // HOUR % 24).astype(int), minlength=24)
    assert by_hour[:6].sum() > 1.5 * by_hour[12:18].sum()
    counts = np.sort(np.bincount(work.user))[::-1]
    assert counts[0] == pytest.approx(2 * counts[1], rel=0.25)


def test_the_same_seed_draws_the_same_jobs_and_another_others() -> None:
    one, same, other = drawn(seed=3), drawn(seed=3), drawn(seed=4)
    assert (one.tokens == same.tokens).all() and (one.deadline_s == same.deadline_s).all()
    assert not np.array_equal(one.release_s, other.release_s)


def test_a_load_that_no_lengths_bring_is_refused_with_what_they_bring() -> None:
    with pytest.raises(ConfigError, match=r"5 jobs of 1 to 120 h bring .* times the load"):
        Workload.drawn(count=5, days=14, gpus=10_000, load=0.7)
    with pytest.raises(ConfigError, match="load is 3; it must be between"):
        Workload.drawn(count=5, days=14, gpus=10_000, load=3)


def test_wrong_estimates_are_wrong_by_what_is_asked() -> None:
    work = Workload.drawn(count=2000, days=14, gpus=10_000, load=0.7).with_errors(0.5)
    off = np.log(work.expected_tokens / work.tokens)
    assert off.std() == pytest.approx(0.5, rel=0.1) and abs(off.mean()) < 0.05


def test_jobs_are_read_as_they_were_written(tmp_path: Path) -> None:
    work = drawn().with_errors(0.3)
    work.write(tmp_path / "jobs.csv")
    read = Workload.read(tmp_path / "jobs.csv")
    for name in ("release_s", "deadline_s", "tokens", "expected_tokens", "gpus"):
        assert np.allclose(getattr(read, name), getattr(work, name)), name
    same_user = work.user[:, None] == work.user
    assert ((read.user[:, None] == read.user) == same_user).all()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("release_h,deadline_h,gpus\n0,1,8\n", r"line 2: 'gpu_h': a job needs"),
        ("release_h,deadline_h,gpus,gpu_h\n0,1,9,3\n", "a job has 9 GPUs"),
        ("release_h,deadline_h,gpus,gpu_h\n0,1,8,3\n5,x,8,3\n", "line 3: could not convert"),
        (
            "release_h,deadline_h,gpus,gpu_h\n5,4,8,3\n",
            r"the deadline of job 0 \(4 h\) is not after its release \(5 h\)",
        ),
        ("release_h,deadline_h,gpus,gpu_h\n", "has no jobs"),
    ],
)
def test_a_file_that_is_wrong_says_where(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "jobs.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        Workload.read(tmp_path / "jobs.csv")


def test_a_length_is_that_at_the_fastest() -> None:
    work = jobs((0, 10, 8, 2.5), (0, 10, 64, 4.0), (1, 10, 1, 3.0))
    assert work.shortest_s.tolist() == pytest.approx([2.5 * HOUR, 4.0 * HOUR, 3.0 * HOUR])
    assert work.widths == (1, 8, 64) and work.kind.tolist() == [1, 2, 0]
