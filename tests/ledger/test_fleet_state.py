"""One writer, whole moments, actions noted before they are carried out: in SQLite, and in a real Postgres."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from greentrain.errors import GreenTrainWarning, MissingExtraError
from greentrain.ledger import fleet_state
from greentrain.ledger.fleet_state import FleetHeldError, FleetJob, FleetSample, FleetState, FleetStateError
from tests.helpers.hand_clock import HandClock

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
"""Postgres does not start as root."""


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """URL of a server of this machine, in a folder of its own."""
    pytest.importorskip("psycopg", reason="pip install 'greentrain-torch[postgres]'")
    found = shutil.which("postgres", path=f"{os.environ['PATH']}:/usr/lib/postgresql/15/bin")
    if found is None:
        pytest.skip("not installed: postgres (apt-get install postgresql)")
    programs = Path(found).resolve().parent
    user: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}
    with tempfile.TemporaryDirectory(prefix="greentrain-pg-") as name:
        data = f"{name}/data"
        if user:
            os.chown(name, NOBODY, NOBODY)
        made = subprocess.run(
            [programs / "initdb", "-D", data, "-A", "trust", "-U", "fleet", "--no-sync", "--no-instructions"],
            capture_output=True, check=False, text=True, cwd="/", **user,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        words = [str(programs / "postgres"), "-D", data, "-k", name, "-c", "listen_addresses=", "-c", "fsync=off"]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd="/", **user) as server:
            assert server.stderr is not None
            try:
                for line in server.stderr:
                    if "ready to accept connections" in line:
                        break
                yield f"postgresql://fleet@/postgres?host={name}"
            finally:
                server.send_signal(signal.SIGINT)
                server.stderr.read()


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest) -> str | None:
    return None if request.param == "sqlite" else request.getfixturevalue("postgres")


@pytest.fixture
def place(server: str | None, tmp_path: Path) -> str:
    if server is None:
        return str(tmp_path / "fleet.db")
    import psycopg

    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return server


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def opened(place: str, clock: HandClock, *, read_only: bool = False) -> FleetState:
    return FleetState(place, clock=clock.unix_s, read_only=read_only)


def test_what_is_written_is_read_by_another(place: str, clock: HandClock) -> None:
    state = opened(place, clock)
    state.take("east", lease_s=60.0, holder="me")
    jobs = [
        FleetJob(name="b", state="running", row="fp8 at 70% on 4", nodes=4, gear="fp8", cap=0.7, power_w=5e3),
        FleetJob(name="a", state="held", waits_for="cleaner hours", until_s=7200.0, tokens_left=float("inf")),
    ]
    plan = {"kind": "greentrain cluster plan", "bound_g": "1.0e+3", "prices": {"nodes": [[0, 1, "2.5e-1"]]}}
    samples = [FleetSample(t_s=t, site=s, power_w=100.0 * t, grams=None) for t in (1.0, 2.0) for s in ("x", "y")]
    state.write(jobs=jobs, plan=("an arrival", plan), samples=samples, note="the grid does not answer")
    reader = opened(place, clock, read_only=True)
    now = reader.now()
    assert now.name == "east" and now.controller.holder == "me" and now.controller.alive
    assert now.controller.note == "the grid does not answer" and not now.controller.dry_run
    assert [job.name for job in now.jobs] == ["a", "b"]
    assert now.jobs[1] == jobs[0]
    assert now.jobs[0].tokens_left is None  # JSON has no word for it: unknown, not 0
    assert reader.plan() == {"t_s": clock.unix_s(), "reason": "an arrival", "plan": plan}
    assert reader.plan(unless_s=clock.unix_s()) is None, "known already"
    assert reader.samples() == samples
    assert reader.samples(since_s=2.0, site="y") == [samples[3]]
    state.write(jobs=jobs[:1])
    assert [job.name for job in reader.now().jobs] == ["b"]
    assert reader.plan() is not None and reader.now().controller.note == ""
    clock.now_s += 61.0
    assert not reader.now().controller.alive  # it has said nothing for longer than its lease
    with pytest.raises(FleetHeldError, match="does not control"):
        reader.write(jobs=[])
    state.close()
    reader.close()


def test_two_controllers_exclude_each_other(place: str, clock: HandClock) -> None:
    one, two = opened(place, clock), opened(place, clock)
    one.take("east", lease_s=60.0, holder="one")
    clock.now_s += 59.0
    with pytest.raises(FleetHeldError, match=r"one controls this fleet .* 59 s ago; .* wait 1 s if it is dead"):
        two.take("east", lease_s=60.0, holder="two")
    one.write()  # to be heard of is to renew
    clock.now_s += 59.0
    with pytest.raises(FleetHeldError):
        two.take("east", lease_s=60.0, holder="two")
    clock.now_s += 1.0
    two.take("east", lease_s=60.0, holder="two")
    for late in (lambda: one.write(jobs=[]), lambda: one.intend("a", "hold", t_s=0.0), lambda: one.conclude(1, "done")):
        with pytest.raises(FleetHeldError, match="two has taken"):
            late()
    one.release()  # which is not its own any more
    assert two.now().controller.holder == "two" and two.now().controller.alive
    two.release()
    with pytest.raises(FleetStateError, match="state of fleet 'east', not of 'west'"):
        two.take("west", holder="two")
    one.close()
    two.close()


def test_of_many_at_once_one_gets_it(place: str) -> None:
    states = [FleetState(place) for _ in range(6)]
    won, lost, gate = [], [], threading.Barrier(len(states))

    def try_it(i: int) -> None:
        gate.wait()
        try:
            states[i].take("east", holder=f"h{i}")
            won.append(i)
        except FleetHeldError:
            lost.append(i)

    threads = [threading.Thread(target=try_it, args=(i,)) for i in range(len(states))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and len(lost) == 5
    assert states[0].now().controller.holder == f"h{won[0]}"
    for state in states:
        state.close()


def test_an_action_is_there_before_it_is_carried_out(place: str, clock: HandClock) -> None:
    state = opened(place, clock)
    state.take("east", holder="me")
    first = state.intend("a", "hold", t_s=5.0, reason="cleaner hours", what="until 03:00Z")
    second = state.intend("b", "release", t_s=6.0)
    third = state.intend("a", "cap", t_s=7.0, what="to 70%", dry_run=True)
    assert [action.seq for action in state.unknown()] == [first, second]
    state.conclude(second, "done")
    state.conclude(second, "refused: too late")  # what has an outcome keeps it
    assert [action.seq for action in state.unknown()] == [first]
    told = state.actions()
    assert [(one.seq, one.outcome, one.dry_run) for one in told] == [
        (first, None, False), (second, "done", False), (third, "dry run", True)
    ]  # fmt: skip
    assert [one.seq for one in state.actions(job="a", after=first)] == [third]
    assert [one.seq for one in state.actions(most=1)] == [third]
    assert told[0].reason == "cleaner hours" and told[0].t_s == 5.0
    state.close()


def test_a_transaction_is_all_or_nothing(place: str, clock: HandClock) -> None:
    state = opened(place, clock)
    state.take("east", holder="me")
    state.write(jobs=[FleetJob(name="a", state="running")])
    with pytest.raises(TypeError):
        state.write(jobs=[FleetJob(name="b", state="held")], plan=("no JSON", {"x": object()}))
    assert [job.name for job in state.now().jobs] == ["a"]
    state.close()


def test_old_samples_and_plans_go(tmp_path: Path, clock: HandClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_state, "KEPT_PLANS", 2)
    state = opened(str(tmp_path / "f.db"), clock)
    state.take("east")
    for n in range(4):
        state.write(
            plan=("x", {"n": n}), samples=[FleetSample(t_s=n * 0.4 * fleet_state.KEEP_S, site="x", power_w=None)]
        )
    assert len(state.samples()) == 3
    with sqlite3.connect(tmp_path / "f.db") as file:
        assert file.execute("SELECT COUNT(*) FROM plans").fetchone() == (2,)
    file.close()
    state.close()


def test_a_writer_begins_anew_where_the_file_is_torn(tmp_path: Path, clock: HandClock) -> None:
    path = tmp_path / "fleet.db"
    state = opened(str(path), clock)
    state.take("east")
    for n in range(50):
        state.intend(f"job{n}", "hold", t_s=0.0, reason="x" * 500)
    state.close()
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(FleetStateError, match=r"fleet\.db"):
        opened(str(path), clock, read_only=True)
    with pytest.warns(GreenTrainWarning, match="was damaged"):
        state = opened(str(path), clock)
    state.take("east")
    assert state.actions() == [] and len(list(tmp_path.glob("*.damaged-*"))) >= 1
    state.close()
    path.write_bytes(b"no database at all, but a text that somebody put here" * 9)
    with pytest.warns(GreenTrainWarning, match="was damaged"):
        opened(str(path), clock).close()


def test_wrong_places_say_what_to_do(tmp_path: Path, clock: HandClock, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FleetStateError, match="is not there: greentrain fleet run makes it"):
        opened(str(tmp_path / "none.db"), clock, read_only=True)
    with pytest.raises(FleetStateError, match="its folder must exist"):
        opened(str(tmp_path / "none" / "fleet.db"), clock)
    path = tmp_path / "newer.db"
    opened(str(path), clock).close()
    with sqlite3.connect(path) as file:
        file.execute("UPDATE fleet SET value = '9'")
    file.close()
    with pytest.raises(FleetStateError, match="has format 9; this GreenTrain reads up to 1: upgrade"):
        opened(str(path), clock)
    monkeypatch.setattr(fleet_state._postgres, "error", ImportError("No module named 'psycopg'"))
    with pytest.raises(MissingExtraError, match=r"greentrain-torch\[postgres\]"):
        opened("postgresql://fleet:secret@nowhere/db", clock)


def test_a_server_that_is_away_is_no_secret_and_no_end(postgres: str, clock: HandClock, tmp_path: Path) -> None:
    with pytest.raises(FleetStateError) as found:
        opened(f"postgresql://fleet:hunter2@/postgres?host={tmp_path}", clock)
    assert "hunter2" not in str(found.value)
    state = FleetState(postgres)
    state.now()
    state._connection.close()  # as a server that starts anew does
    with pytest.raises(FleetStateError):
        state.now()
    assert state.now().controller.beat_s >= 0.0
    state.close()


def test_what_a_killed_controller_wrote_stays(tmp_path: Path) -> None:
    path = tmp_path / "fleet.db"
    code = (
        "import sys; from greentrain.ledger.fleet_state import FleetState, FleetJob\n"
        f"s = FleetState({str(path)!r}); s.take('east', lease_s=0.0)\n"
        "n = 0\n"
        "while True:\n"
        "    n += 1\n"
        "    seq = s.intend('a', 'hold', t_s=float(n)); print(n, flush=True)\n"
        "    s.write(jobs=[FleetJob(name=f'j{i}', state='held', since_s=float(n)) for i in range(20)])\n"
        "    s.conclude(seq, 'done')\n"
    )
    for turn in range(2):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
            assert child.stdout is not None
            said = [int(child.stdout.readline()) for _ in range(10 + turn)][-1]
            child.kill()
            said = max([said, *map(int, child.stdout.read().split())])
        state = FleetState(path)
        assert len({job.since_s for job in state.now().jobs}) == 1  # all of one moment
        last = state.actions(most=1)[0]
        assert last.t_s >= said and len(state.unknown()) <= turn + 1
        state.close()
