"""Policies against recorded grids: what each would have emitted, and how far it is from the best possible.

    result = simulate(GreenConfig.load("green.yaml"), [GridTrace.read("caiso.csv")], policies=("threshold", "mpc"))
    print(result)

A plan is held against the usual training, the constant pace of least energy, and the optimum in hindsight.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from greentrain.carbon.forecast import profile_forecast
from greentrain.config.schema import GreenConfig, PolicyConfig, PrecisionConfig
from greentrain.errors import ConfigError, TraceError
from greentrain.policy.action_table import ActionTable, declared
from greentrain.policy.baselines import CarbonBlind
from greentrain.policy.decision_kernel import DecisionKernel
from greentrain.policy.menu import Menu
from greentrain.policy.outlook import Array, SchedulePolicy
from greentrain.policy.registry import open_schedule
from greentrain.policy.waterfill import solve
from greentrain.simulator.grid_trace import Forecaster, GridTrace, Sight
from greentrain.simulator.jobs import HISTORY_H, Jobs, windows
from greentrain.simulator.world import Track, World
from greentrain.types import J_PER_KWH, S_PER_HOUR, iso


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
    keys = list(zip(jobs.start_unix_s.tolist(), jobs.deadline_s.tolist(), jobs.tokens.tolist(), strict=True))
    found = {key: solve(*trace.window(key[0], key[1]), key[2], menu).grams for key in dict.fromkeys(keys)}
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


CARBON_BLIND: Final = "carbon_blind"
"""The constant pace of least energy, simulated like any policy; it is no name of a configuration."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PolicyOutcome:
    """What one policy made of n jobs on one grid."""

    trace: str
    policy: str
    track: Track
    references: References

    @property
    def grams(self) -> float:
        """Of all jobs together."""
        return float(self.track.grams.sum())

    @property
    def kwh(self) -> float:
        """Of all jobs together."""
        return float(self.track.joules.sum()) / J_PER_KWH

    @property
    def saving(self) -> float:
        """Share of the usual training's grams that was not emitted, all jobs together."""
        return 1.0 - self.grams / float(self.references.static_g.sum())

    @property
    def mean_saving(self) -> float:
        """Mean over the jobs of that share of each."""
        return float(np.mean(1.0 - self.track.grams / self.references.static_g))

    @property
    def saving_over_blind(self) -> float:
        """Share of the grams of the constant pace that was not emitted: what knowing the grid brings."""
        return 1.0 - self.grams / float(self.references.blind_g.sum())

    @property
    def excess(self) -> float:
        """How much more than the best plan in hindsight was emitted, as a share of that plan's grams."""
        return self.grams / float(self.references.oracle_g.sum()) - 1.0

    @property
    def misses(self) -> int:
        """Jobs that were not done by their deadline."""
        return int(self.track.missed.sum())

    @property
    def switches_per_day(self) -> float:
        """Changes of width, pauses among them, a day of a running job."""
        return float(self.track.switches.sum() / (self.track.end_s.sum() / (24 * S_PER_HOUR)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulationResult:
    """What policies made of the same jobs."""

    outcomes: Sequence[PolicyOutcome]
    """Trace by trace, in the order of the policies."""
    jobs: Sequence[Jobs]
    """Of each trace."""
    menu: Menu
    table: str
    """For people: what the actions are of."""

    def of(self, policy: str, trace: str | None = None) -> PolicyOutcome:
        """Return the outcome of a policy; of the first trace where none is named.

        Args:
            policy: Name of the policy.
            trace: Name of the trace; None: the first one.

        Raises:
            KeyError: It was not simulated.
        """
        for outcome in self.outcomes:
            if outcome.policy == policy and trace in (None, outcome.trace):
                return outcome
        raise KeyError(f"{policy!r} on {trace!r} was not simulated; there are {[o.policy for o in self.outcomes]}")

    def __str__(self) -> str:
        """Return the table for the terminal."""
        head = ("trace", "policy", "kg", "saving", "over blind", "excess", "misses", "switches/day")
        lines = [head]
        for one in self.outcomes:
            cells = (
                one.trace,
                one.policy,
                f"{one.grams / 1000:.4g}",
                f"{one.saving:.1%}",
                f"{one.saving_over_blind:.1%}",
            )
            lines.append((*cells, f"{one.excess:.1%}", str(one.misses), f"{one.switches_per_day:.1f}"))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        jobs = len(self.jobs[0].tokens)
        note = f"{jobs} jobs a trace; {self.table}: watts and speeds {self.menu.provenance}. Saving: against static;"
        note += " over blind: against the constant pace of least energy; excess: over the best plan in hindsight."
        return "\n".join((*text, note))


def simulate(
    config: GreenConfig,
    traces: Sequence[GridTrace],
    *,
    policies: Sequence[str] = (),
    table: ActionTable | None = None,
    starts_unix_s: Array | None = None,
    count: int = 24,
    history_h: float = HISTORY_H,
    seeds: int = 1,
    forecaster: Forecaster | None = profile_forecast,
    shield: bool = True,
    history: bool = False,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> SimulationResult:
    """Return what policies would have emitted. The same arguments give the same result.

    Args:
        config: Section ``policy`` says what has to be done, and with which actions.
        traces: Recorded grids, all of one basis and accounting.
        policies: Names as in ``policy.name``, or ``carbon_blind``; none: ``static``, ``carbon_blind`` and that of the
            configuration.
        table: Table of what actions bring and cost; None: the one that ``policy.actions`` declares.
        starts_unix_s: Starts of the jobs (s since the epoch, UTC), shape (n,); None: ``count`` windows in each trace.
        count: Number of windows in each trace.
        history_h: Hours of a trace before its first window.
        seeds: Number of runs of each window, for policies that draw.
        forecaster: Forecaster of what policies see of the future; None: they see all of it.
        shield: Whether the deadline outranks the policies, as in training; without, a policy that cannot keep it shows.
        history: Whether to keep what every job did in every epoch.
        progress: Called with the number of runs done and that of all.

    Raises:
        ConfigError: The configuration lacks tokens, a deadline or actions, the tokens cannot be done by the deadline,
            or the traces mix bases.
        TraceError: A trace is shorter than its jobs.
    """
    policy = config.policy
    tokens, deadline_h = _asked(policy)
    _check_bases(traces)
    found = _table(policy) if table is None else table
    menu = menu_of(policy, found, config.precision)
    names = tuple(policies) or tuple(dict.fromkeys(("static", CARBON_BLIND, policy.name)))
    outcomes: list[PolicyOutcome] = []
    kept: list[Jobs] = []
    for trace in traces:
        starts = starts_unix_s
        if starts is None:
            starts = windows(trace, count, length_s=deadline_h * S_PER_HOUR, history_h=history_h)
        jobs = Jobs.alike(starts, tokens=tokens, deadline_s=deadline_h * S_PER_HOUR, seeds=seeds)
        known = references(trace, jobs, menu)
        world = World(trace, Sight(trace, forecaster, horizon_h=int(np.ceil(deadline_h)) + 1), policy.decide_s)
        for name in names:
            kernel = kernel_of(policy, named_policy(name, policy, menu), menu, shield)
            track = world.run(kernel, jobs, history=history)
            outcomes.append(PolicyOutcome(trace=trace.name, policy=name, track=track, references=known))
            progress(len(outcomes), len(traces) * len(names))
        kept.append(jobs)
    return SimulationResult(outcomes=tuple(outcomes), jobs=tuple(kept), menu=menu, table=found.device)


def menu_of(config: PolicyConfig, table: ActionTable, precision: PrecisionConfig | None = None) -> Menu:
    """Return the choices of a simulated job: ranks are released unless the configuration holds them.

    Args:
        config: Section ``policy``.
        table: Table of what actions bring and cost.
        precision: Gears that may be used, all where it names none, and the largest share of FP8.

    Raises:
        ConfigError: Ranks are held and nobody says what that costs, or the table has no action with speed and power.
    """
    gears = precision.gears if precision is not None else ()
    menu = Menu.of(
        table,
        released=config.released is not False,
        idle_w=config.idle_w,
        wanted=lambda action: not gears or action.gear in gears,
    )
    return menu if precision is None else menu.with_fp8_share(precision.fp8_max_share)


def named_policy(name: str, config: PolicyConfig, menu: Menu) -> SchedulePolicy:
    """Return a policy by its name; settings are those of the configuration.

    Raises:
        ConfigError: The configuration's plan counts money, of which a simulated grid knows nothing.
    """
    if config.weights[1]:
        raise ConfigError(
            "policy.objective counts cost, and a simulation knows no prices: set it to carbon to simulate"
        )
    return CarbonBlind(menu) if name == CARBON_BLIND else open_schedule(replace(config, name=name), menu)


def kernel_of(config: PolicyConfig, policy: SchedulePolicy, menu: Menu, shield: bool = True) -> DecisionKernel:
    """Return the kernel as training uses it; there the shield is always on."""
    return DecisionKernel(
        policy,
        menu,
        switch_s=config.switch_s,
        shift_s=config.shift_s,
        dwell_s=config.dwell_s,
        margin_s=config.margin_s,
        shield=shield,
    )


def _asked(config: PolicyConfig) -> tuple[float, float]:
    if config.tokens is None or config.deadline_h is None:
        missing = [f"policy.{key}" for key in ("tokens", "deadline_h") if getattr(config, key) is None]
        raise ConfigError(f"{' and '.join(missing)} must be set to simulate: the tokens of a job, and its hours")
    return config.tokens, config.deadline_h


def _table(config: PolicyConfig) -> ActionTable:
    if config.actions is None:
        raise ConfigError(
            "a simulation needs to know what actions bring and cost: declare them in a file and name it with"
            " policy.actions, or hand over the table of a run"
        )
    return declared(config.actions)


def _check_bases(traces: Sequence[GridTrace]) -> None:
    if not traces:
        raise ConfigError("there is no trace to simulate: name at least one")
    bases = {(trace.basis, trace.accounting): trace.name for trace in traces}
    if len(bases) > 1:
        said = "; ".join(f"{name!r} is {basis}, {accounting}" for (basis, accounting), name in bases.items())
        raise ConfigError(f"the traces mix bases, so their grams must not be compared ({said}): simulate each alone")
