"""Figures for Prometheus of a running job, or of a fleet: on a page of this process, or in a file for node_exporter."""

import contextlib
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from greentrain.config.schema import PrometheusConfig
from greentrain.errors import ConfigError
from greentrain.report.fleet.totals import finite
from greentrain.report.live.snapshot import OFF, TICKS, DeviceNow, MissingSeconds, PlanNow, Snapshot
from greentrain.utils.files import replace_file
from greentrain.utils.http_access import Access, kept_token
from greentrain.utils.http_server import HostLimits, HttpReply, HttpRequest, ThreadHost, listen
from greentrain.utils.imports import try_import
from greentrain.utils.version import __version__

if TYPE_CHECKING:
    from greentrain.ledger.fleet_state import FleetNow
    from greentrain.report.cluster import Cluster, ClusterNow

with try_import("export") as _imports:
    from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

READ_S: Final = 10.0
"""A client that is silent for longer while it asks is dropped (s)."""
TEXTFILE_S: Final = 5.0
"""Time between two writings of a textfile (s); node_exporter is scraped more rarely, usually every 15 s or more."""
_JOB: Final = ("run", "rank")
_DEVICE: Final = (*_JOB, "device", "kind", "provenance")


class SnapshotMetrics:
    """Makes metrics of the latest snapshot, when asked. A collector of ``prometheus_client``."""

    def __init__(self) -> None:
        self._now: Snapshot | None = None
        self._missing = MissingSeconds()

    def update(self, snapshot: Snapshot) -> None:
        """Show these figures from now on."""
        self._missing.update(snapshot)
        self._now = snapshot

    def describe(self) -> "Iterable[Metric]":
        """Return nothing: what is shown depends on what is known."""
        return ()

    def collect(self) -> "Iterator[Metric]":
        """Yield what is known; what is not has no sample."""
        now = self._now
        if now is not None:
            yield from (metric for metric in self._of(now) if metric.samples)

    def _of(self, now: Snapshot) -> "Iterator[Metric]":
        job = [now.run_id, str(now.rank)]
        yield _gauge("up", "1 while the rank's session runs.", [(job, 1.0)])
        info = [*job, now.name, now.host, __version__]
        yield _gauge("run_info", "The run, by name.", [(info, 1.0)], (*_JOB, "name", "host", "version"))
        yield _gauge("world_size", "Ranks of the job.", [(job, float(now.world_size))])
        yield from self._devices(now, job)
        yield from _carbon(now, job)
        yield from _progress(now, job)
        if now.plan is not None:
            yield from _plan(now.plan, job)

    def _devices(self, now: Snapshot, job: list[str]) -> "Iterator[Metric]":
        def of(what: Callable[[DeviceNow], float | None]) -> list[tuple[list[str], float | None]]:
            return [([*job, d.uid, d.kind, d.provenance], what(d)) for d in now.devices]

        yield _counter("energy_joules", "IT energy of the run.", of(lambda d: d.energy_j), _DEVICE)
        yield _gauge("power_watts", "Power now.", of(lambda d: d.power_w), _DEVICE)
        firsts = now.by_uid.values()
        names = [([*job, d.uid, d.kind, d.name], 1.0) for d in firsts]
        yield _gauge("device_info", "Devices, by name.", names, (*_JOB, "device", "kind", "name"))
        text = "Seconds in which a device's energy was not known."
        missing = [([*job, d.uid, d.kind], self._missing.by_uid.get(d.uid, 0.0)) for d in firsts]
        yield _counter("sensor_missing_seconds", text, missing, _DEVICE[:4])
        watts = [([*job, d.uid, d.kind], d.limit_w) for d in firsts]
        yield _gauge("power_limit_watts", "Power limit that the run has set.", watts, _DEVICE[:4])
        shares = [([*job, d.uid, d.kind], d.limit_share) for d in firsts]
        yield _gauge("power_limit_ratio", "The same, over the limit found.", shares, _DEVICE[:4])
        for name, key, text in TICKS:
            ticks = [([*job, d.uid, d.kind], d.told.get(key)) for d in firsts]
            yield _gauge(f"sensor_{name}_seconds", f"{text}.", ticks, _DEVICE[:4])
        busy = [([*job, d.uid, phase, of], share) for d, phase, of, share in now.utilisations]
        text = "Share of the last booked interval in which a kernel ran (sm) or memory was accessed; no occupancy."
        yield _gauge("utilisation_ratio", text, busy, (*_JOB, "device", "phase", "of"))
        warm = [([*job, d.uid, d.kind], celsius) for d, celsius in now.temperatures]
        yield _gauge("temperature_celsius", "Of a device, mean of the last booked interval.", warm, _DEVICE[:4])
        slowed = [([*job, d.uid, why], seconds) for d, why, seconds in now.slowed]
        text = "Time in which a device's clocks were held down: thermal, power or brake."
        yield _counter("slowed_seconds", text, slowed, (*_JOB, "device", "reason"))
        errors = [([*job, d.uid, phase, how], error) for d, phase, how, error in now.phase_errors]
        text = "Standard error of a phase's energy over it: resolved, regressed, or blurred, which is not told."
        yield _gauge("phase_error_ratio", text, errors, (*_JOB, "device", "phase", "attribution"))
        labels = (*_JOB, "phase", "kind", "provenance")
        text = "Energy of a phase on devices of a kind over all tokens of the rank (Energy Density Index)."
        found = [([*job, use.stage, use.kind, use.provenance], use.j_per_token) for use in now.stages]
        yield _gauge("phase_joules_per_token", text, found, labels)


def _carbon(now: Snapshot, job: list[str]) -> "Iterator[Metric]":
    scopes = (("location", now.operational_g), ("market", now.market_g), ("embodied", now.embodied_g))
    grams = [([*job, scope], value) for scope, value in scopes]
    yield _counter("emissions_grams", "CO2e of the run; location and market by GHG scope 2.", grams, (*_JOB, "scope"))
    text = "IT energy whose carbon intensity was not known: in no gram figure."
    yield _counter("unpriced_energy_joules", text, [(job, now.unpriced_j)])
    money = [([*job, currency], amount) for currency, amount in now.cost.items()]
    yield _gauge("electricity_cost", "Money for electricity, PUE included.", money, (*_JOB, "currency"))
    price = [([*job, currency], now.per_kwh) for currency in now.cost]
    yield _gauge("electricity_price_per_kwh", "Of electricity, last booked.", price, (*_JOB, "currency"))
    grid = [*job, now.zone or "", now.kind or "", now.basis or ""]
    labels = (*_JOB, "zone", "kind", "basis")
    yield _gauge("carbon_intensity_grams_per_kwh", "Of the grid, last booked.", [(grid, now.g_per_kwh)], labels)
    yield _gauge("pue_ratio", "Facility energy / IT energy.", [([*job, now.pue_source or ""], now.pue)], _PUE)
    if now.saved is not None:
        text = "CO2e that the plan has saved against the usual training begun at once, by its table."
        saved = [*job, now.saved.provenance, now.saved.against]
        yield _gauge("saved_grams", text, [(saved, now.saved.grams)], (*_JOB, "provenance", "against"))
    yield _gauge("budget_grams", "policy.budget_g, of the whole job.", [(job, now.budget_g)])


_PUE: Final = (*_JOB, "source")


def _progress(now: Snapshot, job: list[str]) -> "Iterator[Metric]":
    yield _counter("steps", "Optimizer steps.", [(job, float(now.steps))])
    yield _counter("tokens", "Tokens of this rank; no sample before any.", [(job, float(now.tokens) or None)])
    yield _counter("samples", "Samples of this rank; no sample before any.", [(job, float(now.samples) or None)])
    yield _counter("booked_seconds", "Time for which the sums stand.", [(job, now.duration_s)])
    yield _gauge("last_booking_timestamp_seconds", "Until when the sums count.", [(job, now.booked_unix_s)])
    yield _gauge("last_update_timestamp_seconds", "When these figures were taken.", [(job, now.t_unix_s)])
    gears = dict.fromkeys((*now.gears, *([now.gear] if now.gear else [])))
    states = [([*job, gear], float(gear == now.gear)) for gear in gears]
    yield _gauge("gear", "1 for the precision gear in use, 0 for the others.", states, (*_JOB, "gear"))


def _plan(plan: PlanNow, job: list[str]) -> "Iterator[Metric]":
    yield _gauge("plan_paused", "1 while the plan holds the job.", [(job, float(plan.paused))])
    action = [*job, OFF if plan.paused else plan.action]
    yield _gauge("plan_action_info", "What the plan has decided on.", [(action, 1.0)], (*_JOB, "action"))
    for name, text, value in (
        ("plan_next_decision_timestamp_seconds", "When the plan decides again.", plan.next_unix_s),
        ("plan_resume_timestamp_seconds", "When a pause would end, by the forecast.", plan.resume_unix_s),
        ("plan_deadline_timestamp_seconds", "When the job has to be done.", plan.deadline_unix_s),
        ("plan_tokens", "Tokens of the whole job.", plan.tokens),
    ):
        yield _gauge(name, text, [(job, value)])


_FLEET: Final = ("fleet",)
_STATES: Final = ("held", "queued", "running", "ending")
"""Of jobs that a controller still has; of others it may say nothing."""
_MOST_ACTIONS: Final = 5000
"""Between two scrapes; of more some are not counted."""


class FleetMetrics:
    """Makes metrics of the state that a fleet's controller keeps, when asked. A collector of ``prometheus_client``.

    ``Page(PrometheusConfig(port=PORT), 0, FleetMetrics(Cluster(FOLDER, STATE)))`` shows them. A state that cannot be
    read is no answer: to Prometheus the target is down. Grams count from a day before the first scrape.

    Args:
        cluster: The fleet.
        replan_s: Returns what the controller took for its last plan (s); None: not known.
    """

    def __init__(self, cluster: "Cluster", replan_s: Callable[[], float | None] = lambda: None) -> None:
        self._cluster, self._replan_s = cluster, replan_s
        self._grams: Counter[str] = Counter()
        self._until_s: dict[str, float] = {}
        self._actions: Counter[tuple[str, str]] = Counter()
        self._counted: frozenset[int] = frozenset()

    def collect(self) -> "Iterator[Metric]":
        """Yield what is known; what is not has no sample.

        Raises:
            FleetStateError: The state cannot be read.
            RunFolderError: Its plan is none.
        """
        store, now = self._cluster.store(), self._cluster.now(time.time())
        fleet = store.now() if now is None or now.fleet is None else now.fleet
        done = {one.seq: one for one in store.actions(most=_MOST_ACTIONS) if one.outcome is not None}
        fresh = [done[seq] for seq in done.keys() - self._counted]
        self._actions.update((one.verb, str(one.outcome).partition(":")[0]) for one in fresh)
        self._counted = frozenset(done)
        for sample in () if now is None else now.samples:
            if sample.t_s > self._until_s.get(sample.site, 0.0):
                self._until_s[sample.site] = sample.t_s
                self._grams[sample.site] += sample.grams or 0.0  # type: ignore[assignment]
        found = [*self._of(fleet, [fleet.name]), *(() if now is None else _of_plan(now, fleet, [fleet.name]))]
        yield from (metric for metric in found if metric.samples)

    def _of(self, fleet: "FleetNow", me: list[str]) -> "Iterator[Metric]":
        states = Counter([*_STATES, *(job.state for job in fleet.jobs)])
        jobs = [([*me, state], float(number - (state in _STATES))) for state, number in states.items()]
        actions = [([*me, verb, outcome], float(n)) for (verb, outcome), n in self._actions.items()]
        grams = [([*me, site], value) for site, value in self._grams.items()]
        text = "1 while a controller is heard of within its lease."
        yield _gauge("fleet_controller_alive", text, [(me, float(fleet.controller.alive))], _FLEET)
        heard = [(me, fleet.controller.beat_s or None)]
        yield _gauge("fleet_heartbeat_timestamp_seconds", "When the controller was last heard of.", heard, _FLEET)
        yield _gauge("fleet_replan_seconds", "What the last plan took.", [(me, self._replan_s())], _FLEET)
        yield _gauge("fleet_jobs", "Jobs, by state.", jobs, (*_FLEET, "state"))
        yield _counter("fleet_actions", "What the controller did, by outcome.", actions, (*_FLEET, "verb", "outcome"))
        yield _counter("fleet_emissions_grams", "CO2e of the jobs, as far as it is known.", grams, (*_FLEET, "site"))


def _of_plan(now: "ClusterNow", fleet: "FleetNow", me: list[str]) -> "Iterator[Metric]":
    plan, problem, at = now.plan, now.plan.problem, now.step
    last = {sample.site: sample for sample in now.samples} if fleet.controller.alive else {}  # else nobody knows of now
    watts = [([*me, sample.site, sample.basis], sample.power_w) for sample in last.values()]
    text = "Facility power of the jobs at a site, above that of idle nodes."
    yield _gauge("fleet_power_watts", text, watts, (*_FLEET, "site", "provenance"))
    caps = [[last[site.name].cap_w] * (at + 1) if site.name in last else site.power_cap_w for site in problem.sites]
    of_sites = (
        ("power_cap_watts", "Cap of a site, as the controller has it.", caps),
        ("planned_power_watts", "Power of the jobs by the plan, modelled.", now.power_w),
        ("carbon_intensity_grams_per_kwh", "Of the grid, by the plan.", [site.g_per_kwh for site in problem.sites]),
        ("watt_price_grams_per_kwh", "What scarce watts add to a kWh of IT.", now.watt_price),
    )
    of_pools = (
        ("nodes", "Nodes that there are for the fleet.", problem.nodes),
        ("planned_nodes", "Nodes that jobs have by the plan.", plan.used_nodes()),
        ("node_price_grams_per_hour", "What a node is worth.", now.node_price),
    )
    places: Any
    for label, places, families in (("site", problem.sites, of_sites), ("pool", problem.pools, of_pools)):
        for name, text, values in families:
            found = [([*me, place.name], finite(values[i][at])) for i, place in enumerate(places)]
            yield _gauge(f"fleet_{name}", text, found, (*_FLEET, label))
    for name, text, value in (
        ("planned_grams", "What the jobs of the plan will emit, modelled.", plan.grams + plan.late_g),
        ("bound_grams", "No plan that meets the same deadlines emits less.", plan.bound_g),
        ("bound_gap_ratio", "By what share of the bound the plan emits more.", plan.gap),
        ("budget_grams", "What the jobs of the plan may emit.", problem.budget_g),
        ("plan_timestamp_seconds", "When the plan begins.", float(problem.edges_s[0])),
    ):
        yield _gauge(f"fleet_{name}", text, [(me, finite(value))], _FLEET)
    misses, planned = {"yes": 0.0, "no": 0.0}, {job.name: job for job in problem.jobs}
    for job in fleet.jobs:
        if job.late and job.state in _STATES:
            own = planned.get(job.name)
            need_s = math.inf if own is None else own.tokens / max(r.tokens_per_s for r in own.rows) + own.switch_s
            due_s = -math.inf if own is None else own.deadline_s if job.deadline_s is None else job.deadline_s
            misses["yes" if now.t_s + need_s <= due_s else "no"] += 1
    text = "Jobs that miss their deadlines by the plan; reachable: alone, in its fastest row, such a job would not."
    missed = [([*me, which], number) for which, number in misses.items()]
    yield _gauge("fleet_predicted_misses", text, missed, (*_FLEET, "reachable"))


Samples = Iterable[tuple[list[str], float | None]]


def _gauge(name: str, text: str, samples: Samples, labels: tuple[str, ...] = _JOB) -> "Metric":
    return _filled(GaugeMetricFamily(f"greentrain_{name}", text, labels=labels), samples)


def _counter(name: str, text: str, samples: Samples, labels: tuple[str, ...] = _JOB) -> "Metric":
    return _filled(CounterMetricFamily(f"greentrain_{name}", text, labels=labels), samples)


def _filled(family: Any, samples: Samples) -> "Metric":
    for labels, value in samples:
        if value is not None:
            family.add_metric(labels, value)
    return family  # type: ignore[no-any-return]


class Page:
    """A small HTTP server in threads of its own; a scrape makes the text, nothing does otherwise.

    Args:
        config: Section ``export.prometheus``.
        local_rank: Rank of this process on its machine, added to a port other than 0.
        figures: What is shown; None: the snapshots that :meth:`update` gets.

    Raises:
        ConfigError: The token file cannot be read, can be read by others, or holds too short a token.
        MissingExtraError: prometheus_client is not installed.
        OSError: Nobody can listen at this address and port.
    """

    def __init__(self, config: PrometheusConfig, local_rank: int, figures: FleetMetrics | None = None) -> None:
        _imports.check()
        token = None if config.token_file is None else kept_token(Path(config.token_file))
        self._figures = SnapshotMetrics()
        registry = CollectorRegistry()
        registry.register(figures or self._figures)
        self._metrics: Callable[..., Iterable[bytes]] = make_wsgi_app(registry)
        self._access = Access(token)
        self._host = ThreadHost(
            listen(config.host, config.port + local_rank if config.port else 0),
            self._answer,
            name="greentrain-prometheus-page",
            limits=HostLimits(connections=32, receive_s=READ_S, send_s=READ_S),
            busy=_text(503, "too many scrapes at a time"),
            keeps_open=False,
        )
        self.port = self._host.port
        """TCP port."""
        self.close = self._host.close
        """Gives the port back. Idempotent."""

    def update(self, snapshot: Snapshot) -> None:
        """Show these figures from now on."""
        self._figures.update(snapshot)

    def _answer(self, request: HttpRequest) -> HttpReply:
        """Return the metrics, in the form and encoding that prometheus_client chooses for the client."""
        if not self._access.allows(request.raw_headers):
            if self._access.is_open:
                return _text(403, "without export.prometheus.token_file only requests to localhost are answered")
            told = "send the token of export.prometheus.token_file as Authorization: Bearer"
            return _text(401, told, {"WWW-Authenticate": "Bearer"})
        head: dict[str, Any] = {}
        environ = {
            "REQUEST_METHOD": request.method,
            "PATH_INFO": request.path,
            "QUERY_STRING": request.query,
            "HTTP_ACCEPT": request.headers.get("accept"),
            "HTTP_ACCEPT_ENCODING": request.headers.get("accept-encoding"),
        }
        body = b"".join(self._metrics(environ, lambda status, headers, *_: head.update(status=status, headers=headers)))
        return HttpReply(status=int(head["status"].split()[0]), body=body, headers=dict(head["headers"]))


def _text(status: int, text: str, headers: Mapping[str, str] | None = None) -> HttpReply:
    return HttpReply(
        status=status, body=f"{text}\n".encode(), headers={"Content-Type": "text/plain", **(headers or {})}
    )


class Textfile:
    """A file for node_exporter's textfile collector, gone when the run ends.

    Args:
        folder: Folder that node_exporter reads; created when missing.
        name: Name of the file, without suffix.

    Raises:
        ConfigError: Nothing can be written there.
        MissingExtraError: prometheus_client is not installed.
    """

    def __init__(self, folder: Path, name: str) -> None:
        _imports.check()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"export.prometheus.textfile: cannot make {folder}: {error.strerror}") from error
        if not os.access(folder, os.W_OK):
            raise ConfigError(
                f"export.prometheus.textfile: cannot write to {folder}; make it writable, or drop the key"
            )
        self.path = folder / f"{name}.prom"
        self._figures = SnapshotMetrics()
        self._registry = CollectorRegistry()
        self._registry.register(self._figures)
        self._next_s = 0.0

    def update(self, snapshot: Snapshot) -> None:
        """Write the figures, at most every ``TEXTFILE_S``.

        Raises:
            OSError: The disk refuses; the file stays as it was.
        """
        self._figures.update(snapshot)
        if snapshot.t_unix_s < self._next_s:
            return
        self._next_s = snapshot.t_unix_s + TEXTFILE_S
        replace_file(self.path, generate_latest(self._registry))

    def close(self) -> None:
        """Remove the file, whose figures would be shown for ever. Idempotent."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
