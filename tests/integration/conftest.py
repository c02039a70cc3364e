"""A laboratory: training scripts in processes of their own, on fake GPUs whose true energy is known."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from greentrain.ledger.reader import RankRecord, RunRecord, read_run
from greentrain.testing.fake_nvml import FakeDriver, FakeGpu, build_library

WORKER = Path(__file__).with_name("worker.py")


@dataclass(kw_only=True)
class Script:
    """A running script and what it said."""

    process: "subprocess.Popen[str]"
    said: list[dict[str, Any]] = field(default_factory=list)
    complaints: str | None = None

    def wait_for(self, key: str) -> dict[str, Any]:
        """Return the next JSON line that has a key."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self.said.append(json.loads(line))
                if key in self.said[-1]:
                    return self.said[-1]
        raise AssertionError(f"the script ended without {key!r}; it said {self.said}; {self.errors()}")

    def end(self, timeout_s: float = 240.0) -> int:
        """Wait for the end and return the exit code; negative: the signal that killed it."""
        out, self.complaints = self.process.communicate(timeout=timeout_s)
        self.said += [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        return self.process.returncode

    def errors(self) -> str:
        """Return what it wrote to standard error, after its end."""
        if self.complaints is None:
            self.end()
        return self.complaints or ""


class Lab:
    """Starts fake GPUs and scripts on them, and knows the truth."""

    def __init__(self, folder: Path, library: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        self._library = library
        self._stack = stack
        self._driver: FakeDriver | None = None
        self.count = 0
        self._offset_s = time.time() - time.monotonic()

    def gpus(self, *gpus: FakeGpu) -> FakeDriver:
        """Plug in GPUs."""
        self.count = len(gpus)
        self._driver = self._stack.enter_context(FakeDriver(list(gpus), library=self._library))
        return self._driver

    def config(self, **sections: Mapping[str, Any]) -> dict[str, Any]:
        """Return a configuration that measures GPUs alone into this lab's folder."""
        base: dict[str, dict[str, Any]] = {
            "run": {"dir": str(self.runs), "report": False},
            "power": {"meters": ["nvml"] if self._driver else ["null"]},
            "carbon": {"g_per_kwh": 360.0},
        }
        for name, keys in sections.items():
            base[name] = {**base.get(name, {}), **keys}
        return base

    def start(self, job: str, *, env: Mapping[str, str] | None = None, **options: Any) -> Script:
        """Start a job of worker.py."""
        return self.run(str(WORKER), job, json.dumps({"config": self.config(), **options}), env=env)

    def run(self, *words: str, env: Mapping[str, str] | None = None) -> Script:
        """Start Python with such words on the GPUs."""
        environ = self._driver.env() if self._driver else dict(os.environ)
        environ |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(env or {})}
        process = subprocess.Popen(
            [sys.executable, *words],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._stack.callback(_reap, process)
        return Script(process=process)

    def ranks(
        self,
        job: str,
        world: int,
        *,
        env: Sequence[Mapping[str, str]] = (),
        each: Sequence[Mapping[str, Any]] = (),
        **options: Any,
    ) -> list[Script]:
        """Start a job as ``world`` ranks of one node, with the variables that torchrun sets.

        Args:
            job: Name of the job in worker.py.
            world: Ranks to start.
            env: More variables, of each rank.
            each: More options, of each rank.
            options: Options of all ranks.
        """
        agent = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29555", "TORCHELASTIC_RUN_ID": "none"}
        scripts = []
        for rank in range(world):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
            environ = {**agent, **{k: str(v) for k, v in place.items()}, **(env[rank] if env else {})}
            scripts.append(self.start(job, env=environ, **{**options, **(each[rank] if each else {})}))
        return scripts

    def record(self) -> RunRecord:
        """Read the only run back."""
        folders = list(self.runs.iterdir())
        assert len(folders) == 1, f"expected one run folder, found {sorted(f.name for f in folders)}"
        return read_run(folders[0])

    def truth_j(self, rank: RankRecord, device: int) -> float:
        """Return what a GPU really used while a rank booked anything at all (J)."""
        assert self._driver is not None
        return sum(
            self._driver.true_energy_j(device, e.t0_unix_s - self._offset_s, e.t1_unix_s - self._offset_s)
            for e in rank.entries
            if self._driver.uuid(device) in e.devices
        )

    def node_truth_j(self, record: RunRecord, device: int) -> float:
        """Return what a GPU really used from the start of the rank that books it first to the last one's end (J)."""
        assert self._driver is not None
        t0_s = record.ranks[device].entries[0].t0_unix_s
        t1_s = max(rank.entries[-1].t1_unix_s for rank in record.ranks)
        return self._driver.true_energy_j(device, t0_s - self._offset_s, t1_s - self._offset_s)


def _reap(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        process.kill()
    process.communicate()


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("fake-nvml"))


@pytest.fixture
def lab(tmp_path: Path, nvml_library: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(tmp_path, nvml_library, stack)
