"""From a short run to a forecast of the long one.

A pilot is the first steps of the real thing: same model, batch, devices. Its run folder says tokens/s and joules/token;
warm-up steps (compiling, filling caches) are left out of both and counted once. What a pilot cannot see, failures and
the work that they cost, is a term of its own.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from greentrain.errors import ConfigError
from greentrain.estimate.mfu import one_over
from greentrain.estimate.values import Assumption, Range, product
from greentrain.ledger.reader import RankRecord, read_run
from greentrain.types import J_PER_KWH, S_PER_HOUR, DeviceKind, LedgerEntry, Provenance
from greentrain.utils.quantities import SourceKind
from greentrain.utils.validation import bound

FAILURE_DEVICE_H: Final = 45_600.0
"""Device-hours between two interruptions."""
LOST_H: Final = Range(low=0.1, mid=0.25, high=0.5)
"""Hours that an interruption costs: detecting it, starting again, and the steps since the last checkpoint."""
_FAILURES: Final = (
    "one interruption in 45,600 device-hours: 466 in 54 days on 16,384 H100s (Llama 3, arXiv 2407.21783, section 3.3.4;"
    " recalled); 0.1 to 0.5 h lost by each is assumed"
)
_LEAST_STEPS: Final = 5
_GOOD_STEPS: Final = 30
_BLOCKS: Final = (4, 20)
_T90: Final = (
    3.078, 1.886, 1.638, 1.533, 1.476, 1.440, 1.415, 1.397, 1.383, 1.372, 1.363, 1.356, 1.350, 1.345, 1.341, 1.337,
    1.333, 1.330, 1.328,
)  # fmt: skip
"""90th percentile of Student's t with 1 to 19 degrees of freedom."""
_GAP_S: Final = 1.0
_BLOCK: Final = 10
"""Spans of steps in a block: what one step has of the last is mostly gone after so many."""
_LEAST_WARMUP_SPANS: Final = 10
"""Warm-up is looked for in so many spans, or the first quarter: further on it would cut off slow steps by chance."""
_SLOWER: Final = 3.0
"""Standard errors by which warm-up is slower than the rest: slow steps that came first by chance stay in the mean."""
_LEAST_SPREAD: Final = 1e-3
"""Half-width of an interval, at least: clocks, and what is booked outside steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWatts:
    """Mean power of one device over the pilot."""

    name: str
    kind: DeviceKind
    watts: float | None
    """None: nobody could read it."""
    provenance: Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """What a short run says of its steady state."""

    tokens_per_s: Range
    """Of the whole job: 10th percentile, mean and 90th percentile of the mean over a long run."""
    joules_per_token: Range | None
    """Of all devices that were read, without PUE; None: not known."""
    devices: int
    """Accelerators; without any, ranks."""
    steps: int
    """That the rates come from."""
    warmup_steps: int
    """Left out."""
    warmup_s: float = 0.0
    """Time that warm-up cost beyond what its tokens take in the steady state."""
    warmup_j: float = 0.0
    by_device: Sequence[DeviceWatts] = ()
    gears: Sequence[str] = ()
    """Precisions of its steps; empty: it did not say."""
    source: str = ""
    warnings: Sequence[str] = field(default=())

    @property
    def watts(self) -> Range | None:
        """Mean power of the job (W); None: not known."""
        if self.joules_per_token is None:
            return None
        return self.joules_per_token.times(self.tokens_per_s.mid)


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotForecast:
    """What the long run will take."""

    duration_h: Range
    gpu_hours: Range
    energy_kwh: Range | None
    """IT energy; None: the pilot does not know it."""
    goodput: Range
    """Share of the time that makes progress."""
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepSpan:
    """A few consecutive steps of one rank."""

    steps: int
    seconds: float
    tokens: float
    joules: float


def read_pilot(folder: Path | str, *, warmup_steps: int | None = None) -> Pilot:
    """Return what a run folder says of its steady state.

    Args:
        folder: Folder of one run.
        warmup_steps: Steps to leave out; None: found from the steps' times (least standard error of the rest's mean,
            White 1997, Simulation 69:323, where they are slower than the rest), at least 1, within the first quarter.

    Raises:
        RunFolderError: The folder cannot be read.
        ConfigError: The run counts no tokens, or has too few steps.
    """
    record = read_run(folder)
    spans = [_spans(rank.entries) for rank in record.ranks]
    total = sum(span.steps for span in spans[0])
    if not any(span.tokens for rank in spans for span in rank):
        raise ConfigError(
            f"{folder} counts no tokens: call green.step(tokens=...) in the loop, then run the pilot again"
        )
    first = _warmup(spans[0]) if warmup_steps is None else _spans_of(spans[0], warmup_steps)
    left_out = sum(span.steps for span in spans[0][:first])
    kept = [rank[_spans_of(rank, left_out) :] for rank in spans]
    if min(sum(span.steps for span in rank) for rank in kept) < _LEAST_STEPS:
        done, rank_of = min((sum(span.steps for span in s), r.rank) for s, r in zip(spans, record.ranks, strict=True))
        raise ConfigError(
            f"{folder} has {done} steps of rank {rank_of}, {min(left_out, done)} of them warm-up: run"
            f" {_LEAST_STEPS + left_out} at least, better 50, and call green.step in every rank"
        )
    steps = total - left_out
    speeds = [_ratio([(span.tokens, span.seconds) for span in rank]) for rank in kept]
    tokens_per_s = sum(mid for mid, _ in speeds)
    spread = max(half / mid for mid, half in speeds if mid)
    watts = [_ratio([(span.joules, span.seconds) for span in rank]) for rank in kept]
    by_device, warnings = _by_device(record.ranks, sum(mid for mid, _ in watts))
    if any("no joules" in text for text in warnings):
        energy = None
    else:
        # steps of one rank last as long as those of the others, so their joules a token scatter together
        costs = [_ratio([(span.joules, span.tokens) for span in rank]) for rank in kept if rank[0].tokens]
        scatter = max((half / mid for mid, half in costs if mid), default=0.0)
        energy = _around(sum(mid for mid, _ in watts) / tokens_per_s, scatter)
    lost = [_lost(rank[: _spans_of(rank, left_out)], *pair) for rank, *pair in zip(spans, speeds, watts, strict=True)]
    if steps < _GOOD_STEPS:
        warnings.append(f"{steps} steps after warm-up are few: 50 give an interval that can be trusted")
    warnings.append("checkpoints, evaluations and failures that the pilot had none of are in no rate of it")
    accelerators = _accelerators(record.ranks)
    used = (entry.gears for rank in record.ranks for entry in rank.entries)
    world = int(record.run.get("world_size") or 0)
    if world > len(record.ranks):
        warnings.append(
            f"{len(record.ranks)} of {world} ranks are in the folder: each of the others is taken for alike"
        )
    return Pilot(
        tokens_per_s=_around(tokens_per_s, spread),
        joules_per_token=energy,
        devices=accelerators or len(record.ranks),
        steps=steps,
        warmup_steps=left_out,
        warmup_s=max(seconds for seconds, _ in lost),
        warmup_j=sum(joules for _, joules in lost),
        by_device=by_device,
        gears=sorted({gear for gears in used for gear, use in gears.items() if gear and use.steps}),
        source=f"run {record.run_id}",
        warnings=tuple(warnings),
    )


def goodput(devices: int) -> Range:
    """Return the share of the time that makes progress, between failures of single devices."""
    return one_over(LOST_H.times(devices / FAILURE_DEVICE_H).plus(Range.exactly(1.0)))


def forecast(pilot: Pilot, tokens: float, *, count: int | None = None, good: Range | None = None) -> PilotForecast:
    """Return what a run of so many tokens takes.

    Args:
        pilot: The short run.
        tokens: All tokens of the long run.
        count: Number of devices of the long run, each as fast as the pilot's; None: as many as the pilot has.
        good: Share of the time that makes progress; None: from published failures.
    """
    bound("tokens", tokens, 1.0, 1e18)
    devices = count or pilot.devices
    bound("count", devices, 1, 1e7)
    share = good or goodput(devices)
    if not 0 < share.low <= share.high <= 1:
        raise ConfigError(f"a goodput of {share.low} to {share.high}: it is a share of the time, above 0 and at most 1")
    slower = one_over(share)
    steady = one_over(pilot.tokens_per_s.times(devices / pilot.devices)).times(tokens)
    seconds = product([steady, slower]).plus(Range.exactly(pilot.warmup_s))
    energy = None
    if pilot.joules_per_token is not None:
        joules = product([pilot.joules_per_token.times(tokens), slower]).plus(Range.exactly(pilot.warmup_j))
        energy = joules.times(1 / J_PER_KWH)
    warnings = list(pilot.warnings)
    if devices != pilot.devices:
        warnings.append(
            f"the pilot had {pilot.devices} devices, the run {devices}: "
            "each is taken to be as fast and as hungry as in the pilot"
        )
    hours = seconds.times(1 / S_PER_HOUR)
    return PilotForecast(
        duration_h=hours,
        gpu_hours=hours.times(devices),
        energy_kwh=energy,
        goodput=share,
        assumptions=_assumptions(pilot, share, given=good is not None),
        warnings=tuple(warnings),
    )


def _assumptions(pilot: Pilot, share: Range, *, given: bool) -> tuple[Assumption, ...]:
    kind = SourceKind.MEASURED if pilot.steps else SourceKind.GIVEN
    speed = pilot.tokens_per_s
    text = f"{speed.mid:.4g} ({speed.low:.4g} to {speed.high:.4g})"
    over = f", {pilot.steps} steps after {pilot.warmup_steps} of warm-up" if pilot.steps else ""
    found = [Assumption(name="tokens/s", value=text, source=pilot.source + over, kind=kind)]
    watts = pilot.watts
    if watts is not None:
        modelled = any(each.provenance is Provenance.MODELLED for each in pilot.by_device)
        note = "; part of it modelled" if modelled else ""
        value = f"{watts.mid:.4g} W ({watts.low:.4g} to {watts.high:.4g})"
        found.append(Assumption(name="power", value=value, source=pilot.source + note, kind=kind))
    text = f"{share.mid:.3f} ({share.low:.3f} to {share.high:.3f})"
    source = "given" if given else _FAILURES + "; power while not progressing is taken as in training"
    found.append(
        Assumption(name="goodput", value=text, source=source, kind=SourceKind.GIVEN if given else SourceKind.ASSUMED)
    )
    return tuple(found)


def _spans(entries: Sequence[LedgerEntry]) -> list[_StepSpan]:
    """Return consecutive steps of a rank; time between two processes of one run belongs to none of them."""
    found = []
    since_s, end_s = 0.0, -math.inf
    for entry in entries:
        if entry.t0_unix_s - end_s > _GAP_S:
            since_s = entry.t0_unix_s
        end_s = entry.t1_unix_s
        for steps, t_s, joules, tokens in entry.step_groups:
            if t_s > since_s:
                found.append(_StepSpan(steps=steps, seconds=t_s - since_s, tokens=tokens, joules=joules))
            since_s = t_s
    return found


def _spans_of(spans: Sequence[_StepSpan], steps: int) -> int:
    """Return how many spans hold the first so many steps."""
    count, done = 0, 0
    while done < steps and count < len(spans):
        done += spans[count].steps
        count += 1
    return count


def _warmup(spans: Sequence[_StepSpan]) -> int:
    """Return how many spans to leave out so that the mean of the others has the least standard error, if it pays."""
    costs = [span.seconds / (span.tokens or 1) for span in spans]

    def rest(first: int) -> tuple[float, float]:
        """Return mean and sum of squares about it."""
        kept = costs[first:]
        mean = sum(kept) / len(kept)
        return mean, sum((cost - mean) ** 2 for cost in kept)

    most = min(max(_LEAST_WARMUP_SPANS, len(spans) // 4), len(spans) // 2)
    least = min(1, most)
    first = min(range(least, most + 1), key=lambda n: rest(n)[1] / (len(costs) - n) ** 2)
    mean, squares = rest(first)
    error = math.sqrt(squares / (len(costs) - first) / max(first, 1))
    return first if sum(costs[:first]) > first * (mean + _SLOWER * error) else least


def _ratio(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the ratio of two sums and half of its 80 % interval, by means of blocks of consecutive steps."""
    above, below = sum(a for a, _ in pairs), sum(b for _, b in pairs)
    if below <= 0:
        return 0.0, 0.0
    ratio = above / below
    count = min(max(len(pairs) // _BLOCK, _BLOCKS[0]), _BLOCKS[1], len(pairs))
    if count < 2:
        return ratio, 0.0
    edges = [round(i * len(pairs) / count) for i in range(count + 1)]
    misses = [
        sum(a for a, _ in pairs[i:j]) - ratio * sum(b for _, b in pairs[i:j]) for i, j in itertools.pairwise(edges)
    ]
    error = math.sqrt(count / (count - 1) * sum(miss**2 for miss in misses)) / below
    return ratio, _T90[count - 2] * error


def _around(mid: float, relative: float) -> Range:
    by = 1 + max(relative, _LEAST_SPREAD)
    return Range(low=mid / by, mid=mid, high=mid * by)


def _lost(spans: Sequence[_StepSpan], speed: tuple[float, float], watts: tuple[float, float]) -> tuple[float, float]:
    """Return seconds and joules of warm-up beyond what its tokens take in the steady state."""
    tokens, seconds = sum(span.tokens for span in spans), sum(span.seconds for span in spans)
    steady_s = tokens / speed[0] if speed[0] else seconds
    return max(0.0, seconds - steady_s), max(0.0, sum(span.joules for span in spans) - watts[0] * steady_s)


def _kinds(ranks: Sequence[RankRecord]) -> Mapping[str, DeviceKind]:
    return {uid: DeviceKind(str(sensor["kind"])) for rank in ranks for uid, sensor in rank.sensors.items()}


def _accelerators(ranks: Sequence[RankRecord]) -> int:
    """Return how many accelerators the job had at its end; a run that was brought back may have had others before."""
    kinds = _kinds(ranks)
    booked = {uid for rank in ranks for entry in rank.entries[-1:] for uid in entry.devices}
    return sum(kinds.get(uid) is DeviceKind.GPU for uid in booked)


def _by_device(ranks: Sequence[RankRecord], watts: float) -> tuple[list[DeviceWatts], list[str]]:
    """Return the devices' shares of the power, and what is not known of them."""
    kinds = _kinds(ranks)
    joules: dict[str, float] = {}
    missing_s: dict[str, float] = {}
    booked_s: dict[str, float] = {}
    provenance: dict[str, Provenance] = {}
    for rank in ranks:
        for entry in rank.entries:
            for uid, device in entry.devices.items():
                joules[uid] = joules.get(uid, 0.0) + device.energy_j
                missing_s[uid] = missing_s.get(uid, 0.0) + device.missing_s
                booked_s[uid] = booked_s.get(uid, 0.0) + entry.t1_unix_s - entry.t0_unix_s
                provenance[uid] = device.provenance
    total_j = sum(joules.values())
    names = {uid: str(sensor.get("name") or uid) for rank in ranks for uid, sensor in rank.sensors.items()}
    found, warnings = [], []
    for uid, value_j in joules.items():
        name, kind = names.get(uid, uid), kinds.get(uid, DeviceKind.NODE)
        unread = missing_s[uid] > 0.02 * booked_s[uid]
        known = provenance[uid] is not Provenance.MISSING and not unread
        if not known:
            share = missing_s[uid] / booked_s[uid] if booked_s[uid] else 1.0
            what = (
                "so the job's energy is not known: no joules" if kind is DeviceKind.GPU else "its joules are in no sum"
            )
            warnings.append(f"{name} was not read for {share:.0%} of the time, {what}")
        value = watts * value_j / total_j if known and total_j else None
        found.append(DeviceWatts(name=name, kind=kind, watts=value, provenance=provenance[uid]))
    if not total_j:
        warnings.append("no device was read: no joules")
    return found, warnings
