"""Kepler's node energy series: what to ask Prometheus for, and which device a series belongs to.

Kepler 0.10 and newer: ``kepler_node_cpu_joules_total{zone, path, node_name}`` and
``kepler_node_gpu_joules_total{gpu, gpu_uuid, gpu_name, vendor, node_name}`` (docs/user/metrics.md of
sustainable-computing-io/kepler at 13944a6, 2026-08-21). Kepler up to 0.9: ``kepler_node_package_joules_total`` and
``kepler_node_dram_joules_total{package, instance, mode, source}``, idle and dynamic energy apart in ``mode``
(pkg/metrics at v0.9.0). Zones ``core``, ``uncore`` and ``psys`` overlap the package and are not asked for.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from greentrain.types import Device, DeviceKind, Provenance

QUERY: Final = '{__name__=~"kepler_node_(cpu|gpu|package|dram)_joules_total",zone=~"|package.*|dram.*"}'
"""Both generations in one selector; GPU series have no zone."""
NODE_LABELS: Final = ("node_name", "exported_instance", "instance")
"""Labels that name the node; Prometheus renames Kepler 0.9's ``instance`` unless honor_labels is set."""
MODELLED_SOURCES: Final = ("trained_power_model", "estimator", "dummy", "fake")
"""Values of ``source`` with which Kepler up to 0.9 marks a model instead of a counter (pkg/model/types/types.go)."""

_DROP = frozenset({"__name__", "job", "endpoint", "service", "namespace", "pod", "container"})


def kepler_device(labels: Mapping[str, str]) -> Device | None:
    """Return the device of a series of QUERY; None for one that is no device of its own."""
    name = labels.get("__name__", "")
    if "_gpu_" in name:
        uuid = labels.get("gpu_uuid", "")
        return Device(uid=uuid, kind=DeviceKind.GPU, name=labels.get("gpu_name") or uuid) if uuid else None
    zone = labels.get("zone") or ("package" if "_package_" in name else "dram")
    place = labels.get("path", "").rsplit("/", 1)[-1] or labels.get("package", "0")
    memory = zone.startswith("dram")
    return Device(
        uid=f"kepler:{zone}:{place}",
        kind=DeviceKind.DRAM if memory else DeviceKind.CPU,
        name=f"{'DRAM' if memory else 'CPU package'} {place}",
    )


def series_device(labels: Mapping[str, str]) -> Device:
    """Return the device of a series of a user's own query: its labels are its name."""
    text = ",".join(f"{key}={value}" for key, value in sorted(labels.items()) if key not in _DROP)
    hint = f"{labels.get('__name__', '')} {text}".lower()
    kind = DeviceKind.NODE
    for pattern, candidate in (
        ("gpu", DeviceKind.GPU),
        ("dram", DeviceKind.DRAM),
        (r"cpu|package|rapl", DeviceKind.CPU),
    ):
        if re.search(pattern, hint):
            kind = candidate
            break
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
