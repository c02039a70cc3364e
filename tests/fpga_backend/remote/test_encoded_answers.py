"""Something between client and server that says what it sends is packed."""

import pytest

from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.fpga_backend.remote import server as serving
from greentrain.fpga_backend.remote.client import RemoteDevice, RemoteTimeouts
from greentrain.testing.offload_models import encoder, sequences
from greentrain.utils import http_server


def test_an_encoding_that_nobody_asked_for_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended the thread that asks for the joules, and close() raised."""
    patience = RemoteTimeouts(silence_s=1.0, lost_s=0.5, poll_s=0.05)
    inner, artifact = Emulator(), encoder(layers=1)
    with serving.serve(inner) as server:
        device = RemoteDevice(server.url, token=server.token, patience=patience)
        try:
            handle = device.load(artifact)
            send = http_server._RequestHandler.send_header

            def lying(handler: http_server._RequestHandler, name: str, value: str) -> None:
                send(handler, name, value)
                if name == "Content-Type":
                    send(handler, "Content-Encoding", "gzip")

            monkeypatch.setattr(http_server._RequestHandler, "send_header", lying)
            assert device.submit(handle, sequences(artifact)).result(10).scores is not None
        finally:
            device.close()
    inner.close()
