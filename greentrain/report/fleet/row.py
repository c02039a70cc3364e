"""One run among many: what a table of runs shows of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from greentrain.report.summary import ALIVE_S


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
