"""Trains ``greentrain/policy/offload/ppo.npz``: ``python -m tools.train_offload``.

PPO of Stable-Baselines3 on ``PlacementEnv``, a few minutes of a core. The seed gives the same network on the same
machine and versions; another machine rounds differently, and training magnifies that.

    python -m tools.train_offload --network published --reward published --output tools/ppo_published.npz

trains EcoRL-Sched's network (ReLU behind LayerNorm) on its reward.
"""

import argparse
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from greentrain.policy.carl import Network
from greentrain.policy.offload.ppo import HIDDEN, SHIPPED
from greentrain.utils.imports import try_import
from tools.networks import NormedNetwork, save
from tools.offload_policies import published_reward
from tools.placement_env import DECISIONS, DRIFT, NOISE, PlacementEnv, gain
from tools.placement_runs import REWARDS
from tools.placement_tasks import TASKS
from tools.train_carl import network_of

with try_import("rl") as _imports:
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

MADE_BY: Final = "python -m tools.train_offload"
SEED: Final = 0
STEPS: Final = 400_000
RUNS: Final = 16
"""Side by side."""
PPO_SETTINGS: Final[dict[str, Any]] = {
    "n_steps": 128,
    "batch_size": 512,
    "n_epochs": 6,
    "gamma": 0.3,
    "gae_lambda": 0.9,
    "ent_coef": 0.003,
}
"""A plan changes little of what comes after it, hence a small gamma."""
LEARNING_RATE: Final = 5e-4
"""At the start; it falls to 0."""


class Normed(BaseFeaturesExtractor):
    """Layers of HIDDEN widths, each with LayerNorm and ReLU (EcoRL-Sched)."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space, HIDDEN[-1])
        widths = (observation_space.shape[0], *HIDDEN)
        blocks = (
            (torch.nn.Linear(before, width), torch.nn.LayerNorm(width), torch.nn.ReLU())
            for before, width in zip(widths, HIDDEN, strict=False)
        )
        self.layers = torch.nn.Sequential(*(layer for block in blocks for layer in block))

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Return the last layer."""
        found: torch.Tensor = self.layers(observations)
        return found


NETWORKS: Final[dict[str, dict[str, Any]]] = {
    "tanh": {"net_arch": list(HIDDEN)},  # tanh is the default
    "published": {"net_arch": [], "features_extractor_class": Normed, "share_features_extractor": False},
}
"""Arguments of the policy by the name that ``--network`` takes. Actor and critic have layers of their own."""


def train(
    *,
    steps: int = STEPS,
    seed: int = SEED,
    runs: int = RUNS,
    reward: str = "saved",
    network: str = "tanh",
    env: "VecEnv | None" = None,
    watch: "BaseCallback | None" = None,
    start: "PPO | None" = None,
    **settings: Any,
) -> "PPO":
    """Return the trained agent.

    Args:
        steps: Decisions of all runs together.
        seed: Of everything that is drawn.
        runs: Side by side.
        reward: One of REWARDS.
        network: A key of NETWORKS.
        env: Where it learns; None: in ``PlacementEnv``, runs that are drawn as they are needed.
        watch: Looks at the agent meanwhile.
        start: Agent of the same network that it begins as; None: from nothing.
        settings: Of PPO, in the place of PPO_SETTINGS and LEARNING_RATE.

    Raises:
        MissingExtraError: Stable-Baselines3 is not installed.
    """
    _imports.check()
    rewarded = dict(zip(REWARDS, (gain, published_reward), strict=True))[reward]
    agent = PPO(
        "MlpPolicy",
        DummyVecEnv([lambda: PlacementEnv(rewarded=rewarded)] * runs) if env is None else env,
        policy_kwargs=NETWORKS[network],
        seed=seed,
        device="cpu",
        **{"learning_rate": lambda left: LEARNING_RATE * left, **PPO_SETTINGS, **settings},
    )
    if start is not None:
        agent.policy.load_state_dict(start.policy.state_dict())
    return agent.learn(steps, callback=watch)


def about(*, steps: int, seed: int, reward: str = "saved", network: str = "tanh") -> dict[str, Any]:
    """Return where the network is from."""
    return {
        "made_by": MADE_BY,
        "tasks": {task.name: task.weight for task in TASKS},
        "seed": seed,
        "steps": steps,
        "reward": reward,
        "network": network,
        "algorithm": "PPO",
        "settings": {
            **PPO_SETTINGS,
            "learning_rate": LEARNING_RATE,
            "runs": RUNS,
            "hidden": list(HIDDEN),
            "decisions": DECISIONS,
            "drift": DRIFT,
            "noise": NOISE,
        },
        "versions": {name: version(name) for name in ("stable-baselines3", "torch", "numpy")},
    }


def actor_of(agent: "PPO", told: dict[str, Any]) -> Network:
    """Return what an agent does as matrices, whichever of NETWORKS it is."""
    if told["network"] == "tanh":
        return network_of(agent, told)
    state = {name: tensor.numpy().astype(np.float64) for name, tensor in agent.policy.state_dict().items()}
    layers = [f"pi_features_extractor.layers.{3 * i}" for i in range(len(HIDDEN))]
    norms = [f"pi_features_extractor.layers.{3 * i + 1}" for i in range(len(HIDDEN))]
    return NormedNetwork(
        weights=tuple(state[f"{name}.weight"].T for name in (*layers, "action_net")),
        biases=tuple(state[f"{name}.bias"] for name in (*layers, "action_net")),
        norms=tuple(np.array([state[f"{name}.weight"], state[f"{name}.bias"]]) for name in norms),
        about=told,
    )


def shrunk(network: Network) -> Network:
    """Return the network in the half precision in which it is shipped."""
    arrays = {name: getattr(network, name) for name in ("weights", "biases", "norms") if hasattr(network, name)}
    halved: dict[str, Any] = {
        name: tuple(a.astype(np.float16).astype(np.float64) for a in some) for name, some in arrays.items()
    }
    return replace(network, **halved)


def main() -> None:
    """Write ppo.npz, or what else was asked for."""
    parser = argparse.ArgumentParser(description="Train the ppo placement policy.")
    parser.add_argument("--output", type=Path, default=SHIPPED)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--reward", choices=REWARDS, default="saved", help="joules saved, or EcoRL-Sched's")
    parser.add_argument("--network", choices=list(NETWORKS), default="tanh", help="ours, or EcoRL-Sched's")
    arguments = parser.parse_args()
    asked = {name: getattr(arguments, name) for name in ("steps", "seed", "reward", "network")}
    save(shrunk(actor_of(train(**asked), about(**asked))), arguments.output)


if __name__ == "__main__":
    main()
