"""Client of ``greentrain serve``, for use inside other frameworks: the standard library only.

Connections stay open between requests. Any thread may call. A token is told to no other server than its own.
"""

import asyncio
import http.client
import itertools
import json
import math
import os
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

from greentrain.errors import ConfigError, GreenTrainError
from greentrain.utils.http_client import TRY_AGAIN, HttpAnswer
from greentrain.utils.never_raise import warn

URL_VARIABLE: Final = "GREENTRAIN_URL"
TOKEN_VARIABLE: Final = "GREENTRAIN_TOKEN"
TOKEN_FILE_VARIABLE: Final = "GREENTRAIN_TOKEN_FILE"
PATIENCE_VARIABLE: Final = "GREENTRAIN_PATIENCE_S"

_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}
_EXAMPLE: Final = "write one such as http://127.0.0.1:8700"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Address of one server, with its token."""

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
            url: URL with http or https. A password in it is the token, decoded as browsers encode it.
            token: Token in place of the password. None and no password: that of the environment.

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
            timeout_s: Longest wait for the server, each time (s).
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


Item = TypeVar("Item", bound=Sized)
Answer = TypeVar("Answer")

_LARGEST = 500_000
"""Tokens or letters in a request: at most 12 bytes each as JSON, and a server takes 8 MiB."""
_MOST_ASIDE = 128
"""Calls from coroutines that are under way at a time: two batches of a server."""
_LONGEST_S = 30.0
"""Of a wait between two tries."""
_PATIENCE_S = 900.0
"""While no server answers: one that is started again loads its models for minutes."""
_MOST_S = 1e6
"""Of an answer: sockets take no longer time-outs everywhere."""


class ServeError(GreenTrainError, RuntimeError):
    """A server gave no usable answer; the message says which one, what it said and what to do."""


class ServeClient:
    """Asks for rewards and for log-probabilities of given tokens.

    Args:
        url: URL of the server, or several with commas between them: each try goes to the next. None: the environment's
            ``GREENTRAIN_URL``.
        token: Sent as ``Authorization: Bearer`` to all of them; None: to each the password in its own URL, else the
            environment's ``GREENTRAIN_TOKEN``, else what is in the file that ``GREENTRAIN_TOKEN_FILE`` names.
        timeout_s: Longest wait for one answer (s).
        patience_s: Time after its first failure until a request is given up (s); None: the environment's
            ``GREENTRAIN_PATIENCE_S``, else 900. There is one warning when it begins.
        tries: Most tries as well; None: as many as the time allows.
        back_off_s: Wait after the first failure; it doubles, up to 30 s, less up to half by chance (s).
        batch: Most sequences in a request.
        parallel: Requests at a time of one call.

    Raises:
        ConfigError: No URL, one that is not http(s), a token that no header can hold, or a bound.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        timeout_s: float = 180.0,
        patience_s: float | None = None,
        tries: int | None = None,
        back_off_s: float = 0.5,
        batch: int = 64,
        parallel: int = 4,
    ) -> None:
        given = url if url is not None else os.environ.get(URL_VARIABLE, "")
        self._servers = [Address.of(one, token) for one in given.split(",") if one.strip()]
        if not self._servers:
            raise ConfigError(f"no server: give url, or set {URL_VARIABLE}, such as http://127.0.0.1:8700")
        for name, value in (("tries", tries), ("batch", batch), ("parallel", parallel)):
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value}: give at least 1")
        if not 0 < timeout_s <= _MOST_S or not back_off_s >= 0:
            raise ConfigError(
                f"timeout_s={timeout_s}, back_off_s={back_off_s}: give a time above 0 up to {_MOST_S:g}, and one from 0"
            )
        self._timeout_s = timeout_s
        patient = os.environ.get(PATIENCE_VARIABLE) or _PATIENCE_S if patience_s is None else patience_s
        try:
            self._patience_s = float(patient)
        except ValueError:
            self._patience_s = math.nan
        if not 0 <= self._patience_s <= _MOST_S:
            raise ConfigError(f"patience_s or {PATIENCE_VARIABLE} is {patient}: give a time from 0 up to {_MOST_S:g} s")
        self._tries = math.inf if tries is None else tries
        self._waits = False
        self._back_off_s = back_off_s
        self._batch = batch
        self._parallel = parallel
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._asking = 0
        self._idle: dict[tuple[int, str], list[http.client.HTTPConnection]] = {}
        """By process and server: a process that was forked off must not read the answers of the other one."""

    def rewards(self, texts: Sequence[str]) -> list[float]:
        """Return the score of each text: prompt and response, as the reward model reads them.

        Raises:
            ServeError: No server gave an answer, or gave a number that is none. There is never a reward instead.
        """
        return self._all(texts, lambda some: _scores(self._post("/get_reward", {"query": some}), len(some)))

    async def rewards_async(self, texts: Sequence[str]) -> list[float]:
        """Return what :meth:`rewards` does, from a thread: asyncio's own are few, and a server batches."""
        with self._lock:
            self._asking += 1
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_MOST_ASIDE, thread_name_prefix="greentrain-client")
            threads = self._threads
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, self.rewards, texts)
        finally:
            with self._lock:
                self._asking -= 1
                if not self._asking:
                    self._threads = None
                    threads.shutdown(wait=False)

    def logprobs(self, ids: Sequence[Sequence[int]], *, temperature: float = 1.0) -> list[list[float]]:
        """Return, by sequence, ln p of each token but the first, given those before it.

        Args:
            ids: Token ids of each sequence, prompt and response: never text, which another tokenizer cuts elsewhere.
            temperature: Divisor of the logits; a compiled reference has its own and refuses another.

        Raises:
            ServeError: No server gave an answer, or one that does not belong to the tokens.
            ConfigError: A sequence is empty, or the temperature is not above 0.
        """
        if not 0 < temperature < math.inf:
            raise ConfigError(f"temperature={temperature}: give what the policy is sampled with, above 0")
        rows = [[int(token) for token in row] for row in ids]
        for i, row in enumerate(rows):
            if not row:
                raise ConfigError(f"sequence {i} of {len(rows)} has no token: a reference needs at least one")

        def ask(some: Sequence[list[int]]) -> list[list[float]]:
            body = {
                "model": "greentrain",
                "prompt": some,
                "max_tokens": 1,
                "temperature": temperature,
                "prompt_logprobs": 0,  # of the tokens themselves: a device does not know the best ones
            }
            return _token_logprobs(self._post("/v1/completions", body), some)

        return self._all(rows, ask)

    def health(self) -> Mapping[str, Any]:
        """Return what ``GET /health`` says. Raises ServeError as the others do."""
        return self._ask("GET", "/health", None)

    def close(self) -> None:
        """Close the connections that no request uses."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for connection in (one for some in idle.values() for one in some):
            connection.close()

    def __enter__(self) -> "ServeClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_idle"):  # the arguments were right
            self.close()

    def _all(self, items: Sequence[Item], ask: Callable[[Sequence[Item]], list[Answer]]) -> list[Answer]:
        some = list(in_parts(items, self._batch, _LARGEST))
        if len(some) <= 1 or self._parallel == 1:
            return list(itertools.chain.from_iterable(map(ask, some)))
        with ThreadPoolExecutor(min(self._parallel, len(some)), thread_name_prefix="greentrain-client") as threads:
            return list(itertools.chain.from_iterable(threads.map(ask, some)))

    def _post(self, route: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._ask("POST", route, json.dumps(body).encode())

    def _ask(self, method: str, route: str, body: bytes | None) -> Mapping[str, Any]:
        since_s = None
        for attempt in itertools.count():
            server = self._servers[attempt % len(self._servers)]
            wait_s = min(_LONGEST_S, self._back_off_s * 2.0 ** min(attempt, 60)) * random.uniform(0.5, 1.0)
            try:
                answer = self._send(server, method, route, body)
            except (OSError, http.client.HTTPException) as error:
                said = f"{type(error).__name__}: {error}"
                if isinstance(error, ssl.SSLCertVerificationError):
                    raise ServeError(
                        f"{server.name} has a certificate that this machine does not trust: {said}"
                    ) from error
            else:
                if answer.status == 200:
                    self._waits = False
                    return _object(answer.body, server, route)
                said = f"HTTP {answer.status}: {answer.body[:500].decode(errors='replace')}"
                if answer.status not in TRY_AGAIN:
                    raise ServeError(f"{method} {server.name}{route} was refused with {said}. {_remedy(answer.status)}")
                wait_s = min(_LONGEST_S, max(wait_s, answer.rest_s or 0.0))
            now_s = time.monotonic()
            since_s = now_s if since_s is None else since_s
            left_s = self._patience_s - (now_s - since_s)
            where = ", ".join(server.name for server in self._servers)
            if attempt + 1 >= self._tries or left_s <= 0:
                raise ServeError(
                    f"{method} {route} failed {attempt + 1} times at {where} in {now_s - since_s:.0f} s; the last time "
                    f"with {said}. See whether `greentrain serve` runs there and is reachable from here, or be patient "
                    f"for longer: patience_s, or {PATIENCE_VARIABLE}. No number was made up in its place"
                )
            if attempt and not self._waits:
                self._waits = True
                warn(f"{where} fails ({said}) and is asked for up to {left_s:.0f} s more", "training waits for it")
            time.sleep(min(wait_s, left_s))
        raise AssertionError("the last try returns or raises")

    def _send(self, server: Address, method: str, route: str, body: bytes | None) -> HttpAnswer:
        key = os.getpid(), server.name
        while True:
            with self._lock:
                idle = self._idle.setdefault(key, [])
                connection, kept = (idle.pop(), True) if idle else (server.connection(self._timeout_s), False)
            try:
                answer = _exchange(connection, server, method, route, body)
            except (ConnectionError, http.client.HTTPException):
                connection.close()
                if not kept:
                    raise
                continue  # the server had closed what was kept open: no failure of the server
            except BaseException:
                connection.close()  # half an answer may still come, and must not be read as the next one's
                raise
            with self._lock:
                self._idle.setdefault(key, []).append(connection)
            return answer


def _exchange(
    connection: http.client.HTTPConnection, server: Address, method: str, route: str, body: bytes | None
) -> HttpAnswer:
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if server.token:
        headers["Authorization"] = f"Bearer {server.token}"
    connection.request(method, server.path + route, body=body, headers=headers)
    answer = connection.getresponse()
    content = answer.read()
    headers = {name.title(): value for name, value in answer.getheaders()}
    return HttpAnswer(status=answer.status, reason=answer.reason, headers=headers, body=content)


def _remedy(status: int) -> str:
    if 300 <= status < 400:
        return "Give the address to which it leads: no redirect is followed, so that no other host is sent the token"
    return {
        401: f"Set {TOKEN_VARIABLE} or {TOKEN_FILE_VARIABLE} to the token that the server was started with",
        403: f"Set {TOKEN_VARIABLE} or {TOKEN_FILE_VARIABLE} to the token that the server was started with",
        404: "Its version has no such route, or it serves no such model: see GET /v1/models",
        413: "Give the client a smaller batch, or the server a higher limit",
    }.get(status, "The request does not suit the served model: its words say what to change")


def _object(answer: bytes, server: Address, route: str) -> Mapping[str, Any]:
    try:
        found = json.loads(answer)
    except ValueError as error:
        raise ServeError(f"{server.name}{route} answered with something else than JSON: {error}") from error
    if not isinstance(found, dict):
        raise ServeError(f"{server.name}{route} answered with a {type(found).__name__}, not with an object")
    return found


def _scores(answer: Mapping[str, Any], count: int) -> list[float]:
    found = answer.get("rewards")
    return _numbers(found if isinstance(found, list) else [found], count, "/get_reward")


def _token_logprobs(answer: Mapping[str, Any], ids: Sequence[Sequence[int]]) -> list[list[float]]:
    choices = answer.get("choices")
    try:
        rows = {choice["index"]: choice["prompt_logprobs"] for choice in choices or ()}
        found = [
            [entry[str(token)]["logprob"] for token, entry in zip(row[1:], rows[i][1:], strict=True)]
            for i, row in enumerate(ids)
        ]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ServeError(
            f"/v1/completions answered without choices[].prompt_logprobs of the tokens sent ({error!r}): "
            "ask a server that returns ln p of given tokens"
        ) from error
    return [_numbers(row, len(row), "/v1/completions") for row in found]


def _numbers(found: Sequence[Any], count: int, route: str) -> list[float]:
    if len(found) != count:
        raise ServeError(f"{route} answered with {len(found)} numbers for {count} sequences")
    for i, number in enumerate(found):
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise ServeError(f"{route} answered {number!r} for sequence {i} of {count}, which is no finite number")
    return [float(number) for number in found]


def in_parts(items: Sequence[Item], most: int, most_size: int) -> Iterator[list[Item]]:
    """Yield items in order: so many at a time, and no longer together than a size, if one alone is not."""
    some: list[Item] = []
    size = 0
    for item in items:
        if some and (len(some) == most or size + len(item) > most_size):
            yield some
            some, size = [], 0
        some.append(item)
        size += len(item)
    if some:
        yield some
