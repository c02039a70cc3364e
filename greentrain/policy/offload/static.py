"""The same plan always: what others are compared with."""

from greentrain.policy.offload.stages import Plan, Where, all_gpu
from greentrain.policy.offload.view import View, compared


class StaticPlan:
    """Moves everything that can be moved, or nothing.

    Args:
        where: Where movable stages run.
    """

    def __init__(self, where: Where = Where.GPU) -> None:
        self._where = where

    @property
    def name(self) -> str:
        """``all-gpu``, ``all-sequential`` or ``all-concurrent``."""
        return f"all-{self._where}"

    def choose(self, view: View) -> Plan:
        """Return the plan."""
        where = self._where if self._where in view.wheres else Where.GPU
        return {**all_gpu(view.table), **dict.fromkeys(view.table.movable, where)}

    def reason(self, view: View, plan: Plan) -> str:
        """Return what it costs."""
        return f"always {self._where}: {compared(view, plan)}"
