"""Faults, chosen by a seed: what is broken, for how long, and how it is mended."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from greentrain.control.launcher_protocol import Notice
from greentrain.testing.fake_nvml import NvmlCode
from tests.integration.chaos_server import MODES
from tests.integration.chaos_world import ADMIN_W, GPUS, World, send

SETTERS: Final = ("nvmlDeviceSetPowerManagementLimit", "nvmlDeviceSetGpuLockedClocks")
GETTERS: Final = ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerManagementLimit")
RESETS: Final = ("nvmlDeviceResetGpuLockedClocks",)
SMALL_FILES: Final = ("state.json", "offer.json", "progress.json", "request.json", "notice.json", "timeline.jsonl")
LONGEST_S: Final = 4.0
"""Of a fault that is mended."""


class Faults:
    """Breaks a world.

    Args:
        world: The world.
        seed: Chooses what happens.
    """

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.chance = random.Random(seed)
        self._seed = seed
        self.log: list[str] = []
        self.kills = 0
        self.ill: list[tuple[str, float, float]] = []
        """Disks that were ill: name, from, until (monotonic, s)."""
        self._mending: list[tuple[float, Callable[[], object]]] = []
        self._kinds: dict[Callable[[], str], int] = {
            self.end_supervisor: 4,
            self.stop_for_a_while: 3,
            self.kill_helper: 4,
            self.kill_worker: 4,
            self.kill_several: 2,
            self.notice_by_signal: 2,
            self.notice_by_hand: 3,
            self.break_server: 3,
            self.break_disk: 4,
            self.tear_small_file: 2,
            self.tear_checkpoint: 2,
            self.tear_journal: 1,
            self.break_driver: 4,
        }

    def one(self) -> None:
        """Do the next fault. What it is depends on the seed and its number alone; whom it hits, also on the moment."""
        self.chance = random.Random(f"{self._seed}/{len(self.log)}")
        (kind,) = self.chance.choices(list(self._kinds), weights=list(self._kinds.values()))
        at_s = self.world.now_s
        self.log.append(f"{at_s:7.2f} s  {kind.__name__}: {kind()}")

    def mend(self, *, all_of_it: bool = False) -> None:
        """Mend what has been broken for long enough."""
        now_s = time.monotonic()
        due = [heal for until_s, heal in self._mending if all_of_it or until_s <= now_s]
        self._mending = [(until_s, heal) for until_s, heal in self._mending if not (all_of_it or until_s <= now_s)]
        for heal in due:
            heal()

    # -- processes ---------------------------------------------------------------------------------------------------

    def end_supervisor(self) -> str:
        """End it; the world starts another one."""
        signum = self.chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
        return f"{signum.name} {self._supervisor(signum)}"

    def stop_for_a_while(self) -> str:
        """Stop a process, or the whole job, and let it go on later."""
        kind = self.chance.choice(("supervisor", "keeper", "agent", "fork server", "worker", "all"))
        pids = self._pids(kind)
        seconds = self.chance.uniform(0.2, LONGEST_S)
        if not pids:
            return f"{kind} []"
        stopped = pids if kind == "all" else pids[:1]
        for pid in stopped:
            send(pid, signal.SIGSTOP)
        self._later(seconds, lambda: [send(pid, signal.SIGCONT) for pid in stopped])
        return f"{kind} {stopped} for {seconds:.1f} s"

    def kill_helper(self) -> str:
        """Kill what runs between supervisor and training, or the guardian of its GPUs."""
        return self._kill(self.chance.choice(("keeper", "agent", "fork server", "guardian")))

    def kill_worker(self) -> str:
        """End one rank."""
        return self._kill(
            "worker", self.chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGABRT))
        )

    def kill_several(self) -> str:
        """Kill several at once: an out-of-memory killer, or a node's agent."""
        kinds = self.chance.sample(("supervisor", "keeper", "agent", "fork server", "guardian", "worker"), 3)
        return ", ".join(self._kill(kind) for kind in kinds)

    def notice_by_signal(self) -> str:
        """Tell the supervisor that its end is near; the world starts it again."""
        return f"SIGUSR1 {self._supervisor(signal.SIGUSR1)}"

    def notice_by_hand(self) -> str:
        """Ask for another width."""
        offer = self.world.handover.offer()
        ranks = self.chance.choice((1, 2))
        if offer is not None:
            with contextlib.suppress(OSError):
                self.world.handover.write(Notice(attempt=offer.attempt, reason="by hand", ranks=ranks))
        return f"{ranks} ranks"

    # -- network, disk, driver -----------------------------------------------------------------------------------------

    def break_server(self) -> str:
        """Let the facility's server fail in one of its ways."""
        self.world.server.mode = self.chance.choice(MODES[1:])
        seconds = self.chance.uniform(1.0, 3 * LONGEST_S)
        self._later(seconds, lambda: setattr(self.world.server, "mode", "well"))
        return f"{self.world.server.mode} for {seconds:.1f} s"

    def break_disk(self) -> str:
        """Fill a disk, or make it read-only."""
        name, mode = (
            self.chance.choice(("launch", "launch", "saved", "runs", "logs")),
            self.chance.choice(("full", "read-only")),
        )
        seconds = self.chance.uniform(0.5, LONGEST_S)
        self.world.disk.set(name, mode)
        self.ill.append((name, time.monotonic(), time.monotonic() + seconds + 1.0))
        self._later(seconds, lambda: self.world.disk.set(name, "well"))
        return f"{name} {mode} for {seconds:.1f} s"

    def tear_small_file(self) -> str:
        """Leave half of a small file, or rubbish in it; the supervisor may die at that moment too."""
        path = self.world.launch / self.chance.choice(SMALL_FILES)
        half, dies = self.chance.random() < 0.5, self.chance.random() < 0.5
        with contextlib.suppress(OSError):
            data = path.read_bytes()
            path.write_bytes(data[: len(data) // 2] if half else b'\x00\xff{"torn": ')
        killed = f", {self._kill('supervisor')}" if dies else ""
        return f"{path.name} {'cut' if half else 'rubbish'}{killed}"

    def tear_checkpoint(self) -> str:
        """Cut the newest checkpoint, as a power cut may; there is an older one."""
        whole = self.world.whole
        if len(whole) < 3:
            return "none to spare"
        with contextlib.suppress(OSError):  # it has been dropped
            os.truncate(whole[-1], int(whole[-1].stat().st_size * self.chance.uniform(0.0, 0.95)))
        return whole[-1].name + (f", {self._kill('worker')}" if self.chance.random() < 0.7 else "")

    def tear_journal(self) -> str:
        """Kill all that trains, and cut the last line of a journal."""
        killed = ", ".join(self._kill(kind) for kind in ("supervisor", "keeper", "worker", "worker"))
        end_s = time.monotonic() + 5.0
        while self.world.workers() and time.monotonic() < end_s:
            for pid in self.world.workers():
                send(pid, signal.SIGKILL)
            time.sleep(0.01)
        journals = self.world.journals
        if not journals or self.world.workers():
            return killed
        path: Path = self.chance.choice(journals)
        size = path.stat().st_size
        last = path.read_bytes().rstrip(b"\n").rpartition(b"\n")[2]
        with contextlib.suppress(OSError):
            os.truncate(path, size - self.chance.randint(1, max(1, len(last) - 1)))
        return f"{killed}, {path.name} cut"

    def break_driver(self) -> str:
        """Let the driver of a GPU refuse, hang, or lose the right to set."""
        gpu, what = self.chance.randrange(GPUS), self.chance.choice(("error", "error", "right", "slow", "lost"))
        seconds = self.chance.uniform(0.5, LONGEST_S)
        driver = self.world.driver
        if what == "error":
            name = self.chance.choice((*SETTERS, *GETTERS, *RESETS))
            code = self.chance.choice((NvmlCode.UNKNOWN, NvmlCode.NO_PERMISSION, NvmlCode.NOT_SUPPORTED))
            driver.update(gpu, errors={name: code})
            self._later(seconds, lambda: driver.update(gpu, errors={name: NvmlCode.SUCCESS}))
            what = f"answers {code.name} to {name}"
        elif what == "right":
            driver.update(gpu, may_set=False)
            self._later(seconds, lambda: driver.update(gpu, may_set=True))
        elif what == "slow":
            delays = dict.fromkeys((*SETTERS, *RESETS), (0.5, 0.0))
            driver.update(gpu, delays=delays)
            self._later(seconds, lambda: driver.update(gpu, delays=dict.fromkeys(delays, (0.0, 0.0))))
        else:
            driver.update(gpu, lost=True)
            self._later(seconds, lambda: driver.update(gpu, lost=False))
        return f"GPU {gpu} {what} for {seconds:.1f} s ({driver.state(gpu).power_limit_w:g} of {ADMIN_W:g} W)"

    # -- inside ------------------------------------------------------------------------------------------------------

    def _later(self, seconds: float, heal: Callable[[], object]) -> None:
        self._mending.append((time.monotonic() + seconds, heal))

    def _pids(self, kind: str) -> list[int]:
        supervisor = [] if self.world.supervisor is None else [self.world.supervisor.pid]
        if kind == "supervisor":
            return supervisor
        if kind == "all":
            return [*supervisor, *self.world.processes()]
        pids = self.world.workers() if kind == "worker" else self.world.of_kind(kind)
        self.chance.shuffle(pids)
        return pids

    def _supervisor(self, signum: int) -> str:
        if self.world.supervisor is None or self.world.supervisor.poll() is not None:
            return "nobody"
        self.world.supervisor.send_signal(signum)
        return str(self.world.supervisor.pid)

    def _kill(self, kind: str, signum: signal.Signals = signal.SIGKILL) -> str:
        pids = self._pids(kind)[:1]
        hit = [pid for pid in pids if send(pid, signum)]
        self.kills += len(hit)
        return f"{signum.name} {kind} {hit}"
