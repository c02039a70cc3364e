"""Signals that ask a server: no proxy, no keyring and no cache but the test's own."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from greentrain.utils.files import ENV_DIR


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Keep every test of carbon off the user's cache, keyring, keys and proxies."""
    keyring = ModuleType("keyring")
    vars(keyring)["get_password"] = lambda service, name: None
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "keyring", keyring)
        patch.setenv(ENV_DIR, str(tmp_path / "cache"))
        patch.setenv("NO_PROXY", "127.0.0.1")
        for name in ("ELECTRICITY_MAPS_TOKEN", "WATTTIME_USER", "WATTTIME_PASSWORD"):
            patch.delenv(name, raising=False)
        yield
