"""OpenRLHF's adapters: what OpenRLHF 0.11 calls of a reward function and of its reference's actors."""

import logging
import runpy
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from greentrain.errors import ConfigError
from greentrain.rlhf import openrlhf_reward
from greentrain.rlhf.client import ServeClient, ServeError
from greentrain.rlhf.openrlhf_reference import OffloadReference, WithoutGpu, main
from tests.rlhf.frameworks.conftest import Served

STRATEGY = SimpleNamespace(args=SimpleNamespace(rollout=SimpleNamespace(temperature=1.0)))


def test_the_file_is_a_reward_function(served: Served) -> None:
    reward_func = runpy.run_path(openrlhf_reward.__file__)["reward_func"]
    found = reward_func(["question answer"], ["question "], ["label"])
    [wanted] = served.rewards(["question answer"])
    assert found["rewards"].tolist() == found["scores"].tolist() == [wanted]
    # OpenRLHF makes a tensor of each rollout's
    assert torch.tensor([found["rewards"]]).tolist() == [wanted]


def test_a_failed_reward_is_told_before_openrlhf_swallows_it(
    served: Served, closed_port: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(openrlhf_reward, "_client", lambda: ServeClient(closed_port, tries=1))
    with caplog.at_level(logging.ERROR), pytest.raises(ServeError):
        openrlhf_reward.reward_func(["a"], ["a"], ["a"])
    assert "no reward" in caplog.text and closed_port in caplog.text


@pytest.mark.parametrize("left", [False, True])
def test_the_reference_is_where_a_model_would_put_it(served: Served, left: bool) -> None:
    rows, actions = [[5, 6, 7, 8, 9], [10, 11, 12]], [2, 1]
    sequences, mask = torch.zeros(2, 6, dtype=torch.long), torch.zeros(2, 6, dtype=torch.long)
    action_mask = torch.zeros(2, 5, dtype=torch.long)
    wanted = torch.zeros(2, 5)
    for i, (row, count, logprobs) in enumerate(zip(rows, actions, served.logprobs(rows), strict=True)):
        start = 6 - len(row) if left else 0
        sequences[i, start : start + len(row)] = torch.tensor(row)
        mask[i, start : start + len(row)] = 1
        end = start + len(row) - 1  # the last token's column, one less than its place
        action_mask[i, end - count : end] = 1
        wanted[i, end - count : end] = torch.tensor(logprobs[-count:])
    actor = OffloadReference(2, 0, None, None)
    assert actor.get_master_addr_port() == ("127.0.0.1", 0)
    actor.init_model_from_pretrained(STRATEGY, "policy")
    data = {"sequences": [sequences] * 3, "action_mask": [action_mask] * 3, "attention_mask": [mask] * 3}
    found = actor.execute_batch("forward", data, 1, 3)
    assert len(found) == 2 and all(torch.equal(one, wanted) for one in found)
    actor.empty_cache()
    with pytest.raises(ConfigError, match="no images"):
        actor.forward(sequences, action_mask, mask, mm_train_inputs_list=[{"pixels": 1}])
    actor._client.close()


def test_the_trainer_is_started_with_the_class_replaced(
    served: Served, adapter: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: dict[str, Any] = {}
    launcher = {"ReferenceModelActor": object()}

    class RayClass:
        def __init__(self, cls: type) -> None:
            self.cls = cls

        def options(self, **given: Any) -> dict[str, Any]:
            return given

    def run_module(name: str, **_: Any) -> None:
        ran["name"] = name
        ran["actor"] = sys.modules["openrlhf.trainer.ray.launcher"].ReferenceModelActor

    monkeypatch.setattr("greentrain.rlhf.openrlhf_reference.runpy", SimpleNamespace(run_module=run_module))
    adapter(
        "greentrain.rlhf.verl_reward",  # not used; any adapter does
        {"ray": {"remote": lambda **_: RayClass}, "openrlhf.trainer.ray.launcher": launcher},
    )
    vars(sys.modules["openrlhf.trainer.ray"])["launcher"] = sys.modules["openrlhf.trainer.ray.launcher"]
    main()
    assert ran["name"] == "openrlhf.cli.train_ppo_ray"
    assert isinstance(ran["actor"], WithoutGpu)
    monkeypatch.setenv("GREENTRAIN_TOKEN_FILE", "/token")
    monkeypatch.setenv("GREENTRAIN_PATIENCE_S", "60")
    given = ran["actor"].options(num_cpus=1, num_gpus=1, resources=None, scheduling_strategy="group")
    assert given == {
        "num_cpus": 1,
        "num_gpus": 0,
        "resources": None,
        "scheduling_strategy": "group",
        "runtime_env": {
            "env_vars": {
                "GREENTRAIN_URL": served.url,
                "GREENTRAIN_TOKEN_FILE": "/token",
                "GREENTRAIN_PATIENCE_S": "60",
            }
        },
    }
    monkeypatch.delenv("GREENTRAIN_URL")
    with pytest.raises(ConfigError, match="GREENTRAIN_URL"):
        main()


def test_the_module_is_imported_without_ray_or_openrlhf() -> None:
    assert isinstance(sys.modules["greentrain.rlhf.openrlhf_reference"], ModuleType)
    assert "openrlhf" not in sys.modules
