"""One run among many: what a table of runs shows of it, and how that follows from its journals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from greentrain.errors import RunFolderError
from greentrain.ledger.reader import RankBooks
from greentrain.ledger.totals import MISSING, EnergyPart, Totals
from greentrain.ledger.uncertainty import Interval, intervals
from greentrain.report import RunReport
from greentrain.report.estimated import estimated
from greentrain.report.summary import ALIVE_S, ratio
from greentrain.types import kwh_from_j


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run folder. A figure that is not known is None, never 0; of a broken run all figures are."""

    run_id: str
    """The folder's name where the run does not tell."""
    folder: Path
    name: str | None = None
    project: str | None = None
    """Tag ``project`` of run.tags."""
    user: str | None = None
    """Tag ``user`` of run.tags."""
    tags: Mapping[str, str] = field(default_factory=dict)
    zone: str | None = None
    """Zone of most of the energy."""
    signal: str | None = None
    """Kind of carbon signal, as carbon.signal."""
    created_unix_s: float | None = None
    """Start, s since the epoch (UTC)."""
    end_unix_s: float | None = None
    """End of the last interval that is booked, s since the epoch (UTC)."""
    wall_s: float | None = None
    """Wall time booked by the rank with most of it (s)."""
    reason: str | None = None
    """How it ended: ``finished``, ``exception``, ``sigterm``, ``exit``; None: still going, or killed."""
    world_size: int | None = None
    missing_ranks: int = 0
    """Ranks whose files are not in the folder: their energy is in no figure."""
    devices: tuple[str, ...] = ()
    """Names, each once."""
    frameworks: tuple[str, ...] = ()
    """Installed packages with versions, as ``torch 2.13.0``."""
    steps: int | None = None
    tokens: int | None = None
    samples: int | None = None
    energy_j: float | None = None
    """Known IT energy of all devices (J), without PUE: measured_j + modelled_j."""
    energy_low_j: float | None = None
    """Bounds of its 90 % interval (J); None where nothing is known that bounds it."""
    energy_high_j: float | None = None
    measured_j: float | None = None
    modelled_j: float | None = None
    missing_s: float | None = None
    """Device-seconds without knowledge."""
    device_s: float | None = None
    """Device-seconds whose energy is known."""
    facility_j: float | None = None
    """energy_j x PUE (J)."""
    unpriced_j: float | None = None
    """Energy without a carbon intensity (J): it is in no gram."""
    operational_g: float | None = None
    """Location-based, PUE included (g)."""
    market_g: float | None = None
    """By the contracted factor, PUE included (g); None without carbon.market_g_per_kwh."""
    embodied_g: float | None = None
    """Mid estimate (g)."""
    total_g: float | None = None
    """operational_g plus what is known of embodied_g (g)."""
    total_low_g: float | None = None
    """Bounds of its 90 % interval (g)."""
    total_high_g: float | None = None
    saved_g: float | None = None
    """Against the usual training, as the plan's report says (g); None without a plan. Below 0: it cost more."""
    g_per_token: float | None = None
    j_per_token: float | None = None
    tokens_per_s: float | None = None
    gears: Mapping[str, float] = field(default_factory=dict)
    """Share of the steps by precision gear; empty in runs without gears."""
    policy: str | None = None
    """policy.name."""
    estimate_ratio: float | None = None
    """Measured energy / what was estimated for the tokens trained; None without an estimate."""
    greentrain_version: str | None = None
    duplicate_of: Path | None = None
    """Another folder with the same ranks of the same run: this one is in no total."""
    error: str | None = None
    """Why it cannot be read."""

    def state(self, now_unix_s: float) -> str:
        """Return ``broken``, ``duplicate``, how the run ended, ``running``, or ``killed``.

        Args:
            now_unix_s: Present time (s since the epoch): a run that booked something a minute ago is running.
        """
        if self.error is not None:
            return "broken"
        if self.duplicate_of is not None:
            return "duplicate"
        if self.reason is not None:
            return self.reason
        last_unix_s = max(self.end_unix_s or 0.0, self.created_unix_s or 0.0)
        return "running" if now_unix_s - last_unix_s < ALIVE_S else "killed"


MOST_INT: Final = 2**53
"""Figures are below it: a thousand runs with the largest still add up in a table's 64 bits."""
_FRAMEWORKS: Final = ("torch", "lightning", "accelerate", "transformers", "deepspeed")
_BEFORE_UNKNOWN: Final = ("exception", "failed", "sigterm")
"""Ends that say more than that another rank has none; in this order, as in ``summarize``."""


def make_row(
    folder: Path,
    run: Mapping[str, Any],
    ranks: Sequence[RankBooks],
    parts: Mapping[str, EnergyPart],
    *,
    zone: str | None,
    market_g_per_kwh: float | None,
) -> RunRow:
    """Return the row of a run.

    Args:
        folder: The run's folder.
        run: Content of run.json.
        ranks: The books of the ranks, from their journals.
        parts: Sums of all ranks by provenance, earlier parts of the run included.
        zone: The zone of most of the energy; None where no entry names one.
        market_g_per_kwh: Contracted factor (g/kWh), None without one.

    Raises:
        RunFolderError: A count is absurdly large.
    """
    sums = [rank.sums for rank in ranks]  # each time anew, of as many groups as a run has days and zones
    by_rank = [rank.carried + one.totals() for rank, one in zip(ranks, sums, strict=True)]
    whole, known = EnergyPart(), EnergyPart()
    for provenance, part in parts.items():
        whole.merge(part)
        if provenance != MISSING:
            known.merge(part)
    is_known = bool(parts.keys() - {MISSING})
    energy_j = known.energy_j if is_known else None
    measured_j, modelled_j = (
        parts[name].energy_j if name in parts else 0.0 if is_known else None for name in ("measured", "modelled")
    )
    operational_g = known.operational_g if is_known and (known.priced or energy_j == 0) else None
    embodied_g = whole.embodied_g if whole.embodied else None
    run_id = clean(run.get("run_id") or ranks[0].opens[0]["run_id"])
    tags = {clean(key): clean(value) for key, value in dict(run.get("tags") or {}).items()}
    within = intervals(ranks, parts=False)
    energy, emissions = within.total[0] or Interval(), within.emissions_g or Interval()
    tokens = sum(totals.tokens for totals in by_rank) or None
    samples = sum(totals.samples for totals in by_rank) or None
    wall_s = max(totals.duration_s for totals in by_rank) or None
    steps = max(totals.steps for totals in by_rank) or None
    if steps is not None and steps >= MOST_INT:
        raise RunFolderError("a count of its ledger is absurdly large")
    total_g = None if operational_g is None else operational_g + (embodied_g or 0.0)
    packages, world_size = dict(run.get("packages") or {}), run.get("world_size") or ranks[0].opens[0].get("world_size")
    config = run.get("config") or {}
    names = [str(sensor["name"]) for rank in ranks for sensor in rank.sensors.values()]
    ends = [one.span_s[1] for one in sums if one.span_s is not None]
    reasons = [None if rank.close is None else str(rank.close.get("reason") or "finished") for rank in ranks]
    starts = [float(opened["t"]) for rank in ranks for opened in rank.opens[:1] if "t" in opened]
    created_s = run.get("created_unix_s")
    return RunRow(
        run_id=run_id,
        folder=folder,
        name=clean(run.get("name") or run_id),
        project=tags.get("project"),
        user=tags.get("user"),
        tags=tags,
        zone=clean_or_none(zone or (run.get("carbon") or {}).get("zone")),
        signal=clean_or_none((run.get("carbon") or {}).get("signal")),
        created_unix_s=min(starts, default=None) if created_s is None else float(created_s),
        end_unix_s=max(ends, default=None),
        wall_s=wall_s,
        reason=_reason(reasons),
        world_size=None if world_size is None else int(world_size),
        missing_ranks=max(int(world_size or 0) - len(ranks), 0),
        devices=tuple(dict.fromkeys(map(clean, names))),
        frameworks=tuple(f"{name} {clean(packages[name])}" for name in _FRAMEWORKS if name in packages),
        steps=steps,
        tokens=tokens,
        samples=samples,
        energy_j=energy_j,
        energy_low_j=energy.low,
        energy_high_j=energy.high,
        measured_j=measured_j,
        modelled_j=modelled_j,
        missing_s=max(whole.missing_s, 0.0),
        device_s=known.known_s,
        facility_j=known.facility_j if is_known else None,
        unpriced_j=known.unpriced_j if is_known else None,
        operational_g=operational_g,
        market_g=market_g_per_kwh * kwh_from_j(known.facility_j) if market_g_per_kwh is not None and is_known else None,
        embodied_g=embodied_g,
        total_g=total_g,
        total_low_g=emissions.low,
        total_high_g=emissions.high,
        saved_g=_saved_g(folder) if run.get("plan") else None,
        g_per_token=ratio(total_g, tokens),
        j_per_token=ratio(energy_j, tokens),
        tokens_per_s=ratio(tokens, wall_s),
        gears=_gear_shares(by_rank),
        policy=clean_or_none((config.get("policy") or {}).get("name")),
        estimate_ratio=_estimate_ratio(folder, tokens, wall_s, energy_j, operational_g),
        greentrain_version=clean_or_none(run.get("greentrain_version")),
    )


def _reason(reasons: list[str | None]) -> str | None:
    for word in _BEFORE_UNKNOWN:
        if word in reasons:
            return word
    if None in reasons:
        return None
    return next((clean(word) for word in reasons if word != "finished"), "finished")


def _gear_shares(ranks: Sequence[Totals]) -> dict[str, float]:
    steps = {clean(gear): use.steps for gear, use in Totals.of_job(ranks).by_gear.items()}
    whole = sum(steps.values())
    return {gear: count / whole for gear, count in steps.items()} if whole > 0 else {}


def _saved_g(folder: Path) -> float | None:
    try:
        plan = RunReport.read(folder).summary["plan"]
    except RunFolderError:
        return None  # the books are whole; only the plan's own records are not
    if plan is None or plan["saving_vs_static"] is None:
        return None
    return float(plan["static_g"] - plan["actual_g"])


def _estimate_ratio(
    folder: Path, tokens: int | None, wall_s: float | None, energy_j: float | None, operational_g: float | None
) -> float | None:
    found = estimated(
        folder,
        {
            "run": {},
            "work": {"tokens": tokens},
            "time": {"wall_s": wall_s},
            "energy": {"energy_j": energy_j},
            "carbon": {"operational_location_g": operational_g},
        },
    )
    figure = None if found is None else found["figures"]["energy_j"]
    return None if figure is None else figure["ratio"]


def clean(value: object) -> str:
    """Return text that UTF-8 can hold: JSON can escape halves of a character."""
    return str(value).encode("utf-8", "replace").decode("utf-8")


def clean_or_none(value: object) -> str | None:
    """Return the same, or None for nothing."""
    return clean(value) if value else None
