"""One power limit for the whole run, where no policy plans: chosen by an objective once the limits were measured."""

from collections.abc import Callable

from greentrain.accounting.facility import in_run_time
from greentrain.action_table import Action, ActionTable
from greentrain.config import GreenConfig
from greentrain.meetings import Meetings
from greentrain.policy.objective import Objective, choose
from greentrain.runtime import ActiveRun
from greentrain.types import Gear


def objective_of(config: GreenConfig, run: ActiveRun, limit_w: float | None) -> Objective:
    """Return what a power limit is chosen for, with what is known now.

    Where the intensity that ``carbon`` needs is not known, or the limit that ``cost`` needs, it is ``energy``; the run
    is told.

    Args:
        config: The checked configuration.
        run: The run.
        limit_w: Power limits of this rank's devices, as found (W); those of other ranks are taken to be alike.
    """
    asked = config.actuators.power_cap
    assert asked is not None
    name, why = asked.objective, ""
    now_s = run.unix_s()
    g_per_kwh = run.signal.mean(now_s, now_s).g_per_kwh
    if name == "carbon" and g_per_kwh is None:
        name, why = "energy", "the carbon intensity is not known now"
    if name == "cost" and limit_w is None:
        name, why = "energy", "nobody knows the power limit of the devices"
    if why:
        run.warn(f"the power limit is chosen for least energy instead of {asked.objective}, as {why}")
    return Objective(
        name=name,
        g_per_kwh=g_per_kwh,
        pue=in_run_time(run.facility, run.signal).pue(now_s, now_s).value,
        embodied_g_per_s=run.embodied_g_per_s * run.topology.world_size,
        eta=asked.eta,
        limit_w=None if limit_w is None else limit_w * run.topology.world_size,
        max_slowdown=asked.max_slowdown,
    )


def choose_cap(
    table: ActionTable,
    objective: Callable[[], Objective],
    run: ActiveRun,
    gear: Gear,
    fractions: tuple[float, ...],
) -> float | None:
    """Return rank 0's choice on all ranks: the best limit for one gear; None where there is none. Every rank calls it.

    Args:
        table: What was measured.
        objective: Returns what it is chosen for; asked on rank 0.
        run: The run.
        gear: The gear of the run.
        fractions: Limits that this process can set.
    """
    cap: float | None = None
    if run.topology.rank == 0:
        try:
            wanted = objective()
            found = choose(
                table,
                wanted,
                reference=Action(gear=gear),
                wanted=lambda action: action.gear is gear and action.cap in fractions,
            )
            cap = found.action.cap
            run.event("cap", f"{found} ({wanted.name})", cap=cap)
        except Exception as error:  # the others wait for a word
            run.warn(f"the power limit stays as it was found: {error}")
    said = Meetings(f"{run.run_id}/cap", run.topology).share({"cap": cap})
    return None if said is None or said["cap"] is None else float(said["cap"])
