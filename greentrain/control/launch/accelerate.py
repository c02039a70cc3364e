"""What ``accelerate launch`` would have started: its options and its variables, for greentrain's own agent.

Accelerate turns its options and its configuration file into variables for the script and arguments for torchrun. It is
asked to do exactly that, and stopped where it would have started processes.
"""

import os
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What it would have started."""

    args: Namespace
    """Of torchrun, with its ``training_script``, ``training_script_args`` and ``module``."""
    environ: dict[str, str]
    """Variables for the script that differ from those of this process."""


def would_start(words: Sequence[str]) -> Started:
    """Return what ``accelerate launch`` would have started.

    Args:
        words: Its options, the script and the script's arguments.

    Raises:
        ValueError: It refuses its options, or would start something that is no local training.
        SystemExit: Its parser refuses its options, and has said why.
    """
    import torch.distributed.run as torchrun
    from accelerate.commands import launch
    from accelerate.utils.launch import prepare_simple_launcher_cmd_env

    taken: list[Started] = []

    def take(args: Namespace) -> None:
        taken.append(Started(args=args, environ=_difference(dict(os.environ))))

    before = dict(os.environ)

    def _difference(environ: dict[str, str]) -> dict[str, str]:
        return {name: value for name, value in environ.items() if before.get(name) != value}

    def take_alone(args: Namespace) -> None:
        """Take one process, which it starts without torchrun."""
        _, environ = prepare_simple_launcher_cmd_env(args)
        own = torchrun.parse_args([args.training_script])  # type: ignore[no-untyped-call]
        own.training_script_args, own.module = args.training_script_args, args.module
        taken.append(Started(args=own, environ=_difference(environ)))

    places: tuple[tuple[Any, str, Any], ...] = ((torchrun, "run", take), (launch, "simple_launcher", take_alone))
    originals = [getattr(where, name) for where, name, _ in places]
    try:
        for where, name, ours in places:
            setattr(where, name, ours)
        launch.launch_command(launch.launch_command_parser().parse_args(list(words)))
    finally:
        for (where, name, _), original in zip(places, originals, strict=True):
            setattr(where, name, original)
    if not taken:
        raise ValueError("accelerate would start no processes on this machine: use --engine command")
    return taken[0]
