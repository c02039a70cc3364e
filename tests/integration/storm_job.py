"""Trainings under a storm of signals and ill disks: -m tests.integration.storm_job FOLDER, with ``storm.json`` there.

One process imports everything once and forks each life of a training from there, on several lanes at a time: a lane
has a GPU and a disk of its own, and its next life goes on in the run folder where the last one ended, or begins
another one. What a life has done stands in memory that it shares with the server, which a SIGKILL leaves as it is.
``lives.json`` says at the end what was done to whom, and when.
"""

import atexit
import contextlib
import ctypes
import faulthandler
import json
import mmap
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from greentrain import GreenSession
from tests.integration.chaos_disk import ChaosDisk

STEP_S: Final = 0.02
TOKENS: Final = 10
GEARS: Final = ("fp32", "bf16")
STARTING, RUNNING, CLOSING, CLOSED = range(4)
PROGRAMS: Final = ("plain", "plain", "leaves it open", "handles", "handles late", "catches", "raises")
"""What a program does about signals: nothing, and it may leave the session open at its end; it has handlers of its own,
from before the session's start or from after; it catches what Ctrl-C raises and goes on; its handler of SIGTERM raises
what its loop catches."""
FATAL: Final = ("plain", "leaves it open")
KINDS: Final = {
    **{"SIGTERM": 4, "SIGINT": 4, "SIGKILL": 2, "SIGSTOP": 1},
    **{"full": 2, "read-only": 1, "slow": 2, "hung": 3, "stalled": 1},
}
"""Events, and how often they come: signals, and modes of the disk."""
STUCK_S: Final = 60.0
"""A life that is to end and has not for so long hangs."""


class Witness(ctypes.Structure):
    """What a life says of itself, in shared memory."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("state", "stop", "begun", "done", "SIGTERM", "SIGINT", "caught")),
        *((name, ctypes.c_double) for name in ("started_s", "last_s", "longest_s", "close_s", "handled_s")),
        ("slowest", ctypes.c_char * 32),
        ("error", ctypes.c_char * 4000),
    )


class Told(Exception):
    """What a program's own handler raises."""


def live(witness: Witness, order: dict[str, Any], state: Path) -> int:
    """Train once, and return the exit code."""
    program, chance = order["program"], random.Random(os.getpid())

    def handle(signum: int, frame: object) -> None:
        name = signal.Signals(signum).name
        setattr(witness, name, getattr(witness, name) + 1)
        witness.handled_s = time.monotonic()
        if program == "raises" and signum == signal.SIGTERM and witness.state == RUNNING:
            raise Told

    def handlers() -> None:
        if program not in FATAL:
            signal.signal(signal.SIGTERM, handle)
            signal.signal(signal.SIGINT, signal.default_int_handler if program == "catches" else handle)

    def timed(call: Callable[..., Any], **words: Any) -> Any:
        begun_s = time.monotonic()
        try:
            return call(**words)
        finally:
            took_s = time.monotonic() - begun_s
            if took_s > witness.longest_s:
                witness.longest_s, witness.slowest = took_s, call.__name__.encode()

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if program != "handles late":
        handlers()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
    green, step = GreenSession(order["config"]), 0
    if order["resumes"] and state.exists():
        held = json.loads(state.read_text())
        step = held["step"]
        green.load_state_dict(held["green"])
    train = _step(order["torch"])
    timed(green.start)
    try:
        witness.started_s = time.monotonic()
        if program == "handles late":
            handlers()
        if train.watched is not None:
            green.watch(*train.watched)
        end_s = time.monotonic() + order["seconds"]
        witness.state = RUNNING
        while time.monotonic() < end_s and not witness.stop:
            try:
                with green.phase("data"):
                    time.sleep(STEP_S)
                train()
                witness.begun += 1
                timed(green.step, tokens=TOKENS)
                witness.done += 1
                witness.last_s = time.monotonic()
                step += 1
                if step % 5 == 0:
                    timed(green.metrics)
                    timed(green.energy, t0_s=witness.started_s, t1_s=witness.last_s - 0.5)
                if step % 9 == 0 and green.gears is not None:
                    timed(green.shift, gear=chance.choice(GEARS))
                if order["every"] and step % order["every"] == 0:
                    timed(green.checkpoint)
                    words = {"step": step, "green": timed(green.state_dict)}
                    state.with_suffix(".new").write_text(json.dumps(words))
                    state.with_suffix(".new").replace(state)
            except (KeyboardInterrupt, Told):
                if program not in ("catches", "raises"):
                    raise
                witness.caught += 1
    finally:
        witness.state = CLOSING
        begun_s = time.monotonic()
        try:
            if program != "leaves it open":
                green.close("exception" if sys.exc_info()[0] else "finished")
        finally:
            atexit._run_exitfuncs()  # what the interpreter would do at its end, also where close() was interrupted
            witness.close_s = time.monotonic() - begun_s
    witness.state = CLOSED
    return 0


class _step:
    """Trains a very small model, or nothing."""

    def __init__(self, with_torch: bool) -> None:
        self.watched: tuple[Any, Any] | None = None
        if with_torch:
            import torch

            net = torch.nn.Linear(4, 4)
            self.watched = net, torch.optim.AdamW(net.parameters())

    def __call__(self) -> None:
        if self.watched is not None:
            import torch

            net, optimizer = self.watched
            net(torch.ones(1, 4)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()


class Lane:
    """A place for one life at a time.

    Args:
        number: Of its GPU and its disk.
        storm: What all lanes share.
    """

    def __init__(self, number: int, storm: "Storm") -> None:
        self.number, self.storm, self.chance = number, storm, random.Random(f"{storm.seed} {number}")
        self.pid = 0
        self.runs = 0
        self.lives: list[dict[str, Any]] = []
        self.ill: list[list[Any]] = []
        """Mode of its disk, from, until (monotonic, s)."""
        self._memory = mmap.mmap(-1, ctypes.sizeof(Witness))
        self.witness = Witness.from_buffer(self._memory)
        self._well_s = self._kill_s = self._go_on_s = 0.0
        self._due_s = time.monotonic() + self.chance.expovariate(1.0 / storm.every_s)
        self._asked: tuple[str, float, int] | None = None
        self._run = ""

    def tend(self, now_s: float, over: bool) -> bool:
        """Do what is due; return False when it is over."""
        if self.pid:
            self._watch(now_s)
        elif not over:
            self._bear(now_s)
        if self._well_s and (now_s >= self._well_s or over):
            self._heal(now_s)
        if over:
            self.witness.stop = 1
        elif now_s >= self._due_s:
            self._due_s = now_s + self.chance.expovariate(1.0 / self.storm.every_s)
            self._hit(now_s)
        return bool(self.pid) or not over

    def _bear(self, now_s: float) -> None:
        chance = self.chance
        first = not self._run or chance.random() < 0.3
        if first:
            self._run, self.runs = f"run{self.runs}", self.runs + 1
        if self._well_s and (first or self.ill[-1][0] == "read-only"):  # a run that cannot begin there says so
            self._heal(now_s)
        order = {
            "lane": self.number,
            "run": self._run,
            "program": chance.choice(PROGRAMS),
            "seconds": chance.choice(self.storm.seconds) * chance.uniform(0.5, 1.5),
            "every": chance.choice((0, 0, 15)),
            "resumes": chance.random() < 0.5,
            "torch": self.storm.torch,
            "stopped_s": 0.0,
        }
        config: dict[str, Any] = {
            "run": {
                "dir": str(self.storm.folder / "runs" / f"lane{self.number}"),
                "id": self._run,
                "book_s": chance.choice((0.5, 10.0)),
                "report": self.storm.torch and chance.random() < 0.2,
                "live": False,
            },
            "power": {"meters": ["nvml"], "gpus": [str(self.number)]},
            "carbon": {"g_per_kwh": 360.0},
        }
        if self.storm.torch and chance.random() < 0.3:
            config["precision"] = {"gears": list(GEARS), "min_features": 1, "probe_every": 0}
        ctypes.memset(ctypes.addressof(self.witness), 0, ctypes.sizeof(Witness))
        self._asked, self._kill_s, self._go_on_s = None, 0.0, 0.0
        self.lives.append({**order, "config": config, "born_s": now_s, "events": [], "late_s": 0.0, "stuck": ""})
        errors = self.storm.folder / f"errors-{self.number}-{len(self.lives)}"
        self.pid = os.fork()
        if self.pid:
            return
        code = 9  # the child: nothing may lead it back into the server's loop
        try:
            with errors.open("w") as file:
                os.dup2(file.fileno(), 2)
                faulthandler.register(signal.SIGUSR2, file=file, all_threads=True)
                state = self.storm.folder / f"state-{self.number}-{self._run}.json"
                code = live(self.witness, order | {"config": config}, state)
        except (KeyboardInterrupt, Told):
            code = 130
        except BaseException:
            self.witness.error = traceback.format_exc()[-3900:].encode()
        finally:
            os._exit(code)

    def _heal(self, now_s: float) -> None:
        self.storm.disk.set(str(self.number), "well")
        self.ill[-1][2], self._well_s = now_s, 0.0

    def _hit(self, now_s: float) -> None:
        storm, chance = self.storm, self.chance
        (kind,) = chance.choices(list(KINDS), weights=list(KINDS.values()))
        if not kind.startswith("SIG"):
            starting = self.witness.state == STARTING and kind in ("full", "read-only")  # refused, and said so
            if not self._well_s and not starting:
                self._well_s = now_s + chance.uniform(0.2, 3.0) * (3.0 if kind == "hung" else 1.0)
                storm.disk.set(str(self.number), kind)
                self.ill.append([kind, now_s, self._well_s])
                storm.note(self, kind)
            return
        life, state = (self.lives[-1] if self.lives else {}), self.witness.state
        if not self.pid or self._kill_s or state == CLOSED:
            return
        if kind in ("SIGTERM", "SIGINT") and (self._asked or (state == STARTING and life["program"] not in FATAL)):
            return
        if (
            kind in ("SIGTERM", "SIGINT")
            and life["program"] not in FATAL
            and (kind, life["program"]) != ("SIGINT", "catches")
        ):
            self._asked = kind, now_s, getattr(self.witness, kind)
        if kind == "SIGSTOP":
            seconds = chance.uniform(0.1, 2.0)
            self._go_on_s, life["stopped_s"] = now_s + seconds, life["stopped_s"] + seconds
        for _ in range(1 if kind in ("SIGKILL", "SIGSTOP") else chance.choice((1, 1, 2, 4))):
            os.kill(self.pid, signal.Signals[kind])  # it is a child that is not reaped yet
            life["events"].append([time.monotonic(), kind, state])
            storm.note(self, kind)
            time.sleep(chance.choice((0.0, 0.001, 0.02)))
        if kind == "SIGKILL" or (life["program"] in FATAL and kind != "SIGSTOP"):
            self._kill_s = now_s

    def _watch(self, now_s: float) -> None:
        life, witness = self.lives[-1], self.witness
        if self._go_on_s and now_s >= self._go_on_s:
            os.kill(self.pid, signal.SIGCONT)
            self._go_on_s = 0.0
        if self._asked and getattr(witness, self._asked[0]) > self._asked[2]:
            life["late_s"], self._asked = max(life["late_s"], witness.handled_s - self._asked[1]), None
        ends_s = self._kill_s or (life["born_s"] + life["seconds"] if witness.state < CLOSED else 0.0)
        if now_s > max(ends_s, life["born_s"]) + STUCK_S and not life["stuck"]:
            life["stuck"] = f"{now_s - ends_s:.0f} s after its end, in state {witness.state}"
            os.kill(self.pid, signal.SIGUSR2)
            time.sleep(1.0)
            os.kill(self.pid, signal.SIGKILL)
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return
        if self._asked and getattr(witness, self._asked[0]) == self._asked[2] and not self._kill_s:
            life["late_s"] = float("inf")
        self.pid = 0
        life |= {"ended_s": now_s, "status": os.waitstatus_to_exitcode(status)}
        for name, *_ in Witness._fields_:
            value = getattr(witness, name)
            life[name] = value.decode(errors="replace") if isinstance(value, bytes) else value


class Storm:
    """All lanes, and how many events there are left."""

    def __init__(
        self,
        folder: Path,
        *,
        seed: int,
        events: int,
        lanes: int,
        every_s: float,
        seconds: list[float],
        torch: bool,
    ) -> None:
        self.folder, self.seed, self.events = folder, seed, events
        self.every_s, self.seconds, self.torch = every_s, seconds, torch
        self.disk = ChaosDisk(folder, {str(n): folder / "runs" / f"lane{n}" for n in range(lanes)})
        self.log: list[str] = []
        self._began_s = time.monotonic()
        self.lanes = [Lane(number, self) for number in range(lanes)]

    def note(self, lane: Lane, kind: str) -> None:
        """Count an event."""
        program = lane.lives[-1]["program"] if lane.lives else ""
        self.log.append(
            f"{time.monotonic() - self._began_s:7.3f} s  lane {lane.number} life {len(lane.lives)} ({program},"
            f" state {lane.witness.state}): {kind}"
        )

    def play(self) -> None:
        """Let it storm until all events have happened and all lives have ended."""
        while any([lane.tend(time.monotonic(), len(self.log) >= self.events) for lane in self.lanes]):
            time.sleep(0.003)
        words = [{"lives": lane.lives, "ill": lane.ill} for lane in self.lanes]
        (self.folder / "lives.json").write_text(json.dumps({"log": self.log, "lanes": words}))


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))  # until a life has its own handlers
    place = Path(sys.argv[1])
    options = json.loads((place / "storm.json").read_text())
    if options["torch"]:
        import torch

        torch.set_num_threads(1)
        known = torch.nn.Linear(
            1, 1, bias=False
        )  # what the first step imports takes seconds; no backward before a fork
        known.weight.grad = torch.ones(1, 1)
        torch.optim.AdamW(known.parameters()).step()
    with contextlib.suppress(ImportError):
        import pynvml  # noqa: F401 - once, for all lives
    Storm(place, **options).play()
