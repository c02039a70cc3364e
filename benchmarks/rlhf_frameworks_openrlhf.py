"""OpenRLHF's own code against ``openrlhf_reward`` and ``openrlhf_reference``: run by rlhf_frameworks.py."""

import asyncio
import importlib.util
import inspect
import logging
import os
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.rlhf_frameworks_common import Cases, Letters, Model, close, modules, padded, taken
from greentrain.rlhf import openrlhf_reward
from greentrain.rlhf.batching import padded_logprobs, unpadded
from greentrain.rlhf.client import ServeClient
from greentrain.rlhf.openrlhf_reference import OffloadReference, WithoutGpu


def openrlhf(checkout: Path, url: str, wanted: Callable[[str], float], cases: Cases) -> None:
    """OpenRLHF: rewards by URL and by file; the reference as ``Actor.forward`` gives it, through ``execute_batch``."""
    root = checkout / "openrlhf"
    logger = {"openrlhf.utils.logging_utils": {"init_logger": logging.getLogger}}
    with modules(logger):
        agent: Any = types.ModuleType("agent")
        exec(compile((root / "utils" / "agent.py").read_text(), "agent.py", "exec"), vars(agent))

    class Engine:
        async def generate(self, ids: list[int], *_: Any, **__: Any) -> Any:
            output = SimpleNamespace(token_ids=[40, 41], finish_reason="stop", logprobs=None)
            return SimpleNamespace(outputs=[output])

    asked = SimpleNamespace(max_tokens=8, logprobs=None)
    text = "why?" + Letters().decode([40, 41])
    for what, endpoint in (("URL", f"{url}/get_reward"), ("file", openrlhf_reward.__file__)):
        runner = agent.SingleTurnAgentExecutor([endpoint])
        found = asyncio.run(runner.execute("why?", "label", asked, 32, Letters(), Engine()))
        reward = torch.tensor([found["reward"]]).flatten()
        good = reward.tolist() == [wanted(text)] and found["scores"] is not None
        cases.row("openrlhf", f"SingleTurnAgentExecutor.execute, reward by {what}", good)

    model = Model()
    forward = taken(root / "models" / "utils.py", "log_probs_from_logits", "_logsumexp_by_chunk")
    actor = taken(root / "models" / "actor.py", "Actor.forward", **forward)["Actor"]()
    vars(actor).update(packing_samples=False, is_vlm=False, temperature=0.7, model=model.model)
    ours: Any = OffloadReference(1, 0, None, None)
    ours._client, ours._temperature = model, 0.7
    launcher = root / "trainer" / "ray" / "launcher.py"
    theirs = taken(launcher, "BaseModelActor.execute_batch", tqdm=lambda items, **_: items)["BaseModelActor"]()
    vars(theirs).update(
        strategy=SimpleNamespace(is_rank_0=lambda: False), forward=lambda **given: actor.forward(**given)
    )
    for left in (True, False):
        ids, mask, response = padded(left)
        data = {"sequences": [ids] * 3, "action_mask": [response[:, 1:]] * 3, "attention_mask": [mask] * 3}
        with torch.no_grad():
            pairs = zip(
                theirs.execute_batch("forward", data, 1, 3), ours.execute_batch("forward", data, 1, 3), strict=True
            )
            good = all(close(one, other) for one, other in pairs)
        side = "left" if left else "right"
        cases.row("openrlhf", f"Actor.forward through execute_batch, padding on the {side}", good)
    declared = taken(launcher, "ReferenceModelActor.forward", Optional=None)["ReferenceModelActor"]
    if importlib.util.find_spec("ray"):
        _through_ray(launcher, url, cases)
    cases.row(
        "openrlhf",
        "arguments of ReferenceModelActor.forward",
        _arguments(declared.forward) == _arguments(type(ours).forward),
    )


def _through_ray(launcher: Path, url: str, cases: Cases) -> None:
    """Run our actor on a Ray without GPUs through OpenRLHF's own group of actors, which asks for one GPU each."""
    with tempfile.TemporaryDirectory() as hidden:  # ray 2.60 fails on a package amdsmi without AMD's driver beside it
        (Path(hidden) / "amdsmi.py").write_text("raise ImportError\n", encoding="utf-8")
        path = os.pathsep.join([hidden, str(Path(__file__).resolve().parents[1])])
        os.environ.update(RAY_AUTH_MODE="disabled", PYTHONPATH=path)
        sys.path.insert(0, hidden)
        ray: Any = importlib.import_module("ray")
        methods = ("__init__", "_initiate_actors", "async_init_model_from_pretrained", "async_run_method_batch")
        made = taken(launcher, *(f"RayActorGroup.{name}" for name in methods), ray=ray)["RayActorGroup"]
        ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, logging_level=logging.ERROR)
        try:
            group = made(1, 1, WithoutGpu(ray.remote(num_gpus=0)(OffloadReference)))
            strategy = SimpleNamespace(args=SimpleNamespace(rollout=SimpleNamespace(temperature=1.0)))
            ray.get(group.async_init_model_from_pretrained(strategy, "policy"))
            ids, mask, response = padded(False)
            given = {"sequences": [ids] * 4, "action_mask": [response[:, 1:]] * 4, "attention_mask": [mask] * 4}
            found = ray.get(group.async_run_method_batch("forward", **given))[0]
            with ServeClient(url) as client:
                wanted = padded_logprobs(client.logprobs(unpadded(ids, mask)), mask) * response[:, 1:]
            good = len(found) == 4 and all(torch.equal(one, wanted) for one in found)
            cases.row("openrlhf", f"RayActorGroup on Ray {ray.__version__} without a GPU", good)
        finally:
            ray.shutdown()
            sys.path.remove(hidden)


def _arguments(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if not name.startswith("_ray_")]
