"""A connection that does not wait for ever: neither for a request to arrive, nor for an answer to be taken."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from greentrain.rlhf.serve.limits import Limits

GRACE_S = 1.0
"""More than the guard has to answer 408."""


def protocol(limits: Limits) -> type[H11Protocol]:
    """Return the class of connections with these limits."""

    class Connection(H11Protocol):
        """uvicorn's, with two clocks. uvicorn itself has one for idle connections only."""

        receiving: asyncio.TimerHandle | None = None
        sending: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            transport.set_write_buffer_limits(high=0)
            self._start_receiving()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._look()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._look()

        def pause_writing(self) -> None:
            super().pause_writing()
            self.sending = self.sending or self.loop.call_later(limits.send_s, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self.sending is not None:
                self.sending.cancel()
                self.sending = None

        def connection_lost(self, exc: Exception | None) -> None:
            for clock in (self.receiving, self.sending):
                if clock is not None:
                    clock.cancel()
            super().connection_lost(exc)

        def _look(self) -> None:
            """Start or stop the clock of the request that arrives."""
            state = self.conn.their_state
            begun = state is h11.SEND_BODY or (state is h11.IDLE and bool(self.conn.trailing_data[0]))
            if begun:
                self._start_receiving()
            elif self.receiving is not None:
                self.receiving.cancel()
                self.receiving = None

        def _start_receiving(self) -> None:
            self.receiving = self.receiving or self.loop.call_later(limits.receive_s + GRACE_S, self.transport.abort)

    return Connection
