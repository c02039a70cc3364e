"""How many files of GreenTrain three everyday paths pass: how far a reader must walk to follow one of them.

::

    python -m benchmarks.path_files            # the table
    python -m benchmarks.path_files -v rlhf    # one path, and its files in the order in which they come

``joule``
    From the first reading of the driver in a running session until ``summary.json`` is there: sampled, booked,
    journalled, read again and summed. The driver is the fake one, the only meter; the session was opened before.
``decision``
    The first decision of a plan in a training process: from the model that the session is given to watch to the action
    that is taken, in the training's thread; the sampler's is on the joule's path. Gears and grid are declared.
``rlhf``
    One reference pass of TRL's GRPO: from the trainer's call of its reference until the emulator, in the device's
    thread, has computed its log-probabilities.

A file counts if a function, method or property that is written in it begins to run on the way. Not counted are what
runs at import (bodies of modules and classes), what ``dataclass`` generates, the ground floor that every path stands
on (``errors``, ``types``, ``utils``), the fake driver, and what is not of the project.

On the tree of 3c609d0 this gives 40 files for the joule, 41 for the decision and 24 for the pass of RLHF.
"""

import argparse
import contextlib
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
LINKS: Final = ("optim", "callbacks", "fpga_backend")
"""Folders of the package that lie at the root and are linked into ``greentrain``."""
GROUND: Final = ("greentrain/errors.py", "greentrain/types.py", "greentrain/utils/")
TARGETS: Final = {"joule": 22, "decision": 28, "rlhf": 16}
"""Files that a path may pass at most."""


class Walk:
    """Notes the files in which code begins to run while ``on``.

    Args:
        alone: Notes them in the calling thread only.
    """

    def __init__(self, *, alone: bool) -> None:
        self.alone = alone
        self.files: dict[str, str] = {}
        """By path within the repository, the function that was the first to run, in order."""
        self.on = False
        self.until: Callable[[], bool] = lambda: False
        """Asked before a new file is noted: True ends the walk."""
        self._names: dict[str, str | None] = {}

    @contextlib.contextmanager
    def installed(self) -> Iterator["Walk"]:
        """Hear of every call in this thread and, unless ``alone``, in those that it starts."""
        if not self.alone:
            threading.setprofile(self._called)
        sys.setprofile(self._called)
        try:
            yield self
        finally:
            self.on = False
            sys.setprofile(None)
            threading.setprofile(None)

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not self.on:
            return
        code = frame.f_code
        if code.co_name.startswith("<module") or ("__qualname__" in code.co_names and "__module__" in code.co_names):
            return  # a body of a module or a class
        path = self._path(code.co_filename)
        if path is not None and path not in self.files:
            if self.until():
                self.on = False
                return
            self.files[path] = f"{code.co_qualname} ({threading.current_thread().name})"

    def _path(self, file: str) -> str | None:
        if file not in self._names:
            given = os.path.realpath(file)
            inside = os.path.relpath(given, ROOT) if given.startswith(f"{ROOT}{os.sep}") else ""
            ours = inside.split(os.sep)[0] in ("greentrain", *LINKS) and not f"greentrain/{inside}".startswith(
                "greentrain/greentrain/testing/"
            )
            self._names[file] = inside if ours and not inside.startswith(GROUND) else None
        return self._names[file]


def joule(walk: Walk, folder: Path) -> None:
    """Measure a second of a session on the fake driver."""
    from greentrain import GreenSession
    from greentrain.testing.fake_nvml import FakeDriver, FakeGpu

    config = {
        "run": {"dir": str(folder), "book_s": 0.2},
        "power": {"meters": ["nvml"], "sample_s": 0.05},
        "carbon": {"g_per_kwh": 400.0},
    }
    with FakeDriver([FakeGpu()]) as driver, driver.installed(), walk.installed():
        with GreenSession(config) as green:
            walk.until = (Path(str(green.folder)) / "summary.json").exists
            walk.on = True
            for _ in range(10):
                time.sleep(0.05)
                green.step(tokens=1)
        walk.on = False


def decision(walk: Walk, folder: Path) -> None:
    """Train under a plan until it has decided once."""
    import torch

    from greentrain import GreenSession
    from greentrain.carbon.trace import TraceSignal
    from greentrain.testing.fake_nvml import FakeDriver, FakeGpu

    grid = folder / "grid.csv"
    hours = [f"2022-05-{23 + h // 24:02}T{h % 24:02}:00Z,{500 if h % 24 < 12 else 100}" for h in range(9 * 24)]
    grid.write_text("\n".join(["timestamp_utc,g_per_kwh", *hours, ""]), encoding="utf-8")
    actions = folder / "actions.yaml"
    rows = ((gear, rate) for gear, rate in (("bf16", 200), ("fp8", 400)))
    actions.write_text("".join(f"- {{gear: {g}, tokens_per_s: {r}, power_w: 500}}\n" for g, r in rows), "utf-8")
    config = {
        "run": {"dir": str(folder), "report": False, "book_s": 0.2, "live": False},
        "power": {"sample_s": 0.05},
        "carbon": {"replay_start": "2022-05-31T00:00Z", "speed": 14400.0},
        "precision": {"gears": ["bf16", "fp8"], "min_features": 16, "probe_every": 0},
        "policy": {"name": "mpc", "tokens": 2000.0, "deadline_h": 24.0, "idle_w": 0.0, "actions": str(actions)},
        "actuators": {"checkpoint": False},
    }
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU())
    optimizer = torch.optim.AdamW(model.parameters())
    signal = TraceSignal(grid, zone="TEST")
    with (
        FakeDriver([FakeGpu()]) as driver,
        driver.installed(),
        walk.installed(),
        GreenSession(config, signal=signal) as green,
    ):
        walk.on = True
        green.watch(model, optimizer)
        journal = Path(str(green.folder)) / "rank-00000.jsonl"
        end_s = time.monotonic() + 20.0
        while time.monotonic() < end_s:
            optimizer.step()
            green.step(tokens=8)
            if '"decision"' in journal.read_text("utf-8"):
                break
            time.sleep(0.02)
        walk.on = False


def rlhf(walk: Walk, folder: Path) -> None:
    """Take one step of GRPO with its reference on the emulator."""
    from transformers.trainer_callback import PrinterCallback
    from trl.trainer.grpo_config import GRPOConfig

    from greentrain.fpga_backend.emulator.device import Emulator
    from greentrain.fpga_backend.emulator.engine import Engine
    from greentrain.rlhf.trl.grpo import OffloadGRPOTrainer
    from tests.rlhf.trl import tiny

    class Watched(OffloadGRPOTrainer):
        def _late_reference(self, batch: dict[str, Any]) -> Any:
            walk.on = walk.on or not walk.files
            return super()._late_reference(batch)

    compute = Engine.run

    def run(self: Engine, batch: Any) -> Any:
        result = compute(self, batch)
        walk.on = False
        return result

    Engine.run = run  # type: ignore[method-assign]
    try:
        with walk.installed():
            device = Emulator()
            engine = tiny.engine(tiny.artifacts(), device)
            trainer: Any = Watched(
                model=tiny.policy(),
                reward_funcs=lambda completions, **_: [float(len(text)) for text in completions],
                args=GRPOConfig(**tiny.options(folder, max_steps=1)),
                train_dataset=tiny.prompts(),
                processing_class=tiny.tokenizer(),
                engine=engine,
            )
            trainer.remove_callback(PrinterCallback)
            trainer.train()
            engine.close()
            device.close()
    finally:
        Engine.run = compute  # type: ignore[method-assign]


PATHS: Final[dict[str, Callable[[Walk, Path], None]]] = {"joule": joule, "decision": decision, "rlhf": rlhf}


def main() -> int:
    """Walk the paths and print what they pass; 1 if one passes more files than it may."""
    parser = argparse.ArgumentParser(description="Count the files that everyday paths through GreenTrain pass.")
    parser.add_argument("paths", nargs="*", choices=[*PATHS, []], help="which; all where none is named")
    parser.add_argument("-v", "--verbose", action="store_true", help="name the files, and what ran first in each")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    missed = 0
    print("| path | files | at most |\n|---|---:|---:|")
    for name in given.paths or PATHS:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["GREENTRAIN_CACHE_DIR"] = os.environ["GREENTRAIN_CLAIMS_DIR"] = folder
            PATHS[name](walk := Walk(alone=name == "decision"), Path(folder))
        missed += not 0 < len(walk.files) <= TARGETS[name]
        print(f"| {name} | {len(walk.files)} | {TARGETS[name]} |", flush=True)
        if given.verbose:
            print("\n".join(f"    {path}: {first}" for path, first in walk.files.items()), flush=True)
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
