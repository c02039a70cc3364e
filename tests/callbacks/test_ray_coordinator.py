"""The coordinator between training, operator and Ray's controller, without Ray."""

import subprocess
import sys

import pytest

from greentrain.callbacks.ray_coordinator import RayCoordinator
from greentrain.config.schema import GreenConfig
from greentrain.errors import ConfigError


class Time:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def now() -> Time:
    return Time()


@pytest.fixture
def coordinator(now: Time) -> RayCoordinator:
    return RayCoordinator(GreenConfig(), least=1, most=4, ranks=1, patience_s=60.0, now_s=now)


def test_nothing_happens_while_what_runs_is_what_is_wanted(coordinator: RayCoordinator) -> None:
    order = coordinator.meet(1, 1)
    assert (order.wanted, order.go, coordinator.opening()) == (1, False, None)


def test_a_wish_becomes_an_opening_and_then_a_resize(coordinator: RayCoordinator, now: Time) -> None:
    coordinator.want(3, "clean hours")
    assert coordinator.meet(1, 1).wanted == 3
    assert not coordinator.meet(1, 3).go
    opening = coordinator.opening()
    assert opening is not None and (opening.ranks, opening.reason) == (3, "clean hours")
    assert not coordinator.meet(1, 3).go, "nobody stands still yet"
    coordinator.leave(opening.nth)
    now.s += 1.0
    assert coordinator.meet(1, 3).go
    assert coordinator.opening() is None
    now.s += 8.0
    assert coordinator.terms().resize_s is None
    resize = coordinator.stepped()
    assert resize is not None and (resize.before, resize.after, resize.seconds) == (1, 3, 8.0)
    assert coordinator.stepped() is None
    assert not coordinator.meet(3, 3).go
    assert coordinator.terms().resize_s == 8.0 and coordinator.resizes() == [resize]


def test_workers_that_stand_still_are_started_again_even_if_their_number_is_right(coordinator: RayCoordinator) -> None:
    coordinator.want(2, "clean hours")
    coordinator.meet(1, 2)
    coordinator.leave(1)
    coordinator.want(1, "no")
    assert coordinator.meet(1, 1).go


def test_workers_that_do_not_come_to_a_checkpoint_are_ended_after_a_while(
    coordinator: RayCoordinator, now: Time
) -> None:
    coordinator.want(2, "clean hours")
    coordinator.meet(1, 2)
    now.s += 60.0
    assert not coordinator.meet(1, 2).go
    now.s += 1.0
    assert coordinator.meet(1, 2).go


def test_room_for_another_number_begins_the_wait_anew(coordinator: RayCoordinator, now: Time) -> None:
    coordinator.want(3, "clean hours")
    coordinator.meet(1, 2)
    now.s += 50.0
    coordinator.meet(1, 3)
    opening = coordinator.opening()
    assert opening is not None and opening.ranks == 3
    now.s += 50.0
    assert not coordinator.meet(1, 3).go
    now.s += 11.0
    assert coordinator.meet(1, 3).go


def test_what_a_resize_takes_is_the_mean_of_those_of_this_job(coordinator: RayCoordinator, now: Time) -> None:
    for before, after, seconds in ((1, 3, 8.0), (3, 2, 4.0)):
        coordinator.want(after, "the grid")
        coordinator.meet(before, after)
        opening = coordinator.opening()
        assert opening is not None
        coordinator.leave(opening.nth)
        assert coordinator.meet(before, after).go
        now.s += seconds
        coordinator.stepped()
    assert coordinator.terms().resize_s == 6.0


@pytest.mark.parametrize("possible", [None, 0])
def test_nobody_goes_where_ray_could_not_start_anything(coordinator: RayCoordinator, possible: int | None) -> None:
    coordinator.want(2, "clean hours")
    coordinator.meet(1, 2)
    coordinator.leave(1)
    assert not coordinator.meet(1, possible).go
    assert coordinator.meet(1, 2).go


def test_an_opening_closes_when_the_machines_are_gone(coordinator: RayCoordinator) -> None:
    coordinator.want(2, "clean hours")
    coordinator.meet(1, 2)
    coordinator.meet(1, 1)
    assert coordinator.opening() is None


def test_a_word_of_workers_that_are_gone_does_not_end_the_new_ones(coordinator: RayCoordinator, now: Time) -> None:
    coordinator.want(2, "clean hours")
    coordinator.meet(1, 2)
    now.s += 61.0
    assert coordinator.meet(1, 2).go
    coordinator.leave(1)
    assert not coordinator.meet(2, 2).go


def test_a_failed_group_starts_with_the_wish_and_a_clean_slate(coordinator: RayCoordinator) -> None:
    assert coordinator.wanted() == 1
    attempt = coordinator.terms().attempt
    assert attempt == 1, "workers are counted from 1 on"
    coordinator.want(2, "clean hours")
    coordinator.meet(1, 2)
    coordinator.leave(1)
    assert coordinator.wanted() == 2
    assert not coordinator.meet(2, 2).go
    assert coordinator.terms().attempt == attempt + 1


@pytest.mark.parametrize("ranks", [0, 5])
def test_a_wish_outside_the_range_is_refused(coordinator: RayCoordinator, ranks: int) -> None:
    with pytest.raises(ConfigError, match=rf"{ranks} workers are wanted \(by hand\), but .* allows 1 to 4"):
        coordinator.want(ranks, "by hand")


def test_without_ray_the_adapter_names_its_extra() -> None:
    code = "import sys; sys.modules['ray'] = None; import greentrain.callbacks.ray"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "MissingExtraError" in done.stderr and "pip install 'greentrain-torch[ray]'" in done.stderr
