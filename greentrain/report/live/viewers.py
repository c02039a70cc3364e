"""Who looks at a run while it runs: exporters and, in a terminal, the live line."""

from greentrain.config.schema import ExportConfig
from greentrain.ledger.active_run import ActiveRun
from greentrain.report.live.exporting import Exporting, open_exporters
from greentrain.report.live.snapshot import Caps
from greentrain.report.live.terminal import LiveLine
from greentrain.types import Topology


class Viewers:
    """Shows the figures of one run at a time; without an opening it shows nothing."""

    def __init__(self) -> None:
        self._exporting = Exporting(())
        self._line: LiveLine | None = None

    def open_exporters(self, config: ExportConfig, place: Topology, run_id: str) -> None:
        """Show the coming run through what the configuration names.

        Raises:
            ConfigError: A token or a folder is wrong.
            MissingExtraError: A library is not installed.
        """
        self._exporting = open_exporters(config, place, run_id)

    def open_line(self) -> None:
        """Show it in the terminal, where there is one."""
        self._line = LiveLine.open()

    def update(self, run: ActiveRun, caps: Caps | None) -> None:
        """Show the figures of now, and the power limits, where the run sets some."""
        self._exporting.second(run, caps)
        if self._line is not None:
            self._line.update(run)

    def close(self, run: ActiveRun | None = None) -> None:
        """Show the last figures of a run that has closed its books, and end. Idempotent."""
        self._exporting.close(run)
        line, self._line = self._line, None
        if line is not None:
            line.close()
