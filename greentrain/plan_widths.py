"""Numbers of ranks that a plan may choose from."""

from collections.abc import Callable

from greentrain.config_actuators import WidthConfig
from greentrain.handover import Offer


def widths_of(
    width: WidthConfig | None, offer: Offer | None, ranks: int, warn: Callable[[str], None]
) -> tuple[int, ...]:
    """Return the widths that the launcher can bring about, that of this attempt among them, ascending.

    Args:
        width: Section ``actuators.width``.
        offer: What the launcher can do; None: nothing.
        ranks: Of this attempt.
        warn: Called with a sentence where the launcher and the job disagree.
    """
    if width is None or offer is None:
        return (ranks,)
    if offer.ranks != ranks:
        warn(
            f"the launcher was to start {offer.ranks} ranks, and there are {ranks}: the number of ranks is"
            " left alone; check how the command starts its processes (on a CPU, accelerate needs a --config_file"
            " for several)"
        )
        return (ranks,)
    return tuple(sorted({ranks, *(n for n in width.widths if offer.min_ranks <= n <= offer.max_ranks)}))
