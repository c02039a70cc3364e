"""The desk between training, operator and Ray's controller, without Ray."""

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
def desk(now: Time) -> RayCoordinator:
    return RayCoordinator(GreenConfig(), least=1, most=4, ranks=1, patience_s=60.0, now_s=now)


def test_nothing_happens_while_what_runs_is_what_is_wanted(desk: RayCoordinator) -> None:
    order = desk.meet(1, 1)
    assert (order.wanted, order.go, desk.opening()) == (1, False, None)


def test_a_wish_becomes_an_opening_and_then_a_resize(desk: RayCoordinator, now: Time) -> None:
    desk.want(3, "clean hours")
    assert desk.meet(1, 1).wanted == 3
    assert not desk.meet(1, 3).go
    opening = desk.opening()
    assert opening is not None and (opening.ranks, opening.reason) == (3, "clean hours")
    assert not desk.meet(1, 3).go, "nobody stands still yet"
    desk.leave(opening.nth)
    now.s += 1.0
    assert desk.meet(1, 3).go
    assert desk.opening() is None
    now.s += 8.0
    assert desk.terms().resize_s is None
    resize = desk.stepped()
    assert resize is not None and (resize.before, resize.after, resize.seconds) == (1, 3, 8.0)
    assert desk.stepped() is None
    assert not desk.meet(3, 3).go
    assert desk.terms().resize_s == 8.0 and desk.resizes() == [resize]


def test_workers_that_stand_still_are_started_again_even_if_their_number_is_right(desk: RayCoordinator) -> None:
    desk.want(2, "clean hours")
    desk.meet(1, 2)
    desk.leave(1)
    desk.want(1, "no")
    assert desk.meet(1, 1).go


def test_workers_that_do_not_come_to_a_checkpoint_are_ended_after_a_while(desk: RayCoordinator, now: Time) -> None:
    desk.want(2, "clean hours")
    desk.meet(1, 2)
    now.s += 59.0
    assert not desk.meet(1, 2).go
    now.s += 2.0
    assert desk.meet(1, 2).go


@pytest.mark.parametrize("possible", [None, 0])
def test_nobody_goes_where_ray_could_not_start_anything(desk: RayCoordinator, possible: int | None) -> None:
    desk.want(2, "clean hours")
    desk.meet(1, 2)
    desk.leave(1)
    assert not desk.meet(1, possible).go
    assert desk.meet(1, 2).go


def test_an_opening_closes_when_the_machines_are_gone(desk: RayCoordinator) -> None:
    desk.want(2, "clean hours")
    desk.meet(1, 2)
    desk.meet(1, 1)
    assert desk.opening() is None


def test_a_word_of_workers_that_are_gone_does_not_end_the_new_ones(desk: RayCoordinator, now: Time) -> None:
    desk.want(2, "clean hours")
    desk.meet(1, 2)
    now.s += 61.0
    assert desk.meet(1, 2).go
    desk.leave(1)
    assert not desk.meet(2, 2).go


def test_a_failed_group_starts_with_the_wish_and_a_clean_slate(desk: RayCoordinator) -> None:
    attempt = desk.terms().attempt
    desk.want(2, "clean hours")
    desk.meet(1, 2)
    desk.leave(1)
    assert desk.wanted() == 2
    assert not desk.meet(2, 2).go
    assert desk.terms().attempt == attempt + 1


@pytest.mark.parametrize("ranks", [0, 5])
def test_a_wish_outside_the_range_is_refused(desk: RayCoordinator, ranks: int) -> None:
    with pytest.raises(ConfigError, match=rf"{ranks} workers are wanted \(by hand\), but .* allows 1 to 4"):
        desk.want(ranks, "by hand")


def test_without_ray_the_adapter_names_its_extra() -> None:
    code = "import sys; sys.modules['ray'] = None; import greentrain.callbacks.ray"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "MissingExtraError" in done.stderr and "pip install 'greentrain-torch[ray]'" in done.stderr
