"""Published figures against what the hardware can do at most: data-sheet arithmetic, no model and no assumption."""

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from greentrain.fpga_backend.explore.gpu import gpu_named
from greentrain.fpga_backend.explore.space import PRESETS
from greentrain.fpga_backend.program import Linear, Program
from greentrain.fpga_backend.roofline.cards import LIMITS, U55C
from greentrain.fpga_backend.roofline.counts import BatchLayout, count
from greentrain.fpga_backend.roofline.shape import program_of

Status = Literal["refuted", "unverified"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A figure that somebody published."""

    id: str
    said: str
    status: Status
    terms: Mapping[str, Any] = field(default_factory=dict)
    """What it takes to check it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What a claim would need, and what there is."""

    needed: float
    bound: float
    unit: str

    @property
    def over(self) -> float:
        """How many times more it needs."""
        return self.needed / self.bound


def claims() -> tuple[Claim, ...]:
    """Return the claims of ``published_claims.toml``."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return tuple(
        Claim(id=item.pop("id"), said=item.pop("said"), status=item.pop("status"), terms=item)
        for item in tomllib.loads(text)["claim"]
    )


def check(claim: Claim) -> Check | None:
    """Recompute a claim; None where nothing can be recomputed."""
    kind = claim.terms.get("kind")
    return None if kind is None else _KINDS[kind](claim.terms)


def _program(terms: Mapping[str, Any]) -> Program:
    return program_of(PRESETS[terms["model"]][1], max_tokens=8192)


def _macs(terms: Mapping[str, Any]) -> int:
    return count(_program(terms), BatchLayout.equal(terms["batch"], terms["sequence"])).macs


def _chip(needed_macs_per_s: float, terms: Mapping[str, Any]) -> Check:
    """Against every DSP slice of the chip, the shell's too, two products each in each clock."""
    bound = LIMITS["dsps"].value * U55C.value("macs8_per_dsp") * terms["clock_hz"]
    return Check(needed=needed_macs_per_s, bound=bound, unit="MAC/s")


def _throughput(terms: Mapping[str, Any]) -> Check:
    tokens = terms["batch"] * terms["sequence"]
    return _chip(terms["tokens_per_s"] * _macs(terms) / tokens, terms)


def _latency(terms: Mapping[str, Any]) -> Check:
    return _chip(_macs(terms) / terms["seconds"], terms)


def _sweep(terms: Mapping[str, Any]) -> Check:
    """The 8-bit weights of the layers, read once."""
    weights = sum(op.x.width * op.outputs for op in _program(terms).ops if isinstance(op, Linear))
    return Check(needed=weights / terms["seconds"], bound=U55C.value("memory_bytes_per_s"), unit="B/s")


def _power(terms: Mapping[str, Any]) -> Check:
    return Check(needed=terms["tokens_per_s"] / terms["tokens_per_j"], bound=U55C.value("tdp_w"), unit="W")


def _link(terms: Mapping[str, Any]) -> Check:
    return Check(needed=terms["bytes"] / terms["seconds"], bound=LIMITS["pcie_bytes_per_s"].value, unit="B/s")


def _gpu_latency(terms: Mapping[str, Any]) -> Check:
    peak = gpu_named(terms["gpu"]).peak_flops_per_s.value
    return Check(needed=2 * _macs(terms) / terms["seconds"], bound=peak, unit="FLOP/s")


def _gpu_energy(terms: Mapping[str, Any]) -> Check:
    gpu = gpu_named(terms["gpu"])
    needed = terms["tokens_per_j"] * gpu.power_w.value * terms["flop_per_token"]
    return Check(needed=needed, bound=gpu.peak_flops_per_s.value, unit="FLOP/s")


def _share(terms: Mapping[str, Any]) -> Check:
    return Check(needed=terms["percent"], bound=100 * terms["part"] / terms["whole"], unit="%")


def _own_link(terms: Mapping[str, Any]) -> Check:
    """Against the rate of the link that the same paper gives."""
    return Check(needed=terms["bytes"] / terms["seconds"], bound=terms["bytes_per_s"], unit="B/s")


def _cut(terms: Mapping[str, Any]) -> Check:
    """A cut of joules a token, by the tokens a joule before and after it."""
    return Check(
        needed=terms["percent"], bound=100 * (1 - terms["tokens_per_j_before"] / terms["tokens_per_j"]), unit="%"
    )


def _again(terms: Mapping[str, Any]) -> Check:
    """The same quantity at another place of the same paper."""
    return Check(needed=terms["here"], bound=terms["there"], unit=terms["unit"])


def _product(terms: Mapping[str, Any]) -> Check:
    return Check(needed=terms["result"], bound=math.prod(terms["factors"]), unit="kg")


_KINDS: Mapping[str, Callable[[Mapping[str, Any]], Check]] = {
    "throughput": _throughput,
    "latency": _latency,
    "sweep": _sweep,
    "power": _power,
    "link": _link,
    "gpu-latency": _gpu_latency,
    "gpu-energy": _gpu_energy,
    "share": _share,
    "product": _product,
    "own-link": _own_link,
    "cut": _cut,
    "again": _again,
}
OF_ITS_OWN: Final = ("share", "product", "cut", "again")
"""Kinds that hold a figure to others of the same paper, and not to hardware: either side may be the larger one."""


NOT_REPRODUCED: Final = "published, not reproduced"
IMPOSSIBLE: Final = "published, impossible"
_OF_PIPELINES: Final = ("throughput", "latency", "sweep", "power", None)
"""Kinds of claims that speak of speed or energy of passes; None: headlines without conditions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published figure, and what stands against it."""

    said: str
    verdict: str
    why: str


def published_figures() -> tuple[Published, ...]:
    """Return what was published of speed and energy with cards, each with a verdict."""
    return tuple(_judged(claim) for claim in claims() if claim.terms.get("kind") in _OF_PIPELINES and _of_card(claim))


def _of_card(claim: Claim) -> bool:
    return "gpu" not in claim.terms and not (claim.terms.get("note") and not claim.id.startswith("headline"))


def _judged(claim: Claim) -> Published:
    found = check(claim)
    if found is None:
        return Published(said=claim.said, verdict=NOT_REPRODUCED, why=str(claim.terms.get("note", "")))
    why = f"needs {found.needed:.3g} {found.unit}; the card has {found.bound:.3g} at most: {found.over:.3g} times more"
    return Published(said=claim.said, verdict=IMPOSSIBLE if found.over > 1 else NOT_REPRODUCED, why=why)
