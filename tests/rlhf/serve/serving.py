"""A server over small random models, and devices that wait or fail when told to."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.device import DeviceInfo, EnergyReading, Handle, OffloadDevice
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.fpga_backend.errors import DeviceError, DeviceLostError
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.frozen_pass import place
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.serve.server import Server
from greentrain.rlhf.text import TextEncoder
from greentrain.testing.offload_models import decoder, encoder
from greentrain.types import PowerMeter

TOKEN = "a-token-of-thirty-two-characters"
TEMPERATURE = 0.5
LONGEST = 64
VOCABULARY = 101


class Words:
    """A tokenizer of words: the interface of transformers that TextEncoder uses, without its import of seconds."""

    pad_token_id = 0

    def __call__(
        self, texts: Sequence[str], *, add_special_tokens: bool, truncation: bool = False, max_length: int | None = None
    ) -> Mapping[str, list[list[int]]]:
        rows = [[1 + sum(word.encode()) % (VOCABULARY - 1) for word in text.split()] for text in texts]
        return {"input_ids": [row[:max_length] for row in rows] if truncation else rows}


class Held(OffloadDevice):
    """An emulator whose batches wait for a gate, and fail while it is told to."""

    def __init__(self) -> None:
        self.inner = Emulator()
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[int] = []
        self.passed = 0
        """Batches that have come through the gate."""
        self.failures: Iterator[bool] = iter(())
        self._hangs: list[Future[Result]] | None = None

    def hang(self) -> None:
        """Answer nothing from now on."""
        self._hangs = []

    def probe(self) -> DeviceInfo:
        return self.inner.probe()

    def load(self, artifact: Artifact, *, replacing: Handle | None = None) -> Handle:
        return self.inner.load(artifact, replacing=replacing)

    def submit(self, handle: Handle, batch: Batch, *, wait_s: float | None = None) -> Future[Result]:
        self.batches.append(len(batch.ids))
        self.gate.wait(240.0)
        self.passed += 1
        if self._hangs is not None:
            late: Future[Result] = Future()
            late.set_running_or_notify_cancel()
            self._hangs.append(late)
            return late
        if next(self.failures, False):
            failed: Future[Result] = Future()
            failed.set_exception(DeviceError("it was told to fail"))
            return failed
        return self.inner.submit(handle, batch, wait_s=wait_s)

    def energy(self) -> EnergyReading:
        return self.inner.energy()

    @property
    def meter(self) -> PowerMeter:
        return self.inner.meter

    def close(self) -> None:
        self.gate.set()
        for late in self._hangs or ():
            late.set_exception(DeviceLostError("the device is closed"))
        self.inner.close()


@dataclass(kw_only=True)
class Parts:
    """What a server is made of, and direct answers to compare with."""

    device: Held
    engine: OffloadEngine
    text: dict[PassKind, TextEncoder] = field(default_factory=dict)

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return texts as the reward model reads them."""
        return self.text[PassKind.REWARD].ids(texts)

    def scores(self, rows: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """Return the scores without a server."""
        found = self.engine.submit(PassKind.REWARD, Batch.of(rows)).result().scores
        assert found is not None
        return found[:, 0]

    def logprobs(self, rows: Sequence[Sequence[int]]) -> list[npt.NDArray[np.float32]]:
        """Return the log-probabilities without a server."""
        found = self.engine.submit(PassKind.REFERENCE, Batch.of(rows)).result().logprobs
        assert found is not None
        return list(found)


def parts(*, home: OffloadDevice | None = None) -> Parts:
    """Return an engine with a reward of one label and a reference, and a tokenizer for both."""
    device = Held()
    engine = OffloadEngine(
        [
            place(PassKind.REWARD, encoder(vocabulary=VOCABULARY, max_tokens=LONGEST), device, home=home),
            place(
                PassKind.REFERENCE,
                decoder(vocabulary=VOCABULARY, max_tokens=LONGEST),
                device,
                home=home,
                temperature=TEMPERATURE,
            ),
        ]
    )
    words = TextEncoder(Words(), LONGEST)
    return Parts(device=device, engine=engine, text={PassKind.REWARD: words, PassKind.REFERENCE: words})


def client(server: Server, token: str | None = TOKEN, **options: Any) -> httpx.Client:
    """Return a client with a token."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=server.url, headers=headers, timeout=120.0, trust_env=False, **options)


def connected(server: Server) -> socket.socket:
    """Return a bare connection."""
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60.0)


def request_of(body: bytes, *, token: str = TOKEN, length: int | None = None, route: str = "/classify") -> bytes:
    """Return the bytes of a POST."""
    size = len(body) if length is None else length
    head = f"POST {route} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {size}\r\n\r\n".encode() + body


@dataclass(kw_only=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: Any


async def posted(server: Server, body: Any, route: str = "/classify") -> Answer:
    """Post JSON over a connection of its own: a library's client takes longer to make than to answer."""
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request_of(json.dumps(body).encode(), route=route))
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        content = await reader.readexactly(int(headers["content-length"]))
    finally:
        writer.close()
    return Answer(status=int(head[0].split()[1]), headers=headers, body=json.loads(content))


async def from_many(server: Server, bodies: Sequence[Any], route: str = "/classify") -> list[Answer]:
    """Post each body from a client of its own, all at once."""
    return await asyncio.gather(*(posted(server, body, route) for body in bodies))
