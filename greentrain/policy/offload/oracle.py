"""``oracle``: tries every plan on the timeline. At most 27 of them; in its own model nothing is better."""

from greentrain.policy.offload.stages import Plan, all_gpu, label, plans
from greentrain.policy.offload.view import View, compared


class OffloadOracle:
    """The plan of least cost among those whose step is not too long; of equals, the one that moves less."""

    name = "oracle"

    def choose(self, view: View) -> Plan:
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

    def reason(self, view: View, plan: Plan) -> str:
        """Return the figures."""
        return f"{label(plan)}, the best of {len(plans(view.table, view.wheres))}: {compared(view, plan)}"


def regret(view: View, plan: Plan) -> float | None:
    """Return how much more a plan costs than the oracle's, as a share; None where joules are not known.

    A plan whose step is too long costs nothing less for it: the caller looks at ``objective.allows`` beside it.
    """
    cost_j = view.objective.cost_j(view.step(plan))
    best_j = view.objective.cost_j(view.step(OffloadOracle().choose(view)))
    return None if cost_j is None or not best_j else cost_j / best_j - 1
