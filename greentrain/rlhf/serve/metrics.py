"""What Prometheus reads: requests, batches, the engine's sums and the devices' joules."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from greentrain.fpga_backend.device import OffloadDevice
from greentrain.rlhf.engine import OffloadEngine
from greentrain.rlhf.serve.coalescer import Coalescer

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
OTHER = "other"
"""The route of every path that is none: clients do not make up labels."""


class Metrics:
    """Counts of one server, in a registry of its own.

    Args:
        engine: Whose sums are shown.
    """

    def __init__(self, engine: OffloadEngine) -> None:
        self.registry = CollectorRegistry()
        self.routes: frozenset[str] = frozenset()
        self._requests = Counter("greentrain_serve_requests", "Requests.", ["route", "status"], registry=self.registry)
        self._seconds = Histogram(
            "greentrain_serve_request_seconds", "Time of a request.", ["route"], buckets=SECONDS, registry=self.registry
        )
        self._batches = Histogram(
            "greentrain_serve_batch_sequences",
            "Sequences of a device batch.",
            ["offload_pass"],
            buckets=SEQUENCES,
            registry=self.registry,
        )
        self._waiting = Gauge(
            "greentrain_serve_waiting_sequences",
            "Sequences whose batch has not begun.",
            ["offload_pass"],
            registry=self.registry,
        )
        self._running = Gauge(
            "greentrain_serve_running_batches",
            "Batches that the engine has.",
            ["offload_pass"],
            registry=self.registry,
        )
        self._truncated = Counter(
            "greentrain_serve_truncated_texts", "Texts that lost tokens.", ["offload_pass"], registry=self.registry
        )
        self.registry.register(_Sums(engine))

    def request(self, path: str, status: str, seconds: float) -> None:
        """Count a request."""
        route = path if path in self.routes else OTHER
        self._requests.labels(route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def batch(self, kind: str, sequences: int) -> None:
        """Count a device batch."""
        self._batches.labels(kind).observe(sequences)

    def truncated(self, kind: str, texts: int) -> None:
        """Count texts that were cut."""
        self._truncated.labels(kind).inc(texts)

    def watch(self, kind: str, coalescer: Coalescer) -> None:
        """Show a queue."""
        self._waiting.labels(kind).set_function(lambda: coalescer.waiting)
        self._running.labels(kind).set_function(lambda: coalescer.running)

    def text(self) -> bytes:
        """Return everything in Prometheus's text format. It may wait for a device to say its joules."""
        return generate_latest(self.registry)


class _Sums(Collector):
    """The engine's sums, and joules where somebody knows them: a device without a meter has no sample, never 0."""

    def __init__(self, engine: OffloadEngine) -> None:
        self._engine = engine

    def describe(self) -> Iterator[Metric]:
        """Return nothing: registering must not ask the devices."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield what is known now."""
        named = {
            "calls": "Batches given to the engine.",
            "sequences": "Sequences of them.",
            "tokens": "Tokens of them.",
            "redone": "Parts that were redone at home.",
            "busy_s": "Seconds that devices computed.",
            "wait_s": "Seconds that batches were waited for.",
        }
        stats = self._engine.stats()
        for field, text in named.items():
            name = f"greentrain_offload_{field.replace('_s', '_seconds') if field.endswith('_s') else field}"
            family = CounterMetricFamily(name, text, labels=["offload_pass"])
            for kind, sums in stats.items():
                family.add_metric([str(kind)], float(getattr(sums, field)))
            yield family
        energy = CounterMetricFamily(
            "greentrain_device_energy_joules",
            "Energy since the device was opened; no sample where nobody knows.",
            labels=["device", "name", "provenance"],
        )
        for uid, device in devices_of(self._engine).items():
            reading = device.energy()
            if reading.energy_j is not None:
                energy.add_metric([uid, device.probe().name, str(reading.provenance)], reading.energy_j)
        yield energy


def devices_of(engine: OffloadEngine) -> Mapping[str, OffloadDevice]:
    """Return the devices of all passes by uid."""
    placements = [place for one in engine.passes.values() for place in (one.device, one.home) if place is not None]
    return {place.handle.device: place.device for place in placements}
