"""Published rules that GreenTrain does not ship, for the comparison alone."""

import numpy as np

from greentrain.policy.menu import Menu
from greentrain.policy.outlook import Choice, Outlook
from greentrain.policy.waterfill import solve


class PlannedOnce:
    """CarbonScaler (Hanafy et al., SIGMETRICS 2024): the greedy plan on the forecast at the start, which is then kept.

    Its greedy, tokens a second for watts times intensity, replica by replica and slot by slot, fills the same water as
    ``greentrain.policy.waterfill``. What the forecast got wrong is left to the kernel's shield.

    Args:
        menu: What a job can do.
    """

    past_s = 0.0

    def __init__(self, menu: Menu) -> None:
        self.name = "planned once"
        self._menu = menu
        self._plans: dict[int, tuple[float, np.ndarray[tuple[int], np.dtype[np.int64]]]] = {}

    def choose(self, seen: Outlook) -> Choice:
        """Return what was planned for this epoch when the job began."""
        assert seen.job is not None
        weights_s = seen.weights_s()
        rows = np.zeros(len(seen.left_s), np.int64)
        for i, job in enumerate(seen.job.tolist()):
            if job not in self._plans:
                plan = solve(seen.forecast_g_per_kwh[i], weights_s[i], float(seen.tokens_left[i]), self._menu)
                self._plans[job] = (float(seen.t_unix_s[i]), plan.rows)
            start_s, planned = self._plans[job]
            rows[i] = planned[min(int((seen.t_unix_s[i] - start_s) / seen.step_s + 1e-6), len(planned) - 1)]
        return Choice(rows=rows, reasons=("planned at the start",), reason=np.zeros_like(rows))
