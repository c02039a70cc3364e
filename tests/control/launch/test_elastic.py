"""The resident agent: real torch, real gloo, workers that are forked."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from greentrain.control.launch import preload, timeline
from tests.control.launch.launched import Launched, until

PY = sys.executable
WIDTHS = """
there = "torch" in sys.modules
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
if rank == 0: hand.mark("ready", n)
path = Path(os.environ.get("GREENTRAIN_CHECKPOINT", "none"))
step = torch.load(path)["step"] if path.exists() else 0
say("rank", rank, "of", ranks, "from", step, "warm", there, "parent", os.getppid())
while step < 30:
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == ranks
    step += 1
    if rank == 0 and step % 10 == 1: hand.mark("step", n)
    wanted = {10: 1, 20: 2}.get(step, ranks)
    if wanted != ranks:
        if rank == 0:
            hand.mark("request", n)
            Path("ck").mkdir(exist_ok=True)
            torch.save({"step": step}, f"ck/step_{step}.pt")
            hand.write(Progress(attempt=n, steps=step, tokens=step, unix_s=time.time()))
            hand.write(Request(attempt=n, ranks=wanted, not_before_unix_s=None, reason=f"{ranks} to {wanted}"))
            hand.mark("left", n)
        dist.barrier()
        dist.destroy_process_group()
        sys.exit(75)
dist.destroy_process_group()
"""


@pytest.fixture
def job(tmp_path: Path) -> Launched:
    return Launched(tmp_path, {"PYTHONPATH": f"{Path.cwd()}:{tmp_path}"})


def lines(job: Launched, word: str) -> list[list[str]]:
    return [line.split() for line in job.said if f" {word} " in f"{line} "]


def test_two_to_one_to_two_and_torch_is_imported_once(job: Launched) -> None:
    job.script(WIDTHS)
    code, out = job.run("--width", "1:2", "--checkpoints", "ck", "--", "torchrun", "train.py")
    assert code == 0, out
    seen = [(words[0], words[4], words[6]) for words in sorted(lines(job, "rank"))]
    assert seen == [("1", "2", "0"), ("1", "2", "0"), ("2", "1", "10"), ("3", "2", "20"), ("3", "2", "20")]
    assert {words[8] for words in lines(job, "rank")} == {"True"}
    assert len({words[10] for words in lines(job, "rank")}) == 1  # one fork server for all attempts
    narrow, wide = timeline.read(job.dir)
    for resize in (narrow, wide):
        assert resize.process_s is not None and resize.process_s < 1.0, out  # torch alone takes longer than that
        assert resize.group_s is not None and resize.script_s is not None and resize.total_s is not None
    assert (narrow.ranks, wide.ranks) == (1, 2)
    assert job.state["resize_s"] == pytest.approx(((narrow.total_s or 0.0) + (wide.total_s or 0.0)) / 2)
    assert "first step" in out and job.processes() == []


ACCELERATED = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
say("ranks", accelerator.num_processes, accelerator.state.mixed_precision, os.environ["ACCELERATE_MIXED_PRECISION"])
accelerator.wait_for_everyone()
if n < 3:
    if accelerator.is_main_process:
        hand.write(Progress(attempt=n, steps=n, tokens=n, unix_s=time.time()))
        hand.write(Request(attempt=n, ranks=3 - accelerator.num_processes, not_before_unix_s=None, reason="to and fro"))
    accelerator.wait_for_everyone()
    accelerator.end_training()
    sys.exit(75)
accelerator.end_training()
"""


@pytest.mark.long
def test_accelerate_says_what_its_workers_find(job: Launched) -> None:
    (job.folder / "two.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_machines: 1\nnum_processes: 2\n"
        "mixed_precision: bf16\ngpu_ids: all\nmachine_rank: 0\nuse_cpu: false\n"
    )
    job.script(ACCELERATED)
    command = ["accelerate", "launch", "--config_file", "two.yaml", "train.py"]
    code, out = job.run("--width", "1:2", "--", *command)
    assert code == 0, out
    seen = sorted(line for line in job.said if "ranks" in line)
    assert seen == [f"{n} ranks {ranks} bf16 bf16" for n, ranks in ((1, 2), (1, 2), (2, 1), (3, 2), (3, 2))]
    code, out = job.run("--width", "1:3", "--", *command)
    assert code == 2 and "num_processes of two.yaml" in out


LOOK = """
import atexit, multiprocessing, random, sys as own
import torch
facts = {
    "argv": sys.argv, "name": __name__, "file": __file__, "path0": sys.path[0],
    "main": own.modules["__main__"].__file__, "method": multiprocessing.get_start_method(allow_none=True),
    "term": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
    "random": random.random(), "torch_random": torch.rand(1).item(), "threads": torch.get_num_threads(),
    "environ": sorted(k for k in os.environ if k.startswith(("GREENTRAIN_LAUNCH", "PYTORCH_NVML"))),
    "restart": os.environ["TORCHELASTIC_RESTART_COUNT"], "process": multiprocessing.current_process().name,
}
(hand.folder / f"facts{n}.{os.environ['RANK']}.json").write_text(json.dumps(facts))
while len(list(hand.folder.glob(f"facts{n}.*"))) < 2: time.sleep(0.01)
atexit.register(say, "atexit", os.environ["RANK"])
"""


@pytest.mark.long
def test_a_forked_worker_looks_as_if_the_script_had_been_started_alone(job: Launched) -> None:
    job.script(LOOK + "if n == 1: sys.exit('no luck')\nif n == 2: raise RuntimeError('boom')")
    code, out = job.run("--width", "2", "--back-off", "0.05", "--", PY, "train.py", "--lr", "1")
    assert code == 0, out
    facts = [json.loads((job.dir / f"facts{n}.{rank}.json").read_text()) for n in (1, 3) for rank in (0, 1)]
    for fact in facts:
        assert fact["argv"] == ["train.py", "--lr", "1"] and fact["name"] == "__main__"
        assert fact["file"] == fact["main"] == "train.py"
        assert fact["path0"] == str(job.folder)
        assert fact["method"] is None and fact["term"] and fact["process"] == "MainProcess"
        assert set(fact["environ"]) - set(os.environ) == {"GREENTRAIN_LAUNCH_DIR"}
        assert fact["threads"] == 1
    assert [fact["restart"] for fact in facts] == ["0", "0", "2", "2"]
    assert len({fact["random"] for fact in facts}) == 4
    assert len({fact["torch_random"] for fact in facts}) == 1  # torch's default seed is a constant
    assert sorted(line for line in job.said if "atexit" in line and line[0] != "2")[-2:] == ["3 atexit 0", "3 atexit 1"]
    assert "no luck" in out and "RuntimeError: boom" in out and "exit code 1" in out


@pytest.mark.long
def test_codes_and_signals_of_workers_are_theirs(job: Launched) -> None:
    job.script(
        "if n == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "if n == 2: sys.exit(3)\n"
        "print('Oops: 42', file=sys.stderr); sys.exit(5)"
    )
    code, out = job.run(
        "--width", "1:1", "--engine", "elastic", "--retries", "2", "--back-off", "0.05", "--", PY, "train.py"
    )
    assert code == 5, out
    assert "signal SIGKILL" in out and "exit code 3" in out and "    Oops: 42" in out


@pytest.mark.long
def test_a_fork_server_that_fails_makes_workers_spawn(job: Launched) -> None:
    (job.folder / "deadly.py").write_text("import os\nos._exit(1)\n")
    job.script("say('torch' in sys.modules)")
    code, out = job.run("--width", "1:2", "--preload", "deadly", "--", PY, "train.py")
    assert code == 0 and "no fork server" in out, out
    assert len(lines(job, "up")) == 2


@pytest.mark.long
@pytest.mark.parametrize(
    "victim",
    ["supervisor", pytest.param("agent", marks=pytest.mark.long), pytest.param("fork server", marks=pytest.mark.long)],
)
def test_no_worker_outlives_who_started_it(job: Launched, victim: str) -> None:
    job.script(
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\nif n == 1:\n  say('parent', os.getppid())\n  time.sleep(300)"
    )
    with job.start("--width", "2", "--back-off", "0.05", "--", PY, "train.py") as process:
        until(lambda: len(lines(job, "parent")) == 2)
        server = int(lines(job, "parent")[0][2])
        agent = int(Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill({"supervisor": process.pid, "agent": agent, "fork server": server}[victim], signal.SIGKILL)
        out, _ = process.communicate(timeout=180)
    until(lambda: not job.processes())
    if victim != "supervisor":
        assert process.returncode == 0 and job.state["attempt"] == 2, out


@pytest.mark.long
def test_sigterm_reaches_every_rank_and_ends_the_job_for_now(job: Launched) -> None:
    job.script(
        "def end(*_):\n  say('told'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\nsay('ready')\nif n == 1: time.sleep(300)"
    )
    with job.start("--width", "2", "--", PY, "train.py") as process:
        until(lambda: len(lines(job, "ready")) == 2)
        process.terminate()
        out, _ = process.communicate(timeout=180)
    assert process.returncode == 128 + signal.SIGTERM, out
    assert len(lines(job, "told")) == 2 and job.state["phase"] == "stopped" and job.processes() == []


def test_another_python_without_torch_is_refused(job: Launched) -> None:
    other = job.folder / "elsewhere" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    job.script("")
    code, out = job.run("--width", "2", "--", str(other), "train.py")
    assert code == 2 and "lacks torch" in out and not job.dir.exists()


def test_what_is_preloaded_are_the_known_imports_of_the_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, mine\nimport torch.nn as nn\nfrom transformers import Trainer, TrainingArguments\n"
        "from accelerate.utils import set_seed\nfrom numpy import *\ndef f():\n  import lightning\n"
    )
    always = [(name, ()) for name in preload.ALWAYS if name != "numpy"]
    found = preload.imports_of(script, ["extra"])
    assert found[0] == ("torch", ())
    assert sorted(found) == sorted(
        [
            *always,
            ("extra", ()),
            ("torch.nn", ()),
            ("transformers", ("Trainer", "TrainingArguments")),
            ("accelerate.utils", ("set_seed",)),
            ("numpy", ()),
        ]
    )
    (tmp_path / "transformers.py").touch()  # the script's own, which must run once a worker
    assert "transformers" not in dict(preload.imports_of(script))
    script.write_text("def broken(:")
    assert preload.imports_of(script) == [(name, ()) for name in preload.ALWAYS]
