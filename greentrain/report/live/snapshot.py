"""The figures of one rank now, as exporters show them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from greentrain.carbon.replayed import GridTime
from greentrain.ledger.totals import DeviceSums, StageUse, stage_uses
from greentrain.report.live.rank_state import RankState, SavedGrams
from greentrain.report.summary import state_figures
from greentrain.types import J_PER_KWH, SLOWED

OFF: Final = "off"
TICKS: Final = (
    ("tick", "tick_s", "Time from one tick of the device's counter to the next"),
    ("seen", "sees_s", "What of it the sensor sees"),
    ("late", "late_s", "How long after its end that is told"),
)
"""Of a sensor's ticks: what a metric is called, its key in ``DeviceNow.told`` (s), and what it says."""


class PowerLimits(Protocol):
    """The power limits of a rank's GPUs."""

    @property
    def uuids(self) -> Sequence[str]:
        """The GPUs."""

    @property
    def fraction(self) -> float:
        """What is set, as a share of the limit found; 1 where nothing is."""

    @property
    def limit_w(self) -> float:
        """The limits found, of all of them together (W)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNow:
    """One device, or the part of its energy that has one provenance: a resumed run may have several."""

    uid: str
    name: str
    kind: str
    provenance: str
    """``measured``, ``modelled``, ``missing``, or ``mixed`` for what a checkpoint had summed over several."""
    energy_j: float | None = None
    """Of the run so far (J); None where nothing is known."""
    power_w: float | None = None
    """Now, or the mean of the last booked interval (W); None where it is not known."""
    missing_s: float = 0.0
    """Time of the run without knowledge (s)."""
    limit_share: float | None = None
    """Power limit as a share of the one found; None where the run sets none."""
    limit_w: float | None = None
    """The same (W); None where the run sets none, or sets it on several GPUs at once."""
    states: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By phase of the last booked interval, and of all of it under "", what its driver told beside power, as
    ``state_figures``."""
    slowed_s: Mapping[str, float] = field(default_factory=dict)
    """By what held its clocks down, for how long in this run (s)."""
    told: Mapping[str, Any] = field(default_factory=dict)
    """What its counter's ticks tell of phases, as ``BelowTheTick.told``; empty where they tell nothing yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanNow:
    """What a plan has decided. Times are the machine's (s since the epoch, UTC)."""

    action: str
    """Gear, limit and width, or ``off``."""
    paused: bool
    reason: str
    done: bool
    """All tokens are trained."""
    next_unix_s: float
    """When it decides again."""
    resume_unix_s: float | None = None
    """When a pause would end, if the forecast came true; None: there is none, or nobody knows."""
    deadline_unix_s: float | None = None
    tokens: float | None = None
    """Of the whole job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The figures of one rank: sums as of the last booking, powers and limits of now. None: not known."""

    run_id: str
    name: str
    rank: int
    world_size: int
    host: str
    t_unix_s: float
    """When it was taken (s since the epoch, UTC)."""
    booked_unix_s: float | None = None
    """Until when the sums count (s since the epoch, UTC)."""
    duration_s: float = 0.0
    """Time booked (s)."""
    devices: Sequence[DeviceNow] = ()
    operational_g: float | None = None
    """Location-based, PUE included."""
    market_g: float | None = None
    """Market-based; None without ``carbon.market_g_per_kwh``."""
    embodied_g: float | None = None
    """Mid estimate."""
    unpriced_j: float = 0.0
    """Energy whose intensity was not known (J): in no gram figure."""
    cost: Mapping[str, float] = field(default_factory=dict)
    """Money for electricity by currency."""
    per_kwh: float | None = None
    """Price last booked (currency/kWh)."""
    steps: int = 0
    tokens: int = 0
    samples: int = 0
    stages: Sequence[StageUse] = ()
    """By phase and kind of device, of what is in the rank's journal."""
    g_per_kwh: float | None = None
    """Intensity of the last booked interval."""
    zone: str | None = None
    kind: str | None = None
    """``actual``, ``estimated`` or ``forecast``."""
    basis: str | None = None
    """``average`` or ``marginal``."""
    pue: float | None = None
    pue_source: str | None = None
    gear: str | None = None
    gears: Sequence[str] = ()
    """All that the run may use."""
    saved: SavedGrams | None = None
    plan: PlanNow | None = None
    """On rank 0, where there is one."""
    budget_g: float | None = None
    """``policy.budget_g``, of the whole job."""

    @property
    def energy_j(self) -> dict[str, float]:
        """Energy by provenance (J)."""
        out: dict[str, float] = {}
        for device in self.devices:
            if device.energy_j is not None:
                out[device.provenance] = out.get(device.provenance, 0.0) + device.energy_j
        return out

    @property
    def by_uid(self) -> dict[str, DeviceNow]:
        """One record a device: with its provenance of now, its missing time and its limit."""
        return {device.uid: device for device in reversed(self.devices)}

    @property
    def utilisations(self) -> Iterator[tuple[DeviceNow, str, str, float | None]]:
        """Each device and phase whose driver tells it: ``sm`` or ``memory``, and its share of the time."""
        for device in self.by_uid.values():
            for phase, row in device.states.items():
                for of in ("sm", "memory") if phase else ():
                    yield device, phase, of, row[f"{of}_utilisation"]

    @property
    def temperatures(self) -> Iterator[tuple[DeviceNow, float | None]]:
        """Each device and its temperature in the last booked interval (degrees Celsius)."""
        for device in self.by_uid.values():
            yield device, device.states.get("", {}).get("temperature_c")

    @property
    def slowed(self) -> Iterator[tuple[DeviceNow, str, float]]:
        """Each device, what held its clocks down, and for how long (s)."""
        for device in self.by_uid.values():
            for why, seconds in device.slowed_s.items():
                yield device, why, seconds

    @property
    def phase_errors(self) -> Iterator[tuple[DeviceNow, str, str, float | None]]:
        """Each device and phase whose counter tells it: attribution, and standard error of its energy over it."""
        for device in self.by_uid.values():
            for phase, row in device.told.get("phases", {}).items():
                yield device, phase, row["how"], row["error"]

    @property
    def missing_s(self) -> float:
        """Device-seconds without knowledge (s)."""
        return sum(device.missing_s for device in self.devices)


class MissingSeconds:
    """Time without knowledge as a counter: a late reading takes some back, which a counter must not show."""

    def __init__(self) -> None:
        self.by_uid: dict[str, float] = {}
        """By device uid (s)."""

    def update(self, snapshot: Snapshot) -> None:
        """Take in the figures of now."""
        for uid, device in snapshot.by_uid.items():
            self.by_uid[uid] = max(device.missing_s, self.by_uid.get(uid, 0.0))


def snapshot_of(
    rank: RankState,
    run: Mapping[str, Any],
    *,
    t_unix_s: float,
    power_w: Mapping[str, float] | None = None,
    caps: PowerLimits | None = None,
    saved: SavedGrams | None = None,
) -> Snapshot:
    """Return the figures of one rank.

    Args:
        rank: The state of the rank by its journal; it has begun.
        run: The content of run.json; empty where it is not there.
        t_unix_s: Now (s since the epoch, UTC).
        power_w: Power now by device uid (W); None: that of the last booked interval.
        caps: The power limits of the rank, where it sets some.
        saved: The grams that its plan has saved.
    """
    assert rank.opened is not None
    config: Mapping[str, Any] = run.get("config") or {}
    market = (config.get("carbon") or {}).get("market_g_per_kwh")
    carbon, totals = rank.carbon or {}, rank.totals
    return Snapshot(
        run_id=str(rank.opened["run_id"]),
        name=str(run.get("name") or ""),
        rank=int(rank.opened["rank"]),
        world_size=int(rank.opened["world_size"]),
        host=str(rank.opened["host"]),
        t_unix_s=t_unix_s,
        booked_unix_s=rank.booked_unix_s,
        duration_s=totals.duration_s,
        devices=list(_devices(rank, rank.power_w if power_w is None else power_w, caps)),
        operational_g=rank.operational_g,
        market_g=None if market is None or not rank.energy_j else totals.facility_j / J_PER_KWH * market,
        embodied_g=rank.embodied_g,
        unpriced_j=totals.unpriced_j,
        cost=totals.cost,
        per_kwh=rank.per_kwh,
        steps=totals.steps,
        tokens=totals.tokens,
        samples=totals.samples,
        stages=stage_uses([(rank.books.sums, rank.books.sensors)]),
        g_per_kwh=carbon.get("g_per_kwh"),
        zone=carbon.get("zone"),
        kind=carbon.get("kind"),
        basis=carbon.get("basis"),
        pue=None if rank.pue is None else rank.pue[0],
        pue_source=None if rank.pue is None else rank.pue[1],
        gear=rank.gear,
        gears=tuple((config.get("precision") or {}).get("gears") or ()),
        saved=saved,
        plan=_plan(rank, run),
        budget_g=(config.get("policy") or {}).get("budget_g"),
    )


def _devices(rank: RankState, power_w: Mapping[str, float], caps: PowerLimits | None) -> list[DeviceNow]:
    """Return the devices, those of earlier parts of the run after those of now."""
    energy_j, missing_s, sensors = rank.energy_j, rank.totals.missing_s, rank.books.sensors
    keys = [(uid, str(sensor["provenance"])) for uid, sensor in sensors.items()]
    keys += sorted(set(energy_j) - set(keys))
    keys += [(uid, "missing") for uid in sorted(set(missing_s) - {uid for uid, _ in keys})]
    out, told = [], set()
    for uid, provenance in keys:
        sensor, looked = sensors.get(uid, {}), rank.states.get(uid, {})
        whole = rank.books.sums.devices.get(uid, DeviceSums()).states.values()
        share = limit_w = None
        first, now = uid not in told, provenance == str(sensor.get("provenance"))
        told.add(uid)
        if first and caps is not None and uid in caps.uuids:
            share = caps.fraction
            limit_w = share * caps.limit_w if len(caps.uuids) == 1 else None
        out.append(
            DeviceNow(
                uid=uid,
                name=str(sensor.get("name", "")),
                kind=str(sensor.get("kind", "unknown")),
                provenance=provenance,
                energy_j=energy_j.get((uid, provenance)),
                power_w=power_w.get(uid) if now and provenance != "missing" else None,
                missing_s=missing_s.get(uid, 0.0) if first else 0.0,
                limit_share=share,
                limit_w=limit_w,
                states={phase: state_figures([sums]) for phase, sums in looked.items()}
                | ({"": state_figures(looked.values())} if looked else {}),
                slowed_s={
                    why: sum(sums.get(f"{why}_s", 0.0) for sums in whole)
                    for why in SLOWED
                    if any(sums.get("clocks_s", 0.0) > 0 for sums in whole)
                },
                told=rank.books.told.get(uid, {}),
            )
        )
    return out


def _plan(rank: RankState, run: Mapping[str, Any]) -> PlanNow | None:
    word = next((event for event in reversed(rank.decisions) if event["name"] == "decision"), None)
    if word is None:
        return None
    facts: Mapping[str, Any] = run.get("plan") or {}
    time = GridTime.from_dict(facts["grid"]) if facts else GridTime(unix_s=word["t"], grid_s=word["grid_s"])
    return PlanNow(
        action=str(word["text"]).partition(":")[0],
        paused=word["action"] is None and not word["done"],
        reason=str(word["reason"]),
        done=bool(word["done"]),
        next_unix_s=time.real(word["next_s"]),
        resume_unix_s=None if word.get("resume_s") is None else time.real(word["resume_s"]),
        deadline_unix_s=time.real(facts["deadline_s"]) if facts else None,
        tokens=facts.get("tokens"),
    )
