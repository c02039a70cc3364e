"""Policies that say which stages leave the GPU.

``edi-rule``: the stages with the lowest measured Energy Density Index leave, as far as latency and idle power allow.

Stages are ranked by what each saves on the offload device, in all and by the second that it takes there. The device is
kept for all of them together, so its idle power is charged to the first one, then to the first two, and so on: none may
pay alone where all do. One with which the step would be too long is passed over. The cheapest of these plans wins if it
beats the one in force by a margin.

``oracle`` tries every plan on the timeline: at most 27 of them, and in its own model nothing is better.
"""

from typing import Final

from greentrain.errors import ConfigError
from greentrain.policy.offload.edi import Basis
from greentrain.policy.offload.stages import Hardware, Plan, Stage, Where, all_gpu, label, plans
from greentrain.policy.offload.view import OffloadView, compared

MARGIN: Final = 0.02
"""Share by which a new plan must be cheaper: measured joules of a step scatter by about as much."""


class EdiRule:
    """The default policy.

    Args:
        margin: Share by which a plan must beat the one in force.

    Raises:
        ConfigError: The margin is not from 0 to below 1.
    """

    name = "edi-rule"

    def __init__(self, margin: float = MARGIN) -> None:
        if not 0 <= margin < 1:
            raise ConfigError(f"margin={margin}: give a share from 0 to below 1")
        self._margin = margin

    def choose(self, view: OffloadView) -> Plan:
        """Return the cheapest candidate, or what is in force."""
        gpu = all_gpu(view.table)
        on_gpu = view.step(gpu)
        best, best_j = gpu, view.objective.cost_j(on_gpu)
        if best_j is None:
            return gpu
        for plan in candidates(view):
            cost_j = view.objective.cost_j(view.step(plan))
            if cost_j is not None and cost_j < best_j:
                best, best_j = plan, cost_j
        kept = view.step(view.kept)
        kept_j = view.objective.cost_j(kept)
        stays = kept_j is not None and best_j > (1 - self._margin) * kept_j and view.objective.allows(kept, on_gpu)
        return view.kept if stays else best

    def reason(self, view: OffloadView, plan: Plan) -> str:
        """Return the figures, and what kept a stage where it is."""
        unknown = [stage for stage in view.table.movable if not view.known(stage)]
        told = f"; {', '.join(unknown)}: joules not known on both sides, so on the gpu" if unknown else ""
        return f"{label(plan)}: {compared(view, plan)}{told}"


def candidates(view: OffloadView) -> list[Plan]:
    """Return all on the GPU, then the plans that move the best stage, the two best, and so on, within the bound.

    Ranked by joules saved, and once more by joules saved for each second of the device, which is what they compete for.
    A stage with which the step would be too long is passed over.
    """
    gpu = all_gpu(view.table)
    on_gpu = view.step(gpu)
    saved = {stage: _saving(view, stage) for stage in view.table.movable if view.known(stage)}
    taken_s = {stage: max(view.table.cost(stage, Where.CONCURRENT).duration_s, 1e-9) for stage in saved}
    found: dict[str, Plan] = {label(gpu): gpu}
    for rank in (saved, {stage: joules / taken_s[stage] for stage, joules in saved.items()}):
        last = gpu
        for stage in sorted(rank, key=rank.__getitem__, reverse=True):
            plan = {**last, stage: view.away}
            if view.objective.allows(view.step(plan), on_gpu):
                last = found[label(plan)] = plan
    return list(found.values())


def _saving(view: OffloadView, stage: Stage) -> float:
    """Joules a token that the stage saves on the device, before anything idle; its GPU time at its price."""
    gpu, away = _active(view, stage, Hardware.GPU), _active(view, stage, Hardware.OFFLOAD)
    freed_s = view.table.cost(stage, Where.GPU).duration_s / view.table.tokens
    return (gpu or 0.0) - (away or 0.0) + view.objective.time_w * freed_s


def _active(view: OffloadView, stage: Stage, hardware: Hardware) -> float | None:
    cell = view.edi.get((stage, hardware))
    return None if cell is None else cell.value(Basis.ACTIVE)


class OffloadOracle:
    """The plan of least cost among those whose step is not too long; of equals, the one that moves less."""

    name = "oracle"

    def choose(self, view: OffloadView) -> Plan:
        """Return the best plan; all on the GPU where its joules are not known."""
        gpu = all_gpu(view.table)
        on_gpu = view.step(gpu)
        best, best_j = gpu, view.objective.cost_j(on_gpu)
        if best_j is None:
            return gpu
        for plan in plans(view.table, view.wheres):
            step = view.step(plan)
            cost_j = view.objective.cost_j(step)
            if cost_j is not None and cost_j < best_j * (1 - 1e-12) and view.objective.allows(step, on_gpu):
                best, best_j = plan, cost_j
        return best

    def reason(self, view: OffloadView, plan: Plan) -> str:
        """Return the figures."""
        return f"{label(plan)}, the best of {len(plans(view.table, view.wheres))}: {compared(view, plan)}"
