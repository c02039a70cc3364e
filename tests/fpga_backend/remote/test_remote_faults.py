"""What goes wrong between two machines, on the loopback."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.device import EnergyReading, Handle
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.fpga_backend.errors import ArtifactError, DeviceError, DeviceLostError
from greentrain.fpga_backend.remote.client import RemoteDevice, RemoteTimeouts
from greentrain.fpga_backend.remote.server import DeviceServer, DeviceServerLimits, serve
from greentrain.testing.offload_contract import raised, rows_of
from greentrain.testing.offload_models import encoder, sequences
from greentrain.types import PowerMeter, Provenance

QUICK = RemoteTimeouts(batch_s=20.0, load_s=20.0, silence_s=1.0, lost_s=0.5, hold_s=0.1, poll_s=0.05)


class Gated:
    """An emulator whose batches wait for a sign, and whose joules a test sets."""

    def __init__(self) -> None:
        self.inner = Emulator()
        self.go = threading.Event()
        self.go.set()
        self.loads: list[Handle | None] = []
        self.reading = EnergyReading(energy_j=None, provenance=Provenance.MISSING, note="no sensor")
        self.lost = False
        self.probe = self.inner.probe

    def load(self, artifact: Artifact, *, replacing: Handle | None = None) -> Handle:
        self.loads.append(replacing)
        return self.inner.load(artifact, replacing=replacing)

    def submit(self, handle: Handle, batch: Batch, *, wait_s: float | None = None) -> Future[Result]:
        if self.lost:
            raise DeviceLostError("the card fell off the bus")
        inner = self.inner.submit(handle, batch, wait_s=wait_s)
        outer: Future[Result] = Future()
        outer.set_running_or_notify_cancel()

        def run() -> None:
            self.go.wait(400.0)
            outer.set_result(inner.result(400.0))

        threading.Thread(target=run, name="gated").start()
        return outer

    def energy(self) -> EnergyReading:
        return self.reading

    @property
    def meter(self) -> PowerMeter:
        return self.inner.meter

    def close(self) -> None:
        self.go.set()
        self.inner.close()


@pytest.fixture
def gated() -> Iterator[Gated]:
    device = Gated()
    yield device
    device.close()


@pytest.fixture
def server(gated: Gated) -> Iterator[DeviceServer]:
    with serve(gated, limits=DeviceServerLimits(batch_bytes=20_000, silence_s=1.0)) as server:
        yield server
        gated.go.set()


@pytest.fixture
def remote(server: DeviceServer) -> Iterator[RemoteDevice]:
    device = RemoteDevice(server.url, token=server.token, patience=QUICK)
    yield device
    device.close()


def ask(server: DeviceServer, method: str, path: str, token: str = "", **options: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token or server.token}", "X-GreenTrain-Client": "a test's client"}
    headers.update(options.pop("headers", {}))
    return httpx.request(method, server.url + path, headers=headers, trust_env=False, timeout=120.0, **options)


def test_a_wrong_token_opens_nothing(server: DeviceServer) -> None:
    error = raised(RemoteDevice, server.url, token="wrong" * 8, patience=QUICK)
    assert isinstance(error, DeviceError)
    assert "token" in str(error)
    assert "wrongwrong" not in str(error)
    for path in ("/v1/device", "/v1/energy", "/", "/v1/batches/1"):
        assert ask(server, "GET", path, token="no").status_code == 401
    assert ask(server, "GET", "/v1/device", headers={"Authorization": ""}).status_code == 401
    assert ask(server, "GET", "/v1/device", headers={"X-GreenTrain-Client": ""}).status_code == 400


def test_tokens_that_are_none(gated: Gated) -> None:
    for token in ("short", "with a newline\n and more", "ümlaut" * 9):
        assert isinstance(raised(serve, gated, token=token), ValueError)
        assert isinstance(raised(RemoteDevice, "http://127.0.0.1:1", token="ümlaut"), ValueError)
    for url in ("127.0.0.1:8765", "ftp://host", "http://", ""):
        assert isinstance(raised(RemoteDevice, url, token="x" * 20), ValueError)


def test_no_server_is_an_error_at_once() -> None:
    begun_s = time.monotonic()
    error = raised(RemoteDevice, "http://127.0.0.1:9", token="x" * 20, patience=QUICK)
    assert isinstance(error, DeviceError)
    assert "127.0.0.1" in str(error)
    assert time.monotonic() - begun_s < 15.0


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/models", b"no json", 400),
        ("POST", "/v1/models", b"[" * 50_000, 400),
        ("POST", "/v1/models", b"[]", 400),
        ("POST", "/v1/models", b'{"digest": 3}', 400),
        ("POST", "/v1/models", b'{"digest": "unknown"}', 404),
        ("POST", "/v1/models", b"{" + b" " * 70_000 + b"}", 413),
        ("POST", "/v1/batches?model=1&hold_s=nan", b"", 400),
        ("POST", "/v1/batches?model=-1", b"", 400),
        ("POST", "/v1/batches?model=99", b"", 500),
        ("PUT", "/v1/artifacts/abc", b"\x80\x04pickle?", 400),
        ("PUT", "/v1/artifacts/abc", b"\x02\0\0\0\0\0\0\0{}", 400),
        ("GET", "/v1/batches/unknown", b"", 500),
        ("GET", "/v2/device", b"", 404),
        ("POST", "/v1/device", b"", 404),
    ],
)
def test_malformed_requests_are_refused_and_the_server_lives(
    server: DeviceServer, method: str, path: str, body: bytes, status: int
) -> None:
    reply = ask(server, method, path, content=body)
    assert reply.status_code == status
    assert reply.json()["message"]
    assert ask(server, "GET", "/v1/device").status_code == 200


@pytest.mark.parametrize("body", [b"", b"\0" * 100, b"\xff" * 30, b"\x02\0\0\0\0\0\0\0{}"])
def test_malformed_batches_are_refused(server: DeviceServer, remote: RemoteDevice, body: bytes) -> None:
    artifact = encoder()
    handle = remote.load(artifact)
    client = remote._connection.client
    reply = ask(server, "POST", "/v1/batches?model=1", content=body, headers={"X-GreenTrain-Client": client})
    assert (reply.status_code, reply.json()["error"]) == (400, "MalformedError")
    assert remote.submit(handle, sequences(artifact)).result(20).scores is not None


def test_bodies_that_are_too_large_or_of_unknown_length(server: DeviceServer, remote: RemoteDevice) -> None:
    artifact = encoder()
    handle = remote.load(artifact)
    client = remote._connection.client
    mine = {"X-GreenTrain-Client": client}
    assert ask(server, "POST", "/v1/batches?model=1", content=b"x" * 30_000, headers=mine).status_code == 413
    assert ask(server, "POST", "/v1/batches?model=1", content=iter([b"x"]), headers=mine).status_code == 411
    error = raised(remote.submit, handle, sequences(artifact, lengths=(64,) * 100))
    assert isinstance(error, DeviceError)
    assert "20000" in str(error)
    assert remote.submit(handle, sequences(artifact)).result(20).scores is not None


def address_of(server: DeviceServer) -> tuple[str, int]:
    return "127.0.0.1", int(server.url.rpartition(":")[2])


def test_a_body_that_never_comes_holds_nothing(server: DeviceServer) -> None:
    with ExitStack() as opened:
        assert half_sent(server, opened).recv(1) == b""  # hung up after silence_s
    assert ask(server, "GET", "/v1/device").status_code == 200


def half_sent(server: DeviceServer, opened: ExitStack) -> socket.socket:
    """Return the connection of a client with the token whose request is being read."""
    connection = opened.enter_context(socket.create_connection(address_of(server), timeout=120.0))
    names = f"Authorization: Bearer {server.token}\r\nX-GreenTrain-Client: a test's client\r\n"
    connection.sendall(f"POST /v1/models HTTP/1.1\r\n{names}Content-Length: 50\r\n\r\n{{".encode())
    return connection


def test_silent_clients_do_not_hold_the_device(gated: Gated) -> None:
    limits = DeviceServerLimits(connections=4, silence_s=60.0)
    with serve(gated, limits=limits) as server, ExitStack() as opened:
        for begun in (b"", b"GET /v1/dev", b"PUT / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n") * 4:
            opened.enter_context(socket.create_connection(address_of(server), timeout=120.0)).sendall(begun)
        with closing(RemoteDevice(server.url, token=server.token, patience=QUICK)) as device:
            assert device.probe().available


def test_too_many_requests_at_once_are_turned_away(gated: Gated) -> None:
    with serve(gated, limits=DeviceServerLimits(connections=2)) as server:
        with ExitStack() as opened:
            for _ in range(2):
                half_sent(server, opened)
            deadline_s = time.monotonic() + 240.0
            while (refusal := ask(server, "GET", "/v1/device")).status_code == 200 and time.monotonic() < deadline_s:
                half_sent(server, opened)  # the last was not begun yet and lost its place
            assert (refusal.status_code, refusal.json()["error"]) == (503, "QueueFullError")
        deadline_s = time.monotonic() + 240.0
        while (status := ask(server, "GET", "/v1/device").status_code) != 200 and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert status == 200


def noting(function: Callable[..., None], calls: list[Any]) -> Callable[..., None]:
    def noted(*given: Any) -> None:
        calls.append(given)
        function(*given)

    return noted


def test_an_artifact_is_sent_once_and_shared(
    gated: Gated, server: DeviceServer, remote: RemoteDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = encoder()
    sent: list[Any] = []
    for device in (remote, RemoteDevice(server.url, token=server.token, patience=QUICK)):
        monkeypatch.setattr(device, "_send", noting(device._send, sent))
        handle = device.load(artifact)
        again = device.load(artifact)
        assert handle.number != again.number
        assert device.submit(again, sequences(artifact)).result(20).scores is not None
    device.close()
    assert len(sent) == 1
    assert gated.loads == [None]


def test_replacing_takes_the_old_models_place_unless_others_use_it(
    gated: Gated, server: DeviceServer, remote: RemoteDevice
) -> None:
    first = remote.load(encoder(seed=0))
    second = remote.load(encoder(seed=1), replacing=first)
    assert [replaced is not None for replaced in gated.loads] == [False, True]
    with_other = RemoteDevice(server.url, token=server.token, patience=QUICK)
    kept = with_other.load(encoder(seed=1))
    remote.load(encoder(seed=2), replacing=second)
    assert [replaced is not None for replaced in gated.loads] == [False, True, False]
    assert with_other.submit(kept, sequences(encoder())).result(20).scores is not None
    with_other.close()
    remote.load(encoder(seed=3))
    assert [replaced is not None for replaced in gated.loads] == [False, True, False, True]


def test_an_artifact_that_changed_on_the_way_is_refused(server: DeviceServer, remote: RemoteDevice) -> None:
    error = raised(remote._send, encoder(seed=1), encoder(seed=2).digest)
    assert isinstance(error, ArtifactError)
    assert encoder(seed=1).digest[:12] in str(error)


def test_an_artifact_larger_than_the_server_takes(gated: Gated) -> None:
    with serve(gated, limits=DeviceServerLimits(artifact_bytes=1000)) as server:
        device = RemoteDevice(server.url, token=server.token, patience=QUICK)
        error = raised(device.load, encoder())
        device.close()
    assert isinstance(error, ArtifactError)
    assert "1000" in str(error)


def test_a_server_that_ends_loses_what_waits(gated: Gated, server: DeviceServer) -> None:
    artifact = encoder()
    remote = RemoteDevice(server.url, token=server.token, patience=QUICK, reconnect=False)
    handle = remote.load(artifact)
    gated.go.clear()
    futures = [remote.submit(handle, sequences(artifact)) for _ in range(4)]
    server.close()
    gated.go.set()
    assert all(isinstance(future.exception(240), DeviceLostError) for future in futures)
    assert isinstance(raised(remote.submit, handle, sequences(artifact)), DeviceLostError)
    assert not remote.probe().available
    assert remote.probe().reason
    assert isinstance(raised(remote.load, artifact), DeviceLostError)
    remote.close()


def test_a_batch_that_takes_too_long_fails_alone(gated: Gated, server: DeviceServer) -> None:
    artifact = encoder()
    device = RemoteDevice(
        server.url,
        token=server.token,
        patience=RemoteTimeouts(batch_s=0.3, silence_s=1.0, lost_s=0.5, hold_s=0.1, poll_s=0.05),
    )
    handle = device.load(artifact)
    gated.go.clear()
    error = device.submit(handle, sequences(artifact)).exception(240)
    gated.go.set()
    assert isinstance(error, DeviceError) and not isinstance(error, DeviceLostError)
    assert "0.3 s" in str(error)
    expected = rows_of(gated.inner.submit(gated.inner.load(artifact), sequences(artifact)).result(240))
    again = rows_of(device.submit(handle, sequences(artifact)).result(240))
    assert [row.tobytes() for row in again] == [row.tobytes() for row in expected]
    device.close()


def test_closing_does_not_wait_for_a_batch(gated: Gated, remote: RemoteDevice) -> None:
    artifact = encoder()
    handle = remote.load(artifact)
    gated.go.clear()
    futures = [remote.submit(handle, sequences(artifact)) for _ in range(3)]
    time.sleep(0.05)
    begun_s = time.monotonic()
    remote.close()
    assert time.monotonic() - begun_s < 60.0
    assert all(isinstance(future.exception(0), DeviceLostError) for future in futures)


def test_a_device_lost_behind_the_server_is_lost_here(gated: Gated, remote: RemoteDevice) -> None:
    artifact = encoder()
    handle = remote.load(artifact)
    gated.lost = True
    error = remote.submit(handle, sequences(artifact)).exception(240)
    assert isinstance(error, DeviceLostError)
    assert "fell off the bus" in str(error)
    assert isinstance(raised(remote.submit, handle, sequences(artifact)), DeviceLostError)


def test_a_restarted_server_is_noticed(gated: Gated) -> None:
    first = serve(gated, token="the same token again")
    port = int(first.url.rpartition(":")[2])
    device = RemoteDevice(first.url, token=first.token, patience=QUICK, reconnect=False)
    assert not device.probe().returns
    device.load(encoder())
    first.close()
    with serve(gated, port=port, token="the same token again"):
        deadline_s = time.monotonic() + 240.0
        while device.probe().available and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert "restarted" in device.probe().reason
        device.close()


def again(first: DeviceServer, device: Gated) -> DeviceServer:
    """A server at the same address, as a supervisor starts it again."""
    return serve(device, port=address_of(first)[1], token=first.token)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["in order", "the other first"])
def test_a_server_that_is_started_again_gets_models_and_batches_again(gated: Gated, order: tuple[int, int]) -> None:
    """Also what it had and not answered; a number of the first server is never read as another model of the second."""
    models = [encoder(seed=0), encoder(seed=1)]
    wanted = [rows_of(gated.inner.submit(gated.inner.load(m), sequences(m)).result(240)) for m in models]
    first = serve(gated, token="the same token again")
    patience = RemoteTimeouts(batch_s=240.0, load_s=240.0, silence_s=1.0, lost_s=240.0, hold_s=0.1, poll_s=3600.0)
    with closing(RemoteDevice(first.url, token=first.token, patience=patience)) as device:
        assert device.probe().returns
        handles = [device.load(model) for model in models]
        gated.go.clear()
        futures = [device.submit(handles[i], sequences(models[i])) for i in order]
        while not first._batches._waiting:  # handed in, and not answered
            time.sleep(0.01)
        first.close()
        other = Gated()
        with closing(other), again(first, other):
            gated.go.set()
            for i, future in zip(order, futures, strict=True):
                assert [row.tobytes() for row in rows_of(future.result(240))] == [row.tobytes() for row in wanted[i]]
            assert len(other.loads) == 2
            device.load(models[0])  # it knows that one


def test_joules_go_on_where_a_server_counts_anew(gated: Gated) -> None:
    gated.reading = EnergyReading(energy_j=1000.0, provenance=Provenance.MODELLED, note="a model")
    first = serve(gated, token="the same token again")
    with closing(RemoteDevice(first.url, token=first.token, patience=QUICK)) as device:
        gated.reading = EnergyReading(energy_j=1005.0, provenance=Provenance.MODELLED, note="a model")
        assert wait_for(lambda: device.energy().energy_j == 5.0)
        first.close()
        other = Gated()
        other.reading = EnergyReading(energy_j=2.0, provenance=Provenance.MODELLED, note="a model")
        with closing(other), again(first, other) as second:
            assert wait_for(lambda: device._instance == second._instance)
            other.reading = EnergyReading(energy_j=3.5, provenance=Provenance.MODELLED, note="a model")
            assert wait_for(lambda: device.energy().energy_j == 6.5)


def test_a_lost_server_that_comes_back_is_used_again(gated: Gated) -> None:
    artifact = encoder()
    wanted = rows_of(gated.inner.submit(gated.inner.load(artifact), sequences(artifact)).result(240))
    first = serve(gated, token="the same token again")
    with closing(RemoteDevice(first.url, token=first.token, patience=QUICK)) as device:
        handle = device.load(artifact)
        first.close()
        assert isinstance(device.submit(handle, sequences(artifact)).exception(240), DeviceLostError)
        assert not device.probe().available and "did not answer" in device.probe().reason
        other = Gated()
        with closing(other), again(first, other):
            deadline_s = time.monotonic() + 240.0
            while not device.probe().available and time.monotonic() < deadline_s:
                time.sleep(0.02)
            found = rows_of(device.submit(handle, sequences(artifact)).result(240))
            assert [row.tobytes() for row in found] == [row.tobytes() for row in wanted]


@pytest.mark.parametrize("replaces", [False, True], ids=["new", "in another's place"])
def test_a_load_waits_for_a_server_that_is_away(gated: Gated, monkeypatch: pytest.MonkeyPatch, replaces: bool) -> None:
    """Also in the place of a model whose number the server that comes back does not know."""
    first = serve(gated, token="the same token again")
    patience = RemoteTimeouts(batch_s=240.0, load_s=240.0, silence_s=1.0, lost_s=240.0, hold_s=0.1, poll_s=3600.0)
    with closing(RemoteDevice(first.url, token=first.token, patience=patience)) as device, ExitStack() as there:
        old = device.load(encoder(seed=1)) if replaces else None
        first.close()
        other = Gated()
        there.enter_context(closing(other))
        wait = device._connection._stop.wait

        def started(limit_s: float) -> bool:  # the first request has failed
            monkeypatch.setattr(device._connection._stop, "wait", wait)
            there.enter_context(again(first, other))
            return False

        monkeypatch.setattr(device._connection._stop, "wait", started)
        handle = device.load(encoder(), replacing=old)
        assert device._connection._stop.wait == wait, "it was away"
        found = rows_of(device.submit(handle, sequences(encoder())).result(240))
        wanted = rows_of(gated.inner.submit(gated.inner.load(encoder()), sequences(encoder())).result(240))
        assert [row.tobytes() for row in found] == [row.tobytes() for row in wanted]


def test_a_load_waits_for_a_lost_server_and_says_for_what_it_waited(gated: Gated) -> None:
    first = serve(gated, token="the same token again")
    patience = replace(QUICK, poll_s=3600.0)  # nobody looks for it but the load
    with closing(RemoteDevice(first.url, token=first.token, patience=patience)) as device:
        first.close()
        error = raised(device.load, encoder())
        assert isinstance(error, DeviceLostError)
        assert f"{first.url.removeprefix('http://')} did not answer for" in str(error)
    second = again(first, gated)
    with closing(RemoteDevice(second.url, token=first.token, patience=QUICK)) as device:
        handle = device.load(encoder())
        second.close()
        assert isinstance(device.submit(handle, sequences(encoder())).exception(240), DeviceLostError)
        device._patience = replace(QUICK, lost_s=240.0)
        with again(first, gated):
            device.load(encoder(seed=1))


def test_joules_are_the_other_machines_and_say_so(gated: Gated, server: DeviceServer) -> None:
    gated.reading = EnergyReading(energy_j=1000.0, provenance=Provenance.MODELLED, note="a model")
    device = RemoteDevice(server.url, token=server.token, patience=QUICK)
    gated.reading = EnergyReading(energy_j=1012.5, provenance=Provenance.MODELLED, note="a model")
    (sensor,) = device.meter.sensors
    assert sensor.provenance is Provenance.MODELLED
    assert sensor.device.uid == device.probe().uid
    for word in ("127.0.0.1", "another machine", "a model"):
        assert word in sensor.note
    assert wait_for(lambda: device.energy().energy_j == 12.5)
    gated.reading = EnergyReading(energy_j=3.0, provenance=Provenance.MODELLED)
    assert wait_for(lambda: "fallen" in device.meter.read()[0].note)
    assert device.energy().energy_j is None
    gated.reading = EnergyReading(energy_j=1013.0, provenance=Provenance.MODELLED)
    assert wait_for(lambda: device.energy().energy_j == 13.0)
    device.close()
    assert device.meter.read()


def wait_for(holds: Any) -> bool:
    deadline_s = time.monotonic() + 240.0
    while not (held := holds()) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return bool(held)


@contextmanager
def process(device: str, token_file: Path) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """A server in a process of its own, its URL and its token."""
    command = [sys.executable, "-m", "greentrain.fpga_backend.remote", device, "--token-file", str(token_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().split()[-1]
        assert token_file.stat().st_mode & 0o077 == 0
        yield server, url, token_file.read_text().strip()
        server.kill()


@pytest.mark.long
def test_a_server_that_hangs_or_is_killed_in_the_middle(tmp_path: Path) -> None:
    with process("emulator", tmp_path / "token") as (server, url, token):
        artifact = encoder(layers=4, hidden=128, inner=512)
        batch = sequences(artifact, lengths=(64,) * 8)
        device = RemoteDevice(url, token=token, patience=QUICK)
        handle = device.load(artifact)
        server.send_signal(signal.SIGSTOP)
        assert isinstance(device.submit(handle, batch).exception(30), DeviceLostError)
        server.send_signal(signal.SIGCONT)
        device.close()

        device = RemoteDevice(url, token=token, patience=QUICK, depth=64)
        handle = device.load(artifact)
        expected = device.submit(handle, batch).result(30)
        futures = [device.submit(handle, batch) for _ in range(40)]
        futures[1].result(30)
        server.send_signal(signal.SIGKILL)
        errors = [future.exception(30) for future in futures]
        assert errors[0] is None
        assert isinstance(errors[-1], DeviceLostError)
        for future, error in zip(futures, errors, strict=True):
            if error is None:
                assert rows_of(future.result())[0].tobytes() == rows_of(expected)[0].tobytes()
            else:
                assert isinstance(error, DeviceLostError)
        device.close()


def test_a_server_keeps_no_temporary_file_that_its_death_would_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with closing(Emulator()) as emulator, serve(emulator, token="0123456789abcdef") as server:
        device = RemoteDevice(server.url, token=server.token, patience=QUICK)
        device.load(encoder())
        assert not list(tmp_path.iterdir()), "neither the client's nor the server's part of the upload"
        device.close()


def test_the_command_ends_when_asked_to(tmp_path: Path) -> None:
    with process("null", tmp_path / "token") as (server, url, token):
        device = RemoteDevice(url, token=token, patience=QUICK)
        assert not device.probe().available
        server.send_signal(signal.SIGTERM)
        assert server.wait(240) == 0
        device.close()


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    from greentrain.fpga_backend.remote.__main__ import main

    assert main(["nothing"]) == 2
    assert main(["torch", "--option", "dtype=fp7"]) == 1
    assert main(["null", "--option", "surely=wrong"]) == 1
    (tmp_path / "token").write_text("short")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(signal, "signal", lambda *_: None)
        assert main(["null", "--token-file", str(tmp_path / "token")]) == 1
        assert main(["null", "--port", "80000"]) == 1
    assert main(["xrt", "--option", "design=gone.xclbin"]) == 1


def test_a_forked_process_does_not_end_its_parents_models(remote: RemoteDevice) -> None:
    artifact = encoder()
    handle = remote.load(artifact)
    pid = os.fork()
    if not pid:
        lost = raised(remote.load, artifact)
        remote.close()
        os._exit(0 if isinstance(lost, DeviceLostError) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert remote.submit(handle, sequences(artifact)).result(20).scores is not None
