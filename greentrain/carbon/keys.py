"""Keys of grid servers: from the environment or the keyring, never from a file, and never shown.

A key has no way out but the header of a request: not into a text, a log, a pickle or a cache.
"""

import contextlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NoReturn

from greentrain.errors import ConfigError

if TYPE_CHECKING:
    import httpx

    from greentrain.carbon.client import GridClient

SERVICE: Final = "greentrain"
"""Name under which keys lie in the keyring; the user name is the variable's name."""


class Secret:
    """A text that shows itself to nobody but who asks for it by name.

    Args:
        value: The text.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the text, for the header of a request."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(...)"

    __str__ = __repr__

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key is not pickled: open the signal in the process that uses it")


def find_key(variable: str, signal: str, environ: Mapping[str, str] | None = None) -> Secret:
    """Return a key from the environment, else from the keyring.

    Args:
        variable: Name of the environment variable, and of the entry in the keyring.
        signal: Who needs it, for the error.
        environ: Environment, os.environ by default.

    Raises:
        ConfigError: There is none, or it cannot be sent in a header. The text never holds the key.
    """
    found = (os.environ if environ is None else environ).get(variable) or _from_keyring(variable)
    if not found or not found.strip():
        raise ConfigError(
            f"carbon.signal {signal!r} needs a key: set the environment variable {variable}, or put it into the keyring"
            f" with: keyring set {SERVICE} {variable}"
        )
    key = found.strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{variable} holds characters that no key has (of {len(key)} in all); copy the key again")
    return Secret(key)


def _from_keyring(variable: str) -> str | None:
    """Return an entry of the keyring; None where there is no such entry or no keyring that can be opened."""
    with contextlib.suppress(Exception):  # whatever a backend throws: it is a second try
        import keyring

        return keyring.get_password(SERVICE, variable)
    return None


class NoKey:
    """Signs nothing: for servers that want no key."""

    def sign(self, request: "httpx.Request", client: "GridClient") -> None:
        """Leave the request as it is."""

    def renew(self) -> bool:
        """Return False: there is nothing to renew."""
        return False


class HeaderKey:
    """Signs with a key in a header.

    Args:
        header: Name of the header.
        secret: The key.
    """

    def __init__(self, header: str, secret: Secret) -> None:
        self._header = header
        self._secret = secret

    def sign(self, request: "httpx.Request", client: "GridClient") -> None:
        """Set the header."""
        request.headers[self._header] = self._secret.reveal()

    def renew(self) -> bool:
        """Return False: the key is what it is."""
        return False
