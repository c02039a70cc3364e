"""Runs all attempts of a job with torch's ``elastic_launch``: torch imported once, one store, workers that are forked.

A process of its own under the reaper of its supervisor; see ``greentrain.control.launch.runners.ElasticRunner``. It
reads one order a line from a socket and answers each with one line, when no worker is left.

Accelerate turns its options and its configuration file into variables for the script and arguments for torchrun. It is
asked to do exactly that, and stopped where it would have started processes (:func:`would_start`).

One rank of an attempt (:func:`work`) makes a forked process look as if the script had been started alone, and runs it.
"""

import atexit
import contextlib
import functools
import json
import logging
import multiprocessing
import os
import random
import runpy
import signal
import socket
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from greentrain.control.launch import preload
from greentrain.control.launch.preload import ENV
from greentrain.control.launcher_protocol import ENV_CHECKPOINT, ENV_DIR, LauncherFiles

if TYPE_CHECKING:
    from torch.distributed.launcher.api import LaunchConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What it would have started."""

    args: Namespace
    """Of torchrun, with its ``training_script``, ``training_script_args`` and ``module``."""
    environ: dict[str, str]
    """Variables for the script that differ from those of this process."""


def would_start(words: Sequence[str]) -> Started:
    """Return what ``accelerate launch`` would have started.

    Args:
        words: Options of ``accelerate launch``, the script and the script's arguments.

    Raises:
        ValueError: It refuses its options, or would start something that is no local training.
        SystemExit: Its parser refuses its options, and has said why.
    """
    import torch.distributed.run as torchrun
    from accelerate.commands import launch
    from accelerate.utils.launch import prepare_simple_launcher_cmd_env

    taken: list[Started] = []

    def take(args: Namespace) -> None:
        taken.append(Started(args=args, environ=_difference(dict(os.environ))))

    before = dict(os.environ)

    def _difference(environ: dict[str, str]) -> dict[str, str]:
        return {name: value for name, value in environ.items() if before.get(name) != value}

    def take_alone(args: Namespace) -> None:
        """Take one process, which it starts without torchrun."""
        _, environ = prepare_simple_launcher_cmd_env(args)
        own = torchrun.parse_args([args.training_script])  # type: ignore[no-untyped-call]
        own.training_script_args, own.module = args.training_script_args, args.module
        taken.append(Started(args=own, environ=_difference(environ)))

    places: tuple[tuple[Any, str, Any], ...] = ((torchrun, "run", take), (launch, "simple_launcher", take_alone))
    originals = [getattr(where, name) for where, name, _ in places]
    try:
        for where, name, ours in places:
            setattr(where, name, ours)
        launch.launch_command(launch.launch_command_parser().parse_args(list(words)))
    finally:
        for (where, name, _), original in zip(places, originals, strict=True):
            setattr(where, name, original)
    if not taken:
        raise ValueError("accelerate would start no processes on this machine: use --engine command")
    return taken[0]


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


MONITOR_S: Final = 0.02
"""How often torch's agent looks at its workers (s): part of every resize."""
ADDRESS: Final = "127.0.0.1"


def main() -> None:
    """Serve the supervisor at the other end of the socket whose number is the first argument."""
    line = socket.socket(fileno=int(sys.argv[1]))
    job = json.loads(sys.argv[2])
    before = os.environ.get(CUDA_CHECK)
    os.environ[CUDA_CHECK] = "1"
    warm = bool(job["warm"]) and _start_fork_server(job)
    from torch.distributed.elastic.multiprocessing import SignalException

    agent = Agent(job, warm=warm, restored={CUDA_CHECK: before})
    try:
        for order in _orders(line):
            answer = agent.run(order)
            _heed_no_more(signal.SIG_DFL)  # torch's handlers stay where they were installed
            line.sendall(json.dumps(answer).encode() + b"\n")
    except SignalException as told:
        with contextlib.suppress(OSError):
            line.sendall(json.dumps({"code": -int(told.sigval)}).encode() + b"\n")
    _heed_no_more(signal.SIG_IGN)  # it ends anyway


class Agent:
    """Runs attempts one after the other.

    Args:
        job: ``kind`` of the command, ``script``, ``module``, ``warm`` and ``preload``.
        warm: Whether the fork server was started.
        restored: Variables that workers must find as they were before; None: unset.
    """

    def __init__(self, job: Mapping[str, Any], *, warm: bool, restored: Mapping[str, str | None]) -> None:
        self._job, self._restored = job, dict(restored)
        self._method = "forkserver" if warm else "spawn"
        # Every end with code 75 is an error to them; what matters is in the answer.
        for name in ("torch.distributed.elastic.multiprocessing.api", "torch.multiprocessing.spawn"):
            logging.getLogger(name).setLevel(logging.CRITICAL)

    def run(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Run one attempt; return its ``code``, and a ``message`` where a worker left one.

        Raises:
            SignalException: This process was told to end, and its workers have.
        """
        from torch.distributed import TCPStore  # type: ignore[attr-defined]
        from torch.distributed.elastic.multiprocessing import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import elastic_launch

        # One an attempt: workers keep keys in it without a prefix (torch/distributed/rendezvous.py@2.13), so in an
        # older one they would find the addresses of those before them. The rendezvous shares this server.
        store = TCPStore(ADDRESS, 0, is_master=True, wait_for_workers=False, multi_tenant=True)
        try:
            started = self._started([str(word) for word in order["words"]])
            config = self._config(started.args, order, store.port)
        except (ValueError, AssertionError, SystemExit) as error:
            return {"code": 2, "refused": f"{self._job['kind']} does not take these options: {error}"}
        task = {
            "attempt": order["attempt"],
            "script": started.args.training_script,
            "module": started.args.module,
            "argv": started.args.training_script_args,
            "environ": {**self._restored, **started.environ, **order["environ"]},
        }
        try:
            elastic_launch(config, work)(task)
        except ChildFailedError as failed:
            # Torch ends the others at the first failure it sees, so that is the cause.
            failure = failed.get_first_failure()[1]
            return {"code": failure.exitcode, "message": failure.message}
        except SignalException:
            raise
        except (EOFError, OSError) as error:
            if self._method == "spawn":
                raise
            print(f"greentrain launch: no fork server ({error!r}): workers are spawned", file=sys.stderr, flush=True)
            self._method = "spawn"
            return self.run(order)
        return {"code": 0}

    def _started(self, words: list[str]) -> Started:
        """Return what the launcher of the command would have started."""
        if self._job["kind"] == "accelerate":
            return would_start(words)
        from torch.distributed import run

        args = run.parse_args(words)  # type: ignore[no-untyped-call]
        args.module = self._job["module"]
        return Started(args=args, environ={})

    def _config(self, args: "Namespace", order: Mapping[str, Any], port: int) -> "LaunchConfig":
        from torch.distributed import run

        args.nproc_per_node = "1"  # of more it sets this process's OMP_NUM_THREADS; workers have their own way
        config, _, _ = run.config_from_args(args)
        return replace(
            config,
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=int(order["ranks"]),
            run_id=f"greentrain-{os.getpid()}-{order['attempt']}",
            rdzv_backend="static",
            rdzv_endpoint=f"{ADDRESS}:{port}",
            rdzv_configs={"rank": 0},
            local_addr=ADDRESS,
            max_restarts=0,
            monitor_interval=MONITOR_S,
            start_method=self._method,
        )


def _start_fork_server(job: Mapping[str, Any]) -> bool:
    """Start the fork server, which imports while this process does; return whether that was possible."""
    folder = Path.cwd() if job["module"] else Path(job["script"]).resolve().parent
    path = _source(job)
    imports = preload.imports_of(path, job["preload"]) if path else [(name, ()) for name in preload.ALWAYS]
    report = Path(os.environ[ENV_DIR]) / "preload.json"
    with contextlib.suppress(OSError):  # a disk that is read-only for now
        report.unlink(missing_ok=True)
    # It stays set: a fork server that was killed is started again at the next fork.
    os.environ[preload.ENV] = preload.to_text(imports, folder, report)
    try:
        multiprocessing.set_forkserver_preload(["greentrain.control.launch.warm"])
        forkserver.ensure_running()
    except OSError:
        return False
    return True


def _source(job: Mapping[str, Any]) -> Path | None:
    """Return the file of the script or module."""
    if not job["module"]:
        return Path(job["script"])
    import importlib.util

    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(str(job["script"]))
        if spec is not None and spec.origin is not None:
            return Path(spec.origin)
    return None


def _heed_no_more(handler: signal.Handlers) -> None:
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(signum, handler)


def _orders(line: socket.socket) -> Iterator[Mapping[str, Any]]:
    with line.makefile("r", encoding="utf-8") as words:
        for word in words:
            yield json.loads(word)
