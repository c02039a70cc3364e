"""The world of the chaos test: a supervised job, its driver, its disks and its facility's server."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from greentrain.control.launch.checkpoints import newest
from greentrain.control.launcher_protocol import ENV_DIR, LauncherFiles
from greentrain.testing.fake_nvml import FakeDriver, FakeGpu, GpuState, Wave
from tests.integration.chaos_disk import ChaosDisk
from tests.integration.chaos_server import PueServer

JOB: Final = Path(__file__).with_name("chaos_job.py")
ADMIN_W: Final = 650.0
GPUS: Final = 2
STEP_S: Final = 0.04
"""Of one rank, while faults last; two take half of it."""
EVERY: Final = 10
"""Steps from checkpoint to checkpoint."""
BOOK_S: Final = 1.0
ASSUMED_PUE: Final = 1.3
G_PER_KWH: Final = (600.0, 100.0)
"""Four hours of each."""
DAYS_BEFORE: Final = 3
DAYS: Final = 8
ROWS: Final = """
- {gear: fp32, ranks: 1, tokens_per_s: 200, power_w: 1300}
- {gear: fp32, ranks: 1, cap: 0.8, tokens_per_s: 190, power_w: 1040}
- {gear: fp32, ranks: 2, tokens_per_s: 390, power_w: 1400}
- {gear: fp32, ranks: 2, cap: 0.8, tokens_per_s: 370, power_w: 1100}
"""
MARKS: Final = {
    "keeper": b"keeper.py",
    "agent": b"greentrain.control.launch.agent",
    "fork server": b"multiprocessing.forkserver",
    "guardian": b"guardian_main.py",
}
"""What their command lines hold."""


class World:
    """One job that is to survive ``seconds`` of faults.

    Args:
        folder: An empty folder.
        seconds: How long faults last (s): a day of the grid passes in it.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder, self.seconds = folder, seconds
        self.seen, self.launch, self.saved, self.runs = (folder / name for name in ("seen", "launch", "saved", "runs"))
        self.logs = folder / "logs"
        for path in (self.seen, self.launch, self.saved, self.runs, self.logs):
            path.mkdir()
        self.steps = round(1.4 * seconds / STEP_S)
        """Seven tenths of the time on two ranks."""
        self.handover = LauncherFiles(self.launch)
        self.supervisor: subprocess.Popen[bytes] | None = None
        self.began_s = time.monotonic()
        self.ends: list[tuple[float, float, int, str]] = []
        """When each supervisor was started and ended (s after the start), its code, and the phase on disk."""
        self._started_s = 0.0
        with ExitStack() as stack:
            gpu = FakeGpu(power=(Wave(low_w=600.0),), limit_w=ADMIN_W, obeys_limit=True)
            self.driver = stack.enter_context(FakeDriver([gpu] * GPUS))
            self.untouched: GpuState = self.driver.state(0)
            self.server = PueServer()
            stack.callback(self.server.close)
            folders = {"launch": self.launch, "saved": self.saved, "runs": self.runs, "logs": self.logs}
            self.disk = ChaosDisk(folder, folders)
            stack.callback(self.disk.close)
            self._said = stack.enter_context((self.logs / "said.txt").open("ab"))
            self._stack = stack.pop_all()
        config = self._config()
        options = {"config": config, "saved": str(self.saved), "steps": self.steps, "every": EVERY, "step_s": STEP_S}
        (self.seen / "options.json").write_text(json.dumps(options))
        (folder / "green.yaml").write_text(json.dumps(config))  # JSON is YAML

    def start(self) -> None:
        """Start the supervisor; every time with the same words."""
        words = [
            "--config",
            "green.yaml",
            "--dir",
            str(self.launch),
            "--width",
            "1:2",
            "--checkpoints",
            str(self.saved),
        ]
        words += ["--retries", "1000", "--back-off", "0.05", "--grace", "3"]
        job = [sys.executable, str(JOB), str(self.seen)]
        environ = self.driver.env() | self.disk.environ()
        environ |= {"GREENTRAIN_CLAIMS_DIR": str(self.folder / "claims")}
        environ |= {"GREENTRAIN_CACHE_DIR": str(self.folder / "cache")}
        self._started_s = self.now_s
        self.supervisor = subprocess.Popen(
            [sys.executable, "-m", "greentrain", "launch", *words, "--", *job],
            env=environ,
            cwd=self.folder,
            stdout=self._said,
            stderr=subprocess.STDOUT,
        )

    def tend(self) -> int | None:
        """Start the supervisor where there is none; return the code with which the last one has ended, if one has."""
        code = None
        if self.supervisor is not None:
            code = self.supervisor.poll()
            if code is None:
                return None
            self.ends.append((self._started_s, self.now_s, code, self.phase))
            self.supervisor = None
        if code != 0:
            self.start()
        return code

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began_s

    @property
    def phase(self) -> str:
        """Phase in the state on disk, "" where that cannot be read."""
        try:
            return str(json.loads((self.launch / "state.json").read_text())["phase"])
        except (OSError, ValueError, KeyError):
            return ""

    @property
    def said(self) -> str:
        """What supervisors and trainings said."""
        return (self.logs / "said.txt").read_text(errors="replace")

    @property
    def journals(self) -> list[Path]:
        """The journals of all runs."""
        return sorted(self.runs.glob("*/rank-*.jsonl"))

    @property
    def whole(self) -> list[Path]:
        """Checkpoints, oldest first."""
        return sorted(self.saved.glob("step-*.pt"))

    def has_checkpoint(self) -> bool:
        """Return whether there is one to go on from."""
        return newest(self.saved).newest is not None

    def lives(self) -> list[dict[str, Any]]:
        """Return what every process that trained has noted: its head, and its steps."""
        out = []
        for path in sorted(self.seen.glob("seen-*.jsonl"), key=lambda path: int(path.stem.split("-")[1])):
            lines = path.read_text().splitlines(keepends=True)
            whole = [json.loads(line) for line in lines if line.endswith("\n")]
            if whole:
                out.append({**whole[0], "steps": whole[1:], "born_s": int(path.stem.split("-")[1]) / 1e9})
        return out

    def workers(self) -> list[int]:
        """Return the training processes that live."""
        named = {int(path.stem.split("-")[2]) for path in self.seen.glob("seen-*.jsonl")}
        return sorted(named & set(self.processes()))

    def processes(self) -> list[int]:
        """Return all processes of the job but its supervisor."""
        wanted, out = f"{ENV_DIR}={self.launch}".encode(), []
        for pid in _pids():
            try:
                ours = wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if ours and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                    out.append(pid)
            except OSError:
                continue
        return out

    def of_kind(self, kind: str) -> list[int]:
        """Return the processes of one of MARKS."""
        out = []
        for pid in self.processes():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            wanted = MARKS[kind]
            # The keeper's words hold those of the agent, and a fork has those of its parent.
            if any(wanted in word for word in (words if kind in ("keeper", "guardian") else words[1:3])):
                out.append(pid)
        return [pid for pid in out if pid not in self.workers()]

    def names(self) -> dict[int, str]:
        """Return the command lines of the job's processes."""
        out = {}
        for pid in self.processes():
            try:
                out[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
            except OSError:
                continue
        return out

    def close(self) -> None:
        """End everything that the job has started."""
        if self.supervisor is not None:
            self.supervisor.kill()
            self.supervisor.wait()
        for _ in range(200):
            left = self.processes()
            if not left:
                break
            for pid in left:
                send(pid, signal.SIGKILL)
            time.sleep(0.05)
        with suppress(BufferError):  # a failed test still holds a view of the driver
            self._stack.close()

    def _config(self) -> dict[str, Any]:
        hours = range(24 * DAYS)
        rows = [f"2022-05-{20 + hour // 24}T{hour % 24:02}:00Z,{G_PER_KWH[hour // 4 % 2]}\n" for hour in hours]
        (self.folder / "grid.csv").write_text("timestamp_utc,g_per_kwh\n" + "".join(rows))
        (self.folder / "actions.yaml").write_text(ROWS)
        return {
            "run": {"dir": str(self.runs), "report": False, "live": False, "book_s": BOOK_S},
            "power": {"meters": ["nvml", "cpu_model"], "sample_s": 0.05},
            "carbon": {
                "signal": "trace",
                "trace_csv": str(self.folder / "grid.csv"),
                "replay_start": f"2022-05-{20 + DAYS_BEFORE}T04:00Z",
                "speed": 86_400 / self.seconds,
                "pue": ASSUMED_PUE,
                "pue_prometheus_url": self.server.url,
                "pue_prometheus_query": "site_pue",
            },
            "precision": {"gears": ["fp32"], "probe_every": 0},
            "policy": {
                "name": "mpc",
                "tokens": self.steps * 8,
                "deadline_h": 48,
                "actions": str(self.folder / "actions.yaml"),
                "released": True,
                "decide_s": 1800,
                "switch_s": 60,
            },
            "actuators": {
                "min_away_s": 7200,
                "power_cap": {"fractions": [1.0, 0.8], "dwell_s": 0.5},
                "clocks": {"window_s": 1.0},
                "width": {"min": 1, "max": 2, "global_batch": 8},
            },
        }


def send(pid: int, signum: int) -> bool:
    """Send a signal; return whether the process was there."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return False
    return True


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())
