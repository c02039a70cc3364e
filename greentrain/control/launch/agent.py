"""Runs all attempts of a job with torch's ``elastic_launch``: torch imported once, one store, workers that are forked.

A process of its own under the keeper of its supervisor; see ``greentrain.control.launch.runners.ElasticEngine``. It
reads one
order a line from a socket and answers each with one line, when no worker is left.
"""

import contextlib
import json
import logging
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from greentrain.control.launch import preload
from greentrain.control.launch.accelerate import Started, would_start
from greentrain.control.launch.worker import CUDA_CHECK, work
from greentrain.control.launcher_protocol import ENV_DIR

if TYPE_CHECKING:
    from argparse import Namespace

    from torch.distributed.launcher.api import LaunchConfig

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
