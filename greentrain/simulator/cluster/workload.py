"""Jobs of a fleet: drawn from a generator that public traces were fitted to, or read from a file.

The constants in capitals that name no assumption are what ``python benchmarks/fleet_fit.py FOLDER`` prints of two
public traces, which are not shipped: 83,154 runtimes of Microsoft's Philly cluster (Jeon et al., USENIX ATC 2019) and
the pods of Alibaba's GPU cluster of 2023 (Weng et al., USENIX ATC 2023), read 2026-11-28. Pods of the latter are
narrow, mostly of one GPU, so how wide trainings are is assumed, as are users and deadlines; both traces are silent on
them.
"""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from greentrain.errors import ConfigError
from greentrain.policy.action_sources import BOARD_W, CAPS, FP8_SPEEDUP, NODE_TOKENS_PER_S, NODE_W, SHARED
from greentrain.policy.action_table import ActionTable
from greentrain.policy.menu import Menu
from greentrain.types import S_PER_HOUR
from greentrain.utils.validation import bound

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

LENGTH_WEIGHT: Final = (0.953, 0.0467)
"""Shares of the two log-normals that runtimes mix: the many that end soon, and the few that take most of the time."""
LENGTH_LN_S: Final = (6.96, 11.9)
LENGTH_LN_SD: Final = (1.73, 0.992)
NARROW_SHARE: Final = (0.989, 0.00227, 0.00212, 0.00623)
"""Of jobs of at most eight GPUs: those of 1, 2, 4 and 8."""
BY_HOUR: Final = (
    1.41, 1.46, 1.47, 1.31, 1.25, 1.24, 1.2, 1.05, 0.911, 0.816, 0.67, 0.553,
    0.525, 0.538, 0.478, 0.405, 0.504, 0.64, 0.934, 1.26, 1.49, 1.4, 1.27, 1.21,
)  # fmt: skip
"""Arrivals over their mean; the hour that the trace begins at is unknown."""
BY_DAY: Final = (1.28, 1.04, 1.06, 1.19, 0.999, 0.652, 0.776)
BURST_SHAPE: Final = 6.77
"""Of the gamma distribution of mean 1 by which an hour is busier than hour and day say."""

WIDE_SHARE: Final = 0.7
"""Of jobs that are trainings on whole nodes: assumed."""
WIDE_GPUS: Final = (8, 16, 32, 64, 128, 256, 512)
"""Their widths, the probability of each falling by its square root: assumed."""
SHORTEST_H: Final = 1.0
LONGEST_H: Final = 5 * 24.0
"""Shorter jobs are not worth a plan; longer ones are sent as several: assumed."""
SLACKS: Final = (1.5, 2.0, 3.0, 4.0)
"""Times from release to deadline over the shortest possible, each as likely: assumed."""
AT_LEAST_H: Final = 6.0
MOST_H: Final = 72.0
"""Every deadline leaves at least and at most as much over the shortest possible time: assumed, a long afternoon and
three days."""
USERS: Final = 40
"""The n-th most active one sends 1/n of what the first does (Zipf): assumed."""


@cache
def menu_of_width(gpus: int) -> Menu:
    """Return the choices of a job that uses so many GPUs at most: the reference table, cut into up to eight units.

    Args:
        gpus: Most GPUs of the job: up to eight, or a multiple of eight.

    Raises:
        ConfigError: The width is none of these.
    """
    if not (1 <= gpus <= 8 or (gpus > 0 and gpus % 8 == 0)):
        raise ConfigError(f"a job has {gpus} GPUs; a job takes 1 to 8, or a multiple of 8")
    units = min(gpus, 8)
    each = gpus // units
    rows: list[dict[str, Any]] = [
        {
            "gear": gear,
            "ranks": unit * each,
            "cap": cap,
            "tokens_per_s": NODE_TOKENS_PER_S / 8 * unit * each / (1 + SHARED * (unit - 1)) * speedup * left,
            "power_w": unit * each * (NODE_W / 8 + BOARD_W * cap),
        }
        for unit in range(1, units + 1)
        for gear, speedup in (("bf16", 1.0), ("fp8", FP8_SPEEDUP))
        for cap, left in CAPS.items()
    ]
    return Menu.of(ActionTable.declare(rows, device=f"{gpus} H100", where=f"reference of {gpus} GPUs"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """n jobs in order of their release; times count from the start of the simulation."""

    release_s: Array
    """(n,) when a job is sent."""
    deadline_s: Array
    """(n,)"""
    tokens: Array
    """(n,) what it takes."""
    expected_tokens: Array
    """(n,) what its user says it takes."""
    gpus: Ints
    """(n,) most GPUs that it uses."""
    user: Ints
    """(n,)"""

    def __post_init__(self) -> None:
        for key, least in (("release_s", 0.0), ("tokens", 0.0), ("expected_tokens", 0.0)):
            bad = np.flatnonzero(~(np.isfinite(getattr(self, key)) & (getattr(self, key) >= least)))
            if bad.size:
                raise ConfigError(
                    f"{key} of job {bad[0]} is {getattr(self, key)[bad[0]]:g}; it must be {least:g} or more"
                )
        late = np.flatnonzero(~(self.deadline_s > self.release_s))
        if late.size:
            i = late[0]
            raise ConfigError(
                f"the deadline of job {i} ({self.deadline_s[i] / S_PER_HOUR:g} h) is not after its release"
                f" ({self.release_s[i] / S_PER_HOUR:g} h)"
            )

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths that there are; ``kind`` counts in them."""
        return tuple(np.unique(self.gpus).tolist())

    @property
    def kind(self) -> Ints:
        """(n,) index of each job's width, and so of its menu."""
        return np.searchsorted(self.widths, self.gpus)

    @property
    def menus(self) -> tuple[Menu, ...]:
        """The menu of each width."""
        return tuple(menu_of_width(width) for width in self.widths)

    @property
    def shortest_s(self) -> Array:
        """(n,) how long each takes alone, at its fastest."""
        fastest = np.array([menu.tokens_per_s[menu.fastest] for menu in self.menus])
        return np.asarray(self.tokens / fastest[self.kind])

    def with_errors(self, deviation: float, seed: int = 0) -> "Workload":
        """Return the same jobs with wrong estimates of their length.

        Args:
            deviation: Standard deviation of the logarithm of what users say over what it takes.
            seed: Seed of the draw.
        """
        factor = np.exp(np.random.default_rng(seed).normal(0.0, deviation, len(self)))
        return replace(self, expected_tokens=self.tokens * factor)

    @classmethod
    def drawn(
        cls,
        *,
        count: int,
        days: float,
        gpus: int,
        load: float,
        seed: int = 0,
        widest: int = max(WIDE_GPUS),
        longest_h: float = LONGEST_H,
    ) -> "Workload":
        """Return jobs like those of the traces that bring a load. The same arguments give the same jobs.

        Lengths are drawn as the traces say, cut to 1 h to 5 days, and then all stretched alike until the load is met.

        Args:
            count: Number of jobs.
            days: Days in which they are sent.
            gpus: GPUs of the cluster.
            load: Share of the GPUs' time in these days that the jobs take at their fastest.
            seed: Seed of the draw.
            widest: Most GPUs of a job.
            longest_h: Longest job (h).

        Raises:
            ConfigError: A figure is out of its range, or so many jobs cannot bring such a load within the lengths.
        """
        for key, value, low, high in (
            ("jobs", count, 1, 1e6),
            ("days", days, 0.01, 3660),
            ("gpus", gpus, 1, 1e7),
            ("widest", widest, 1, 1e5),
            ("load", load, 0.001, 1.5),
            ("longest_h", longest_h, SHORTEST_H, 1e4),
        ):
            bound(key, value, low, high)
        rng = np.random.default_rng(seed)
        hours = np.arange(math.ceil(days * 24))
        rate = np.array(BY_HOUR)[hours % 24] * np.array(BY_DAY)[hours // 24 % 7]
        rate *= rng.gamma(BURST_SHAPE, 1 / BURST_SHAPE, len(hours)) * np.minimum(1.0, days * 24 - hours)
        release_s = np.sort((rng.choice(hours, count, p=rate / rate.sum()) + rng.random(count)) * S_PER_HOUR)
        wide = np.array([width for width in WIDE_GPUS if width <= min(widest, gpus)] or [min(widest, gpus)])
        taken = rng.choice(wide, count, p=wide**-0.5 / np.sum(wide**-0.5))
        narrow = rng.choice((1, 2, 4, 8), count, p=np.array(NARROW_SHARE) / sum(NARROW_SHARE))
        width = np.minimum(np.where(rng.random(count) < WIDE_SHARE, taken, narrow), min(widest, gpus))
        length_h = _stretched(_lengths_h(rng, count, longest_h), width, load * gpus * days * 24, longest_h)
        shares = 1.0 / np.arange(1, USERS + 1)
        tokens = length_h * S_PER_HOUR * np.array([_fastest(int(one)) for one in width])
        room_h = length_h + np.clip((rng.choice(SLACKS, count) - 1) * length_h, AT_LEAST_H, MOST_H)
        return cls(
            release_s=release_s,
            deadline_s=np.ceil(release_s / S_PER_HOUR + room_h) * S_PER_HOUR,
            tokens=tokens,
            expected_tokens=tokens,
            gpus=width.astype(np.int64),
            user=rng.choice(USERS, count, p=shares / shares.sum()),
        )

    @classmethod
    def read(cls, path: Path | str) -> "Workload":
        """Read jobs from a CSV file: ``release_h,deadline_h,gpus,gpu_h,user`` and, if wanted, ``expected_gpu_h``.

        ``gpu_h`` are GPU-hours at the job's fastest, hours count from the start of the simulation.

        Args:
            path: The file.

        Raises:
            ConfigError: The file cannot be read, lacks a column or a value is none; names file, line and value.
        """
        found: list[tuple[float, ...]] = []
        names: dict[str, int] = {}
        try:
            with Path(path).open(encoding="utf-8", newline="") as file:
                for line, row in enumerate(csv.DictReader(file), 2):
                    try:
                        release, deadline, gpus, gpu_h = (float(row[key]) for key in _COLUMNS)
                        expected = float(row.get("expected_gpu_h") or gpu_h)
                        speed = _fastest(int(gpus)) / gpus
                    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
                        raise ConfigError(
                            f"{path}, line {line}: {error}: a job needs {', '.join(_COLUMNS)} as numbers, and user"
                        ) from error
                    user = names.setdefault(row.get("user") or "", len(names))
                    found.append((release, deadline, gpu_h * speed, expected * speed, gpus, user))
        except OSError as error:
            raise ConfigError(f"{path} cannot be read ({error.strerror}): name a file of jobs") from error
        if not found:
            raise ConfigError(f"{path} has no jobs: give at least one")
        rows = np.array(sorted(found))
        return cls(
            release_s=rows[:, 0] * S_PER_HOUR,
            deadline_s=rows[:, 1] * S_PER_HOUR,
            tokens=rows[:, 2] * S_PER_HOUR,
            expected_tokens=rows[:, 3] * S_PER_HOUR,
            gpus=rows[:, 4].astype(np.int64),
            user=rows[:, 5].astype(np.int64),
        )

    def write(self, path: Path | str) -> None:
        """Write the jobs to a CSV file as :meth:`read` takes it."""
        speed = np.array([_fastest(int(one)) / int(one) for one in self.gpus]) * S_PER_HOUR
        with Path(path).open("w", encoding="utf-8", newline="") as file:
            out = csv.writer(file)
            out.writerow((*_COLUMNS, "user", "expected_gpu_h"))
            for i in range(len(self)):
                hours = self.release_s[i] / S_PER_HOUR, self.deadline_s[i] / S_PER_HOUR
                work = self.tokens[i] / speed[i], f"u{self.user[i]}", self.expected_tokens[i] / speed[i]
                out.writerow((*hours, int(self.gpus[i]), *work))


_COLUMNS: Final = ("release_h", "deadline_h", "gpus", "gpu_h")


def _fastest(gpus: int) -> float:
    menu = menu_of_width(gpus)
    return float(menu.tokens_per_s[menu.fastest])


def _lengths_h(rng: np.random.Generator, count: int, longest_h: float) -> Array:
    """Return lengths as the traces say, those outside the limits drawn anew."""
    found: Sequence[Array] = ()
    weight = np.array(LENGTH_WEIGHT) / sum(LENGTH_WEIGHT)
    while sum(map(len, found)) < count:
        part = rng.choice(2, 8 * count, p=weight)
        drawn = np.exp(rng.normal(np.array(LENGTH_LN_S)[part], np.array(LENGTH_LN_SD)[part])) / S_PER_HOUR
        found = (*found, drawn[(drawn >= SHORTEST_H) & (drawn <= longest_h)])
    return np.concatenate(found)[:count]


def _stretched(length_h: Array, width: Ints, gpu_h: float, longest_h: float) -> Array:
    """Return the lengths times a factor, within the limits, that take so many GPU-hours together."""
    low, high = 1e-3, 1e3
    for _ in range(60):
        middle = math.sqrt(low * high)
        fits = float(np.clip(middle * length_h, SHORTEST_H, longest_h) @ width) <= gpu_h
        low, high = (middle, high) if fits else (low, middle)
    found = np.clip(low * length_h, SHORTEST_H, longest_h)
    if not 0.95 < float(found @ width) / gpu_h < 1.001:
        least, most = SHORTEST_H * width.sum() / gpu_h, longest_h * width.sum() / gpu_h
        raise ConfigError(
            f"{len(width)} jobs of {SHORTEST_H:g} to {longest_h:g} h bring {least:.3g} to {most:.3g} times the load"
            " that is asked for: take another number of jobs, of GPUs or another load"
        )
    return found
