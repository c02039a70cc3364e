"""verl's adapters among stand-ins of verl 0.9.1's classes: names, arguments and order of calls, as far as used."""

import asyncio
import enum
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from greentrain.errors import ConfigError
from greentrain.rlhf.client import ServeError
from tests.rlhf.frameworks.conftest import Letters, Served

Load = Callable[..., Any]


class Config(dict[str, Any]):
    """A dict with attributes, as verl's DictConfig."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


def config(*, kl_loss: bool = True, kl_in_reward: bool = False, warmup: int = 0, lora: bool = False) -> Config:
    return Config(
        actor_rollout_ref=Config(
            actor=Config(use_kl_loss=kl_loss), rollout=Config(temperature=1.0), model=Config(lora_rank=8 * lora)
        ),
        algorithm=Config(use_kl_in_reward=kl_in_reward),
        trainer=Config(critic_warmup=warmup, v1=Config(trainer_mode="greentrain_sync")),
        greentrain=Config(tries=1),
    )


class RewardManagerBase:
    def __init__(self, config: Any, tokenizer: Any, compute_score: Any) -> None:
        self.config, self.tokenizer, self.compute_score = config, tokenizer, compute_score


class DataProto(list[Any]):
    def __getitem__(self, item: Any) -> Any:
        found = super().__getitem__(item)
        return DataProto(found) if isinstance(item, slice) else found


def reward_modules() -> dict[str, dict[str, Any]]:
    return {"verl.experimental.reward_loop.reward_manager.base": {"RewardManagerBase": RewardManagerBase}}


def test_the_function_scores_the_response_after_its_prompt(served: Served, adapter: Load) -> None:
    module = adapter("greentrain.rlhf.verl_reward", {})
    given = {"data_source": "d", "solution_str": "the answer", "ground_truth": "", "extra_info": {"asked": "why? "}}
    alone, after = served.rewards(["the answer", "why? the answer"])
    assert asyncio.run(module.compute_score(**given, reward_router_address="unused")) == {"score": alone}
    assert asyncio.run(module.compute_score(**given, url=served.url, prompt_key="asked")) == {"score": after}
    with pytest.raises(ConfigError, match=r"prompt_key='prompt'.*has asked"):
        asyncio.run(module.compute_score(**given, prompt_key="prompt"))
    with pytest.raises(ConfigError, match="inside verl"):
        module.OffloadRewardManager(config(), Letters())
    module._client.cache_clear()


def test_no_server_is_an_error_and_no_reward(served: Served, adapter: Load, closed_port: str) -> None:
    module = adapter("greentrain.rlhf.verl_reward", {})
    with pytest.raises(ServeError, match="No number was made up"):
        asyncio.run(module.compute_score("d", "a", "", url=closed_port, tries=1))


def test_the_manager_scores_the_last_sequence_without_padding(served: Served, adapter: Load) -> None:
    module = adapter("greentrain.rlhf.verl_reward", reward_modules())
    ids = Letters()(["what? this."])["input_ids"][0]
    prompt, response = torch.tensor([1, *ids[:6]]), torch.tensor([*ids[6:], 1])
    kept = torch.cat([torch.ones(7), torch.ones(6), torch.zeros(2)]).long()
    first = SimpleNamespace(batch={}, non_tensor_batch={})
    agent_loop = {  # every part padded on its own; the mask is of the whole
        "prompts": torch.cat([prompt, torch.zeros(2, dtype=torch.long)]),
        "responses": response,
        "input_ids": torch.cat([prompt, response, torch.zeros(2, dtype=torch.long)]),
        "attention_mask": kept,
    }
    colocated = {
        "prompts": prompt,
        "responses": torch.cat([response, torch.zeros(2, dtype=torch.long)]),
        "attention_mask": kept,
    }
    manager = module.OffloadRewardManager(config(), Letters(), compute_score=None, reward_router_address=None)
    [wanted] = served.rewards([Letters().decode(ids)])
    for batch in (agent_loop, colocated):
        item = SimpleNamespace(batch=batch, non_tensor_batch={})
        found = asyncio.run(manager.run_single(DataProto([first, item])))
        assert found == {"reward_score": wanted, "reward_extra_info": {"score": wanted}}
    manager.chat = SimpleNamespace(apply_chat_template=lambda turns, **_: "".join(turn["content"] for turn in turns))
    item = SimpleNamespace(batch=colocated, non_tensor_batch={"raw_prompt": [{"role": "user", "content": "hi! "}]})
    found = asyncio.run(manager.run_single(DataProto([item])))
    assert [found["reward_score"]] == served.rewards(["hi! " + Letters().decode(ids[6:])])
    manager.client.close()
    with pytest.raises(ConfigError, match=r"greentrain\.uri"):
        module.OffloadRewardManager(Config(greentrain=Config(uri="x")), Letters())


class Role(enum.Enum):
    ActorRollout = 2
    Critic = 3
    ActorRolloutRef = 6


class Queue:
    """verl's TransferQueue: fields by name, jagged."""

    def __init__(self, prompts: list[list[int]], responses: list[list[int]]) -> None:
        self.fields = {"prompts": nested(prompts), "responses": nested(responses)}
        self.keys = [str(i) for i in range(len(prompts))]

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> TensorDict:
        assert keys == self.keys and partition_id == "train"
        return TensorDict({name: self.fields[name] for name in select_fields}, batch_size=len(keys))

    def kv_batch_put(self, keys: list[str], partition_id: str, fields: TensorDict) -> None:
        assert keys == self.keys and fields.batch_size == torch.Size([len(keys)])
        self.fields.update({str(name): value for name, value in fields.items()})


def nested(rows: list[list[int]]) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


class PPOTrainerSync:
    """In the order of ``_step_once``; each step notes whether the reference is written yet."""

    queue: Queue
    global_steps = 1

    def __init__(self, config: Any) -> None:
        self.config = config
        self.use_reference_policy = config.algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss
        self.trainer_mode = config.trainer.v1.trainer_mode
        self.seen: dict[str, bool] = {}

    def _init_resource_pool_mgr(self) -> None:
        role = Role.ActorRollout if self.config.actor_rollout_ref.model.lora_rank else Role.ActorRolloutRef
        self.role_worker_mapping = {role: "worker", Role.Critic: "critic"}
        self.mapping = {role: "global_pool", Role.Critic: "global_pool"}

    def _note(self, name: str, batch: Any) -> Any:
        self.seen[name] = "ref_log_prob" in self.queue.fields
        return batch

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        return self._note("old", batch)

    def _compute_ref_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        raise AssertionError("there is no worker for the reference")

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        return self._note("advantage", batch)

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        return self._note("actor", batch)

    def step(self, batch: Any) -> dict[str, Any]:
        metrics: dict[str, Any] = {}
        batch = self._compute_old_log_prob(batch, metrics=metrics)
        batch = self._compute_ref_log_prob(batch, metrics=metrics)
        batch = self._compute_advantage(batch, metrics=metrics)
        if self.config.trainer.critic_warmup <= self.global_steps:
            self._update_actor(batch, metrics=metrics)
        return metrics


def trainer_class(adapter: Load, queue: Queue) -> tuple[Any, dict[str, Any]]:
    registered: dict[str, Any] = {}

    def register_trainer(name: str) -> Callable[[Any], Any]:
        return lambda cls: registered.setdefault(name, cls)

    adapter(
        "greentrain.rlhf.verl_trainer",
        {
            "transfer_queue": {"kv_batch_get": queue.kv_batch_get, "kv_batch_put": queue.kv_batch_put},
            "verl.trainer.ppo.utils": {"Role": Role},
            "verl.trainer.ppo.v1.trainer_base": {"register_trainer": register_trainer},
            "verl.trainer.ppo.v1.trainer_sync": {"PPOTrainerSync": type("Base", (PPOTrainerSync,), {"queue": queue})},
            **reward_modules(),
        },
    )
    return registered["greentrain_sync"], registered


PROMPTS, RESPONSES = [[5, 6, 7], [8], [9, 10]], [[11, 12], [13, 14, 15], [16]]


def taken(trainer: Any, queue: Queue) -> dict[str, Any]:
    try:
        metrics: dict[str, Any] = trainer.step(SimpleNamespace(keys=queue.keys, partition_id="train"))
        return metrics
    finally:
        trainer._threads.shutdown()
        trainer._client.close()


@pytest.mark.parametrize("kl_in_reward", [False, True])
def test_the_trainer_writes_the_reference_before_it_is_read(served: Served, adapter: Load, kl_in_reward: bool) -> None:
    queue = Queue(PROMPTS, RESPONSES)
    cls, _ = trainer_class(adapter, queue)
    trainer = cls(config(kl_loss=not kl_in_reward, kl_in_reward=kl_in_reward))
    assert trainer.trainer_mode == "sync"  # another name gets verl's asynchronous replay buffer
    trainer._init_resource_pool_mgr()
    assert trainer.role_worker_mapping == {Role.ActorRollout: "worker", Role.Critic: "critic"}
    assert trainer.mapping == {Role.ActorRollout: "global_pool", Role.Critic: "global_pool"}
    metrics = taken(trainer, queue)
    assert trainer.seen == {"old": False, "advantage": kl_in_reward, "actor": True}
    assert metrics["greentrain/reference_wait_s"] >= 0.0
    wanted = served.logprobs([p + r for p, r in zip(PROMPTS, RESPONSES, strict=True)])
    for found, row, response in zip(queue.fields["ref_log_prob"].unbind(), wanted, RESPONSES, strict=True):
        assert found.tolist() == row[-len(response) :]


def test_the_trainer_asks_for_nothing_that_is_not_read(served: Served, adapter: Load) -> None:
    queue = Queue(PROMPTS, RESPONSES)
    cls, _ = trainer_class(adapter, queue)
    assert taken(cls(config(warmup=2)), queue) == {}
    assert "ref_log_prob" not in queue.fields


def test_the_trainer_refuses_what_it_cannot_do(served: Served, adapter: Load, closed_port: str) -> None:
    queue = Queue(PROMPTS, [[11, 12], [13, 14, 200], [16]])
    cls, _ = trainer_class(adapter, queue)
    with pytest.raises(ConfigError, match="no reference to offload"):
        cls(config(kl_loss=False))
    with pytest.raises(ConfigError, match="without its adapter"):
        cls(config(lora=True))._init_resource_pool_mgr()
    with pytest.raises(ServeError, match="greentrain serve"):
        cls(Config(config(), greentrain=Config(url=closed_port, tries=1)))
    with pytest.raises(ServeError, match="token id 200"):
        taken(cls(config()), queue)
