"""Clocks follow the stalls of a simulated pipeline, and never cost more speed than allowed."""

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from greentrain.config.schema import ClocksConfig
from greentrain.control.actuators import clocks
from greentrain.control.actuators.clocks import FORGET, MOST, StallControl, StallWindow

CONFIG = ClocksConfig()


@dataclass
class Pipeline:
    """A loader beside (``ahead`` = 1) or between the steps (0), and a GPU whose steps last as its clock says."""

    data_s: float
    compute_s: float = 1.0
    ahead: float = 1.0
    """Share of the step during which the loader may work."""
    memory: float = 0.0
    """Share of a step's computing that does not depend on the clock."""
    noise: float = 0.0
    dice: random.Random = field(default_factory=lambda: random.Random(3))

    def step(self, below: float) -> tuple[float, float]:
        """Return the seconds of a step, and those of it that wait for data."""
        compute_s = self.compute_s * (self.memory + (1 - self.memory) / (1 - below))
        wait_s = max(0.0, self.data_s - self.ahead * compute_s)
        return compute_s + wait_s, wait_s

    def slowdown(self, below: float) -> float:
        return 1 - self.step(0.0)[0] / self.step(below)[0]

    def window(self, below: float) -> StallWindow:
        step_s, wait_s = self.step(below)
        share = wait_s / step_s
        return StallWindow(
            stalled_share=min(1.0, max(0.0, share * (1 + self.dice.gauss(0, self.noise)))),
            steps_per_s=max(1e-6, (1 + self.dice.gauss(0, self.noise)) / step_s),
        )


def _run(control: StallControl, pipeline: Pipeline, windows: int) -> list[float]:
    """Return the level of every window."""
    levels = []
    for _ in range(windows):
        levels.append(control.below)
        control.after(pipeline.window(control.below))
    return levels


def _lost(pipeline: Pipeline, levels: list[float]) -> float:
    """Return the share of steps that the levels have cost."""
    speeds = [1 / pipeline.step(level)[0] for level in levels]
    return 1 - statistics.fmean(speeds) * pipeline.step(0.0)[0]


def test_clocks_go_down_to_the_lowest_where_data_is_what_is_waited_for() -> None:
    control = StallControl(CONFIG)
    levels = _run(control, Pipeline(data_s=2.5), 50)
    assert list(dict.fromkeys(levels)) == [0.0, 0.15, 0.3]
    assert levels.index(0.15) == MOST  # not before there is something to compare with
    assert "waiting for data" in control.reason and control.changes == 2


@pytest.mark.parametrize("data_s", [0.0, 0.9, 1.3])  # shares of 0, 0 and 23 %
def test_without_stalls_clocks_are_left_alone(data_s: float) -> None:
    control = StallControl(CONFIG)
    assert set(_run(control, Pipeline(data_s=data_s, noise=0.02), 500)) == {0.0}


def test_a_loader_that_only_works_between_steps_is_found_out_and_full_clocks_are_kept() -> None:
    control = StallControl(CONFIG)
    pipeline = Pipeline(data_s=0.8, ahead=0.0)  # 44 % stalls, and every slower step is a longer one
    assert pipeline.slowdown(0.15) > 0.08
    levels = _run(control, pipeline, 2000)
    assert levels[-1] == 0.0 and control.changes <= 12
    assert _lost(pipeline, levels) < 0.01
    assert "slower at 15% below" in control.reason


def test_a_level_that_is_too_low_is_followed_by_one_half_way() -> None:
    pipeline = Pipeline(data_s=1.5, ahead=0.95)
    assert pipeline.slowdown(0.325) < 0.02 < pipeline.slowdown(0.5)
    control = StallControl(ClocksConfig(stall_share=0.2, calm_share=0.05, down=0.5, max_slowdown=0.02))
    levels = _run(control, pipeline, FORGET)
    assert list(dict.fromkeys(levels)) == [0.0, 0.15, 0.5, 0.325]
    assert levels.count(0.5) <= 4 and levels[-1] == 0.325
    assert "slower at 50% below" in control.reason


def test_a_level_that_ends_the_stalls_is_left_half_way_and_does_not_swing() -> None:
    pipeline = Pipeline(data_s=1.44)  # 31 % stalls at full clocks, 1 % at 30 % below
    control = StallControl(CONFIG)
    levels = _run(control, pipeline, 2000)
    assert 0.3 not in levels[200:]
    assert control.changes <= 24
    assert _lost(pipeline, levels) < 0.001


def test_the_bound_is_on_all_steps_down_together() -> None:
    config = ClocksConfig(max_slowdown=0.04, down=0.3)
    pipeline = Pipeline(data_s=1.0, ahead=0.0, memory=0.8)
    assert 0.0 < pipeline.slowdown(0.15) < 0.04 < pipeline.slowdown(0.3)
    assert 1 - (1 - pipeline.slowdown(0.3)) / (1 - pipeline.slowdown(0.15)) < 0.04
    levels = _run(StallControl(config), pipeline, 60)
    assert 0.3 in levels and levels.count(0.3) <= 4
    assert all(pipeline.slowdown(level) <= 0.04 for level in levels[3 * MOST :])


def test_when_data_comes_faster_clocks_go_up_again() -> None:
    control = StallControl(CONFIG)
    _run(control, Pipeline(data_s=3.0), 40)
    assert control.below == 0.3
    levels = _run(control, Pipeline(data_s=0.5), 20)
    assert levels[2] == 0.3 and levels[-1] == 0.0


def test_when_computing_takes_longer_a_lower_clock_does_not_go_unnoticed() -> None:
    control = StallControl(CONFIG)
    _run(control, Pipeline(data_s=3.0), 40)
    assert control.below == 0.3
    worse = Pipeline(data_s=0.35, ahead=0.0)  # 20 % stalls at 30 % below: between calm and stalled
    share = worse.step(0.3)[1] / worse.step(0.3)[0]
    assert 0.1 < share < 0.3 and worse.slowdown(0.3) > 0.2
    levels = _run(control, worse, 3 * FORGET)
    assert levels[-1] == 0.0


@pytest.mark.parametrize("strange", [
    StallWindow(stalled_share=0.9, steps_per_s=1.0, ordinary=False),
    StallWindow(stalled_share=None, steps_per_s=1.0),
    StallWindow(stalled_share=0.9, steps_per_s=None),
    StallWindow(stalled_share=float("nan"), steps_per_s=1.0),
])  # fmt: skip
def test_windows_that_are_not_ordinary_change_nothing(strange: StallWindow) -> None:
    control = StallControl(CONFIG)
    for _ in range(50):
        assert control.after(strange) == 0.0
    pipeline = Pipeline(data_s=2.5)
    plain, mixed = StallControl(CONFIG), StallControl(CONFIG)
    levels, among = [], []
    for _ in range(40):
        levels.append(plain.after(pipeline.window(plain.below)))
        mixed.after(strange)
        among.append(mixed.after(pipeline.window(mixed.below)))
    assert levels == among


def test_a_pause_in_a_trial_is_not_taken_for_a_slowdown() -> None:
    control = StallControl(CONFIG)
    pipeline = Pipeline(data_s=2.5)
    while control.below != 0.15:
        control.after(pipeline.window(control.below))
    for _ in range(10):
        control.after(StallWindow(stalled_share=0.0, steps_per_s=0.01, ordinary=False))
    assert _run(control, pipeline, 20)[-1] == 0.3


def test_the_window_into_which_a_change_falls_says_nothing() -> None:
    control = StallControl(CONFIG)
    pipeline = Pipeline(data_s=2.5)
    levels = []
    for _ in range(40):
        changes = control.changes
        levels.append(control.after(pipeline.window(control.below)))
        if control.changes > changes:
            control.after(StallWindow(stalled_share=0.0, steps_per_s=0.01))  # clocks are on their way
    assert list(dict.fromkeys(levels)) == [0.0, 0.15, 0.3]


def test_clocks_that_cannot_be_set_are_given_up_until_stalls_show_again() -> None:
    control = StallControl(CONFIG)
    _run(control, Pipeline(data_s=2.5), 40)
    assert control.stop("no right") == 0.0 and control.reason == "no right"
    assert _run(control, Pipeline(data_s=0.5), 20)[-1] == 0.0


@settings(max_examples=60, deadline=None)
@given(
    data_s=st.floats(0.0, 4.0),
    ahead=st.floats(0.0, 1.0),
    memory=st.floats(0.0, 1.0),
    noise=st.floats(0.0, 0.04),
    seed=st.integers(0, 999),
    down=st.floats(0.15, 0.5),
    bound=st.floats(0.01, 0.2),
)
def test_whatever_the_pipeline_little_more_is_lost_than_allowed_and_clocks_do_not_swing(
    data_s: float, ahead: float, memory: float, noise: float, seed: int, down: float, bound: float
) -> None:
    pipeline = Pipeline(data_s=data_s, ahead=ahead, memory=memory, noise=noise, dice=random.Random(seed))
    config = ClocksConfig(down=down, max_slowdown=bound)
    control = StallControl(config)
    levels = _run(control, pipeline, 1500)
    assert all(level == 0.0 or 0.15 <= level <= down for level in levels)
    assert _lost(pipeline, levels) <= bound + noise + 0.01
    assert control.changes <= 80


@pytest.mark.parametrize("noise", [0.01, 0.03])
def test_noise_neither_hides_a_slowdown_nor_makes_one_up(noise: float) -> None:
    slow, free = [], []
    for seed in range(40):
        serial = Pipeline(data_s=0.8, ahead=0.0, noise=noise, dice=random.Random(seed))
        slow.append(_lost(serial, _run(StallControl(CONFIG), serial, 600)))
        beside = Pipeline(data_s=2.5, noise=noise, dice=random.Random(seed))
        free.append(statistics.fmean(_run(StallControl(CONFIG), beside, 600)))
    assert max(slow) < 0.02
    assert statistics.fmean(free) > 0.245


def test_windows_are_made_of_what_is_booked() -> None:
    def booked(seconds: float, data_s: float, steps: int, **other: float) -> float | None:
        return control.observe(seconds, {"data": data_s, "forward": seconds - data_s, **other}, steps)

    control = StallControl(ClocksConfig(window_s=10.0))
    assert [booked(2.0, 1.0, 5) for _ in range(5)] == [None] * 4 + [0.0]
    assert [booked(10.0, 5.0, 5) for _ in range(4)] == [None] * 3 + [0.0]  # twenty steps
    assert booked(10.0, 5.0, 50, eval=3.0) is booked(10.0, 5.0, 50, checkpoint=3.0) is None
    assert booked(10.0, 0.0, 50, paused=10.0) is None
    assert control.observe(10.0, {"data": 5.0}, 50, ordinary=False) is None
    assert control.observe(0.0, {}, 50) is None
    assert [booked(10.0, 5.0, 50) for _ in range(MOST - 2)] == [0.0] * (MOST - 3) + [0.15]


def _changes(levels: list[float]) -> list[tuple[int, float]]:
    return [(i, levels[i]) for i in range(1, len(levels)) if levels[i] != levels[i - 1]]


def test_what_was_too_low_is_tried_again_and_what_is_kept_is_checked_ever_more_rarely() -> None:
    serial = _changes(_run(StallControl(CONFIG), Pipeline(data_s=0.8, ahead=0.0), 4000))
    down, up = [i for i, level in serial if level > 0.0], [i for i, level in serial if level == 0.0]
    assert [end - start for start, end in zip(down, up, strict=True)] == [3] * 7, "the change, and two that say enough"
    assert [start - end for start, end in zip(down[1:], up, strict=False)] == [
        n * FORGET + 1 for n in (2, 4, 8, 16, 16, 16)
    ]
    beside = _changes(_run(StallControl(CONFIG), Pipeline(data_s=2.5), 3500))
    low, full = [i for i, level in beside if level == 0.3], [i for i, level in beside if level == 0.0]
    assert low[0] == 2 * MOST + 1
    assert [end - start - 4 for start, end in zip(low, full, strict=False)] == [
        n * FORGET for n in (1, 2, 4, 8, 16, 16)
    ]


@pytest.mark.parametrize(("share", "below"), [(0.3, 0.15), (0.299, 0.0)])
def test_clocks_go_down_from_the_share_on_that_is_asked_for(share: float, below: float) -> None:
    control = StallControl(CONFIG)
    for _ in range(MOST):
        control.after(StallWindow(stalled_share=share, steps_per_s=1.0))
    assert control.below == below


@pytest.mark.parametrize(("share", "changes"), [(0.1, 2), (0.0999, 3)])
def test_clocks_go_up_below_the_share_that_is_calm(share: float, changes: int) -> None:
    control = StallControl(CONFIG)
    _run(control, Pipeline(data_s=2.5), 30)
    assert (control.below, control.changes) == (0.3, 2)
    for _ in range(clocks.NEED):
        control.after(StallWindow(stalled_share=share, steps_per_s=control._recent[-1].steps_per_s))
    assert control.changes == changes and control.below == (0.3 if changes == 2 else 0.15)


def test_what_lasts_no_time_counts_no_steps_and_what_waits_for_nothing_no_data() -> None:
    control = StallControl(ClocksConfig(window_s=10.0))
    assert control.observe(0.0, {}, 50) is None
    assert control.observe(10.0, {"data": 4.0}, 5) is None, "five steps are too few"
    for _ in range(MOST):
        assert control.observe(10.0, {"forward": 10.0}, 20) == 0.0
    assert [window.stalled_share for window in control._recent][1:] == [0.0] * (MOST - 1)
    assert control._recent[0].stalled_share == pytest.approx(4.0 / 20.0)
    assert control._recent[0].steps_per_s == pytest.approx(25 / 20.0)
    assert [control.observe(0.5, {}, 1) for _ in range(20)] == [None] * 19 + [0.0], "short intervals count as well"


def test_two_means_are_compared_by_student_s_t() -> None:
    base, speeds = [10.0, 12.0, 11.0, 11.0], [9.0, 10.0, 8.0]
    ratio, half = clocks._compared(speeds, base)
    pooled = (2.0 + 2.0) / 5  # sums of squares, 3 + 2 degrees of freedom
    assert ratio == pytest.approx(9.0 / 11.0)
    assert half == pytest.approx(2.571 * (pooled * (1 / 3 + 1 / 4)) ** 0.5 / 11.0, rel=1e-3)  # t of 5 at 97.5 %
    assert clocks._compared(speeds, [0.0, 0.0]) == (1.0, float("inf"))


MEMORY = ClocksConfig(stalls="memory")


def _told(memory: float, share: float = 0.5, sm: float = 0.95) -> Mapping[str, Mapping[str, float]]:
    """Return what a driver tells of ten seconds, of which a share is in a phase with this use of the memory."""
    generate = {"util_s": 10 * share, "sm_s": 10 * share * sm, "memory_s": 10 * share * memory}
    return {"generate": generate, "update": {"util_s": 10 * (1 - share), "sm_s": 10 * (1 - share), "memory_s": 1.0}}


def _levels(
    control: StallControl, told: Sequence[Mapping[str, Mapping[str, float]]], slower: float = 0.0
) -> list[float]:
    """Return the level after each window of ten seconds; each level costs ``slower`` of the speed."""
    for one in told:
        control.observe(10.0, {}, round(1000 * (1 - slower * control.below)), [one])
    return [control.below]


def test_clocks_go_down_in_phases_that_are_bound_by_memory() -> None:
    control = StallControl(MEMORY)
    seen = [level for _ in range(40) for level in _levels(control, [_told(0.8)])]
    assert list(dict.fromkeys(seen)) == [0.0, 0.15, 0.3]
    assert control.reason == "50% of the time is bound by memory"
    assert _levels(control, [_told(0.2)] * 40) == [0.0] and control.reason == "only 0% of the time is bound by memory"


@pytest.mark.parametrize("told", [_told(0.5), _told(0.9, share=0.2), {"update": {"clocks_s": 10.0}}, {}])
def test_memory_that_is_no_bound_or_not_told_leaves_clocks_alone(told: Mapping[str, Mapping[str, float]]) -> None:
    control = StallControl(MEMORY)
    assert _levels(control, [told] * 100) == [0.0] and control.changes == 0


def test_a_largest_share_of_kernels_can_be_asked_for() -> None:
    control = StallControl(ClocksConfig(stalls="memory", sm_share=0.5))
    assert _levels(control, [_told(0.8, sm=0.95)] * 40) == [0.0]
    assert _levels(control, [_told(0.8, sm=0.4)] * 40) == [0.3]


def test_what_costs_tokens_a_second_is_taken_back() -> None:
    control = StallControl(MEMORY)
    assert _levels(control, [_told(0.8)] * 60, slower=0.5) == [0.0], "15 % below costs 7.5 %, more than 3.5 %"
    assert 2 <= control.changes <= 3 and "slower at 15% below" in control.reason


def test_memory_around_the_threshold_makes_no_flapping() -> None:
    control, dice = StallControl(MEMORY), random.Random(5)
    _levels(control, [_told(0.65)] * 40)
    before = control.changes
    _levels(control, [_told(0.6 + dice.uniform(-0.08, 0.08)) for _ in range(35)])
    assert control.below == 0.3 and control.changes == before


def test_a_driver_that_falls_silent_gets_its_clocks_back() -> None:
    control = StallControl(MEMORY)
    assert _levels(control, [_told(0.8)] * 40) == [0.3]
    assert _levels(control, [{}]) == [0.0] and "no utilisation" in control.reason
