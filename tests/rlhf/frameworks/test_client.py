"""The client against a server that does what it is told, and against the real one."""

import asyncio
import json
import os
import re
import ssl
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from greentrain.errors import ConfigError
from greentrain.rlhf import client as client_module
from greentrain.rlhf.client import ServeClient, ServeError
from tests.rlhf.frameworks.conftest import Served

Answer = tuple[int, dict[str, str], Any]


class Scripted(ThreadingHTTPServer):
    """Gives prepared answers in turn, then echoes lengths as rewards; remembers what it was asked."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.answers: list[Answer] = []
        self.asked: list[tuple[str, str | None, Any]] = []
        self.together: threading.Barrier | None = None
        """Answers wait until so many are asked for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Scripted

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append((self.path, self.headers["authorization"], body))
        echo: Answer = (200, {}, {"rewards": [float(len(text)) for text in body.get("query", [])]})
        if self.server.together is not None:
            self.server.together.wait(240.0)
        status, headers, answer = self.server.answers.pop(0) if self.server.answers else echo
        if status == 0:
            self.close_connection = True
            return
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    with Scripted() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_real_server_gives_the_bits_of_its_device_in_order(served: Served) -> None:
    texts = [f"rollout {i} of many" for i in range(7)]
    ids = [[2 + (7 * i + j) % 90 for j in range(2 + i)] for i in range(7)]
    with ServeClient(batch=2, parallel=3) as client:
        assert client.rewards(texts) == served.rewards(texts)
        assert client.logprobs(ids) == served.logprobs(ids)
        assert not client.rewards([]) and not client.logprobs([])
        assert client.health()
        with pytest.raises(ServeError, match=r"400.*temperature.*compiled with"):
            client.logprobs(ids, temperature=0.7)
        with pytest.raises(ConfigError, match="sequence 1 of 2"):
            client.logprobs([[1], []])
        with pytest.raises(ConfigError, match="temperature=nan"):
            client.logprobs(ids, temperature=float("nan"))
    with (
        ServeClient(served.url, token="x" * 20) as stranger,
        pytest.raises(ServeError, match=r"401.*GREENTRAIN_TOKEN"),
    ):
        stranger.rewards(texts)


def test_what_may_be_better_next_time_is_asked_again(scripted: Scripted) -> None:
    scripted.answers = [(503, {"Retry-After": "0"}, {}), (500, {}, b"oops"), (0, {}, None)]
    with ServeClient(scripted.url, back_off_s=0.001) as client:
        assert client.rewards(["abc"]) == [3.0]
    assert len(scripted.asked) == 4


def test_requests_stay_below_what_a_server_takes(scripted: Scripted) -> None:
    texts = ["a", "b" * 300_000, "c" * 300_000, "d" * 600_000, "e", "f", "g"]
    with ServeClient(scripted.url, batch=3, parallel=1) as client:
        assert client.rewards(texts) == [float(len(text)) for text in texts]
    assert [len(body["query"]) for _, _, body in scripted.asked] == [2, 1, 1, 3]


def test_an_idle_connection_that_was_closed_is_no_failure(scripted: Scripted) -> None:
    with ServeClient(scripted.url, tries=1) as client:
        assert client.rewards(["a"]) == [1.0]
        scripted.answers = [(0, {}, None)]  # the kept connection ends without an answer
        assert client.rewards(["ab"]) == [2.0]


def test_the_next_server_is_asked_where_one_is_down(scripted: Scripted, closed_port: str) -> None:
    with ServeClient(f"{closed_port},{scripted.url}", back_off_s=0.0) as client:
        assert client.rewards(["abcd"]) == [4.0]


def test_no_number_is_made_up(scripted: Scripted) -> None:
    for answer, says in (
        ((200, {}, {"rewards": [1.0, 2.0]}), "2 numbers for 1"),
        ((200, {}, {"rewards": [None]}), "None for sequence 0"),
        ((200, {}, b'{"rewards": [NaN]}'), "nan for sequence 0"),
        ((200, {}, {"rewards": [True]}), "True for sequence 0"),
        ((200, {}, {}), "None for sequence 0"),
        ((200, {}, []), "list"),
        ((200, {}, b"<html>"), "JSON"),
        ((422, {}, {"detail": "unfit"}), "422.*unfit"),
        ((307, {"Location": "http://127.0.0.1:9/"}, {}), "no redirect is followed"),
        ((413, {}, {}), "smaller batch"),
    ):
        scripted.answers = [answer]
        with ServeClient(scripted.url) as client, pytest.raises(ServeError, match=says):
            client.rewards(["a"])
    entry = {"7": {"logprob": -1.0}}
    for choices in (
        [],
        [{"index": 0, "prompt_logprobs": [None, entry]}],  # too few
        [{"index": 0, "prompt_logprobs": [None, entry, entry]}],  # another token's
        [{"index": 1, "prompt_logprobs": [None, entry, {"8": {"logprob": -1.0}}]}],
        [{"index": 0}],
    ):
        scripted.answers = [(200, {}, {"choices": choices})]
        with ServeClient(scripted.url) as client, pytest.raises(ServeError, match="tokens sent"):
            client.logprobs([[3, 7, 8]])


def test_a_server_that_is_down_is_named_with_the_remedy(closed_port: str) -> None:
    with (
        ServeClient(closed_port, tries=2, back_off_s=0.0) as client,
        pytest.raises(ServeError, match=rf"2 times at {closed_port}.*greentrain serve.*No number"),
    ):
        client.rewards(["a"])


class Clock:
    """Time that passes by waiting alone."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.waits_s: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, wait_s: float) -> None:
        self.waits_s.append(wait_s)
        self.now_s += wait_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(client_module, "time", clock)
    return clock


def test_a_server_that_loads_models_for_minutes_is_waited_for(scripted: Scripted, clock: Clock) -> None:
    """By time and not by tries, with one warning for each time that it is away."""
    away: Answer = (503, {}, {})
    with ServeClient(scripted.url) as client:
        for tries in (20, 3, 1):
            scripted.answers = [away] * tries
            begun_s, clock.waits_s = clock.now_s, []
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                assert client.rewards(["abc"]) == [3.0]
            assert len(clock.waits_s) == tries
            texts = [str(one.message) for one in told]
            assert len(texts) == (tries > 1), texts
            if tries == 20:
                assert 200.0 < clock.now_s - begun_s < 900.0
                assert all(15.0 <= wait_s <= 30.0 for wait_s in clock.waits_s[7:]), (
                    "doubled up to 30 s, less up to half"
                )
                assert re.search(
                    r"127.0.0.1.* fails \(HTTP 503.*asked for up to (900|89\d) s more; training waits for it", texts[0]
                )


@pytest.mark.parametrize(
    ("given", "variable", "patience_s"), [({}, "", 900.0), ({}, "60", 60.0), ({"patience_s": 5.0}, "60", 5.0)]
)
def test_patience_is_given_or_of_the_environment(
    closed_port: str,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, Any],
    variable: str,
    patience_s: float,
) -> None:
    monkeypatch.setenv("GREENTRAIN_PATIENCE_S", variable)
    with (
        ServeClient(closed_port, **given) as client,
        pytest.warns(UserWarning, match=f"{closed_port} fails"),
        pytest.raises(ServeError, match=rf"times at {closed_port} in {patience_s:.0f} s; .*GREENTRAIN_PATIENCE_S"),
    ):
        client.rewards(["a"])
    assert clock.now_s == pytest.approx(patience_s), "the last try is at the end of it"


def test_a_certificate_that_is_not_trusted_gets_no_better(closed_port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise ssl.SSLCertVerificationError("self-signed certificate")

    monkeypatch.setattr(client_module, "_exchange", refuse)
    with ServeClient(closed_port) as client, pytest.raises(ServeError, match=r"does not trust.*self-signed"):
        client.rewards(["a"])


def test_a_server_that_is_silent_is_given_up(scripted: Scripted) -> None:
    scripted.answers = [(200, {"Content-Length": "1000"}, b"{")]
    with (
        ServeClient(scripted.url, tries=1, timeout_s=0.05) as client,
        pytest.raises(ServeError, match="Timeout"),
    ):
        client.rewards(["a"])


def test_where_address_and_token_come_from(scripted: Scripted, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("from a file\n")
    monkeypatch.setenv("GREENTRAIN_TOKEN_FILE", str(tmp_path / "token"))
    host = scripted.url.removeprefix("http://")
    for made in (
        ServeClient(scripted.url),
        ServeClient(f"http://any:in-url@{host}"),
        ServeClient(scripted.url, token="given"),
    ):
        with made:
            made.rewards(["a"])
    assert [token for _, token, _ in scripted.asked] == ["Bearer from a file", "Bearer in-url", "Bearer given"]
    monkeypatch.setenv("GREENTRAIN_TOKEN_FILE", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="GREENTRAIN_TOKEN_FILE"):
        ServeClient(scripted.url)


def test_each_server_is_sent_its_own_token(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GREENTRAIN_TOKEN", raising=False)
    monkeypatch.delenv("GREENTRAIN_TOKEN_FILE", raising=False)
    host = scripted.url.removeprefix("http://")
    again: Answer = (503, {}, {})
    scripted.answers = [again, again, again]
    urls = f"http://any:first@{host},http://any:a%2Cb@{host}/two,http://{host}/three"
    with ServeClient(urls, back_off_s=0.0, tries=3) as client, pytest.raises(ServeError, match="503") as failed:
        client.rewards(["a"])
    assert [(path, token) for path, token, _ in scripted.asked] == [
        ("/get_reward", "Bearer first"),
        ("/two/get_reward", "Bearer a,b"),
        ("/three/get_reward", None),
    ]
    assert "first" not in str(failed.value)


def test_a_forked_process_does_not_read_the_answers_of_its_parent(scripted: Scripted) -> None:
    with ServeClient(scripted.url, tries=1) as client:
        client.rewards(["a"])
        kept = {key: list(some) for key, some in client._idle.items()}
        client._idle = {(key[0] + 1, key[1]): some for key, some in client._idle.items()}  # as a child sees it
        assert client.rewards(["ab"]) == [2.0]
        mine = client._idle[os.getpid(), scripted.url]
        assert len(mine) == 1 and mine[0] not in next(iter(kept.values()))


def test_a_hundred_rollouts_are_asked_for_at_a_time(scripted: Scripted) -> None:
    scripted.together = threading.Barrier(100)

    async def all_of_them(client: ServeClient) -> list[list[float]]:
        return await asyncio.gather(*(client.rewards_async(["a" * i]) for i in range(100)))

    with ServeClient(scripted.url, tries=1) as client:
        for _ in range(2):
            assert asyncio.run(all_of_them(client)) == [[float(i)] for i in range(100)]


def test_many_tries_do_not_end_in_a_number_too_large(closed_port: str) -> None:
    with (
        ServeClient(closed_port, tries=1100, back_off_s=0.0) as client,
        pytest.warns(UserWarning, match="fails"),
        pytest.raises(ServeError, match="1100 times"),
    ):
        client.rewards(["a"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "GREENTRAIN_URL"),
        ({"url": "http://x:99999"}, "address of x has a port"),
        ({"url": "http://any:secr,et@x:8700"}, "%2C"),
        ({"url": "http://x", "token": "secret\nsecond"}, "line break"),
        ({"url": "http://x", "token": "s\u00e9cret"}, "not ASCII"),
        ({"url": "http://x", "timeout_s": float("inf")}, "timeout_s=inf"),
        ({"url": "127.0.0.1:8700"}, "no address"),
        ({"url": "ftp://any:secret@x"}, "url='x'"),
        ({"url": "http://x", "tries": 0}, "tries=0"),
        ({"url": "http://x", "patience_s": -1.0}, "patience_s or GREENTRAIN_PATIENCE_S is -1.0"),
        ({"url": "http://x", "patience_s": float("nan")}, "is nan: give a time"),
        ({"url": "http://x", "batch": 0}, "batch=0"),
        ({"url": "http://x", "timeout_s": 0.0}, "timeout_s=0.0"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        ServeClient(**options)
    assert "secr" not in str(refused.value)


def test_a_patience_that_is_no_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GREENTRAIN_PATIENCE_S", "ten minutes")
    with pytest.raises(ConfigError, match="GREENTRAIN_PATIENCE_S is ten minutes: give a time"):
        ServeClient("http://x")


def test_the_client_needs_the_standard_library_alone() -> None:
    code = (
        "import sys; before = set(sys.modules); import greentrain.rlhf.client; "
        "found = {name.split('.')[0] for name in set(sys.modules) - before} - {'greentrain'}; "
        "print(sorted(found - sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
