"""Trainings in which something goes wrong: no reason to end them, and nothing that harms the next one."""

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from benchmarks.paced_device import Wrapped
from greentrain.fpga_backend.batch import Batch, Result
from greentrain.fpga_backend.device import Handle, OffloadDevice
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.fpga_backend.errors import DeviceError
from greentrain.rlhf.kinds import PassKind
from tests.rlhf.trl import tiny
from tests.rlhf.trl.runs import trainer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def parts() -> Iterator[tuple[Any, Any]]:
    """Compiled models and a device."""
    device = Emulator()
    yield tiny.artifacts(), device
    device.close()


@pytest.fixture(scope="module")
def wanted(parts: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The weights without trouble."""
    found = {}
    for algorithm in ("grpo", "rloo"):
        made = trainer(algorithm, "sequential", tmp_path_factory.mktemp("right"), *parts, max_steps=1)
        made.train()
        found[algorithm] = tiny.digest(made)
    return found


class Shy(Wrapped):
    """A device that refuses each batch the first time."""

    def __init__(self, device: OffloadDevice) -> None:
        super().__init__(device, name="shy", depth=64)
        self.seen: set[Any] = set()

    def submit(self, handle: Handle, batch: Batch, *, wait_s: float | None = None) -> "Future[Result]":
        key = tuple(row.tobytes() for row in batch.ids)
        if key not in self.seen:
            self.seen.add(key)
            raise DeviceError("not yet")
        return super().submit(handle, batch, wait_s=wait_s)


@pytest.mark.sweep
@pytest.mark.parametrize(("algorithm", "mode"), [("grpo", "late"), ("grpo", "stream"), ("rloo", "stream")])
def test_a_device_that_refuses_early_is_asked_again_where_the_numbers_are_read(
    algorithm: str, mode: str, parts: Any, wanted: Any, tmp_path: Path
) -> None:
    """Without a home: what is handed in early need not be there yet."""
    device = Shy(Emulator())
    made = trainer(algorithm, mode, tmp_path, parts[0], device, max_steps=1)
    made.train()
    device.close()
    assert len(device.seen) > 2
    assert tiny.digest(made) == wanted[algorithm]


def test_a_reward_that_raises_leaves_nothing_behind(parts: Any, tmp_path: Path) -> None:
    """The evaluation behind it reads no rollouts of the training that ended, and the next training has its own."""
    wrong = [True]

    def fails(completions: Any, **columns: Any) -> list[float]:
        if wrong:
            raise KeyError("the user's own")
        return [0.0] * len(completions)

    arguments = {"eval_dataset": tiny.prompts(4)}
    made = trainer("grpo", "late", tmp_path, *parts, arguments=arguments, max_steps=2)
    made.reward_funcs.insert(0, fails)
    made.reward_func_names.insert(0, "fails")
    made.reward_processing_classes.insert(0, None)
    made.reward_weights = made.reward_weights.new_ones(2)
    with pytest.raises(KeyError, match="own"):
        made.train()
    wrong.clear()
    assert made._rewards[0].under_way or made._rewards[0].stream is not None, "nothing was handed in early"
    assert "eval_kl" in made.evaluate()
    assert made._rewards[0].stream is None
    before = made.ref_model.engine.stats()[PassKind.REFERENCE].calls
    made.train()
    assert made.ref_model.engine.stats()[PassKind.REFERENCE].calls == before + 4
