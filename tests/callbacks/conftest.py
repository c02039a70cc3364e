"""A session of known power that remembers what it was told, and a language model of a few weights."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from greentrain import GreenSession
from greentrain.carbon.constant import ConstantSignal
from greentrain.config.schema import GreenConfig
from greentrain.types import Device, DeviceKind, PowerSample, Provenance, Sensor

POWER_W = 100.0
CONTEXT = 8
VOCAB = 11


class FlatMeter:
    """A GPU of constant power with a counter."""

    def __init__(self) -> None:
        gpu = Device(uid="GPU-a", kind=DeviceKind.GPU, name="Fake GPU")
        self.sensors: Sequence[Sensor] = (
            Sensor(device=gpu, provenance=Provenance.MEASURED, method="counter", period_s=0.01, shared=False),
        )

    def read(self) -> list[PowerSample]:
        t_s = time.monotonic()
        return [PowerSample(device_uid="GPU-a", t_s=t_s, energy_j=POWER_W * t_s)]

    def close(self) -> None:
        pass


class Recorder(GreenSession):
    """A session that also keeps the order of what it was told: ``+forward``, ``-forward``, ``step``."""

    def __init__(self, folder: Path, **run: Any) -> None:
        config = {"run": {"dir": str(folder), "report": False, "book_s": 0.1, **run}, "power": {"sample_s": 0.01}}
        super().__init__(config, meter=FlatMeter(), signal=ConstantSignal(360.0, zone="test", source="test"))
        self.told: list[str] = []
        self.broken = False

    def begin(self, name: str) -> int:
        if self.broken:
            raise ZeroDivisionError(f"a bug of ours, {self.config.run.dir}")  # warned of once a text
        self.told.append(f"+{name}")
        return super().begin(name)

    def end(self, name: str, token: int = 0) -> None:
        self.told.append(f"-{name}")
        super().end(name, token)

    def step(self, tokens: int = 0, samples: int = 0) -> None:
        if self.broken:
            raise ZeroDivisionError(f"a bug of ours, {self.config.run.dir}")  # warned of once a text
        self.told.append("step")
        super().step(tokens, samples)

    @property
    def entered(self) -> list[str]:
        """Phases and steps in order, without the ends."""
        return [mark.removeprefix("+") for mark in self.told if not mark.startswith("-")]


class TinyLM(nn.Module):
    """Predicts the next token from the token alone."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, 4)
        self.out = nn.Linear(4, VOCAB)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        logits = self.out(self.table(input_ids))
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def followed(model: nn.Module) -> int:
    """Return how many watch a model's calls."""
    return len(getattr(vars(model).get("_compiled_call_impl"), "_watchers", ()))


class Text(Dataset[dict[str, Tensor]]):
    """Fixed random text."""

    def __init__(self, items: int) -> None:
        self.ids = torch.randint(VOCAB, (items, CONTEXT + 1), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[i, :-1], "labels": self.ids[i, 1:]}


def text_loader(items: int = 16, batch: int = 2) -> DataLoader[dict[str, Tensor]]:
    return DataLoader(Text(items), batch_size=batch)


class Gears:
    """What a driver asks of a session's gears, and what it was asked."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.box = SimpleNamespace(model=None)
        self.recorder = None

    def attach(self, model: Any, **how: Any) -> None:
        self.told.append(("attach", how))
        self.box.model = model

    def detach(self) -> None:
        self.told.append("detach")
        self.box.model = None

    def bind(self, optimizer: Any, *, counts: bool) -> None:
        self.told.append(("bind", optimizer, counts))

    def check(self, model: Any) -> None:
        self.told.append(("check", model))

    def boundary(self) -> None:
        self.told.append("boundary")


class Told:
    """A session that only keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.running, self.gears, self.parameters, self.report_path = False, None, None, None
        self.folder = None
        self.checkpoint_due = self.should_stop = False
        self.config = GreenConfig()

    def start(self, place: Any, batches: Any) -> None:
        self.running = True
        self.told.append((place.rank, place.world_size, place.local_rank, place.local_world_size, batches))

    def begin(self, name: str) -> int:
        self.told.append(f"+{name}")
        return len(self.told)

    def end(self, name: str, token: int = 0) -> None:
        self.told.append((f"-{name}", token))

    def step(self, tokens: int = 0, samples: int = 0) -> None:
        self.told.append((tokens, samples))

    def load_state_dict(self, state: Any) -> None:
        self.told.append(state)

    def state_dict(self) -> dict[str, Any]:
        return {"run": "one"}

    def metrics(self) -> dict[str, float]:
        return {"green/energy_j": 1.0 if self.running else 2.0}

    def write_card(self, path: Any, wait_s: float = 0.0) -> None:
        self.told.append(f"card {path}")

    def checkpoint(self) -> None:
        self.told.append("checkpoint")

    def close(self, reason: str) -> None:
        self.running = False
        self.told.append(reason)


@pytest.fixture
def session() -> Told:
    return Told()


@pytest.fixture
def told(session: Told) -> list[Any]:
    """What the session was told."""
    return session.told


@pytest.fixture(autouse=True)
def no_fault_of_ours(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail where a hook of ours has failed and no test waits for it: training goes on, and the test would with it.

    Where warnings are errors, ``never_raises`` logs; a module that ignores some has to name GreenTrainWarning last.
    """
    yield
    said = [record.getMessage() for record in caplog.get_records("call")]
    assert not [text for text in said if "failed with" in text]


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Callable[..., Recorder]]:
    """Make sessions that are closed when the test ends."""
    made: list[Recorder] = []

    def make(**run: Any) -> Recorder:
        made.append(Recorder(tmp_path / "runs", **run))
        return made[-1]

    yield make
    for session in made:
        session.close()
