"""What GreenTrain uses of Ray's inside, what it refuses, and its scaling policy with the cluster left out."""

import inspect
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from greentrain.callbacks.ray_coordinator import PREFIX, RayCoordinator, WorkerResize
from greentrain.config.schema import GreenConfig
from greentrain.control.launcher_protocol import EXIT_REQUEUE, Notice, Progress, Request
from greentrain.errors import ConfigError, GreenTrainWarning, MissingExtraError, RunFolderError
from greentrain.ledger.journal import read_journal
from tests.callbacks.ray_here import import_ray

ray = import_ray()

from ray.train import collective  # noqa: E402
from ray.train.v2._internal.constants import DEFAULT_HEALTH_CHECK_INTERVAL_S  # noqa: E402
from ray.train.v2._internal.execution.scaling_policy import (  # noqa: E402
    ElasticScalingPolicy,
    NoopDecision,
    ResizeDecision,
    create_scaling_policy,
)
from ray.train.v2._internal.execution.worker_group import WorkerGroupState  # noqa: E402
from ray.train.v2.api.config import ScalingConfig  # noqa: E402
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer  # noqa: E402
from ray.train.v2.torch.torch_trainer import TorchTrainer  # noqa: E402

from greentrain.callbacks import ray as ray_launcher  # noqa: E402
from greentrain.callbacks.ray import (  # noqa: E402
    GreenRaySession,
    GreenTorchTrainer,
    RayLauncher,
    WantedWidth,
    check_version,
    open_coordinator,
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
        self.dead = self.hangs = False

    def __getattr__(self, name: str) -> Any:
        def remote(*args: Any) -> Any:
            return None if self.hangs else lambda: self._answer(name, *args)

        return type("Method", (), {"remote": staticmethod(remote)})

    def _answer(self, name: str, *args: Any) -> Any:
        if self.dead:
            raise ray.exceptions.RayActorError()
        return getattr(self.target, name)(*args)


class Cluster(WantedWidth):
    """The policy with so many CPUs reserved for it, of those that it asked for."""

    def __init__(self, coordinator: Handle, cpus: int) -> None:
        super().__init__(ScalingConfig(num_workers=(1, 4)), coordinator, 1)
        self.cpus = cpus
        self.asked: list[int] = []
        self.renewed = 0

    def _maybe_send_resource_request(self) -> None:
        self.renewed += 1

    def _send_resource_request(self) -> None:
        self.asked.append(self._get_num_workers_for_resource_request())

    def _get_reserved_resources(self) -> Any:
        return {"node": {"CPU": float(self.cpus)}}

    def look(self, workers: int) -> Any:
        return self.make_decision_for_running_worker_group(type("State", (), {"num_workers": workers})(), None)


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Handle:
    def get(answer: Callable[[], Any] | None, timeout: float | None = None) -> Any:
        if answer is None:
            assert timeout is not None, "it would wait for ever"
            raise ray.exceptions.GetTimeoutError(f"no answer within {timeout:g} s")
        return answer()

    monkeypatch.setattr(ray, "get", get)
    run = {"dir": str(tmp_path / "runs"), "id": "job", "report": False, "live": False}
    config = GreenConfig.load({"run": run, "power": {"meters": ["null"]}})
    return Handle(RayCoordinator(config, least=1, most=4, ranks=1, patience_s=60.0))


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
    assert cluster.renewed == 4, "at every look: an autoscaler forgets what nobody asks for"


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


class Sleep:
    """Stands in for the module ``time``: it moves for who sleeps, and something happens meanwhile."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.meanwhile: Callable[[], object] = lambda: None
        self.time = time.time

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert seconds > 0 and self.now_s < 10_000, "a wait without an end"
        self.now_s += seconds
        self.meanwhile()


@pytest.fixture
def sleep(monkeypatch: pytest.MonkeyPatch) -> Sleep:
    monkeypatch.setattr(ray_launcher, "time", sleep := Sleep())
    return sleep


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What all ranks do together, in its order; a word of rank 0 is what this rank says, or else 7."""
    done: list[Any] = []

    def broadcast(word: Any) -> Any:
        done.append(word)
        return word or 7

    monkeypatch.setattr(collective, "broadcast_from_rank_zero", broadcast)
    monkeypatch.setattr(collective, "barrier", lambda: done.append("barrier"))
    monkeypatch.setattr(ray.train, "get_all_reported_checkpoints", lambda mode, timeout_s: done.append(mode.name))
    return done


@pytest.fixture
def line(coordinator: Handle, sleep: Sleep, together: list[Any]) -> Callable[..., RayLauncher]:
    return lambda first=True, tell=lambda resize: None: RayLauncher(coordinator, ranks=1, first=first, tell=tell)


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


def _make_room(coordinator: Handle) -> None:
    coordinator.target.want(2, "clean hours")
    coordinator.target.meet(1, 2)


def test_workers_wait_a_little_for_room_and_stay_where_there_is_none(
    line: Callable[..., RayLauncher], sleep: Sleep, together: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collective, "broadcast_from_rank_zero", lambda word: word)
    assert line().opening() is None
    assert 3 <= sleep.now_s / DEFAULT_HEALTH_CHECK_INTERVAL_S <= 10, "a few of its looks"
    assert together == ["COMMITTED"], "a checkpoint that Ray does not have would be trained again"


def test_room_that_comes_while_workers_wait_is_used_at_once(
    coordinator: Handle, line: Callable[..., RayLauncher], sleep: Sleep
) -> None:
    sleep.meanwhile = lambda: _make_room(coordinator) if sleep.now_s >= 3.0 else None
    assert line().opening() == 1
    assert sleep.now_s < 3.5


def test_workers_stand_still_together_until_ray_ends_them_but_not_for_ever(
    coordinator: Handle, line: Callable[..., RayLauncher], sleep: Sleep, together: list[Any]
) -> None:
    launcher = line()
    _make_room(coordinator)
    nth = launcher.opening()
    assert nth == 1 and sleep.now_s == 0.0
    sleep.meanwhile = lambda: together.append(coordinator.target.meet(1, 2).go)
    launcher.leave(nth)
    assert together == ["COMMITTED", 1, "barrier", True], "the books of all are closed before Ray is told to go"
    assert 60.0 <= sleep.now_s <= 600.0, "no longer than NCCL waits for a collective"


def test_the_other_ranks_ask_nobody_but_rank_0(
    coordinator: Handle, line: Callable[..., RayLauncher], sleep: Sleep, together: list[Any]
) -> None:
    launcher = line(first=False)
    coordinator.dead = True
    assert launcher.opening() == 7
    launcher.leave(7)
    assert together == [None, "barrier"] and sleep.now_s > 0.0


def test_the_first_step_ends_a_resize_and_is_told_where_there_was_one(
    coordinator: Handle, line: Callable[..., RayLauncher]
) -> None:
    told: list[WorkerResize] = []
    launcher = line(tell=told.append)
    launcher.mark("step", 1)
    _make_room(coordinator)
    coordinator.target.leave(1)
    coordinator.target.meet(1, 2)
    launcher.mark("ready", 2)
    assert told == []
    launcher.mark("step", 2)
    assert [(resize.before, resize.after) for resize in told] == [(1, 2)]


def test_a_coordinator_that_is_gone_lets_workers_go_on(
    coordinator: Handle, line: Callable[..., RayLauncher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collective, "broadcast_from_rank_zero", lambda word: word)
    launcher = line()
    coordinator.dead = True
    with pytest.warns(GreenTrainWarning, match=r"_committed failed"):
        assert launcher.opening() is None


# -- the session of a worker -------------------------------------------------------------------------------------------


class Saved:
    """A checkpoint, as far as a session looks at it."""

    def __init__(self) -> None:
        self.metadata: dict[str, Any] = {}

    def get_metadata(self) -> dict[str, Any]:
        return self.metadata

    def update_metadata(self, more: dict[str, Any]) -> None:
        self.metadata.update(more)


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    reported: list[Any] = []
    monkeypatch.setattr(ray.train, "report", lambda metrics, **more: reported.append((metrics, more)))
    return reported


@pytest.fixture
def worker(
    coordinator: Handle, sleep: Sleep, together: list[Any], reported: list[Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., GreenRaySession]:
    def make(
        config: Any = None, *, rank: int = 0, world: int = 1, newest: Any = None, driven: bool = True
    ) -> GreenRaySession:
        context = SimpleNamespace(
            get_world_rank=lambda: rank,
            get_world_size=lambda: world,
            get_local_rank=lambda: rank,
            get_local_world_size=lambda: world,
            get_experiment_name=lambda: "job",
        )

        def get_actor(name: str) -> Handle:
            assert name == PREFIX + "job"
            if not driven:
                raise ValueError(name)
            return coordinator

        monkeypatch.setattr(ray.train, "get_context", lambda: context)
        monkeypatch.setattr(ray, "get_actor", get_actor)
        monkeypatch.setattr(ray.train, "get_checkpoint", lambda: newest)
        return GreenRaySession(config)

    return make


Worker = Callable[..., GreenRaySession]


def _events(green: GreenRaySession, rank: int = 0) -> list[str]:
    assert green.folder is not None
    return [r["name"] for r in read_journal(green.folder / f"rank-{rank:05d}.jsonl") if r["kind"] == "event"]


def test_workers_have_the_trainers_configuration_and_go_on_with_the_newest_checkpoint(
    worker: Worker, reported: list[Any]
) -> None:
    saved = Saved()
    with worker() as green:
        assert green.running and green.folder is not None and green.folder.name == "job"
        green.step(tokens=5)
        green.report({"loss": 1.0}, checkpoint=saved, delete_local_checkpoint_after_upload=True)  # type: ignore[arg-type]
        green.report({"loss": 0.5})
    assert reported[0] == ({"loss": 1.0}, {"checkpoint": saved, "delete_local_checkpoint_after_upload": True})
    assert _events(green).count("checkpoint") == 1 and "checkpoint" in green.totals().phase_s
    shutil.rmtree(green.folder)
    for rank, tokens in ((0, 5), (1, 0)):
        with worker(rank=rank, world=2, newest=saved) as again:
            pass
        assert again.totals().tokens == tokens, "the run is everybody's, the totals are rank 0's"
        assert again.state_dict()["progress"] == {"steps": 1, "tokens": 5.0}


def test_a_configuration_is_the_trainers_or_the_workers_but_not_both(worker: Worker, tmp_path: Path) -> None:
    own = {"run": {"dir": str(tmp_path), "id": "own", "report": False}, "power": {"meters": ["null"]}}
    with pytest.raises(ConfigError, match=r"was given a configuration, and so was GreenTorchTrainer"):
        worker(own)
    with worker(own, driven=False) as green:
        assert green.folder == tmp_path / "own"
        with pytest.raises(ConfigError, match=r"2 workers are wanted, but only GreenTorchTrainer"):
            green.want(2)


def test_a_checkpoint_that_rank_0_alone_has_is_everybodys_where_it_was_asked_for(
    worker: Worker, together: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for due, events in ((False, 0), (True, 1)):
        monkeypatch.setattr(GreenRaySession, "checkpoint_due", due)
        with worker(rank=1, world=2) as green:
            green.report({"loss": 1.0})
        assert _events(green, rank=1).count("checkpoint") == events
        assert together == [False][:events], "ranks speak to each other where one of them has asked for it"
    saved = Saved()
    with worker(rank=1, world=2) as green:
        green.report({"loss": 1.0}, checkpoint=saved)  # type: ignore[arg-type]
    assert saved.metadata == {}, "its state is rank 0's"


def test_rank_0_speaks_for_a_training_that_wants_another_number(worker: Worker, coordinator: Handle) -> None:
    worker(rank=1, world=2).want(4)
    assert coordinator.target.wanted() == 1
    worker().want(3)
    assert coordinator.target.wanted() == 3
    with pytest.raises(ConfigError, match="allows 1 to 4"):
        worker().want(5)


@pytest.mark.parametrize("fault", ["dead", "hangs"])
def test_a_wish_that_nobody_hears_does_not_end_the_training(worker: Worker, coordinator: Handle, fault: str) -> None:
    green = worker()
    setattr(coordinator, fault, True)
    with pytest.warns(GreenTrainWarning, match="3 workers are wanted, but the trainer does not answer"):
        green.want(3)


def test_a_checkpoint_whose_metadata_cannot_be_read_does_not_end_the_training(worker: Worker) -> None:
    def lost() -> Any:
        raise OSError("the storage does not answer")

    with (
        pytest.warns(GreenTrainWarning, match="the storage does not answer"),
        worker(newest=SimpleNamespace(get_metadata=lost)) as green,
    ):
        assert green.running
    with worker(newest=Saved()) as green:
        assert green.running, "a checkpoint without us"


def _asked_to_leave(green: GreenRaySession) -> None:
    green.step(tokens=5)
    green._controller.leave(2, None, "clean hours")
    assert green.checkpoint_due
    green.report({"loss": 1.0}, checkpoint=Saved())  # type: ignore[arg-type]


def test_without_room_training_goes_on_and_says_so(worker: Worker, coordinator: Handle) -> None:
    coordinator.target.opening = lambda: None
    collective.broadcast_from_rank_zero, said = lambda word: word, collective.broadcast_from_rank_zero
    try:
        with worker() as green:
            _asked_to_leave(green)
            assert green.running and not green.checkpoint_due
    finally:
        collective.broadcast_from_rank_zero = said
    assert coordinator.target.wanted() == 2, "the coordinator knows what the plan wants all the same"
    assert [name for name in _events(green) if name in ("leave", "stay")] == ["leave", "stay"]


def _closes(green: GreenRaySession) -> list[str]:
    assert green.folder is not None
    return [r["reason"] for r in read_journal(green.folder / "rank-00000.jsonl") if r["kind"] == "close"]


def test_books_are_closed_before_workers_make_way_and_opened_again_where_ray_does_nothing(
    worker: Worker, coordinator: Handle, sleep: Sleep
) -> None:
    running: list[bool] = []
    sleep.meanwhile = lambda: (
        _make_room(coordinator) if not coordinator.target.opening() else running.append(green.running)
    )
    with worker() as green:
        with pytest.warns(GreenTrainWarning, match="Ray did not resize, so training goes on"):
            _asked_to_leave(green)
        assert running[-1] is False and green.running and coordinator.target.meet(1, 2).go
        green.step(tokens=6)
    assert _closes(green) == ["left", "finished"] and green.totals().tokens == 11
    assert green.totals().steps == 2


def test_books_that_cannot_be_opened_again_do_not_end_the_training(
    worker: Worker, coordinator: Handle, sleep: Sleep, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise RunFolderError("no space")

    sleep.meanwhile = lambda: _make_room(coordinator)
    with worker() as green:
        monkeypatch.setattr(green, "start", full)
        with pytest.warns(GreenTrainWarning, match="no space"):
            _asked_to_leave(green)
        green.step(tokens=6)
        assert not green.running
    assert _closes(green) == ["left"]


def test_under_another_launcher_a_worker_leaves_as_every_training_does(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GREENTRAIN_LAUNCH_DIR", str(tmp_path))
    own = {"run": {"dir": str(tmp_path / "runs"), "report": False, "live": False}, "power": {"meters": ["null"]}}
    with worker(own, driven=False) as green, pytest.raises(SystemExit) as left:
        _asked_to_leave(green)
    assert left.value.code == EXIT_REQUEUE and _closes(green) == ["left"]


def test_a_resize_is_an_event_of_the_run_that_goes_on(worker: Worker, coordinator: Handle) -> None:
    _make_room(coordinator)
    coordinator.target.leave(1)
    coordinator.target.meet(1, 2)
    with worker() as green:
        green.step()
        assert green._controller.preemption is not None
        green._controller.preemption._writer.ask(60.0)
        green._resized(coordinator.target.resizes()[0])
    assert _events(green).count("resize") == 2
    green._resized(coordinator.target.resizes()[0])  # too late: there is no run that it could be an event of


# -- the trainer -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("nodes", "said"), [(1, 0), (2, 1)])
@pytest.mark.parametrize("ready", [True, False])
def test_a_fit_has_a_coordinator_of_its_own_and_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, coordinator: Handle, nodes: int, said: int, ready: bool
) -> None:
    done: list[Any] = []
    terms: dict[str, Any] = {}
    alive = [{"Alive": True}] * nodes
    monkeypatch.setattr(ray, "is_initialized", lambda: ready)
    monkeypatch.setattr(ray, "init", lambda: done.append("init"))
    monkeypatch.setattr(ray, "nodes", lambda: [*alive, {"Alive": False}])
    monkeypatch.setattr(ray, "kill", lambda actor: done.append(("kill", actor)))
    monkeypatch.setattr(ray_launcher, "warn_experimental", lambda feature, proven: done.append(feature))
    monkeypatch.setattr(
        ray_launcher, "open_coordinator", lambda name, **how: terms.update(how, name=name) or coordinator
    )

    def fit(self: Any) -> str:
        _make_room(coordinator)
        coordinator.target.leave(1)
        coordinator.target.meet(1, 2)
        coordinator.target.stepped()
        return "a result"

    monkeypatch.setattr(TorchTrainer, "fit", fit)
    scaling = ScalingConfig(num_workers=(1, 4), elastic_resize_monitor_interval_s=30.0)
    green = {"run": {"dir": str(tmp_path / "runs"), "id": "mine"}}
    trainer = GreenTorchTrainer(_train, green=green, ranks=2, scaling_config=scaling)
    result: Any = trainer.fit()
    assert result == "a result"
    assert done == [*["init"][ready:], *["GreenTorchTrainer on several nodes"][:said], ("kill", coordinator)]
    assert trainer.folder == tmp_path / "runs" / "mine"
    assert [(resize.before, resize.after) for resize in trainer.resizes] == [(1, 2)]
    assert terms.pop("name") == f"{PREFIX}{trainer.run_config.name}" and terms.pop("config").run.id == "mine"
    assert terms == {"least": 1, "most": 4, "ranks": 2, "patience_s": 30.0}
    coordinator.dead = True
    monkeypatch.setattr(TorchTrainer, "fit", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer.fit()
    assert done[-1] == ("kill", coordinator), "whatever ends the training"


def test_a_fixed_width_has_rays_own_policy_and_a_range_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchTrainer, "_initialize_and_run_controller", lambda self, **with_: with_)
    for workers, kind in ((2, str), ((1, 2), WantedWidth)):
        trainer = GreenTorchTrainer(_train, scaling_config=ScalingConfig(num_workers=workers))
        found: Any = trainer._initialize_and_run_controller(scaling_policy="Ray's", other=1)
        assert type(found["scaling_policy"]) is kind and found["other"] == 1
    assert found["scaling_policy"]._wanted == 2, "the most, where nobody says at how many to start"


def test_the_coordinator_lives_beside_the_driver_and_takes_no_cpu_from_a_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    class Remote:
        def options(self, **how: Any) -> "Remote":
            seen.append(how)
            return self

        def remote(self, **terms: Any) -> str:
            seen.append(terms)
            return "a handle"

    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "ab" * 28))

    def remote(**needs: Any) -> Callable[[type], Remote]:
        seen.append(needs)
        return lambda kind: seen.append(kind) or Remote()  # type: ignore[func-returns-value]

    monkeypatch.setattr(ray, "remote", remote)
    assert open_coordinator("x", least=1) == "a handle"
    needs, kind, how, terms = seen
    assert needs == {"num_cpus": 0} and kind is RayCoordinator and terms == {"least": 1} and how["name"] == "x"
    where = how["scheduling_strategy"]
    assert (where.node_id, where.soft) == ("ab" * 28, False), "on another machine it would be gone with that"


def test_an_operator_is_heard_by_the_run_that_is_named(coordinator: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "get_actor", lambda name: coordinator if name == PREFIX + "job" else None)
    want(3, run="job")
    assert coordinator.target.wanted() == 3
