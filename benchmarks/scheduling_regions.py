"""What a job gains that follows the sun: handed over from region to region at full hours, which takes time and grams.

The plan is that of ``greentrain.policy.switching`` with regions in place of widths: at a price of a token, the cheapest
way through the hours is a dynamic programme over the region, and the price is the one of the largest dual. It is made
anew every few hours from the shipped forecast of each region. A benchmark only: no run is moved by it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.scheduling_common import HOURS, Array, Bench, Grid, menu, percent, tried
from benchmarks.tables import Table
from greentrain.carbon.forecast import profile_forecast
from greentrain.policy.menu import Menu
from greentrain.policy.mpc import Mpc
from greentrain.simulator.grid_trace import Sight
from greentrain.simulator.simulate import references
from greentrain.simulator.world import DONE
from greentrain.types import J_PER_KWH, S_PER_HOUR

Rows = NDArray[np.int64]

HOME: Final = "us_pjm_2022_eia"
CLEAN: Final = "us_bpat_2022_eia"
"""Cleaner than all others in nearly every hour: with it, all there is to do is to move there once."""
SLACKS: Final = (1.25, 2.0)
EVERY: Final = 4
"""Every so many windows are simulated: six of 24."""
REPLAN_H: Final = 6
CHECKPOINT_GB: Final = 182.0
"""13 G parameters with 14 bytes each: weights in BF16, and in FP32 weights and both moments of AdamW."""
LINK_GB_PER_S: Final = 1.25
"""10 Gbit/s between regions: assumed."""
RESTART_S: Final = 600.0
"""To start again on the other side: assumed."""
KWH_PER_GB: Final = 0.0053
"""Of the network: 0.06 kWh/GB in 2015, halving every two years (Aslan, Mayers, Koomey and France, J. Industrial Ecology
22(4), 2018, https://doi.org/10.1111/jiec.12630), taken to 2022: assumed."""
MOVE_S: Final = CHECKPOINT_GB / LINK_GB_PER_S + RESTART_S
_COMB: Final = 12
_ROUNDS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Regions:
    """n jobs that may run in any of r regions."""

    names: Sequence[str]
    """(r,) home first."""
    g_per_kwh: Array
    """(n, r, h) as it came."""
    sights: Sequence[Sight]
    start_unix_s: Array
    tokens: Array
    """(n,)"""

    @classmethod
    def of(cls, grids: Sequence[Grid], choices: Menu) -> "Regions":
        """Return one job a window and slack on these grids, at home on the first."""
        jobs = grids[0].jobs(choices, SLACKS)
        starts = jobs.start_unix_s.tolist()
        truth = [[grid.trace.window(start, HOURS * S_PER_HOUR)[0] for grid in grids] for start in starts]
        return cls(
            names=[grid.name for grid in grids],
            g_per_kwh=np.array(truth),
            sights=[Sight(grid.trace, profile_forecast, horizon_h=HOURS) for grid in grids],
            start_unix_s=jobs.start_unix_s,
            tokens=jobs.tokens,
        )

    def ahead(self, hour: int) -> Array:
        """Return (n, r, h - hour): the running hour, and what is forecast for those after it."""
        at = self.start_unix_s + hour * S_PER_HOUR
        return np.stack([sight.ahead(at, HOURS - hour) for sight in self.sights], axis=1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """What n jobs do in their first hours, with all that come after them."""

    price: Array
    """(n,) of a token (g)."""
    bound_g: Array
    """(n,) no plan emits less."""
    left: Array
    """(h + 1, n, r) what is left to pay at that price from an hour on, being in a region."""


def planned(g: Array, tokens: Array, here: Rows, choices: Menu, move_s: float) -> Plan:
    """Return the best plan from now on.

    Args:
        g: (n, r, h) intensities (g/kWh).
        tokens: (n,) left to do.
        here: (n,) region until now.
        choices: What a job can do in any region.
        move_s: Time in which a hand-over trains nothing (s); infinite: there are none.
    """
    n = len(tokens)
    usual = g.mean(axis=(1, 2)) * choices.power_w.max() / choices.tokens_per_s.max() / J_PER_KWH
    low, high = 0.02 * usual, 20.0 * usual
    price = left = bound = np.zeros(0)
    for _ in range(_ROUNDS):
        prices = np.geomspace(low, high, _COMB, axis=1)
        left = _swept(g, prices, choices, move_s)
        dual = prices * tokens[:, None] + left[0][np.arange(n), here]
        best = dual.argmax(axis=1)
        jobs = np.arange(n)
        price, bound = prices[jobs, best], dual[jobs, best]
        left = left[:, jobs, :, best].transpose(1, 0, 2)
        low, high = prices[jobs, np.maximum(best - 1, 0)], prices[jobs, np.minimum(best + 1, _COMB - 1)]
    return Plan(price=price, bound_g=bound, left=left)


def _swept(g: Array, prices: Array, choices: Menu, move_s: float) -> Array:
    """Return (h + 1, n, r, l): what is left to pay from each hour on."""
    n, r, h = g.shape
    left = np.zeros((h + 1, n, r, prices.shape[1]))
    for k in range(h - 1, -1, -1):
        stay = _hour(g[:, :, k], prices, choices, 0.0) + left[k + 1]
        left[k] = stay
        if math.isfinite(move_s):
            come = _hour(g[:, :, k], prices, choices, move_s) + left[k + 1]
            left[k] = np.minimum(stay, (come[:, None] + _carried_g(g[:, :, k])[..., None]).min(axis=2))
    return left


def _hour(g: Array, prices: Array, choices: Menu, lost_s: float) -> Array:
    """Return (n, r, l) the least that an hour costs in each region, less what its tokens are worth."""
    rows = choices.hull
    grams = g[:, :, None, None] * choices.power_w[rows] * S_PER_HOUR / J_PER_KWH
    worth = prices[:, None, :, None] * choices.tokens_per_s[rows] * (S_PER_HOUR - lost_s)
    found: Array = (grams - worth).min(axis=3)
    return found


def _carried_g(g: Array) -> Array:
    """Return (n, r, r) grams of carrying a checkpoint from one region to another; half of it is drawn in each."""
    found: Array = CHECKPOINT_GB * KWH_PER_GB * (g[:, :, None] + g[:, None, :]) / 2
    return found * (1 - np.eye(g.shape[1]))


def followed(regions: Regions, choices: Menu) -> tuple[Array, Array, Array]:
    """Return (n,) grams, hand-overs and tokens left of jobs that follow the forecast."""
    n = len(regions.tokens)
    jobs, here = np.arange(n), np.zeros(n, np.int64)
    left, grams, moves = regions.tokens.copy(), np.zeros(n), np.zeros(n)
    fastest, since = float(choices.tokens_per_s.max()), 0
    plan = planned(regions.ahead(0), left, here, choices, MOVE_S)
    for hour in range(HOURS):
        if hour and hour % REPLAN_H == 0:
            plan, since = planned(regions.ahead(hour), left, here, choices, MOVE_S), hour
        now = regions.g_per_kwh[:, :, hour]
        later = plan.left[hour - since + 1]
        stay = _hour(now, plan.price[:, None], choices, 0.0)[:, :, 0] + later
        come = _hour(now, plan.price[:, None], choices, MOVE_S)[:, :, 0] + later + _carried_g(now)[jobs, here]
        come[jobs, here] = stay[jobs, here]
        to = come.argmin(axis=1)
        late = left > fastest * ((HOURS - hour - 1) * S_PER_HOUR - MOVE_S)  # at the latest now at full speed, and here
        to = np.where(late | (left <= 0), here, to)
        lost_s = np.where(to != here, MOVE_S, 0.0)
        rows = choices.hull
        cost = now[jobs, to, None] * choices.power_w[rows] * S_PER_HOUR / J_PER_KWH
        cost = cost - plan.price[:, None] * choices.tokens_per_s[rows] * (S_PER_HOUR - lost_s)[:, None]
        row = np.where(late, choices.fastest, rows[cost.argmin(axis=1)])
        speed = choices.tokens_per_s[row]
        with np.errstate(divide="ignore", invalid="ignore"):
            used_s = np.where(left <= 0, 0.0, np.minimum(S_PER_HOUR, np.where(speed > 0, lost_s + left / speed, 0.0)))
        grams += now[jobs, to] * choices.power_w[row] * used_s / J_PER_KWH + _carried_g(now)[jobs, here, to]
        left = np.maximum(left - speed * np.maximum(used_s - lost_s, 0.0), 0.0)
        moves += to != here
        here = to
    return grams, moves, left


def regions(bench: Bench) -> list[Table]:
    """Jobs that stay at home, move once, or follow the sun."""
    full, rows = menu(), []
    grids = {grid.name: grid.some(EVERY) for grid in bench.grids() if grid.name.endswith("_eia")}
    home = grids.pop(HOME)
    jobs = home.jobs(full, SLACKS)
    static = _sums(references(home.trace, jobs, full).static_g)
    sets = {"all": list(grids.values()), "without Bonneville": [g for name, g in grids.items() if name != CLEAN]}
    for label, others in list(sets.items())[bench.pick(0, 1) :]:
        made = Regions.of([home, *others], full)
        tracks = [tried(grid, Mpc(full), full, SLACKS) for grid in (home, *others)]
        means = made.ahead(0).mean(axis=2)
        cleanest = means.argmin(axis=1)
        once = np.stack([track.grams for track in tracks])[cleanest, np.arange(len(jobs.tokens))]
        moved, moves, left = followed(made, full)
        best = planned(made.g_per_kwh, made.tokens, np.zeros(len(made.tokens), np.int64), full, MOVE_S).bound_g
        free = planned(made.g_per_kwh, made.tokens, np.zeros(len(made.tokens), np.int64), full, 0.0).bound_g
        name = f"{label}: {len(made.names)} regions"
        days = HOURS / 24
        for what, grams, often, misses in (
            ("mpc at home", tracks[0].grams, np.zeros(len(moved)), tracks[0].missed.sum()),
            ("mpc where the forecast is cleanest at the start, which is free", once, cleanest > 0, 0),
            ("handed over as forecast", moved, moves, (left > DONE * made.tokens).sum()),
            ("bound: no plan with these costs emits less", best, None, 0),
            ("bound, if a hand-over took neither time nor power", free, None, 0),
        ):
            saved = 100 * (1 - _sums(grams) / static)
            cells = [percent(value) for value in saved]
            if often is not None:
                counts = np.asarray(often, dtype=float).reshape(len(SLACKS), -1).mean(axis=1) / days
                cells = [f"{cell} ({count:.2f})" for cell, count in zip(cells, counts, strict=True)]
            rows.append([name, what, *cells, str(int(misses))])
        bench.say(f"regions: {name}")
    notes = [
        f"Saving against static BF16 at home ({HOME}) in %, of all windows together; in brackets hand-overs a day. One"
        f" window in {EVERY}.",
        f"Assumed: a checkpoint of {CHECKPOINT_GB:g} GB over 10 Gbit/s and {RESTART_S:g} s to start again, so"
        f" {MOVE_S:.0f} s without training at the power of the new action; {KWH_PER_GB:g} kWh/GB on the way, half at"
        " the intensity of each region; every region has eight nodes free, at the same power, PUE and price.",
    ]
    head = ["regions", "job", *(f"slack {slack:g}" for slack in SLACKS), "misses"]
    return [Table(case="regions", title="Handed over between regions", head=head, rows=rows, notes=notes)]


def _sums(grams: Array) -> Array:
    total: Array = grams.reshape(len(SLACKS), -1).sum(axis=1)
    return total
