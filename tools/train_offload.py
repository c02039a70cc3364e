"""Trains ``greentrain/policy/offload/ppo.npz``: ``python -m tools.train_offload``.

PPO of Stable-Baselines3 on ``PlacementEnv``, a few minutes of a core. The seed gives the same network on the same
machine and versions; another machine rounds differently, and training magnifies that.
"""

import argparse
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np

from greentrain.policy.carl import Network
from greentrain.policy.offload.ppo import HIDDEN, SHIPPED
from greentrain.utils.imports import try_import
from tools.networks import save
from tools.offload_policies import published_reward
from tools.placement_env import DECISIONS, DRIFT, NOISE, PlacementEnv, gain
from tools.placement_tasks import TASKS
from tools.train_carl import network_of

with try_import("rl") as _imports:
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

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


REWARDS: Final = {"saved": gain, "published": published_reward}
"""By the name that ``--reward`` takes."""


def train(*, steps: int = STEPS, seed: int = SEED, runs: int = RUNS, reward: str = "saved") -> "PPO":
    """Return the trained agent.

    Args:
        steps: Decisions of all runs together.
        seed: Of everything that is drawn.
        runs: Side by side.
        reward: A key of REWARDS.

    Raises:
        MissingExtraError: Stable-Baselines3 is not installed.
    """
    _imports.check()
    agent = PPO(
        "MlpPolicy",
        DummyVecEnv([lambda: PlacementEnv(rewarded=REWARDS[reward])] * runs),
        learning_rate=lambda left: LEARNING_RATE * left,
        policy_kwargs={"net_arch": list(HIDDEN)},  # with tanh, which is its default
        seed=seed,
        device="cpu",
        **PPO_SETTINGS,
    )
    return agent.learn(steps)


def about(*, steps: int, seed: int, reward: str = "saved") -> dict[str, Any]:
    """Return where the network is from."""
    return {
        "made_by": MADE_BY,
        "tasks": {task.name: task.weight for task in TASKS},
        "seed": seed,
        "steps": steps,
        "reward": reward,
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


def shrunk(network: Network) -> Network:
    """Return the network in the half precision in which it is shipped."""
    return Network(
        weights=tuple(w.astype(np.float16).astype(np.float64) for w in network.weights),
        biases=tuple(b.astype(np.float16).astype(np.float64) for b in network.biases),
        about=network.about,
    )


def main() -> None:
    """Write ppo.npz."""
    parser = argparse.ArgumentParser(description="Train the ppo placement policy.")
    parser.add_argument("--output", type=Path, default=SHIPPED)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--reward", choices=list(REWARDS), default="saved", help="joules saved, or EcoRL-Sched's")
    arguments = parser.parse_args()
    agent = train(steps=arguments.steps, seed=arguments.seed, reward=arguments.reward)
    network = network_of(agent, about(steps=arguments.steps, seed=arguments.seed, reward=arguments.reward))
    save(shrunk(network), arguments.output)


if __name__ == "__main__":
    main()
