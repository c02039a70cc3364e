"""The one configuration schema of callbacks, command line and simulator.

A configuration is a YAML file, a mapping or these frozen dataclasses. The annotation of a field holds its type and its
bounds or words, the text below it says what it means: the checks here, the JSON Schema and the reference page are all
made of these. Only rules between several keys are code, in ``__post_init__``.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from greentrain.errors import ConfigError
from greentrain.types import Gear
from greentrain.utils.http_access import is_loopback
from greentrain.utils.validation import Bound, Choice, NotEmpty, check_fields, folder_name, load, moment

OBJECTIVES = ("energy", "carbon", "cost")
CapFraction = Annotated[float, Bound(0.05, 1.0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCapConfig:
    """Power limits that a plan, or one choice after profiling, may set on this process's own GPUs."""

    fractions: Annotated[tuple[CapFraction, ...], NotEmpty("name at least 1.0")] = (1.0, 0.8, 0.6)
    """Limits to measure and choose from, as fractions of the limit found; those below the card's range are left out."""
    objective: Annotated[str, Choice(OBJECTIVES)] = "energy"
    """Where no policy plans, what the one limit is chosen for: least ``energy``, least ``carbon`` (embodied carbon of
    the time included), least ``cost`` (eta E + (1 - eta) P t), each within ``max_slowdown`` where that is set."""
    eta: Annotated[float, Bound(0.0, 1.0)] = 0.5
    """Weight of energy in ``cost``; the rest is that of time at the limit found (Zeus, NSDI 2023, Eq. 2)."""
    max_slowdown: Annotated[float, Bound(0.0, 0.95)] | None = None
    """Largest share of speed that a limit may cost; None: any that pays."""
    devices: tuple[str, ...] = ()
    """UUIDs of the GPUs to limit; empty: those this process trains on. They must be visible to it."""
    dwell_s: Annotated[float, Bound(0.0, 3600.0)] = 10.0
    """Shortest time between two changes (s)."""

    def __post_init__(self) -> None:
        check_fields(self, "actuators.power_cap")
        if 1.0 not in self.fractions or len(set(self.fractions)) != len(self.fractions):
            raise ConfigError(
                f"actuators.power_cap.fractions is {list(self.fractions)}; it must hold 1.0, which the others are"
                " compared with, and each fraction once"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClocksConfig:
    """Lower clocks while the GPU waits for data, or for its memory (Eco-Orchestrator: 15-30 % below the maximum)."""

    stalls: Annotated[str, Choice(("data", "memory"))] = "data"
    """What a stall is: ``data``, the phase of that name; ``memory``, Eco-Orchestrator's own rule, each phase that is
    bound by the GPU's memory, as far as the driver tells utilisation."""
    memory_share: Annotated[float, Bound(0.15, 1.0)] = 0.6
    """Share of a phase's time in which memory is read or written (NVML) from which on it is bound by memory. An
    assumption, as no figure is published; what it costs in speed is measured, and bounded by ``max_slowdown``."""
    sm_share: Annotated[float, Bound(0.0, 1.0)] = 1.0
    """Largest share of its time in which a kernel runs (NVML). A kernel that waits for memory counts as one that runs,
    so 1, which asks for nothing, is the default."""
    stall_share: Annotated[float, Bound(0.01, 1.0)] = 0.3
    """Share of the time in stalls from which on clocks go down (Eco-Orchestrator: 30 %)."""
    calm_share: Annotated[float, Bound(0.0, 1.0)] = 0.1
    """Share below which they go up again."""
    down: Annotated[float, Bound(0.15, 0.5)] = 0.3
    """Lowest clock, as a share below the maximum."""
    max_slowdown: Annotated[float, Bound(0.0, 0.5)] = 0.035
    """Largest measured loss of steps/s, hence of tokens/s of steps alike, that is kept."""
    window_s: Annotated[float, Bound(1.0, 3600.0)] = 10.0
    """Time over which shares and speeds are taken (s)."""

    def __post_init__(self) -> None:
        check_fields(self, "actuators.clocks")
        if self.calm_share >= self.stall_share:
            raise ConfigError(
                f"actuators.clocks.calm_share is {self.calm_share:g}; it must be below stall_share"
                f" ({self.stall_share:g}), or clocks would go up and down in turns"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WidthConfig:
    """How many ranks a plan may use; ``greentrain launch`` or Ray changes them."""

    min: Annotated[int, Bound(1, 1e6)] = 1
    """Fewest ranks."""
    max: Annotated[int, Bound(1, 1e6)] = 1
    """Most ranks."""
    global_batch: Annotated[int, Bound(1, 1e9)] | None = None
    """Samples of one optimizer step over all ranks: widths that do not divide it are left out; None: all are used."""

    def __post_init__(self) -> None:
        check_fields(self, "actuators.width")
        if self.min > self.max:
            raise ConfigError(f"actuators.width.min is {self.min}, above max, which is {self.max}")
        if not self.widths:
            raise ConfigError(
                f"actuators.width.global_batch is {self.global_batch}, and no width from {self.min} to {self.max}"
                " divides it"
            )

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths that may be used: all up to eight, then doubling, with both ends."""
        every = (n for n in range(self.min, min(self.max, 1 << 16) + 1) if n <= 8 or n == self.max or n & (n - 1) == 0)
        return tuple(n for n in every if self.global_batch is None or self.global_batch % n == 0)


_PROFILES = (
    *("max_p", "max_q", "compute", "memory_bound", "network", "balanced", "llm_inference", "llm_training", "rbm"),
    *("dcpcie", "hmma_sparse", "hmma_dense", "sync_balanced", "hpc", "mig"),
)
POWER_PROFILES = {name: bit for bit, name in enumerate(_PROFILES)}
"""Bits of nvmlPowerProfileType_t (nvml.h, as nvidia-ml-py 13.615 has it)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandConfig:
    """Obey events that allow less power or ask for a gear: ``greentrain event power``, or files in its ``events``."""

    dir: str | None = None
    """Folder whose files are events too, for all jobs that watch it; None: the run's own alone."""

    def __post_init__(self) -> None:
        check_fields(self, "actuators.demand")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActuatorsConfig:
    """What a plan may do to the run, beside its gears."""

    pause: bool = True
    """Hold the process still between two steps, everything in memory."""
    free_cache: bool = False
    """Give torch's reserved GPU memory back to the driver during a pause."""
    checkpoint: bool = True
    """Ask the framework for a checkpoint before a pause, so that a kill costs nothing."""
    defer: bool = True
    """Leave the process for a longer pause and come back by its end, where a launcher brings it back."""
    min_away_s: Annotated[float, Bound(0.0, 14 * 86_400.0)] = 900.0
    """Shortest pause that is worth leaving (s of grid time); shorter ones are held in memory."""
    power_cap: PowerCapConfig | None = None
    """None: power limits are left alone."""
    clocks: ClocksConfig | None = None
    """None: clocks are left alone."""
    width: WidthConfig | None = None
    """None: as many ranks as there are."""
    power_profiles: tuple[Annotated[str, Choice(tuple(POWER_PROFILES))], ...] | None = None
    """Workload power profiles (Blackwell) to ask the run's GPUs for, such as ``[max_q, llm_training]``; None: they are
    left alone."""
    memory_mhz: Annotated[int, Bound(1, 100_000)] | None = None
    """Memory clock to lock the run's GPUs at (MHz), one that they support; None: it is left alone."""
    daemon: Annotated[str, Choice(("auto", "off"))] = "auto"
    """``auto``: ``greentrain daemon`` sets what this process may not, where it runs; ``off``: it is not asked."""
    demand: DemandConfig | None = None
    """None: events are not looked for. An empty section ``{}`` takes the defaults."""

    def __post_init__(self) -> None:
        check_fields(self, "actuators")


DEFAULT_PORT = 9464
"""What OpenTelemetry's specification gives a Prometheus exporter in a process (OTEL_EXPORTER_PROMETHEUS_PORT,
https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/, read 2026-11-22)."""
HIGHEST_PORT = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusConfig:
    """A page that a Prometheus server scrapes, or a file for node_exporter."""

    port: Annotated[int, Bound(0, HIGHEST_PORT)] = DEFAULT_PORT
    """TCP port of local rank 0; each further rank of a node has the next one. 0: any that is free."""
    host: Annotated[str, NotEmpty("name an address, such as 127.0.0.1 or 0.0.0.0")] = "127.0.0.1"
    """Address to listen at; another than this machine's own needs ``token_file``."""
    token_file: str | None = None
    """Holds the token that a scraper must send as ``Authorization: Bearer``; for its owner alone to read."""
    textfile: str | None = None
    """Folder of node_exporter's textfile collector: one file a rank is written there, and no port is opened."""

    def __post_init__(self) -> None:
        check_fields(self, "export.prometheus")
        if self.textfile is None and self.token_file is None and not is_loopback(self.host):
            raise ConfigError(
                f"export.prometheus.host is {self.host!r}, which other machines can reach, and"
                " export.prometheus.token_file is not set: name a file with a token, or listen at 127.0.0.1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OtelConfig:
    """Metrics through the OpenTelemetry SDK."""

    endpoint: str | None = None
    """URL of a collector's OTLP/HTTP receiver, such as http://127.0.0.1:4318; None: as the variables
    OTEL_EXPORTER_OTLP_* say, or to http://localhost:4318. A meter provider that the program has set goes first."""
    interval_s: Annotated[float, Bound(1.0, 3600.0)] = 10.0
    """Time between two exports (s)."""

    def __post_init__(self) -> None:
        check_fields(self, "export.otel")
        if self.endpoint is not None:
            try:
                scheme, host, *_ = urlsplit(self.endpoint)
            except ValueError:  # such as a [ without a ]
                scheme = host = ""
            if "@" in (host or self.endpoint):
                raise ConfigError(
                    "export.otel.endpoint holds a password, which run.json would show: pass it in"
                    " OTEL_EXPORTER_OTLP_HEADERS"
                )
            if scheme not in ("http", "https") or not host:
                raise ConfigError(
                    f"export.otel.endpoint is {self.endpoint!r}; write a URL, such as http://127.0.0.1:4318"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportConfig:
    """Who is shown the figures of a running job; nobody by default."""

    prometheus: PrometheusConfig | None = None
    """None: nothing is shown to Prometheus. An empty section ``{}`` takes the defaults."""
    otel: OtelConfig | None = None
    """None: nothing is sent by OpenTelemetry."""


OTHER_GPUS = ("amd", "intel", "apple", "jetson")
METERS = ("nvml", *OTHER_GPUS, "rapl", "cpu_model", "prometheus", "redfish", "ipmi", "replay", "null")
NODE_METERS = ("redfish", "ipmi")
"""Those of a whole node, which contains what the others measure."""
LIVE_SIGNALS = ("electricity_maps", "watttime", "gb")
"""Signals that ask a network."""
SIGNALS = ("constant", "typical", "trace", *LIVE_SIGNALS)
CPU_SCOPES = ("process_tree", "machine")
WORLD = "world"
GEARS = tuple(gear.value for gear in Gear)
GearName = Annotated[str, Choice(GEARS)]
MeterNames = Annotated[
    tuple[Annotated[str, Choice(METERS)], ...], NotEmpty("name a meter, or use ['null'] to measure nothing")
]
BACKENDS = ("auto", "scaled_mm", "transformer_engine", "torchao")
SCALINGS = ("tensorwise", "rowwise", "blockwise")
GAMMAS = ("measured", "paper")
DECAYS = ("keep", "scale", "paper")
SCHEDULERS = ("threshold", "lowest_window", "mpc", "carbongear", "carbongear-printed", "carl", "spot")
"""Policies that plan against the grid and a deadline."""
POLICIES = ("static", "scripted", *SCHEDULERS)
SWITCHING = ("auto", "myopic", "dp")
AIMS = ("carbon", "cost")
"""What a plan can minimise."""
BUDGET_ACTIONS = ("warn", "cheaper", "stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Where a run is written."""

    dir: str = "runs"
    """Parent of the run folders; created when missing."""
    name: Annotated[str, folder_name] = "train"
    """Human name; part of the run id."""
    id: Annotated[str, folder_name] | None = None
    """Fixed run id, to continue that folder; None makes a new one."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Free labels, copied to run.json (project, user, task)."""
    book_s: Annotated[float, Bound(0.1, 10.0)] = 10.0
    """Longest ledger interval (s), at most 10 so that a kill loses no more."""
    live: bool = True
    """Show a line once a second when the output is a terminal."""
    report: bool = True
    """Write report.html and its companions when the run ends."""
    estimate: str | None = None
    """File of what ``greentrain estimate --json`` printed: copied into the run folder, so that the report shows it
    beside what was measured."""

    def __post_init__(self) -> None:
        check_fields(self, "run")


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerConfig:
    """Which meters are read, and how often."""

    meters: Annotated[str, Choice(("auto", *METERS))] | MeterNames = "auto"
    """``auto`` (every sensor that can be read, models for the rest) or a list of METERS; of GPUs, the first vendor's
    whose driver answers."""
    gpus: Annotated[tuple[str, ...], NotEmpty("name a GPU, or leave the key out")] | None = None
    """GPUs to book, each as ``CUDA_VISIBLE_DEVICES`` names it: an index of the node or a UUID. ``[all]``: all that the
    process sees; ``[used]``: those alone that it is known to compute on, by torch or the driver. None: the same, and
    all that it sees as long as that is not known."""
    split: Annotated[str, Choice(("auto", "always", "off"))] = "auto"
    """Of a GPU that others compute on too, by MPS or in turns, this job's part is booked, modelled: ``auto``, where
    others are there when the run begins; ``always``; ``off``: all of it. Of MIG devices it is always the own part."""
    device_clock: Annotated[str, Choice(("auto", "off"))] = "auto"
    """``auto``: a device that works behind the host tells by events when it gets to a phase, and its joules are cut by
    that; ``off``: they are cut by the host's times, and nothing is recorded on the device."""
    sample_s: Annotated[float, Bound(0.005, 10.0)] = 0.1
    """Sampling period of hardware sensors (s)."""
    cpu_scope: Annotated[str, Choice(CPU_SCOPES)] = "process_tree"
    """``process_tree``: a modelled CPU is charged with this job's processes; ``machine``: with all load."""
    cpu_tdp_w: Annotated[float, Bound(0.1, 100_000.0)] | None = None
    """Thermal design power of all CPU packages together (W), to override the table."""
    rapl_root: str = "/sys/class/powercap"
    """Root of the powercap tree."""
    prometheus_url: str | None = None
    """URL of a Prometheus server that scrapes Kepler, for the meter ``prometheus``."""
    prometheus_query: str | None = None
    """PromQL whose result is cumulative joules, one series a device; None asks for Kepler's node counters,
    ``kepler-pod`` for what Kepler gives of them to this pod (of POD_NAME and POD_NAMESPACE, else of the host name)."""
    redfish_url: str | None = None
    """URL of the node's management controller, for the meter ``redfish``; its login is in the variables
    GREENTRAIN_BMC_USER and GREENTRAIN_BMC_PASSWORD. The meter ``ipmi`` runs ipmitool and needs no key."""
    redfish_chassis: str | None = None
    """Id of the chassis to ask; None: the only one that tells its power."""
    replay_csv: str | None = None
    """Recording for the meter ``replay``."""

    def __post_init__(self) -> None:
        check_fields(self, "power")
        names = (self.meters,) if isinstance(self.meters, str) else self.meters
        for name, key in (("prometheus", "prometheus_url"), ("redfish", "redfish_url"), ("replay", "replay_csv")):
            if name in names and getattr(self, key) is None:
                raise ConfigError(f"power.meters names {name!r}, so power.{key} must be set")
        if set(NODE_METERS) <= set(names):
            raise ConfigError("power.meters names 'redfish' and 'ipmi', which both measure the whole node: name one")
        if self.redfish_url is not None and "@" in self.redfish_url:
            raise ConfigError(
                "power.redfish_url holds a login, which run.json would show: pass it in GREENTRAIN_BMC_USER and"
                " GREENTRAIN_BMC_PASSWORD"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CarbonConfig:
    """How joules become grams."""

    signal: Annotated[str, Choice(SIGNALS)] = "constant"
    """Who says what the grid emits: a ``constant`` by place, a ``typical`` month and hour, a recorded ``trace``, or one
    that is asked over the network."""
    zone: str = WORLD
    """ISO country code, region (``US-CA``, ``CA-QC``), cloud region (``gcp:europe-west1``) or grid zone
    (``US-CAL-CISO``); ``world`` is the stated world average."""
    g_per_kwh: Annotated[float, Bound(0.0, 5000.0)] | None = None
    """A number instead of a place, for ``constant``."""
    relative_error: Annotated[float, Bound(0.0, 1.0)] | None = None
    """Standard error of the intensity, as a share of it (0.1 = 10 %), for the intervals of grams; None: what the source
    states itself. It counts whoever says the intensity, a signal of yours and ``fallback`` too."""
    trace_csv: str | None = None
    """File for ``trace``: columns timestamp_utc, g_per_kwh."""
    trace_max_gap_h: Annotated[float, Bound(0.0, 48.0)] = 0.0
    """Holes in the trace up to this long (h) are bridged by a straight line and marked as estimated."""
    fallback: tuple[Annotated[str, Choice(SIGNALS)], ...] = ()
    """Signals to ask in turn while ``signal`` knows nothing; they must be of the same basis."""
    cache_dir: str | None = None
    """Where answers of the network are kept; None: the user's cache folder."""
    replay_start: Annotated[str, moment] | None = None
    """Grid time at which the run starts (ISO 8601 with offset), to replay a recorded grid; None: now."""
    speed: Annotated[float, Bound(1.0, 1e5)] = 1.0
    """Grid seconds that pass in a second: 480 replays a day in three minutes. Joules stay those of real time."""
    pue: Annotated[float, Bound(1.0, 5.0)] = 1.0
    """Power usage effectiveness of the facility: facility energy / IT energy, at least 1. With ``pue_csv`` or
    ``pue_prometheus_url`` it is what counts where these know nothing."""
    pue_csv: str | None = None
    """The facility's own records in place of the constant: columns timestamp_utc, pue."""
    pue_prometheus_url: str | None = None
    """URL of the facility's Prometheus server, to be asked for ``pue_prometheus_query``."""
    pue_prometheus_query: str | None = None
    """PromQL whose result is one number: the PUE now."""
    pue_relative_error: Annotated[float, Bound(0.0, 1.0)] | None = None
    """Standard error of the PUE, as a share of it (0.02 = 2 %), whoever says it; None: 30 % of what is above 1 in a
    configured number, at most, and 2 % in records."""
    market_g_per_kwh: Annotated[float, Bound(0.0, 5000.0)] | None = None
    """Contracted (market-based, GHG scope 2) intensity; None where there is no contract."""
    embodied_kg: Mapping[str, Annotated[float, Bound(0.0, 1e7)]] = field(default_factory=dict)
    """Embodied kgCO2e of one device by (part of) its name, to override or extend the table."""
    lifetime_years: Annotated[float, Bound(0.1, 50.0)] = 4.0
    """Years over which a device's embodied carbon is spread."""

    def __post_init__(self) -> None:
        check_fields(self, "carbon")
        live = [name for name in (self.signal, *self.fallback) if name in LIVE_SIGNALS]
        if live and (self.replay_start is not None or self.speed != 1.0):
            raise ConfigError(
                f"carbon.replay_start and carbon.speed replay a recorded grid, but {live[0]!r} is asked as it is now:"
                " use 'trace' or 'typical', or drop them"
            )
        if (self.pue_prometheus_url is None) != (self.pue_prometheus_query is None):
            raise ConfigError(
                "carbon.pue_prometheus_url and carbon.pue_prometheus_query go together: the server, and what to ask it"
            )
        if self.pue_csv is not None and self.pue_prometheus_url is not None:
            raise ConfigError("carbon.pue_csv and carbon.pue_prometheus_url both say what the PUE is: drop one")
        if self.signal == "trace" and self.trace_csv is None:
            raise ConfigError("carbon.signal is 'trace', so carbon.trace_csv must name a CSV file")
        if self.g_per_kwh is not None and "constant" not in (self.signal, *self.fallback):
            raise ConfigError(
                f"carbon.g_per_kwh is set, but carbon.signal is {self.signal!r}: drop one of them, or use 'constant' as"
                " signal or among carbon.fallback"
            )


PRICES = ("constant", "trace", "tariff", "entsoe")


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceConfig:
    """How joules become money. Without this section nobody asks what a kWh costs."""

    signal: Annotated[str, Choice(PRICES)] = "constant"
    """Who says what a kWh costs: a ``constant``, a ``trace`` of recorded or day-ahead prices, a ``tariff`` by time of
    use, or ``entsoe``, the day-ahead prices of a European bidding zone, asked over the network."""
    currency: Annotated[str, NotEmpty("name a currency, such as EUR")] = "EUR"
    """Of all prices; ``entsoe`` gives EUR in most zones."""
    per_kwh: Annotated[float, Bound(-1e5, 1e5)] | None = None
    """Price of a kWh, for ``constant``."""
    trace_csv: str | None = None
    """File for ``trace``: columns timestamp_utc, price_per_mwh; prices may be below 0, holes are unknown."""
    tariff: tuple[str, ...] = ()
    """Bands for ``tariff``, the first that fits holds: a price a kWh, then days, months and hours that it is for, as
    ``[0.38 mon-fri 17-21, 0.16 22-6, 0.29 jun-sep, "0.24"]``; in ``time_zone``."""
    time_zone: Annotated[str, NotEmpty("name a zone, such as Europe/Berlin")] = "UTC"
    """Whose hours those of the tariff are (IANA)."""
    zone: str | None = None
    """Bidding zone for ``entsoe``, such as ``DE_LU`` or ``FR``; its key is in ENTSOE_API_KEY."""
    carbon_per_t: Annotated[float, Bound(0.0, 1e6)] | None = None
    """Price of a tonne of CO2e, for ``policy.objective`` with both carbon and cost."""

    def __post_init__(self) -> None:
        check_fields(self, "price")

    def check(self) -> None:
        """Check that what the signal needs is there, and nothing that is for another.

        Raises:
            ConfigError: Names the key.
        """
        needs = {"constant": "per_kwh", "trace": "trace_csv", "tariff": "tariff", "entsoe": "zone"}
        for signal, key in needs.items():
            given = getattr(self, key) not in (None, ())
            if given != (signal == self.signal):
                what = "is not set, and it needs it" if not given else f"is set, which is for {signal!r}: drop it"
                raise ConfigError(f"price.signal is {self.signal!r}, and price.{key} {what}")


WATER_SOURCES = (
    "nuclear", "coal", "gas", "gas_cc", "gas_steam", "biomass", "geothermal", "csp", "solar", "wind", "hydro",
)  # fmt: skip
"""Of electricity, with published factors (``greentrain.ledger.water``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaterConfig:
    """How joules become litres, as a modelled range. Without this section no water is told."""

    wue_l_per_kwh: Annotated[float, Bound(0.0, 100.0)] | None = None
    """Water that the site consumes for a kWh of its IT equipment (The Green Grid's WUE); None: not known."""
    ewif_l_per_kwh: Annotated[float, Bound(0.0, 100.0)] | None = None
    """Water that is consumed where the electricity is generated, for a kWh of the facility; None: by ``mix``."""
    mix: Mapping[str, Annotated[float, Bound(0.0, 1.0)]] = field(default_factory=dict)
    """Shares of the electricity by source, as ``{nuclear: 0.6, gas: 0.1, wind: 0.3}``: litres follow as a range from
    published factors (docs/facility.md lists sources and factors)."""

    def __post_init__(self) -> None:
        check_fields(self, "water")
        unknown = [name for name in self.mix if name not in WATER_SOURCES]
        if unknown:
            raise ConfigError(f"water.mix names {unknown[0]!r}; known: {', '.join(WATER_SOURCES)}")
        if self.mix and not 0.95 <= sum(self.mix.values()) <= 1.05:
            raise ConfigError(f"water.mix sums to {sum(self.mix.values()):.3g}; its shares must sum to 1")
        if self.mix and self.ewif_l_per_kwh is not None:
            raise ConfigError("water.mix and water.ewif_l_per_kwh both say what electricity takes: drop one")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionConfig:
    """Which gears a run may use. Without gears, precision is left to the framework."""

    gears: tuple[GearName, ...] = ()
    """Some of ``fp32``, ``bf16``, ``fp16``, ``fp8``, ``mxfp8`` and ``nvfp4``. A run starts in the first unless its
    policy says otherwise."""
    backend: Annotated[str, Choice(BACKENDS)] = "auto"
    """Who multiplies in FP8, MXFP8 and NVFP4: one of BACKENDS."""
    scaling: Annotated[str, Choice(SCALINGS)] = "tensorwise"
    """FP8's scales: one for a tensor, one for each row, or ``blockwise``: one for each 128 elements of a row and
    for each 128 x 128 of a weight."""
    include: tuple[str, ...] = ("*",)
    """Names of linear layers and experts that may run in FP8, MXFP8 and NVFP4, with wildcards."""
    exclude: tuple[str, ...] = ()
    """Names of those that must not."""
    min_features: Annotated[int, Bound(1, 1e6)] = 128
    """Smallest width of a layer that runs in 8 or 4 bits: below, scaling costs more than it saves (nanochat's fp8.py:
    128)."""
    eval_gear: GearName | None = None
    """Gear of evaluation, so that its curves compare; None: BF16, or the most precise gear without it, and on a
    processor that emulates BF16."""
    fp32_outputs: bool = True
    """Return what the model returns in 16 bits as FP32. False: as computed, where logits beside a loss are large."""
    cast_once: bool = False
    """Cast a weight that is used often, as where layers share it, once a pass (autocast's cache). That saves casts, and
    sums its gradients in 16 bits."""
    fp8_all_gather: bool = False
    """In the gear FP8, let FSDP 2 (``fully_shard``, torch 2.13) gather the weights that run in it as FP8."""
    fp8_max_share: Annotated[float, Bound(0.0, 1.0)] = 1.0
    """Largest share of optimizer steps in FP8, MXFP8 and NVFP4 together."""
    max_extra_nats: Annotated[float, Bound(0.0, 100.0)] | None = None
    """By how much FP8, MXFP8 and NVFP4 may raise the loss at the end (nats). ``fp8_max_share`` falls to what keeps it,
    in proportion to the largest of the costs below; refused where that of a gear of the run is not known."""
    fp8_extra_nats: Annotated[float, Bound(-100.0, 100.0)] | None = None
    """By how much a run all in FP8 ended above one without (nats), as measured on this model: the upper end of what
    ``greentrain compare`` says; None: not known, and never guessed."""
    mxfp8_extra_nats: Annotated[float, Bound(-100.0, 100.0)] | None = None
    """The same of MXFP8 (nats)."""
    nvfp4_extra_nats: Annotated[float, Bound(-100.0, 100.0)] | None = None
    """The same of NVFP4 (nats)."""
    gamma: Annotated[float, Bound(1e-6, 1e6)] | Annotated[str, Choice(GAMMAS)] = "measured"
    """How AdamW slows down in FP8, MXFP8 and NVFP4: ``measured``, a number, or ``paper``; see ``greentrain.optim``."""
    decay: Annotated[str, Choice(DECAYS)] = "keep"
    """``keep``: weight decay a step as without gamma; ``scale``: gamma only divides the learning rate; ``paper``: the
    published Eq. (11) to the letter, which speeds up."""
    probe_every: Annotated[int, Bound(0, 1e9)] = 200
    """Steps between two measurements of the gears' gradient noise; 0: none."""

    def __post_init__(self) -> None:
        check_fields(self, "precision")
        if len(set(self.gears)) != len(self.gears):
            raise ConfigError(f"precision.gears names a gear twice: {list(self.gears)}")
        if self.fp8_all_gather and ("fp8" not in self.gears or self.scaling != "tensorwise"):
            raise ConfigError(
                f"precision.fp8_all_gather sends one scale a weight, and precision.gears is {list(self.gears)} with"
                f" precision.scaling {self.scaling!r}: have fp8 and tensorwise there, or set it to false"
            )
        if self.max_extra_nats is not None:
            object.__setattr__(self, "fp8_max_share", min(self.fp8_max_share, self._kept(self.max_extra_nats)))
        if self.fp8_max_share < 1.0 and self.gears and all(Gear(gear).is_low for gear in self.gears):
            only = f"{self.gears[0]} is the only gear" if len(self.gears) == 1 else "no gear has more than 8 bits"
            raise ConfigError(
                f"precision.fp8_max_share is {self.fp8_max_share:g}, but {only}: add bf16 to precision.gears"
            )
        if self.eval_gear is not None and self.gears and self.eval_gear not in self.gears:
            raise ConfigError(
                f"precision.eval_gear is {self.eval_gear!r}, which is not among precision.gears {list(self.gears)}"
            )

    def _kept(self, bound_nats: float) -> float:
        """Return the share of steps in 8 or 4 bits that keeps a bound on the loss, all in the gear that costs most."""
        lows = [gear for gear in self.gears if Gear(gear).is_low] or ["fp8"]
        costs_nats = {gear: getattr(self, f"{gear}_extra_nats") for gear in lows}
        for gear in [gear for gear, cost in costs_nats.items() if cost is None]:
            raise ConfigError(
                f"precision.max_extra_nats is {bound_nats:g}, but nobody says what {gear.upper()} costs at the end, and"
                f" that is not guessed: measure it with runs in {gear.upper()} beside runs without (greentrain compare)"
                f" and set precision.{gear}_extra_nats, or bound the share itself with precision.fp8_max_share"
            )
        most_nats = max(costs_nats.values())
        return bound_nats / most_nats if most_nats > bound_nats else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """Who decides, and what it is told. All times are those of the grid, which differ where it is replayed faster."""

    name: Annotated[str, Choice(POLICIES)] = "static"
    """``static``: one gear; ``scripted``: gears by step; the others plan pauses, gears, limits and width."""
    gear: GearName | None = None
    """For ``static``: the gear of the whole run; None: the first of precision.gears."""
    schedule: tuple[tuple[Annotated[int, Bound(0, math.inf)], GearName], ...] = ()
    """For ``scripted``: pairs of an optimizer step, counted from 0, and the gear from there on."""
    tokens: Annotated[float, Bound(1.0, 1e18)] | None = None
    """Tokens (samples, where steps count no tokens) that the job is to be trained on, for those in SCHEDULERS."""
    deadline_h: Annotated[float, Bound(1e-4, 24.0 * 366)] | None = None
    """Hours of grid time from the start of the run until it has to be done."""
    decide_s: Annotated[float, Bound(1.0, 86_400.0)] = 3600.0
    """Grid time between two decisions (s)."""
    actions: str | None = None
    """A declared action table (YAML) in place of a measured one; its watts and speeds are labelled ``assumed``."""
    released: bool | None = None
    """Whether ranks that do not work are given back, and so cost nothing. None: yes in a simulation; no where this
    process pauses in memory, which keeps its devices."""
    idle_w: Annotated[float, Bound(0.0, 1e9)] | None = None
    """Power of one rank that is held and does not work (W); None: measured in the run; a simulation needs it where
    ``released`` is false."""
    switch_s: Annotated[float, Bound(0.0, 7 * 86_400.0)] = 0.0
    """Time in which a change of width trains nothing, at full power (s)."""
    shift_s: Annotated[float, Bound(0.0, 86_400.0)] = 0.0
    """Time in which a change of gear trains nothing (s), at most ``decide_s``; 0 is an assumption. A change of width
    takes at least as long."""
    dwell_s: Annotated[float, Bound(0.0, 7 * 86_400.0)] = 0.0
    """Shortest time between two changes of width (s)."""
    switching: Annotated[str, Choice(SWITCHING)] = "auto"
    """How mpc counts changes of width and gear: ``dp`` plans them, ``myopic`` not; auto: dp where one takes time."""
    objective: Annotated[str, Choice(AIMS)] | Mapping[str, Annotated[float, Bound(0.0, 1e6)]] = "carbon"
    """What planning policies minimise: ``carbon``, ``cost`` of electricity, or a weighted sum in money, ``{carbon: 1,
    cost: 1}``: grams count by ``price.carbon_per_t``. All but ``carbon`` need the section ``price``."""
    margin_s: Annotated[float, Bound(0.0, 7 * 86_400.0)] = 0.0
    """Time to spare before the deadline (s)."""
    window_h: Annotated[float, Bound(1.0, 336.0)] = 24.0
    """For ``lowest_window``: how far it looks ahead (h). ``carl`` always sees six hours."""
    prices_csv: str | None = None
    """For ``spot``: columns timestamp_utc, price_per_h; without, prices are synthetic and labelled so."""
    seed: int = 0
    """Seed of policies that draw random numbers, and of synthetic prices."""
    budget_g: Annotated[float, Bound(1e-9, 1e15)] | None = None
    """Grams of CO2e that the run may emit, as ``green/emissions_g`` counts them."""
    budget_action: Annotated[str, Choice(BUDGET_ACTIONS)] = "warn"
    """What is done at the budget: ``warn``; ``cheaper``: also the cheapest gear from 80 % on; ``stop``: also a
    checkpoint and an end."""

    def __post_init__(self) -> None:
        check_fields(self, "policy")
        if not isinstance(self.objective, str) and not (
            set(self.objective) <= set(AIMS) and any(self.objective.values())
        ):
            raise ConfigError(
                f"policy.objective is {dict(self.objective)}; write carbon, cost, or weights such as"
                " {carbon: 1, cost: 1}"
            )
        if (self.name == "scripted") != bool(self.schedule):
            raise ConfigError(
                "policy.schedule is for policy.name 'scripted', which needs it: a list of [step, gear],"
                f" such as [[0, bf16], [100, fp8]]; name is {self.name!r}, schedule {list(self.schedule)}"
            )
        steps = [step for step, _ in self.schedule]
        if steps and (steps[0] != 0 or steps != sorted(set(steps))):
            raise ConfigError(f"policy.schedule has the steps {steps}; they must start at 0 and increase")
        if self.shift_s > self.decide_s:
            raise ConfigError(
                f"policy.shift_s is {self.shift_s:g}, above policy.decide_s, which is {self.decide_s:g}: a gear cannot"
                " change before the last change is over; decide less often"
            )
        if self.plans and (self.tokens is None or self.deadline_h is None):
            missing = [key for key in ("tokens", "deadline_h") if getattr(self, key) is None]
            raise ConfigError(
                f"policy.name is {self.name!r}, so policy.{' and policy.'.join(missing)} must be set: the tokens of the"
                " job, and the hours until it has to be done"
            )

    @property
    def plans(self) -> bool:
        """True if the policy plans against the grid and a deadline."""
        return self.name in SCHEDULERS

    @property
    def weights(self) -> tuple[float, float]:
        """Weights of carbon and of cost."""
        told = {self.objective: 1.0} if isinstance(self.objective, str) else self.objective
        return told.get("carbon", 0.0), told.get("cost", 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GreenConfig:
    """Everything a run can be told. Sections and keys are those of the YAML file."""

    run: RunConfig = field(default_factory=RunConfig)
    power: PowerConfig = field(default_factory=PowerConfig)
    carbon: CarbonConfig = field(default_factory=CarbonConfig)
    price: PriceConfig | None = None
    """None: nobody asks what a kWh costs."""
    water: WaterConfig | None = None
    """None: no water is told."""
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    actuators: ActuatorsConfig = field(default_factory=ActuatorsConfig)
    export: ExportConfig = field(default_factory=ExportConfig)

    def __post_init__(self) -> None:
        gears = self.precision.gears
        asked = [gear for _, gear in self.policy.schedule] + ([self.policy.gear] if self.policy.gear else [])
        for gear in asked:
            if gear not in gears:
                raise ConfigError(f"policy asks for the gear {gear!r}, but precision.gears is {list(gears)}: add it")
        if self.price is not None:
            self.price.check()
        carbon, cost = self.policy.weights
        if cost and self.price is None:
            raise ConfigError("policy.objective counts cost, but nobody says what a kWh costs: add the section price")
        if carbon and cost and (self.price is None or self.price.carbon_per_t is None):
            raise ConfigError(
                "policy.objective weighs carbon and cost, which are added up in money: set price.carbon_per_t, the"
                " price of a tonne of CO2e"
            )

    @classmethod
    def load(cls, source: "str | Path | Mapping[str, Any] | GreenConfig | None") -> "GreenConfig":
        """Read and check a configuration.

        Args:
            source: Path of a YAML file, a mapping of sections, a GreenConfig, or None for the defaults.

        Raises:
            ConfigError: Names the file, key, value, bound and remedy.
        """
        return load(cls, {} if source is None else source, "configuration", "sections such as 'carbon:' with keys")

    def to_dict(self) -> dict[str, Any]:
        """Return plain nested dicts, as written to run.json."""
        return dataclasses.asdict(self)
