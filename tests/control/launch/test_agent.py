"""The resident agent in parts: what a forked worker is made to look like, what torch is asked for, what is answered."""

import atexit
import io
import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import forkserver
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from greentrain.control.launch import agent, preload
from greentrain.control.launch.agent import CUDA_CHECK, Agent, Started, work
from greentrain.control.launcher_protocol import ENV_CHECKPOINT, ENV_DIR, LauncherFiles

torch = pytest.importorskip("torch")

import torch.distributed.launcher.api as launcher  # noqa: E402
import torch.distributed.run as torchrun  # noqa: E402
from torch.distributed.elastic.multiprocessing import SignalException  # noqa: E402
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: E402

HEEDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture
def handlers() -> Iterator[None]:
    """Put handlers, mask and wake-up file back, whatever a test does with them."""
    before = {signum: signal.getsignal(signum) for signum in HEEDED}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    wakeup = signal.set_wakeup_fd(-1)
    yield
    own = signal.set_wakeup_fd(wakeup)
    if own >= 0:
        os.close(own)
    while signal.SIGTERM in signal.sigpending():
        signal.sigwait([signal.SIGTERM])
    for signum, handler in before.items():
        signal.signal(signum, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


# -- one rank ------------------------------------------------------------------------------------------------------


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, handlers: None, tmp_path: Path) -> Iterator[Callable[..., list[str]]]:
    """Return a function that runs :func:`work` with a script of a test; it returns what happened, in order."""
    happened: list[str] = []
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv(ENV_DIR, str(tmp_path))
    listen, told = agent._listen, list[socket.socket]()

    def listened() -> socket.socket:
        told.append(listen())
        return told[-1]

    monkeypatch.setattr(agent, "_listen", listened)
    monkeypatch.setattr(agent, "_be_the_main_process", lambda order: happened.append("main"))
    monkeypatch.setattr(agent, "_time_the_group", lambda hand, attempt: happened.append(f"group {attempt}"))

    def finish() -> None:
        happened.append("finish")
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    monkeypatch.setattr(agent, "_finish", finish)
    monkeypatch.setattr(sys, "excepthook", lambda *error: happened.append(f"hook {error[0].__name__}"))
    monkeypatch.setattr(os, "kill", lambda pid, signum: happened.append(f"kill {pid == os.getpid()} {signum}"))

    def leave(code: int) -> None:
        happened.append(f"_exit {code}")
        raise InterruptedError

    monkeypatch.setattr(os, "_exit", leave)

    def run(script: Callable[[], object]) -> list[str]:
        def began(path: str, module: bool, argv: list[str]) -> object:
            happened.append(f"{path} {module} {argv}")
            return script()

        monkeypatch.setattr(agent, "_run", began)
        order = {"attempt": 3, "script": "t.py", "module": False, "argv": ["-x"]}
        try:
            work(order)
        except SystemExit as end:
            happened.append(f"exit {end.code}")
        except InterruptedError:
            pass
        return happened

    yield run
    for line in told:
        line.close()


START = ["main", "group 3", "t.py False ['-x']"]


def raises(error: BaseException) -> Callable[..., object]:
    def run(*_: object) -> object:
        raise error

    return run


@pytest.mark.parametrize(
    ("script", "then"),
    [
        (dict, ["finish"]),
        (raises(SystemExit()), ["finish"]),
        (raises(SystemExit(0)), ["finish"]),
        (raises(SystemExit(75)), ["finish", "exit 75"]),
        (raises(SystemExit("no luck")), ["finish", "exit no luck"]),
        (raises(ValueError("boom")), ["hook ValueError", "finish", "exit 1"]),
        (raises(KeyboardInterrupt()), ["finish", "kill True 2", "finish"]),
    ],
    ids=["ends", "exits", "exits with 0", "exits with 75", "exits with a text", "fails", "is interrupted"],
)
def test_a_worker_ends_as_its_script_ends(
    worker: Callable[..., list[str]], script: Callable[[], object], then: list[str]
) -> None:
    assert worker(script) == START + then
    if "exit" not in "".join(then):
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "torch's agent may end it now"
        assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_failure_can_be_looked_at_by_a_debugger(worker: Callable[..., list[str]]) -> None:
    error = ValueError("boom")
    worker(raises(error))
    assert sys.last_value is error and sys.last_type is ValueError


def test_a_worker_that_was_told_to_end_and_has_ended_well_does_not_wait_for_its_agent(
    worker: Callable[..., list[str]],
) -> None:
    def told() -> None:
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.raise_signal(signal.SIGTERM)

    assert worker(told)[-2:] == ["finish", "_exit 0"]


def test_another_signal_is_no_end(worker: Callable[..., list[str]]) -> None:
    def told() -> None:
        signal.signal(signal.SIGUSR1, lambda *_: None)
        signal.raise_signal(signal.SIGUSR1)

    assert worker(told)[-1] == "finish"


def test_rank_0_alone_notes_when_its_script_begins(
    worker: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker(dict)
    (line,) = (json.loads(text) for text in (tmp_path / "timeline.jsonl").read_text().splitlines())
    assert (line["what"], line["attempt"], line["pid"]) == ("up", 3, os.getpid())
    monkeypatch.setenv("RANK", "1")
    worker(dict)
    assert len((tmp_path / "timeline.jsonl").read_text().splitlines()) == 1
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv(ENV_DIR)
    assert worker(dict)[-1] == "finish", "also where nobody listens"


def test_a_script_or_a_module_runs_as_if_it_had_been_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import sys\nseen = (__name__, sys.argv, sys.path[0])\n"
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "t.py").write_text(text)
    (tmp_path / "trained_for_tests.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["agent"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    found = agent._run("sub/t.py", False, ["-x", "1"])
    assert found["seen"] == ("__main__", ["sub/t.py", "-x", "1"], str(tmp_path / "sub"))
    name, argv, path = agent._run("trained_for_tests", True, ["-y"])["seen"]
    assert (name, path) == ("__main__", str(tmp_path)) and argv[1:] == ["-y"]


def test_a_worker_forgets_what_its_agent_was(handlers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    methods: list[Any] = []
    monkeypatch.setattr(multiprocessing, "set_start_method", lambda *what, **how: methods.append((*what, how)))
    process = multiprocessing.current_process()
    monkeypatch.setattr(process, "_name", "ForkServerProcess-1", raising=False)
    for name, value in {preload.ENV: "[]", ENV_CHECKPOINT: "/old", "A": "a", "B": "b", "OMP_NUM_THREADS": "3"}.items():
        monkeypatch.setenv(name, value)
    for name in ("TORCHELASTIC_RESTART_COUNT", "C"):
        monkeypatch.setenv(name, "old")
    for signum in HEEDED:
        signal.signal(signum, signal.SIG_IGN)
    numpy = sys.modules["numpy"]
    draws = []
    for _ in range(2):
        random.seed(7)
        numpy.random.seed(7)
        agent._be_the_main_process({"attempt": 3, "environ": {"A": None, "B": "new", "C": "c"}})
        draws.append((random.random(), float(numpy.random.random())))
    assert draws[0][0] != draws[1][0] and draws[0][1] != draws[1][1], "the fork server's state would be every rank's"
    assert [signal.getsignal(s) for s in HEEDED] == [
        signal.SIG_DFL, signal.default_int_handler, signal.SIG_DFL, signal.SIG_IGN, signal.SIG_DFL, signal.SIG_DFL,
    ]  # fmt: skip
    assert methods[0] == (None, {"force": True}) and process.name == "MainProcess"
    assert preload.ENV not in os.environ and ENV_CHECKPOINT not in os.environ and "A" not in os.environ
    assert (os.environ["B"], os.environ["C"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("new", "c", "2")
    agent._be_the_main_process({"attempt": 1, "environ": {ENV_CHECKPOINT: "/new"}})
    assert os.environ[ENV_CHECKPOINT] == "/new" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"


@pytest.mark.parametrize(
    ("ranks", "named", "threads"), [("2", None, 1), ("1", None, None), (None, None, None), ("2", "5", None)]
)
def test_ranks_of_a_machine_share_its_cores_as_under_torchrun(
    handlers: None, monkeypatch: pytest.MonkeyPatch, ranks: str | None, named: str | None, threads: int | None
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(multiprocessing, "set_start_method", lambda *what, **how: None)
    for name, value in {"LOCAL_WORLD_SIZE": ranks, "OMP_NUM_THREADS": named, "TORCHELASTIC_RESTART_COUNT": "0"}.items():
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)
    agent._be_the_main_process({"attempt": 1, "environ": {}})
    assert asked == ([] if threads is None else [threads])
    assert os.environ.get("OMP_NUM_THREADS") == (named if threads is None else str(threads))


def test_the_time_in_init_process_group_is_noted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dist: Any = ModuleType("torch.distributed")
    calls: list[Any] = []

    def init_process_group(backend: str, **more: Any) -> str:
        """Join."""
        calls.append((backend, more))
        if backend == "none":
            raise ValueError(backend)
        return "joined"

    dist.init_process_group = init_process_group
    monkeypatch.setitem(sys.modules, "torch.distributed", dist)
    times = iter([10.0, 12.5, 20.0, 21.0])
    monkeypatch.setattr(agent, "time", SimpleNamespace(monotonic=lambda: next(times), time=lambda: 0.0))
    hand = LauncherFiles(tmp_path)
    agent._time_the_group(hand, 4)
    assert dist.init_process_group.__doc__ == "Join."
    assert dist.init_process_group("gloo", rank=1) == "joined" and calls == [("gloo", {"rank": 1})]
    assert dist.init_process_group is init_process_group
    agent._time_the_group(hand, 5)
    with pytest.raises(ValueError, match="none"):
        dist.init_process_group("none")
    lines = [json.loads(text) for text in (tmp_path / "timeline.jsonl").read_text().splitlines()]
    assert [(line["what"], line["attempt"], line["took_s"]) for line in lines] == [("group", 4, 2.5), ("group", 5, 1.0)]
    del dist.init_process_group
    agent._time_the_group(hand, 6)  # a torch without it
    monkeypatch.delitem(sys.modules, "torch.distributed")
    agent._time_the_group(hand, 6)


def test_which_signals_were_heard(handlers: None) -> None:
    signal.signal(signal.SIGUSR1, lambda *_: None)
    told = agent._listen()
    assert not agent._heard(told, signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)
    assert not agent._heard(told, signal.SIGTERM), "it was another one"
    signal.raise_signal(signal.SIGUSR1)
    assert agent._heard(told, signal.SIGUSR1)
    told.close()


def test_the_end_of_a_worker_is_that_of_a_python(handlers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    signal.signal(signal.SIGTERM, lambda *_: order.append("told"))

    class Closed(io.StringIO):
        def flush(self) -> None:
            order.append("flush")
            raise OSError

    def shutdown() -> None:
        signal.raise_signal(signal.SIGTERM)  # the first worker has ended: torch's agent ends the others
        order.append("threads")

    monkeypatch.setattr(threading, "_shutdown", shutdown)
    monkeypatch.setattr(atexit, "_run_exitfuncs", lambda: order.append("atexit"))
    monkeypatch.setattr(sys, "stdout", Closed())
    monkeypatch.setattr(sys, "stderr", Closed())
    agent._finish()
    monkeypatch.undo()
    assert order == ["threads", "atexit", "flush", "flush"]
    assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, []), "it is too late for it"


# -- all attempts --------------------------------------------------------------------------------------------------


class Torch:
    """What torch's agent is asked for, and how its attempts end."""

    def __init__(self, *ends: BaseException | None) -> None:
        self.ends = list(ends)
        self.configs: list[Any] = []
        self.tasks: list[Any] = []
        self.stores: list[Any] = []

    def launch(self, config: Any, entry: Any) -> Callable[[Any], None]:
        assert entry is work
        self.configs.append(config)

        def run(task: Any) -> None:
            self.tasks.append(task)
            end = self.ends.pop(0) if self.ends else None
            if end is not None:
                raise end

        return run

    def store(self, *where: Any, **how: Any) -> Any:
        self.stores.append((*where, how))
        return SimpleNamespace(port=4000 + len(self.stores))


@pytest.fixture
def with_torch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Torch]:
    def made(*ends: BaseException | None) -> Torch:
        found = Torch(*ends)
        monkeypatch.setattr(launcher, "elastic_launch", found.launch)
        monkeypatch.setattr(torch.distributed, "TCPStore", found.store)
        return found

    return made


JOB = {"kind": "torchrun", "script": "t.py", "module": False, "warm": True, "preload": []}


def order(number: int = 1, ranks: int = 2, *words: str, **environ: str | None) -> Mapping[str, Any]:
    return {"attempt": number, "ranks": ranks, "words": [*words, "t.py", "--lr", "1"], "environ": environ}


class Failed(ChildFailedError):
    """A worker has failed."""

    def __init__(self, code: int, message: str) -> None:
        self.first = SimpleNamespace(exitcode=code, message=message)
        Exception.__init__(self)

    def get_first_failure(self) -> Any:
        return 0, self.first


def test_each_attempt_has_a_store_and_a_name_of_its_own(with_torch: Callable[..., Torch]) -> None:
    found = with_torch()
    runs = Agent(JOB, warm=True, restored={CUDA_CHECK: None, "A": "before"})
    assert runs.run(order(1, 2, "--role", "a", A="now")) == {"code": 0} and runs.run(order(2, 1)) == {"code": 0}
    first, second = found.configs
    assert (first.min_nodes, first.max_nodes, first.nproc_per_node, second.nproc_per_node) == (1, 1, 2, 1)
    assert (first.run_id, second.run_id) == (f"greentrain-{os.getpid()}-1", f"greentrain-{os.getpid()}-2")
    assert (first.rdzv_endpoint, second.rdzv_endpoint) == ("127.0.0.1:4001", "127.0.0.1:4002")
    assert (first.rdzv_backend, first.rdzv_configs["rank"], first.local_addr) == ("static", 0, "127.0.0.1")
    assert (first.max_restarts, first.start_method, first.role) == (0, "forkserver", "a"), (
        "restarts are the supervisor's"
    )
    assert first.monitor_interval <= 0.05, "part of every resize"
    alone = {"is_master": True, "wait_for_workers": False, "multi_tenant": True}
    assert found.stores == [("127.0.0.1", 0, alone)] * 2
    environ = {CUDA_CHECK: None, "A": "now"}
    told = {"attempt": 1, "script": "t.py", "module": False, "argv": ["--lr", "1"], "environ": environ}
    assert found.tasks[0] == told
    assert found.tasks[1]["environ"] == {CUDA_CHECK: None, "A": "before"} and found.tasks[1]["attempt"] == 2


def test_the_first_failure_is_the_cause(with_torch: Callable[..., Torch]) -> None:
    with_torch(Failed(-11, "Segmentation fault"))
    answer = Agent(JOB, warm=True, restored={}).run(order())
    assert answer == {"code": -11, "message": "Segmentation fault"}


def test_options_that_torchrun_refuses_are_told(with_torch: Callable[..., Torch]) -> None:
    found = with_torch()
    answer = Agent(JOB, warm=True, restored={}).run(order(1, 2, "--no-such-option", "x"))
    assert answer["code"] == 2 and answer["refused"].startswith("torchrun does not take these options: ")
    assert not found.tasks


def test_a_module_is_run_as_one(with_torch: Callable[..., Torch]) -> None:
    found = with_torch()
    Agent({**JOB, "module": True}, warm=True, restored={}).run(order())
    assert found.tasks[0]["module"] is True


def test_what_accelerate_would_have_started_is_started(
    with_torch: Callable[..., Torch], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = with_torch()

    def started(words: list[str]) -> Started:
        assert words == ["t.py", "--lr", "1"]
        args = torchrun.parse_args(["other.py", "-y"])  # type: ignore[no-untyped-call]
        return Started(args=args, environ={"ACCELERATE_X": "1", "A": "accelerate"})

    monkeypatch.setattr(agent, "would_start", started)
    Agent({**JOB, "kind": "accelerate"}, warm=True, restored={"A": "before"}).run(order())
    assert found.tasks[0]["environ"] == {"A": "accelerate", "ACCELERATE_X": "1"}
    assert (found.tasks[0]["script"], found.tasks[0]["argv"]) == ("other.py", ["-y"])


def test_a_fork_server_that_is_gone_makes_workers_spawn_from_then_on(
    with_torch: Callable[..., Torch], capsys: pytest.CaptureFixture[str]
) -> None:
    found = with_torch(EOFError(), None, None)
    runs = Agent(JOB, warm=True, restored={})
    assert runs.run(order()) == {"code": 0} == runs.run(order(2))
    assert [config.start_method for config in found.configs] == ["forkserver", "spawn", "spawn"]
    assert "no fork server (EOFError()): workers are spawned" in capsys.readouterr().err
    with_torch(OSError("no memory"))
    with pytest.raises(OSError, match="no memory"):
        Agent(JOB, warm=False, restored={}).run(order())


def test_an_agent_that_is_told_to_end_says_by_which_signal(with_torch: Callable[..., Torch]) -> None:
    with_torch(SignalException("told", signal.SIGTERM))
    with pytest.raises(SignalException):
        Agent(JOB, warm=True, restored={}).run(order())


# -- the process ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("end", "before"), [(None, None), (signal.SIGTERM, "0")])
def test_orders_are_answered_until_the_supervisor_hangs_up(
    end: signal.Signals | None, before: str | None, handlers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = socket.socketpair()
    made, found = list[Any](), list[Any]()

    class Fake:
        def __init__(self, job: Any, *, warm: bool, restored: Any) -> None:
            made.append((job, warm, restored, os.environ[CUDA_CHECK]))

        def run(self, order: Mapping[str, Any]) -> dict[str, Any]:
            found.append(signal.getsignal(signal.SIGHUP))
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # torch's stay where they were installed
            if end is not None and order["attempt"] == 2:
                raise SignalException("told", end)
            return {"code": order["attempt"]}

    monkeypatch.setenv(CUDA_CHECK, "")
    monkeypatch.delenv(CUDA_CHECK) if before is None else monkeypatch.setenv(CUDA_CHECK, before)
    monkeypatch.setattr(agent, "Agent", Fake)
    monkeypatch.setattr(agent, "_start_fork_server", lambda job: job["script"] == "t.py")
    ours.sendall(b'{"attempt": 1}\n{"attempt": 2}\n')
    ours.shutdown(socket.SHUT_WR)
    asked: list[int] = []

    def line(fileno: int) -> socket.socket:
        asked.append(fileno)
        return theirs

    monkeypatch.setattr(agent, "socket", SimpleNamespace(socket=line))
    for warm in (True, False) if end is None else (True,):
        monkeypatch.setattr(sys, "argv", ["agent", "17", json.dumps({**JOB, "warm": warm})])
        agent.main()
    assert set(asked) == {17} and found[1] == signal.SIG_DFL, "between two attempts a signal ends it"
    theirs.close()
    assert made[0] == ({**JOB, "warm": True}, True, {CUDA_CHECK: before}, "1"), "workers find what was there before"
    assert [warm for _, warm, *_ in made] == ([True, False] if end is None else [True])
    said = [json.loads(line) for line in ours.recv(65536).splitlines()]
    assert said == [{"code": 1}, {"code": 2 if end is None else -15}]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN, "it ends anyway"
    ours.close()


def test_handlers_that_torch_leaves_behind_go(handlers: None) -> None:
    for handler in (signal.SIG_IGN, signal.SIG_DFL):
        agent._heed_no_more(handler)
        assert {signal.getsignal(signum) for signum in HEEDED[:4]} == {handler}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What multiprocessing is asked for, in order."""
    asked: list[Any] = []
    monkeypatch.setenv(ENV_DIR, str(tmp_path))
    monkeypatch.setenv(preload.ENV, "")
    monkeypatch.setattr(multiprocessing, "set_forkserver_preload", asked.append)
    monkeypatch.setattr(forkserver, "ensure_running", lambda: asked.append("running"))
    return asked


def test_the_fork_server_imports_what_the_script_does(
    server: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "sub" / "t.py"
    script.parent.mkdir()
    script.write_text("import transformers\n")
    (tmp_path / "preload.json").write_text("of an earlier one")
    assert agent._start_fork_server({"module": False, "script": str(script), "preload": ["extra"]}) is True
    assert server == [["greentrain.control.launch.warm"], "running"]
    told = json.loads(os.environ[preload.ENV])
    assert {"transformers", "extra", "torch"} <= {name for name, _ in told["imports"]}
    assert told["folder"] == str(script.parent) and told["report"] == str(tmp_path / "preload.json")
    assert not (tmp_path / "preload.json").exists()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_of_a_test_too.py").write_text("import lightning\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert agent._start_fork_server({"module": True, "script": "mine_of_a_test_too", "preload": []})
    told = json.loads(os.environ[preload.ENV])
    assert told["folder"] == str(tmp_path) and "lightning" in {name for name, _ in told["imports"]}
    assert agent._start_fork_server({"module": True, "script": "no.such_module_of_a_test", "preload": []})
    assert [name for name, _ in json.loads(os.environ[preload.ENV])["imports"]] == list(preload.ALWAYS)


def test_a_fork_server_that_cannot_start_is_done_without(
    server: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forkserver, "ensure_running", raises(OSError("no process")))
    (tmp_path / "preload.json").mkdir()  # what cannot be removed
    assert agent._start_fork_server({"module": False, "script": "t.py", "preload": []}) is False


# -- accelerate ------------------------------------------------------------------------------------------------------


def test_accelerate_is_stopped_where_it_would_start_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("accelerate")
    from accelerate.commands import launch

    monkeypatch.setenv("OF_ACCELERATE", "")
    monkeypatch.delenv("OF_ACCELERATE")

    def through_torchrun(args: Namespace) -> None:
        os.environ["OF_ACCELERATE"] = "1"
        torchrun.run(args)  # type: ignore[no-untyped-call]
        torchrun.run(Namespace())  # type: ignore[no-untyped-call]

    originals = (torchrun.run, launch.simple_launcher)
    monkeypatch.setattr(launch, "launch_command", through_torchrun)
    found = agent.would_start(["--num_processes", "2", "t.py", "-x"])
    assert found.args.training_script == "t.py" and found.environ == {"OF_ACCELERATE": "1"}
    assert (torchrun.run, launch.simple_launcher) == originals

    def without_torchrun(args: Namespace) -> None:
        launch.simple_launcher(launch._validate_launch_command(args)[0])

    monkeypatch.setattr(launch, "launch_command", without_torchrun)
    alone = agent.would_start(["--cpu", "--num_processes", "1", "--mixed_precision", "bf16", "-m", "pkg.t", "-x", "1"])
    assert (
        alone.args.training_script == "pkg.t" and alone.args.training_script_args == ["-x", "1"] and alone.args.module
    )
    assert alone.environ["ACCELERATE_MIXED_PRECISION"] == "bf16" and "PATH" not in alone.environ

    monkeypatch.setattr(launch, "launch_command", lambda args: None)
    with pytest.raises(ValueError, match="would start no processes on this machine: use --engine command"):
        agent.would_start(["t.py"])
    monkeypatch.setattr(launch, "launch_command", raises(ValueError("no")))
    with pytest.raises(ValueError, match="no"):
        agent.would_start(["t.py"])
    assert (torchrun.run, launch.simple_launcher) == originals, "whatever happens"
