"""Both hosts: what a client can hold of them, and for how long."""

import contextlib
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from greentrain.config.schema import PrometheusConfig
from greentrain.errors import ConfigError
from greentrain.utils.http_server import (
    AsgiHost,
    HostLimits,
    HttpReply,
    HttpRequest,
    ThreadHost,
    listen,
    listen_checked,
    url_of,
)

LONGEST_S = 60.0
"""Longest wait for what a busy machine does late (s)."""
BEGUN = threading.Semaphore(0)
"""Released for each body of which something has come."""


def echo(request: HttpRequest) -> HttpReply:
    body = request.read(100) if request.length else b""
    if body:
        BEGUN.release()
    told = {"method": request.method, "path": request.path, "query": request.query, "body": body.decode()}
    return HttpReply(status=200, body=json.dumps(told).encode())


@pytest.fixture
def host() -> Iterator[ThreadHost]:
    made = ThreadHost(
        listen("127.0.0.1", 0),
        echo,
        name="test-host",
        limits=HostLimits(connections=2, head_bytes=4096, receive_s=0.4, send_s=5.0),
        busy=HttpReply(status=503, body=b"{}"),
    )
    yield made
    made.close()
    made.close()


@pytest.fixture
def patient() -> Iterator[ThreadHost]:
    """Return a host whose clocks end no connection in a test."""
    made = ThreadHost(listen("127.0.0.1", 0), echo, name="t", limits=PATIENT, busy=HttpReply(status=503, body=b"{}"))
    yield made
    made.close()


def dropped(host: ThreadHost, begun: bytes, more: bytes) -> float:
    """Send a head that does not end, and return after how many seconds the connection ends."""
    begun_s = time.monotonic()
    with socket.create_connection(("127.0.0.1", host.port), timeout=LONGEST_S) as connection:
        connection.sendall(begun)
        with contextlib.suppress(ConnectionError, TimeoutError):
            connection.settimeout(0.02)
            while time.monotonic() - begun_s < LONGEST_S:
                connection.sendall(more)
                with contextlib.suppress(TimeoutError):
                    if not connection.recv(1):
                        break
        return time.monotonic() - begun_s


def test_several_requests_of_one_connection_are_answered(patient: ThreadHost) -> None:
    with socket.create_connection(("127.0.0.1", patient.port), timeout=LONGEST_S) as connection:
        for i in range(3):
            connection.sendall(f"POST /a{i}?b=c HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi".encode())
            found = b""
            while not found.endswith(b"}"):
                more = connection.recv(4096)
                assert more, "the connection ended"
                found += more
            told = json.loads(found.partition(b"\r\n\r\n")[2])
            assert told == {"method": "POST", "path": f"/a{i}", "query": "b=c", "body": "hi"}


def test_a_head_that_drips_is_dropped(host: ThreadHost) -> None:
    assert 0.2 < dropped(host, b"GET / HTTP/1.1\r\n", b"X: 1\r\n") < LONGEST_S


def test_a_head_that_is_too_large_is_dropped() -> None:
    limits = HostLimits(head_bytes=4096, receive_s=10 * LONGEST_S)
    host = ThreadHost(listen("127.0.0.1", 0), echo, name="t", limits=limits, busy=HttpReply(status=503, body=b"{}"))
    try:
        assert dropped(host, b"GET / HTTP/1.1\r\nX: ", b"1" * 1000) < LONGEST_S
    finally:
        host.close()


def test_a_body_that_nobody_wants_and_that_drips_is_dropped(host: ThreadHost) -> None:
    begun = b"PUT / HTTP/1.1\r\nContent-Length: 999999999999999999\r\n\r\n" + b"x" * 100
    assert 0.2 < dropped(host, begun, b"1") < LONGEST_S


PATIENT = HostLimits(connections=3, receive_s=10 * LONGEST_S, send_s=10 * LONGEST_S)
"""No clock of these ends a connection in a test."""
ASK = b"GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF_SENT = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx"
SILENT = (b"", b"GET / HT", b"GET / HTTP/1.1\r\nX: 1\r\n", ASK, HALF_SENT)
"""What clients send that then say nothing; ASK has its answer and keeps its connection."""


async def application(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        BEGUN.release()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})


def test_bodies_that_do_not_end_keep_nobody_out(port: int) -> None:
    while BEGUN.acquire(blocking=False):  # of other tests
        pass
    with contextlib.ExitStack() as opened:
        for _ in range(PATIENT.connections):
            opened.enter_context(clients(port, HALF_SENT))
            assert BEGUN.acquire(timeout=LONGEST_S)
        assert until(lambda: b" 200 " in answer_of(port)), "on a busy machine it may have to ask again"


@pytest.fixture(params=["thread", "asgi"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """Return the port of a host that takes three connections."""
    listener = listen("127.0.0.1", 0)
    made: ThreadHost | AsgiHost
    if request.param == "thread":
        made = ThreadHost(listener, echo, name="t", limits=PATIENT, busy=HttpReply(status=503, body=b"{}"))
    else:
        pytest.importorskip("uvicorn")
        made = AsgiHost(application, listener, name="t", limits=PATIENT)
    yield int(url_of(listener).rpartition(":")[2])
    made.close()


@contextlib.contextmanager
def clients(port: int, *sent: bytes) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as opened:
        found = [opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=LONGEST_S)) for _ in sent]
        for client, words in zip(found, sent, strict=True):
            client.sendall(words)
        yield found


def answer_of(port: int) -> bytes:
    """Return the first line of an answer; empty where the connection ends without one."""
    with clients(port, ASK) as (client,), contextlib.suppress(ConnectionError):
        return client.recv(4096).partition(b"\r\n")[0]
    return b""


def connections_of(port: int) -> int:
    """Return how many files of this process a server's clients hold: other tests' threads open and close theirs."""
    return sum(
        bool(it.raddr) and it.laddr.port == port and it.status != psutil.CONN_LISTEN
        for it in psutil.Process().net_connections("tcp")
    )


def until(true: Callable[[], bool]) -> bool:
    end_s = time.monotonic() + LONGEST_S
    while not true() and time.monotonic() < end_s:
        time.sleep(0.005)
    return true()


def test_silent_clients_keep_nobody_out_and_cost_no_more_files(port: int) -> None:
    assert b" 200 " in answer_of(port)
    with clients(port, b""):
        assert until(lambda: connections_of(port) == 1), connections_of(port)
    with clients(port, *(SILENT * 4)) as silent:
        for _ in range(3):
            assert until(lambda: b" 200 " in answer_of(port))
        assert until(lambda: connections_of(port) <= PATIENT.connections), connections_of(port)
        silent[0].settimeout(LONGEST_S)
        with contextlib.suppress(ConnectionError):
            assert silent[0].recv(1) == b"", "it was the first to wait"


def test_a_request_that_is_answered_loses_its_connection_to_nobody() -> None:
    go, begun = threading.Event(), threading.Semaphore(0)

    def slow(request: HttpRequest) -> HttpReply:
        begun.release()
        assert go.wait(4 * LONGEST_S)
        return HttpReply(status=200, body=b"{}")

    host = ThreadHost(
        listen("127.0.0.1", 0), slow, name="t", limits=PATIENT, busy=HttpReply(status=503, body=b'{"busy": 1}')
    )
    try:
        with clients(host.port, ASK, ASK, ASK) as asking:
            assert all(begun.acquire(timeout=LONGEST_S) for _ in asking)
            assert b" 503 " in answer_of(host.port)
            go.set()
            assert [client.recv(4096)[:13] for client in asking] == [b"HTTP/1.1 200 "] * 3
    finally:
        go.set()
        host.close()


def test_slow_clients_take_no_files_from_the_training() -> None:
    pytest.importorskip("prometheus_client")
    from greentrain.report.live.prometheus import Page

    page = Page(PrometheusConfig(port=0), 0)
    try:
        assert b" 200 " in answer_of(page.port)
        with clients(page.port, *(SILENT[1:3] * 30)):
            assert until(lambda: b" 200 " in answer_of(page.port))
            assert until(lambda: connections_of(page.port) <= 32), connections_of(page.port)
    finally:
        page.close()


def test_an_address_that_others_reach_needs_a_token() -> None:
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0.*give a token"):
        listen_checked("0.0.0.0", 0, has_token=False)
    listen_checked("0.0.0.0", 0, has_token=True).close()


def test_the_exporter_answers_no_page_whose_name_was_rebound() -> None:
    pytest.importorskip("prometheus_client")
    from greentrain.report.live.prometheus import Page

    page = Page(PrometheusConfig(port=0), 0)
    try:
        for name, status in (("localhost:1", 200), ("127.0.0.1", 200), ("evil.example", 403)):
            request = urllib.request.Request(f"http://127.0.0.1:{page.port}/metrics", headers={"Host": name})
            try:
                with urllib.request.urlopen(request, timeout=LONGEST_S) as answer:
                    assert answer.status == status
            except urllib.error.HTTPError as error:
                assert error.code == status
                error.close()
    finally:
        page.close()
