"""What a training loop tells a session while it runs: steps, phases, gears. Each call only queues a mark."""

import itertools
from collections.abc import Callable
from typing import Any

from greentrain.control import Control
from greentrain.spans import PhaseSpan


class Marking:
    """The hot path of a session.

    Args:
        now_s: Monotonic seconds.
        control: Is told steps and tokens too.
    """

    def __init__(self, now_s: Callable[[], float], control: Control) -> None:
        self._now = now_s
        self._control = control
        self._mark: Callable[[tuple[Any, ...]], None] = _ignore
        self._tokens = itertools.count(1)

    def step(self, tokens: int = 0, samples: int = 0) -> None:
        """Mark the end of an optimizer step.

        Args:
            tokens: Tokens of this rank's batches since the last step. Pass a number known on the host: a shape
                or ``numel()``, not a reduction on the device.
            samples: Samples of the same batches.
        """
        t_s = self._control.step_end(self._now())
        self._mark((t_s, "step", "", 0, tokens, samples))
        self._control.stepped(tokens, samples)

    def count(self, tokens: int = 0, samples: int = 0) -> None:
        """Count tokens or samples without ending a step: where a watched engine counts the steps itself."""
        self._mark((self._now(), "count", "", 0, tokens, samples))
        self._control.counted(tokens, samples)

    def begin(self, name: str) -> int:
        """Enter a phase, for frameworks whose hooks come in pairs; phases may nest and overlap.

        Returns:
            A token that pairs this begin with its ``end``.
        """
        token = next(self._tokens)
        self._mark((self._now(), "begin", name, token))
        return token

    def end(self, name: str, token: int = 0) -> None:
        """Leave a phase: the one of the token, or the one of this name that was entered last."""
        self._mark((self._now(), "end", name, token))

    def gear(self, name: str) -> None:
        """Note that time from now on, and the steps that end in it, belong to this precision gear; "": to none."""
        self._mark((self._now(), "gear", name))

    def mark(self, name: str, *what: Any) -> float:
        """Queue a mark of this moment, for what acts on the training, and return its time (s)."""
        t_s = self._now()
        self._mark((t_s, name, *what))
        return t_s

    def phase(self, name: str) -> PhaseSpan:
        """Return a context manager that spends its block in a phase: one of ``Phase`` or a name of your own."""
        return PhaseSpan(self, name)

    def _mark_into(self, queue: Callable[[tuple[Any, ...]], None] | None) -> None:
        """Queue marks from now on; None: drop them."""
        self._mark = queue or _ignore


def _ignore(mark: tuple[Any, ...]) -> None:
    """Stand in for the queue while no run is open: a stray step outside a session is no error."""
