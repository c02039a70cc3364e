"""CARL of Eco-Orchestrator: pass a job through, throttle it, or defer it, with a soft deadline.

Its throttle lowers core clocks by 15 to 30 % while a job is bound by memory. A menu's rows hold for an hour and know no
phases of a step, so that here a throttled job is the row that draws 15 to 30 % less power throughout. Clocks within a
step are :mod:`greentrain.control.actuators.clocks`.

A small network maps what the paper's agent sees (utilisation, remaining steps, intensity now, 6 hours of forecast) to
one of three rows of the menu: the fastest, one that draws 15 to 30 % less, and off. It was trained in our environment
with Stable-Baselines3 (``tools.train_carl``); here it is three matrix products in NumPy. Its deadline is
soft: what is late costs reward, and nothing stops it. In a real run the kernel's shield does.

Three rows of a hull of eleven and six hours of forecast cannot reach ``mpc``, which is why that is the default:
benchmarks/scheduling.py prints both.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from greentrain.policy.chain import TRAILING_H, trailing_mean
from greentrain.policy.menu import OFF, Menu
from greentrain.policy.outlook import Array, Choice, Outlook
from greentrain.types import S_PER_HOUR

SHIPPED: Final = Path(__file__).with_name("carl.npz")
AHEAD_H: Final = 6
"""Hours of forecast that it sees (Eco-Orchestrator)."""
THROTTLED: Final = (0.15, 0.30)
"""How much less a throttled job draws, as a share. Eco-Orchestrator has these figures for clocks, not for power."""
FEATURES: Final = 4 + AHEAD_H
LIMIT: Final = 5.0
"""Features are clipped to -LIMIT..LIMIT."""
PASS, THROTTLE, DEFER = range(3)


def rows_of(menu: Menu) -> NDArray[np.int64]:
    """Return (3,): the rows to pass through, throttle and defer.

    Throttled is the row with most tokens a joule of those that draw 15 to 30 % less than the fastest; where there is
    none, the one of the hull whose power is nearest to the middle of that.
    """
    fastest = menu.fastest
    less = 1.0 - menu.power_w / menu.power_w[fastest]
    working = menu.tokens_per_s > 0
    fits = np.flatnonzero(working & (less >= THROTTLED[0]) & (less <= THROTTLED[1]))
    if len(fits):
        throttled = int(fits[np.argmax(menu.tokens_per_s[fits] / menu.power_w[fits])])
    else:
        hull = menu.hull[working[menu.hull]]
        throttled = int(hull[np.argmin(np.abs(less[hull] - sum(THROTTLED) / 2))])
    return np.array([fastest, throttled, OFF])


def features(seen: Outlook, menu: Menu) -> Array:
    """Return (n, FEATURES): utilisation, share of the tokens left, pace needed / fastest, and intensity / its mean - 1.

    The mean is that of the last 14 days, the intensity that of now and of the next six hours. Where nobody knows the
    utilisation, it is the speed in use / fastest speed.
    """
    fastest = menu.tokens_per_s[menu.fastest]
    busy = menu.tokens_per_s[seen.current] / fastest if seen.utilisation is None else seen.utilisation
    mean = np.maximum(trailing_mean(seen.past_g_per_kwh, seen.now_g_per_kwh, seen.step_s), 1e-9)
    column = np.round(np.arange(AHEAD_H + 1) * S_PER_HOUR / seen.step_s).astype(np.int64)
    ahead = seen.forecast_g_per_kwh[:, np.minimum(column, seen.forecast_g_per_kwh.shape[1] - 1)]
    pace = seen.tokens_left / np.maximum(seen.left_s, 1e-9) / fastest
    known = np.column_stack([busy, seen.tokens_left / seen.tokens, pace, ahead / mean[:, None] - 1.0])
    clipped: Array = np.clip(known, -LIMIT, LIMIT)
    return clipped


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Network:
    """A perceptron: tanh between layers, one output an action."""

    weights: tuple[Array, ...]
    """Of each layer: (in, out)."""
    biases: tuple[Array, ...]
    """Of each layer: (out,)."""
    about: dict[str, Any]
    """Where it is from."""

    @classmethod
    def shipped(cls) -> "Network":
        """Return the network that comes with GreenTrain."""
        return cls.load(SHIPPED)

    @classmethod
    def load(cls, path: Path) -> "Network":
        """Read what ``tools.train_carl`` wrote."""
        with np.load(path, allow_pickle=False) as file:
            about = json.loads(str(file["about"]))
            layers = range(int(about["layers"]))
            return cls(
                weights=tuple(file[f"weight_{i}"].astype(np.float64) for i in layers),
                biases=tuple(file[f"bias_{i}"].astype(np.float64) for i in layers),
                about=about,
            )

    def __call__(self, inputs: Array) -> Array:
        """Return (n, actions) logits of (n, FEATURES) inputs."""
        found = inputs
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            found = found @ weight + bias
            if i + 1 < len(self.weights):
                found = np.tanh(found)
        return found


class Carl:
    """Takes the most likely of three actions.

    Args:
        menu: Menu of the choices of a job.
        network: Network of the policy; None: the shipped one.
    """

    past_s = TRAILING_H * S_PER_HOUR
    ahead_s = (AHEAD_H + 1) * S_PER_HOUR

    def __init__(self, menu: Menu, network: Network | None = None) -> None:
        self.name = "carl"
        self._menu = menu
        self._rows = rows_of(menu)
        self._network = Network.shipped() if network is None else network

    def choose(self, seen: Outlook) -> Choice:
        """Return the rows for the coming epoch."""
        action = self._network(features(seen, self._menu)).argmax(axis=1)
        return Choice(rows=self._rows[action], reasons=_REASONS, reason=action)


_REASONS = (
    "{now:.0f} g/kWh now, {todo:.1%} of the tokens left for {left_h:.1f} h: pass through, {row}",
    "{now:.0f} g/kWh now, {todo:.1%} of the tokens left for {left_h:.1f} h: throttle to {row}",
    "{now:.0f} g/kWh now, {todo:.1%} of the tokens left for {left_h:.1f} h: defer",
)
