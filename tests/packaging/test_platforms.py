"""Platforms that are not at hand, simulated: a measured run where /proc, /sys, modules and signals are missing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from greentrain.cli import app
from greentrain.config.schema import ActuatorsConfig, ClocksConfig, PowerCapConfig
from greentrain.control import controller
from greentrain.control.plan.schedule import Pause
from greentrain.errors import ConfigError
from greentrain.ledger.journal import Journal, read_journal
from greentrain.types import Topology

ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).resolve().parents[1] / "helpers" / "platform_job.py"
FOLDERS = ("greentrain", "callbacks", "fpga_backend", "optim", "recipes")


@pytest.mark.sweep
@pytest.mark.parametrize("platform", ["windows", "macos", "container"])
def test_a_run_is_measured_and_reported(tmp_path: Path, platform: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default", "COLUMNS": "200"}
    environment["GREENTRAIN_CACHE_DIR"] = str(tmp_path / "cache")
    command = [sys.executable, str(JOB), platform, str(tmp_path / "runs")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    *runs, doctor, report, config, launch = [line for line in done.stdout.splitlines() if line]
    for scope, run, missing in zip(("process_tree", "machine"), runs[::2], runs[1::2], strict=False):
        assert run.startswith(f"{scope} 10 2 True ['modelled'] ") and run.endswith("report.html")
        assert missing.startswith("missing 0.0 of ") and missing.endswith("['model:cpu', 'model:dram']")
    assert len(runs) == (2 if platform == "container" else 4)
    assert [line.rpartition(" None")[0] for line in (doctor, report, config)] == ["doctor 0", "report 0", "config 0"]
    reason = "needs the signals and locks of POSIX" if platform == "windows" else "there is no script x.py"
    assert launch.startswith("launch 2") and reason in launch
    assert "Traceback" not in done.stderr


def test_a_torn_journal_is_closed_without_pread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pread")
    path = tmp_path / "rank-00000.jsonl"
    path.write_bytes(b'{"kind":"event","n":1}\n{"kind":"ev')
    journal = Journal(path)
    journal.append({"kind": "event", "n": 2})
    journal.close()
    assert [record["n"] for record in read_journal(path)] == [1, 2]
    assert path.read_bytes().count(b"\n") == 3 and b"\r" not in path.read_bytes()


def test_a_pause_needs_no_sigcont(monkeypatch: pytest.MonkeyPatch) -> None:
    import signal

    monkeypatch.delattr(signal, "SIGCONT")
    looks = []

    def look() -> bool:
        looks.append(1)
        return True

    Pause(free_cache=False).hold(look)
    assert looks


@pytest.mark.parametrize(
    "config", [ActuatorsConfig(power_cap=PowerCapConfig()), ActuatorsConfig(clocks=ClocksConfig())]
)
def test_limits_are_refused_where_nobody_could_put_them_back(
    config: ActuatorsConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    from greentrain.control.actuators import clocks, driver, power_cap  # noqa: F401  before their libraries ask

    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ConfigError, match="leave both out on Windows"):
        controller.GpuLimits.open(config, Topology(), pytest.fail)
    assert controller.GpuLimits.open(ActuatorsConfig(), Topology(), pytest.fail).caps == (1.0,)


def test_measure_waits_for_its_child_without_waitid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "waitid")
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"]) as child:
        app._await(child)
        assert child.returncode == 7


def _interpreter(version: str) -> str | None:
    """Return an interpreter of a version, on the path or where pyenv keeps them."""
    found = shutil.which(f"python{version}")
    kept = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python"))
    for candidate in (found, *map(str, kept)):
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


@pytest.mark.sweep
@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_the_sources_are_python_of_later_versions(version: str, tmp_path: Path) -> None:
    interpreter = _interpreter(version)
    if interpreter is None:
        pytest.skip(f"no Python {version} here")
    code = (
        "import ast, pathlib, sys, warnings\n"
        "warnings.simplefilter('error')\n"
        "paths = [p for folder in sys.argv[2:] for p in pathlib.Path(sys.argv[1], folder).rglob('*.py')]\n"
        "[compile(p.read_text(encoding='utf-8'), str(p), 'exec') for p in paths]\n"
        "print(len(paths))\n"
    )
    done = subprocess.run([interpreter, "-c", code, str(ROOT), *FOLDERS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 200
