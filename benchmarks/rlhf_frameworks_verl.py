"""verl's own code against ``verl_reward`` and ``verl_trainer``: run by rlhf_frameworks.py."""

import asyncio
import contextlib
import enum
import functools
import importlib
import inspect
import logging
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import torch
from tensordict import TensorDict
from torch import Tensor

from benchmarks.rlhf_frameworks_common import Cases, Config, Letters, Model, close, modules, rollouts, taken


def verl(checkout: Path, url: str, wanted: Callable[[str], float], cases: Cases) -> None:
    """verl: the reward loop's own request; function and manager as verl loads them; the trainer's steps."""
    root = checkout / "verl"
    loop_file = root / "experimental" / "reward_loop" / "reward_loop.py"
    names = ("RewardLoopWorker._post_request", "RewardLoopWorker.compute_score_disrm")
    worker = taken(loop_file, *names, aiohttp=aiohttp, asyncio=asyncio, logger=logging.getLogger("verl"))
    loop = worker["RewardLoopWorker"]()

    async def text_of(data: Any) -> str:
        return str(data)

    rm: Any = Config(rollout=Config(name="vllm"), model_path="m")
    vars(loop).update(
        reward_router_address=url.removeprefix("http://"),
        config=Config(reward=Config(reward_model=rm)),
        _preprocess_reward_inputs=text_of,
    )
    found = asyncio.run(loop.compute_score_disrm("some text"))
    cases.row("verl", "RewardLoopWorker.compute_score_disrm, vllm", found == {"reward_score": wanted("some text")})

    imports = taken(
        root / "utils" / "import_utils.py",
        "load_module",
        "load_extern_object",
        "PKG_PATH_PREFIX",
        "FILE_PATH_PREFIX",
        importlib=importlib,
    )
    functions = ("get_custom_reward_fn", "_call_with_kwargs_async", "_call_with_kwargs", "resolve_reward_manager_cls")
    rewards = taken(
        root / "trainer" / "ppo" / "reward.py", *functions, inspect=inspect, partial=functools.partial, cast=typing.cast
    )
    managers = root / "experimental" / "reward_loop" / "reward_manager"
    base = taken(
        managers / "base.py",
        "RewardManagerBase",
        ABC=object,
        abstractmethod=lambda f: f,
        get_event_loop=lambda: asyncio.new_event_loop(),
    )
    naive = taken(
        managers / "naive.py",
        "NaiveRewardManager",
        inspect=inspect,
        register=lambda name: lambda cls: cls,
        RewardManagerBase=base["RewardManagerBase"],
        default_compute_score=None,
    )["NaiveRewardManager"]
    config = Config(
        reward=Config(
            custom_reward_function=Config(
                path="pkg://greentrain.rlhf.verl_reward", name="compute_score", reward_kwargs={"url": url}
            ),
            reward_manager=Config(
                source="importlib",
                name="OffloadRewardManager",
                module=SimpleNamespace(path="pkg://greentrain.rlhf.verl_reward"),
            ),
        ),
        greentrain=Config(url=url),
    )

    class Data(list[Any]):
        def __getitem__(self, item: Any) -> Any:
            got = super().__getitem__(item)
            return Data(got) if isinstance(item, slice) else got

    prompt, response = Letters()("why? ")["input_ids"][0], Letters()("because")["input_ids"][0]
    item = SimpleNamespace(
        batch={
            "prompts": prompt,
            "responses": response,
            "input_ids": torch.cat([prompt, response]),
            "attention_mask": torch.ones(len(prompt) + len(response), dtype=torch.long),
        },
        non_tensor_batch={"data_source": "d", "reward_model": {"ground_truth": ""}, "extra_info": {}},
    )

    async def scored(manager: Any) -> Any:
        manager.loop = asyncio.get_running_loop()
        return await manager.run_single(Data([item]))

    stubs = {
        "verl.utils.import_utils": {"load_extern_object": imports["load_extern_object"]},
        "verl.experimental.reward_loop.reward_manager.base": base,
    }
    with modules(stubs, "greentrain.rlhf.verl_reward"):
        function = rewards["get_custom_reward_fn"](config)
        found = asyncio.run(scored(naive(config, Letters(), function)))
        good = found["reward_score"] == wanted("because") and found["reward_extra_info"] == {"score": wanted("because")}
        cases.row("verl", "get_custom_reward_fn and NaiveRewardManager.run_single, our function", good)
        manager = rewards["resolve_reward_manager_cls"](config)
        made = manager(
            config=config,
            tokenizer=Letters(),
            compute_score=function,
            reward_router_address=None,
            reward_model_tokenizer=None,
        )
        found = asyncio.run(scored(made))
        good = found["reward_score"] == wanted("why? because") and issubclass(manager, base["RewardManagerBase"])
        cases.row("verl", "resolve_reward_manager_cls and our manager", good)
    _verl_trainer(root, cases)


def _verl_trainer(root: Path, cases: Cases) -> None:
    """Run verl's own ``_step_once`` over our trainer, and compare with verl's own ``_compute_ref_log_prob``."""
    v1 = root / "trainer" / "ppo" / "v1"
    utils = root / "trainer" / "ppo" / "utils.py"
    roles = taken(utils, "Role", "need_reference_policy", Enum=enum.Enum)
    nested = taken(root / "workers" / "utils" / "padding.py", "response_from_nested")
    fields: dict[str, Any] = {}
    seen: dict[str, bool] = {}

    def get(keys: list[str], partition_id: str, select_fields: list[str]) -> TensorDict:
        return TensorDict({name: fields[name] for name in select_fields}, batch_size=len(keys))

    def put(keys: list[str], partition_id: str, fields: TensorDict) -> None:
        store.update({str(name): value for name, value in fields.items()})

    store = fields
    queue = SimpleNamespace(kv_batch_get=get, kv_batch_put=put)
    pools: list[Any] = []

    def manager(**given: Any) -> Any:
        pools.append(given)
        return SimpleNamespace(**given)

    around = {
        **roles,
        **nested,
        "tq": queue,
        "ray": SimpleNamespace(remote=lambda cls: cls),
        "ActorRolloutRefWorker": "actor",
        "TrainingWorker": "critic",
        "ResourcePoolManager": manager,
        "need_critic": lambda config: True,
        "is_distillation_enabled": lambda config: False,
        "marked_timer": lambda *_, **__: contextlib.nullcontext(),
    }
    methods = ("_step_once", "_init_resource_pool_mgr", "_compute_ref_log_prob")
    space = taken(
        v1 / "trainer_base.py",
        *(f"PPOTrainer.{name}" for name in methods),
        "TRAINER_REGISTRY",
        "register_trainer",
        **around,
    )
    plain = space["PPOTrainer"]

    def init(self: Any, config: Any) -> None:
        self.config, self.use_critic, self.global_steps = config, True, 1
        self.use_reference_policy = roles["need_reference_policy"](config)
        self.ref_in_actor = False

    plain.__init__ = init
    for name in ("on_sample_begin", "on_sample_end"):
        setattr(plain, name, lambda self: None)

    def noting(name: str) -> Callable[..., Any]:
        def step(self: Any, batch: Any, metrics: dict[str, Any]) -> Any:
            seen[name] = "ref_log_prob" in fields
            return batch

        return step

    for name in ("_balance_batch", "_compute_old_log_prob", "_compute_values", "_compute_advantage"):
        setattr(plain, name, noting(name))
    for name in ("_update_critic", "_update_actor"):
        setattr(plain, name, noting(name))
    sync = taken(
        v1 / "trainer_sync.py", "PPOTrainerSync", PPOTrainer=plain, register_trainer=space["register_trainer"]
    )["PPOTrainerSync"]
    config: Any = Config(
        actor_rollout_ref=Config(
            actor=Config(use_kl_loss=True), model=Config(lora_rank=0), rollout=Config(temperature=0.7, n=1)
        ),
        algorithm=Config(use_kl_in_reward=False),
        trainer=Config(critic_warmup=0, n_gpus_per_node=8, nnodes=1, v1=Config(trainer_mode="greentrain_sync")),
        reward=Config(reward_model=Config(enable_resource_pool=False)),
        greentrain=Config(url="http://127.0.0.1:1"),
    )
    model = Model()
    prompts, responses = rollouts()
    rows = [p + r for p, r in zip(prompts, responses, strict=True)]

    def jagged(given: Sequence[Any]) -> Tensor:
        return torch.nested.as_nested_tensor([torch.as_tensor(row) for row in given], layout=torch.jagged)

    def fresh() -> Any:
        fields.clear()
        fields.update(
            prompts=jagged(prompts),
            responses=jagged(responses),
            response_mask=jagged([[1] * len(r) for r in responses]),
        )
        keys = [str(i) for i in range(len(rows))]

        class Batch:
            partition_id = "train"

            def __init__(self) -> None:
                self.keys = keys
                self.extra_info: dict[str, Any] = {}

            def __len__(self) -> int:
                return len(keys)

        return Batch()

    batch = fresh()
    reference = plain(config)

    def worker(given: Any) -> Any:  # what verl's worker writes: a column for each token, the last of them of no token
        temperature = given.extra_info["temperature"]
        fields["log_probs"] = jagged([[*row, 0.0] for row in model.logprobs(rows, temperature=temperature)])
        return given

    reference.ref_policy_wg = SimpleNamespace(compute_ref_log_prob=worker)
    reference._compute_ref_log_prob(batch, metrics={})
    truth = [row.clone() for row in fields["ref_log_prob"].unbind()]

    stubs = {
        "transfer_queue": vars(queue),
        "verl.trainer.ppo.utils": roles,
        "verl.trainer.ppo.v1.trainer_base": space,
        "verl.trainer.ppo.v1.trainer_sync": {"PPOTrainerSync": sync},
    }
    with modules(stubs, "greentrain.rlhf.verl_reward", "greentrain.rlhf.verl_trainer"):
        trainer_module: Any = importlib.import_module("greentrain.rlhf.verl_trainer")
        trainer_module.ServeClient = lambda **_: SimpleNamespace(logprobs=model.logprobs, health=dict)
        registered = space["TRAINER_REGISTRY"]["greentrain_sync"]
    trainer = registered(config)
    trainer._init_resource_pool_mgr()
    mapping = pools[-1]["mapping"]
    role = roles["Role"]
    good = role.ActorRollout in mapping and role.ActorRolloutRef not in mapping and mapping is trainer.mapping
    cases.row(
        "verl", "_init_resource_pool_mgr: no worker for a reference", good and config.trainer.v1.trainer_mode == "sync"
    )
    batch = fresh()
    seen.clear()
    trainer.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[1])
    trainer.curr_step_profile = False  # read by verl 0.9.1
    trainer.checkpoint_manager = SimpleNamespace(sleep_replicas=lambda: None)
    trainer.replay_buffer = SimpleNamespace(sample=lambda **_: (batch, {}))
    metrics: dict[str, Any] = {}
    trainer._step_once(metrics, {}, 3)
    trainer._threads.shutdown()
    found = fields["ref_log_prob"].unbind()
    good = len(found) == 3 and all(close(one, other) for one, other in zip(found, truth, strict=True))
    cases.row("verl", "_step_once with our trainer writes what _compute_ref_log_prob does", good)
    good = seen["_update_actor"] and not seen["_update_critic"] and "greentrain/reference_wait_s" in metrics
    cases.row("verl", "_step_once: the reference is there for the actor, and hidden behind the critic", good)
