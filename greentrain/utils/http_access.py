"""Who may ask a server: a token that lies in a file of its owner, and the names under which it may be asked."""

import base64
import binascii
import hmac
import ipaddress
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from greentrain.errors import ConfigError

SHORTEST: Final = 16
"""Characters of a token."""


def token_of(file: Path) -> str:
    """Return the token that a file holds; make the file, for its owner alone to read, where it is missing.

    Raises:
        ConfigError: It cannot be read or made, can be read by others, or holds no token.
    """
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as made:
            token = secrets.token_urlsafe(32)
            made.write(f"{token}\n")
            return token
    except FileExistsError:
        return kept_token(file)
    except OSError as error:
        raise ConfigError(f"the token file {file} cannot be made: {error.strerror}") from error


def kept_token(file: Path) -> str:
    """Return the token that a file holds.

    Raises:
        ConfigError: It cannot be read, can be read by others, or holds no token.
    """
    try:
        found = file.read_text(encoding="ascii").strip()
        shared = file.stat().st_mode & 0o077
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token file {file} cannot be read as ASCII: {error}") from error
    if shared and os.name == "posix":  # elsewhere the mode says nothing
        raise ConfigError(f"the token file {file} can be read by others: chmod 600 {file}")
    check_token(found)
    return found


def check_token(token: str) -> None:
    """Check that a token is long enough and can stand in a header.

    Raises:
        ConfigError: It is not.
    """
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable():
        raise ConfigError(f"the token has {len(token)} characters: give at least {SHORTEST} printable ones of ASCII")


class Access:
    """Compares what a request carries with the token, in a time that does not depend on where they differ.

    ``Authorization: Bearer TOKEN`` and ``Basic`` with the token as password count. aiohttp, httpx, requests and curl
    send the latter for ``http://any:TOKEN@host``; the token is then in no request line and so in no proxy's log.
    Without a token, only requests whose ``Host`` is this machine count: a web page that had its name rebound to
    127.0.0.1 has another one.

    Args:
        token: Token of at least 16 characters of ASCII; None: everybody on this machine may ask.

    Raises:
        ConfigError: The token is too short.
    """

    def __init__(self, token: str | None) -> None:
        if token is not None:
            check_token(token)
        self._token = None if token is None else token.encode("ascii")
        self._names = HostNames("localhost")

    @property
    def is_open(self) -> bool:
        """True if no token is asked for."""
        return self._token is None

    def allows(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Return True if a request with these headers (names in lower case) may be answered."""
        found = dict(headers)
        if self._token is None:
            return self._names.allow(found)
        return hmac.compare_digest(_given(found.get(b"authorization", b"")), self._token)


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


class HostNames:
    """The names under which a server is asked: a page whose own name was rebound to this machine has another.

    Args:
        host: Address or name that the server listens at.
        more: Further names, as of a proxy before it.

    Raises:
        ConfigError: A further name is empty, or has a port, a path or a blank in it.
    """

    def __init__(self, host: str, more: Iterable[str] = ()) -> None:
        more = [name.lower() for name in more]
        for name in more:
            if not name or (set(name) & set(":/[]@ ") and _address(name) is None):
                raise ConfigError(f"--name is {name!r}; give a host name without scheme and port, as runs.example")
        self._names = {"localhost", host.lower(), *more} - {""}
        self._any_address = not is_loopback(host)

    def allow(self, headers: Mapping[bytes, bytes]) -> bool:
        """Return True if the Host of a request is one of them; an address in figures cannot be rebound."""
        name = _without_port(headers.get(b"host", b"").decode("latin-1").lower())
        address = _address(name)
        return name in self._names or (address is not None and (self._any_address or address.is_loopback))


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach an address."""
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _without_port(name: str) -> str:
    if name.startswith("["):
        address, _, rest = name[1:].partition("]")
        return address if not rest or rest.startswith(":") else ""
    return name.partition(":")[0]
