"""Clients that are slow, large, rude or not allowed: a clear answer or a closed connection, and nothing left behind."""

import base64
import contextlib
import gc
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from greentrain.errors import ConfigError
from greentrain.rlhf.serve.limits import ServeLimits
from greentrain.rlhf.serve.server import Server
from greentrain.utils.http_access import Access
from tests.rlhf.serve.serving import TOKEN, Parts, client, connected, request_of

QUICK = ServeLimits(receive_s=0.3, send_s=0.3, body_bytes=65536, held_bytes=100_000)
FINE = json.dumps({"input": [1, 2, 3]}).encode()


@pytest.fixture(scope="module")
def quick(made: Parts) -> Iterator[Server]:
    with Server(made.engine, made.text, token=TOKEN, limits=QUICK) as one:
        with client(one) as asking:
            asking.post("/classify", json={"input": "warm up"}).raise_for_status()
            asking.get("/metrics").raise_for_status()
        yield one


def read(connection: socket.socket) -> bytes:
    """Return what comes until the other side closes, or resets."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def answered(connection: socket.socket) -> bytes:
    """Return one answer."""
    found = b""
    while b"\r\n\r\n" not in found:
        found += connection.recv(65536)
    head = found.partition(b"\r\n\r\n")[0]
    size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(found) < len(head) + 4 + size:
        found += connection.recv(65536)
    return found


def left(server: Server) -> int:
    """Return the connections that are open after a while."""
    end_s = time.monotonic() + 120.0
    while (found := len(server._host.server.server_state.connections)) and time.monotonic() < end_s:
        time.sleep(0.01)
    return found


def works(server: Server) -> bool:
    with client(server) as asking:
        return asking.post("/classify", json={"input": [1, 2, 3]}).status_code == 200


def test_requests_that_do_not_arrive_are_dropped(quick: Server) -> None:
    begun = [b"", b"POST /classi", request_of(b"")[:60], request_of(b"", length=9)[:-2]]
    with contextlib.ExitStack() as opened:
        connections = [opened.enter_context(connected(quick)) for _ in begun]
        begun_s = time.monotonic()
        for connection, part in zip(connections, begun, strict=True):
            connection.sendall(part)
        assert [read(connection) for connection in connections] == [b""] * 4
        assert 0.2 < time.monotonic() - begun_s < 25.0


def test_headers_that_drip_are_dropped_as_well(quick: Server) -> None:
    with connected(quick) as connection:
        begun_s = time.monotonic()
        connection.sendall(b"POST /classify HTTP/1.1\r\n")
        with pytest.raises(ConnectionError):
            while time.monotonic() - begun_s < 60.0:
                connection.sendall(b"X-More: 1\r\n")
                time.sleep(0.05)
        assert time.monotonic() - begun_s < 25.0


def test_a_body_that_does_not_arrive_is_408(quick: Server) -> None:
    with connected(quick) as connection:
        connection.sendall(request_of(FINE[:5], length=len(FINE)))
        found = answered(connection)
        assert b" 408 " in found and b"did not arrive within 0.3 s" in found
        assert read(connection) == b"", "and the connection is dropped soon"


def test_an_answer_that_is_not_taken_is_dropped(made: Parts) -> None:
    rows = [list(range(1, 65))] * 400
    body = {"prompt": rows, "prompt_logprobs": 0, "temperature": 0.5}
    with Server(made.engine, token=TOKEN, limits=ServeLimits(send_s=0.3)) as server:
        server._host.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # else the kernel takes it all
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            host, _, port = server.url.removeprefix("http://").rpartition(":")
            connection.connect((host, int(port)))
            connection.sendall(request_of(json.dumps(body).encode(), route="/v1/completions"))
            end_s = time.monotonic() + 120.0
            while not server._host.server.server_state.total_requests and time.monotonic() < end_s:
                time.sleep(0.01)
            assert left(server) == 0
        assert works(server)


def test_too_large_is_413_before_it_has_all_come(quick: Server) -> None:
    with connected(quick) as said, connected(quick) as found:
        said.sendall(request_of(b"[", length=10**9))
        assert b" 413 " in answered(said)
        head = request_of(b"").partition(b"Content-Length")[0]
        found.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n" + b"8000\r\n" + b" " * 32768 + b"\r\n")
        found.sendall(b"8001\r\n" + b" " * 32769 + b"\r\n")
        assert b" 413 " in answered(found)
    assert left(quick) == 0


def test_bodies_that_are_held_have_a_bound_together(made: Parts) -> None:
    with Server(made.engine, made.text, token=TOKEN, limits=replace(QUICK, receive_s=600.0)) as server:
        with connected(server) as one, connected(server) as two:
            one.sendall(request_of(b" " * 60000, length=60000 + len(FINE)))
            end_s = time.monotonic() + 120.0
            while server.application.guarded._held_bytes < 60000 and time.monotonic() < end_s:
                time.sleep(0.005)
            two.sendall(request_of(b" " * 60000, length=65536))
            assert b" 503 " in answered(two), "there is no room beside the first"
            one.sendall(FINE)
            assert b" 200 " in answered(one)
        assert works(server) and left(server) == 0


def test_without_the_token_nobody_holds_bodies(quick: Server) -> None:
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n"
    with connected(quick) as one, connected(quick) as two:
        for connection in (one, two):
            connection.sendall(head + b" " * 59000)
            assert b" 200 " in answered(connection), "at once: the body is not waited for"
        assert quick.application.guarded._held_bytes == 0 and works(quick)


def test_half_closed_and_vanished_clients_leave_nothing(quick: Server) -> None:
    for _ in range(20):
        with connected(quick) as connection:
            connection.sendall(request_of(FINE))
            connection.shutdown(socket.SHUT_WR)
            read(connection)
        with connected(quick) as connection:
            connection.sendall(request_of(FINE, length=1000))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    assert left(quick) == 0 and works(quick)


def test_pipelined_requests_are_answered_in_order(quick: Server) -> None:
    with connected(quick) as connection:
        connection.sendall(b"".join(request_of(json.dumps({"input": [i] * i}).encode()) for i in range(1, 9)))
        found = b""
        while found.count(b'"usage"') < 8:
            found += connection.recv(65536)
    counts = [int(part.partition(b",")[0]) for part in found.split(b'"prompt_tokens":')[1:]]
    assert counts == list(range(1, 9))


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\n\r\n",
        b"POST /classify HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST /classify HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /classify HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["TLS", "two hosts", "long path", "negative length", "two lengths", "no chunk"],
)
def test_what_is_no_http_is_refused_and_closed(quick: Server, sent: bytes) -> None:
    with connected(quick) as connection:
        connection.sendall(sent)
        found = read(connection)
    assert b" 40" in found[:20] and b" 500 " not in found[:20]
    assert left(quick) == 0


def test_hundreds_of_bad_requests_leave_no_thread_and_no_memory(quick: Server) -> None:
    bad = [request_of(b"{" * 500), request_of(FINE, token="x" * 32), request_of(b"\xff\xfe"), request_of(b"{}")]

    def storm() -> None:
        for _ in range(20):
            with connected(quick) as connection:
                for one in bad:
                    connection.sendall(one)
                    assert b"HTTP/1.1 40" in answered(connection)[:12]
                connection.sendall(b"GET /nothing HTTP/1.0\r\n\r\n")
                read(connection)

    storm()
    gc.collect()
    threads, objects = threading.active_count(), len(gc.get_objects())
    for _ in range(4):
        storm()
    gc.collect()
    assert threading.active_count() == threads and left(quick) == 0
    assert len(gc.get_objects()) - objects < 2000, "of 400 requests, each of which makes hundreds"


@pytest.mark.parametrize("route", ["/classify", "/metrics", "/v1/models", "/openapi.json", "/nothing"])
def test_without_the_token_there_is_nothing_but_health(quick: Server, route: str) -> None:
    basic = base64.b64encode(f"any:{TOKEN}".encode()).decode()
    wrong: list[dict[str, str]] = [
        {},
        {"Authorization": TOKEN},
        {"Authorization": "Bearer"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": "Basic ???"},
        {"Authorization": f"Bearer {basic}"},
        {"X-Token": TOKEN},
    ]
    with client(quick, token=None) as asking:
        assert asking.get("/health").json() == {"status": "ok"}
        for headers in wrong:
            answer = asking.request("POST" if route == "/classify" else "GET", route, headers=headers)
            assert answer.status_code == 401 and "Bearer TOKEN" in answer.json()["error"]["message"]
            assert "basic" in answer.headers["www-authenticate"].lower()
        for scheme in ("Bearer", "bearer"):
            assert asking.get("/v1/models", headers={"Authorization": f"{scheme} {TOKEN}"}).status_code == 200
        assert asking.get("/v1/models", headers={"Authorization": f"Basic {basic}"}).status_code == 200


def test_no_token_is_in_logs_or_metrics(quick: Server, caplog: pytest.LogCaptureFixture) -> None:
    secret = "another-secret-of-32-characters-"
    caplog.set_level(logging.DEBUG)
    with client(quick) as asking, client(quick, token=secret) as stranger:
        asking.post("/classify", json={"input": [1]})
        stranger.post(f"/{secret}", json={"input": [secret]}, params={"token": secret})
        asking.post("/classify", content=b"{", headers={"Content-Type": "application/json"})
        shown = asking.get("/metrics").text
    logged = "".join(
        record.getMessage() for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))
    )
    for text in (logged, shown):
        assert TOKEN not in text and secret not in text
    assert 'route="other"' in shown and 'route="/classify",status="400"' in shown


def test_without_a_token_only_this_machine_may_ask_by_its_own_name(made: Parts) -> None:
    with Server(made.engine, host="localhost") as server, client(server, token=None) as asking:
        assert asking.post("/classify", json={"input": [1]}).status_code == 200
        rebound = asking.post("/classify", json={"input": [1]}, headers={"Host": "evil.example:8700"})
        assert rebound.status_code == 403
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            assert asking.post("/classify", content=FINE, headers={"Content-Type": kind}).status_code == 415
    with Server(made.engine, host="127.0.0.2") as server, client(server, token=None) as asking:
        assert asking.post("/classify", json={"input": [1]}).status_code == 200
    for name, may in (
        ("localhost", True), ("LOCALHOST:8700", True), ("[::1]:8700", True), ("[::1]", True), ("127.0.0.1", True),
        ("localhost.evil.example", False), ("127.0.0.1.evil.example", False), ("10.0.0.1:8700", False), ("", False),
        ("evil.example:127.0.0.1", False), ("0.0.0.0:8700", False),
    ):  # fmt: skip
        assert Access(None).allows([(b"host", name.encode())]) is may, name
    for host in ("0.0.0.0", "::"):
        with pytest.raises(ConfigError, match="give a token"):
            Server(made.engine, host=host)
    with pytest.raises(ConfigError, match="16 printable"):
        Server(made.engine, token="short")


@pytest.mark.parametrize("wrong", [{"batch_sequences": 0}, {"window_s": -1.0}, {"receive_s": 0.0}, {"held_bytes": 1}])
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ServeLimits(**wrong)
