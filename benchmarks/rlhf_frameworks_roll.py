"""ROLL's own code against ``roll_workers``: run by rlhf_frameworks.py."""

import ast
import asyncio
import contextlib
import enum
import functools
import importlib
import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tensordict import TensorDict

from benchmarks.rlhf_frameworks_common import Cases, Letters, Model, close, modules, padded, taken


def roll(checkout: Path, url: str, wanted: Callable[[str], float], cases: Cases) -> None:
    """ROLL: workers under its own decorator; the reference as its strategies compute it."""
    root = checkout / "roll"

    class DataProto:
        def __init__(self, batch: Any = None, meta_info: Any = None) -> None:
            self.batch, self.meta_info, self._remote_batch = batch, meta_info or {}, None

        @classmethod
        def from_dict(cls, tensors: Any) -> Any:
            return cls(TensorDict(tensors, batch_size=len(next(iter(tensors.values())))))

    class Worker:
        def __init__(self, worker_config: Any) -> None:
            self.worker_config = worker_config

        def initialize(self, pipeline_config: Any, *_: Any, **__: Any) -> None:
            self.pipeline_config = pipeline_config

    decorator = taken(
        root / "distributed" / "scheduler" / "decorator.py",
        "register",
        "Dispatch",
        "Execute",
        "_check_dispatch_mode",
        "_check_execute_mode",
        "BIND_WORKER_METHOD_FLAG",
        Enum=enum.Enum,
        auto=enum.auto,
        wraps=functools.wraps,
        asyncio=asyncio,
        traceback=traceback,
        DataProto=DataProto,
        Dict=dict,
        logger=logging.getLogger("roll"),
        attach_trace_context=lambda _: contextlib.nullcontext(),
        get_tracer=lambda _: SimpleNamespace(start_as_current_span=lambda *_: contextlib.nullcontext()),
        current_platform=SimpleNamespace(clear_cublas_workspaces=lambda: None),
        clear_memory=lambda: None,
    )
    stubs = {
        "roll.distributed.executor.worker": {"Worker": Worker},
        "roll.distributed.scheduler.decorator": decorator,
        "roll.distributed.scheduler.protocol": {"DataProto": DataProto},
        "roll.models.model_providers": {"default_tokenizer_provider": lambda model_args: Letters()},
    }
    strategy = taken(
        root / "distributed" / "strategy" / "strategy.py",
        "InferenceStrategy.op_compute_log_probs",
        **taken(root / "utils" / "functionals.py", "log_probs_from_logits", F=torch.nn.functional),
    )["InferenceStrategy"]()
    base = ast.parse((root / "pipeline" / "base_worker.py").read_text())
    modes = {
        f"{cls.name}.{method.name}": ast.unparse(method.decorator_list[0])
        for cls in base.body
        if isinstance(cls, ast.ClassDef)
        for method in cls.body
        if isinstance(method, ast.FunctionDef) and method.decorator_list
    }
    model = Model()
    with modules(stubs, "greentrain.rlhf.roll_workers"):
        workers: Any = importlib.import_module("greentrain.rlhf.roll_workers")
        flag = decorator["BIND_WORKER_METHOD_FLAG"]
        reward = workers.OffloadRewardWorker(None)
        reward.initialize(SimpleNamespace(actor_train=SimpleNamespace(model_args=None)))
        ids, mask, response = padded(True)
        data = DataProto({"input_ids": ids, "attention_mask": mask, "response_mask": response, "responses": ids[:, 3:]})
        found = asyncio.run(reward.compute_rewards(data)).batch["response_level_rewards"]
        texts = Letters().batch_decode([row[kept.bool()] for row, kept in zip(ids, mask, strict=True)])
        cases.row("roll", "compute_rewards under ROLL's register", found.tolist() == [wanted(text) for text in texts])
        reference = workers.OffloadReferenceWorker(None)
        reference.client = model
        with torch.no_grad():
            positions = (mask.cumsum(-1) - 1).clamp(min=0)
            logits = model.model(ids, attention_mask=mask, position_ids=positions).logits
            truth = strategy.op_compute_log_probs(logits, ids, response)
        found = reference.compute_log_probs(data).batch["log_probs"]
        cases.row("roll", "compute_log_probs and op_compute_log_probs, prompts padded on the left", close(found, truth))
        for name, method in (
            ("RewardWorker.compute_rewards", reward.compute_rewards),
            ("ActorWorker.compute_log_probs", reference.compute_log_probs),
            ("ActorWorker.initialize", reference.initialize),
        ):
            mode = getattr(method, flag)["dispatch_mode"].name
            cases.row(
                "roll", f"dispatch mode of {name}", f"Dispatch.{mode}" in modes[name].replace(",", ")").split(")")[0]
            )
        reward.client.close()
