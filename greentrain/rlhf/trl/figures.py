"""What a pass cost since the last log, for TRL's metrics."""

from collections.abc import Iterable

from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.stats import PassStats


class Figures:
    """Averages of an engine's statistics over the steps of a log, of this process.

    Args:
        engine: Whose.
        kinds: Of which passes.
    """

    def __init__(self, engine: OffloadEngine, kinds: Iterable[PassKind]) -> None:
        self._engine = engine
        self._kinds = tuple(kinds)
        self._seen = dict(engine.stats())
        self._step: int | None = None

    def begin(self, step: int) -> None:
        """Count from a step on: the first one, or the one that a run resumes at; nothing within a run.

        Args:
            step: Steps so far.
        """
        if self._step is None or step < self._step:
            self._seen, self._step = dict(self._engine.stats()), step

    def since(self, step: int) -> dict[str, float]:
        """Return the figures a step since the last call; nothing where there was no step.

        ``offload/<pass>/busy_s`` and ``wait_s`` (s a step), ``redone`` (parts a step), and ``hidden``, the share of
        the busy time for which nobody waited.

        Args:
            step: Steps so far.
        """
        if self._step is None or step <= self._step:
            return {}
        steps, now = step - self._step, self._engine.stats()
        out: dict[str, float] = {}
        for kind in self._kinds:
            then, here = self._seen.get(kind, PassStats()), now.get(kind, PassStats())
            busy_s, wait_s = here.busy_s - then.busy_s, here.wait_s - then.wait_s
            if here.calls == then.calls:
                continue
            out[f"offload/{kind}/busy_s"] = busy_s / steps
            out[f"offload/{kind}/wait_s"] = wait_s / steps
            out[f"offload/{kind}/redone"] = (here.redone - then.redone) / steps
            if busy_s > 0:
                out[f"offload/{kind}/hidden"] = max(0.0, busy_s - wait_s) / busy_s
        self._seen, self._step = dict(now), step
        return out
