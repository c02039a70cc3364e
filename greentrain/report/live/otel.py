"""A running job's figures as OpenTelemetry metrics: observable instruments through the standard SDK.

A meter provider that the program has set is used, with its readers. Without one, a provider of our own sends by OTLP
over HTTP; nothing global is set.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from greentrain.config.schema import OtelConfig
from greentrain.report.live.snapshot import TICKS, DeviceNow, MissingSeconds, Snapshot
from greentrain.types import Topology
from greentrain.utils.imports import try_import
from greentrain.utils.never_raise import once, warn
from greentrain.utils.version import __version__

with try_import("otel") as _imports:
    from opentelemetry import metrics
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricExportResult, PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader, MetricsData

SCOPE: Final = "greentrain"
TIMEOUT_S: Final = 5.0
"""Longest time of one export, its retries included, unless OTEL_EXPORTER_OTLP_[METRICS_]TIMEOUT says another (s)."""
CLOSE_S: Final = 3.0
"""Longest time that the end of a run waits for the last export (s)."""
METRICS_PATH: Final = "/v1/metrics"
"""https://opentelemetry.io/docs/specs/otlp/#otlphttp-request, read 2026-11-22."""
_TIMEOUTS: Final = ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
_LOGGER: Final = "opentelemetry.exporter.otlp.proto.http.metric_exporter"

Points = Iterable[tuple[float | None, Mapping[str, str]]]
_Asked = Callable[[Snapshot], Points]


class Otel:
    """Gives OpenTelemetry the figures of one rank.

    Args:
        config: The section ``export.otel`` of the configuration.
        topology: The place of this rank in the job.
        run_id: The id of the run.
        reader: A reader in place of the one that sends, for tests.

    Raises:
        MissingExtraError: The SDK or its OTLP exporter is not installed.
    """

    def __init__(
        self, config: OtelConfig, topology: Topology, run_id: str, reader: "MetricReader | None" = None
    ) -> None:
        _imports.check()
        self._now: Snapshot | None = None
        self._missing = MissingSeconds()
        self._pid = os.getpid()
        self._job = {"greentrain.run.id": run_id, "greentrain.rank": str(topology.rank)}
        self._own: MeterProvider | None = None
        self._sender: _Sender | None = None
        provider = metrics.get_meter_provider()
        if reader is not None or not isinstance(provider, MeterProvider):
            if reader is None:
                self._sender = _Sender(config)
                reader = PeriodicExportingMetricReader(self._sender, 1e3 * config.interval_s)
            resource = _resource(topology, self._job)
            provider = self._own = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        # Attributes of its own make the scope this run's: two runs under one provider are no conflict.
        self._meter = provider.get_meter(SCOPE, __version__, attributes=self._job)
        self._instruments()

    def update(self, snapshot: Snapshot) -> None:
        """Show these figures from now on."""
        self._missing.update(snapshot)
        self._now = snapshot

    def close(self) -> None:
        """Send the last figures where the provider is ours, for ``CLOSE_S`` at most, and show none any more."""
        own, self._own = self._own, None
        if own is not None:
            own.shutdown(timeout_millis=1e3 * CLOSE_S)
        if self._sender is not None:
            self._sender.hush(False)
        self._now = None

    def _instruments(self) -> None:
        counter, gauge = self._meter.create_observable_counter, self._meter.create_observable_gauge
        blind = ("sensor.missing", "s", "Time in which a device's energy was not known", self._missing_of)
        for name, unit, text, points in (*_SUMS, blind):
            counter(f"greentrain.{name}", [self._asked(points)], unit, text)
        for name, unit, text, points in _VALUES:
            gauge(f"greentrain.{name}", [self._asked(points)], unit, text)

    def _missing_of(self, now: Snapshot) -> Points:
        return [(self._missing.by_uid.get(device.uid, 0.0), _tags(device)) for device in now.by_uid.values()]

    def _asked(self, points: _Asked) -> "Callable[[CallbackOptions], Iterable[Observation]]":
        def asked(_: "CallbackOptions") -> "Iterable[Observation]":
            now = self._now
            if now is None or os.getpid() != self._pid:  # the SDK starts its thread anew in forked children
                return []
            found = points(now)
            return [Observation(value, {**self._job, **more}) for value, more in found if value is not None]

        return asked


def _tags(device: DeviceNow | None = None, **more: str) -> dict[str, str]:
    """Return the attributes of a point: those of its device, and others."""
    of = {} if device is None else {"device": device.uid, "device.kind": device.kind}
    return {f"greentrain.{name}": value for name, value in (of | more).items()}


def _told(key: str) -> _Asked:
    return lambda now: [(device.told.get(key), _tags(device)) for device in now.by_uid.values()]


def _emissions(now: Snapshot) -> Points:
    found = (("location", now.operational_g), ("market", now.market_g), ("embodied", now.embodied_g))
    return [(grams, _tags(scope=scope)) for scope, grams in found]


def _gears(now: Snapshot) -> Points:
    gears = dict.fromkeys((*now.gears, *([now.gear] if now.gear else [])))
    return [(int(gear == now.gear), _tags(gear=gear)) for gear in gears]


_SUMS: Final[tuple[tuple[str, str, str, _Asked], ...]] = (
    (
        "energy", "J", "IT energy of the run",
        lambda now: [(d.energy_j, _tags(d, provenance=d.provenance)) for d in now.devices],
    ),
    (
        "slowed", "s", "Time in which a device's clocks were held down",
        lambda now: [(seconds, _tags(d, reason=why)) for d, why, seconds in now.slowed],
    ),
    ("emissions", "g", "CO2e of the run", _emissions),
    ("steps", "{step}", "Optimizer steps", lambda now: [(now.steps, {})]),
    ("tokens", "{token}", "Tokens of this rank", lambda now: [(now.tokens or None, {})]),
    ("samples", "{sample}", "Samples of this rank", lambda now: [(now.samples or None, {})]),
)  # fmt: skip
"""Counters beside that of missing time: name, unit, text, and the points of a snapshot."""
_VALUES: Final[tuple[tuple[str, str, str, _Asked], ...]] = (
    *((f"sensor.{tick}", "s", told, _told(key)) for tick, key, told in TICKS),
    (
        "utilisation", "1", "Share of the time in which a kernel ran, or memory was accessed",
        lambda now: [(share, _tags(d, phase=phase, utilisation=of)) for d, phase, of, share in now.utilisations],
    ),
    (
        "temperature", "Cel", "Of a device, mean of the last booked interval",
        lambda now: [(celsius, _tags(d)) for d, celsius in now.temperatures],
    ),
    (
        "phase.error", "1", "Standard error of a phase's energy over it",
        lambda now: [(error, _tags(d, phase=phase, attribution=how)) for d, phase, how, error in now.phase_errors],
    ),
    (
        "phase.energy_per_token", "J/{token}", "Energy of a phase over all tokens of the rank",
        lambda now: [
            (use.j_per_token, _tags(phase=use.stage, provenance=use.provenance) | {"greentrain.device.kind": use.kind})
            for use in now.stages
        ],
    ),
    (
        "cost", "1", "Money for electricity, PUE included",
        lambda now: [(amount, {"currency": currency}) for currency, amount in now.cost.items()],
    ),
    ("power", "W", "Power now", lambda now: [(d.power_w, _tags(d, provenance=d.provenance)) for d in now.devices]),
    (
        "power.limit", "W", "Power limit that the run has set",
        lambda now: [(d.limit_w, _tags(d)) for d in now.by_uid.values()],
    ),
    (
        "carbon.intensity", "g/(kW.h)", "Of the grid, last booked",
        lambda now: [(now.g_per_kwh, _tags(zone=now.zone or "") | {"greentrain.carbon.kind": now.kind or ""})],
    ),
    ("pue", "1", "Facility energy / IT energy", lambda now: [(now.pue, {})]),
    (
        "saved", "g", "CO2e that the plan has saved, by its table",
        lambda now: [] if now.saved is None else [(now.saved.grams, _tags(provenance=now.saved.provenance))],
    ),
    ("gear", "1", "1 for the precision gear in use", _gears),
    (
        "plan.paused", "1", "1 while the plan holds the job",
        lambda now: [] if now.plan is None else [(int(now.plan.paused), {})],
    ),
)  # fmt: skip
"""The same of gauges."""


class _Sender(OTLPMetricExporter if _imports.error is None else object):  # type: ignore[misc]
    """Sends by OTLP; a collector that cannot be reached is one warning, where the SDK logs each attempt."""

    def __init__(self, config: OtelConfig) -> None:
        super().__init__(
            endpoint=None if config.endpoint is None else _url(config.endpoint),
            timeout=None if any(name in os.environ for name in _TIMEOUTS) else TIMEOUT_S,
        )
        self._warn = once(warn)
        self._exporting = False
        self.hush(True)

    def hush(self, wanted: bool) -> None:
        """Keep the SDK from logging what this exporter's own exports meet, or let it."""
        logger = logging.getLogger(_LOGGER)
        logger.addFilter(self._passes) if wanted else logger.removeFilter(self._passes)

    def export(self, metrics_data: "MetricsData", timeout_millis: float | None = None, **more: Any) -> Any:
        """Send; say once where it fails."""
        self._exporting = True
        try:
            result = super().export(metrics_data, **more)
        except Exception:
            result = MetricExportResult.FAILURE
        finally:
            self._exporting = False
        if result is not MetricExportResult.SUCCESS:
            self._warn(
                f"the OpenTelemetry collector at {_shown(self._endpoint)} takes no metrics, so they are missing there:"
                " see that it runs and accepts OTLP over HTTP, or name another export.otel.endpoint"
            )
        return result

    def _passes(self, record: logging.LogRecord) -> bool:
        return not self._exporting


def _url(endpoint: str) -> str:
    """Return the URL of the receiver: an endpoint without a path is a collector's base URL."""
    return endpoint.rstrip("/") + METRICS_PATH if urlsplit(endpoint).path in ("", "/") else endpoint


def _shown(url: str) -> str:
    """Return a URL without a password that the environment may have put there."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


def _resource(topology: Topology, job: Mapping[str, str]) -> "Resource":
    """Return what sends: names that the environment gives go first."""
    found = {
        "service.name": "greentrain",
        "service.version": __version__,
        "service.instance.id": f"{job['greentrain.run.id']}/{topology.rank}",
        "host.name": topology.host,
        **job,
    }
    told = OTELResourceDetector().detect().attributes
    return Resource.create({key: value for key, value in found.items() if key not in told})
