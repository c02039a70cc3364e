"""A node's power from an imitation of a management controller, and of ipmitool."""

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx", reason="the extra 'prometheus' is not installed")

from greentrain.config.schema import PowerConfig
from greentrain.errors import ConfigError, MeterError
from greentrain.power import detect, node
from greentrain.power.detect import open_meters
from greentrain.power.node import PASSWORD, USER, NodeMeter, dcmi, redfish
from greentrain.testing.meter_contract import MeterContract
from greentrain.types import DeviceKind, PowerMeter, Provenance

ROOT = "/redfish/v1/Chassis"
SECRET = "s3cret:/@ pass"
READING = """
    Instantaneous power reading:                   220 Watts
    Minimum during sampling period:                 12 Watts
    Power reading state is:                   activated
"""


class Bmc:
    """A controller with a chassis that has metrics of its environment, an older one, and one that tells nothing."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.login: str | None = None
        self.pages: dict[str, Any] = {
            ROOT: {"Members": [{"@odata.id": f"{ROOT}/{name}"} for name in ("1", "old", "shelf")]},
            f"{ROOT}/1": {"EnvironmentMetrics": {"@odata.id": f"{ROOT}/1/EnvironmentMetrics"}},
            f"{ROOT}/1/EnvironmentMetrics": {"PowerWatts": {"DataSourceUri": "x", "Reading": 512.5}},
            f"{ROOT}/old": {"Power": {"@odata.id": f"{ROOT}/old/Power"}},
            f"{ROOT}/old/Power": {"PowerControl": [{"PowerConsumedWatts": 344}]},
            f"{ROOT}/shelf": {"Power": {"@odata.id": f"{ROOT}/shelf/Power"}},
            f"{ROOT}/shelf/Power": {"PowerControl": [{"PowerConsumedWatts": None}]},
        }
        bmc = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                bmc.asked.append(self.path)
                wanted = bmc.login and "Basic " + base64.b64encode(bmc.login.encode()).decode()
                found = bmc.pages.get(self.path)
                status = 401 if wanted and self.headers["Authorization"] != wanted else 200 if found else 404
                body = found if isinstance(found, bytes) else json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def bmc() -> Iterator[Bmc]:
    with closing(Bmc()) as found:
        yield found


@pytest.fixture
def tool(tmp_path: Path) -> Callable[..., tuple[str, ...]]:
    def make(text: str = READING, *, code: int = 0, error: str = "") -> tuple[str, ...]:
        script, said = tmp_path / "ipmitool", tmp_path / "said"
        said.write_text(text)
        script.write_text(
            f"#!/bin/sh\n[ \"$*\" = 'dcmi power reading' ] || exit 9\ncat {said}\necho '{error}' >&2\nexit {code}\n"
        )
        script.chmod(0o755)
        return (str(script), "dcmi", "power", "reading")

    return make


class TestRedfish(MeterContract):
    @pytest.fixture
    def meter(self, bmc: Bmc) -> Iterator[PowerMeter]:
        self.bmc = bmc
        with closing(NodeMeter("redfish", redfish(bmc.url, "1"), host="n", reference=False, period_s=0.02)) as meter:
            yield meter

    def vanish(self) -> None:
        self.bmc.pages = {}
        time.sleep(0.2)


class TestDcmi(MeterContract):
    reads = 3

    @pytest.fixture
    def meter(self, tool: Callable[..., tuple[str, ...]]) -> Iterator[PowerMeter]:
        with closing(NodeMeter("ipmi", dcmi(tool()), host="n", reference=False, period_s=0.05)) as meter:
            yield meter


def test_both_resources_of_a_chassis_tell_its_power(bmc: Bmc) -> None:
    assert redfish(bmc.url, "1")() == 512.5 and redfish(bmc.url, "old")() == 344.0
    del bmc.pages[f"{ROOT}/old/Power"]
    assert redfish(bmc.url)() == 512.5, "the only one that tells its power"


@pytest.mark.parametrize("chassis", [None, "shelf", "2"])
def test_which_chassis_has_to_be_clear(bmc: Bmc, chassis: str | None) -> None:
    with pytest.raises(MeterError, match=r"set power\.redfish_chassis to one of \['1', 'old'\]"):
        redfish(bmc.url, chassis)


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (b"<html>", "is no JSON"),
        (b"[" * 9999, "is no JSON"),
        ({"Members": 3}, "is not as Redfish has it"),
        (None, "HTTP 404"),
    ],
)
def test_what_is_no_controller_is_said(bmc: Bmc, page: Any, why: str) -> None:
    bmc.pages = {ROOT: page}
    with pytest.raises(MeterError, match=why):
        redfish(bmc.url)


def test_the_login_is_sent_and_stands_in_no_text(bmc: Bmc, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    bmc.login = f"root:{SECRET}"
    with pytest.raises(MeterError, match=f"set {USER} and {PASSWORD}") as refused:
        redfish(bmc.url, "1", environ={USER: "root", PASSWORD: "wrong"})
    assert redfish(bmc.url, "1", environ={USER: "root", PASSWORD: SECRET})() == 512.5
    assert "s3cret" not in caplog.text and "wrong" not in f"{refused.value} {caplog.text}"
    with pytest.raises(ConfigError, match="would show"):
        PowerConfig(meters=("redfish",), redfish_url="https://root:pass@bmc")


def test_ipmitool_is_read_or_its_words_are_told(tool: Callable[..., tuple[str, ...]]) -> None:
    assert dcmi(tool())() == 220.0
    for text, error, why in (
        ("", "Could not open device at /dev/ipmi0", "Could not open device at /dev/ipmi0; it takes root"),
        ("Power reading state is: deactivated", "", "prints no instantaneous power reading"),
    ):
        with pytest.raises(MeterError, match=why):
            dcmi(tool(text, error=error, code=int(bool(error))))()
    with pytest.raises(MeterError, match="apt install ipmitool"):
        dcmi(("/nowhere/ipmitool",))()


def test_a_command_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "TIMEOUT_S", 0.1)
    script = tmp_path / "ipmitool"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o755)
    with pytest.raises(MeterError, match="has not answered"):
        dcmi((str(script),))()


def test_beside_components_it_is_a_reference_and_alone_the_node(bmc: Bmc) -> None:
    config: dict[str, Any] = {"redfish_url": bmc.url, "redfish_chassis": "1"}
    for meters, reference in ((("redfish", "cpu_model"), True), (("redfish",), False)):
        with closing(open_meters(PowerConfig(meters=meters, **config))) as meter:
            sensors = {sensor.device.kind: sensor for sensor in meter.sensors}
            assert sensors[DeviceKind.NODE].reference is reference and len(sensors) == (3 if reference else 1)
            assert sensors[DeviceKind.NODE].provenance is Provenance.MEASURED
    with pytest.raises(ConfigError, match="name one"):
        PowerConfig(meters=("redfish", "ipmi"), **config)
    with pytest.raises(ConfigError, match="redfish_url must be set"):
        PowerConfig(meters=("redfish",))
    found = [f for f in detect.survey(PowerConfig(**config)) if f.meter == "redfish"]
    assert [(f.usable, f.detail.split(".")[0]) for f in found] == [(True, "Redfish")]
