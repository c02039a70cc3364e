"""The one configuration schema of callbacks, command line and simulator.

A configuration is a YAML file, a mapping or these frozen dataclasses. Every key and value is checked when it
is read: an unknown key is an error that names the nearest known one.
"""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from greentrain.errors import ConfigError
from greentrain.types import Gear

T = typing.TypeVar("T")
METERS = ("nvml", "rapl", "cpu_model", "prometheus", "replay", "null")
SIGNALS = ("constant", "typical", "trace")
CPU_SCOPES = ("process_tree", "machine")
WORLD = "world"
GEARS = tuple(gear.value for gear in Gear)
BACKENDS = ("auto", "scaled_mm", "transformer_engine", "torchao")
SCALINGS = ("tensorwise", "rowwise")
GAMMAS = ("measured", "paper")
DECAYS = ("keep", "scale", "paper")
POLICIES = ("static", "scripted")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Where a run is written."""

    dir: str = "runs"
    """Parent of the run folders; created when missing."""
    name: str = "train"
    """Human name; part of the run id."""
    id: str | None = None
    """Fixed run id, to continue that folder; None makes a new one."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Free labels, copied to run.json (project, user, task)."""
    book_s: float = 10.0
    """Longest ledger interval (s), at most 10 so that a kill loses no more."""
    live: bool = True
    """Show a line once a second when the output is a terminal."""
    report: bool = True
    """Write report.html and its companions when the run ends."""

    def __post_init__(self) -> None:
        _bound("run.book_s", self.book_s, 0.1, 10.0)
        for key, text in (("run.name", self.name), ("run.id", self.id)):
            if text is not None and (not text or text.startswith(".") or any(c in text for c in "/\\\0\n")):
                raise ConfigError(
                    f"{key} is {text!r}, but it becomes a folder's name: use letters, digits, '-', '_' and '.'"
                    " only, not starting with '.'"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerConfig:
    """Which meters are read, and how often."""

    meters: str | tuple[str, ...] = "auto"
    """``auto`` (every sensor that can be read, models for the rest) or a list of METERS."""
    sample_s: float = 0.1
    """Sampling period of hardware sensors (s)."""
    cpu_scope: str = "process_tree"
    """``process_tree``: a modelled CPU is charged with this job's processes; ``machine``: with all load."""
    cpu_tdp_w: float | None = None
    """Thermal design power of all CPU packages together (W), to override the table."""
    rapl_root: str = "/sys/class/powercap"
    """Root of the powercap tree."""
    prometheus_url: str | None = None
    """URL of a Prometheus server that scrapes Kepler, for the meter ``prometheus``."""
    prometheus_query: str | None = None
    """PromQL whose result is cumulative joules, one series a device; None asks for Kepler's node counters."""
    replay_csv: str | None = None
    """Recording for the meter ``replay``."""

    def __post_init__(self) -> None:
        _bound("power.sample_s", self.sample_s, 0.005, 10.0)
        _choice("power.cpu_scope", self.cpu_scope, CPU_SCOPES)
        if self.cpu_tdp_w is not None:
            _bound("power.cpu_tdp_w", self.cpu_tdp_w, 0.1, 100_000.0)
        if isinstance(self.meters, str):
            _choice("power.meters", self.meters, ("auto", *METERS))
        else:
            if not self.meters:
                raise ConfigError("power.meters is an empty list: name a meter, or use ['null'] to measure nothing")
            for name in self.meters:
                _choice("power.meters", name, METERS)
        names = (self.meters,) if isinstance(self.meters, str) else self.meters
        for name, key in (("prometheus", "prometheus_url"), ("replay", "replay_csv")):
            if name in names and getattr(self, key) is None:
                raise ConfigError(f"power.meters names {name!r}, so power.{key} must be set")


@dataclass(frozen=True, slots=True, kw_only=True)
class CarbonConfig:
    """How joules become grams."""

    signal: str = "constant"
    zone: str = WORLD
    """ISO country code, region (``US-CA``, ``CA-QC``), cloud region (``gcp:europe-west1``) or grid zone
    (``US-CAL-CISO``); ``world`` is the stated world average."""
    g_per_kwh: float | None = None
    """A number instead of a place, for ``constant``."""
    trace_csv: str | None = None
    """File for ``trace``: columns timestamp_utc, g_per_kwh."""
    trace_max_gap_h: float = 0.0
    """Holes in the trace up to this long (h) are bridged by a straight line and marked as estimated."""
    pue: float = 1.0
    """Power usage effectiveness of the facility: facility energy / IT energy, at least 1."""
    market_g_per_kwh: float | None = None
    """Contracted (market-based, GHG scope 2) intensity; None where there is no contract."""
    embodied_kg: Mapping[str, float] = field(default_factory=dict)
    """Embodied kgCO2e of one device by (part of) its name, to override or extend the table."""
    lifetime_years: float = 4.0
    """Years over which a device's embodied carbon is spread."""

    def __post_init__(self) -> None:
        _choice("carbon.signal", self.signal, SIGNALS)
        _bound("carbon.pue", self.pue, 1.0, 5.0)
        _bound("carbon.lifetime_years", self.lifetime_years, 0.1, 50.0)
        _bound("carbon.trace_max_gap_h", self.trace_max_gap_h, 0.0, 48.0)
        for key in ("g_per_kwh", "market_g_per_kwh"):
            value = getattr(self, key)
            if value is not None:
                _bound(f"carbon.{key}", value, 0.0, 5000.0)
        for name, value in self.embodied_kg.items():
            _bound(f"carbon.embodied_kg[{name!r}]", value, 0.0, 1e7)
        if self.signal == "trace" and self.trace_csv is None:
            raise ConfigError("carbon.signal is 'trace', so carbon.trace_csv must name a CSV file")
        if self.g_per_kwh is not None and self.signal != "constant":
            raise ConfigError(
                f"carbon.g_per_kwh is set, but carbon.signal is {self.signal!r}: drop one of them or use 'constant'"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionConfig:
    """Which gears a run may use. Without gears, precision is left to the framework."""

    gears: tuple[str, ...] = ()
    """Of ``fp32``, ``bf16``, ``fp16`` and ``fp8``; the first is where a run starts unless its policy says otherwise."""
    backend: str = "auto"
    """Who multiplies in FP8: one of BACKENDS."""
    scaling: str = "tensorwise"
    """FP8 scale of the backend ``scaled_mm``: one for a tensor, or one for each row."""
    include: tuple[str, ...] = ("*",)
    """Names of linear layers that may run in FP8, with wildcards."""
    exclude: tuple[str, ...] = ()
    """Names of those that must not."""
    min_features: int = 128
    """Smallest width of a layer that runs in FP8: below, scaling costs more than it saves (nanochat's fp8.py: 128)."""
    eval_gear: str | None = None
    """Gear of evaluation, so that its curves compare; None: BF16, or the most precise gear without it."""
    fp8_max_share: float = 1.0
    """Largest share of optimizer steps in FP8."""
    gamma: float | str = "measured"
    """How AdamW slows down in FP8: ``measured``, a number, or ``paper``; see ``greentrain.optim``."""
    decay: str = "keep"
    """``keep``: weight decay a step as without gamma; ``scale``: gamma only divides the learning rate; ``paper``: the
    published Eq. (11) to the letter, which speeds up."""
    probe_every: int = 200
    """Steps between two measurements of the gears' gradient noise; 0: none."""

    def __post_init__(self) -> None:
        for gear in self.gears:
            _choice("precision.gears", gear, GEARS)
        if len(set(self.gears)) != len(self.gears):
            raise ConfigError(f"precision.gears names a gear twice: {list(self.gears)}")
        _choice("precision.backend", self.backend, BACKENDS)
        _choice("precision.scaling", self.scaling, SCALINGS)
        _choice("precision.decay", self.decay, DECAYS)
        _bound("precision.min_features", self.min_features, 1, 1e6)
        _bound("precision.fp8_max_share", self.fp8_max_share, 0.0, 1.0)
        if self.gears == ("fp8",) and self.fp8_max_share < 1.0:
            raise ConfigError(
                f"precision.fp8_max_share is {self.fp8_max_share:g}, but fp8 is the only gear: add bf16 to"
                " precision.gears"
            )
        _bound("precision.probe_every", self.probe_every, 0, 1e9)
        if isinstance(self.gamma, str):
            _choice("precision.gamma", self.gamma, GAMMAS)
        elif not (math.isfinite(self.gamma) and self.gamma > 0):
            raise ConfigError(f"precision.gamma is {self.gamma!r}; it must be a number above 0, or one of {GAMMAS}")
        if self.eval_gear is not None:
            _choice("precision.eval_gear", self.eval_gear, GEARS)
            if self.gears and self.eval_gear not in self.gears:
                raise ConfigError(
                    f"precision.eval_gear is {self.eval_gear!r}, which is not among precision.gears {list(self.gears)}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """Who decides, and what it is told."""

    name: str = "static"
    gear: str | None = None
    """For ``static``: the gear of the whole run; None: the first of precision.gears."""
    schedule: tuple[tuple[int, str], ...] = ()
    """For ``scripted``: pairs of an optimizer step, counted from 0, and the gear from there on."""

    def __post_init__(self) -> None:
        _choice("policy.name", self.name, POLICIES)
        if self.gear is not None:
            _choice("policy.gear", self.gear, GEARS)
        if (self.name == "scripted") != bool(self.schedule):
            raise ConfigError(
                "policy.schedule is for policy.name 'scripted', which needs it: a list of [step, gear],"
                f" such as [[0, bf16], [100, fp8]]; name is {self.name!r}, schedule {list(self.schedule)}"
            )
        for step, gear in self.schedule:
            _choice("policy.schedule", gear, GEARS)
            _bound("policy.schedule", step, 0, math.inf)
        steps = [step for step, _ in self.schedule]
        if steps and (steps[0] != 0 or steps != sorted(set(steps))):
            raise ConfigError(f"policy.schedule has the steps {steps}; they must start at 0 and increase")


@dataclass(frozen=True, slots=True, kw_only=True)
class GreenConfig:
    """Everything a run can be told. Sections and keys are those of the YAML file."""

    run: RunConfig = field(default_factory=RunConfig)
    power: PowerConfig = field(default_factory=PowerConfig)
    carbon: CarbonConfig = field(default_factory=CarbonConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)

    def __post_init__(self) -> None:
        gears = self.precision.gears
        asked = [gear for _, gear in self.policy.schedule] + ([self.policy.gear] if self.policy.gear else [])
        for gear in asked:
            if gear not in gears:
                raise ConfigError(f"policy asks for the gear {gear!r}, but precision.gears is {list(gears)}: add it")

    @classmethod
    def load(cls, source: "str | Path | Mapping[str, Any] | GreenConfig | None") -> "GreenConfig":
        """Read and check a configuration.

        Args:
            source: Path of a YAML file, a mapping of sections, a GreenConfig, or None for the defaults.

        Raises:
            ConfigError: Names the file, key, value, bound and remedy.
        """
        if source is None:
            return cls()
        if isinstance(source, GreenConfig):
            return source
        if isinstance(source, Mapping):
            return _build(cls, source, where="")
        if not isinstance(source, (str, Path)):
            raise ConfigError(f"configuration is a {type(source).__name__}; pass a path, a mapping or a GreenConfig")
        return cls._from_file(Path(source))

    @classmethod
    def _from_file(cls, path: Path) -> "GreenConfig":
        import yaml

        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot read the configuration {path}: {error.strerror or error}") from error
        try:
            data = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"{path} is not valid YAML: {error}") from error
        if data is None:
            return cls()
        if not isinstance(data, Mapping):
            raise ConfigError(f"{path} holds a {type(data).__name__}; expected sections such as 'carbon:' with keys")
        try:
            return _build(cls, data, where="")
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """Return plain nested dicts, as written to run.json."""
        return dataclasses.asdict(self)


def _bound(key: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise ConfigError(f"{key} is {value!r}; it must be between {low:g} and {high:g}")


def _choice(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{key} is {value!r}; known: {', '.join(allowed)}{_nearest(value, allowed)}")


def _nearest(word: str, known: typing.Iterable[str]) -> str:
    near = difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.5)
    return f". Did you mean {near[0]!r}?" if near else ""


def _build(cls: type[T], data: Mapping[str, Any], where: str) -> T:
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for key, value in data.items():
        if key not in hints:
            raise ConfigError(
                f"unknown key {where}{key}; known here: {', '.join(sorted(hints))}{_nearest(str(key), hints)}"
            )
        values[key] = _convert(hints[key], value, where + str(key))
    return cls(**values)


def _convert(hint: Any, value: Any, key: str) -> Any:
    if dataclasses.is_dataclass(hint):
        if value is None:
            value = {}
        if isinstance(value, hint):  # type: ignore[arg-type]
            return value
        if not isinstance(value, Mapping):
            raise ConfigError(f"{key} is {value!r}; it must be a section with keys")
        return _build(hint, value, where=f"{key}.")  # type: ignore[arg-type]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        errors = []
        for option in typing.get_args(hint):
            try:
                return _convert(option, value, key)
            except ConfigError as error:
                errors.append(error)
        raise errors[0]
    return _convert_leaf(hint, value, key)


def _convert_leaf(hint: Any, value: Any, key: str) -> Any:
    origin = typing.get_origin(hint) or hint
    if typing.get_args(hint)[:1] == (tuple[int, str],) and isinstance(value, (list, tuple, Mapping)):
        pairs = list(value.items()) if isinstance(value, Mapping) else value
        if all(isinstance(p, (list, tuple)) and len(p) == 2 and type(p[0]) is int and type(p[1]) is str for p in pairs):
            return tuple((step, name) for step, name in pairs)
        raise ConfigError(f"{key} is {value!r}; expected a list of [step, gear], such as [[0, bf16], [100, fp8]]")
    if origin is type(None) and value is None:
        return None
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if hint in (bool, str, int) and type(value) is hint:
        return value
    if origin is tuple and isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value):
        return tuple(value)
    if origin is Mapping and isinstance(value, Mapping):
        item = typing.get_args(hint)[1]
        return {str(k): _convert_leaf(item, v, f"{key}[{k!r}]") for k, v in value.items()}
    name = getattr(hint, "__name__", str(hint))
    raise ConfigError(f"{key} is {value!r} ({type(value).__name__}); expected {name}")
