"""What a plan is held against: the usual training, the constant pace of least energy, and the optimum in hindsight."""

from dataclasses import dataclass

import numpy as np

from greentrain.errors import TraceError
from greentrain.policy.menu import Menu
from greentrain.policy.outlook import Array
from greentrain.policy.waterfill import solve
from greentrain.simulator.grid_trace import GridTrace
from greentrain.simulator.jobs import Jobs
from greentrain.types import J_PER_KWH, iso


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class References:
    """Grams of n jobs. Changes of width cost nothing in them."""

    static_g: Array
    """(n,) ``menu.static`` from the start until all tokens are done, past the deadline where it must be."""
    blind_g: Array
    """(n,) the same menu at the constant pace that needs least energy by the deadline."""
    oracle_g: Array
    """(n,) no plan can emit less: perfect foresight, mixtures of rows within a step."""


def references(trace: GridTrace, jobs: Jobs, menu: Menu) -> References:
    """Return what jobs would have emitted.

    Raises:
        ConfigError: A job cannot be done by its deadline; the message says by when it can.
        TraceError: The usual training would last longer than the trace.
    """
    speed, power_w = float(menu.tokens_per_s[menu.static]), float(menu.power_w[menu.static])
    needed_s = jobs.tokens / speed
    i = int(np.argmax(jobs.start_unix_s + needed_s))
    if jobs.start_unix_s[i] + needed_s[i] > trace.end_unix_s + 1.0:
        raise TraceError(
            f"the usual training from {iso(jobs.start_unix_s[i])} on would end at"
            f" {iso(jobs.start_unix_s[i] + needed_s[i])}, after trace {trace.name!r} at {iso(trace.end_unix_s)}: take a"
            " longer trace or fewer tokens"
        )
    found: dict[tuple[float, float, float], float] = {}
    for job in zip(jobs.start_unix_s.tolist(), jobs.deadline_s.tolist(), jobs.tokens.tolist(), strict=True):
        if job not in found:
            found[job] = solve(*trace.window(job[0], job[1]), job[2], menu).grams
    keys = zip(jobs.start_unix_s.tolist(), jobs.deadline_s.tolist(), jobs.tokens.tolist(), strict=True)
    pace, pace_w = constant_pace(jobs, menu)
    return References(
        static_g=_grams(trace, jobs.start_unix_s, needed_s, power_w),
        blind_g=_grams(trace, jobs.start_unix_s, jobs.tokens / pace, pace_w),
        oracle_g=np.array([found[key] for key in keys]),
    )


def constant_pace(jobs: Jobs, menu: Menu) -> tuple[Array, Array]:
    """Return the constant pace of least energy by the deadline: (n,) tokens/s and (n,) W of the mixture on the hull.

    Where idle ranks are held, a pace below the one of least energy a token would only hold them longer.
    """
    rows = menu.hull
    speed, power_w = menu.tokens_per_s[rows], menu.power_w[rows]
    least = speed[1:][np.argmin(power_w[1:] / speed[1:])] if power_w[0] > 0 else 0.0
    pace = np.clip(jobs.tokens / jobs.deadline_s, least, speed[-1])
    return pace, np.interp(pace, speed, power_w)


def _grams(trace: GridTrace, start_unix_s: Array, length_s: Array, power_w: Array | float) -> Array:
    grams: Array = power_w * (trace.integral(start_unix_s + length_s) - trace.integral(start_unix_s)) / J_PER_KWH
    return grams
