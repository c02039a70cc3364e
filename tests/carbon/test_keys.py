"""Keys come from the environment or the keyring, and are not shown."""

import pickle
import sys
from types import ModuleType

import pytest

from greentrain.carbon.client import SERVICE, Secret, find_key
from greentrain.errors import ConfigError

NAME = "ELECTRICITY_MAPS_TOKEN"


def keyring(monkeypatch: pytest.MonkeyPatch, entries: dict[tuple[str, str], str] | Exception) -> None:
    module = ModuleType("keyring")

    def get_password(service: str, name: str) -> str | None:
        if isinstance(entries, Exception):
            raise entries
        return entries.get((service, name))

    vars(module)["get_password"] = get_password
    monkeypatch.setitem(sys.modules, "keyring", module)


def test_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    keyring(monkeypatch, {(SERVICE, NAME): "of the ring"})
    assert find_key(NAME, "x", {NAME: " of-the-shell\n"}).reveal() == "of-the-shell"
    assert find_key(NAME, "x", {}).reveal() == "of the ring"
    assert find_key(NAME, "x", {NAME: ""}).reveal() == "of the ring"


@pytest.mark.parametrize("entries", [{}, {(SERVICE, NAME): "  "}, RuntimeError("no backend"), OSError("no bus")])
def test_none_at_all_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, entries: dict[tuple[str, str], str] | Exception
) -> None:
    keyring(monkeypatch, entries)
    with pytest.raises(ConfigError, match=f"'electricity_maps'.*{NAME}.*keyring set greentrain {NAME}"):
        find_key(NAME, "electricity_maps", {})


def test_without_the_keyring_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(ConfigError, match="needs a key"):
        find_key(NAME, "x", {})


@pytest.mark.parametrize("bad", ["two\nlines", "caf\u00e9-key", "nul\0"])
def test_a_key_that_cannot_be_sent_is_refused_unseen(bad: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_key(NAME, "x", {NAME: bad})
    assert bad not in str(caught.value) and repr(bad)[1:-1] not in str(caught.value)


def test_a_secret_keeps_itself() -> None:
    secret = Secret("hush-hush")
    for text in (repr(secret), str(secret), f"{secret}", f"{[secret]}"):
        assert "hush" not in text
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(secret)
