"""Who may ask: a token in a header, or, for clients that take nothing but a URL, in the URL's user part."""

import base64
import binascii
import hmac
import ipaddress
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from greentrain.errors import ConfigError

SHORTEST = 16
"""Characters of a token."""


class Access:
    """Compares what a request carries with the token, in a time that does not depend on where they differ.

    ``Authorization: Bearer TOKEN`` and ``Basic`` with the token as password count. aiohttp, httpx, requests and curl
    send the latter for ``http://any:TOKEN@host``; the token is then in no request line and so in no proxy's log.
    Without a token, only requests whose ``Host`` is this machine count: a web page that had its name rebound to
    127.0.0.1 has another one.

    Args:
        token: At least 16 characters of ASCII, or None: everybody on this machine may ask.

    Raises:
        ConfigError: The token is too short.
    """

    def __init__(self, token: str | None) -> None:
        if token is not None and (len(token) < SHORTEST or not token.isascii() or not token.isprintable()):
            raise ConfigError(
                f"the token has {len(token)} characters: give at least {SHORTEST} printable ones of ASCII"
            )
        self._token = None if token is None else token.encode("ascii")

    @property
    def is_open(self) -> bool:
        """True if no token is asked for."""
        return self._token is None

    def allows(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Return True if a request with these headers (names in lower case) may be answered."""
        found = dict(headers)
        if self._token is None:
            name = found.get(b"host", b"").decode("latin-1").lower()
            return _is_local(name) or _is_local(name.rpartition(":")[0])
        return hmac.compare_digest(_given(found.get(b"authorization", b"")), self._token)


def token_of(file: Path) -> str:
    """Return the token that a file holds; make the file, for its owner alone to read, where it is missing.

    Raises:
        ConfigError: It cannot be read or made, or holds no token.
    """
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as made:
            token = secrets.token_urlsafe(32)
            made.write(f"{token}\n")
            return token
    except FileExistsError:
        pass
    except OSError as error:
        raise ConfigError(f"the token file {file} cannot be made: {error.strerror}") from error
    try:
        found = file.read_text(encoding="ascii").strip()
        shared = file.stat().st_mode & 0o077
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token file {file} cannot be read as ASCII: {error}") from error
    if shared:
        raise ConfigError(f"the token file {file} can be read by others: chmod 600 {file}")
    Access(found)
    return found


def _is_local(name: str) -> bool:
    """Return True for localhost and for loopback addresses in figures, to which no name can be rebound."""
    try:
        return name == "localhost" or ipaddress.ip_address(name.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def _given(header: bytes) -> bytes:
    scheme, _, value = header.partition(b" ")
    value = value.strip()
    if scheme.lower() == b"bearer":
        return value
    if scheme.lower() == b"basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[2]
        except binascii.Error:
            return b""
    return b""
