"""How good a run was, once its grid is known: three numbers, and what each rests on.

* saving against static: the usual training, begun at once and run until its tokens are done;
* saving against blind: the plan of least energy by the deadline, at a constant pace with the same menu, by somebody
  who does not look at the grid. The difference of the two is what efficiency alone would have saved;
* regret: how much more was emitted than by the best plan in hindsight, which no policy can know.

Changes of width are free in all three, as a run folder does not say what they cost. So where they cost time, the best
plan in hindsight is a bound that no plan reaches, and the regret holds what the run's own changes cost.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from greentrain.errors import ConfigError
from greentrain.policy.menu import Menu
from greentrain.policy.waterfill import solve
from greentrain.types import J_PER_KWH, S_PER_HOUR

Array = NDArray[np.float64]

STATIC: Final = "saving_vs_static"
BLIND: Final = "saving_vs_blind"
REGRET: Final = "regret"
_ROOM: Final = 1e-9
"""Share of a time that is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HindsightScore:
    """The three numbers as shares of grams, and the grams behind them; None where something is not known."""

    actual_g: float | None
    """Emitted by what ran."""
    static_g: float | None
    blind_g: float | None
    oracle_g: float | None
    """No plan can emit less."""
    unknown: Mapping[str, str]
    """Why a number is None, by its name: ``saving_vs_static``, ``saving_vs_blind`` or ``regret``."""
    static_name: str
    """What the usual training is, in the menu's words."""

    @property
    def saving_vs_static(self) -> float | None:
        """Share of static's grams that was not emitted; below 0 if more was."""
        return _saving(self.actual_g, self.static_g)

    @property
    def saving_vs_blind(self) -> float | None:
        """Share of blind's grams that was not emitted."""
        return _saving(self.actual_g, self.blind_g)

    @property
    def regret(self) -> float | None:
        """What was emitted beyond the best plan in hindsight, as a share of that plan's grams."""
        saving = _saving(self.actual_g, self.oracle_g)
        return None if saving is None else -saving


def judge(
    g_per_kwh: Array,
    weights_s: Array,
    menu: Menu,
    tokens: float,
    actual_g: float | None,
    *,
    fp8_max_share: float = 1.0,
    why_unknown: str = "what the run emitted is not known",
) -> HindsightScore:
    """Hold what ran against static, blind and the best plan, for the tokens that it trained.

    Args:
        g_per_kwh: (h,) intensity of each column from the start on, NaN where unknown.
        weights_s: (h,) time in each column until the deadline (s).
        menu: Menu of the choices that the job had.
        tokens: Trained.
        actual_g: Emitted by IT power, PUE left out; None where not known.
        fp8_max_share: Largest share of the time in FP8 that was allowed.
        why_unknown: Why ``actual_g`` is None.
    """
    job = _Job(np.asarray(g_per_kwh, dtype=np.float64), np.asarray(weights_s, dtype=np.float64), menu, tokens)
    found: dict[str, float | None] = {STATIC: None, BLIND: None, REGRET: None}
    unknown: dict[str, str] = {}
    for name in found:
        try:
            if not tokens > 0:
                raise _UnknownError("no tokens were trained")
            if name == STATIC:
                found[name] = job.static_g()
            elif name == BLIND:
                found[name] = job.blind_g(fp8_max_share)
            else:
                found[name] = job.oracle_g(fp8_max_share)
            if found[name] == 0.0:
                unknown[name] = "the plan that it is held against emits nothing"
        except _UnknownError as error:
            unknown[name] = str(error)
        except ConfigError as error:
            unknown[name] = f"no plan of the action table does what ran: {error}"
        if actual_g is None:
            unknown[name] = why_unknown
    return HindsightScore(
        actual_g=actual_g,
        static_g=found[STATIC],
        blind_g=found[BLIND],
        oracle_g=found[REGRET],
        unknown=unknown,
        static_name=menu.names()[menu.static],
    )


class _UnknownError(Exception):
    """A number cannot be told; says why."""


class _Job:
    """What was to be done, on a grid that is known in part."""

    def __init__(self, g_per_kwh: Array, weights_s: Array, menu: Menu, tokens: float) -> None:
        self._g = g_per_kwh
        self._weights_s = weights_s
        self._menu = menu
        self._tokens = tokens
        self._wall_s = float(weights_s.sum())

    def static_g(self) -> float:
        """Return the grams of the usual training."""
        row = self._menu.static
        return self._steady_g(float(self._menu.power_w[row]), self._tokens / float(self._menu.tokens_per_s[row]))

    def blind_g(self, fp8_max_share: float) -> float:
        """Return the grams of the constant pace of least energy: the best plan of one single column."""
        one = solve(np.ones(1), np.array([self._wall_s]), self._tokens, self._menu, fp8_max_share=fp8_max_share)
        return self._steady_g(one.grams * J_PER_KWH / one.end_s, one.end_s)

    def oracle_g(self, fp8_max_share: float) -> float:
        """Return the grams of the best plan."""
        self._steady_g(0.0, self._wall_s)
        known = self._weights_s > 0
        plan = solve(self._g[known], self._weights_s[known], self._tokens, self._menu, fp8_max_share=fp8_max_share)
        return plan.grams

    def _steady_g(self, power_w: float, length_s: float) -> float:
        """Return the grams of constant power from the start on."""
        if length_s > self._wall_s * (1 + _ROOM):
            raise _UnknownError(
                f"it would last {length_s / S_PER_HOUR:.4g} h, and the grid is only looked at for"
                f" {self._wall_s / S_PER_HOUR:.4g} h"
            )
        ends_s = np.cumsum(self._weights_s)
        used_s = np.clip(length_s - (ends_s - self._weights_s), 0.0, self._weights_s)
        used = used_s > _ROOM * self._wall_s
        holes = used & ~np.isfinite(self._g)
        if holes.any():
            raise _UnknownError(
                f"the grid's intensity is not known in {float(used_s[holes].sum()) / S_PER_HOUR:.4g} of the"
                f" {length_s / S_PER_HOUR:.4g} h that it needs"
            )
        return float(power_w * (self._g[used] @ used_s[used]) / J_PER_KWH)


def _saving(actual_g: float | None, other_g: float | None) -> float | None:
    if actual_g is None or other_g is None or other_g == 0.0 or math.isnan(actual_g):
        return None
    return 1.0 - actual_g / other_g
