"""Section ``actuators`` of the configuration: what a plan may do to the run, beside its gears."""

from dataclasses import dataclass

from greentrain.config_values import bound, choice
from greentrain.errors import ConfigError

OBJECTIVES = ("energy", "carbon", "cost")


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCapConfig:
    """Power limits that a plan, or one choice after profiling, may set on this process's own GPUs."""

    fractions: tuple[float, ...] = (1.0, 0.8, 0.6)
    """Limits to measure and choose from, as fractions of the limit found; those below the card's range are left out."""
    objective: str = "energy"
    """Where no policy plans, what the one limit is chosen for: least ``energy``, least ``carbon`` (embodied carbon of
    the time included), least ``cost`` (eta E + (1 - eta) P t), each within ``max_slowdown`` where that is set."""
    eta: float = 0.5
    """Weight of energy in ``cost``; the rest is that of time at the limit found (Zeus, NSDI 2023, Eq. 2)."""
    max_slowdown: float | None = None
    """Largest share of speed that a limit may cost; None: any that pays."""
    devices: tuple[str, ...] = ()
    """UUIDs of the GPUs to limit; empty: those this process trains on. They must be visible to it."""
    dwell_s: float = 10.0
    """Shortest time between two changes (s)."""

    def __post_init__(self) -> None:
        if not self.fractions:
            raise ConfigError("actuators.power_cap.fractions is empty: name at least 1.0")
        for fraction in self.fractions:
            bound("actuators.power_cap.fractions", fraction, 0.05, 1.0)
        if 1.0 not in self.fractions or len(set(self.fractions)) != len(self.fractions):
            raise ConfigError(
                f"actuators.power_cap.fractions is {list(self.fractions)}; it must hold 1.0, which the others are"
                " compared with, and each fraction once"
            )
        choice("actuators.power_cap.objective", self.objective, OBJECTIVES)
        bound("actuators.power_cap.eta", self.eta, 0.0, 1.0)
        if self.max_slowdown is not None:
            bound("actuators.power_cap.max_slowdown", self.max_slowdown, 0.0, 0.95)
        bound("actuators.power_cap.dwell_s", self.dwell_s, 0.0, 3600.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClocksConfig:
    """Lower clocks while the GPU waits for data (Eco-Orchestrator: 15-30 % below the maximum)."""

    stall_share: float = 0.3
    """Share of the time in the phase ``data`` from which on clocks go down."""
    calm_share: float = 0.1
    """Share below which they go up again."""
    down: float = 0.3
    """Lowest clock, as a share below the maximum."""
    max_slowdown: float = 0.035
    """Largest measured loss of steps/s that is kept."""
    window_s: float = 10.0
    """Time over which shares and speeds are taken (s)."""

    def __post_init__(self) -> None:
        bound("actuators.clocks.stall_share", self.stall_share, 0.01, 1.0)
        bound("actuators.clocks.calm_share", self.calm_share, 0.0, 1.0)
        if self.calm_share >= self.stall_share:
            raise ConfigError(
                f"actuators.clocks.calm_share is {self.calm_share:g}; it must be below stall_share"
                f" ({self.stall_share:g}), or clocks would go up and down in turns"
            )
        bound("actuators.clocks.down", self.down, 0.15, 0.5)
        bound("actuators.clocks.max_slowdown", self.max_slowdown, 0.0, 0.5)
        bound("actuators.clocks.window_s", self.window_s, 1.0, 3600.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WidthConfig:
    """How many ranks a plan may use; ``greentrain launch`` or Ray changes them."""

    min: int = 1
    """Fewest ranks."""
    max: int = 1
    """Most ranks."""
    global_batch: int | None = None
    """Samples of one optimizer step over all ranks: widths that do not divide it are left out; None: all are used."""

    def __post_init__(self) -> None:
        bound("actuators.width.min", self.min, 1, 1e6)
        bound("actuators.width.max", self.max, 1, 1e6)
        if self.global_batch is not None:
            bound("actuators.width.global_batch", self.global_batch, 1, 1e9)
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
    min_away_s: float = 900.0
    """Shortest pause that is worth leaving (s of grid time); shorter ones are held in memory."""
    power_cap: PowerCapConfig | None = None
    """None: power limits are left alone."""
    clocks: ClocksConfig | None = None
    """None: clocks are left alone."""
    width: WidthConfig | None = None
    """None: as many ranks as there are."""

    def __post_init__(self) -> None:
        bound("actuators.min_away_s", self.min_away_s, 0.0, 14 * 86_400.0)
