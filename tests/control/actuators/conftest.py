"""A node with the fake driver, for this process and for those that it starts."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from greentrain.control.actuators import driver
from greentrain.testing.fake_nvml import FakeDriver, FakeGpu, build_library
from tests.control.actuators.on_fake import Node


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes long to start a guardian."""
    monkeypatch.setattr(driver, "CHANGE_S", 60.0)
    monkeypatch.setattr(driver, "CLOSE_S", 60.0)


@pytest.fixture
def node(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    with ExitStack() as stack:

        def start(*gpus: FakeGpu) -> FakeDriver:
            fake = stack.enter_context(FakeDriver(list(gpus), library=library))
            stack.enter_context(fake.installed())
            monkeypatch.setenv("FAKE_NVML_CONFIG", str(fake.state_file))
            monkeypatch.setenv("GREENTRAIN_CLAIMS_DIR", str(tmp_path / "claims"))
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
            return fake

        yield start


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process that is none of this job: another session, and no common ancestor but PID 1."""
    code = (
        "import os, time\nif os.fork():\n    os._exit(0)\nos.setsid()\nprint(os.getpid(), flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
    yield pid
    os.kill(pid, signal.SIGKILL)
