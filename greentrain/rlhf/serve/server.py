"""The server in a thread of this process."""

from collections.abc import Mapping

from greentrain.errors import ConfigError
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.kinds import PassKind
from greentrain.rlhf.serve.limits import ServeLimits
from greentrain.rlhf.text import TextEncoder
from greentrain.utils.http_server import AsgiHost, HostLimits, listen_checked, url_of
from greentrain.utils.imports import try_import

with try_import("serve") as _imports:
    import uvicorn  # noqa: F401

    from greentrain.rlhf.serve.app import application
    from greentrain.rlhf.serve.coalescer import TooLong


class Server:
    """Answers until it is closed. A context manager; the engine and its devices are the caller's to close.

    Args:
        engine: Runs the passes; its reward and reference are served.
        text: Encoder of texts for each pass; without it only token ids are taken.
        host: Address to listen at.
        port: TCP port; 0: any that is free.
        token: Token that clients must have. None: everybody on this machine, and only there, may ask.
        limits: Bounds of what clients may ask for.
        too_long: ``refuse`` texts of more tokens than the model takes, or ``truncate`` them.

    Raises:
        ConfigError: Another address than this machine's without a token; a token that is too short; neither reward nor
            reference in the engine.
        MissingExtraError: FastAPI, uvicorn or prometheus_client is not installed.
        OSError: The address cannot be listened at.
    """

    def __init__(
        self,
        engine: OffloadEngine,
        text: Mapping[PassKind, TextEncoder] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        limits: ServeLimits | None = None,
        too_long: "TooLong" = "refuse",
    ) -> None:
        _imports.check()
        self.limits = limits or ServeLimits()
        if not {PassKind.REWARD, PassKind.REFERENCE} & engine.passes.keys():
            raise ConfigError("the engine has neither a reward nor a reference pass: there is nothing to serve")
        listener = listen_checked(host, port, has_token=token is not None)
        try:
            self.application = application(engine, text or {}, token=token, limits=self.limits, too_long=too_long)
        except BaseException:
            listener.close()
            raise
        self.url = url_of(listener)
        """Where it is, without a slash at its end."""
        self._host = AsgiHost(
            self.application.guarded,
            listener,
            name="greentrain-serve",
            limits=HostLimits(
                connections=self.limits.connections, receive_s=self.limits.receive_s, send_s=self.limits.send_s
            ),
            lifespan=True,
            grace_s=self.limits.drain_s + 2.0,
        )

    @property
    def is_alive(self) -> bool:
        """True until it is closed."""
        return self._host.is_alive

    def close(self) -> None:
        """Take no more requests, let those that run finish within ``drain_s``, and end. Idempotent."""
        self._host.close(self.application.give_up, self.limits.drain_s)
        self.application.close()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_installed() -> None:
    """Raise if a server cannot be made.

    Raises:
        MissingExtraError: FastAPI, uvicorn or prometheus_client is not installed.
    """
    _imports.check()
