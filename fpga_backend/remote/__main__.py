"""Lends a device of this machine, until it is interrupted.

python -m greentrain.fpga_backend.remote emulator --port 8765 --token-file ~/offload-token
python -m greentrain.fpga_backend.remote torch --option device=cuda --option dtype=bf16
"""

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from greentrain.errors import GreenTrainError
from greentrain.fpga_backend.discovery import devices
from greentrain.fpga_backend.remote.server import serve
from greentrain.utils.http_access import token_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGINT or SIGTERM.

    Returns:
        0, or 1 where the device cannot be opened, or 2 where it is not known.
    """
    asked = _parser().parse_args(arguments)
    known = devices()
    if asked.device not in known:
        print(f"there is no device {asked.device!r}; installed: {', '.join(known)}", file=sys.stderr)
        return 2
    try:
        device = known[asked.device](**dict(asked.option))
    except (GreenTrainError, TypeError, ValueError) as error:
        print(f"{asked.device}: {error}", file=sys.stderr)
        return 1
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    try:
        token = None if asked.token_file is None else token_of(asked.token_file)
        with serve(device, host=asked.host, port=asked.port, token=token) as server:
            shown = "" if asked.token_file else f", token {server.token}"
            print(f"{device.probe().name} at {server.url}{shown}", flush=True)
            ended.wait()
    except (OSError, OverflowError, ValueError) as error:
        print(f"{asked.host}:{asked.port}: {error}", file=sys.stderr)
        return 1
    finally:
        device.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m greentrain.fpga_backend.remote", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("device", help="name of an installed device")
    parser.add_argument(
        "--option", type=_option, action="append", default=[], metavar="NAME=VALUE", help="of its constructor"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at; by default this machine alone")
    parser.add_argument("--port", type=int, default=0, help="TCP port; 0: any that is free")
    parser.add_argument("--token-file", type=Path, help="holds the token; made, for you alone to read, where missing")
    return parser


def _option(text: str) -> tuple[str, str | int]:
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=VALUE")
    return name, int(value) if value.isdigit() else value


if __name__ == "__main__":
    sys.exit(main())
