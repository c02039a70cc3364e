"""The one meter of a run: what the configuration names, or the caller's own, and the meters beside it."""

import functools
from collections.abc import Sequence

from greentrain.clock import Clock
from greentrain.config import PowerConfig
from greentrain.power.claims import claims_dir, other_pids
from greentrain.types import PowerMeter, Topology


def open_run_meter(
    config: PowerConfig, place: Topology, clock: Clock, *, own: PowerMeter | None, extra: Sequence[PowerMeter]
) -> PowerMeter:
    """Return the meter of a run that starts.

    Args:
        config: Section ``power``.
        place: Place of this process in the job.
        clock: Time.
        own: Read instead of those the configuration names; None: open these.
        extra: Read beside it, and not closed with it.

    Raises:
        MeterError: A meter that was asked for by name cannot be opened.
    """
    if own is None:
        from greentrain.power.detect import open_meters

        others = functools.partial(other_pids, claims_dir())
        own = open_meters(config, topology=place, excluded_pids=others, clock=clock)
    if not extra:
        return own
    from greentrain.power.composite import Borrowed, CompositeMeter

    members = own.meters if isinstance(own, CompositeMeter) else [own]
    return CompositeMeter([*members, *map(Borrowed, extra)], clock=clock)
