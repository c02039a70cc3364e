"""``greentrain fleet``: policies of a whole cluster on recorded grids, and one plan carried out beside a scheduler.

Exit codes: 0 fine, 1 something is not installed, 2 wrong usage or input, with one line that says what to do.
"""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from greentrain.cli import completion as complete
from greentrain.cli.terminal import Commands, JsonOption, console, ended_by_signal, progress, say
from greentrain.errors import ConfigError

if TYPE_CHECKING:
    from greentrain.config.schema import PrometheusConfig
    from greentrain.control.fleet.controller import FleetController
    from greentrain.simulator.cluster.world import Event

app = typer.Typer(name="fleet", cls=Commands, help="Many jobs on one cluster, as one plan.", no_args_is_help=True)
POLICIES: Final = (
    "fcfs", "carbon_blind", "each_alone", "suspend_resume", "gaia_like", "carbonflex_like", "pcaps_like", "planned",
)  # fmt: skip
"""As of ``greentrain.simulator.cluster.policies``, which needs NumPy."""
GPU_W: Final = 975.0
"""A GPU and its share of the node at full power (W), as of the reference table."""


@app.callback()
def _fleet() -> None:
    """Many jobs on one cluster, as one plan."""


@app.command()
def simulate(
    trace: Annotated[
        list[str] | None, typer.Option("--trace", help="Recorded grid of a site (CSV), may be repeated: several sites.")
    ] = None,
    zones: Annotated[
        str,
        typer.Option(
            help="Sites by their zones' typical years, as in US-CAL-CISO.", autocompletion=complete.grid_zones
        ),
    ] = "",
    jobs: Annotated[
        Path | None, typer.Option(help="Jobs (CSV: release_h,deadline_h,gpus,gpu_h,user) in place of drawn ones.")
    ] = None,
    count: Annotated[int, typer.Option(help="Jobs that are drawn.")] = 40,
    days: Annotated[float, typer.Option(help="Days in which they come.")] = 2.0,
    gpus: Annotated[int, typer.Option(help="GPUs of the cluster, spread evenly over its sites.")] = 128,
    load: Annotated[float, typer.Option(help="Share of the GPUs' time that the jobs take at their fastest.")] = 0.7,
    longest_h: Annotated[float, typer.Option(help="Longest job that is drawn (h).")] = 24.0,
    seed: Annotated[int, typer.Option(help="Seed of the jobs and of failures.")] = 0,
    errors: Annotated[float, typer.Option(help="Deviation of ln(what users say of a length / what it is).")] = 0.0,
    cap: Annotated[float, typer.Option(help="Cap of each site as a share of its GPUs' full power.")] = 0.9,
    respond: Annotated[
        list[str] | None,
        typer.Option(
            help="Demand response, may be repeated: FROM_H,UNTIL_H,SHARE of the cap that is left, of all sites."
        ),
    ] = None,
    failures: Annotated[bool, typer.Option("--failures", help="GPUs fail as those of Llama 3's training did.")] = False,
    known: Annotated[bool, typer.Option("--known", help="Policies know the grid, in place of the forecast.")] = False,
    start_day: Annotated[float, typer.Option(help="Days of the grid before the first job.")] = 21.0,
    step_s: Annotated[float, typer.Option(help="Time between two decisions (s).")] = 3600.0,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Policy, may be repeated, the first is compared with; a file FILE.py with policy() is one, too.",
            autocompletion=complete.one_of(*POLICIES),
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the jobs (CSV) to this file, to send them again.")] = None,
    with_bound: Annotated[
        bool, typer.Option("--bound", help="Tell how far each is from what no plan could better, knowing everything.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare policies of a cluster on recorded grids, as in: greentrain fleet simulate --trace caiso.csv."""
    from greentrain.carbon.forecast import profile_forecast
    from greentrain.simulator.cluster.planned import hindsight
    from greentrain.simulator.cluster.policies import open_policy
    from greentrain.simulator.cluster.result import FleetResult, render
    from greentrain.simulator.cluster.workload import Workload
    from greentrain.simulator.cluster.world import Failures, FleetPool, FleetSite, FleetWorld
    from greentrain.simulator.grids import check_bases, recorded_grid, typical_year
    from greentrain.types import S_PER_HOUR
    from greentrain.utils.validation import bound

    bound("--cap", cap, 0.0, 1e3)
    grids = [recorded_grid(text).trace for text in trace or []]
    grids += [typical_year(zone.strip()).trace for zone in zones.split(",") if zone.strip()]
    if not grids:
        raise ConfigError("no grid is named: say --trace FILE or --zones US-CAL-CISO")
    check_bases([(grid.name, str(grid.basis), grid.accounting) for grid in grids])
    each = gpus // len(grids)
    if jobs is None:
        work = Workload.drawn(
            count=count, days=days, gpus=gpus, load=load, seed=seed, widest=min(512, max(each // 4, 1)),
            longest_h=longest_h,
        )  # fmt: skip
    else:
        work = Workload.read(jobs)
    if errors:
        work = work.with_errors(errors, seed)
    if out is not None:
        work.write(out)
    names = policy or POLICIES
    policies = [open_policy(name) for name in names]
    world = FleetWorld(
        sites=tuple(FleetSite(grid=grid, cap_w=cap * each * GPU_W) for grid in grids),
        pools=tuple(FleetPool(name=grid.name, site=i, gpus=each) for i, grid in enumerate(grids)),
        work=work,
        start_unix_s=max(grid.start_unix_s for grid in grids) + start_day * 24 * S_PER_HOUR,
        forecaster=None if known else profile_forecast,
        events=[_event(text, i) for text in respond or [] for i in range(len(grids))],
        failures=Failures(seed=seed) if failures else None,
        step_s=step_s,
    )
    with progress("simulating", quiet=as_json) as told:
        runs = []
        for number, made in enumerate(policies):
            runs.append(world.run(made))
            told(number + 1, len(policies))
        best = hindsight(world) if with_bound else None
    result = FleetResult(world=world, runs=runs, bound_g=None if best is None or best.missed else best.bound_g)
    if as_json:
        typer.echo(json.dumps(result.to_dict(), indent=1, allow_nan=False))
        return
    console(highlight=False).print(render(result))


SpecArgument = Annotated[Path, typer.Argument(help="fleet.yaml: sites, pools, caps, engine.", show_default=False)]


@app.command()
def plan(
    spec: SpecArgument,
    out: Annotated[Path, typer.Option(help="Write the plan, its prices and its bound (JSON).")] = Path("plan.json"),
    declared: Annotated[
        bool, typer.Option("--declared", help="Plan the jobs of the file alone, as if submitted now; ask no engine.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Plan the jobs that the engine has, tell the plan in words, and change nothing."""
    from dataclasses import replace
    from tempfile import TemporaryDirectory

    from greentrain.control.fleet.controller import FleetController
    from greentrain.control.fleet.engines import Declared, open_engine
    from greentrain.control.fleet.spec import FleetSpec
    from greentrain.ledger.fleet_state import FleetState
    from greentrain.policy.cluster.explain import words
    from greentrain.utils.files import write_json

    fleet = FleetSpec.read(spec)
    if fleet.budget_kg is not None and ("://" in fleet.state or Path(fleet.state).exists()):
        told = FleetState(fleet.state, read_only=True)
        fleet = replace(fleet, budget_kg=max(0.0, fleet.budget_kg - told.now().emitted_g / 1000))
        told.close()
    with TemporaryDirectory(prefix="greentrain-fleet-") as folder:
        state = FleetState(Path(folder) / "fleet.db")
        controller = FleetController(fleet, Declared(fleet) if declared else open_engine(fleet), state, dry_run=True)
        try:
            controller.start()
            controller.turn()
            note = state.now().controller.note
        finally:
            controller.close()
            state.close()
    found = controller.plan
    if note:
        say(f"greentrain: {note}")
    if found is None:
        raise ConfigError(
            f"{spec}: there is no job to plan: tag one for its engine (sbatch --comment"
            " greentrain:hours=6,deadline_h=24), or declare jobs in the file and say --declared"
        )
    write_json(out, found.to_dict())
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=1, allow_nan=False))
        return
    for line in [*words(found), f"{out}: python -m greentrain.policy.check_plan {out}"]:
        console().print(line, markup=False, highlight=False, soft_wrap=True)


@app.command()
def run(
    spec: SpecArgument,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing: tell and note what would be done, and why.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Look and act once, and end.")] = False,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Show metrics to Prometheus at this port; 0: any that is free.")
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(help="Address of that port; another than this machine's own needs a token.")
    ] = "127.0.0.1",
    token_file: Annotated[
        Path | None, typer.Option(help="Holds the token that Prometheus sends; for you alone to read.")
    ] = None,
) -> None:
    """Carry out one plan for all jobs beside their scheduler; start with --dry-run. Ctrl-C leaves jobs as they are."""
    from greentrain.config.schema import PrometheusConfig
    from greentrain.control.fleet.controller import FleetController
    from greentrain.control.fleet.engines import open_engine
    from greentrain.control.fleet.spec import FleetSpec
    from greentrain.ledger.fleet_state import FleetState

    fleet = FleetSpec.read(spec)
    engine, state = open_engine(fleet), FleetState(fleet.state)
    controller = FleetController(fleet, engine, state, dry_run=dry_run, tell=lambda text: typer.echo(text))
    with ExitStack() as stack:
        stack.callback(state.close)
        stack.callback(controller.close)
        controller.start()
        if metrics_port is not None:
            token = None if token_file is None else str(token_file)
            config = PrometheusConfig(port=metrics_port, host=metrics_host, token_file=token)
            _metrics(stack, controller, fleet.state, config)
        if once:
            controller.turn()
            return
        code = controller.run(stack.enter_context(ended_by_signal()))
    if code:
        raise typer.Exit(code)


def _metrics(stack: ExitStack, controller: "FleetController", state: str, config: "PrometheusConfig") -> None:
    from greentrain.report.cluster import Cluster
    from greentrain.report.live.prometheus import FleetMetrics, Page

    cluster = Cluster(Path(), state)
    stack.callback(cluster.close)
    try:
        page = Page(config, 0, FleetMetrics(cluster, lambda: controller.replan_s))
    except OSError as error:
        raise ConfigError(f"--metrics-port {config.port}: nobody can listen there ({error.strerror})") from error
    stack.callback(page.close)
    say(f"Metrics for Prometheus: http://{config.host}:{page.port}/metrics")


@app.command()
def explain(
    job: Annotated[str, typer.Argument(help="Name or id of the job, or how its name begins.", show_default=False)],
    spec: SpecArgument,
    as_json: JsonOption = False,
) -> None:
    """Say why a job waits or runs, until when, at which prices, and what would change it."""
    from dataclasses import asdict

    from greentrain.control.fleet.spec import FleetSpec
    from greentrain.ledger.fleet_state import FleetState
    from greentrain.policy.cluster.explain import why
    from greentrain.policy.cluster.problem import Plan
    from greentrain.types import iso

    state = FleetState(FleetSpec.read(spec).state, read_only=True)
    try:
        now, kept = state.now(), state.plan()
        exact = [one for one in now.jobs if job in (one.name, one.engine_id)]
        found = exact or [one for one in now.jobs if one.name.startswith(job)]
        if len(found) != 1:
            known = ", ".join(one.name for one in found or now.jobs) or "none"
            raise ConfigError(f"job {job!r} is {'more than one' if found else 'none'} of the fleet's; known: {known}")
        actions = state.actions(job=found[0].name, most=5)
    finally:
        state.close()
    one, lines, reason = found[0], list[str](), None
    if kept is not None and one.name in [other["name"] for other in kept["plan"]["problem"]["jobs"]]:
        reason = why(Plan.from_dict(kept["plan"]), one.name, one.seen_s or kept["t_s"])
        lines = reason.told()
    if as_json:
        told = {"job": asdict(one), "why": None if reason is None else asdict(reason)}
        typer.echo(json.dumps({**told, "actions": [asdict(action) for action in actions]}, indent=1, allow_nan=False))
        return
    alive = "" if now.controller.alive else "; nobody controls the fleet now, so it stays so"
    head = f"{one.name} is {one.state}" + (f" on {one.nodes} nodes of {one.pool}" if one.state == "running" else "")
    for line in [
        f"{head}{alive}.", *lines,
        *(f"{iso(a.t_s)} {a.verb} {a.what}: {a.reason} [{a.outcome or 'cut off'}]" for a in actions),
    ]:  # fmt: skip
        console().print(line, markup=False, highlight=False, soft_wrap=True)


def _event(text: str, site: int) -> "Event":
    from greentrain.simulator.cluster.world import Event
    from greentrain.types import S_PER_HOUR

    try:
        from_h, until_h, share = (float(word) for word in text.split(","))
        if not (0 <= from_h < until_h and 0 <= share <= 1):
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"--respond {text!r} is no FROM_H,UNTIL_H,SHARE with 0 <= FROM_H < UNTIL_H and a share from 0 to 1, as in"
            " 40,44,0.7"
        ) from None
    return Event(from_s=from_h * S_PER_HOUR, until_s=until_h * S_PER_HOUR, cap_share=share, site=site)
