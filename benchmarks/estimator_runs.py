"""Published training runs: what was trained, on what, and how many device-hours it took."""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from greentrain.estimate import hardware
from greentrain.estimate.hardware import Accelerator
from greentrain.estimate.mfu import FP8_SPEEDUP
from greentrain.estimate.model_shape import FLOP_PER_PARAMETER_TOKEN, ModelShape
from greentrain.estimate.workload import Workload
from greentrain.types import S_PER_HOUR, Gear

RUNS_CSV: Final = Path(__file__).resolve().parent / "data" / "published_runs.csv"
BENCH: Final = "bench"
DEVICES: Final[Mapping[str, str]] = {
    "A100-40": "A100-40GB",
    "A100-80": "A100-80GB",
    "A800-80": "A800-80GB",
    "H100": "H100-SXM",
    "H800": "H800",
    "TPUv4": "TPUv4",
}
_GUESSED_DAYS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """One published run, or one published step time (tier ``bench``). A run equals itself alone."""

    name: str
    family: str
    """Models of one team and time; whole families are left out."""
    tier: str
    year: int
    shape: ModelShape
    workload: Workload
    accelerator: Accelerator
    reported_count: int | None
    network_bytes_s: float | None
    """To other nodes, as published; None: the device's own."""
    hours: float
    """Device-hours reported, or of one step in a benchmark of steps."""
    notes: str

    @property
    def flop(self) -> float:
        """6 x active parameters x tokens."""
        return FLOP_PER_PARAMETER_TOKEN * self.shape.active_parameters * self.workload.tokens

    @property
    def peak_hours(self) -> float:
        """Device-hours at the 16-bit peak."""
        peaks = self.accelerator.peak_flop_s
        return self.flop / peaks[Gear.BF16].value / S_PER_HOUR

    @property
    def mfu(self) -> float:
        """Share of the 16-bit peak that the run reached."""
        return self.peak_hours / self.hours

    @property
    def fp8_gain(self) -> float:
        """What FP8 is taken to gain over 16 bit; a published constant, not fitted here."""
        return FP8_SPEEDUP.mid if self.workload.precision is Gear.FP8 else 1.0

    @property
    def count(self) -> int:
        """Devices as reported; else the power of two that needs about a month at 40 % of peak."""
        if self.reported_count is not None:
            return self.reported_count
        month = self.peak_hours / 0.40 / (24 * _GUESSED_DAYS)
        return int(max(8, 2 ** round(math.log2(month))))

    @property
    def kind(self) -> str:
        """Class of device and kind of model."""
        return f"{self.accelerator.family} {'MoE' if self.shape.is_moe else 'dense'}"

    def noted(self, key: str) -> float | None:
        """Return a figure that the notes give as ``key=value``; None without one."""
        for word in self.notes.replace(";", " ").split():
            name, _, value = word.partition("=")
            if name == key:
                return float(value)
        return None


def read_runs(path: Path = RUNS_CSV) -> tuple[Run, ...]:
    """Return the runs whose device-hours count as a test, and the benchmarks of steps."""
    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    return tuple(_run(row) for row in rows if row["use_time_test"] == "1" or row["tier"] == BENCH)


def whole(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """Return whole runs, without benchmarks of steps."""
    return tuple(run for run in runs if run.tier != BENCH)


def _run(row: Mapping[str, str]) -> Run:
    def number(key: str) -> float:
        return float(row[key] or 0)

    def count(key: str) -> int:
        return int(number(key))

    experts = count("experts")
    heads = count("heads")
    shape = ModelShape(
        name=row["name"],
        layers=count("layers"),
        d_model=count("d_model"),
        heads=heads,
        kv_heads=count("kv_heads") or heads,
        head_dim=256 if row["name"] == "PaLM-540B" else count("d_model") // heads,
        d_ff=count("d_ff"),
        gated=row["gated"] == "1",
        vocabulary=count("vocab"),
        experts=experts,
        experts_per_token=count("topk"),
        d_expert=count("d_expert"),
        d_shared=count("shared_ff"),
        expert_layers=count("moe_layers"),
        published_total=number("params_total"),
        published_active=number("params_active"),
    )
    workload = Workload(
        tokens=number("tokens"),
        sequence=count("seq"),
        batch_tokens=number("batch_tokens"),
        precision=Gear(row["precision"]),
    )
    gbps = number("net_gbps_per_dev")
    return Run(
        name=row["name"],
        family=row["family"],
        tier=row["tier"],
        year=count("year"),
        shape=shape,
        workload=workload,
        accelerator=hardware.find(DEVICES[row["device"]]),
        reported_count=count("n_devices") or None,
        network_bytes_s=gbps * 1e9 / 8 or None,
        hours=number("gpu_hours"),
        notes=row["notes"],
    )
