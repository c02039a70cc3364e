"""Starting, asking and losing a guardian."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from greentrain.config.schema import PowerCapConfig
from greentrain.control.actuators import guardian, guardian_main
from greentrain.control.actuators.driver import repair
from greentrain.control.actuators.guardian import Guardian, Refused
from greentrain.control.actuators.power_cap import open_power_cap, survey_caps
from greentrain.testing.fake_nvml import FakeDriver, FakeGpu
from greentrain.types import Topology
from tests.control.actuators.on_fake import ADMIN_W, Node, Said, alive, capping, clocking, wait_until
from tests.helpers.users import STRANGER, as_root


def test_it_is_tiny_and_quick(node: Node) -> None:
    driver = node(FakeGpu(limit_w=ADMIN_W))
    guardian = Guardian(library=str(driver.library))
    guardian.join()
    guardian.tell_limit(driver.uuid(0), 650_000, 400_000)
    assert guardian.pid is not None
    process = psutil.Process(guardian.pid)
    assert process.memory_info().rss < 16e6  # 9 MB measured
    assert process.num_threads() == 1 and process.cwd() == "/"
    guardian.leave()
    assert wait_until(lambda: not alive(process.pid))


def test_a_record_says_what_was_found_and_the_last_two_that_were_set(tmp_path: Path) -> None:
    record = guardian_main.Record("GPU-1", "boot", (1, 2, 3))
    assert record.is_empty
    record.announce(650_000, 400_000)
    record.announce(400_000, 450_000)
    record.announce(450_000, 500_000)
    record.kept["clocks"] = "locked"
    again = guardian_main.parse(record.text())
    assert again is not None
    assert (again.uuid, again.boot, again.owner) == ("GPU-1", "boot", (1, 2, 3))
    assert (again.found_mw, again.set_mw, again.kept) == (650_000, [450_000, 500_000], {"clocks": "locked"})
    again.forget("limit")
    assert not again.is_empty
    again.forget("clocks")
    assert again.text().splitlines() == ["uuid GPU-1", "boot boot", "owner 1 2 3"]


@pytest.mark.parametrize("now_mw", [450_000, 500_000, 499_600])
def test_what_was_announced_is_put_back_done_or_not(now_mw: int) -> None:
    card = Card(now_mw)
    record = guardian_main.Record("GPU-1", "boot", (1, 2, 3))
    record.announce(650_000, 450_000)
    record.announce(650_000, 500_000)
    assert "put back to 650 W" in guardian_main.give_back(card, record)
    assert card.now_mw == 650_000


@pytest.mark.parametrize("now_mw", [650_000, 700_000, 452_000])
def test_what_was_not_announced_is_left(now_mw: int) -> None:
    card = Card(now_mw)
    record = guardian_main.Record("GPU-1", "boot", (1, 2, 3))
    record.announce(650_000, 450_000)
    assert guardian_main.give_back(card, record) == ""
    assert card.now_mw == now_mw and card.sets == 0 and card.unlocks == 0


class Card(guardian_main.Library):
    def __init__(self, now_mw: int) -> None:
        self.now_mw, self.sets, self.unlocks = now_mw, 0, 0

    def limit_mw(self, uuid: str) -> int:
        return self.now_mw

    def set_limit_mw(self, uuid: str, limit_mw: int) -> None:
        self.now_mw, self.sets = limit_mw, self.sets + 1

    def restore(self, uuid: str, part: str, found: str) -> bool:
        self.unlocks += 1
        return True


def test_no_library_no_change(node: Node) -> None:
    driver, said = node(FakeGpu(limit_w=ADMIN_W)), Said()
    with capping(said, guardian=Guardian(library="libnothing-of-this-name.so")) as cap:
        assert not cap.apply(0.6) and not cap.apply(0.6)
        assert len(said) == 1 and "libnothing-of-this-name.so" in said[0]
        assert driver.state(0).power_limit_w == ADMIN_W


def test_no_interpreter_no_change(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, said = node(FakeGpu(limit_w=ADMIN_W)), Said()
    with capping(said) as cap:
        for program in ("", "/nonexistent/python", "/bin/false"):
            monkeypatch.setattr(sys, "executable", program)
            assert not cap.apply(0.6)
        monkeypatch.undo()
    assert len(said) == 3 and all("no guardian can be started" in sentence for sentence in said)
    assert driver.state(0).power_limit_w == ADMIN_W


def test_a_guardian_that_does_not_answer_is_not_waited_for_long(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, said = node(FakeGpu(limit_w=ADMIN_W)), Said()
    monkeypatch.setattr(guardian, "ANSWER_S", 0.1)
    with capping(said) as cap:
        assert cap.apply(0.6)
        stopped = cap.guardian.pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        assert not cap.apply(0.8)
        assert driver.state(0).power_limit_w == ADMIN_W and "no answer within 0.1 s" in said[0]
        os.kill(stopped, signal.SIGKILL)
        assert wait_until(lambda: not alive(stopped))


def test_threads_may_ask_at_once(node: Node) -> None:
    driver = node(FakeGpu(), FakeGpu())
    guardian = Guardian(library=str(driver.library))
    guardian.join()

    def ask(gpu: int) -> None:
        for _ in range(50):
            guardian.tell_limit(driver.uuid(gpu), 700_000, 400_000)
            guardian.done(driver.uuid(gpu), "limit")

    threads = [threading.Thread(target=ask, args=(gpu,)) for gpu in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert guardian.held == {driver.uuid(0), driver.uuid(1)}
    guardian.leave()


def test_a_signal_in_the_middle_of_a_change_waits_for_no_other_thread(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, said = node(FakeGpu(limit_w=ADMIN_W)), Said()
    guardian = Guardian(library=str(driver.library))
    changed, applied = threading.Event(), list[bool]()

    def change_and_close() -> None:
        with capping(said, guardian=guardian) as cap, clocking(said, guardian) as clocks:
            books = threading.Thread(target=lambda: clocks.apply(0.3), daemon=True)  # as the thread that books does
            answer, handled = guardian._answer, threading.Event()

            def interrupted(number: int, wait_s: float) -> str:
                if not handled.is_set() and guardian.pid is not None:
                    handled.set()
                    books.start()
                    assert wait_until(lambda: cap._closed)
                return answer(number, wait_s)

            monkeypatch.setattr(guardian, "_answer", interrupted)
            change = threading.Thread(target=lambda: applied.append(cap.apply(0.8)))
            change.start()
            assert handled.wait(240)
            cap.close()  # as a handler of SIGTERM does, and the change waits for that
            clocks.close()
            change.join()
            books.join()
            assert applied == [False] and said == []
        changed.set()

    threading.Thread(target=change_and_close, daemon=True).start()
    assert changed.wait(400), "one thread waits for the other"
    assert driver.state(0).power_limit_w == ADMIN_W


def test_an_unknown_gpu_and_an_unknown_word_are_answered(node: Node) -> None:
    driver = node(FakeGpu())
    guardian = Guardian(library=str(driver.library))
    guardian.join()
    with pytest.raises(Refused, match="GPU-none"):
        guardian.tell_limit("GPU-none", 700_000, 400_000)
    with pytest.raises(Refused, match="unknown word"):
        guardian._ask("sing", "x")
    guardian.leave()


def test_it_runs_without_greentrain_or_site_packages() -> None:
    names = {"__name__": "__main__", "__file__": guardian_main.__file__}
    run = f"exec(open({guardian_main.__file__!r}).read(), {names!r})"  # as a script, to which no number is given
    code = f"import sys\ntry: {run}\nexcept ValueError: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "private_files" in loaded
    assert not {"greentrain", "json", "re", "typing", "subprocess", "socket", "pynvml"} & set(loaded)


def test_a_process_exits_without_a_word_about_its_guardian(node: Node) -> None:
    driver = node(FakeGpu(limit_w=ADMIN_W))
    code = (
        "from greentrain.control.actuators.power_cap import open_power_cap\n"
        "from greentrain.config.schema import PowerCapConfig\n"
        "from greentrain.types import Topology\n"
        "cap = open_power_cap(PowerCapConfig(), Topology(), print)\n"
        "assert cap.apply(0.6)\n"
    )
    command = [sys.executable, "-W", "error", "-X", "dev", "-c", code]
    done = subprocess.run(command, env=driver.env(dict(os.environ)), capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert wait_until(lambda: driver.state(0).power_limit_w == ADMIN_W)


def forged(folder: Path, uuid: str) -> guardian_main.Record:
    """Write the record of a dead job that would set 200 W for good."""
    record = guardian_main.Record(uuid, guardian_main.boot_id(), (guardian_main.this_process()[0], 4194000, 1))
    record.announce(200_000, 650_000)
    record.kept["clocks"] = "locked"
    folder.mkdir(parents=True, exist_ok=True)
    Path(guardian_main.record_path(str(folder), uuid)).write_text(record.text(), encoding="ascii")
    return record


def unharmed(driver: FakeDriver, folder: Path) -> None:
    """Open limits, change one if that is possible, and see that only the administrator's hand is on the GPU."""
    assert repair(folder) == []
    said = Said()
    cap = open_power_cap(PowerCapConfig(fractions=(1.0, 0.8)), Topology(), said, guardian=Guardian(folder))
    assert cap is None and len(said) == 1 and str(folder) in said[0]
    assert (driver.state(0).power_limit_w, driver.state(0).power_limit_sets) == (ADMIN_W, 0)
    assert any("not set while cannot use" in line for line in survey_caps(folder))


@pytest.mark.parametrize("kind", ["anybody's", "link"])
def test_a_record_that_anybody_could_have_written_sets_nothing(node: Node, tmp_path: Path, kind: str) -> None:
    driver, folder = node(FakeGpu(limit_w=ADMIN_W)), tmp_path / "planted"
    record = forged(folder, driver.uuid(0))
    path = Path(guardian_main.record_path(str(folder), record.uuid))
    made = tmp_path / "made"
    path.with_suffix(".lock").symlink_to(made)
    if kind == "link":
        (tmp_path / "link").symlink_to(folder)
        unharmed(driver, tmp_path / "link")
    else:
        folder.chmod(0o777)
        unharmed(driver, folder)
        with pytest.raises(PermissionError):
            guardian_main.write(str(path), record)
    assert not made.exists()
    assert guardian_main.parse(path.read_text(encoding="ascii")) is not None, "what is foreign is left as it is"


@as_root
@pytest.mark.parametrize("all_of_it", [True, False])
def test_another_users_record_sets_nothing_on_roots_gpus(node: Node, tmp_path: Path, all_of_it: bool) -> None:
    driver, folder = node(FakeGpu(limit_w=ADMIN_W)), tmp_path / "planted"
    path = Path(guardian_main.record_path(str(folder), forged(folder, driver.uuid(0)).uuid))
    for one in (path, *([folder] if all_of_it else [])):
        os.chown(one, STRANGER, STRANGER)
    if all_of_it:
        unharmed(driver, folder)
        assert path.exists()
    assert guardian_main.read(str(path)) is None and repair(folder) == []
    assert driver.state(0).power_limit_w == ADMIN_W and driver.state(0).gpu_clock_sets == 0


def test_the_guardian_itself_writes_into_no_foreign_folder(node: Node, tmp_path: Path) -> None:
    driver, folder = node(FakeGpu(limit_w=ADMIN_W)), tmp_path / "planted"
    folder.mkdir()
    folder.chmod(0o777)
    one = Guardian(folder, library=str(driver.library))
    one.join()
    with pytest.raises(Refused, match="others can write"):
        one.tell_limit(driver.uuid(0), 650_000, 400_000)
    one.leave()
    assert list(folder.iterdir()) == []
