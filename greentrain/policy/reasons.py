"""Reasons in words: templates of a policy, filled in with figures where somebody reads them.

Names that every template may use:

* ``now``: intensity of the running step (g/kWh), ``mean``: until the deadline, as forecast (g/kWh)
* ``left_h``: time to the deadline (h), ``todo``: share of the tokens that is left
* ``row``: what was decided, ``current``: what ran until now, ``wanted``: what the policy asked for
* ``price``: of a million tokens (g)

and those of ``Choice.figures``. A figure that nobody knows reads ``unknown``.
"""

import math
from collections.abc import Sequence

import numpy as np

from greentrain.policy.outlook import Choice, Outlook
from greentrain.units import S_PER_HOUR


class Figure(float):
    """A number that reads ``unknown`` where it is none."""

    def __format__(self, spec: str) -> str:
        return float.__format__(self, spec) if math.isfinite(self) else "unknown"


def explain(template: str, seen: Outlook, choice: Choice, row: int, names: Sequence[str], job: int = 0) -> str:
    """Return the reason of one job as a sentence.

    Args:
        template: One of ``reasons`` of a choice or a decision.
        seen: What the policy saw.
        choice: What it wanted.
        row: Row that was decided.
        names: Of the menu's rows.
        job: Which job.
    """
    figures: dict[str, Figure | str] = {
        "now": Figure(seen.now_g_per_kwh[job]),
        "mean": Figure(_mean(seen, job)),
        "left_h": Figure(seen.left_s[job] / S_PER_HOUR),
        "todo": Figure(seen.tokens_left[job] / seen.tokens[job]),
        "row": names[row],
        "current": names[int(seen.current[job])],
        "wanted": names[int(choice.rows[job])],
        "price": Figure(math.nan if choice.price is None else choice.price[job] * 1e6),
    }
    figures |= {name: Figure(values[job]) for name, values in choice.figures.items()}
    return template.format(**figures)


def _mean(seen: Outlook, job: int) -> float:
    ahead = seen.forecast_g_per_kwh[job]
    weights = np.clip(seen.left_s[job] - np.arange(len(ahead)) * seen.step_s, 0.0, seen.step_s)
    known = np.isfinite(ahead) & (weights > 0)
    return float(np.average(ahead[known], weights=weights[known])) if known.any() else math.nan
