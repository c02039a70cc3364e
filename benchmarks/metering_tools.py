"""GreenTrain, codecarbon and zeus behind the same few calls, each in its best documented configuration.

Runs inside a worker. Energies are those of the GPUs, in joules, in the order in which the process sees them.
"""

# ruff: noqa: D102 (documented in the protocol)

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

J_PER_KWH = 3.6e6
PHASES = ("data", "forward", "backward", "optimizer")


class Tool(Protocol):
    """One tool as the benchmark uses it."""

    def start(self) -> None:
        """Begin to measure the whole run."""

    def stop(self) -> list[float]:
        """End it and return the energy by GPU (J), or one sum."""

    def begin(self, name: str) -> None:
        """Open a window."""

    def end(self, name: str) -> None:
        """Close it."""

    def windows(self) -> dict[str, list[float] | None]:
        """Return the energy by window and GPU (J)."""

    def steps(self, kind: str) -> Any:
        """Return what a training loop calls a step: ``step`` for the whole, ``phases`` for four parts of it too."""


class GreenTrainTool:
    """GreenSession; windows are read from its curve when the run ends. No option but the meters is set."""

    def __init__(
        self,
        meters: str | Sequence[str] = ("nvml",),
        folder: str = "runs",
        rapl_root: str = "/sys/class/powercap",
        **carbon: Any,
    ) -> None:
        from greentrain import GreenSession

        self._config = {
            "run": {"dir": folder, "report": False, "live": False},
            "power": {"meters": meters if isinstance(meters, str) else list(meters), "rapl_root": rapl_root},
            "carbon": carbon,
        }
        self.session = GreenSession(self._config)
        self._spans: dict[str, list[float]] = {}

    def start(self) -> None:
        self.session.start()

    def stop(self) -> list[float]:
        self.session.close()
        energies = self.session.totals().by_device
        return [energies[uid] for uid in sorted(energies) if uid.startswith("GPU-")]

    def begin(self, name: str) -> None:
        self._spans[name] = [time.monotonic()]

    def end(self, name: str) -> None:
        self._spans[name].append(time.monotonic())

    def windows(self) -> dict[str, list[float] | None]:
        found: dict[str, list[float] | None] = {}
        for name, (t0_s, t1_s) in self._spans.items():
            energies = self.session.energy(t0_s, t1_s, wait_s=2.0)
            found[name] = None if energies is None else [energies[uid] for uid in sorted(energies)]
        return found

    def steps(self, kind: str) -> Any:
        session = self.session
        if kind == "step":
            return session.step
        phases = [session.phase(name) for name in PHASES]

        def step() -> None:
            for phase in phases:
                with phase:
                    pass
            session.step(tokens=1024)

        return step


class CodeCarbonTool:
    """OfflineEmissionsTracker for the run; tasks of a tracker of its own for windows (they end a run: V7)."""

    def __init__(self, period_s: float = 1.0, model: bool = False, **options: Any) -> None:
        from codecarbon import OfflineEmissionsTracker

        settings: dict[str, Any] = {
            "country_iso_code": "FRA",
            "measure_power_secs": period_s,
            "log_level": "critical",
            "allow_multiple_runs": True,
            "output_methods": [],
        }
        if not model:
            settings |= {"force_cpu_power": 1, "force_ram_power": 1}
        self.tracker = OfflineEmissionsTracker(**(settings | options))
        self._found: dict[str, list[float] | None] = {}

    def start(self) -> None:
        self.tracker.start()

    def stop(self) -> list[float]:
        self.tracker.stop()
        return [self.tracker.final_emissions_data.gpu_energy * J_PER_KWH]

    def begin(self, name: str) -> None:
        self.tracker.start_task(name)

    def end(self, name: str) -> None:
        data = self.tracker.stop_task(name)
        self._found[name] = None if data is None else [data.gpu_energy * J_PER_KWH]

    def windows(self) -> dict[str, list[float] | None]:
        return self._found

    def steps(self, kind: str) -> Any:
        tracker = self.tracker
        names = PHASES if kind == "phases" else ("step",)

        def step() -> None:
            for name in names:
                tracker.start_task(name)
                tracker.stop_task(name)

        return step


class ZeusTool:
    """ZeusMonitor without CPU; no CUDA to wait for here; short windows as its documentation advises."""

    def __init__(
        self, gpus: Sequence[int] | None = None, cpus: Sequence[int] | None = (), log_file: str | None = None
    ) -> None:
        from zeus.monitor import ZeusMonitor

        self.monitor = ZeusMonitor(
            gpu_indices=None if gpus is None else list(gpus),
            cpu_indices=None if cpus is None else list(cpus),
            approx_instant_energy=True,
            log_file=None if log_file is None else Path(log_file),
        )
        self._found: dict[str, list[float] | None] = {}

    def start(self) -> None:
        self.monitor.begin_window("run", sync_execution=False)

    def stop(self) -> list[float]:
        return list(self.monitor.end_window("run", sync_execution=False).gpu_energy.values())

    def begin(self, name: str) -> None:
        self.monitor.begin_window(name, sync_execution=False)

    def end(self, name: str) -> None:
        energies = self.monitor.end_window(name, sync_execution=False).gpu_energy
        self._found[name] = list(energies.values())

    def windows(self) -> dict[str, list[float] | None]:
        return self._found

    def steps(self, kind: str) -> Any:
        monitor = self.monitor
        names = PHASES if kind == "phases" else ()

        def step() -> None:
            monitor.begin_window("step", sync_execution=False)
            for name in names:
                monitor.begin_window(name, sync_execution=False)
                monitor.end_window(name, sync_execution=False)
            monitor.end_window("step", sync_execution=False)

        return step


def make(tool: str, **options: Any) -> Tool:
    """Return a tool by name."""
    if tool == "greentrain":
        return GreenTrainTool(**options)
    return CodeCarbonTool(**options) if tool == "codecarbon" else ZeusTool(**options)
