"""The host of the standard library: what a client can hold of it, and for how long."""

import contextlib
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from greentrain.config.schema import PrometheusConfig
from greentrain.errors import ConfigError
from greentrain.utils.http_server import HostLimits, HttpReply, HttpRequest, ThreadHost, listen, listen_checked


def echo(request: HttpRequest) -> HttpReply:
    body = request.read(100) if request.length else b""
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


def dropped(host: ThreadHost, begun: bytes, more: bytes) -> float:
    """Send a head that does not end, and return after how many seconds the connection ends."""
    with socket.create_connection(("127.0.0.1", host.port), timeout=10.0) as connection:
        begun_s = time.monotonic()
        connection.sendall(begun)
        with contextlib.suppress(ConnectionError, TimeoutError):
            connection.settimeout(0.02)
            while time.monotonic() - begun_s < 8.0:
                connection.sendall(more)
                with contextlib.suppress(TimeoutError):
                    if not connection.recv(1):
                        break
        return time.monotonic() - begun_s


def test_several_requests_of_one_connection_are_answered(host: ThreadHost) -> None:
    with socket.create_connection(("127.0.0.1", host.port), timeout=10.0) as connection:
        for i in range(3):
            connection.sendall(f"POST /a{i}?b=c HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi".encode())
            found = b""
            while not found.endswith(b"}"):
                found += connection.recv(4096)
            told = json.loads(found.partition(b"\r\n\r\n")[2])
            assert told == {"method": "POST", "path": f"/a{i}", "query": "b=c", "body": "hi"}


def test_a_head_that_drips_is_dropped(host: ThreadHost) -> None:
    assert 0.2 < dropped(host, b"GET / HTTP/1.1\r\n", b"X: 1\r\n") < 5.0


def test_a_head_that_is_too_large_is_dropped() -> None:
    limits = HostLimits(head_bytes=4096, receive_s=60.0)
    host = ThreadHost(listen("127.0.0.1", 0), echo, name="t", limits=limits, busy=HttpReply(status=503, body=b"{}"))
    try:
        assert dropped(host, b"GET / HTTP/1.1\r\nX: ", b"1" * 1000) < 5.0
    finally:
        host.close()


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
                with urllib.request.urlopen(request, timeout=10.0) as answer:
                    assert answer.status == status
            except urllib.error.HTTPError as error:
                assert error.code == status
                error.close()
    finally:
        page.close()
