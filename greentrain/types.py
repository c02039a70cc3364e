"""Frozen values and small protocols that all rooms share.

Time has two scales. ``t_s`` of a sample is seconds of a monotonic clock; ``t_unix_s`` is seconds since the
epoch (UTC). A session anchors one to the other once, at its start.

Inside the package every quantity is in joules, watts, seconds, grams and g/kWh; drivers and reports convert by the
conversions below and nowhere else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, runtime_checkable

J_PER_KWH: Final = 3_600_000.0
S_PER_HOUR: Final = 3600.0
S_PER_DAY: Final = 86_400
"""Of a UTC day; Unix time knows no leap second (POSIX.1-2024, 4.19)."""
S_PER_YEAR: Final = 365.25 * 24 * S_PER_HOUR
G_PER_KG: Final = 1000.0
G_PER_LB: Final = 453.59237
"""Grams in an international avoirdupois pound, exact (NIST Handbook 44, appendix C)."""


def kwh_from_j(energy_j: float) -> float:
    """Convert joules to kilowatt-hours."""
    return energy_j / J_PER_KWH


def g_per_kwh_from_lb_per_mwh(lb_per_mwh: float) -> float:
    """Convert a carbon intensity from lb/MWh (EPA eGRID, WattTime) to g/kWh."""
    return lb_per_mwh * G_PER_LB / 1000.0


def grams(energy_j: float, g_per_kwh: float) -> float:
    """Return the emissions in grams of ``energy_j`` joules at an intensity of ``g_per_kwh``."""
    return energy_j / J_PER_KWH * g_per_kwh


def iso(t_unix_s: float) -> str:
    """Return a time (s since the epoch) for people: ISO 8601 in UTC, to the minute."""
    return datetime.fromtimestamp(float(t_unix_s), UTC).isoformat(timespec="minutes").replace("+00:00", "Z")


class Provenance(StrEnum):
    """Where a joule comes from."""

    MEASURED = "measured"
    """Read from a hardware sensor."""
    MODELLED = "modelled"
    """Computed from load and a table of constants."""
    MISSING = "missing"
    """Not known. Never booked as 0: the seconds without knowledge are booked instead."""


class DeviceKind(StrEnum):
    """What kind of hardware a device is."""

    GPU = "gpu"
    CPU = "cpu"
    DRAM = "dram"
    FPGA = "fpga"
    NODE = "node"


class Phase(StrEnum):
    """The phases that GreenTrain names itself; any other non-empty string is a user's phase."""

    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    EVAL = "eval"
    CHECKPOINT = "checkpoint"
    GENERATE = "generate"
    REWARD = "reward"
    REFERENCE = "reference"
    PAUSED = "paused"
    """Time in which a plan lets ranks stand still."""
    OTHER = "other"
    """Time inside the session but outside every named phase."""


IDLE_PHASES: Final = frozenset({Phase.EVAL, Phase.CHECKPOINT, Phase.PAUSED})
"""Phases in which nothing is trained: their time is no gear's, and says nothing about the speed of training."""


class Attribution(StrEnum):
    """How the joules of a phase are told from those of its neighbours, on a device whose counter ticks."""

    RESOLVED = "resolved"
    """It is longer than the ticks."""
    REGRESSED = "regressed"
    """It is shorter, but comes again: its power follows from many ticks."""
    BLURRED = "blurred"
    """The ticks do not tell it: it is locked to them, too short, or there were too few."""


class Gear(StrEnum):
    """The precision in which the matrix products of training run."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    """e4m3 forward and e5m2 gradients in the chosen linear layers, BF16 around them."""
    MXFP8 = "mxfp8"
    """e4m3 with a power of two for each 32 elements, in the same layers (OCP Microscaling 1.0)."""
    NVFP4 = "nvfp4"
    """e2m1 with an e4m3 scale for each 16 elements, in the same layers: the riskiest (arXiv 2509.25149)."""

    @property
    def is_low(self) -> bool:
        """Whether products run in 8 or 4 bits, and what is said of FP8's share, noise and cost holds for it."""
        return self in (Gear.FP8, Gear.MXFP8, Gear.NVFP4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One piece of hardware whose energy is booked.

    ``uid`` is unique on the node and stable over processes (NVML UUID, ``rapl:package-0``): two ranks that
    see the same hardware see the same uid, which is what keeps it from being booked twice.
    """

    uid: str
    kind: DeviceKind
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensor:
    """How the energy of one device is obtained, and how well. Fixed while a meter is open."""

    device: Device
    provenance: Provenance
    """MEASURED or MODELLED; MISSING for a device that is known to exist but cannot be read."""
    method: str
    """Method in the words of people: ``NVML energy counter``, ``RAPL package``, ``TDP x load``."""
    period_s: float
    """Reading more often than this gives nothing new (s)."""
    tick_s: float | None = None
    """Refresh interval of a cumulative counter, as probed or documented (s); None: not a ticking counter."""
    tick_edge_s: float | None = None
    """Monotonic time of one tick, where the probe saw it (s)."""
    averaging_s: float = 0.0
    """The power reading is the mean over this long before the read (s); 0 = instantaneous."""
    read_cost_s: float | None = None
    """Cost of one read as probed (s)."""
    uncertainty: float | None = None
    """Relative uncertainty of long totals (0.05 = 5 %), None where nobody states one."""
    seen_share: float | None = None
    """Share of the time that the sensor looks at what the device draws; None where nobody states one."""
    limit_w: float | None = None
    """The most that the device draws over seconds (W); None where it is not known."""
    note: str = ""
    """Remedy or caveat, in one sentence, with its source where there is one."""
    shared: bool = True
    """True: other processes on the node can read the same joules, so the device must be claimed.
    False: the reading is of this process tree alone."""
    reference: bool = False
    """True: it contains what other sensors measure, so it is kept apart and never added to them."""


class PowerSample(NamedTuple):
    """One reading of one device. A tuple, as a dataclass would cost more than the reading itself.

    Either ``energy_j`` (a cumulative counter; only differences mean something) or ``power_w`` is set; with
    neither, the sample says that the reading failed and ``note`` says why.
    """

    device_uid: str
    t_s: float
    """Monotonic time of the reading (s): the middle of the call where the call is slow."""
    energy_j: float | None = None
    power_w: float | None = None
    note: str = ""

    @property
    def missing(self) -> bool:
        """True if the reading failed."""
        return self.energy_j is None and self.power_w is None


class DeviceState(NamedTuple):
    """What a device does beside drawing power, at one moment. None: its driver does not tell."""

    device_uid: str
    t_s: float
    """Monotonic time (s)."""
    sm: float | None = None
    """Share of the driver's last sample period in which a kernel ran, however few of the chip's processors it kept busy
    (0..1): no occupancy."""
    memory: float | None = None
    """Share of it in which the device's memory was read or written (0..1)."""
    temperature_c: float | None = None
    """Of the hottest place that the driver tells (degrees Celsius)."""
    slowed: tuple[str, ...] | None = None
    """What holds its clocks down: of ``SLOWED``."""


SLOWED: Final = ("thermal", "power", "brake")
"""Too hot; at the power limit; an external signal, such as the power supply's."""


class Counter(NamedTuple):
    """A cumulative counter that is cheap enough to be read without its meter in between."""

    device_uid: str
    read_j: Callable[[], float]
    """Returns the joules now; raises where they cannot be read, and the meter then says why."""
    delay_s: float
    """Time from the call to the middle of the read (s)."""


@runtime_checkable
class PowerMeter(Protocol):
    """Reads the energy of one or several devices. One file a driver in ``greentrain.power``.

    A meter is opened by its constructor, which raises MeterError when what the user asked for by name
    cannot be opened. After that it never raises: a reading that fails is a sample that says so. It is read
    from one thread at a time.

    Four more methods are used where a meter has them: ``probe()``, called once from the reading thread, may take
    0.4 s to find out how fast its sensors tick and what a read costs; ``select(uids)`` says which devices are
    still wanted, so that the others need not be read; ``counters()`` returns those that may be read directly,
    by the same thread, between two calls of ``read``; ``states()`` returns a ``DeviceState`` of each device whose
    driver tells more than its power, about once a second.
    """

    @property
    def sensors(self) -> Sequence[Sensor]:
        """The devices and how each is read. Constant after construction but for probed figures."""

    def read(self) -> Sequence[PowerSample]:
        """Read every device once, in the order of ``sensors``."""

    def close(self) -> None:
        """Release the driver. Idempotent."""


class CarbonKind(StrEnum):
    """How a carbon-intensity value came to be."""

    ACTUAL = "actual"
    ESTIMATED = "estimated"
    FORECAST = "forecast"


class CarbonBasis(StrEnum):
    """Which plants a carbon-intensity value speaks of."""

    AVERAGE = "average"
    MARGINAL = "marginal"


@dataclass(frozen=True, slots=True, kw_only=True)
class CarbonPoint:
    """The carbon intensity of the grid over one interval."""

    t0_unix_s: float
    t1_unix_s: float
    g_per_kwh: float | None
    """Time average over the interval (gCO2e/kWh); None where it is not known. Never 0 for unknown."""
    zone: str
    source: str
    """Who says so, with year: printed beside every gram."""
    kind: CarbonKind = CarbonKind.ESTIMATED
    basis: CarbonBasis = CarbonBasis.AVERAGE
    accounting: str = "unspecified"
    """``production`` or ``consumption``, ``direct`` or ``life cycle``, as the source states it."""
    relative_error: float | None = None
    """Standard error of the value, as a share of it, that its source states; None where it does not."""
    issued_unix_s: float | None = None
    """When the source said so (s since the epoch, UTC); None where it does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricePoint:
    """What a kWh costs over one interval."""

    t0_unix_s: float
    t1_unix_s: float
    per_kwh: float | None
    """Time average over the interval (currency/kWh), below 0 where one is paid for using it; None where it is not
    known. Never 0 for unknown."""
    currency: str
    source: str
    kind: CarbonKind = CarbonKind.ACTUAL


@runtime_checkable
class PriceSignal(Protocol):
    """The price of electricity as a function of time (``greentrain.carbon.price``)."""

    def mean(self, t0_unix_s: float, t1_unix_s: float) -> PricePoint:
        """Return the time average over an interval, in the past or ahead. Never blocks, never raises.

        Args:
            t0_unix_s: Start of the interval (s since the epoch, UTC).
            t1_unix_s: End of the interval; equal to the start for the value at an instant.
        """


class PueSource(StrEnum):
    """Where the PUE of an interval comes from."""

    CONSTANT = "constant"
    """``carbon.pue`` of the configuration, or its default."""
    TRACE = "trace"
    """The facility's own records."""
    PROMETHEUS = "prometheus"
    """The facility's Prometheus server."""
    FALLBACK = "fallback"
    """``carbon.pue`` where records or server do not tell, for at least a part of the interval."""


@runtime_checkable
class CarbonSignal(Protocol):
    """The carbon intensity of one zone as a function of time. One file a provider in ``greentrain.carbon``.

    Two more methods are used where a signal has them: ``forecast(t0_unix_s, t1_unix_s)`` returns the points that its
    source has forecast and that reach into the interval, oldest first, without waiting (it may be empty, or end early);
    ``close()`` ends the thread of one that asks a network.
    """

    def mean(self, t0_unix_s: float, t1_unix_s: float) -> CarbonPoint:
        """Return the time average over an interval, not its last value. Never blocks, never raises.

        Args:
            t0_unix_s: Start of the interval (s since the epoch, UTC).
            t1_unix_s: End of the interval; equal to the start for the value at an instant.
        """

    def describe(self) -> Mapping[str, str]:
        """Return zone, source, kind, basis, accounting and terms for the report."""


FORMAT_VERSION: Final = 1
"""Version of the run folder's files; raised when a reader of the old one would go wrong."""


def says_anything(provenance: str, energy_j: float, missing_s: float, interval_s: float) -> bool:
    """Return True if an energy says anything about an interval: 0 J of which nothing is known does not.

    Args:
        provenance: ``measured``, ``modelled`` or ``missing``.
        energy_j: Known energy (J).
        missing_s: Seconds of the interval whose energy is not known.
        interval_s: Length of the interval (s).
    """
    return provenance != "missing" and (energy_j != 0.0 or missing_s < 0.999 * interval_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEnergy:
    """The energy of one device over one ledger entry."""

    energy_j: float
    """Known energy (J), measured or modelled as ``provenance`` says."""
    provenance: Provenance
    missing_s: float = 0.0
    """Seconds of the interval whose energy is not known. Negative where a counter, read again after a gap
    that was already booked as missing, delivers the gap's energy late: the sum over the run is right."""
    phases: Mapping[str, float]
    """Exclusive energy by phase (J): each instant belongs to the phase entered last. Sums to energy_j. Where phases of
    earlier entries are known better by now, what these were booked too much or too little is in it."""
    states: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By phase, what the driver has told beside power, as sums over seconds (``greentrain.ledger.journal.STATE_KEYS``);
    empty where it tells nothing."""

    def is_known(self, interval_s: float) -> bool:
        """Return True if ``energy_j`` says anything about an interval: 0 J of which nothing is known does not."""
        return says_anything(self.provenance, self.energy_j, self.missing_s, interval_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWindow:
    """What one device has used between two moments."""

    energy_j: float
    """Known energy (J)."""
    provenance: Provenance
    low_j: float
    high_j: float
    """The least and the most that it can have been (J), as the readings lie and by what the sensor's maker, or who made
    the model, states; as the readings lie alone where nobody states anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowEnergy:
    """What was used between two moments, by all devices that this process books."""

    seconds: float
    devices: Mapping[str, DeviceWindow]
    """By device uid."""
    missing_s: float = 0.0
    """Device-seconds whose energy is not known."""

    @property
    def by_device_j(self) -> dict[str, float] | None:
        """Energy by device uid (J); None where it is not known of one for a part of the time."""
        return None if self.missing_s else {uid: device.energy_j for uid, device in self.devices.items()}

    @property
    def energy_j(self) -> float | None:
        """Energy of all devices (J); None where it is not known of one, for a part of the time, or there is none."""
        known_j = self.by_device_j
        return sum(known_j.values()) if known_j else None

    @property
    def interval_j(self) -> tuple[float, float] | None:
        """The least and the most that it can have been (J); None where it is not known."""
        if self.energy_j is None:
            return None
        return sum(d.low_j for d in self.devices.values()), sum(d.high_j for d in self.devices.values())

    @property
    def provenance(self) -> str:
        """``measured`` or ``modelled`` where all devices are, else ``mixed``; ``missing`` where nothing is known."""
        found = {str(d.provenance) for d in self.devices.values()} if self.energy_j is not None else {"missing"}
        return found.pop() if len(found) == 1 else "mixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class GearUse:
    """What was used and done in one precision gear. ``a + b`` adds two parts."""

    energy_j: float = 0.0
    """Known energy of all devices (J)."""
    modelled_j: float = 0.0
    """The part of it that is modelled (J)."""
    missing_s: float = 0.0
    """Device-seconds whose energy is not known. Negative as in :class:`DeviceEnergy`, where a counter delivers the
    energy of a gap late: it is then this gear's, whichever gear the gap was in."""
    device_s: float = 0.0
    """Device-seconds in this gear, known or not."""
    shared_s: float = 0.0
    """Device-seconds that lie in one reading with more other time, or with which less other time does: their joules
    are told from others' by length alone."""
    seconds: float = 0.0
    """Wall time in this gear (s); summed over ranks it is rank-seconds."""
    steps: int = 0
    tokens: int = 0
    samples: int = 0

    def __add__(self, other: "GearUse") -> "GearUse":
        return GearUse(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    @property
    def is_known(self) -> bool:
        """True if ``energy_j`` says anything: 0 J of which nothing is known does not."""
        return says_anything("", self.energy_j, self.missing_s, self.device_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """What one rank booked for one interval."""

    t0_unix_s: float
    t1_unix_s: float
    devices: Mapping[str, DeviceEnergy]
    """Energy by device uid."""
    phase_s: Mapping[str, float]
    """Exclusive seconds by phase; sums to the interval."""
    phase_inclusive_j: Mapping[str, float]
    """Energy of all devices while the phase was open, nested phases included (J)."""
    carbon: CarbonPoint
    pue: float
    """Facility energy / IT energy, as used."""
    operational_g: float | None
    """energy_j x PUE x intensity (g); None where the intensity is not known."""
    embodied_g: float | None
    """Mid estimate of the devices' embodied share (g); None where no device has a value."""
    steps: int = 0
    tokens: int = 0
    samples: int = 0
    step_groups: Sequence[tuple[int, float, float, int]] = ()
    """At most 64 runs of consecutive steps: (steps, t_unix_s of the last one's end, energy_j, tokens)."""
    gears: Mapping[str, GearUse] = field(default_factory=dict)
    """Use by gear, from the first mark of a gear on, without ``IDLE_PHASES``; empty in runs without gears."""
    pue_source: PueSource = PueSource.CONSTANT
    references: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By uid of a sensor that contains others: ``j`` what it told since the entry before (J), and ``s`` of how long
    (s); in no sum."""
    price: PricePoint | None = None
    """None: the run has no price of electricity."""

    @property
    def energy_j(self) -> float:
        """Known energy of all devices (J)."""
        return sum(d.energy_j for d in self.devices.values())

    @property
    def cost(self) -> float | None:
        """energy_j x PUE x price (currency of the price); None where the price is not known."""
        if self.price is None or self.price.per_kwh is None:
            return None
        return kwh_from_j(self.energy_j * self.pue) * self.price.per_kwh

    @property
    def it_g(self) -> float | None:
        """Operational grams without PUE; None where the intensity is not known. Exact, also of entries added up."""
        return None if self.carbon.g_per_kwh is None else grams(self.energy_j, self.carbon.g_per_kwh)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Where this process stands in the job."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a policy may know when it decides."""

    step: int
    """Optimizer steps done in this run."""
    gear: Gear
    """Gear of the last step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is to be done from the next optimizer step on."""

    gear: Gear
    reason: str
    """Why, in one sentence for the log."""


@runtime_checkable
class Policy(Protocol):
    """Decides from what it sees; pure, without torch and without a clock of its own."""

    def decide(self, seen: Observation) -> Decision:
        """Return the decision for the step after ``seen.step`` steps. The same observation gives the same decision."""
