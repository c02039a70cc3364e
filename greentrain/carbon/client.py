"""HTTP to grid servers: questions that are tried again, failures told apart, and keys that are never shown.

Texts of failures are made here from what is known to be harmless; bodies and headers never get into them. Keys come
from the environment or the keyring, never from a file, and have no way out but the header of a request: not into a
text, a log, a pickle or a cache.
"""

import contextlib
import json
import logging
import os
import random
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn

from greentrain.errors import ConfigError
from greentrain.utils.http_client import TRY_AGAIN, HttpClient, HttpError
from greentrain.utils.version import __version__

log = logging.getLogger(__name__)

MAX_REPLY_BYTES: Final = 8_000_000
"""22 days of WattTime at 5 minutes are 0.7 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long to wait for a server, and how often to try."""

    connect_s: float = 5.0
    silence_s: float = 10.0
    """Between two pieces of an answer (s)."""
    answer_s: float = 30.0
    """For a whole answer (s)."""
    tries: int = 3
    pause_s: float = 1.0
    """Before the second try (s); doubled before each further one, each time by a random factor of 0.5 to 1.5."""
    rest_s: float = 30.0
    """After the last try failed (s); doubled with each failure in a row, by a random factor of 1 to 1.2."""
    longest_rest_s: float = 3600.0
    poll_s: float = 15.0
    """Between two looks at what other processes have fetched (s)."""


class TemporaryError(Exception):
    """No answer that can be used, this time.

    Args:
        text: Tells what happened.
        rest_s: Time for which the server asks to be left alone (s); None where it does not say.
        everywhere: It is the server that fails, not one address of it.
    """

    def __init__(self, text: str, *, rest_s: float | None = None, everywhere: bool = False) -> None:
        super().__init__(text)
        self.rest_s = rest_s
        self.everywhere = everywhere


class PermanentError(Exception):
    """The server will not answer this, however often it is asked.

    Args:
        text: Tells what happened.
        status: HTTP status.
    """

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class GridAnswer(NamedTuple):
    """What a grid server answered."""

    data: Any
    """The JSON."""
    server_unix_s: float | None
    """The server's time by its Date header (s since the epoch); None where it has none."""


class Key:
    """What a server wants to see of its users: nothing, where there is no key. Never shows what it holds."""

    def headers(self, client: "GridClient") -> Mapping[str, str]:
        """Return the headers of a request; may ask the server for them first.

        Raises:
            TemporaryError: The server gives no token for now.
            PermanentError: User or password is wrong.
        """
        return {}

    def renew(self) -> bool:
        """Forget what the server did not accept; return True if it makes sense to try once more."""
        return False


class HeaderKey(Key):
    """A key in a header.

    Args:
        header: Name of the header.
        secret: The key.
    """

    def __init__(self, header: str, secret: "Secret") -> None:
        self._header = header
        self._secret = secret

    def headers(self, client: "GridClient") -> Mapping[str, str]:
        """Return the header with the key."""
        return {self._header: self._secret.reveal()}


class GridClient:
    """Asks one server.

    Args:
        base_url: Address of the server.
        key: Gives the headers that the server wants to see.
        patience: Limits of time and of tries.
        stop: Set from outside to give up.

    Raises:
        MissingExtraError: httpx is not installed.
    """

    def __init__(self, base_url: str, key: Key, patience: Timeouts, stop: threading.Event) -> None:
        self._key = key
        self._patience = patience
        self._stop = stop
        self._http = HttpClient(
            base_url,
            extra="grid",
            silence_s=patience.silence_s,
            connect_s=patience.connect_s,
            most_bytes=MAX_REPLY_BYTES,
            headers={"User-Agent": f"greentrain-torch/{__version__}", "Accept": "application/json"},
        )
        self.host = self._http.host
        self.close = self._http.close

    def get(self, path: str, params: Mapping[str, str] | None = None) -> GridAnswer:
        """Return the answer of a path; tries again where that may help.

        Args:
            path: Path below the base URL.
            params: Query of the URL.

        Raises:
            TemporaryError: There is none for now.
            PermanentError: There will be none.
        """
        pause_s = self._patience.pause_s
        for tries_left in range(self._patience.tries - 1, -1, -1):
            try:
                return self._with_key(path, params or {})
            except TemporaryError as failure:
                if not tries_left or failure.rest_s is not None or self._stop.is_set():
                    raise
                log.info("%s; trying again in about %.1f s", failure, pause_s)
            if self._stop.wait(pause_s * random.uniform(0.5, 1.5)):
                break
            pause_s *= 2
        raise TemporaryError(f"{self.host} was not asked to the end: the signal was closed")

    def _with_key(self, path: str, params: Mapping[str, str]) -> GridAnswer:
        try:
            return self.once(path, params, self._key.headers(self))
        except PermanentError as refusal:
            if refusal.status != 401 or not self._key.renew():
                raise
            return self.once(path, params, self._key.headers(self))

    def once(self, path: str, params: Mapping[str, str], headers: Mapping[str, str]) -> GridAnswer:
        """Return the answer of a path, asked for once.

        Args:
            path: Path below the base URL.
            params: Query of the URL.
            headers: Headers that the server wants to see.

        Raises:
            TemporaryError: There is none for now.
            PermanentError: There will be none.
        """
        where = f"{self.host}{path}"
        try:
            answer = self._http.ask(
                "GET", path, params=params, headers=headers, within_s=self._patience.answer_s, stop=self._stop
            )
        except HttpError as error:
            text = {
                "large": f"{where} sent more than {MAX_REPLY_BYTES:,} bytes",
                "late": f"{where} sent no whole answer in {self._patience.answer_s:g} s",
                "silent": f"{self.host} is silent ({error.name})",
                "unreachable": f"{self.host} cannot be reached ({error})",  # refused, no such host, wrong certificate
                "broken": f"{where} broke off ({error.name})",
            }[error.kind]
            raise TemporaryError(text, everywhere=error.kind in ("silent", "unreachable")) from None
        status, rest_s = answer.status, answer.rest_s
        if status == 200:
            try:
                return GridAnswer(json.loads(answer.body), answer.server_unix_s)
            except (ValueError, RecursionError):
                raise TemporaryError(f"{where} sent {len(answer.body)} bytes that are no JSON") from None
        text = f"{where} answered {status} {answer.reason[:40]}".rstrip()
        if status == 429 or (status == 503 and rest_s is not None):
            raise TemporaryError(text, rest_s=rest_s or 0.0, everywhere=True)
        if status in TRY_AGAIN or not 400 <= status < 500:
            raise TemporaryError(text)
        raise PermanentError(text, status)


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


def find_key(
    variable: str, signal: str, environ: Mapping[str, str] | None = None, *, section: str = "carbon"
) -> Secret:
    """Return a key from the environment, else from the keyring.

    Args:
        variable: Name of the environment variable, and of the entry in the keyring.
        signal: Name of the signal that needs the key, for the error.
        environ: Environment, os.environ by default.
        section: Section of the configuration that names the signal.

    Raises:
        ConfigError: There is none, or it cannot be sent in a header. The text never holds the key.
    """
    found = (os.environ if environ is None else environ).get(variable) or _from_keyring(variable)
    if not found or not found.strip():
        raise ConfigError(
            f"{section}.signal {signal!r} needs a key: set the environment variable {variable}, or put it into the"
            f" keyring with: keyring set {SERVICE} {variable}"
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
