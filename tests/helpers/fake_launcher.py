"""A launcher that only remembers what it was told."""

from dataclasses import dataclass, field
from typing import Any

from greentrain.control.launcher_protocol import Notice, Offer, Progress, Request


@dataclass
class FakeLauncher:
    """Offers up to two ranks and to wait.

    Args:
        exits: Whether the training has to end itself.
        broken: Whether it cannot be told anything.
        blind: Whether its folder cannot be seen.
    """

    exits: bool = True
    broken: bool = False
    blind: bool = False
    wanted: Notice | None = None
    job_unix_s: float | None = None
    words: list[Request | Progress] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)

    def offer(self) -> Offer | None:
        if self.blind:
            return None
        return Offer(attempt=1, ranks=1, min_ranks=1, max_ranks=2, can_wait=True, job_unix_s=self.job_unix_s)

    def notice(self) -> Notice | None:
        return self.wanted

    def write(self, word: Request | Progress) -> None:
        if self.broken:
            raise OSError("the disk is full")
        self.words.append(word)

    def mark(self, what: str, attempt: int, **more: Any) -> None:
        self.marks.append(what)

    @property
    def requests(self) -> list[Request]:
        return [word for word in self.words if isinstance(word, Request)]
