"""Search of the batch size whose training to a target metric takes the least joules, grams or money.

Trials are trainings of a function or of a command (:class:`CommandTraining`), whose energy is read from the run folder
that it writes. Each is stopped at its target, or when it is hopeless. The trials are lines of a file, each on the disk
before the next begins: a search that was killed goes on, and a job that recurs takes it up. Which power limit suits a
batch size is what the training's own profile finds (``session.profile_gears``), once for each size; it is told.
"""

import contextlib
import fcntl
import json
import math
import os
import re
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from greentrain.errors import ConfigError, GreenTrainError, RunFolderError
from greentrain.ledger.reader import read_run
from greentrain.ledger.run_folder import ENV_RUN_ID
from greentrain.ledger.totals import Totals
from greentrain.policy.action_sources import table_of_run
from greentrain.policy.action_table import ActionObjective, choose
from greentrain.policy.batch_size import SETTLED, BatchSearch, BatchTrial
from greentrain.types import J_PER_KWH, S_PER_HOUR
from greentrain.utils.validation import bound, choice

TRIALS: Final = "trials.jsonl"
MOST_TRIALS: Final = 100
LOOK_S: Final = 2.0
"""Time between two looks at what a trial has cost (s)."""
GRACE_S: Final = 30.0
"""From SIGTERM to SIGKILL (s): a session closes its books in less."""


class TuneError(GreenTrainError):
    """A trial could not be run, or nobody knows what it cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPrice:
    """What a trial counts for."""

    objective: str = "energy"
    """``energy`` (J), ``carbon`` (g, embodied share included) or ``cost`` (money)."""
    per_kwh: float = 0.0
    """Price of a kWh of the facility."""
    per_hour: float = 0.0
    """Price of an hour of the whole job."""

    def __post_init__(self) -> None:
        choice("objective", self.objective, ("energy", "carbon", "cost"))
        bound("per_kwh", self.per_kwh, 0.0, 1e6)
        bound("per_hour", self.per_hour, 0.0, 1e6)
        if self.objective == "cost" and not self.per_kwh + self.per_hour:
            raise ConfigError("the objective cost needs a price: give per_kwh (--price-kwh) or per_hour (--price-hour)")

    @property
    def unit(self) -> str:
        """Unit of :meth:`of`."""
        return {"energy": "J", "carbon": "g", "cost": "of money"}[self.objective]

    def of(self, totals: Totals, wall_s: float) -> float:
        """Return what was spent.

        Args:
            totals: Books of the trial, of all ranks.
            wall_s: Time that the trial took (s).

        Raises:
            TuneError: Joules or grams are not known.
        """
        if totals.energy_j <= 0.0 and (self.objective != "cost" or self.per_kwh):
            raise TuneError(
                "nobody knows the joules of the trial: see with greentrain doctor what can be measured here"
            )
        if self.objective == "carbon" and totals.unpriced_j > 0.0:
            raise TuneError(
                "the grid's carbon intensity is not known: set carbon.region, or choose the objective energy"
            )
        if self.objective == "cost":
            kwh = (totals.facility_j or totals.energy_j) / J_PER_KWH
            return kwh * self.per_kwh + wall_s / S_PER_HOUR * self.per_hour
        return totals.energy_j if self.objective == "energy" else totals.emissions_g


@dataclass(slots=True, kw_only=True)
class RunningTrial:
    """One trial while it trains: is told the metric and the books, says when to stop."""

    number: int
    """From 1."""
    run_id: str
    """Id of the run folder that it is to write."""
    price: TrialPrice
    target: float
    lower: bool = False
    """Whether the metric is one that falls, as a loss."""
    most: float = math.inf
    """Cost at which it is hopeless."""
    metric: float | None = None
    cost: float | None = None
    """Spent so far; None: nothing was told yet."""
    reached: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    """What else the file of trials keeps."""
    began_s: float = field(default_factory=time.monotonic)

    def report(self, metric: float | None, totals: Totals) -> bool:
        """Take note of an evaluation and return whether to stop: the target is reached, or will never pay.

        Args:
            metric: Value of the metric; None: look at what was spent alone.
            totals: Books of the trial so far, such as ``session.totals``.
        """
        if self.reached:
            return True
        self.cost = self.price.of(totals, time.monotonic() - self.began_s)
        if metric is not None and math.isfinite(metric):
            self.metric = metric
            self.reached = metric <= self.target if self.lower else metric >= self.target
        return self.reached or self.cost >= self.most


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult:
    """What a search found."""

    best: int | None
    """Batch size; None: none reached the target."""
    cap: float | None
    """Power limit that its profile found best, as a share of the administrator's; None: none was profiled."""
    costs: Mapping[int, float]
    """Mean cost to the target by batch size, lost trials included."""
    unit: str
    loss: float
    """What the best is expected to cost above the cheapest, as a share; 1: the search is not at its end."""
    trials: Sequence[Mapping[str, Any]]

    def __str__(self) -> str:
        lines = [f"batch {batch}: {cost:.6g} {self.unit} to the target" for batch, cost in self.costs.items()]
        cap = "" if self.cap is None else f" with the power limit at {self.cap:.0%}"
        found = "No batch size reached the target" if self.best is None else f"Best: {self.best}{cap}"
        spent = sum(trial["cost"] for trial in self.trials)
        left = f"expected to be left to save: {self.loss:.1%}" if self.loss < 1.0 else "the search is not at its end"
        return "\n".join([*lines, f"{found}; {left}. {len(self.trials)} trials took {spent:.6g} {self.unit}"])


class TrialFile:
    """The trials of one search, on disk; one process at a time.

    Args:
        folder: Folder of the search; made where it is missing.
        settings: What must be the same for trials to be compared.

    Raises:
        RunFolderError: It cannot be written to, or another process searches in it.
        ConfigError: The folder holds the trials of another search.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = (folder / TRIALS).open("a+b")
        except OSError as error:
            raise RunFolderError(f"cannot write to {folder}: {error.strerror}; name another folder (--dir)") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise RunFolderError(f"another search runs in {folder}: wait for its end, or name another --dir") from error
        self._file.seek(0)
        text, same = self._file.read(), json.loads(json.dumps(settings))
        if text and not text.endswith(b"\n"):
            self._file.write(b"\n")  # a kill tore the line
        records = [record for line in text.splitlines() if (record := _record(line))]
        self.trials = [record for record in records if "batch" in record]
        held = next((record["settings"] for record in records if "settings" in record), None)
        if held is None:
            self.add({"settings": same})
        elif held != same:
            self.close()
            key = next(key for key in {**held, **same} if held.get(key) != same.get(key))
            raise ConfigError(
                f"{folder} holds a search whose {key} is {held.get(key)!r}, not {same.get(key)!r}: these costs"
                " cannot be compared, so name another folder (--dir)"
            )

    def add(self, record: Mapping[str, Any]) -> None:
        """Write a line, down to the disk."""
        self._file.write(json.dumps(record).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        if "batch" in record:
            self.trials.append(dict(record))

    def close(self) -> None:
        """Let another process search."""
        self._file.close()

    @property
    def known(self) -> list[BatchTrial]:
        """What the search needs of the trials."""
        return [BatchTrial(batch=t["batch"], cost=t["cost"], reached=t["reached"]) for t in self.trials]


def _record(line: bytes) -> dict[str, Any] | None:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        record = json.loads(line)
        if "settings" in record or (int(record["batch"]) > 0 < float(record["cost"]) and "reached" in record):
            return dict(record)
    return None


def tune_batch(
    train: Callable[[int, RunningTrial], object],
    batches: Iterable[int],
    target: float,
    *,
    default: int | None = None,
    lower: bool = False,
    price: TrialPrice | None = None,
    folder: Path | str = "greentrain-tune",
    trials: int | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    told: Callable[[str], object] = lambda line: None,
) -> TuneResult:
    """Find the batch size with the least cost to a target metric.

    Args:
        train: Trains with a batch size, tells the trial each evaluation by ``trial.report(metric, session.totals)``,
            and returns when that says so, or at its last epoch.
        batches: Batch sizes that may be tried.
        target: Metric at which a training is done.
        default: Batch size that is usual, tried first; the middle one if None.
        lower: Whether the metric falls while training, as a loss does.
        price: What counts; joules if None.
        folder: Where the trials are kept, so that the same call goes on with the same search.
        trials: Trials of this call, as 1 for a job that recurs; None: until nothing is left to find, 100 at most.
        seed: Seed of the draws.
        settings: What else must stay the same for costs to be compared, such as the command.
        told: Called with a line for people at the end of each trial.

    Raises:
        ConfigError: Batches, target or prices are wrong, the folder is of another search, or no size got to the target.
        TuneError: Nobody knows what a trial cost.
    """
    price, search = price or TrialPrice(), BatchSearch(batches, default, seed=seed)
    bound("target", target, -1e300, 1e300)
    same = {"target": target, "lower": lower, **asdict(price), **(settings or {})}
    with contextlib.closing(TrialFile(Path(folder), same)) as file:
        for _ in range(MOST_TRIALS if trials is None else trials):
            known = [trial for trial in file.known if trial.batch in search.batches]
            if trials is None and search.loss(known) <= SETTLED:
                break
            batch, number = search.next(known), len(file.trials) + 1
            run_id = f"tune-{number}-{uuid.uuid4().hex[:12]}"
            trial = RunningTrial(
                number=number, run_id=run_id, price=price, target=target, lower=lower, most=search.most(known)
            )
            train(batch, trial)
            if trial.cost is None:
                raise TuneError(f"trial {number} (batch {batch}) told nothing: call trial.report(metric, totals) in it")
            record = {"batch": batch, "cost": trial.cost, "reached": trial.reached, "metric": trial.metric}
            file.add({**record, **trial.facts, "run_id": run_id, "unix_s": time.time()})
            end = (
                "target reached" if trial.reached else "hopeless" if trial.cost >= trial.most else "target not reached"
            )
            told(f"trial {number}: batch {batch}, {trial.cost:.6g} {price.unit}, metric {trial.metric}, {end}")
        known = [trial for trial in file.known if trial.batch in search.batches]
        best = search.best(known)
        caps = [t["cap"] for t in file.trials if t["batch"] == best and t.get("cap") is not None]
        return TuneResult(
            best=best,
            cap=caps[-1] if caps else None,
            costs=search.means(known),
            unit=price.unit,
            loss=search.loss(known),
            trials=tuple(file.trials),
        )


class CommandTraining:
    """Trains by a command, whose output names the metric and whose run folder tells what it cost.

    ``{batch}`` in a word of the command is the batch size. The metric is any ``NAME=0.9``, ``NAME: 0.9`` or
    ``'NAME': 0.9`` of the output, as Trainers log it. The session of the training writes to the run folder that
    GREENTRAIN_RUN_ID names; a program without one is wrapped: ``greentrain measure -- python train.py``.

    Args:
        command: Program and its words.
        metric: Name of the metric.
        runs: Folder of the run folders: ``run.dir`` of the training's configuration.
        told: Called with each line of the output.
    """

    def __init__(
        self, command: Sequence[str], metric: str, *, runs: Path, told: Callable[[str], object] = lambda line: None
    ) -> None:
        if not any("{batch}" in word for word in command):
            raise ConfigError("the command has no {batch}, so all trials would be alike: write --batch-size {batch}")
        number = r"[\"']?\s*[:=]\s*[\"']?([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?![\w.])"
        self._pattern = re.compile(rf"(?<![\w.]){re.escape(metric)}{number}")
        self._command, self._runs, self._told = tuple(command), runs, told

    def __call__(self, batch: int, trial: RunningTrial) -> None:
        """Run one trial to its end; its whole process group ends with it."""
        folder, words = self._runs / trial.run_id, [word.replace("{batch}", str(batch)) for word in self._command]
        try:
            child = subprocess.Popen(
                words,
                env={**os.environ, ENV_RUN_ID: trial.run_id},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(f"cannot start {words[0]!r}: {error.strerror}") from error
        values: list[float | None] = []
        reader = threading.Thread(target=self._read, args=(child.stdout, values), name="greentrain-tune", daemon=True)
        reader.start()
        looked, stopped = 0, False
        try:
            while child.poll() is None and not stopped:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(LOOK_S)
                if (totals := _totals(folder)) is not None and totals.energy_j > 0.0:  # else nothing is booked yet
                    looked, new = len(values), values[looked:]
                    stopped = any([trial.report(value, totals) for value in new or [None]])
        finally:
            _end(child)
            reader.join(GRACE_S)
        if (totals := _totals(folder)) is None:
            raise TuneError(
                f"trial {trial.number} left no run folder {folder}, exit code {child.returncode}: open a GreenSession"
                " in the training (name its run.dir with --runs, leave run.id out), or wrap it: greentrain measure --"
            )
        for value in values[looked:] or [None]:
            trial.report(value, totals)
        trial.cost = trial.price.of(totals, time.monotonic() - trial.began_s)  # the books are closed now
        if trial.metric is None and not stopped:
            raise TuneError(
                f"trial {trial.number} ended with code {child.returncode} and never named the metric: print NAME=VALUE,"
                " or name it as it is logged (--metric)"
            )
        trial.facts |= {"energy_j": totals.energy_j, "duration_s": totals.duration_s, "cap": _cap(folder)}

    def _read(self, pipe: IO[str], values: list[float | None]) -> None:
        with pipe:
            for line in pipe:
                values.extend(map(float, self._pattern.findall(line)))
                self._told(line)


def _totals(folder: Path) -> Totals | None:
    try:
        return read_run(folder, most=1).totals
    except RunFolderError:
        return None


def _cap(folder: Path) -> float | None:
    """Return the power limit with which a run's profile found a step to take the least joules; None: it has none."""
    with contextlib.suppress(ConfigError, RunFolderError):
        table = table_of_run(read_run(folder, most=1).run, str(folder))
        if table is not None and len({cost.action.cap for cost in table.costs}) > 1:
            return choose(table, ActionObjective()).action.cap
    return None


def _end(child: "subprocess.Popen[str]") -> None:
    """End a trial and what it started; a session closes its books meanwhile."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
