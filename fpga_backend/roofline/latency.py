"""How long a batch would take on a card, and what it would draw.

    t = launches * launch_s + in / pcie + sum over operators of max(compute, memory) + out / pcie
    E = idle * t + mac * products + memory * bytes + pcie * bytes

That is an ideal array. Of the kernels in ``hls/`` the clocks and bytes are those of :mod:`.cycles`, over ``clock_hz``.

Kernels run one after the other, so an operator takes the longer of its products and its traffic. Where E / t is above
the card's TDP, the clock falls until it is not, as that of Alveo cards does (xilinx.github.io/xbtest, "Calibration -
Power CU"): the time grows to E_dynamic / (TDP - idle), and the joules by idle power over the longer time. The joules of
an emulated card reach the ledger through :class:`ModelledMeter`, labelled as modelled.
"""

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from greentrain.errors import ConfigError
from greentrain.fpga_backend.batch import Packed
from greentrain.fpga_backend.csim.launches import BYTES
from greentrain.fpga_backend.program import Precision, Program
from greentrain.fpga_backend.roofline.cards import CardSpec
from greentrain.fpga_backend.roofline.counts import BatchLayout, OpCount, WorkCounts, count
from greentrain.fpga_backend.roofline.cycles import KernelWork, kernel_work
from greentrain.types import Device, DeviceKind, PowerSample, Provenance, Sensor
from greentrain.utils.clock import Clock, SystemClock

Bound = Literal["compute", "memory", "pcie", "launch", "power"]

NEEDED = (
    "dsps",
    "dsp_share",
    "clock_hz",
    "array_efficiency",
    "memory_bytes_per_s",
    "memory_efficiency",
    "pcie_bytes_per_s",
    "launch_s",
    "idle_power_w",
    "memory_j_per_byte",
    "pcie_j_per_byte",
    "tdp_w",
)
"""Constants that every service needs; products of 8 and of 16 bits need their own two more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardService:
    """What a batch would take on a card. All of it is a model."""

    tokens: int
    in_s: float
    """Copy to the card."""
    engine_s: float
    """Launches, kernels, and waiting where the TDP holds the clock down."""
    out_s: float
    energy_j: float
    """Idle power while the batch runs included."""
    parts_s: Mapping[str, float]
    """``launch``, ``pcie``, ``compute``, ``memory`` and ``power``: their sum is ``run_s``. Of kernels, ``compute``
    is that of products and attention, ``memory`` that of all others."""
    parts_j: Mapping[str, float]
    """``idle``, ``products``, ``memory`` and ``pcie``."""
    assumed_j: float
    """Joules that rest on at least one assumed constant."""
    bound: Bound
    """The largest part of the time. ``power``: the TDP."""

    @property
    def run_s(self) -> float:
        """From the first byte in to the last byte out, nothing else on the card."""
        return self.in_s + self.engine_s + self.out_s

    @property
    def power_w(self) -> float:
        """Mean power while the batch runs."""
        return self.energy_j / self.run_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens over ``run_s``."""
        return self.tokens / self.run_s

    @property
    def assumed_share(self) -> float:
        """Share of the joules that rests on assumed constants, 0 to 1."""
        return self.assumed_j / self.energy_j


def check_card(card: CardSpec) -> None:
    """Raise if a service on this card could lack a constant, whatever the program.

    Raises:
        ConfigError: Names each missing constant.
    """
    card.check((*NEEDED, "memory_bytes", "macs8_per_dsp", "macs16_per_dsp", "mac8_j", "mac16_j"))


def peak_macs_per_s(card: CardSpec, bits: int = 8) -> float:
    """Return the products of a design that never waits, in all DSP slices that it uses.

    Raises:
        ConfigError: A constant is missing.
    """
    per_dsp = f"macs{bits}_per_dsp"
    card.check(("dsps", "dsp_share", "clock_hz", per_dsp))
    return card.value("dsps") * card.value("dsp_share") * card.value(per_dsp) * card.value("clock_hz")


def service(
    program: Program,
    batch: Packed | BatchLayout,
    card: CardSpec,
    precision: Precision | None = None,
    *,
    kernels: bool = False,
) -> CardService:
    """Return what a batch would take.

    Args:
        program: Compiled, or built from a configuration.
        batch: Packed, or equal sequences.
        card: All of its constants that are needed must be known.
        precision: Precision in place of the program's own.
        kernels: True: on the kernels of ``hls/``, which compute w8a8, clock by clock; False: on an ideal array.

    Raises:
        ConfigError: The card lacks a constant; the message names all.
        ArtifactError: The precision has no model of a card.
    """
    if precision is not None and precision != program.precision:
        program = dataclasses.replace(program, precision=precision)
    return serve(count(program, batch), card, kernel_work(program, batch, card) if kernels else None)


def serve(counts: WorkCounts, card: CardSpec, work: KernelWork | None = None) -> CardService:
    """Return what counted work would take.

    Args:
        counts: Products and bytes.
        card: Card with the constants that they need.
        work: Clocks and beats of the kernels; None: of an ideal array.

    Raises:
        ConfigError: The card lacks a constant; the message names all.
    """
    card.check((*NEEDED, *_products(counts)))
    if card.value("tdp_w") <= card.value("idle_power_w"):
        raise ConfigError(
            f"{card.name}.idle_power_w is {card.value('idle_power_w'):g} W; it must be below tdp_w, "
            f"{card.value('tdp_w'):g} W"
        )
    link = card.value("pcie_bytes_per_s")
    in_s, out_s = counts.pcie_in_bytes / link, counts.pcie_out_bytes / link
    launch_s = (counts.launches if work is None else work.launches) * card.value("launch_s")
    memory_bytes_per_s = card.value("memory_bytes_per_s") * card.value("memory_efficiency")
    compute_s = memory_s = 0.0
    memory_bytes = counts.memory_bytes
    if work is not None:
        compute_s = sum(work.clocks.get(name, 0.0) for name in ("gt_gemm", "gt_attention")) / card.value("clock_hz")
        memory_s = work.total / card.value("clock_hz") - compute_s
        memory_bytes = BYTES * work.beats
    for op in counts.ops if work is None else ():
        busy_s, moving_s = _compute_s(op, card), op.memory_bytes / memory_bytes_per_s
        if busy_s >= moving_s:
            compute_s += busy_s
        else:
            memory_s += moving_s
    run_s = in_s + out_s + launch_s + compute_s + memory_s
    pcie_bytes = counts.pcie_in_bytes + counts.pcie_out_bytes
    dynamic = {
        "products": sum(counts.macs_of(bits) * card.value(f"mac{bits}_j") for bits in _widths(counts)),
        "memory": memory_bytes * card.value("memory_j_per_byte"),
        "pcie": pcie_bytes * card.value("pcie_j_per_byte"),
    }
    idle_w = card.value("idle_power_w")
    cooled_s = sum(dynamic.values()) / (card.value("tdp_w") - idle_w)
    held_s = max(0.0, cooled_s - run_s)
    parts_s = {"launch": launch_s, "pcie": in_s + out_s, "compute": compute_s, "memory": memory_s, "power": held_s}
    parts_j = {"idle": idle_w * (run_s + held_s), **dynamic}
    busy: tuple[Bound, ...] = ("compute", "memory", "pcie", "launch")
    bound: Bound = "power" if held_s else max(busy, key=lambda part: parts_s[part])
    return CardService(
        tokens=counts.tokens,
        in_s=in_s,
        engine_s=launch_s + compute_s + memory_s + held_s,
        out_s=out_s,
        energy_j=sum(parts_j.values()),
        parts_s=parts_s,
        parts_j=parts_j,
        assumed_j=sum(parts_j[part] for part in parts_j if _assumed(part, counts, card) or (work and part == "idle")),
        bound=bound,
    )


def _widths(counts: WorkCounts) -> tuple[int, ...]:
    return tuple(bits for bits in (8, 16) if counts.macs_of(bits))


def _products(counts: WorkCounts) -> tuple[str, ...]:
    return tuple(name for bits in _widths(counts) for name in (f"macs{bits}_per_dsp", f"mac{bits}_j"))


def _compute_s(op: OpCount, card: CardSpec) -> float:
    efficiency = card.value("array_efficiency")
    return sum(
        macs / (peak_macs_per_s(card, bits) * efficiency) for bits, macs in ((8, op.macs8), (16, op.macs16)) if macs
    )


def _assumed(part: str, counts: WorkCounts, card: CardSpec) -> bool:
    """Return whether a part of the energy rests on an assumed constant: idle energy also on those of the time."""
    own = {
        "idle": tuple(name for name in (*NEEDED, *_products(counts)) if not name.endswith(("_j", "_j_per_byte"))),
        "products": tuple(f"mac{bits}_j" for bits in _widths(counts)),
        "memory": ("memory_j_per_byte",),
        "pcie": ("pcie_j_per_byte",),
    }[part]
    return any(card.kind(name) == "assumed" for name in own)


PERIOD_S: Final = 1.0


class ModelledMeter:
    """Adds up the model's joules of batches, and idle power for the rest of the time since opening.

    Args:
        uid: Identifier of the device in the ledger.
        card: Card whose idle power is drawn; the sensor has its name.
        clock: Clock that tells the time.

    Raises:
        ConfigError: The card's idle power is not known.
    """

    def __init__(self, uid: str, card: CardSpec, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._idle_w = card.value("idle_power_w")
        self._start_s = self._clock.monotonic_s()
        self._end_s: float | None = None
        self._lock = threading.Lock()
        self._busy_s = 0.0
        self._busy_j = 0.0
        self._sensor = Sensor(
            device=Device(uid=uid, kind=DeviceKind.FPGA, name=f"{card.name}, emulated"),
            provenance=Provenance.MODELLED,
            method="roofline model",
            period_s=PERIOD_S,
            note=f"a model of a {card.name}, no card was there: idle power {card.constant('idle_power_w')}",
            shared=False,
        )

    @property
    def sensors(self) -> Sequence[Sensor]:
        """The emulated card."""
        return (self._sensor,)

    @property
    def energy_j(self) -> float:
        """Energy since opening."""
        return self._read()[1]

    def add(self, service: CardService) -> None:
        """Book a batch that ran."""
        with self._lock:
            self._busy_s += service.run_s
            self._busy_j += service.energy_j

    def read(self) -> Sequence[PowerSample]:
        """Return the energy since opening."""
        t_s, energy_j = self._read()
        return (PowerSample(device_uid=self._sensor.device.uid, t_s=t_s, energy_j=energy_j),)

    def close(self) -> None:
        """Switch the card off: the energy stays as it is, and readable. Idempotent."""
        with self._lock:
            if self._end_s is None:
                self._end_s = self._clock.monotonic_s()

    def _read(self) -> tuple[float, float]:
        with self._lock:
            now_s = self._clock.monotonic_s()
            on_s = (now_s if self._end_s is None else self._end_s) - self._start_s
            # a batch that the machine computed faster than the card would have leaves no idle time behind
            return now_s, self._busy_j + self._idle_w * max(0.0, on_s - self._busy_s)
