"""Who may see the runs: a link that opens once, the sessions it made, and the token of a file."""

import hmac
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from greentrain.utils.http_access import Access

MOST_SESSIONS: Final = 64
"""Browsers at once; the oldest is forgotten."""
Headers = Iterable[tuple[bytes, bytes]]


class LinkAuth:
    """Lets in who has the link's word, a session or the token.

    A session is a cookie that no script can read and no other site can send. A word is in the fragment of a link,
    which browsers keep to themselves, and is worth nothing once it was used.

    Args:
        cookie: Name of the cookie.
        token: Of a file, sent as ``Authorization: Bearer TOKEN``; None: the link is the only way in.
        used: Called with the next word when one was used.

    Raises:
        ConfigError: The token is too short.
    """

    def __init__(self, cookie: str, token: str | None = None, used: Callable[[str], None] | None = None) -> None:
        self.cookie = cookie
        self._token = None if token is None else Access(token)
        self._used = used
        self._lock = threading.Lock()
        self._sessions: list[str] = []
        self.word = secrets.token_urlsafe(32)
        """Of the next link."""

    def enter(self, headers: Headers) -> str | None:
        """Return a new session for who sends the word or the token as Bearer; None for others."""
        headers = list(headers)
        with self._lock:
            with_word = Access(self.word).allows(headers)
            if not with_word and not self._has_token(headers):
                return None
            if with_word:
                self.word = secrets.token_urlsafe(32)
            session = secrets.token_urlsafe(32)
            self._sessions = [*self._sessions[1 - MOST_SESSIONS :], session]
        if with_word and self._used is not None:
            self._used(self.word)
        return session

    def knows(self, headers: Headers) -> bool:
        """Return True for a request with a session or the token."""
        headers = list(headers)
        given = _cookie(dict(headers).get(b"cookie", b""), self.cookie)
        with self._lock:
            known = [hmac.compare_digest(given, session.encode("ascii")) for session in self._sessions]
        return any(known) or self._has_token(headers)

    def _has_token(self, headers: Headers) -> bool:
        return self._token is not None and self._token.allows(headers)


def is_own(headers: Mapping[bytes, bytes]) -> bool:
    """Return False for what a page of another origin asks for, be it another port of this machine."""
    origin = headers.get(b"origin")
    if origin is not None and origin.partition(b"://")[2] != headers.get(b"host"):
        return False
    return headers.get(b"sec-fetch-site", b"none") in (b"none", b"same-origin")


def _cookie(header: bytes, name: str) -> bytes:
    wanted = name.encode("ascii")
    pairs = (part.strip().partition(b"=") for part in header.split(b";"))
    return next((value for key, _, value in pairs if key == wanted), b"")
