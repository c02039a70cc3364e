"""Where a server is, and the token that it alone is told: the standard library only."""

import http.client
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from greentrain.errors import ConfigError

URL_VARIABLE: Final = "GREENTRAIN_URL"
TOKEN_VARIABLE: Final = "GREENTRAIN_TOKEN"
TOKEN_FILE_VARIABLE: Final = "GREENTRAIN_TOKEN_FILE"

_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}
_EXAMPLE: Final = "write one such as http://127.0.0.1:8700"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Of one server."""

    name: str
    """The URL without its user part: for messages."""
    scheme: str
    host: str
    port: int
    path: str
    """Before the route, without a slash at its end."""
    token: str = field(repr=False)
    """Empty: none."""

    @classmethod
    def of(cls, url: str, token: str | None) -> "Address":
        """Return the address in a URL.

        Args:
            url: With http or https. A password in it is the token, decoded as browsers encode it.
            token: In place of the password. None and no password: that of the environment.

        Raises:
            ConfigError: It is no such URL, or the token cannot stand in a header. The message holds no password.
        """
        parts = urlsplit(url.strip())
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ConfigError(f"url={url.rpartition('@')[2]!r} is no address of a server: {_EXAMPLE}")
        try:
            port = parts.port
        except ValueError:
            raise ConfigError(
                f"the address of {parts.hostname} has a port that is none from 0 to 65535: {_EXAMPLE}; write a comma "
                "in a password as %2C"
            ) from None
        found = token if token is not None else unquote(parts.password or "") or _token()
        if not (found.isascii() and found.isprintable()):
            raise ConfigError(
                f"the token for {parts.hostname} holds a line break, or what is not ASCII, which no header can: give "
                "the one line that the server's token file holds"
            )
        path = parts.path.rstrip("/")
        return cls(
            name=f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}",
            scheme=parts.scheme,
            host=parts.hostname,
            port=_PORTS[parts.scheme] if port is None else port,
            path=path,
            token=found,
        )

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """Return a connection that is opened by its first request. No proxy, and no redirect is followed.

        Args:
            timeout_s: Of each wait for the server (s).
        """
        if self.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)


def _token() -> str:
    if given := os.environ.get(TOKEN_VARIABLE):
        return given
    file = os.environ.get(TOKEN_FILE_VARIABLE)
    if not file:
        return ""
    try:
        return Path(file).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"{TOKEN_FILE_VARIABLE}={file} cannot be read: {why}") from error
