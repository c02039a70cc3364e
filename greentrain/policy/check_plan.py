"""Checks the plan of a cluster, and the bound that it states: ``python -m greentrain.policy.check_plan plan.json``.

Shares no code with the planner and rounds nothing: every number of the file is the fraction that its digits say. It
walks all jobs through their steps (windows, tokens, starts, shortest stays), adds up nodes, watts and grams, and works
out the bound from the prices in the file: whatever prices are, as long as none is below 0, no plan that meets the same
deadlines emits less than its jobs cost at their cheapest paths, with their tokens' worth added and the capacity's
taken off (weak duality). So nobody has to believe how prices were found. docs/cluster-plan.md has the model in words.
"""

import hashlib
import json
import sys
from bisect import bisect_left, bisect_right
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

NEAR: Final = Fraction(1, 10**9)
"""Share by which sums in the file, made of doubles, may differ from exact ones."""
BLUNT: Final = Fraction(1, 10**6)
"""Share of the sums behind a bound that it may lie below what its prices prove."""
NEAR_S: Final = Fraction(1, 10**6)
"""Times this close are one (s)."""
_J_PER_KWH: Final = 3_600_000
_Cell = tuple[str, int]


class _WrongError(Exception):
    """The plan is not what it says."""


def check(text: str) -> tuple[Fraction, Fraction]:
    """Return grams of the jobs that meet their deadlines, and the bound, both exact.

    Args:
        text: A plan as JSON.

    Raises:
        ValueError: Something in it is not so; the message says what.
    """
    try:
        plain = json.loads(text)
        said = plain.pop("sha256")
        canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        if hashlib.sha256(canonical.encode("ascii")).hexdigest() != said:
            raise _WrongError("its SHA-256 is of another text: something was changed after it was written")
        exact = json.loads(text, parse_float=Fraction, parse_constant=Fraction)
        if (exact["kind"], exact["format"]) != ("greentrain cluster plan", 1):
            raise _WrongError("it is no plan of a cluster in format 1")
        return _Check(exact).result()
    except (KeyError, IndexError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"it has not the shape of a plan: {type(error).__name__}: {error}") from error
    except _WrongError as error:
        raise ValueError(str(error)) from error


class _Check:
    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan, problem, self.gram = plan, plan["problem"], Fraction(1)
        self.edges = [Fraction(edge) for edge in problem["edges_s"]]
        self.length = [b - a for a, b in pairwise(self.edges)]
        self.steps = range(len(self.length))
        self.jobs, self.budget, sites, pools = problem["jobs"], problem["budget_g"], problem["sites"], problem["pools"]
        self.sites, self.pools = ([one["name"] for one in some] for some in (sites, pools))
        self.site_of = [self.sites.index(pool["site"]) for pool in pools]
        _need(self.length and min(self.length) > 0, "its steps have no length")
        for site in sites:
            series = [site["g_per_kwh"], site["pue"], [cap for cap in site["power_cap_w"] if cap is not None]]
            _need(all(value >= 0 for one in series for value in one), "a figure of a site is below 0")
            _need(len(site["g_per_kwh"]) == len(site["pue"]) == len(site["power_cap_w"]) == len(self.length), "a gap")
        _need(all(len(pool["nodes"]) == len(self.length) for pool in pools), "a pool has another length")
        _need(len({job["name"] for job in self.jobs}) == len(self.jobs) == len(plan["jobs"]), "jobs and paths differ")
        caps = [zip(site["power_cap_w"], site["pue"], strict=True) for site in sites]
        self.room: dict[_Cell, list[Any]] = {
            **{("nodes", i): pool["nodes"] for i, pool in enumerate(pools)},
            **{
                ("watts", i): [None if w is None else Fraction(w) / pue for w, pue in cap] for i, cap in enumerate(caps)
            },
        }
        """Nodes of a pool, and watts of IT of a site, by step; None: no limit."""
        self.used = {cell: [Fraction(0)] * len(self.length) for cell in self.room}
        rates = [zip(site["g_per_kwh"], site["pue"], self.length, strict=True) for site in sites]
        self.gram_per_w = [[Fraction(g) * pue * s / _J_PER_KWH for g, pue, s in rate] for rate in rates]

    def result(self) -> tuple[Fraction, Fraction]:
        missed: list[str] = self.plan["missed"]
        _need(set(missed) <= {job["name"] for job in self.jobs}, "a job that is none misses its deadline")
        grams, late = Fraction(0), Fraction(0)
        for job, runs in zip(self.jobs, self.plan["jobs"], strict=True):
            emitted = self.walk(job, runs, late=job["name"] in missed)
            grams, late = (grams, late + emitted) if job["name"] in missed else (grams + emitted, late)
        for cell, used in self.used.items():
            for t, (most, found) in enumerate(zip(self.room[cell], used, strict=True)):
                _need(most is None or found <= most, f"step {t} has {float(found):g} of {most} {cell[0]} in use")
        _need(self.budget is None or grams + late <= self.budget, f"{float(grams + late):g} g are over the budget")
        for name, said, found in (("grams", self.plan["grams"], grams), ("late_g", self.plan["late_g"], late)):
            _need(abs(said - found) <= NEAR * found, f"{name} is {float(said):.12g} and should be {float(found):.12g}")
        bound, scale = self.bound(self.plan["prices"], [None] * len(self.jobs), missed)
        stated = Fraction(self.plan["bound_g"])
        proven = bound - BLUNT * scale <= stated <= max(bound, Fraction(0))
        _need(proven, f"bound_g is {float(stated):.12g}; its prices prove {float(bound):.12g}")
        if "misses" in self.plan:  # the same in weights of misses: a gram is worth some, a job is its miss at most
            why = self.plan["misses"]
            self.gram = Fraction(why["gram"])
            _need(self.gram >= 0 and (self.gram == 0 or self.budget is not None), "a gram has a worth, and no budget")
            least = self.bound(why, [Fraction(job["priority"]) for job in self.jobs], [])[0]
            least -= self.gram * (self.budget or 0)
            stated_least = Fraction(why["least"])
            _need(
                stated_least <= max(least, Fraction(0)),
                f"{why['least']} is missed at least; proven is {float(least):g}",
            )
            weight = sum(Fraction(job["priority"]) for job in self.jobs if job["name"] in missed)
            _need(stated_least <= weight, "less is missed than every plan misses")
        return grams, stated

    def form(self, row: dict[str, Any]) -> tuple[int, int]:
        return self.pools.index(row["pool"]), row["nodes"]

    def fits(self, row: dict[str, Any], t: int) -> bool:
        """Return whether a row fits into the empty cluster."""
        pool, nodes = self.form(row)
        room = self.room["watts", self.site_of[pool]][t]
        return bool(nodes <= self.room["nodes", pool][t] and (room is None or row["power_w"] <= room))

    def until(self, t: int, stay_s: Any) -> int:
        """Return the first edge that ends a stay."""
        return min(bisect_left(self.edges, self.edges[t] + stay_s - NEAR_S), len(self.length))

    def begins(self, job: dict[str, Any]) -> tuple[tuple[int, int] | None, int | None, int]:
        """Return the form in which a job runs, if it still can; the site that it begins from; steps it has to stay."""
        if job["current"] is None:
            return None, None if job["site"] is None else self.sites.index(job["site"]), 0
        form = self.form(job["rows"][job["current"]])
        able = any(self.fits(row, 0) for row in job["rows"] if self.form(row) == form)
        left_s = 0 if job["held_s"] is None else max(0, job["min_run_s"] - job["held_s"])
        return form if able else None, self.site_of[form[0]], self.until(0, left_s) if able and left_s else 0

    def lost(self, job: dict[str, Any], form: tuple[int, int], place: int | None) -> tuple[Any, Any]:
        """Return tokens and grams that a start costs."""
        away = place is not None and place != self.site_of[form[0]]
        fastest = max(row["tokens_per_s"] for row in job["rows"] if self.form(row) == form)
        return fastest * (job["switch_s"] + away * job["move_s"]), job["switch_g"] + away * job["move_g"]

    def walk(self, job: dict[str, Any], runs: list[list[int]], *, late: bool) -> Fraction:
        """Return what a job emits; raise where its path is none."""
        name, last_s = f"job {job['name']!r}", self.edges[-1] if late else job["deadline_s"]
        was, place, stay = self.begins(job)
        done, grams, end, since = Fraction(0), Fraction(0), 0, Fraction(0)
        held = job["held_s"]
        begun = self.edges[0] - (held if held is not None else job["min_run_s"])
        _need(late or not stay or (runs and runs[0][0] == 0), f"{name} is stopped before its shortest stay")
        for k, (a, b, index) in enumerate(runs):
            _need(end <= a < b <= len(self.length) and 0 <= index < len(job["rows"]), f"{name}: run {k} is none")
            _need(self.edges[a] >= job["release_s"] and self.edges[b] <= last_s, f"{name}: run {k} is out of its time")
            row = job["rows"][index]
            form = self.form(row)
            if form != was or a != end:
                left = was is not None and (k > 0 or not late) and since - begun < job["min_run_s"] - NEAR_S
                _need(not left or (k == 0 and not stay), f"{name} leaves before its shortest stay, in run {k}")
                tokens, emitted = self.lost(job, form, place)
                done, grams, begun = done - tokens, grams + emitted, self.edges[a]
            was, place, end = form, self.site_of[form[0]], b
            since = self.edges[b]
            for t in range(a, b):
                _need(done < job["tokens"] * (1 - NEAR), f"{name} runs on in step {t}, its tokens being done")
                self.used["nodes", form[0]][t] += row["nodes"]
                self.used["watts", place][t] += row["power_w"]
                step = row["tokens_per_s"] * self.length[t]
                share = min(Fraction(1), (job["tokens"] - done) / step) if step else Fraction(1)
                done, grams = done + step, grams + share * row["power_w"] * self.gram_per_w[place][t]
        _need(
            late or done >= job["tokens"] * (1 - NEAR),
            f"{name} does {float(done):g} of {float(job['tokens']):g} tokens in time",
        )
        return grams

    def bound(self, given: Any, weights: list[Any], out: list[str]) -> tuple[Fraction, Fraction]:
        """Return what prices prove, and the size of what it is the difference of; a job adds its weight at most."""
        prices: dict[_Cell, dict[int, Fraction]] = {cell: {} for cell in self.room}
        bound, scale = Fraction(0), Fraction(0)
        for what in ("nodes", "watts"):
            for i, t, price in given[what]:
                room, one = self.room[what, i][t], Fraction(price)
                _need(one >= 0 and room is not None and t not in prices[what, i], "a price is none")
                prices[what, i][t] = one
                bound, scale = bound - one * room, scale + one * room
        for job, price, weight in zip(self.jobs, given["tokens"], weights, strict=True):
            _need(Fraction(price) >= 0, "a price of a token is below 0")
            if job["name"] not in out:
                part, worth = self.cheapest(job, Fraction(price), prices), Fraction(price) * job["tokens"]
                both = part + worth if weight is None else min(weight, part + worth)
                bound, scale = bound + both, scale + abs(part) + worth
        return bound, scale

    def cheapest(self, job: dict[str, Any], token: Fraction, prices: dict[_Cell, dict[int, Fraction]]) -> Fraction:
        """Return the cost of a job's cheapest path, less the worth of its tokens.

        Steps forward, states being (form, steps it has to stay; -1: it runs on until its end) or (None, place).
        """
        forms: dict[tuple[int, int], list[Any]] = {}
        for row in job["rows"]:
            forms.setdefault(self.form(row), []).append(row)
        was, place, stay = self.begins(job)
        states: dict[Any, Fraction] = {(None, place): Fraction(0)}
        if was is not None:
            states = {(was, stay): Fraction(0), **({(was, -1): Fraction(0)} if stay else {})}
        over = Fraction(0) if was is None or not stay else None
        starts: dict[Any, Fraction] = {}
        for t in range(bisect_left(self.edges, job["release_s"]), bisect_right(self.edges, job["deadline_s"]) - 1):
            for (form, at), cost in list(states.items()):
                if form is not None and at == 0:  # it may leave
                    out = None, self.site_of[form[0]]
                    states[out] = min(cost, states.get(out, cost))
            for (form, at), cost in list(states.items()):
                for other in forms if form is None else ():
                    if (other, at) not in starts:
                        tokens, grams = self.lost(job, other, at)
                        starts[other, at] = self.gram * grams + token * tokens
                    begun = cost + starts[other, at]
                    for into in ((other, max(self.until(t, job["min_run_s"]) - t, 1)), (other, -1)):
                        states[into] = min(begun, states.get(into, begun))
            moved: dict[Any, Fraction] = {}
            costs = {form: self.step_cost(form, rows, t, token, prices) for form, rows in forms.items()}
            for (form, at), cost in states.items():
                if form is None:
                    moved[form, at] = cost
                elif (step := costs[form]) is not None:
                    to, on = (form, at if at < 0 else max(0, at - 1)), cost + step[0]
                    moved[to] = min(on, moved.get(to, on))
                    over = cost + step[1] if over is None else min(over, cost + step[1])  # it may end in any step
            states = moved
        return min(value for value in (over, *states.values()) if value is not None)

    def step_cost(
        self, form: tuple[int, int], rows: Any, t: int, token: Fraction, prices: Any
    ) -> tuple[Fraction, Fraction] | None:
        """Return the cost of a step, and of one in which the job ends: it holds all, and emits until it is done."""
        site = self.site_of[form[0]]
        held = form[1] * prices["nodes", form[0]].get(t, 0)
        full, end = [], []
        for row in rows:
            if self.fits(row, t):
                own = held + row["power_w"] * prices["watts", site].get(t, 0)
                net = (
                    self.gram * row["power_w"] * self.gram_per_w[site][t] - token * row["tokens_per_s"] * self.length[t]
                )
                full.append(own + net)
                end.append(own + min(net, 0))
        return (min(full), min(end)) if full else None


def _need(fine: object, words: str) -> None:
    if not fine:
        raise _WrongError(words)


def main(arguments: list[str]) -> int:
    """Check a file and say what came out; 1 where it is not so, 2 where there is no such file."""
    if len(arguments) != 1:
        print("usage: python -m greentrain.policy.check_plan plan.json", file=sys.stderr)
        return 2
    try:
        grams, bound = check(Path(arguments[0]).read_text(encoding="utf-8"))
    except OSError as error:
        print(f"{arguments[0]} cannot be read: {error.strerror}", file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"rejected: {error}")
        return 1
    gap = f"within {float(grams / bound - 1):.3%} of the best possible" if bound > 0 else "with no bound above 0 g"
    print(f"holds: {float(grams):.6g} g, none below {float(bound):.6g} g, {gap}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
