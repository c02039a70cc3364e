"""``greentrain launch``: start a training, bring it back later, wider or after a crash, leave no process behind.

The exit code is that of the training, 128 + n where signal n ended it; 2 is wrong input, 127 a command that cannot be
started, 75 a training that is to be started again by somebody else.
"""

import contextlib
import hashlib
import json
import os
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from greentrain.cli import completion as complete
from greentrain.cli.terminal import say, words_after
from greentrain.control.launcher_protocol import LauncherFiles
from greentrain.errors import ConfigError
from greentrain.types import iso
from greentrain.utils import redact

if TYPE_CHECKING:
    from greentrain.config.schema import GreenConfig
    from greentrain.control.launch.commands import Command
    from greentrain.control.launch.outcome import JobState, RetryRules
    from greentrain.control.launch.runners import AttemptRunner, SignalQueue
    from greentrain.control.launch.supervisor import Waiting

FOLDER: Final = "greentrain-launch"
"""Folder of the jobs in the working directory, where --dir names none."""


def launch(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="green.yaml with actuators.width, policy and carbon.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Folder of the job: the same one goes on with the same job.")
    ] = None,
    width: Annotated[
        str | None, typer.Option(help="Ranks, as in 4 or 1:4 (min:max); actuators.width if not named.")
    ] = None,
    checkpoints: Annotated[
        Path | None, typer.Option(help="Folder that the training saves to; its newest whole one is handed back.")
    ] = None,
    retries: Annotated[int, typer.Option(help="Crashes in a row without progress that are tried again.")] = 3,
    back_off: Annotated[float, typer.Option(help="Wait after the first crash (s), doubled with each one.")] = 10.0,
    grace: Annotated[float, typer.Option(help="From SIGTERM or SIGINT to SIGKILL (s).")] = 20.0,
    start: Annotated[
        str, complete.option("now, or green: when the plan would train first.", complete.one_of("now", "green"))
    ] = "now",
    actions: Annotated[
        str | None,
        complete.option("Table of actions for the plan, as of greentrain plan.", complete.actions, "--actions"),
    ] = None,
    engine: Annotated[
        str,
        complete.option(
            "elastic: workers stay warm; spawn: they do not; command: as typed; auto: what fits.",
            complete.one_of("auto", "elastic", "spawn", "command"),
        ),
    ] = "auto",
    preload: Annotated[
        str, typer.Option(help="Modules that warm workers share, beside the script's own frameworks, as in a,b.")
    ] = "",
    kubernetes: Annotated[
        str | None, typer.Option(help="namespace/name of a Job that is to follow the plan; without a command.")
    ] = None,
    status: Annotated[Path | None, typer.Option(help="Show the job in this folder and end.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --status: print it as JSON alone.")] = False,
) -> None:
    """Supervise a training, as in: greentrain launch --width 1:2 -- torchrun train.py."""
    words = words_after(context)
    if status is not None:
        _show(status, as_json=as_json)
        return
    if as_json:
        raise typer.BadParameter("--json is for --status: a training's output is its own")
    from greentrain.config.schema import GreenConfig

    if kubernetes is not None:  # a Job that its own manifest starts follows the plan
        from greentrain.control.launch.kubernetes import run_kubernetes

        if words:
            raise ConfigError(
                f"--kubernetes {kubernetes} takes no command, but {words[0]!r} was given: the Job has its own"
            )
        sys.exit(run_kubernetes(GreenConfig.load(config), kubernetes, folder=folder, actions=actions, tell=_tell))
    if sys.platform == "win32":
        raise ConfigError("it needs the signals and locks of POSIX: start the training itself on Windows")
    from greentrain.control.launch import timeline
    from greentrain.control.launch.commands import check_width, understand
    from greentrain.control.launch.outcome import JobFolder, RetryRules
    from greentrain.control.launch.supervisor import Supervisor
    from greentrain.utils.validation import bound, choice

    choice("--start", start, ("now", "green"))
    choice("--engine", engine, ("auto", "elastic", "spawn", "command"))
    bound("--retries", retries, 0, 1000)
    bound("--back-off", back_off, 0.0, 3600.0)
    bound("--grace", grace, 0.0, 3600.0)
    settings = GreenConfig.load(config)
    command = understand(words)
    low, high = _width(width, settings, command)
    check_width(command, low, high)
    if checkpoints is not None and checkpoints.exists() and not checkpoints.is_dir():
        raise ConfigError(f"--checkpoints {checkpoints} is a file: name the folder that the training saves to")
    rules = RetryRules(
        min_ranks=low,
        max_ranks=high,
        retries=retries,
        back_off_s=back_off,
        checkpoint_folder=None if checkpoints is None else str(checkpoints.absolute()),
    )
    runs = _engine(engine, preload, command, rules)
    with contextlib.ExitStack() as stack:
        held = stack.enter_context(contextlib.closing(JobFolder(folder or _folder_of(words))))
        supervisor = Supervisor(
            command,
            held,
            runs,
            rules,
            grace_s=grace,
            green_start=start == "green",
            waiting=partial(_waiting, settings),
            tell=_tell,
        )
        if settings.policy.plans or start == "green":
            from greentrain.control.launch.start_window import REMEDY, GreenWindow

            window = GreenWindow(
                settings,
                actions=actions,
                ranks=(low, high),
                job_unix_s=supervisor.state.created_unix_s,
                tell=_tell,
            )
            stack.callback(window.close)
            if start == "green" and not window.knows and supervisor.state.attempt == 0:
                raise ConfigError(f"--start green needs to know what the job's steps bring and cost: {REMEDY}")
            supervisor.opens = window.opens
        _introduce(supervisor.state, [*command.words], held.path)
        code = supervisor.run()
        table = timeline.table(timeline.read(held.path))
    if table:
        say(table)
    sys.exit(code)


def _engine(name: str, preload: str, command: "Command", rules: "RetryRules") -> "AttemptRunner":
    from greentrain.control.launch.runners import CommandRunner, ElasticRunner

    listen = not sys.stderr.isatty()
    needed = command.kind == "python" and rules.max_ranks > 1
    if name == "command" and needed:
        raise ConfigError(
            f"--engine command starts the command as it was typed, but python alone cannot run {rules.max_ranks} ranks:"
            " write torchrun in its place, or --engine elastic"
        )
    if name in ("elastic", "spawn") and not command.can_be_elastic:
        raise ConfigError(
            f"--engine {name} runs a script under python or torchrun on one node, not {command.words[0]!r}:"
            " use --engine auto"
        )
    if name in ("elastic", "spawn") or (name == "auto" and command.can_be_elastic and rules.max_ranks > 1):
        words = [word.strip() for word in preload.split(",") if word.strip()]
        return ElasticRunner(command, preload=words, warm=name != "spawn", listen=listen)
    return CommandRunner(command, listen=listen)


def _waiting(
    settings: "GreenConfig", inbox: "SignalQueue", handover: LauncherFiles, ranks: int
) -> "tuple[Waiting, int | None]":
    """Return where the job is between two attempts: with the batch system, or here."""
    from greentrain.control.launch.slurm import MIN_AWAY_S, open_slurm
    from greentrain.control.launch.supervisor import LocalWaiting

    local = LocalWaiting(inbox.sleep_until)
    min_away_s = min(MIN_AWAY_S, settings.actuators.min_away_s / settings.carbon.speed)
    slurm = open_slurm(os.environ, handover, local, ranks=ranks, min_away_s=min_away_s)
    return (local, None) if slurm is None else (slurm, slurm.ranks)


def _width(width: str | None, settings: "GreenConfig", command: "Command") -> tuple[int, int]:
    """Return the smallest and the largest width: of the option, of the configuration, or of the command."""
    if width is not None:
        low, colon, high = width.partition(":")
        try:
            return int(low), int(high if colon else low)
        except ValueError:
            raise ConfigError(f"--width is {width!r}; it must be a number, or min:max, such as 1:4") from None
    if settings.actuators.width is not None:
        return settings.actuators.width.min, settings.actuators.width.max
    ranks = command.ranks or 1
    return ranks, ranks


def _folder_of(words: list[str]) -> Path:
    """Return the folder of a command: another one for another command."""
    name = next((Path(word).stem for word in words if word.endswith(".py")), Path(words[0]).name)
    digest = hashlib.sha256("\0".join([os.getcwd(), *words]).encode()).hexdigest()[:8]
    return Path(FOLDER) / f"{name}-{digest}"


def _introduce(state: "JobState", words: list[str], folder: Path) -> None:
    """Say where the job is kept, and whether it is another one than before."""
    if state.attempt == 0:
        _tell(f"this job is kept in {folder}: --status {folder} shows it")
    elif state.phase != "done" and list(state.command) != words:
        _tell(f"{folder} holds the job of {' '.join(redact.arguments(state.command))}: it goes on with this command")


def _show(folder: Path, *, as_json: bool) -> None:
    from greentrain.control.launch import timeline
    from greentrain.control.launch.outcome import is_held, read_state

    state = read_state(folder)
    held = is_held(folder)
    if as_json:
        typer.echo(json.dumps({**asdict(state), "held": held}, indent=1))
        return
    until = "" if state.not_before_unix_s is None else f" until {iso(state.not_before_unix_s)}"
    typer.echo(f"{state.phase}{until}, attempt {state.attempt}, {state.ranks} ranks, begun {iso(state.created_unix_s)}")
    if state.said:
        typer.echo(state.said)
    if not held and state.phase in ("running", "waiting"):
        typer.echo("nobody holds this job, as its launcher was killed: the same command, given again, goes on with it")
    table = timeline.table(timeline.read(folder))
    if table:
        typer.echo(table)


def _tell(text: str) -> None:
    say(f"greentrain launch: {text}")
