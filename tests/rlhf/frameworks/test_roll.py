"""ROLL's workers among stand-ins of ROLL v0.3.0's classes, as far as they are used."""

import asyncio
import enum
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from greentrain.rlhf.client import ServeError
from tests.rlhf.frameworks.conftest import Letters, Served

PIPELINE = SimpleNamespace(actor_train=SimpleNamespace(model_args="policy"))


class Worker:
    def __init__(self, worker_config: Any) -> None:
        self.worker_config = worker_config

    def initialize(self, pipeline_config: Any, *args: Any, **kwargs: Any) -> None:
        self.pipeline_config = pipeline_config


class Dispatch(enum.Enum):
    ONE_TO_ALL = 1
    DP_MP_COMPUTE = 4
    DP_MP_DISPATCH_FIRST = 5


class DataProto:
    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self.meta_info: dict[str, Any] = {}

    @classmethod
    def from_dict(cls, tensors: dict[str, torch.Tensor]) -> "DataProto":
        assert len({len(tensor) for tensor in tensors.values()}) == 1
        return cls(tensors)


@pytest.fixture
def workers(adapter: Callable[..., Any]) -> Any:
    def register(
        dispatch_mode: Any,
        clear_cache: bool = True,
        trace: bool = False,
        prefetch: bool = False,
        to_remote: bool = False,
    ) -> Callable[[Any], Any]:
        def mark(method: Any) -> Any:
            method.dispatch = (dispatch_mode.name, prefetch, to_remote)
            return method

        return mark

    return adapter(
        "greentrain.rlhf.roll_workers",
        {
            "roll.distributed.executor.worker": {"Worker": Worker},
            "roll.distributed.scheduler.decorator": {"Dispatch": Dispatch, "register": register},
            "roll.distributed.scheduler.protocol": {"DataProto": DataProto},
            "roll.models.model_providers": {"default_tokenizer_provider": lambda model_args: Letters()},
        },
    )


def rollouts() -> tuple[DataProto, list[list[int]]]:
    """Prompts padded on the left, responses on the right, as ROLL has them."""
    rows = [[5, 6, 7, 8], [9, 10, 11, 12, 13]]
    ids = torch.tensor([[0, 5, 6, 7, 8, 0], [9, 10, 11, 12, 13, 0]])
    response = torch.tensor([[0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 0]])
    return DataProto(
        {"input_ids": ids, "attention_mask": (ids > 0).long(), "response_mask": response, "responses": ids[:, 3:]}
    ), rows


def test_rewards(served: Served, workers: Any) -> None:
    worker = workers.OffloadRewardWorker(worker_config=None)
    worker.initialize(PIPELINE)
    data, rows = rollouts()
    found = asyncio.run(worker.compute_rewards(data)).batch
    wanted = served.rewards([Letters().decode(row) for row in rows])
    assert found["response_level_rewards"].tolist() == found["scores"].tolist() == wanted
    assert found["token_level_rewards"].tolist() == [[0.0] * 3] * 2
    assert inspect.iscoroutinefunction(worker.compute_rewards)  # Ray then gives it many rollouts at a time
    assert worker.compute_rewards.dispatch == ("DP_MP_COMPUTE", False, False)
    worker.client.close()


def test_the_reference_is_zero_outside_the_response(served: Served, workers: Any) -> None:
    worker = workers.OffloadReferenceWorker(worker_config=None)
    worker.initialize(PIPELINE)
    data, rows = rollouts()
    result = worker.compute_log_probs(data)
    one, two = served.logprobs(rows)
    assert result.batch["log_probs"].tolist() == [[0.0, 0.0, one[1], one[2], 0.0], [0.0, 0.0, two[2], two[3], 0.0]]
    assert result.meta_info["metrics"]["time/greentrain_reference_s"] > 0.0
    assert worker.compute_log_probs.dispatch == ("DP_MP_DISPATCH_FIRST", True, True)
    worker.client.close()


@pytest.mark.parametrize("name", ["OffloadRewardWorker", "OffloadReferenceWorker"])
def test_no_server_ends_the_run_before_it_starts(
    served: Served, workers: Any, name: str, closed_port: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "ServeClient", lambda: workers_client(closed_port))
    with pytest.raises(ServeError, match="greentrain serve"):
        getattr(workers, name)(worker_config=None).initialize(PIPELINE)


def workers_client(url: str) -> Any:
    from greentrain.rlhf.client import ServeClient

    return ServeClient(url, tries=1)
