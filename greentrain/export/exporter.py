"""What shows snapshots somewhere."""

from typing import Protocol, runtime_checkable

from greentrain.export.snapshot import Snapshot


@runtime_checkable
class Exporter(Protocol):
    """Shows the figures of one rank. Called by one thread, the one that books; neither method waits for a network."""

    def update(self, snapshot: Snapshot) -> None:
        """Show these figures from now on."""
        ...

    def close(self) -> None:
        """Show nothing any more. Idempotent."""
        ...
