"""A storm of signals and ill disks: SIGTERM, SIGINT, SIGKILL, SIGSTOP, full disks, slow and hanging fsync, at any time.

Lives of small trainings (``storm_job.py``) follow each other in their run folders, several at a time, and each is hit
again and again. Nothing of ours reaches the training, nothing is booked twice, a kill costs ten seconds at most, and
the program's own handlers run. ``GREENTRAIN_STORM_EVENTS`` says how many events the long storm has (125, half a
minute; 500 before a release); ``GREENTRAIN_CHAOS_SEED`` gives a seed that failed.
"""

import itertools
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from greentrain.ledger.journal import rank_path, read_journal
from greentrain.ledger.reader import read_run
from greentrain.testing.fake_nvml import FakeDriver, FakeGpu, Wave
from tests.helpers.chaos_seed import chaos_seed
from tests.integration.chaos_disk import ChaosDisk
from tests.integration.storm_job import FATAL, STEP_S, TOKENS

if TYPE_CHECKING:
    from tests.integration.conftest import Lab

SEED = chaos_seed()
EVENTS = int(os.environ.get("GREENTRAIN_STORM_EVENTS", "125"))
pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
HELD_UP_S = 10.0
"""Longest that a call of ours may take, or a handler of the program's may wait (s): ours wait a second at most each,
and a busy machine may let them wait for a core."""
CLOSE_S = 20.0
"""Longest that the end of a session may take (s): 8 s for the books, and for the disk."""
LOST_S = 10.0
"""Most that a kill may take out of the books (s)."""
TICK_S = 0.1
MOST = ("lost_s", "longest_s", "late_s", "close_s")
UNWELL_S = 1.0
"""A disk is not quite well for so long after it was ill (s): lines that wait are tried again when one is written."""


@dataclass
class Booked:
    """What one life's part of a journal says."""

    t0_s: float
    entries: list[dict[str, Any]]
    close: dict[str, Any] | None = None


@pytest.mark.timeout(300)
def test_a_few_signals_and_ill_disks(lab: "Lab") -> None:
    _storm(lab, events=14, lanes=4, every_s=0.6, seconds=[0.6, 1.5], torch=False)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_storm_of_signals_and_ill_disks(lab: "Lab") -> None:
    _storm(lab, events=EVENTS, lanes=8, every_s=2.0, seconds=[1.0, 4.0, 16.0], torch=True)


def _storm(lab: "Lab", *, lanes: int, events: int, **words: Any) -> None:
    print(f"GREENTRAIN_CHAOS_SEED={SEED}")
    driver = lab.gpus(*(FakeGpu(power=(Wave(low_w=100.0 + 50.0 * lane),)) for lane in range(lanes)))
    runs = lab.folder / "runs"
    disk = ChaosDisk(lab.folder, {str(lane): runs / f"lane{lane}" for lane in range(lanes)})
    options = {"seed": SEED, "lanes": lanes, "events": events, **words}
    (lab.folder / "storm.json").write_text(json.dumps(options))
    try:
        job = lab.run(
            "-m", "tests.integration.storm_job", str(lab.folder), env=disk.environ() | {"PYTHONPATH": str(ROOT)}
        )
        assert job.end(timeout_s=1200.0) == 0, job.errors()
    finally:
        disk.close()
    told = json.loads((lab.folder / "lives.json").read_text())
    print(*told["log"], sep="\n")
    wrong: list[str] = []
    for number, lane in enumerate(told["lanes"]):
        for _, lives in itertools.groupby(lane["lives"], key=lambda life: life["run"]):
            _check_run(driver, runs / f"lane{number}", list(lives), lane["ill"], wrong)
    every = [life for lane in told["lanes"] for life in lane["lives"]]
    most = {key: round(max(life.get(key, 0.0) for life in every), 2) for key in MOST}
    print(f"{len(told['log'])} events, {len(every)} lives, {sum(life['done'] for life in every)} steps; at most {most}")
    assert not wrong, "\n".join(wrong)


def _check_run(driver: FakeDriver, folder: Path, lives: list[dict[str, Any]], ill: list[Any], wrong: list[str]) -> None:
    """Compare the lives of one run with what its folder says."""
    path = rank_path(folder / lives[0]["run"], 0)
    parts: list[Booked] = []
    last_s = 0.0
    for record in read_journal(path) if path.exists() else ():
        if record["kind"] == "open":
            parts.append(Booked(record["t"], []))
        elif record["kind"] == "entry":
            if record["t0"] < last_s - 1e-3 or record["t1"] < record["t0"]:
                wrong.append(
                    f"{path}: {record['t0']:.3f} to {record['t1']:.3f} s is booked twice, up to {last_s:.3f} s"
                )
            last_s = record["t1"]
            parts[-1].entries.append(record)
        elif record["kind"] == "close":
            parts[-1].close = record
    if not parts:
        if any(life["done"] * STEP_S > LOST_S for life in lives):
            wrong.append(f"{path} holds nothing of {lives}")
        return
    totals = read_run(path.parent).totals
    booked_j = sum(device["j"] for part in parts for entry in part.entries for device in entry["devices"].values())
    if totals.energy_j != pytest.approx(booked_j) or totals.tokens > TOKENS * sum(life["begun"] for life in lives):
        wrong.append(f"{path}: {totals.energy_j:.1f} J of {booked_j:.1f} J and {totals.tokens} tokens are summed up")
    offset_s = time.time() - time.monotonic()
    for life in lives:
        own = [part for part in parts if life["born_s"] <= part.t0_s - offset_s < life["ended_s"]]
        problems = [*_harm(life), *_untrue(driver, life, own[0] if own else None, ill, offset_s)]
        name = f"lane {life['lane']} {life['run']} {life['program']}, ended with {life['status']}, {life['events']}"
        wrong += [f"{name}: {problem}" for problem in problems]


def _harm(life: dict[str, Any]) -> list[str]:
    """Return what a life had to suffer."""
    found = []
    sent = [kind for _, kind, _ in life["events"]]
    if life["error"] or life["status"] == 9:
        found.append(f"an exception reached the training: {life['error']}")
    if life["stuck"]:
        found.append(f"it hung {life['stuck']}")
    allowed = {0} | {-signal.SIGKILL for _ in range("SIGKILL" in sent)}
    if life["program"] in FATAL:
        allowed |= {-signal.SIGTERM for _ in range("SIGTERM" in sent)} | {130 for _ in range("SIGINT" in sent)}
    if life["program"] in ("catches", "raises"):
        allowed |= {130}
    if life["status"] not in allowed:
        found.append(f"it ended with {life['status']}")
    longest_s = HELD_UP_S + life["stopped_s"]
    if life["longest_s"] > longest_s:
        found.append(f"{life['slowest']} held it up for {life['longest_s']:.1f} s")
    if life["close_s"] > CLOSE_S + life["stopped_s"]:
        found.append(f"its end took {life['close_s']:.1f} s")
    if life["late_s"] > longest_s:
        found.append(f"its own handler ran {life['late_s']:.1f} s late")
    return found


def _untrue(
    driver: FakeDriver, life: dict[str, Any], part: Booked | None, ill: list[Any], offset_s: float
) -> list[str]:
    """Return what is wrong in the books of a life."""
    if not life["started_s"]:
        return []
    sent = [kind for _, kind, _ in life["events"]]
    stops = (
        sum(kind in ("SIGTERM", "SIGINT") for kind in sent)
        if life["program"] in FATAL
        else life["program"] == "catches" and sent.count("SIGINT")
    )
    full_s = sum(
        max(0.0, min(end_s + UNWELL_S, life["ended_s"]) - max(start_s, life["started_s"]))
        for mode, start_s, end_s in ill
        if mode in ("full", "read-only", "stalled") and end_s + UNWELL_S + LOST_S >= life["ended_s"]
    )
    entries = part.entries if part else []
    until_s = entries[-1]["t1"] - offset_s if entries else life["started_s"]
    found = []
    steps, tokens = (sum(entry[key] for entry in entries) for key in ("steps", "tokens"))
    if tokens != steps * TOKENS or steps > life["begun"]:
        found.append(f"{steps} steps with {tokens} tokens are booked of {life['begun']}")
    clean = life["status"] != -signal.SIGKILL and stops <= 1 and full_s == 0 and not life["stuck"]
    if clean:
        if part is None or part.close is None:
            found.append("its books are not closed")
        if steps < life["done"] - life["caught"]:
            found.append(f"{steps} steps are booked of {life['done']}")
        if until_s < life["last_s"]:
            found.append(f"it trained until {life['last_s'] - until_s:.2f} s after its last booking")
    else:
        lost_s = life["last_s"] - until_s if life["last_s"] else 0.0
        lost_steps = life["done"] - life["caught"] - steps
        if max(lost_s, lost_steps * STEP_S) > LOST_S + full_s:
            found.append(f"the last {lost_s:.1f} s and {lost_steps} steps are lost (disk full {full_s:.1f} s)")
        life["lost_s"] = max(lost_s, lost_steps * STEP_S) - full_s
    if entries:
        lane, (uid,) = life["lane"], {uid for entry in entries for uid in entry["devices"]}
        devices = [entry["devices"][uid] for entry in entries]
        power_w, missing_s = 100.0 + 50.0 * lane, sum(device["missing_s"] for device in devices)
        truth_j = driver.true_energy_j(lane, entries[0]["t0"] - offset_s, until_s) - power_w * missing_s
        booked_j = sum(device["j"] for device in devices)
        if booked_j != pytest.approx(truth_j, rel=0.01, abs=2 * TICK_S * power_w) or missing_s > LOST_S:
            found.append(f"{booked_j:.1f} J are booked of {truth_j:.1f} J; {missing_s:.2f} s are missing")
        if any(device["j"] < 0 for device in devices):
            found.append("negative joules are booked")
    return found


def _offset_s() -> float:
    import time

    return time.time() - time.monotonic()
