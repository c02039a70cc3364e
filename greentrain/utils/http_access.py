"""Who may ask: a token in a header, or, for clients that take nothing but a URL, in the URL's user part."""

import base64
import binascii
import hmac
import ipaddress
from collections.abc import Iterable

from greentrain.utils.token_file import check_token


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
        if token is not None:
            check_token(token)
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


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
