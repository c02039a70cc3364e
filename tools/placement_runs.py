"""Runs of the placement environment that were drawn once and are played many times: training at a tenth of the time.

What a plan is worth does not depend on the plans before it, but for a little that each move costs. So a run is its
inputs, and a worth for each plan of every decision; ``PlacementEnv`` with the same seed says the same.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from greentrain.policy.offload.ppo import CHOICES, OF_STAGE, features, plan_of
from greentrain.policy.offload.stages import MOVABLE, Where, label, plans
from greentrain.policy.offload.timeline import Array
from greentrain.policy.offload.view import OffloadPolicy, OffloadView
from greentrain.utils.imports import try_import
from tools.offload_policies import published_of
from tools.placement_env import DECISIONS, SCALE, SWITCH, WORST, Action, PlacementEnv, Seen, gain_of
from tools.placement_tasks import Task

with try_import("rl") as _imports:
    from stable_baselines3.common.vec_env import VecEnv

REWARDS: Final = ("saved", "published")
"""What a plan is worth, by name: joules saved within the bound of time, or EcoRL-Sched's sum."""
ACTIONS: Final = np.array(list(itertools.product(range(len(CHOICES)), repeat=len(MOVABLE))))
"""Every action, in the order in which plans are numbered."""
_PLACES: Final = len(CHOICES) ** np.arange(len(MOVABLE))[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Runs of DECISIONS decisions each."""

    seen: Seen
    """(runs, decisions, FEATURES): what a network sees with everything on the GPU."""
    movable: NDArray[np.bool_]
    """(runs, stages): which may move at all."""
    worth: Mapping[str, Array]
    """By one of REWARDS: (runs, decisions, plans)."""
    views: Sequence[Sequence[OffloadView]]
    """What any other policy sees."""

    @classmethod
    def drawn(cls, seeds: Iterable[int], task: Task | None = None) -> "Runs":
        """Return a run for each seed, of one task or of the mix."""
        env = PlacementEnv(task)
        seen, movable, views = [], [], []
        worth: dict[str, list[list[list[float]]]] = {name: [] for name in REWARDS}
        for seed in seeds:
            env.reset(seed=seed)
            decisions = []
            for name in REWARDS:
                worth[name].append([])
            for _ in range(DECISIONS):
                decisions.append(env.seen)
                for name, values in _worth(env.true).items():
                    worth[name][-1].append(values)
                env.step(ACTIONS[0])
            views.append(decisions)
            seen.append([features(view) for view in decisions])
            movable.append([stage in decisions[0].table.movable for stage in MOVABLE])
        return cls(
            seen=np.array(seen, np.float32),
            movable=np.array(movable),
            worth={name: np.array(values) for name, values in worth.items()},
            views=views,
        )

    def at(self, runs: NDArray[np.int64], decision: int, kept: Action) -> Seen:
        """Return what a network sees of some runs whose passes are where an action put them."""
        found: Seen = self.seen[runs, decision].copy()
        for i in range(len(MOVABLE)):
            found[:, OF_STAGE * (i + 1) - 2] = kept[:, i] == CHOICES.index(Where.SEQUENTIAL)
            found[:, OF_STAGE * (i + 1) - 1] = kept[:, i] == CHOICES.index(Where.CONCURRENT)
        return found

    def judged(self, reward: str, act: Callable[[int, Action], Action]) -> tuple[float, float]:
        """Return what somebody's plans are worth in the mean, and the best ones: an oracle's that knows the true costs.

        Everything on the GPU is worth 0. Nothing is taken off for moves.

        Args:
            reward: One of REWARDS.
            act: What is done at a decision, (runs, stages), with what was done before.
        """
        kept = np.zeros((len(self.seen), len(MOVABLE)), np.int64)
        earned = []
        for decision in range(DECISIONS):
            kept = act(decision, kept) * self.movable
            earned.append(self.worth[reward][np.arange(len(kept)), decision, kept @ _PLACES])
        return float(np.mean(earned)), float(self.worth[reward].max(axis=2).mean())

    def judged_policy(self, reward: str, policy: OffloadPolicy) -> tuple[float, float]:
        """Return the same of a policy that is no network in training."""

        def act(decision: int, kept: Action) -> Action:
            views = [run[decision] for run in self.views]
            now = [replace(v, current=plan_of(k.astype(np.float64), v)) for v, k in zip(views, kept, strict=True)]
            chosen = [policy.choose(view) for view in now]
            return np.array([[CHOICES.index(plan.get(s, Where.GPU)) for s in MOVABLE] for plan in chosen])

        return self.judged(reward, act)


def _worth(true: OffloadView) -> dict[str, list[float]]:
    """Return what every action is worth."""
    names = [label(plan_of(action.astype(np.float64), true)) for action in ACTIONS]
    steps = {label(plan): true.step(plan) for plan in plans(true.table)}
    home = steps[names[0]]
    worth = {name: (gain_of(true, step, home), published_of(step, home)) for name, step in steps.items()}
    return {reward: [worth[name][i] for name in names] for i, reward in enumerate(REWARDS)}


class Replay(VecEnv):
    """Drawn runs as an environment, several side by side, in a random order.

    Args:
        runs: The runs.
        reward: One of REWARDS.
        beside: How many are played at a time.
        seed: Of their order.
    """

    def __init__(self, runs: Runs, reward: str, beside: int, seed: int) -> None:
        env = PlacementEnv()
        self.render_mode = None
        super().__init__(beside, env.observation_space, env.action_space)
        self._runs, self._worth = runs, runs.worth[reward]
        self._rng = np.random.default_rng(seed)
        self._done: Action = np.zeros((beside, len(MOVABLE)), np.int64)
        self.reset()

    def reset(self) -> Seen:
        """Begin other runs."""
        self._decision = 0
        self._chosen = self._rng.integers(len(self._worth), size=self.num_envs)
        self._kept = np.zeros((self.num_envs, len(MOVABLE)), np.int64)
        return self._runs.at(self._chosen, 0, self._kept)

    def step_async(self, actions: Action) -> None:
        """Take what each run does."""
        self._done = actions

    def step_wait(self) -> tuple[Seen, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Do it. All runs end at once."""
        plan = self._done * self._runs.movable[self._chosen]
        worth = self._worth[self._chosen, self._decision, plan @ _PLACES]
        reward = np.maximum(WORST, worth * SCALE - SWITCH * (plan != self._kept).sum(axis=1))
        self._decision, self._kept = self._decision + 1, plan
        over = self._decision == DECISIONS
        seen = self.reset() if over else self._runs.at(self._chosen, self._decision, plan)
        return seen, reward.astype(np.float32), np.full(self.num_envs, over), [{} for _ in range(self.num_envs)]

    def close(self) -> None:
        """Do nothing."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute for each run: they share one."""
        return [getattr(self, attr_name)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refuse: runs share their attributes."""
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **more: Any) -> list[Any]:
        """Refuse: a run is no object."""
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Return False for each."""
        return [False] * self.num_envs
