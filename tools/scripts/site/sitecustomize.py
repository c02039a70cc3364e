"""Notes the losses of the script that this process runs, and what it still holds when it ends.

Python imports a module of this name at its start if its folder is on PYTHONPATH. Only processes that run a file are
looked at (no launcher, no helper), as SCRIPTS_PROBES says where notes go.
"""

import atexit
import ctypes
import gc
import json
import os
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

_losses: list[str] = []


def _watch() -> None:
    """Have every backward note its losses, before anything else is imported: in both runs alike."""
    import torch

    backward = torch.autograd.backward

    def noted(tensors: Any, *args: Any, **kwargs: Any) -> None:
        for each in [tensors] if isinstance(tensors, torch.Tensor) else tensors:
            _losses.append(float(each.detach().double().sum()).hex())
        backward(tensors, *args, **kwargs)

    torch.autograd.backward = noted
    made = torch.nn.parallel.DistributedDataParallel.__init__

    def kept(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.reducer))

    # Where a Reducer goes after its group was destroyed, ~ProcessGroupGloo of torch 2.13 joins, with the interpreter's
    # lock, threads that may wait for it: such scripts hang at their end now and then, also plainly.
    torch.nn.parallel.DistributedDataParallel.__init__ = kept  # type: ignore[method-assign]


def _write() -> None:
    rank = os.environ.get("RANK", "0")
    left = Counter(f"thread {each.name}" for each in threading.enumerate())
    for each in os.listdir("/proc/self/fd"):
        try:
            left[f"open file {os.readlink(f'/proc/self/fd/{each}')}"] += 1
        except OSError:
            continue  # that of the listing itself
    for path in Path("/proc/self/task").glob("*/children"):
        left["child process"] += len(path.read_text().split())
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if callable(handler):
            left[f"handler of signal {int(number)}: {getattr(handler, '__qualname__', handler)}"] += 1
    left += _of_torch()
    told = {"rank": rank, "losses": _losses, "left": left}
    Path(f"{os.environ['SCRIPTS_PROBES']}-{rank}.json").write_text(json.dumps(told))


def _of_torch() -> Counter[str]:
    """Return the modules, optimizers and data loaders that are alive, and the hooks and replaced methods on them."""
    import torch

    kinds = (torch.nn.Module, torch.optim.Optimizer, torch.utils.data.DataLoader)
    found: Counter[str] = Counter()
    gc.collect()
    for each in gc.get_objects():
        if not issubclass(type(each), kinds):  # isinstance would ask proxies for their class
            continue
        kind = type(each).__name__
        found[f"alive: {kind}"] += 1
        for name, value in vars(each).items():
            if "hook" in name and isinstance(value, dict):
                found[f"hook: {kind}.{name}"] += len(value)
            elif callable(value) and callable(getattr(type(each), name, None)):
                found[f"replaced: {kind}.{name}"] += 1
    return +found


_words = [each for each in sys.orig_argv[1:] if not each.startswith("-")]
if os.environ.get("SCRIPTS_PROBES") and _words and _words[0].endswith(".py"):
    atexit.register(_write)  # the first that registers is the last that runs
    _watch()
