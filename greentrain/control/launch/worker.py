"""One rank of an elastic attempt: makes a forked process look as if the script had been started alone, and runs it."""

import atexit
import contextlib
import functools
import multiprocessing
import os
import random
import runpy
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from greentrain.control.launch.preload import ENV
from greentrain.control.launcher_protocol import ENV_CHECKPOINT, LauncherFiles

CUDA_CHECK: Final = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""Makes torch.cuda.is_available ask NVML, as a look at CUDA itself breaks every fork (torch/cuda/__init__.py@2.13)."""

_KEPT: Final[list[object]] = []
"""What the script made, to the end of the process, which multiprocessing ends without destructors: one of a process
group or of DistributedDataParallel can wait for a thread that waits for the GIL, for good (seen once in five restarts
with torch 2.13)."""


def work(order: Mapping[str, Any]) -> None:
    """Run the script as one rank; the entry point of torch's agent.

    Args:
        order: ``attempt``, ``script``, ``module`` (bool), ``argv`` (without the script), ``environ`` (what differs from
            this process's), and ``threads`` (of torch where one rank is alone; None: leave).
    """
    _be_the_main_process(order)
    told = _listen()
    handover = LauncherFiles.from_env() if os.environ.get("RANK") == "0" else None
    if handover is not None:
        handover.mark("up", int(order["attempt"]), pid=os.getpid())
        _time_the_group(handover, int(order["attempt"]))
    code: object = 0
    try:
        _KEPT.append(_run(str(order["script"]), bool(order["module"]), list(order["argv"])))
    except SystemExit as end:
        code = end.code
        _KEPT.append(end)  # its frames hold what the script made
    except KeyboardInterrupt:
        _finish()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)  # as python ends: its parent sees a signal
    except BaseException as error:
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
        _finish()
        raise SystemExit(1) from None
    _finish()
    if code not in (None, 0):
        raise SystemExit(code)
    if _heard(told, signal.SIGTERM):
        os._exit(0)  # torch's agent, which is ending us, will not take the answer that it would wait for
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _run(script: str, module: bool, argv: Sequence[str]) -> Mapping[str, Any]:
    sys.argv = [script, *argv]
    if module:
        sys.path.insert(0, os.getcwd())
        return runpy.run_module(script, run_name="__main__", alter_sys=True)
    sys.path.insert(0, str(Path(script).resolve().parent))
    return runpy.run_path(script, run_name="__main__")


def _be_the_main_process(order: Mapping[str, Any]) -> None:
    for signum in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # The fork server has chosen its own start method for its children; a script of its own would find the default.
    multiprocessing.set_start_method(None, force=True)
    multiprocessing.current_process().name = "MainProcess"
    os.environ.pop(ENV, None)
    for name, value in order["environ"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if order["environ"].get(ENV_CHECKPOINT) is None:
        os.environ.pop(ENV_CHECKPOINT, None)
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(int(order["attempt"]) - 1)
    random.seed()
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed()  # the fork server's state would be that of every rank
    if "OMP_NUM_THREADS" not in os.environ and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1:
        os.environ["OMP_NUM_THREADS"] = "1"  # as torchrun does; OpenMP itself has read its variables already
        if torch is not None:
            torch.set_num_threads(1)


def _time_the_group(handover: LauncherFiles, attempt: int) -> None:
    """Note how long the script is in torch.distributed.init_process_group; it is called once."""
    dist: Any = sys.modules.get("torch.distributed")
    original = getattr(dist, "init_process_group", None)
    if dist is None or original is None:
        return

    @functools.wraps(original)
    def timed(*args: Any, **kwargs: Any) -> Any:
        start_s = time.monotonic()
        try:
            return original(*args, **kwargs)
        finally:
            handover.mark("group", attempt, took_s=time.monotonic() - start_s)
            with contextlib.suppress(AttributeError):
                dist.init_process_group = original

    dist.init_process_group = timed


def _listen() -> socket.socket:
    """Return where the number of each signal arrives for which the script has a handler."""
    told, wakes = socket.socketpair()
    for end in (told, wakes):
        end.setblocking(False)
    signal.set_wakeup_fd(wakes.detach(), warn_on_full_buffer=False)
    return told


def _heard(told: socket.socket, signum: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        return signum in told.recv(65536)
    return False


def _finish() -> None:
    """Do what python does at its end: a forked worker ends without it.

    Torch's agent sends a SIGTERM to all workers when the first has ended; by now it is too late for this one.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
