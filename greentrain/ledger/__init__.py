"""The books of one run: what every rank used, phase by phase, and what that emitted.

``EnergyLedger`` adds entries to running totals and writes each one to the rank's journal. ``read_run`` reads the
journals of all ranks of a run folder back.
"""

from greentrain.ledger.journal import entry_from_json, entry_to_json
from greentrain.ledger.reader import RankRecord, RunRecord, read_run
from greentrain.ledger.totals import EnergyLedger, Totals

__all__ = ["EnergyLedger", "RankRecord", "RunRecord", "Totals", "entry_from_json", "entry_to_json", "read_run"]
