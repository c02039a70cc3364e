"""Energy counters that a Prometheus server has scraped, by default those of Kepler, and what any question to it needs.

HTTP API: https://prometheus.io/docs/prometheus/latest/querying/api/ (read 2026-11-21). An instant query of a range
(``x[60s]``) gives the scraped samples with their own times; one of an instant vector gives the time of the query.

A thread of the meter asks the server about twice a scrape interval; ``read`` returns what it last learned, so
neither the sampler nor the training ever waits for the network. A sample has the time at which Prometheus scraped
it, mapped to the monotonic clock through the machine's wall clock.

Kepler 0.10 and newer: ``kepler_node_cpu_joules_total{zone, path, node_name}`` and
``kepler_node_gpu_joules_total{gpu, gpu_uuid, gpu_name, vendor, node_name}`` (docs/user/metrics.md of
sustainable-computing-io/kepler at 13944a6, 2026-08-21). Kepler up to 0.9: ``kepler_node_package_joules_total`` and
``kepler_node_dram_joules_total{package, instance, mode, source}``, idle and dynamic energy apart in ``mode``
(pkg/metrics at v0.9.0). Zones ``core``, ``uncore`` and ``psys`` overlap the package and are not asked for.
"""

import contextlib
import json
import math
import os
import re
import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from greentrain.errors import MeterError
from greentrain.power.rapl import UNCERTAINTY
from greentrain.types import Device, DeviceKind, PowerSample, Provenance, Sensor
from greentrain.utils.clock import Clock, SystemClock
from greentrain.utils.http_client import HttpClient, HttpError

if TYPE_CHECKING:
    import httpx


MAX_REPLY_BYTES: Final = 8_000_000


class ReplyError(Exception):
    """The server did not answer, or not as Prometheus does."""


@dataclass(frozen=True, slots=True)
class SampleSeries:
    """One series of an answer."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]
    """(unix s, value), oldest first."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """An answer."""

    kind: str
    """``matrix``, ``vector`` or ``scalar``; a scalar is one series without labels."""
    series: Sequence[SampleSeries]


class PrometheusClient:
    """Asks one server.

    Args:
        url: The server, for example ``http://prometheus:9090``; a name and password in it go into a header.
        timeout_s: Longest wait for one answer (s).
        transport: An httpx transport, for tests.
        clock: Time.

    Raises:
        MissingExtraError: httpx is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 2.0,
        transport: "httpx.BaseTransport | None" = None,
        clock: Clock | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        monotonic_s = (clock or SystemClock()).monotonic_s
        self._http = HttpClient(
            url,
            extra="prometheus",
            silence_s=timeout_s,
            most_bytes=MAX_REPLY_BYTES,
            transport=transport,
            monotonic_s=monotonic_s,
        )
        self.url = self._http.url
        self.close = self._http.close

    def query(self, promql: str, stop: threading.Event) -> QueryResult:
        """Return the answer to an instant query.

        Args:
            promql: The question.
            stop: Set from outside to give up.

        Raises:
            ReplyError: There is none that can be used.
        """
        try:
            answer = self._http.ask(
                "GET", "/api/v1/query", params={"query": promql}, within_s=self.timeout_s, stop=stop
            )
        except HttpError as error:
            if error.kind == "large":
                raise ReplyError(f"the answer is longer than {MAX_REPLY_BYTES} bytes; narrow the query") from error
            if error.kind == "late":
                raise ReplyError(f"no complete answer within {self.timeout_s:g} s") from error
            raise ReplyError(f"no answer ({error})") from error
        return _parse(answer.body, answer.status)


def _parse(body: bytes, status: int) -> QueryResult:
    try:
        reply: Any = json.loads(body)
        if reply["status"] != "success":
            raise ReplyError(f"HTTP {status}: {reply.get('error', 'unknown error')}")
        data = reply["data"]
        kind, result = str(data["resultType"]), data["result"]
        if kind == "scalar":
            result = [{"metric": {}, "value": result}]
        elif kind not in ("matrix", "vector"):
            raise ReplyError(f"the query gives a {kind}, not numbers")
        series = []
        for item in result:
            pairs = item["values"] if kind == "matrix" else [item["value"]]
            points = [(float(t), float(v)) for t, v in pairs]
            if points:
                series.append(SampleSeries({str(k): str(v) for k, v in item["metric"].items()}, points))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ReplyError(f"HTTP {status}, and the answer is not that of a Prometheus server") from error
    return QueryResult(kind, series)


QUERY: Final = '{__name__=~"kepler_node_(cpu|gpu|package|dram)_joules_total",zone=~"|package.*|dram.*"}'
"""Both generations in one selector; GPU series have no zone."""
NODE_LABELS: Final = ("node_name", "exported_instance", "instance")
"""Labels that name the node; Prometheus renames Kepler 0.9's ``instance`` unless honor_labels is set."""
MODELLED_SOURCES: Final = ("trained_power_model", "estimator", "dummy", "fake")
"""Values of ``source`` with which Kepler up to 0.9 marks a model instead of a counter (pkg/model/types/types.go)."""

KEPLER_POD: Final = "kepler-pod"
"""Stands for the query of this pod's counters: what Kepler gives it of its node's, by CPU time."""
POD_QUERY: Final = (
    '{{__name__=~"kepler_pod_cpu_joules_total|kepler_container_(package|dram)_joules_total",pod_name="{pod}",'
    'state=~"|running",zone=~"|package.*|dram.*"}}'
)
"""Both generations: from 0.10 on of the pod (docs/user/metrics.md at 1d73b32), up to 0.9 of each of its containers."""
POD, NAMESPACE = "POD_NAME", "POD_NAMESPACE"
"""Variables that say which pod this is, by the downward API; else its host name, in any namespace."""

_DROP = frozenset({"__name__", "job", "endpoint", "service", "namespace", "pod", "container"})


def kepler_device(labels: Mapping[str, str]) -> Device | None:
    """Return the device of a series of QUERY; None for one that is no device of its own."""
    name = labels.get("__name__", "")
    if "_gpu_" in name:
        uuid = labels.get("gpu_uuid", "")
        return Device(uid=uuid, kind=DeviceKind.GPU, name=labels.get("gpu_name") or uuid) if uuid else None
    zone = labels.get("zone") or ("package" if "_package_" in name else "dram")
    place = labels.get("path", "").rsplit("/", 1)[-1] or labels.get("package", "0")
    kind, name = (DeviceKind.DRAM, "DRAM") if zone.startswith("dram") else (DeviceKind.CPU, "CPU package")
    return Device(uid=f"kepler:{zone}:{place}", kind=kind, name=f"{name} {place}")


def pod_device(labels: Mapping[str, str]) -> Device:
    """Return the device of a series of POD_QUERY: the pod's share of the node's processors, or of its memory."""
    pod = f"{labels.get('pod_namespace') or labels.get('container_namespace', '')}/{labels['pod_name']}"
    if "dram" in labels.get("zone", "") + labels.get("__name__", ""):
        return Device(uid=f"kepler:{pod}:dram", kind=DeviceKind.DRAM, name=f"DRAM of pod {pod}")
    return Device(uid=f"kepler:{pod}:package", kind=DeviceKind.CPU, name=f"CPU of pod {pod}")


def series_device(labels: Mapping[str, str]) -> Device:
    """Return the device of a series of a user's own query: its labels are its name."""
    text = ",".join(f"{key}={value}" for key, value in sorted(labels.items()) if key not in _DROP)
    hint = f"{labels.get('__name__', '')} {text}".lower()
    kinds = {"gpu": DeviceKind.GPU, "dram": DeviceKind.DRAM, "cpu|package|rapl": DeviceKind.CPU}
    kind = next((kind for pattern, kind in kinds.items() if re.search(pattern, hint)), DeviceKind.NODE)
    name = text or labels.get("__name__") or "query"
    return Device(uid=f"prometheus:{name}", kind=kind, name=name)


def kepler_provenance(labels: Mapping[str, str]) -> Provenance:
    """Return MODELLED where Kepler says that a model made the series."""
    source = labels.get("source", "")
    return Provenance.MODELLED if source.startswith(MODELLED_SOURCES) else Provenance.MEASURED


def node_of(labels: Mapping[str, str]) -> str:
    """Return the name of the node that a series speaks of, empty if it has none."""
    return next((labels[label] for label in NODE_LABELS if labels.get(label)), "")


def pick_node(nodes: Iterable[str], host: str) -> str | None:
    """Return the one of several node names that means ``host``, or None."""
    return next((node for node in nodes if _short(node) == _short(host)), None)


def _short(name: str) -> str:
    host = re.sub(r":\d+$", "", name).lower()
    return host if re.fullmatch(r"[\d.]+", host) else host.partition(".")[0]


FIRST_WINDOW_S: Final = 300.0
"""How far the first query looks back: Prometheus's own lookback for instant vectors."""
DEFAULT_SCRAPE_S: Final = 60.0
"""Assumed where a series has one sample yet: Prometheus's default global.scrape_interval."""
_SELECTOR = re.compile(r"[A-Za-z_:][\w:]*(\{.*\})?|\{.*\}", re.DOTALL)


class PrometheusMeter:
    """Follows cumulative joules in a Prometheus server.

    Args:
        url: The server, for example ``http://prometheus:9090``.
        query: PromQL whose result is cumulative joules, one series a device; None asks for Kepler's node counters
            of this node, ``kepler-pod`` for those of this pod alone. A plain selector keeps the scrape times; of any
            other expression the time is that of the query.
        node: Name of this node among Kepler's; None takes $NODE_NAME, else the host name.
        timeout_s: Longest wait for one answer (s).
        transport: An httpx transport, for tests.
        clock: Time.

    Raises:
        MissingExtraError: httpx is not installed.
        MeterError: The server does not answer, or has no such series; says what to check.
    """

    def __init__(
        self,
        url: str,
        query: str | None = None,
        *,
        node: str | None = None,
        timeout_s: float = 2.0,
        transport: "httpx.BaseTransport | None" = None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._of_pod = query is not None and query.strip() == KEPLER_POD
        if self._of_pod:
            query = POD_QUERY.format(pod=os.environ.get(POD) or socket.gethostname())
        self._query = query.strip() if query is not None else None
        self._node = node or os.environ.get("NODE_NAME") or socket.gethostname()
        self._timeout_s = timeout_s
        self._problem = ""
        self._latest: dict[str, PowerSample] = {}
        self._seen: dict[str, tuple[float, float]] = {}
        self._lost_j: dict[str, float] = {}
        self._client = PrometheusClient(url, timeout_s=timeout_s, transport=transport, clock=clock)
        self._url = self._client.url
        self._stop = threading.Event()
        try:
            found = self._select(self._ask(FIRST_WINDOW_S))
            if not found:
                what = (
                    query or "Kepler's node counters (kepler_node_cpu_joules_total or kepler_node_package_joules_total)"
                )
                raise MeterError(f"{self._url} has no series for {what}: check that it scrapes Kepler on this node")
            self._scrape_s = _scrape_s(found)
            told = self._scrape_s, query, self._of_pod
            self._sensors = [_sensor(device, labels, *told) for device, labels in _devices(found)]
            self._take(found)
        except ReplyError as error:
            self._client.close()
            raise MeterError(f"Prometheus at {self._url}: {error}; check power.prometheus_url") from error
        except BaseException:
            self._client.close()
            raise
        self._poll_s = min(max(self._scrape_s / 2, 0.25), 15.0)
        self._window_s = max(5 * self._scrape_s, 10.0)
        self._stale_s = 3 * self._scrape_s + self._poll_s + timeout_s
        self._thread = threading.Thread(target=self._run, name="greentrain-prometheus", daemon=True)
        self._thread.start()

    @property
    def sensors(self) -> Sequence[Sensor]:
        """The devices found when the meter was opened."""
        return self._sensors

    def read(self) -> Sequence[PowerSample]:
        """Return the newest known sample of each device; one too old to be true is a failed reading."""
        now_s = self._clock.monotonic_s()
        latest, closed = self._latest, self._stop.is_set()
        samples = []
        for sensor in self._sensors:
            uid = sensor.device.uid
            sample = latest.get(uid)
            if closed or sample is None or now_s - sample.t_s > self._stale_s:
                age = "never" if sample is None else f"{now_s - sample.t_s:.0f} s ago"
                note = (
                    "the meter is closed" if closed else f"last sample {age}; {self._problem or 'the target is down'}"
                )
                sample = PowerSample(device_uid=uid, t_s=now_s, note=note)
            samples.append(sample)
        return samples

    def close(self) -> None:
        """Stop asking; waits at most a little longer than the timeout. Idempotent."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._thread.join(self._timeout_s + 1.0)
        if not self._thread.is_alive():
            with contextlib.suppress(Exception):
                self._client.close()

    def _run(self) -> None:
        while not self._stop.wait(self._poll_s):
            try:
                self._take(self._select(self._ask(self._window_s)))
                self._problem = ""
            except Exception as error:
                self._problem = str(error) or repr(error)

    def _ask(self, window_s: float) -> list[SampleSeries]:
        query = QUERY if self._query is None else self._query
        if _SELECTOR.fullmatch(query):
            query = f"{query}[{math.ceil(window_s)}s]"
        reply = self._client.query(query, self._stop)
        if reply.kind == "scalar":
            raise ReplyError("the query gives a scalar, not series of joules")
        return list(reply.series)

    def _select(self, series: list[SampleSeries]) -> list[tuple[Device, SampleSeries]]:
        if self._of_pod:
            wanted = os.environ.get(NAMESPACE)
            of_pods = [(pod_device(s.labels), s) for s in series]
            pods = {device.uid.rpartition(":")[0] for device, _ in of_pods if not wanted or f":{wanted}/" in device.uid}
            if len(pods) > 1:
                raise MeterError(
                    f"{self._url} has {len(pods)} pods of this name in several namespaces: set {NAMESPACE}"
                )
            return [(device, s) for device, s in of_pods if device.uid.rpartition(":")[0] in pods]
        if self._query is not None:
            return [(series_device(s.labels), s) for s in series]
        nodes = sorted({node for s in series if (node := node_of(s.labels))})
        if len(nodes) > 1:
            mine = pick_node(nodes, self._node)
            if mine is None:
                raise MeterError(
                    f"{self._url} has Kepler series of {len(nodes)} nodes ({', '.join(nodes[:5])}), none named like"
                    f" this host, {self._node!r}: set NODE_NAME to its name or give power.prometheus_query a matcher"
                )
            series = [s for s in series if node_of(s.labels) == mine]
        found = ((kepler_device(s.labels), s) for s in series)
        return [(device, s) for device, s in found if device is not None]

    def _take(self, found: Sequence[tuple[Device, SampleSeries]]) -> None:
        """Make samples of the newest points; the series of one device (idle, dynamic) are added up."""
        offset_s = self._clock.monotonic_s() - self._clock.unix_s()
        newest: dict[str, list[tuple[float, float]]] = {}
        for device, series in found:
            newest.setdefault(device.uid, []).append(series.points[-1])
        latest = dict(self._latest)
        for uid, points in newest.items():
            unix_s, value_j = max(t for t, _ in points), sum(v for _, v in points)
            before_unix_s, before_j = self._seen.get(uid, (-math.inf, 0.0))
            if unix_s <= before_unix_s or unix_s - min(t for t, _ in points) > 1e-3 or not math.isfinite(value_j):
                continue
            if value_j < before_j:
                self._lost_j[uid] = self._lost_j.get(uid, 0.0) + before_j
            self._seen[uid] = (unix_s, value_j)
            t_s = min(unix_s + offset_s, self._clock.monotonic_s())
            if uid in latest:
                t_s = max(t_s, latest[uid].t_s)
            latest[uid] = PowerSample(device_uid=uid, t_s=t_s, energy_j=value_j + self._lost_j.get(uid, 0.0))
        self._latest = latest


def _scrape_s(found: Sequence[tuple[Device, SampleSeries]]) -> float:
    gaps = sorted(b[0] - a[0] for _, s in found for a, b in zip(s.points, s.points[1:], strict=False))
    return max(gaps[len(gaps) // 2], 0.1) if gaps else DEFAULT_SCRAPE_S


def _devices(found: Sequence[tuple[Device, SampleSeries]]) -> list[tuple[Device, Mapping[str, str]]]:
    by_uid = {device.uid: (device, series.labels) for device, series in reversed(found)}
    return [by_uid[uid] for uid in sorted(by_uid)]


def _sensor(device: Device, labels: Mapping[str, str], scrape_s: float, query: str | None, of_pod: bool) -> Sensor:
    node, uncertainty, provenance = node_of(labels), None, Provenance.MEASURED
    method, whose = "PromQL query", f"{f' on node {node}' if node else ''}; all processes of the machine"
    if of_pod:
        method, whose = "Kepler's share of a pod through Prometheus", "; the node's counters, shared out by CPU time"
        provenance = Provenance.MODELLED
    elif query is None:
        method, provenance = "Kepler through Prometheus", kepler_provenance(labels)
        uncertainty = UNCERTAINTY.get(device.kind) if provenance is Provenance.MEASURED else None
    return Sensor(
        device=device,
        provenance=provenance,
        method=method,
        period_s=scrape_s,
        uncertainty=uncertainty,
        note=f"Scraped every {scrape_s:.3g} s{whose}",
    )
