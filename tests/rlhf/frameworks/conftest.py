"""A real server with small models, and frameworks that are not installed, as far as adapters touch them."""

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch

from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.frozen_pass import place
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.serve.server import Server
from greentrain.rlhf.text import TextEncoder
from greentrain.testing.offload_models import decoder, encoder

TEMPERATURE = 1.0
TOKEN = "a token of a test"


class Letters:
    """A tokenizer: a letter is a token, 0 is padding and 1 a special token."""

    def __call__(self, texts: Sequence[str], **_: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [[ord(letter) % 99 + 2 for letter in text] for text in texts]}

    def decode(self, ids: torch.Tensor | list[int], skip_special_tokens: bool = False) -> str:
        special = {0: "", 1: "" if skip_special_tokens else "|"}
        return "".join(special[i] if i < 2 else chr(i - 2 + 99 * (i < 34)) for i in map(int, ids))

    def batch_decode(self, rows: Sequence[Any], skip_special_tokens: bool = False) -> list[str]:
        return [self.decode(row, skip_special_tokens) for row in rows]


@dataclass(frozen=True)
class Served:
    """A server, and what its device says to the same sequences without it."""

    url: str
    rewards: Callable[[Sequence[str]], list[float]]
    logprobs: Callable[[Sequence[Sequence[int]]], list[list[float]]]


@pytest.fixture(scope="package")
def engine() -> Iterator[OffloadEngine]:
    with contextlib.closing(Emulator()) as device:
        reward, reference = encoder(types=0), decoder()
        yield OffloadEngine(
            [
                place(PassKind.REWARD, reward, device),
                place(PassKind.REFERENCE, reference, device, temperature=TEMPERATURE),
            ]
        )


@pytest.fixture
def served(engine: OffloadEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server, named in the environment that its clients read."""
    text = TextEncoder(Letters(), 64, special_tokens=False)

    def rewards(texts: Sequence[str]) -> list[float]:
        scores = engine.submit(PassKind.REWARD, text.batch(texts)).result().scores
        assert scores is not None
        return [float(row[0]) for row in scores]

    def logprobs(ids: Sequence[Sequence[int]]) -> list[list[float]]:
        rows = engine.submit(PassKind.REFERENCE, Batch.of(ids)).result().logprobs
        assert rows is not None
        return [row.tolist() for row in rows]

    with Server(engine, {PassKind.REWARD: text}, token=TOKEN) as running:
        monkeypatch.setenv("GREENTRAIN_URL", running.url)
        monkeypatch.setenv("GREENTRAIN_TOKEN", TOKEN)
        yield Served(running.url, rewards, logprobs)


@pytest.fixture
def adapter() -> Iterator[Callable[..., Any]]:
    """Import an adapter among the modules of a framework; all of them are forgotten again."""
    replaced: dict[str, ModuleType | None] = {}

    def put(name: str, module: ModuleType | None) -> None:
        replaced.setdefault(name, sys.modules.pop(name, None))
        if module is not None:
            sys.modules[name] = module

    def load(name: str, modules: dict[str, dict[str, Any]]) -> Any:
        for path, contents in modules.items():
            parts = path.split(".")
            for end in range(1, len(parts)):
                parent = ".".join(parts[:end])
                if parent not in modules and parent not in replaced:
                    put(parent, ModuleType(parent))
            module = ModuleType(path)
            vars(module).update(contents)
            put(path, module)
        for one in ("greentrain.rlhf.verl_reward", name):
            put(one, None)
        return importlib.import_module(name)

    yield load
    for name, module in replaced.items():
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module


@pytest.fixture
def closed_port() -> str:
    """An address where nobody listens."""
    return "http://127.0.0.1:9"
