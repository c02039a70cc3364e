"""``greentrain launch`` over plain processes: starts, ends, restarts, signals, and what is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.control.launch.launched import Launched, until

PY = sys.executable


@pytest.fixture
def job(tmp_path: Path) -> Launched:
    return Launched(tmp_path)


def test_a_job_that_ends_well_is_run_once(job: Launched) -> None:
    job.script("say('done')")
    code, out = job.run("--", PY, "train.py")
    assert (code, len(job.said)) == (0, 2), out
    assert job.state["phase"] == "done"
    code, out = job.run("--", PY, "train.py")
    assert code == 0 and "finished" in out and len(job.said) == 2


def test_a_request_is_waited_for_and_granted(job: Launched) -> None:
    job.script("if n == 1: leave(in_s=1.5, steps=5)\nsay('offer', offer.attempt, offer.can_wait)")
    start_s = time.monotonic()
    code, out = job.run("--", PY, "train.py")
    assert code == 0, out
    assert time.monotonic() - start_s >= 1.5
    assert job.said[-1] == "2 offer 2 True"
    assert "waiting until" in out


def test_a_request_counts_whatever_the_exit_code(job: Launched) -> None:
    job.script("if n == 1:\n  try: leave(steps=1)\n  except SystemExit: sys.exit(1)")
    code, out = job.run("--back-off", "30", "--", PY, "train.py")
    assert code == 0 and "left: the test says so" in out, out


def test_a_request_of_another_attempt_does_not_count(job: Launched) -> None:
    job.script(
        "if n == 1:\n  from dataclasses import replace\n"
        "  hand.write(Request(attempt=7, ranks=1, not_before_unix_s=time.time()+99, reason='old'))\n"
        "  sys.exit(4)"
    )
    code, out = job.run("--retries", "0", "--", PY, "train.py")
    assert code == 4 and "exit code 4" in out, out


def test_crashes_are_tried_again_and_counted_since_the_last_progress(job: Launched) -> None:
    # Two crashes, progress, two crashes, done: never more than two in a row.
    job.script("if n == 3: leave(steps=10)\nif n < 6: raise RuntimeError(f'boom {n}')")
    code, out = job.run("--retries", "2", "--back-off", "0.05", "--", PY, "train.py")
    assert code == 0, out
    assert job.state["attempt"] == 6


def test_a_crash_loop_is_refused_with_the_last_lines(job: Launched) -> None:
    job.script("print('x = 7', file=sys.stderr)\nsys.exit(3)")
    code, out = job.run("--retries", "2", "--back-off", "0.05", "--", PY, "train.py")
    assert code == 3
    assert len([line for line in job.said if " up " in line]) == 3
    assert "crashed 3 times without getting further" in out and "exit code 3" in out and "    x = 7" in out
    assert job.state["phase"] == "failed"
    # A person starts it again: a new budget, and the count of attempts goes on.
    code, out = job.run("--retries", "0", "--", PY, "train.py")
    assert code == 3 and job.state["attempt"] == 4 and "tried again" in out


def test_a_signal_that_ends_the_training_is_named(job: Launched) -> None:
    job.script("os.kill(os.getpid(), signal.SIGSEGV)")
    code, out = job.run("--retries", "0", "--", PY, "train.py")
    assert code == 128 + signal.SIGSEGV and "signal SIGSEGV" in out


def test_leaving_again_and_again_without_a_step_is_a_loop(job: Launched) -> None:
    job.script("leave()")
    code, out = job.run("--", PY, "train.py")
    assert code == 75 and "none got further" in out and "GREENTRAIN_CHECKPOINT" in out, out
    assert job.state["attempt"] == 6


def test_without_a_checkpoint_nothing_starts_from_zero(job: Launched) -> None:
    (job.folder / "ck").mkdir()
    (job.folder / "ck" / "step_1.pt").touch()
    job.script("leave(steps=5)")
    code, out = job.run("--checkpoints", "ck", "--", PY, "train.py")
    assert code == 75 and "start from zero" in out and "is empty" in out and "--checkpoints" in out, out
    assert job.state["attempt"] == 1


def test_the_newest_whole_checkpoint_is_handed_over(job: Launched) -> None:
    job.script(
        "say(sys.argv[1:], os.environ.get('GREENTRAIN_CHECKPOINT'))\n"
        "if n == 1:\n  p = Path('ck/step_1'); p.mkdir(parents=True); (p / 'a.json').write_text('{}'); leave(steps=5)"
    )
    code, out = job.run("--checkpoints", "ck", "--", PY, "train.py", "--resume", "{checkpoint}", "-x={checkpoint}")
    assert code == 0, out
    path = job.folder / "ck" / "step_1"
    assert [line for line in job.said if "up" not in line] == [
        "1 [] None",
        f"2 ['--resume', '{path}', '-x={path}'] {path}",
    ]


def test_a_killed_supervisor_takes_its_children_and_goes_on_where_it_was(job: Launched) -> None:
    job.script(
        "import subprocess\nsubprocess.Popen(['setsid', 'sleep', '300'])\n"
        "if n == 1: leave(steps=3)\nsay('two' if n == 2 else 'end')\nif n == 2: time.sleep(300)"
    )
    with job.start("--", PY, "train.py") as process:
        until(lambda: "2 two" in job.said)
        assert "nobody holds this job" not in job.run("--status", str(job.dir))[1]
        process.kill()
    until(lambda: not job.processes())
    assert job.state["phase"] == "running"
    assert "nobody holds this job" in job.run("--status", str(job.dir))[1]
    code, out = job.run("--", PY, "train.py")
    assert code == 0 and "whose launcher was killed" in out, out
    assert job.said[-1] == "3 end" and job.processes() == []


@pytest.mark.long
def test_a_killed_supervisor_that_waited_waits_on(job: Launched) -> None:
    job.script("if n == 1: leave(in_s=4, steps=3)\nsay(time.time())")
    start_s = time.time()
    with job.start("--", PY, "train.py") as process:
        until(
            lambda: (job.dir / "state.json").exists() and job.state["phase"] == "waiting" and job.state["attempt"] == 1
        )
        process.kill()
    code, out = job.run("--", PY, "train.py")
    assert code == 0, out
    assert float(job.said[-1].split()[1]) >= start_s + 4


def test_a_killed_keeper_leaves_nothing(job: Launched) -> None:
    job.script("import subprocess\nsubprocess.Popen(['sleep', '300'])\nif n == 1:\n  say('here'); time.sleep(300)")
    with job.start("--back-off", "0.05", "--", PY, "train.py") as process:
        until(lambda: "1 here" in job.said)
        os.kill(job.state["keeper_pid"], signal.SIGKILL)
        out, _ = process.communicate(timeout=180)
    assert process.returncode == 0, out
    assert job.state["attempt"] == 2 and job.processes() == []


@pytest.mark.sweep
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_training_and_supervisor_and_the_job_goes_on(job: Launched, signum: signal.Signals) -> None:
    job.script(
        "import subprocess\nsubprocess.Popen(['sleep', '300'])\n"
        "def end(number, frame):\n  say('told', number); sys.exit(9)\n"
        "for s in (signal.SIGTERM, signal.SIGINT): signal.signal(s, end)\n"
        "say('ready')\nif n == 1: time.sleep(300)"
    )
    with job.start("--", PY, "train.py") as process:
        until(lambda: "1 ready" in job.said)
        process.send_signal(signum)
        out, _ = process.communicate(timeout=180)
    assert process.returncode == 9, out
    told = signal.SIGINT if signum == signal.SIGINT else signal.SIGTERM
    assert job.said[-1] == f"1 told {int(told)}"
    assert job.state["phase"] == "stopped" and job.state["failures"] == 0 and job.processes() == []
    assert job.run("--", PY, "train.py")[0] == 0


def test_what_does_not_end_is_killed_after_the_grace(job: Launched) -> None:
    job.script("signal.signal(signal.SIGTERM, lambda *_: say('told'))\nsay('ready')\nwhile True: time.sleep(1)")
    with job.start("--grace", "0.5", "--", PY, "train.py") as process:
        until(lambda: "1 ready" in job.said)
        process.terminate()
        process.communicate(timeout=180)
    assert process.returncode == 128 + signal.SIGKILL
    assert job.said[-1] == "1 told" and job.processes() == []


def test_sigusr1_is_a_notice_and_the_training_leaves_by_itself(job: Launched) -> None:
    job.script(
        "say('ready')\nwhile n == 1:\n  notice = hand.notice()\n"
        "  if notice is not None and notice.attempt == n: say(notice.reason); leave(steps=4)\n  time.sleep(0.02)"
    )
    with job.start("--", PY, "train.py") as process:
        until(lambda: "1 ready" in job.said)
        process.send_signal(signal.SIGUSR1)
        out, _ = process.communicate(timeout=180)
    assert process.returncode == 75, out
    assert "SIGUSR1" in job.said[-1]
    assert job.run("--", PY, "train.py")[0] == 0


def test_signals_with_a_meaning_for_the_training_reach_it_and_kill_nobody(job: Launched) -> None:
    job.script(
        "import subprocess\nsleeper = subprocess.Popen(['sleep', '300'])\n"
        "signal.signal(signal.SIGUSR2, lambda *_: say('usr2', sleeper.poll()))\n"
        "signal.signal(signal.SIGCONT, lambda *_: say('cont'))\n"
        "say('ready')\nwhile len(open(hand.folder / 'said.txt').readlines()) < 4: time.sleep(0.02)\nsleeper.kill()"
    )
    with job.start("--", PY, "train.py") as process:
        until(lambda: "1 ready" in job.said)
        process.send_signal(signal.SIGUSR2)
        until(lambda: "1 usr2 None" in job.said)
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=180)
    assert process.returncode == 0 and job.said[-1] == "1 cont", out


def test_a_signal_during_a_wait_ends_it_at_once(job: Launched) -> None:
    job.script("leave(in_s=100, steps=3)")
    with job.start("--", PY, "train.py") as process:
        until(
            lambda: (job.dir / "state.json").exists() and job.state["phase"] == "waiting" and job.state["attempt"] == 1
        )
        time.sleep(0.1)
        process.terminate()
        process.communicate(timeout=180)
    assert process.returncode == 128 + signal.SIGTERM and job.state["phase"] == "waiting"


def test_a_torn_state_file_is_set_aside_and_attempts_count_on(job: Launched) -> None:
    job.script("if n == 1: leave(steps=3)")
    job.run("--", PY, "train.py")
    (job.dir / "state.json").write_text('{"format": 1, "comm')
    code, out = job.run("--", PY, "train.py")
    assert code == 0 and "cannot be read" in out and "state.torn.json" in out, out
    assert job.state["attempt"] == 3


def test_two_supervisors_do_not_share_a_folder(job: Launched) -> None:
    job.script("say('here')\ntime.sleep(300)")
    with job.start("--", PY, "train.py") as process:
        until(lambda: "1 here" in job.said)
        code, out = job.run("--", PY, "train.py")
        assert code == 2 and "in use" in out and str(process.pid) in out
        assert process.poll() is None
        process.terminate()
        process.communicate(timeout=180)


def test_an_unwritable_folder_and_a_missing_launcher_are_said_before_anything_starts(job: Launched) -> None:
    (job.folder / "job").write_text("a file")
    code, out = job.run("--", PY, "-c", "pass")
    assert code == 2 and "--dir" in out
    code, out = job.run("--", "torchrunn", "train.py")
    assert code == 2 and "torchrunn" in out and "not installed" in out


def test_a_folder_that_cannot_be_written_for_a_while_is_tried_again(job: Launched) -> None:
    # A folder in the place of offer.json is refused to root too; the second attempt finds it gone.
    (job.dir / "offer.json").mkdir(parents=True)
    job.script("say('here')")
    with job.start("--back-off", "2", "--", PY, "train.py") as process:
        until(lambda: (job.dir / "state.json").exists() and job.state["failures"] == 1)
        (job.dir / "offer.json").rmdir()
        out, _ = process.communicate(timeout=180)
    assert process.returncode == 0 and "try 1 of 3" in out and job.said[-1].endswith(" here"), out


def test_a_program_that_cannot_be_executed_is_no_loop(job: Launched) -> None:
    path = job.folder / "broken"
    path.write_bytes(b"\x7fELF nonsense")
    path.chmod(0o755)
    code, out = job.run("--", "./broken")
    assert code == 127 and "cannot start" in out and job.state["attempt"] == 1, out


def test_no_process_is_left_of_a_command_that_ends_well(job: Launched) -> None:
    job.script("import subprocess\nsubprocess.Popen(['sleep', '300'])\nsubprocess.Popen(['setsid', 'sleep', '300'])")
    code, out = job.run("--", PY, "train.py")
    assert code == 0 and job.processes() == [], out


def test_the_supervisor_never_imports_torch(job: Launched) -> None:
    job.script("")
    look = (
        "import sys\nfrom greentrain.cli.app import app\n"
        f"try: app(['launch', '--dir', {str(job.dir)!r}, '--', {PY!r}, 'train.py'])\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    found = subprocess.run([PY, "-c", look], cwd=job.folder, capture_output=True, text=True, timeout=180)
    assert found.stdout.split() == ["0", "False", "False"], found.stderr


def test_status_shows_the_job(job: Launched) -> None:
    job.script("if n == 1: hand.mark('request', 1); hand.mark('left', 1); leave(steps=3)\nhand.mark('step', 2)")
    job.run("--", PY, "train.py")
    code, out = job.run("--status", str(job.dir))
    assert code == 0 and out.startswith("done, attempt 2") and "first step" in out and "{" not in out
    code, out = job.run("--status", str(job.dir), "--json")
    assert code == 0 and json.loads(out)["phase"] == "done" and not json.loads(out)["held"]
    assert job.state["resize_s"] is None or 0 < job.state["resize_s"] < 5
    code, out = job.run("--status", str(job.folder))
    assert code == 2 and "holds no job" in out


def test_what_a_resize_took_is_offered_to_the_next_attempt(job: Launched) -> None:
    job.script("hand.mark('step', n)\nsay('resize', offer.resize_s)\nif n < 3: hand.mark('request', n); leave(steps=n)")
    code, out = job.run("--", PY, "train.py")
    assert code == 0, out
    told = [line.split()[2] for line in job.said if "resize" in line]
    assert told[:2] == ["None", "None"] and 0 < float(told[2]) < 5
    assert json.loads((job.dir / "offer.json").read_text())["job_unix_s"] == job.state["created_unix_s"]


def test_a_log_on_a_full_disk_does_not_end_the_launcher(job: Launched) -> None:
    job.script("sys.exit(3 if n == 1 else 0)")
    words = ["launch", "--dir", str(job.dir), "--back-off", "0.05", "--", PY, "train.py"]
    with Path("/dev/full").open("w") as full:
        found = subprocess.run([PY, "-m", "greentrain", *words], cwd=job.folder, stdout=full, stderr=full, timeout=180)
    assert found.returncode == 0 and job.state["phase"] == "done" and job.state["attempt"] == 2


@pytest.mark.long
def test_a_guardian_has_the_time_that_a_refusing_driver_takes(job: Launched) -> None:
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(7.5); open('restored', 'w')"
    job.script(f"import subprocess\nsubprocess.Popen([sys.executable, '-c', {deaf!r}], start_new_session=True)")
    code, out = job.run("--", PY, "train.py")
    assert code == 0 and job.processes() == [] and (job.folder / "restored").exists(), out
