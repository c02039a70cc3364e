"""What GreenTrain uses of Ray's inside, what it refuses, and its scaling policy with the cluster left out."""

import inspect
import time
from collections.abc import Callable
from typing import Any

import pytest

from greentrain.callbacks.ray_coordinator import RayCoordinator
from greentrain.config.schema import GreenConfig
from greentrain.control.launcher_protocol import Notice, Progress, Request
from greentrain.errors import ConfigError, GreenTrainWarning, MissingExtraError
from tests.callbacks.ray_here import import_ray

ray = import_ray()

from ray.train import collective  # noqa: E402
from ray.train.v2._internal.execution.scaling_policy import (  # noqa: E402
    ElasticScalingPolicy,
    NoopDecision,
    ResizeDecision,
    create_scaling_policy,
)
from ray.train.v2._internal.execution.worker_group import WorkerGroupState  # noqa: E402
from ray.train.v2.api.config import ScalingConfig  # noqa: E402
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer  # noqa: E402

from greentrain.callbacks import ray as ray_launcher  # noqa: E402
from greentrain.callbacks.ray import (  # noqa: E402  # noqa: E402
    GreenTorchTrainer,
    RayLauncher,
    WantedWidth,
    check_version,
    want,
)

pytestmark = pytest.mark.filterwarnings("ignore")


# -- the contract ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("__init__", ["self", "scaling_config"]),
        ("_get_num_workers_for_resource_request", ["self"]),
        ("_count_possible_workers", ["self", "reserved_resources"]),
        ("_get_reserved_resources", ["self"]),
        ("_get_resize_decision", ["self", "num_workers"]),
        ("_maybe_send_resource_request", ["self"]),
        ("_send_resource_request", ["self"]),
        ("make_decision_for_non_running_worker_group", ["self"]),
        (
            "make_decision_for_running_worker_group",
            ["self", "worker_group_state", "worker_group_status"],
        ),
    ],
)
def test_rays_scaling_policy_has_the_methods_that_are_used(method: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(ElasticScalingPolicy, method)).parameters) == parameters


def test_rays_scaling_policy_counts_with_what_is_set_back() -> None:
    policy = ElasticScalingPolicy(ScalingConfig(num_workers=(1, 2)))
    assert policy._latest_reserved_resources_query_time == float("-inf")
    assert isinstance(WorkerGroupState.num_workers, property)


def test_rays_trainer_hands_its_scaling_policy_to_one_method() -> None:
    (parameter,) = list(inspect.signature(DataParallelTrainer._initialize_and_run_controller).parameters.values())[1:]
    assert parameter.kind is inspect.Parameter.VAR_KEYWORD
    fit = inspect.getsource(DataParallelTrainer.fit)
    assert "self._initialize_and_run_controller(" in fit and "scaling_policy=create_scaling_policy(" in fit
    assert type(create_scaling_policy(ScalingConfig(num_workers=(1, 2)))) is ElasticScalingPolicy


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_the_installed_ray_is_the_one_that_was_tried() -> None:
    check_version()


@pytest.mark.parametrize("version", ["2.59.1", "2.61.0", "3.0.0"])
def test_another_ray_is_refused_and_the_tried_one_named(version: str) -> None:
    with pytest.raises(MissingExtraError, match=rf"ray {version} is installed.*tried with 2\.60 only.*\[ray\]"):
        check_version(version)


def _train() -> None:
    pass


def test_the_trainer_checks_the_version_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "__version__", "2.61.0")
    with pytest.raises(MissingExtraError, match=r"2\.61\.0"):
        GreenTorchTrainer(_train, scaling_config=ScalingConfig(num_workers=(1, 2)))


@pytest.mark.parametrize("workers", [0, (0, 2)])
def test_a_width_below_one_is_refused(workers: Any) -> None:
    with pytest.raises(ConfigError, match=r"keeps at least 1 worker"):
        GreenTorchTrainer(_train, scaling_config=ScalingConfig(num_workers=workers))


def test_a_range_that_ends_before_it_begins_is_refused_by_ray() -> None:
    with pytest.raises(ValueError, match=r"min_workers=3 must be <= max_workers=2"):
        GreenTorchTrainer(_train, scaling_config=ScalingConfig(num_workers=(3, 2)))


@pytest.mark.parametrize("ranks", [0, 3])
def test_a_start_outside_the_range_is_refused(ranks: int) -> None:
    with pytest.raises(ConfigError, match=rf"ranks is {ranks}; ScalingConfig.num_workers allows 1 to 2"):
        GreenTorchTrainer(_train, ranks=ranks, scaling_config=ScalingConfig(num_workers=(1, 2)))


def test_a_plan_wider_than_the_trainer_is_refused() -> None:
    green = {"actuators": {"width": {"min": 1, "max": 4}}}
    with pytest.raises(ConfigError, match=r"actuators.width is 1 to 4, but ScalingConfig.num_workers allows 1 to 2"):
        GreenTorchTrainer(_train, green=green, scaling_config=ScalingConfig(num_workers=(1, 2)))


def test_a_wish_for_a_run_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ValueError(name)

    monkeypatch.setattr(ray, "get_actor", missing)
    with pytest.raises(ConfigError, match=r"no GreenTorchTrainer of the name 'nowhere'"):
        want(2, run="nowhere")


def test_workers_get_one_run_id_and_a_folder_that_does_not_depend_on_theirs(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = GreenTorchTrainer(_train, green={"run": {"name": "job"}}, scaling_config=ScalingConfig(num_workers=1))
    run = trainer._config().run
    assert run.id is not None and run.id.startswith("job-")
    assert run.dir == str(tmp_path / "runs")
    monkeypatch.setenv("GREENTRAIN_RUN_ID", "mine")
    assert trainer._config().run.id == "mine"


# -- the scaling policy ------------------------------------------------------------------------------------------------


class Handle:
    """An object whose methods are called as an actor's are: ``handle.method.remote(...)``."""

    def __init__(self, target: Any) -> None:
        self.target = target
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        def remote(*args: Any) -> Any:
            if self.dead:
                raise ray.exceptions.RayActorError()
            return getattr(self.target, name)(*args)

        return type("Method", (), {"remote": staticmethod(remote)})


class Cluster(WantedWidth):
    """The policy with so many CPUs reserved for it, of those that it asked for."""

    def __init__(self, coordinator: Handle, cpus: int) -> None:
        super().__init__(ScalingConfig(num_workers=(1, 4)), coordinator, 1)
        self.cpus = cpus
        self.asked: list[int] = []

    def _maybe_send_resource_request(self) -> None:
        pass

    def _send_resource_request(self) -> None:
        self.asked.append(self._get_num_workers_for_resource_request())

    def _get_reserved_resources(self) -> Any:
        return {"node": {"CPU": float(self.cpus)}}

    def look(self, workers: int) -> Any:
        return self.make_decision_for_running_worker_group(type("State", (), {"num_workers": workers})(), None)


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Handle:
    monkeypatch.setattr(ray, "get", lambda answer, timeout=None: answer)
    return Handle(RayCoordinator(GreenConfig(), least=1, most=4, ranks=1, patience_s=60.0))


def test_the_policy_asks_the_cluster_for_what_is_wanted_and_goes_when_workers_stand_still(coordinator: Handle) -> None:
    cluster = Cluster(coordinator, cpus=8)
    assert isinstance(cluster.look(1), NoopDecision)
    coordinator.target.want(2, "clean hours")
    assert isinstance(cluster.look(1), NoopDecision)
    assert cluster.asked == [2]
    coordinator.target.leave(coordinator.target.opening().nth)
    decision = cluster.look(1)
    assert isinstance(decision, ResizeDecision) and decision.num_workers == 2
    assert isinstance(cluster.look(2), NoopDecision)


def test_fewer_machines_than_wanted_are_used_as_they_are(coordinator: Handle) -> None:
    cluster = Cluster(coordinator, cpus=3)
    coordinator.target.want(4, "clean hours")
    cluster.look(1)
    assert coordinator.target.opening().ranks == 3


def test_a_start_after_a_failure_is_as_wide_as_was_wanted(coordinator: Handle) -> None:
    cluster = Cluster(coordinator, cpus=8)
    coordinator.target.want(3, "clean hours")
    decision = cluster.make_decision_for_non_running_worker_group()
    assert isinstance(decision, ResizeDecision) and decision.num_workers == 3


def test_a_coordinator_that_is_gone_changes_nothing(coordinator: Handle) -> None:
    cluster = Cluster(coordinator, cpus=8)
    coordinator.target.want(2, "clean hours")
    cluster.look(1)
    coordinator.dead = True
    assert isinstance(cluster.look(1), NoopDecision)
    decision = cluster.make_decision_for_non_running_worker_group()
    assert isinstance(decision, ResizeDecision) and decision.num_workers == 2


# -- a worker's line to the coordinator --------------------------------------------------------------------------------


@pytest.fixture
def line(coordinator: Handle, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RayLauncher]:
    monkeypatch.setattr(collective, "broadcast_from_rank_zero", lambda word: word)
    monkeypatch.setattr(collective, "barrier", lambda: None)
    monkeypatch.setattr(ray.train, "get_all_reported_checkpoints", lambda mode, timeout_s: [])
    monkeypatch.setattr(ray_launcher, "OPEN_S", 0.05)
    monkeypatch.setattr(ray_launcher, "POLL_S", 0.01)
    monkeypatch.setattr(ray_launcher, "HOLD_S", 0.01)
    return lambda: RayLauncher(coordinator, ranks=1, first=True, tell=lambda resize: None)


def test_a_plans_request_becomes_a_wish_and_a_notice_none(
    coordinator: Handle, line: Callable[..., RayLauncher]
) -> None:
    launcher = line()
    offer = launcher.offer()
    assert (offer.min_ranks, offer.max_ranks, offer.can_wait) == (1, 4, False)
    launcher.write(Request(attempt=offer.attempt, ranks=1, not_before_unix_s=None, reason="a notice"))
    launcher.write(Progress(attempt=offer.attempt, steps=1, tokens=1.0, unix_s=time.time()))
    assert coordinator.target.meet(1, 1).wanted == 1 and launcher.notice() is None
    launcher.write(Request(attempt=offer.attempt, ranks=2, not_before_unix_s=None, reason="clean hours"))
    assert coordinator.target.meet(1, 2).wanted == 2
    launcher.write(Request(attempt=offer.attempt, ranks=1, not_before_unix_s=None, reason="a notice"))
    assert coordinator.target.meet(1, 2).wanted == 2, "a notice takes nobody's wish back"
    assert launcher.notice() == Notice(attempt=offer.attempt, reason="2 workers: clean hours")


def test_workers_wait_a_little_for_room_and_stay_where_there_is_none(
    coordinator: Handle, line: Callable[..., RayLauncher]
) -> None:
    launcher = line()
    assert launcher.opening() is None
    coordinator.target.want(2, "clean hours")
    coordinator.target.meet(1, 2)
    nth = launcher.opening()
    assert nth is not None
    launcher.leave(nth)
    assert coordinator.target.meet(1, 2).go


def test_a_coordinator_that_is_gone_lets_workers_go_on(coordinator: Handle, line: Callable[..., RayLauncher]) -> None:
    launcher = line()
    coordinator.dead = True
    with pytest.warns(GreenTrainWarning, match=r"_committed failed"):
        assert launcher.opening() is None
