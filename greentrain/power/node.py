"""Power of a whole node by its management controller: Redfish over HTTP(S), or IPMI's DCMI through ``ipmitool``.

A controller sees what no counter does: mainboard, fans, disks, network cards and the loss of the power supply. What it
tells contains processors, memory and GPUs, so beside their meters it is never added to them: its sensor is a
``reference``, kept apart in the books, and a summary tells the difference, unmetered by components.

Redfish (DMTF DSP0266; the schemas Chassis, EnvironmentMetrics and Power of DSP0268, read 2026-11-23): a chassis has
``EnvironmentMetrics`` with ``PowerWatts.Reading``, or, deprecated and still usual, ``Power`` with
``PowerControl[].PowerConsumedWatts``. DCMI (specification 1.5, Get Power Reading): ``ipmitool dcmi power reading``
prints ``Instantaneous power reading: 220 Watts``; it takes root and /dev/ipmi0.
"""

import contextlib
import json
import os
import re
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from greentrain.errors import MeterError
from greentrain.types import Device, DeviceKind, PowerSample, Provenance, Sensor
from greentrain.utils.clock import Clock, SystemClock
from greentrain.utils.http_client import HttpClient, HttpError

if TYPE_CHECKING:
    import httpx

PERIOD_S: Final = 10.0
"""Time between two readings (s): a request, or a process of ipmitool, takes milliseconds of a core, which shall be less
than a thousandth of it."""
TIMEOUT_S: Final = 5.0
"""Longest wait for an answer (s): controllers are slow, and a command may hang in its driver."""
MAX_REPLY_BYTES: Final = 1_000_000
USER, PASSWORD = "GREENTRAIN_BMC_USER", "GREENTRAIN_BMC_PASSWORD"
"""Variables with the login: it stands in no configuration, so in no run folder."""
DCMI: Final = ("ipmitool", "dcmi", "power", "reading")
_WATTS: Final = re.compile(r"^\s*Instantaneous power reading:\s*(\d+(?:\.\d+)?)\s*Watts\s*$", re.MULTILINE)


def redfish(
    url: str,
    chassis: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    transport: "httpx.BaseTransport | None" = None,
) -> Callable[[], float]:
    """Return a call that asks a controller for the power of a chassis (W).

    Args:
        url: The controller, such as ``https://bmc-node7``.
        chassis: Id of the chassis; None: the only one that tells its power.
        environ: Variables, which may hold a login; None: those of the process.
        transport: An httpx transport, for tests.

    Raises:
        MissingExtraError: httpx is not installed.
        MeterError: The controller does not answer, or it is not clear which chassis is meant.
    """
    environ = os.environ if environ is None else environ
    parts = urlsplit(url)
    if environ.get(USER):
        login = f"{quote(environ[USER], safe='')}:{quote(environ.get(PASSWORD, ''), safe='')}"
        url = parts._replace(netloc=f"{login}@{parts.netloc}").geturl()
    http = HttpClient(url, extra="prometheus", silence_s=TIMEOUT_S, most_bytes=MAX_REPLY_BYTES, transport=transport)

    def get(path: str) -> Any:
        try:
            answer = http.ask("GET", path, within_s=TIMEOUT_S, headers={"Accept": "application/json"})
        except HttpError as error:
            raise MeterError(f"{http.url} gives no answer ({error})") from error
        if answer.status in (401, 403):
            raise MeterError(f"{http.url} wants another login (HTTP {answer.status}): set {USER} and {PASSWORD}")
        try:
            if answer.status != 200:
                raise MeterError(f"{http.url}{path}: HTTP {answer.status}")
            return json.loads(answer.body)
        except (ValueError, RecursionError) as error:
            raise MeterError(f"{http.url}{path} is no JSON") from error

    def power_w(path: str) -> float:
        reply = get(path)
        with contextlib.suppress(LookupError, TypeError, ValueError, AttributeError):
            found = reply.get("PowerWatts") or {}
            value = found["Reading"] if "Reading" in found else reply["PowerControl"][0]["PowerConsumedWatts"]
            return float(value)
        raise MeterError(f"{http.url}{path} tells no power")

    def sources() -> dict[str, str]:
        found: dict[str, str] = {}
        try:
            members = [str(member["@odata.id"]) for member in get("/redfish/v1/Chassis")["Members"]]
            for member in members:
                resource, chassis_id = get(member), member.rstrip("/").rpartition("/")[2]
                for name in ("EnvironmentMetrics", "Power"):
                    path = (resource.get(name) or {}).get("@odata.id")
                    with contextlib.suppress(MeterError):
                        if path is not None and chassis_id not in found and power_w(path) >= 0:
                            found[chassis_id] = path
        except (LookupError, TypeError, AttributeError) as error:
            raise MeterError(f"{http.url}/redfish/v1/Chassis is not as Redfish has it ({error!r})") from error
        return found

    try:
        known = sources()
        if (len(known) != 1) if chassis is None else (chassis not in known):
            which = f"no chassis {chassis!r} with a power" if chassis else f"{len(known)} chassis with a power, not one"
            raise MeterError(f"{http.url} has {which}: set power.redfish_chassis to one of {sorted(known)}")
        path = known[next(iter(known)) if chassis is None else chassis]
    except BaseException:
        http.close()
        raise
    return lambda: power_w(path)


def dcmi(command: Sequence[str] = DCMI) -> Callable[[], float]:
    """Return a call that runs ipmitool and returns the node's power (W).

    Args:
        command: The command with its words.
    """

    def power_w() -> float:
        environ = {**os.environ, "LC_ALL": "C"}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environ, check=False)
        except FileNotFoundError as error:
            raise MeterError(f"{command[0]} is not installed: apt install ipmitool") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MeterError(f"{command[0]} has not answered ({type(error).__name__})") from error
        found = _WATTS.search(done.stdout)
        if done.returncode or found is None:
            said = (done.stderr.strip().splitlines() or ["it prints no instantaneous power reading"])[0]
            raise MeterError(f"{' '.join(command)}: {said}; it takes root, /dev/ipmi0 and a controller with DCMI")
        return float(found.group(1))

    return power_w


class NodeMeter:
    """Reads a node's power in a thread of its own, as controllers are slow and drivers may hang.

    Args:
        name: ``redfish`` or ``ipmi``.
        read_w: Returns the watts; may block; raises MeterError where there are none.
        host: Name of the node.
        reference: Components of the node have meters of their own.
        clock: Time.
        period_s: Time between two readings (s).

    Raises:
        MeterError: There is no first reading.
    """

    def __init__(
        self,
        name: str,
        read_w: Callable[[], float],
        *,
        host: str,
        reference: bool,
        clock: Clock | None = None,
        period_s: float = PERIOD_S,
    ) -> None:
        self._clock, self._read_w, self._period_s = clock or SystemClock(), read_w, period_s
        self.sensors: Sequence[Sensor] = (
            Sensor(
                device=Device(uid=f"{name}:{host}", kind=DeviceKind.NODE, name=f"node {host}"),
                provenance=Provenance.MEASURED,
                method={"redfish": "Redfish", "ipmi": "IPMI DCMI"}[name],
                period_s=period_s,
                reference=reference,
                note="Whole node by its management controller; all processes of the machine",
            ),
        )
        """The node's sensor."""
        self._last = self._sample()
        if self._last.missing:
            raise MeterError(self._last.note)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._poll, name=f"greentrain-{name}", daemon=True)
        self._thread.start()

    def read(self) -> Sequence[PowerSample]:
        """Return the newest reading at its own time; a missing one where that is too old."""
        now_s, last = self._clock.monotonic_s(), self._last
        old = now_s - last.t_s > 2 * self._period_s + TIMEOUT_S
        if last.missing or old or self._end.is_set():
            why = "the meter is closed" if self._end.is_set() else last.note or "the controller does not answer"
            return (PowerSample(last.device_uid, now_s, note=why),)
        return (last,)

    def close(self) -> None:
        """End the thread; one that hangs is left behind as a daemon. Idempotent."""
        self._end.set()
        if self._thread is not threading.current_thread():
            self._thread.join(TIMEOUT_S + 1.0)

    def _poll(self) -> None:
        while not self._end.wait(self._period_s):
            self._last = self._sample()

    def _sample(self) -> PowerSample:
        uid, before_s = self.sensors[0].device.uid, self._clock.monotonic_s()
        try:
            watts, note = self._read_w(), ""
        except Exception as error:
            watts, note = None, str(error) if isinstance(error, MeterError) else f"the reading failed: {error!r}"
        return PowerSample(uid, (before_s + self._clock.monotonic_s()) / 2, power_w=watts, note=note)
