"""The books: what every rank used, phase by phase, and what that emitted.

``EnergyLedger`` adds entries to running totals (``greentrain.totals``) and writes each one to the rank's journal
(``greentrain.entry_record``). ``read_run`` (``greentrain.run_record``) reads the journals of all ranks of a run folder
back.
"""

from greentrain.entry_record import entry_from_json, entry_to_json
from greentrain.journal import Journal
from greentrain.run_record import RankRecord, RunRecord, read_run
from greentrain.totals import Totals
from greentrain.types import LedgerEntry

__all__ = ["EnergyLedger", "RankRecord", "RunRecord", "Totals", "entry_from_json", "entry_to_json", "read_run"]


class EnergyLedger:
    """Running totals of one rank, written entry by entry to its journal.

    Args:
        journal: Where entries go; None keeps totals only.
        carried: Totals of earlier parts of the same run that are in no journal of this folder.
    """

    def __init__(self, journal: Journal | None, carried: Totals | None = None) -> None:
        self.journal = journal
        self.totals = carried or Totals()

    def record(self, entry: LedgerEntry) -> None:
        """Add an entry to the totals and to the journal."""
        self.totals = self.totals.add(entry)
        if self.journal is not None:
            record = entry_to_json(entry)
            groups = record.pop("step_groups")  # last in its line: who thins a journal cuts them off unread
            self.journal.append({**record, "sum": self.totals.sums(), "step_groups": groups})
