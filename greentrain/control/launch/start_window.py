"""When a job should start, or start again: the first time at which its plan trains, if the forecast came true.

It is the plan of the training itself, asked from outside: ranks that do not run are given back, so off costs nothing.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from greentrain.carbon.detect import open_signal
from greentrain.carbon.price import open_price
from greentrain.carbon.replayed import GridTime
from greentrain.config.schema import GreenConfig
from greentrain.control.plan.planner import CostAim, GridOutlook, PlannedJob, Planner
from greentrain.errors import ConfigError, GreenTrainError
from greentrain.policy.action_sources import read_actions, table_of_run
from greentrain.policy.action_table import Action, ActionTable
from greentrain.policy.menu import Menu
from greentrain.policy.registry import open_schedule
from greentrain.types import S_PER_HOUR
from greentrain.utils.never_raise import call_if_present

REMEDY: Final = (
    "with --actions name the folder of a run that measured its gears, or a YAML file; policy.actions names such a file"
)


class GreenWindow:
    """Knows when one job should train.

    Args:
        config: Configuration with a policy that plans.
        actions: Run folder, declared table or ``reference``; None: policy.actions, or what an attempt of this job has
            measured, once it has.
        ranks: Smallest and largest width.
        job_unix_s: First start of the job (s since the epoch): the deadline, and a replayed grid, count from there.
        tell: Shows a line to people.

    Raises:
        ConfigError: The policy does not plan, or a table is wrong.
        CarbonSignalError: The signal cannot be built.
    """

    def __init__(
        self,
        config: GreenConfig,
        *,
        actions: str | None,
        ranks: tuple[int, int],
        job_unix_s: float,
        tell: Callable[[str], None],
    ) -> None:
        if not config.policy.plans:
            raise ConfigError(
                f"policy.name is {config.policy.name!r}, which plans nothing, so nobody knows when to start: name one"
                " that does, such as mpc, with policy.tokens and policy.deadline_h"
            )
        self._config, self._ranks, self._tell = config, ranks, tell
        self._time = GridTime.of(config.carbon, job_unix_s)
        self._signal, self._price = open_signal(config.carbon), open_price(config.price)
        for signal in (self._signal, self._price):
            call_if_present(signal, "start")
        self._told = ""
        where = actions or config.policy.actions
        self._planner = None if where is None else self._plan(read_actions(where).table)

    @property
    def knows(self) -> bool:
        """Whether there is a table to plan with."""
        return self._planner is not None

    def opens(self, unix_s: float, tokens_done: float) -> float | None:
        """Return when to start; None where the plan does not say. Never raises.

        Args:
            unix_s: Earliest start (s since the epoch).
            tokens_done: Tokens that the job has trained.
        """
        try:
            if self._planner is None:
                table = self._measured()
                self._planner = None if table is None else self._plan(table)
            if self._planner is None:
                return None
            found = self._planner.next_on(unix_s, tokens_done)
            deadline_s = self._time.real(self._planner.job.deadline_s)
        except Exception as error:
            self._say_once(f"the plan does not say when to start ({error!r}), so it starts now")
            return None
        return None if found is None else max(unix_s, min(found, deadline_s))

    def close(self) -> None:
        """Close the signals."""
        for signal in (self._signal, self._price):
            call_if_present(signal, "close")

    def _plan(self, table: ActionTable) -> Planner:
        policy = self._config.policy
        assert policy.tokens is not None and policy.deadline_h is not None
        menu = Menu.of(table, released=True, wanted=self._can_do)
        return Planner(
            policy,
            job=PlannedJob(
                tokens=policy.tokens,
                start_s=self._time.grid_s,
                deadline_s=self._time.grid_s + policy.deadline_h * S_PER_HOUR,
            ),
            time=self._time,
            grid=GridOutlook(self._signal, aim=CostAim.of(self._config, self._price)),
            menu=menu.with_fp8_share(self._config.precision.fp8_max_share),
            make=lambda scaled: open_schedule(policy, scaled),
            pausable=True,
        )

    def _can_do(self, action: Action) -> bool:
        caps = self._config.actuators.power_cap
        low, high = self._ranks
        return (
            action.gear in self._config.precision.gears
            and (action.ranks is None or low <= action.ranks <= high)
            and (action.cap == 1.0 or (caps is not None and action.cap in caps.fractions))
        )

    def _measured(self) -> ActionTable | None:
        """Return the table of the newest run of this job."""
        newest: tuple[float, ActionTable] | None = None
        for path in Path(self._config.run.dir).glob("*/run.json"):
            try:
                run = json.loads(path.read_text(encoding="utf-8"))
                created_s = float(run["created_unix_s"])
                if created_s < self._time.unix_s or (newest is not None and created_s < newest[0]):
                    continue
                table = table_of_run(run, str(path))
            except (OSError, ValueError, KeyError, TypeError, GreenTrainError):
                continue
            if table is not None:
                newest = created_s, table
        return None if newest is None else newest[1]

    def _say_once(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self._tell(text)
