"""How much a client may ask for, and how long anybody waits."""

from dataclasses import dataclass
from typing import Annotated

from greentrain.utils.validation import Bound, bound, check_fields

Count = Annotated[int, Bound(1, 2**24)]
Patience = Annotated[float, Bound(0.01, 86400.0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeLimits:
    """Bounds of a server. Each raises ConfigError where it makes no sense.

    Raises:
        ConfigError: A value is out of its bounds.
    """

    window_s: Annotated[float, Bound(0.0, 10.0)] = 0.0
    """How long the first of a batch waits for company while the device is idle (s). While it is busy, all that comes
    makes up the next batch anyway."""
    batch_sequences: Count = 64
    """Sequences of a device batch; 1 does not coalesce."""
    batch_tokens: Count = 65536
    """Tokens of a device batch; a longer sequence goes alone."""
    in_flight: Count = 1
    """Batches given to the engine at a time."""
    waiting: Count = 4096
    """Sequences that may wait; more are refused with 503."""
    request_sequences: Count = 1024
    """Sequences of a request."""
    body_bytes: Annotated[int, Bound(1024, 2**32)] = 8 * 2**20
    """Of a request."""
    held_bytes: int = 64 * 2**20
    """Bodies of all requests together; more are refused with 503."""
    connections: Count = 1024
    """Open at a time; more are refused with 503."""
    receive_s: Patience = 30.0
    """Within which a request, headers and body, must have arrived (s)."""
    send_s: Patience = 30.0
    """Within which a client must take its answer (s)."""
    request_s: Patience = 120.0
    """Within which a request is answered, or 504 (s). OpenRLHF's client gives up after 180 s."""
    drain_s: Annotated[float, Bound(0.0, 86400.0)] = 10.0
    """That running requests get when the server is closed (s)."""

    def __post_init__(self) -> None:
        check_fields(self)
        bound("held_bytes", self.held_bytes, self.body_bytes, 2**40)


Limits = ServeLimits
"""The name until version 0.1; goes in version 0.3."""
