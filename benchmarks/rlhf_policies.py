"""Where passes run under each policy, held to the oracle: the four workloads of the mix, on runs no policy has seen.

    python benchmarks/rlhf_policies.py            # a minute or two, one thread
    python benchmarks/rlhf_policies.py --quick    # to see that it runs
    python benchmarks/rlhf_policies.py --into docs/rlhf-scheduler.md

A policy sees costs with the scatter of a measurement (2 %) and is judged by the true ones; sequences grow and shrink
from decision to decision. **Costs are drawn from assumed ranges** (``tools.placement_tasks``), and the
judge is the timeline that rule and oracle use themselves: the table compares policies with one another, and says
nothing of any GPU or card.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.marks import facts, put
from benchmarks.metering import machine
from greentrain.policy.offload.ppo import CHOICES
from greentrain.policy.offload.rule import OffloadOracle
from greentrain.policy.offload.stages import MOVABLE, Plan, Where, all_gpu, label
from greentrain.policy.offload.view import OffloadView
from tools.offload_policies import NAMES, open_offload_policy
from tools.placement_env import DECISIONS, NOISE, PlacementEnv
from tools.placement_tasks import TASKS, Task

RUNS = 125
"""Of each workload, of 8 decisions each."""
SEED = 20_000
"""The training of ppo begins with seeds of 0 to 15."""
MIX = "the mix, 40/25/20/15"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A policy on a workload: means over the drawn steps."""

    task: str
    policy: str
    step_s: float
    energy_kj: float
    step: float
    """Step time against everything on the GPU."""
    energy: float
    """Joules against everything on the GPU."""
    regret: float
    """Joules more than the oracle's plan, as a share, of plans within the bound."""
    regret_p99: float
    late: float
    """Share of steps that are longer than the bound allows."""
    same: float
    """Share of steps on which the oracle's plan was found."""
    decide_ms: float


def judged(task: Task, name: str, runs: int) -> Row:
    """Return how a policy does on a workload."""
    policy, oracle = open_offload_policy(name), OffloadOracle()
    env = PlacementEnv(task)
    figures: list[tuple[float, ...]] = []
    for run in range(runs):
        env.reset(seed=SEED + run)
        over = False
        while not over:
            true = env.true
            began_s = time.perf_counter()
            plan = policy.choose(env.seen)
            took_s = time.perf_counter() - began_s
            figures.append((*_figures(true, plan, oracle.choose(true)), 1000 * took_s))
            _, _, over, _, _ = env.step(np.array([CHOICES.index(plan.get(s, Where.GPU)) for s in MOVABLE]))
    columns = np.array(figures).T
    return Row(
        task=task.name,
        policy=name,
        step_s=float(columns[0].mean()),
        energy_kj=float(columns[1].mean()),
        step=float(columns[2].mean()),
        energy=float(columns[3].mean()),
        regret=float(np.nanmean(columns[4])),
        regret_p99=float(np.nanquantile(columns[4], 0.99)),
        late=float(columns[5].mean()),
        same=float(columns[6].mean()),
        decide_ms=float(np.median(columns[7])),
    )


def _figures(true: OffloadView, plan: Plan, best_plan: Plan) -> tuple[float, ...]:
    """Return the columns of a decision, by the true costs."""
    step, best, gpu = (true.step(each) for each in (plan, best_plan, all_gpu(true.table)))
    joules, best_j, gpu_j = (true.objective.cost_j(each) or np.nan for each in (step, best, gpu))
    allowed = replace(true.objective, max_slowdown=true.objective.max_slowdown + NOISE).allows(step, gpu)
    return (
        step.step_s,
        joules / 1000,
        step.step_s / gpu.step_s,
        joules / gpu_j,
        joules / best_j - 1 if allowed else np.nan,
        float(not allowed),
        float(label(plan) == label(best_plan)),
    )


def mixed(rows: Sequence[Row], weights: Mapping[str, float]) -> Row:
    """Return a policy's means over the mix."""
    share = np.array([weights[row.task] for row in rows])

    def mean(name: str) -> float:
        return float(np.average([getattr(row, name) for row in rows], weights=share))

    fields = [name for name in asdict(rows[0]) if name not in ("task", "policy")]
    return Row(task=MIX, policy=rows[0].policy, **{name: mean(name) for name in fields})


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, and which of rule and network is better."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 runs a workload: to see that it runs")
    parser.add_argument("--policy", action="append", choices=NAMES, help="only this policy (may be repeated)")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--into", type=Path, help="also put the table into this text, between its two marks")
    args = parser.parse_args(argv)
    if args.into is not None and (args.quick or args.policy):
        parser.error("--into replaces the whole table, so it goes without --quick and --policy")
    names = args.policy or NAMES
    runs = 3 if args.quick else RUNS
    found = {name: [judged(task, name, runs) for task in TASKS] for name in names}
    for rows in found.values():
        rows.append(mixed(rows, {task.name: task.weight for task in TASKS}))
    about = machine("benchmarks/rlhf_policies.py")
    parts = [facts(about)]
    parts.append(table([rows[i] for i in range(len(TASKS) + 1) for rows in found.values()], runs * DECISIONS))
    if {"edi-rule", "ppo"} <= found.keys():
        parts.append(verdict(found["edi-rule"], found["ppo"]))
    text = "\n\n".join(parts)
    print(text)
    if args.into is not None:
        put(text, args.into)
    if args.json is not None:
        rows_json = [asdict(row) for rows in found.values() for row in rows]
        args.json.write_text(json.dumps({"about": about, "rows": rows_json}, indent=1) + "\n", encoding="utf-8")
    return 0


def table(rows: Sequence[Row], decisions: int) -> str:
    """Return the rows as Markdown."""
    head = (
        "workload | policy | step s | kJ a step | step / gpu | J / gpu | regret | p99 | too long | oracle's plan | ms"
    )
    lines = [f"| {head} |", "|---|---|" + "---:|" * 9]
    lines += [
        f"| {r.task} | {r.policy} | {r.step_s:.2f} | {r.energy_kj:.2f} | {r.step:.3f} | {r.energy:.3f} | "
        f"{r.regret:.2%} | {r.regret_p99:.1%} | {r.late:.1%} | {r.same:.0%} | {r.decide_ms:.2f} |"
        for r in rows
    ]
    bound = 1.02 + NOISE
    lines += [
        "",
        f"{decisions} decisions a workload. Regret: joules above the plan of an oracle that knows the true costs. "
        f"Too long: steps above {bound:g} times all on the GPU, the bound and the scatter; they are in no regret. The "
        "oracle of the table sees the scatter as the others do; between bound and scatter a plan can be below the "
        "other one's. In the row of the mix p99 is the mean of the workloads'.",
    ]
    return "\n".join(lines)


def verdict(rule: Sequence[Row], ppo: Sequence[Row]) -> str:
    """Return where the rule is better than the network, in words."""
    won = [r.task for r, p in zip(rule[:-1], ppo[:-1], strict=True) if (r.regret, r.late) <= (p.regret, p.late)]
    rule_mix, ppo_mix = rule[-1], ppo[-1]
    return (
        f"edi-rule has the lower regret on {len(won)} of {len(rule) - 1} workloads; over the mix {rule_mix.regret:.2%} "
        f"and {rule_mix.late:.1%} of steps too long, ppo {ppo_mix.regret:.2%} and {ppo_mix.late:.1%}."
    )


if __name__ == "__main__":
    raise SystemExit(main())
