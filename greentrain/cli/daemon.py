"""``greentrain daemon``: limits, clocks and RAPL for jobs without root, from a list of who may do what."""

from pathlib import Path
from typing import Annotated

import typer

from greentrain.cli.terminal import ended_by_signal
from greentrain.errors import ConfigError


def daemon(
    config: Annotated[Path, typer.Option("--config", "-c", help="YAML with who may do what.")] = Path(
        "/etc/greentrain/daemon.yaml"
    ),
    socket: Annotated[Path, typer.Option(help="Unix socket to listen at.")] = Path("/run/greentrain.sock"),
    state: Annotated[Path, typer.Option(help="Folder of what was found, root's alone.")] = Path(
        "/run/greentrain-daemon"
    ),
) -> None:
    """Set limits and clocks and read RAPL for those whom a list names, until SIGINT or SIGTERM; started by root."""
    import sys

    if sys.platform != "linux":
        raise ConfigError("greentrain daemon needs Linux, whose kernel says who is at the other end of a socket")
    from greentrain.control.actuators.daemon import Daemon, load_daemon_config

    settings = load_daemon_config(config)
    with ended_by_signal() as ended:
        served = Daemon(settings, socket_path=str(socket), state=str(state), say=lambda line: print(line, flush=True))
        try:
            typer.echo(f"greentrain daemon listens at {socket}")
            ended.wait()
        finally:
            served.close()
