"""What a run goes on from: the totals in a checkpoint, and the grid's time with which it began."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from greentrain.carbon.replayed import GridTime
from greentrain.config.schema import GreenConfig
from greentrain.errors import ConfigError, RunFolderError
from greentrain.ledger.journal import RUN_JSON, read_object
from greentrain.ledger.totals import Totals
from greentrain.types import Topology
from greentrain.utils.validation import folder_name

STATE_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeState:
    """The run that a checkpoint was written in."""

    run_id: str
    totals: Mapping[str, Any]
    """Of the rank that wrote it, as ``Totals.to_dict`` returns them."""
    rank: int | None
    """Who wrote it; None: not told."""

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "ResumeState | None":
        """Return what ``GreenSession.state_dict`` told; None where it was before the first start.

        Raises:
            ConfigError: The state is of a newer format, or names a run as no run is named.
        """
        if not state or state.get("run_id") is None:
            return None
        if int(state.get("format", 0)) > STATE_FORMAT:
            raise ConfigError(
                f"the checkpoint's GreenTrain state has format {state['format']}, this version reads up to"
                f" {STATE_FORMAT}: upgrade greentrain-torch"
            )
        folder_name("the run id in the checkpoint's GreenTrain state", str(state["run_id"]))
        return cls(run_id=str(state["run_id"]), totals=dict(state["totals"]), rank=state.get("rank"))

    def carried(self, place: Topology) -> Totals | None:
        """Return the totals to go on from; None where another rank wrote them."""
        return Totals.from_dict(self.totals) if self.rank in (None, place.rank) else None


def grid_time_of(config: GreenConfig, run_id: str, unix_s: float) -> GridTime:
    """Return the grid's time: a run that goes on keeps the one with which it began.

    Args:
        config: The checked configuration.
        run_id: Of the run.
        unix_s: When the job began (s since the epoch).
    """
    time = GridTime.of(config.carbon, unix_s)
    if time.is_real:
        return time
    with contextlib.suppress(OSError, RunFolderError, ValueError, KeyError, TypeError):
        return GridTime.from_dict(read_object(Path(config.run.dir) / run_id / RUN_JSON)["grid"])
    return time
