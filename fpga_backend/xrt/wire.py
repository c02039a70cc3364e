"""Control messages between the training process and a card's worker: small JSON packets, descriptors beside them."""

import array
import json
import socket
from collections.abc import Sequence
from typing import Any

from greentrain.fpga_backend import errors

PACKET_BYTES = 65536
"""Longest message; whatever is larger goes through shared memory."""
TEXT_CHARS = 8000
"""Longest text of an error."""
MAX_FDS = 4

_KINDS: dict[str, type[errors.OffloadError]] = {
    kind.__name__: kind
    for kind in (errors.DeviceError, errors.DeviceLostError, errors.ArtifactError, errors.BatchError)
}


class Link:
    """One end of a pair of sockets that keep the borders of messages (``SOCK_SEQPACKET``)."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a message.

        Raises:
            OSError: The other side is gone.
        """
        data = json.dumps(message).encode()
        if fds:
            socket.send_fds(self.socket, [data], fds)
        else:
            self.socket.send(data)

    def receive(self) -> tuple[dict[str, Any], list[int]] | None:
        """Wait for a message and its descriptors; None: the other side is gone."""
        size = socket.CMSG_LEN(MAX_FDS * array.array("i").itemsize)
        try:
            data, ancillary, _, _ = self.socket.recvmsg(PACKET_BYTES, size, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return None
        if not data:
            return None
        fds = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
        message: dict[str, Any] = json.loads(data)
        return message, fds.tolist()

    def close(self) -> None:
        """Close this end."""
        self.socket.close()


def pair() -> tuple[Link, Link]:
    """Return two ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Link(ours), Link(theirs)


def from_error(error: BaseException) -> dict[str, Any]:
    """Return an error as a message."""
    known = type(error).__name__ if type(error).__name__ in _KINDS else "DeviceError"
    text = str(error) if isinstance(error, errors.OffloadError) else f"the worker failed with {error!r}"
    return {"error": known, "text": text[:TEXT_CHARS]}


def to_error(message: dict[str, Any]) -> errors.OffloadError | None:
    """Return the error that a message carries, or None."""
    if "error" not in message:
        return None
    return _KINDS.get(message["error"], errors.DeviceError)(message["text"])
