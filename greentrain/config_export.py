"""Section ``export`` of the configuration: where a running job's figures are shown to monitoring systems."""

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from greentrain.config_values import bound
from greentrain.errors import ConfigError

DEFAULT_PORT = 9464
"""What OpenTelemetry's specification gives a Prometheus exporter in a process (OTEL_EXPORTER_PROMETHEUS_PORT,
https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/, read 2026-11-22)."""
HIGHEST_PORT = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusConfig:
    """A page that a Prometheus server scrapes, or a file for node_exporter."""

    port: int = DEFAULT_PORT
    """TCP port of local rank 0; each further rank of a node has the next one. 0: any that is free."""
    host: str = "127.0.0.1"
    """Address to listen at; another than this machine's own needs ``token_file``."""
    token_file: str | None = None
    """Holds the token that a scraper must send as ``Authorization: Bearer``; for its owner alone to read."""
    textfile: str | None = None
    """Folder of node_exporter's textfile collector: one file a rank is written there, and no port is opened."""

    def __post_init__(self) -> None:
        bound("export.prometheus.port", self.port, 0, HIGHEST_PORT)
        if not self.host:
            raise ConfigError("export.prometheus.host is empty: name an address, such as 127.0.0.1 or 0.0.0.0")
        if self.textfile is None and self.token_file is None and not is_loopback(self.host):
            raise ConfigError(
                f"export.prometheus.host is {self.host!r}, which other machines can reach, and"
                " export.prometheus.token_file is not set: name a file with a token, or listen at 127.0.0.1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OtelConfig:
    """Metrics through the OpenTelemetry SDK."""

    endpoint: str | None = None
    """URL of a collector's OTLP/HTTP receiver, such as http://127.0.0.1:4318; None: as the variables
    OTEL_EXPORTER_OTLP_* say, or to http://localhost:4318. A meter provider that the program has set goes first."""
    interval_s: float = 10.0
    """Time between two exports (s)."""

    def __post_init__(self) -> None:
        bound("export.otel.interval_s", self.interval_s, 1.0, 3600.0)
        if self.endpoint is not None:
            try:
                scheme, host, *_ = urlsplit(self.endpoint)
            except ValueError:  # such as a [ without a ]
                scheme = host = ""
            if "@" in (host or self.endpoint):
                raise ConfigError(
                    "export.otel.endpoint holds a password, which run.json would show: pass it in"
                    " OTEL_EXPORTER_OTLP_HEADERS"
                )
            if scheme not in ("http", "https") or not host:
                raise ConfigError(
                    f"export.otel.endpoint is {self.endpoint!r}; write a URL, such as http://127.0.0.1:4318"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportConfig:
    """Who is shown the figures of a running job; nobody by default."""

    prometheus: PrometheusConfig | None = None
    """None: nothing is shown to Prometheus. An empty section ``{}`` takes the defaults."""
    otel: OtelConfig | None = None
    """None: nothing is sent by OpenTelemetry."""


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
