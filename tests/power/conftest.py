"""The fake driver library, built once, and a way to put GPUs into it."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from greentrain.testing.fake_nvml import FakeDriver, FakeGpu, build_library
from tests.power.on_fake import Install


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def install(library: Path) -> Iterator[Install]:
    with ExitStack() as stack:

        def start(*gpus: FakeGpu, **options: Any) -> FakeDriver:
            driver = stack.enter_context(FakeDriver(list(gpus), library=library, **options))
            stack.enter_context(driver.installed())
            return driver

        yield start
