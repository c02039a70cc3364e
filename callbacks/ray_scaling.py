"""The number of workers of a Ray Train run, decided by GreenTrain instead of by what the cluster could give.

Ray has the elasticity (``ScalingConfig(num_workers=(min, max))``), but no public way to say which number. What is
used beneath is private: ``ray/train/v2/_internal/execution/scaling_policy/elastic.py`` and ``DataParallelTrainer.
_initialize_and_run_controller``, both of ray 2.60.0, read 2026-11-21; ``tests/callbacks/test_ray_contract.py`` holds
them to it.
"""

import logging
from typing import Any, Final

from greentrain.callbacks.ray_coordinator import ASK_S, Order, RayCoordinator
from greentrain.errors import MissingExtraError
from greentrain.utils.imports import try_import
from greentrain.utils.never_raise import never_raises

with try_import("ray") as _imports:
    import ray
    from ray.train.v2._internal.execution.scaling_policy import ElasticScalingPolicy, NoopDecision, ScalingDecision
    from ray.train.v2.api.config import ScalingConfig
_imports.check()

log = logging.getLogger(__name__)

TESTED: Final = "2.60"


def check_version(version: str | None = None) -> None:
    """Refuse a Ray whose insides nobody has tried.

    Args:
        version: To check; None: the installed one.

    Raises:
        MissingExtraError: It is another minor version than the tested one.
    """
    version = version or ray.__version__
    if version.split(".")[:2] != TESTED.split("."):
        raise MissingExtraError(
            f"ray {version} is installed; GreenTrain sets the number of workers through parts that are private to Ray"
            f" and were tried with {TESTED} only. Install it with: pip install 'greentrain-torch[ray]', or train at a"
            " fixed width with ray.train.torch.TorchTrainer and GreenRaySession(config), which need none of them"
        )


class WantedWidth(ElasticScalingPolicy):
    """Runs as many workers as are wanted, where the cluster has them.

    It lives in Ray's controller, is asked at every health check (2 s) and raises nothing: where the desk does not
    answer, the last word counts.

    Args:
        scaling_config: The trainer's, with a range of workers.
        desk: Handle of the desk's actor.
        ranks: Wanted at the start.
    """

    def __init__(self, scaling_config: "ScalingConfig", desk: Any, ranks: int) -> None:
        super().__init__(scaling_config)
        self._desk, self._wanted = desk, ranks

    def make_decision_for_non_running_worker_group(self) -> "ScalingDecision":
        self._want(self._ask_wanted())
        return super().make_decision_for_non_running_worker_group()

    def make_decision_for_running_worker_group(
        self, worker_group_state: Any, worker_group_status: Any
    ) -> "ScalingDecision":
        self._maybe_send_resource_request()  # type: ignore[no-untyped-call]
        current = int(worker_group_state.num_workers)
        order = self._meet(current)
        if order is not None and order.wanted != self._wanted:
            self._want(order.wanted)
            order = self._meet(current)
        if order is None or not order.go:
            return NoopDecision()
        return self._get_resize_decision(self._possible() or current)

    def _get_num_workers_for_resource_request(self) -> int:
        return self._wanted  # not the most: an autoscaler may then take away the machines that nobody wants

    def _count_possible_workers(self, reserved_resources: Any) -> int:
        return min(int(super()._count_possible_workers(reserved_resources)), self._wanted)

    def _possible(self) -> int | None:
        reserved = self._get_reserved_resources()
        return None if reserved is None else self._count_possible_workers(reserved)

    def _want(self, ranks: int | None) -> None:
        if ranks is not None and ranks != self._wanted:
            log.info("%d workers are wanted instead of %d", ranks, self._wanted)
            self._wanted = ranks
            self._send_resource_request()  # type: ignore[no-untyped-call]
            self._latest_reserved_resources_query_time = float("-inf")  # what was reserved before is no answer

    @never_raises
    def _meet(self, current: int) -> Order | None:
        answer: Order = ray.get(self._desk.meet.remote(current, self._possible()), timeout=ASK_S)
        return answer

    @never_raises
    def _ask_wanted(self) -> int | None:
        answer: int = ray.get(self._desk.wanted.remote(), timeout=ASK_S)
        return answer


def open_desk(name: str, **terms: Any) -> Any:
    """Start the desk of a Ray Train run beside this process and return its handle.

    Args:
        name: Of the actor.
        **terms: Those of Desk.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0)(RayCoordinator).options(name=name, scheduling_strategy=here).remote(**terms)
