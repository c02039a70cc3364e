"""Power limits of this process's own GPUs, as fractions of the limits that were found.

::

    found --first apply--> capped --apply(1.0), reset, close--> found
                             |--somebody else sets a limit--> yielded: his stays, nothing is done any more
                             |--the driver refuses for good--> broken: what can be put back is, nothing more is done

Before each change the limit is read, the guardian is told, and what the driver took is read back.
:func:`survey_caps` is what ``greentrain doctor`` says of them: which right is there, what is set, what a dead job left.
"""

import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from greentrain.config.schema import PowerCapConfig
from greentrain.control.actuators import guardian_main
from greentrain.control.actuators.driver import (
    GpuKnobs,
    GpuSetting,
    Opened,
    all_knobs,
    kind_of,
    open_driver,
    open_gpus,
    refusal,
    unfit,
    writable,
)
from greentrain.control.actuators.guardian import Guardian
from greentrain.errors import ConfigError, MeterError
from greentrain.power.claims import claims_dir
from greentrain.types import Topology

IGNORED: Final = 0.02
"""A change of less than this share of the card's range is not made."""
FULL: Final = 1.0


class CappedGpu:
    """One GPU and what was done to it (mW).

    Args:
        knobs: Settings of the GPU.
    """

    def __init__(self, knobs: GpuKnobs) -> None:
        self.knobs = knobs
        self.range = knobs.limits()
        self.set_mw: int | None = None
        """None: it has the limit found."""
        self._before_mw: int | None = None

    def about_to_set(self, target_mw: int) -> None:
        """Note a limit whose setting may still fail."""
        self._before_mw, self.set_mw = self.set_mw, target_mw

    def is_ours(self, limit_mw: int) -> bool:
        """Return True if this process has set a limit."""
        return any(mw is not None and is_same(limit_mw, mw) for mw in (self.set_mw, self._before_mw))

    def is_found(self, limit_mw: int) -> bool:
        """Return True if a limit is the one that was found."""
        return is_same(limit_mw, self.range.found_mw)

    def forget(self) -> None:
        """Note that nothing of ours is set."""
        self.set_mw = self._before_mw = None

    def is_near(self, one_mw: int, other_mw: int) -> bool:
        """Return True if two limits differ by too little to matter."""
        return abs(one_mw - other_mw) < IGNORED * (self.range.max_mw - self.range.min_mw)

    def target_mw(self, fraction: float) -> int:
        """Return the limit of a fraction (mW), in whole watts; the limit found at 1."""
        return self.range.found_mw if fraction >= FULL else round(self.range.base_mw * fraction / 1000) * 1000

    def takes(self, fraction: float) -> bool:
        """Return True if the card has such a limit."""
        return fraction == FULL or self.range.min_mw <= self.target_mw(fraction) <= min(
            self.range.found_mw, self.range.max_mw
        )


def is_same(one_mw: int, other_mw: int) -> bool:
    """Return True if two limits are one: drivers round (mW)."""
    return abs(one_mw - other_mw) <= guardian_main.TOLERANCE_MW


PART: Final = "limit"
LOOK_S: Final = 1.0
"""A limit that is to stay is looked at this often at most (s): whether somebody else has set another."""


class PowerCap(GpuSetting):
    """The power limits of one process's GPUs; :func:`open_power_cap` makes it.

    Experimental: it ran on a fake driver, never on a card (docs/status.md).

    Args:
        opened: The GPUs, NVML and the guardian; closed with it.
        fractions: Fractions of the limit to choose from, descending, first 1.0, each possible on every GPU.
        dwell_s: Shortest time between two changes (s).
        warn: Called with one sentence where something cannot be done; once a sentence.
        clock: Monotonic seconds.
    """

    what = "power limits"
    kind = "cap"

    def __init__(
        self,
        opened: Opened,
        fractions: tuple[float, ...],
        *,
        dwell_s: float,
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.fractions = fractions
        """What can be set, descending, first 1.0."""
        super().__init__(opened, warn)
        self._cards = [CappedGpu(knobs) for knobs in opened.gpus]
        self._dwell_s = dwell_s
        self._clock = clock
        self._fraction = self._wanted = self._ceiling = FULL
        self._unsure = False
        """True: a limit could not be put back, so what is set is not what ``fraction`` says."""
        self._changed_s: float | None = None
        self._looked_s = -math.inf

    @property
    def fraction(self) -> float:
        """The fraction that is set now; 1.0 where nothing of ours is."""
        return self._fraction

    @property
    def limit_w(self) -> float:
        """The limits that were found, of all its GPUs together (W)."""
        return sum(card.range.found_mw for card in self._cards) / 1000

    @property
    def uuids(self) -> tuple[str, ...]:
        """The GPUs whose limits it sets."""
        return tuple(card.knobs.uuid for card in self._cards)

    def apply(self, fraction: float, *, at_once: bool = False) -> bool:
        """Set every GPU's limit to a fraction of what was found. Never raises.

        Args:
            fraction: One of ``fractions``, or any between that the cards can do.
            at_once: Do it even before ``dwell_s`` is over, as profiling does.

        Returns:
            True if the limits are now those (a change too small to be worth it counts as made); False if they could
            not be set within a second, which is said once, or it is too soon after the last change.
        """
        if 0.0 < fraction <= FULL:
            self._wanted, fraction = fraction, min(fraction, self._ceiling)
        return self._change(lambda: self._apply(fraction, at_once))

    def limit(self, share: float) -> float | None:
        """Let no limit be above a share of what was found from now on, or the least that all cards take.

        Args:
            share: At most this; 1.0: what was wanted holds again.

        Returns:
            The share that holds now; None where it could not be set within a second.
        """
        lowest = max(math.ceil(card.range.min_mw / 1000) * 1000 / card.range.base_mw for card in self._cards)
        self._ceiling = FULL if share >= FULL else max(share, lowest)
        done = self._change(lambda: self._apply(min(self._wanted, self._ceiling), True))
        return self._ceiling if done else None

    def _level(self) -> float:
        return self._fraction

    def _failed(self, error: Exception) -> None:
        if isinstance(error, _Yielded):
            self._stop(str(error))
            return
        left = self._put_back()
        self._say(f"power limits cannot be set ({error}); {left or 'they are as they were found'}")
        self._over = kind_of(error) in ("GpuIsLost", "NoPermission", "NotSupported")

    def _apply(self, fraction: float, at_once: bool) -> bool:
        if not self._started:
            self._start()
            if self._over:
                return False
        if not 0.0 < fraction <= FULL or not all(card.takes(fraction) for card in self._cards):
            self._say(f"a power limit of {fraction:g} of the limit found is outside the range of {self._ranges()}")
            return False
        now_s = self._clock()
        if not self._unsure and (fraction == self._fraction or (fraction != FULL and self._is_near(fraction))):
            if now_s - self._looked_s >= LOOK_S:
                self._look(now_s)
            return True
        if not at_once and self._changed_s is not None and now_s - self._changed_s < self._dwell_s:
            return False
        self._look(now_s)
        if self._over:
            return False
        self._changed_s = now_s
        for card in self._cards:
            self._set(card, fraction)
        self._fraction, self._unsure = fraction, False
        return not self._was_closed()

    def _start(self) -> None:
        """Look again just before the first change: training runs now, and shows which GPUs it uses."""
        own = self._repair()
        self._cards = [card for card in self._cards if card.knobs.uuid in own]
        for card in self._cards:
            card.range = card.knobs.limits()
        self._started = True
        self._over = not self._cards

    def _look(self, now_s: float) -> None:
        """Raise if somebody else has set a limit, and leave GPUs alone that somebody else computes on.

        Raises:
            _Yielded: An administrator has set a limit.
        """
        self._looked_s = now_s
        for card in list(self._cards):
            now_mw, expected_mw = card.knobs.limit_mw(), card.set_mw or card.range.found_mw
            if not card.is_ours(now_mw) and not card.is_found(now_mw):
                raise _Yielded(
                    f"the power limit of {card.knobs.label} is now {now_mw / 1000:g} W, neither the"
                    f" {card.range.found_mw / 1000:g} W that were found nor"
                    f" {expected_mw / 1000:g} W: somebody else sets it, so it stays and GreenTrain sets none any more"
                )
            if others := unfit(card.knobs, self._opened.topology):
                self._restore(card)
                self._cards.remove(card)
                self._say(f"{card.knobs.label} is left alone from now on: {others}")
        self._over = not self._cards

    def _set(self, card: CappedGpu, fraction: float) -> None:
        target_mw = card.target_mw(fraction)
        if fraction >= FULL:
            self._restore(card)
            return
        self.guardian.tell_limit(card.knobs.uuid, card.range.found_mw, target_mw)
        if self._was_closed():
            return
        card.about_to_set(target_mw)
        card.knobs.set_limit_mw(target_mw)
        taken_mw = card.knobs.limit_mw()
        if not card.is_near(taken_mw, target_mw):
            raise _Yielded(
                f"the power limit of {card.knobs.label} was set to {target_mw / 1000:g} W and reads"
                f" {taken_mw / 1000:g} W: something else sets it too, so it stays and GreenTrain sets none any more"
            )
        if not is_same(taken_mw, target_mw):  # a driver that rounds
            self.guardian.tell_limit(card.knobs.uuid, card.range.found_mw, taken_mw)
        card.set_mw = taken_mw
        if self._was_closed():  # by a signal's handler, in the middle of this
            card.knobs.set_limit_mw(card.range.found_mw)

    def _restore(self, card: CappedGpu) -> None:
        """Put one limit back.

        Raises:
            _Yielded: Somebody else has set another.
            Exception: The driver refuses; the guardian will try.
        """
        if card.set_mw is None:
            return
        now_mw, yielded = card.knobs.limit_mw(), ""
        if card.is_ours(now_mw):
            card.knobs.set_limit_mw(card.range.found_mw)
        elif not card.is_found(now_mw):
            yielded = (
                f"the power limit of {card.knobs.label} is now {now_mw / 1000:g} W, which somebody else has set: it"
                f" stays, and is not put back to the {card.range.found_mw / 1000:g} W that were found"
            )
        card.forget()
        self.guardian.done(card.knobs.uuid, PART)
        if yielded:
            raise _Yielded(yielded)

    def _put_back(self) -> str:
        left = ""
        for card in self._cards:
            try:
                self._restore(card)
            except _Yielded as yielded:
                self._over = True
                self._say(str(yielded))
            except Exception as error:
                left = f"the power limit of {card.knobs.label} cannot be put back now ({error}); {self._remains()}"
        self._fraction, self._unsure = FULL, bool(left)
        return left

    def _stop(self, why: str) -> None:
        self._over = True
        self._say(why)
        for card in self._cards:  # his GPU's restore would say it again
            try:
                self._restore(card)
            except Exception:
                continue
        self._fraction = FULL

    def _is_near(self, fraction: float) -> bool:
        return all(card.is_near(card.target_mw(fraction), card.set_mw or card.range.found_mw) for card in self._cards)

    def _ranges(self) -> str:
        return ", ".join(
            f"{card.knobs.label} ({card.range.min_mw / 1000:g} to {card.range.max_mw / 1000:g} W,"
            f" {card.range.found_mw / 1000:g} W found)"
            for card in self._cards
        )

    def _remains(self) -> str:
        return "the guardian tries again when this process ends" if self.guardian.pid else "see nvidia-smi -q -d POWER"


class _Yielded(Exception):
    """Somebody else has set a limit."""


def open_power_cap(
    config: PowerCapConfig,
    topology: Topology,
    warn: Callable[[str], None],
    *,
    guardian: Guardian | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> PowerCap | None:
    """Return the power limits of this process's GPUs; None, and one sentence to ``warn``, where there are none to set.

    What processes left behind that died together with their guardian is put right first.

    Args:
        config: Section ``actuators.power_cap``.
        topology: Place of this process among the ranks.
        warn: Called with each sentence that the user should read.
        guardian: Guardian shared with :func:`~greentrain.control.actuators.clocks.open_clocks`; None: one of its own.
        clock: Monotonic seconds.

    Raises:
        ConfigError: A device is not visible to this process, or no fraction is in the range of its cards.
    """

    def check(knobs: GpuKnobs) -> None:
        knobs.limits()
        knobs.try_limit()

    key, what = "actuators.power_cap.devices", "power limits"
    opened = open_gpus(config.devices, topology, warn, key=key, what=what, guardian=guardian, check=check)
    if opened is None:
        return None
    try:
        cards = [CappedGpu(knobs) for knobs in opened.gpus]
        fractions = _possible(config.fractions, cards, warn)
    except BaseException:
        opened.close()
        raise
    return PowerCap(opened, fractions, dwell_s=config.dwell_s, warn=warn, clock=clock)


def _possible(wanted: Sequence[float], cards: Sequence[CappedGpu], warn: Callable[[str], None]) -> tuple[float, ...]:
    fractions = sorted(set(wanted), reverse=True)
    possible = tuple(f for f in fractions if all(card.takes(f) for card in cards))
    left = [f"{f:g}" for f in fractions if f not in possible]
    if not left:
        return possible
    ranges = "; ".join(
        f"{card.knobs.label}: {card.range.min_mw / 1000:g} to {card.range.max_mw / 1000:g} W, of"
        f" {card.range.base_mw / 1000:g} W that is {card.range.min_mw / card.range.base_mw:.3f} to 1"
        for card in cards
    )
    if possible == (FULL,) and tuple(wanted) != PowerCapConfig().fractions:
        raise ConfigError(
            f"actuators.power_cap.fractions: {', '.join(left)} of the limit found is outside the range of the card"
            f" ({ranges}). Name fractions within it"
        )
    warn(f"power limits of {', '.join(left)} of the limit found are left out, as the card has none so low ({ranges})")
    return possible


def survey_caps(folder: Path | None = None) -> Sequence[str]:
    """Return one sentence a GPU, and what else matters. Never raises.

    The right is tried by setting the limit that is set already, which changes nothing.

    Args:
        folder: Folder of the records; None: that of the device claims.
    """
    place = claims_dir() if folder is None else folder
    try:
        nvml = open_driver()
    except MeterError as error:
        return [f"power limits and clocks: cannot be set, {error}"]
    try:
        lines = [_line(gpu) for gpu in all_knobs(nvml)]
        lines += _records(place)
    except Exception as error:
        return [f"power limits and clocks: NVML cannot list the GPUs ({error})"]
    finally:
        nvml.nvmlShutdown()
    problem = writable(place)
    return [*lines, f"power limits and clocks: not set while {problem}"] if problem else lines


def _line(gpu: GpuKnobs) -> str:
    head = f"{gpu.label}: "
    if gpu.slices:
        return f"{head}left alone, as MIG is on and its settings are those of the whole card"
    try:
        limits = gpu.limits()
    except Exception as error:
        return head + refusal("power limits", error)
    head += (
        f"power limit {limits.found_mw / 1000:g} W, possible {limits.min_mw / 1000:g} to {limits.max_mw / 1000:g} W,"
        f" default {limits.default_mw / 1000:g} W; "
    )
    try:
        gpu.try_limit()
    except Exception as error:
        return head + refusal("limit and clocks", error)
    sign = gpu.clock_setting()
    clocks = f"its clocks are left alone, as {sign}" if sign else "no sign of a clock setting"
    return f"{head}this process may set it; {clocks}"


def _records(folder: Path) -> Sequence[str]:
    lines = []
    for path in guardian_main.records(str(folder)):
        record = guardian_main.read(path)
        if record is None or record.boot != guardian_main.boot_id():
            continue
        lives = guardian_main.owner_lives(record)
        who = f"process {record.owner[1]}" if record.owner[1] != os.getpid() else "this process"
        state = "has changed it and is at work" if lives else "had changed it and is dead: the next training repairs it"
        lines.append(f"GPU {record.uuid}: {who} {state} ({path})")
    return lines
