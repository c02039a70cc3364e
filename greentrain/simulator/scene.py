"""One job on one grid, told side by side: what each policy did, and the grams it had emitted by then."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from greentrain.policy.menu import OFF, Menu
from greentrain.policy.outlook import Array
from greentrain.policy.waterfill import solve
from greentrain.simulator.grid_trace import GridTrace
from greentrain.simulator.world import Track
from greentrain.types import J_PER_KWH

ORACLE: Final = "oracle"
"""Name of the best plan in hindsight, which no policy can know."""
RAN: Final = "what ran"
"""Name of what a run really did."""
NOTHING: Final = -1
"""In place of a row: the job is over, or nobody knows what it did."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Course:
    """What one policy, or the run itself, did over k epochs."""

    name: str
    edges_unix_s: Array
    """(k + 1,)"""
    rows: NDArray[np.int64]
    """(k,) of the menu, or NOTHING."""
    grams: Array
    """(k + 1,) emitted until each edge."""
    late: bool = False
    """Whether tokens were left at the deadline."""

    @property
    def total_g(self) -> float:
        """Emitted in the end."""
        return float(self.grams[-1])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scene:
    """Courses on one grid."""

    title: str
    grid_name: str
    grid: str
    """What the grid is."""
    edges_unix_s: Array
    """(h + 1,) of the intensity."""
    g_per_kwh: Array
    """(h,) NaN where unknown."""
    deadline_unix_s: float
    menu: Menu
    courses: Sequence[Course]
    against: str
    """Name of the course that the others are measured by."""
    notes: Sequence[str]
    """What it rests on."""


def course_of(name: str, track: Track, job: int, start_unix_s: float, deadline_s: float) -> Course:
    """Return what a policy made of one simulated job.

    Args:
        name: Name of the policy.
        track: Track with its history.
        job: Index of the job in the track.
        start_unix_s: Start of the job (s since the epoch, UTC).
        deadline_s: Deadline of the job, after its start (s).
    """
    history = track.history
    assert history is not None, "simulate with history=True"
    epochs = history.rows.shape[1]
    edges_s = np.minimum(np.arange(epochs + 1) * history.epoch_s, deadline_s)
    over = edges_s[:-1] >= track.end_s[job] - 1e-6
    return Course(
        name=name,
        edges_unix_s=start_unix_s + edges_s,
        rows=np.where(over, NOTHING, history.rows[job]),
        grams=np.concatenate([[0.0], np.cumsum(history.grams[job])]),
        late=bool(track.missed[job]),
    )


def oracle_course(trace: GridTrace, start_unix_s: float, deadline_s: float, tokens: float, menu: Menu) -> Course:
    """Return the best plan in hindsight; its rows are rounded to one a step, its grams are those of its mixtures.

    Raises:
        ConfigError: The tokens cannot be done by the deadline; the message says by when they can.
    """
    g_per_kwh, weights_s = trace.window(start_unix_s, deadline_s)
    plan = solve(g_per_kwh, weights_s, tokens, menu)
    last = np.max(np.flatnonzero(plan.rows != OFF), initial=-1)
    return Course(
        name=ORACLE,
        edges_unix_s=start_unix_s + np.concatenate([[0.0], np.cumsum(weights_s)]),
        rows=np.where(np.arange(len(plan.rows)) > last, NOTHING, plan.rows),
        grams=np.concatenate([[0.0], np.cumsum(plan.power_w * g_per_kwh * weights_s)]) / J_PER_KWH,
    )
