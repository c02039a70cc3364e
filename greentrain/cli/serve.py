"""``greentrain serve``: rewards and reference log-probabilities over HTTP, for OpenRLHF, verl, TRL and the like.

Exit codes: 0 ended by a signal, 1 something is not installed or failed, 2 wrong usage or input.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from greentrain.cli.terminal import ended_by_signal
from greentrain.errors import ConfigError, GreenTrainError


def serve(
    settings: Annotated[Path, typer.Argument(help="YAML with device, home, reward and reference.")],
    host: Annotated[str, typer.Option(help="Address to listen at; another than this machine's needs a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="TCP port; 0: any that is free.")] = 8700,
    token_file: Annotated[
        Path | None, typer.Option(help="Holds the token; made, for you alone to read, where it is missing.")
    ] = None,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Answer everybody on this machine, and nobody else.")
    ] = False,
    window_ms: Annotated[float, typer.Option(help="Wait of a batch for company while the device is idle.")] = 0.0,
    max_batch: Annotated[int, typer.Option(help="Sequences of a device batch; 1: no coalescing.")] = 64,
    max_batch_tokens: Annotated[int, typer.Option(help="Tokens of a device batch.")] = 65536,
    max_waiting: Annotated[int, typer.Option(help="Sequences that may wait; more are refused with 503.")] = 4096,
    max_sequences: Annotated[int, typer.Option(help="Sequences of a request.")] = 1024,
    max_body_mib: Annotated[float, typer.Option(help="Size of a request.")] = 8.0,
    timeout_s: Annotated[float, typer.Option(help="Time of a request, then 504.")] = 120.0,
    drain_s: Annotated[float, typer.Option(help="Time that running requests get at the end.")] = 10.0,
    too_long: Annotated[
        str, typer.Option(help="Texts of more tokens than the model takes: refuse, or truncate.")
    ] = "refuse",
) -> None:
    """Answer until SIGINT or SIGTERM, as in: greentrain serve offload.yaml --token-file token."""
    try:
        from greentrain.rlhf.offload import Offload
        from greentrain.rlhf.serve.limits import ServeLimits
        from greentrain.rlhf.serve.server import Server, check_installed
        from greentrain.rlhf.settings import OffloadSettings
        from greentrain.utils.http_access import token_of
        from greentrain.utils.http_server import listen_checked
        from greentrain.utils.validation import bound, choice

        check_installed()
        choice("--too-long", too_long, ("refuse", "truncate"))
        if no_token == (token_file is not None):
            raise ConfigError("give either --token-file FILE, which is made if it is missing, or --no-token")
        bound("--max-body-mib", max_body_mib, 0.001, 4096)
        body_bytes = int(max_body_mib * 2**20)
        limits = ServeLimits(
            window_s=window_ms / 1e3,
            batch_sequences=max_batch,
            batch_tokens=max_batch_tokens,
            waiting=max_waiting,
            request_sequences=max_sequences,
            body_bytes=body_bytes,
            held_bytes=8 * body_bytes,
            request_s=timeout_s,
            drain_s=drain_s,
        )
        found = OffloadSettings.load(settings)
        token = None if token_file is None else token_of(token_file)
        listen_checked(host, port, has_token=token is not None).close()  # before models are loaded for minutes
        with Offload(found) as offload, ended_by_signal() as ended:  # a signal before that ends the loading at once
            made: Any = {"host": host, "port": port, "token": token, "limits": limits, "too_long": too_long}
            with Server(offload.engine, offload.text, **made) as server:
                with_token = "" if token is None else f", token in {token_file}"
                typer.echo(f"{_summary(offload)} at {server.url}{with_token}")
                while not ended.wait(1.0):
                    if not server.is_alive:
                        raise GreenTrainError("the server ended by itself")
    except OSError as error:
        raise GreenTrainError(str(error.strerror or error)) from error


def _summary(offload: Any) -> str:
    """Return the passes and their devices, as ``reward on emulator, reference on emulator``."""
    return ", ".join(
        f"{kind} on {one.device.device.probe().name}"
        + ("" if one.home is None else f" (home: {one.home.device.probe().name})")
        for kind, one in offload.engine.passes.items()
    )
