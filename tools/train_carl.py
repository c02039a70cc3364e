"""Trains ``carl.npz``: ``python -m tools.train_carl TRACES_DIR``, about five minutes of a core.

PPO of Stable-Baselines3 on ``CarlView``: the environment as CARL sees it, with three actions, ten numbers, and a
deadline that is only soft. The seed gives the same network on the same machine and versions; another machine rounds
differently, and training magnifies that.
"""

import argparse
import hashlib
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium import spaces

from greentrain.policy.action_sources import reference_table
from greentrain.policy.carl import FEATURES, LIMIT, SHIPPED, Network, features, rows_of
from greentrain.policy.menu import Menu
from greentrain.simulator.grid_trace import GridTrace
from greentrain.utils.imports import try_import
from tools.job_env import CarbonTrainEnv, Observed
from tools.networks import save

SLACK: Final = (1.0, 2.2)
"""Deadline / time of the usual training of the jobs that it is trained on."""
LATE: Final = 2.0
"""A token that is late costs as much as this many tokens of the usual training: the soft deadline."""


class CarlView(gymnasium.Wrapper[Observed, np.int64, Observed, np.int64]):
    """Jobs that are passed through, throttled or deferred, without a shield.

    Args:
        traces: Grids; each episode draws one.
        menu: What a job can do.
        more: Further arguments of ``CarbonTrainEnv``.
    """

    def __init__(self, traces: Sequence[GridTrace], menu: Menu, **more: Any) -> None:
        given: dict[str, Any] = {"slack": SLACK, "late": LATE, "shield": False} | more
        self._job = CarbonTrainEnv(traces, menu, rows=rows_of(menu).tolist(), **given)
        super().__init__(self._job)
        self._menu = menu
        self.observation_space = spaces.Box(-LIMIT, LIMIT, (FEATURES,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observed, dict[str, Any]]:
        """Start a job."""
        _, info = self._job.reset(seed=seed, options=options)
        return self._look(), info

    def step(self, action: np.int64) -> tuple[Observed, float, bool, bool, dict[str, Any]]:
        """Pass through (0), throttle (1) or defer (2) for one epoch."""
        _, reward, terminated, truncated, info = self._job.step(action)
        return self._look(), reward, terminated, truncated, info

    def _look(self) -> Observed:
        seen: Observed = features(self._job.seen, self._menu)[0].astype(np.float32)
        return seen


with try_import("rl") as _imports:
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

MADE_BY: Final = "python -m tools.train_carl TRACES_DIR"
TRACES: Final = (
    "us_caiso_2022_eia",
    "us_pjm_2022_eia",
    "us_miso_2022_eia",
    "us_ercot_2022_eia",
    "us_bpat_2022_eia",
)
"""Hourly gCO2/kWh of 2022, EIA-930 (U.S. government, public domain), carried by HewlettPackard/dc-rl (MIT). NYISO and
SOCO are held out, and all that is not of 2022 or not of EIA."""
SEED: Final = 0
STEPS: Final = 400_000
JOBS: Final = 16
"""Side by side."""
PPO_SETTINGS: Final[dict[str, Any]] = {
    "n_steps": 128,
    "batch_size": 256,
    "n_epochs": 8,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "ent_coef": 0.001,
    "policy_kwargs": {"net_arch": [32, 32]},
}
LEARNING_RATE: Final = 1e-3
"""At the start; it falls to 0."""


def train(traces: Sequence[GridTrace], *, steps: int = STEPS, seed: int = SEED, jobs: int = JOBS) -> "PPO":
    """Return the trained agent.

    Args:
        traces: Grids to train on.
        steps: Epochs of all jobs together.
        seed: Of everything that is drawn.
        jobs: Side by side.

    Raises:
        MissingExtraError: Stable-Baselines3 is not installed.
    """
    _imports.check()
    menu = Menu.of(reference_table())
    agent = PPO(
        "MlpPolicy",
        DummyVecEnv([lambda: CarlView(traces, menu)] * jobs),
        learning_rate=lambda left: LEARNING_RATE * left,
        seed=seed,
        device="cpu",
        **PPO_SETTINGS,
    )
    return agent.learn(steps)


def network_of(agent: "PPO", about: dict[str, Any]) -> Network:
    """Return the policy of an agent as matrices."""
    state = {name: tensor.numpy().astype(np.float64) for name, tensor in agent.policy.state_dict().items()}
    layers = [name for name in state if name.startswith("mlp_extractor.policy_net.") and name.endswith(".weight")]
    names = [name.removesuffix(".weight") for name in (*layers, "action_net.weight")]
    return Network(
        weights=tuple(state[f"{name}.weight"].T for name in names),
        biases=tuple(state[f"{name}.bias"] for name in names),
        about=about,
    )


def about(traces_dir: Path, *, steps: int, seed: int) -> dict[str, Any]:
    """Return where the network is from."""
    return {
        "made_by": MADE_BY,
        "traces": list(TRACES),
        "sha256": {name: hashlib.sha256((traces_dir / f"{name}.csv").read_bytes()).hexdigest() for name in TRACES},
        "source": "EIA-930 hourly generation of 2022 (U.S. government, public domain), via HewlettPackard/dc-rl (MIT)",
        "seed": seed,
        "steps": steps,
        "algorithm": "PPO",
        "settings": {**PPO_SETTINGS, "learning_rate": LEARNING_RATE, "jobs": JOBS, "slack": SLACK, "late": LATE},
        "versions": {name: version(name) for name in ("stable-baselines3", "torch", "numpy")},
    }


def main() -> None:
    """Write carl.npz."""
    parser = argparse.ArgumentParser(description="Train CARL on EIA's traces.")
    parser.add_argument("traces_dir", type=Path, help="folder with us_*_2022_eia.csv")
    parser.add_argument("--output", type=Path, default=SHIPPED)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    traces = [GridTrace.read(arguments.traces_dir / f"{name}.csv") for name in TRACES]
    agent = train(traces, steps=arguments.steps, seed=arguments.seed)
    told = about(arguments.traces_dir, steps=arguments.steps, seed=arguments.seed)
    save(network_of(agent, told), arguments.output)


if __name__ == "__main__":
    main()
