"""Runs side by side: what each used relative to the first, and what makes that unfair; and two groups of runs."""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

from greentrain.errors import ConfigError, GreenTrainError
from greentrain.report.confidence_sequence import GroupDifference
from greentrain.report.summary import pue_text
from greentrain.types import Attribution
from greentrain.utils import quantities
from greentrain.utils.display import Displayable, Table, View
from greentrain.utils.validation import bound, choice

_FIGURES = (
    ("energy", "energy", "energy_j", quantities.energy),
    ("emissions", "carbon", "emissions_g", quantities.carbon),
    ("electricity's emissions", "carbon", "operational_location_g", quantities.carbon),
    ("CUE (per IT energy)", "carbon", "cue_kg_per_kwh", quantities.cue),
    ("energy per token", "work", "j_per_token", quantities.joules),
    ("emissions per 1\N{THIN SPACE}000 tokens", "work", "g_per_ktoken", quantities.carbon),
    ("energy per sample", "work", "j_per_sample", quantities.joules),
    ("energy per step", "work", "j_per_step", quantities.joules),
    ("tokens", "work", "tokens", quantities.count),
    ("time", "time", "wall_s", quantities.duration),
    ("mean power", "power", "mean_w", quantities.power),
)
_INTERVALS: Final = {
    "energy": ("energy", "interval_j", quantities.ENERGY),
    "emissions": ("carbon", "emissions_interval_g", quantities.MASS),
    "electricity's emissions": ("carbon", "operational_interval_g", quantities.MASS),
}
_HEADS = {"total": "", "gear": "energy per token by gear: ", "stage": "energy per token: ", "power": "mean power: "}
_FAR = 0.02
"""Relative difference from which a share or factor is worth a caveat."""


class Comparison(Displayable, dict[str, Any]):
    """Runs side by side: the dict of ``compare``, shown as a table."""

    def _view(self) -> View:
        names = self["names"]
        rows = [
            (
                _HEADS.get(row["section"], f"energy by {row['section']}: ") + row["name"],
                *row["texts"],
                *(_times(ratio) for ratio in row["ratios"][1:]),
            )
            for row in self["rows"]
        ]
        head = ["", *names, *(f"{name} / {names[0]}" for name in names[1:])]
        words = " ".join(self["sentences"])
        runs = Table(rows=list(zip(names, self["runs"], strict=True)))
        notes = [f"Caveat: {text}" for text in self["caveats"]]
        return View(line=words, title=words, grids=[runs, Table(rows=rows, head=head)], notes=notes)


def compare(summaries: Sequence[Mapping[str, Any]]) -> Comparison:
    """Compare runs with the first one.

    Args:
        summaries: Two or more summaries, from ``summarize``.

    Returns:
        ``names``; ``sentences``, the relation of each later run to the first in words; ``rows``, of name, section
        (total, phase, device kind; gear, or stage on a kind of device, whose values are J/token; power of such a one),
        values, texts and ratios to the first (null where unknown), and of some the 90 % ``intervals``; ``caveats``, why
        a ratio may not mean what it seems to.

    Raises:
        GreenTrainError: Fewer than two runs.
    """
    if len(summaries) < 2:
        raise GreenTrainError(f"comparing takes two runs or more, {len(summaries)} given: greentrain report A B")
    rows = [
        _row("total", name, [summary[group][key] for summary in summaries], text) for name, group, key, text in _FIGURES
    ]
    for row in rows:
        if row["name"] in _INTERVALS:
            group, key, units = _INTERVALS[row["name"]]
            row["intervals"] = [summary[group].get(key) for summary in summaries]
            shown = zip(row["values"], row["intervals"], strict=True)
            row["texts"] = [quantities.between(value, interval, units) for value, interval in shown]
    rows += _by(summaries, "phase", "phases", "name")
    rows += _by(summaries, "device kind", "devices", "kind")
    rows += _by_gear(summaries)
    rows += _by_stage(summaries)
    return Comparison(
        {
            "names": [chr(ord("A") + i) if i < 26 else str(i + 1) for i in range(len(summaries))],
            "runs": [summary["run"]["run_id"] for summary in summaries],
            "sentences": [_sentence(summaries, i) for i in range(1, len(summaries))],
            "rows": [row for row in rows if any(value is not None for value in row["values"])],
            "caveats": [text for i in range(1, len(summaries)) for text in _caveats(summaries, i)],
        }
    )


def _row(section: str, name: str, values: Sequence[float | None], text: Any) -> dict[str, Any]:
    first = values[0]
    ratios = [value / first if value is not None and first else None for value in values]
    return {
        "section": section,
        "name": name,
        "values": list(values),
        "texts": [text(value) for value in values],
        "ratios": ratios,
    }


def _by(summaries: Sequence[Mapping[str, Any]], section: str, group: str, key: str) -> list[dict[str, Any]]:
    sums: list[dict[str, float]] = []
    for summary in summaries:
        found: dict[str, float] = {}
        for item in summary[group]:
            if item["energy_j"] is not None:
                name = str(item[key] or "other")
                found[name] = found.get(name, 0.0) + item["energy_j"]
        sums.append(found)
    names = sorted({name for found in sums for name in found}, key=lambda name: -max(f.get(name, 0.0) for f in sums))

    def text(energy_j: float | None) -> str:
        return "none" if energy_j is None else quantities.energy(energy_j)

    return [_row(section, name, [found.get(name) for found in sums], text) for name in names]


def _by_gear(summaries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found = [{row["gear"]: row["j_per_token"] for row in summary["gears"]} for summary in summaries]
    rows = []
    for name in sorted({name for gears in found for name in gears}):
        row = _row("gear", name, [gears.get(name) for gears in found], quantities.joules)
        row["texts"] = [text if name in gears else "not used" for text, gears in zip(row["texts"], found, strict=True)]
        rows.append(row)
    return rows


def _by_stage(summaries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    keys = dict.fromkeys((row["stage"], row["kind"]) for summary in summaries for row in summary["stages"])
    rows = []
    for section, key, text in (
        ("stage", "j_per_token", quantities.joules),
        ("power", "mean_power_w", quantities.power),
    ):
        found = [{(row["stage"], row["kind"]): row[key] for row in summary["stages"]} for summary in summaries]
        rows += [
            _row(section, f"{stage} on {kind}", [f.get((stage, kind)) for f in found], text) for stage, kind in keys
        ]
    return rows


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{quantities.significant(ratio)}x"


def _sentence(summaries: Sequence[Mapping[str, Any]], i: int) -> str:
    first, other = summaries[0], summaries[i]
    names = "A", chr(ord("A") + i)
    for group, key, what in (
        ("work", "j_per_token", "energy per token"),
        ("work", "j_per_sample", "energy per sample"),
        ("energy", "energy_j", "energy"),
    ):
        a, b = first[group][key], other[group][key]
        if a and b is not None:
            text = f"{names[1]} used {_times(b / a)} {names[0]}'s {what}"
            grams = _grams(first, other, key)
            return text + (f" and emitted {_times(grams)} the grams" if grams is not None else "") + "."
    return f"{names[1]} and {names[0]} cannot be compared: the energy of one of them is unknown."


def _grams(first: Mapping[str, Any], other: Mapping[str, Any], key: str) -> float | None:
    group, name = {
        "j_per_token": ("work", "g_per_ktoken"),
        "j_per_sample": ("work", "g_per_ksample"),
        "energy_j": ("carbon", "emissions_g"),
    }[key]
    a, b = first[group][name], other[group][name]
    return b / a if a and b is not None else None


def _caveats(summaries: Sequence[Mapping[str, Any]], i: int) -> list[str]:
    first, other, name = summaries[0], summaries[i], chr(ord("A") + i)
    out = []
    a, b = first["energy"]["modelled_share"], other["energy"]["modelled_share"]
    if a is not None and b is not None and abs(a - b) > _FAR:
        out.append(
            f"{quantities.percent(b)} of {name}'s energy is modelled, {quantities.percent(a)} of A's: a model's error"
            " is in the ratio"
        )
    mine, theirs = (summary["energy"].get("interval_j") or {"low": None, "high": None} for summary in (first, other))
    known = None not in (mine["low"], mine["high"], theirs["low"], theirs["high"])
    sensors = [{(device["host"], device["uid"]) for device in summary["devices"]} for summary in (first, other)]
    if known and sensors[0] != sensors[1] and mine["low"] <= theirs["high"] and theirs["low"] <= mine["high"]:
        out.append(f"intervals of A's and {name}'s energy overlap, and other sensors read them: no difference is sure")
    ways = [_ways(first), _ways(other)]
    if ways[0] != ways[1]:
        out.append(f"A and {name} do not read the same devices in the same way: {ways[0]} against {ways[1]}")
    pues = [pue_text(summary["energy"]) for summary in (first, other)]
    if pues[0] != pues[1]:
        out.append(f"PUE is {pues[0]} in A and {pues[1]} in {name}: grams differ by it")
    zones = [_zones(first), _zones(other)]
    if zones[0] != zones[1]:
        out.append(f"the grid is {zones[0]} in A and {zones[1]} in {name}: compare joules, not grams")
    a, b = (s["energy"]["missing_share_of_device_time"] for s in (first, other))
    if a is not None and b is not None and abs(a - b) > _FAR:
        out.append(
            f"{quantities.percent(a)} of A's and {quantities.percent(b)} of {name}'s device time has no reading: the"
            " energy of the one with more is too low"
        )
    if (first["carbon"]["embodied_g"]["mid"] is None) != (other["carbon"]["embodied_g"]["mid"] is None):
        out.append(f"only one of A and {name} has an embodied figure: compare electricity's emissions")
    for letter, summary in (("A", first), (name, other)):
        if not summary["carbon"]["complete"] and summary["energy"]["energy_j"] is not None:
            out.append(f"part of {letter}'s energy has no carbon intensity: its grams are a lower bound")
        rows = [row for row in (*summary["phases"], *summary["gears"]) if row.get("attribution") == Attribution.BLURRED]
        if rows:
            names = ", ".join(row.get("name") or row["gear"] for row in rows)
            out.append(f"the sensors of {letter} do not tell {names} from what runs beside")
        if not summary["state"]["finished"]:
            out.append(f"{letter} did not finish ({summary['state']['word']})")
    return out


def _zones(summary: Mapping[str, Any]) -> str:
    return ", ".join(sorted({source["zone"] for source in summary["carbon"]["sources"]})) or "unknown"


def _ways(summary: Mapping[str, Any]) -> str:
    ways = sorted({f"{d['kind']} {d['provenance']} ({d['method']})" for d in summary["devices"]})
    return ", ".join(ways) or "no device"


GROUP_METRICS: Final[Mapping[str, tuple[str, str, Callable[[float], str]]]] = {
    "j_per_token": ("energy per token", "work", quantities.joules),
    "g_per_ktoken": ("emissions per 1\N{THIN SPACE}000 tokens", "work", quantities.carbon),
    "tokens_per_s": ("tokens per second", "work", quantities.significant),
    "j_per_sample": ("energy per sample", "work", quantities.joules),
    "g_per_ksample": ("emissions per 1\N{THIN SPACE}000 samples", "work", quantities.carbon),
    "samples_per_s": ("samples per second", "work", quantities.significant),
    "energy_j": ("energy", "energy", quantities.energy),
    "emissions_g": ("emissions", "carbon", quantities.carbon),
    "wall_s": ("time", "time", quantities.duration),
}
"""Words, group in the summary and text of what groups are compared by; the first three in a row that all runs know."""
ALPHA: Final = 0.05
"""Probability of an error in any row at any look."""


class GroupComparison(Displayable, dict[str, Any]):
    """Two groups of runs: the dict of ``compare_groups``, shown as a table."""

    def _view(self) -> View:
        words = " ".join(self["sentences"])
        head = ("", "A", "B", "B against A", "spread of A", "of B", "verdict on B", "more runs a group")
        rows = [(row["name"], *row["texts"]) for row in self["rows"]]
        return View(line=words, title=words, grids=[Table(rows=rows, head=head)], notes=self["notes"])


def compare_groups(
    a: Sequence[Mapping[str, Any]],
    b: Sequence[Mapping[str, Any]],
    *,
    metrics: Sequence[str] = (),
    pair: str | None = None,
    margin: float = 0.01,
    values: Mapping[str, Mapping[str, float]] | None = None,
) -> GroupComparison:
    """Tell how B differs from A, by intervals that hold at every look (``greentrain.report.confidence_sequence``).

    So one may look after each run, and stop as soon as a verdict says which is better or that no difference matters.

    Args:
        a: Summaries of the runs of A, from ``summarize``; those that have not finished are left out.
        b: Those of B.
        metrics: Keys of GROUP_METRICS or of ``values``; empty: energy, grams and speed by token (or by sample, or of
            the run), and all of ``values``.
        pair: Tag that pairs a run of A with one of B, as ``seed``; None: they are not paired.
        margin: Largest relative difference that does not matter.
        values: Further figures of runs, above 0, as a loss: by name, then by run id (``read_values``).

    Returns:
        ``runs``, the ids of A and of B; ``rows`` of name, key, geometric means (``values``), ``ratio`` with ``low`` and
        ``high`` (null: so few runs bound nothing), ``spreads`` (standard deviations of logarithms; null: of one run),
        ``verdict`` on B (lower, higher, no difference above the margin, undecided), ``more_runs`` (a group, to a
        verdict, if means and spreads stay; null: not foreseen) and ``texts``; ``sentences``; ``notes``.

    Raises:
        ConfigError: No finished run in a group, a run that is given twice, no pairs, no figure that all runs have, or
            a value out of its bounds.
    """
    values = values or {}
    bound("--margin", margin, 1e-6, 1.0)
    for name in metrics:
        choice("--metric", name, (*GROUP_METRICS, *values))
    ids = [_id(s) for s in (*a, *b)]
    if twice := [one for i, one in enumerate(ids) if one in ids[:i]]:
        raise ConfigError(f"run {twice[0]} is given twice: a run counts once, for A or for B")
    a, b = ([s for s in group if s["state"]["finished"]] for group in (a, b))
    if pair is not None:
        tagged = [_tagged(group, pair) for group in (a, b)]
        both = sorted(tagged[0].keys() & tagged[1].keys())
        a, b = ([of_group[tag] for tag in both] for of_group in tagged)
    used = [[_id(s) for s in group] for group in (a, b)]
    left_out = [one for one in ids if one not in used[0] + used[1]]
    if not a or not b:
        what = "finished runs" if pair is None else f"finished runs with the same tag {pair}"
        raise ConfigError(f"A and B need {what}; left out: {', '.join(left_out) or 'none'}")
    found = {name: _logarithms(a, b, name, values) for name in metrics or _usual(a, b, values)}
    known = {name: logs for name, logs in found.items() if logs is not None}
    if not known:
        raise ConfigError(f"{', '.join(found)}: not known of all runs, or not above 0")
    rows = [_group_row(name, *logs, pair is not None, margin, ALPHA / len(known)) for name, logs in known.items()]
    normal = "runs are normal, with one variance in both groups" if pair is None else "pairs differ by normal amounts"
    notes = [
        f"Ratios of geometric means. Intervals hold for all rows and at all looks together with"
        f" {100 - 100 * ALPHA:g} %, if logarithms of {normal}. What all runs share, as a sensor's error, is in none.",
        *([f"Left out: {', '.join(left_out)} (not finished, or without a partner)."] if left_out else []),
        *(f"No row: {name} is not known of every run, or not above 0." for name in found if name not in known),
        *(f"Caveat: {text}" for text in _group_caveats([*a, *b])),
    ]
    sentences = [f"B ({len(b)} runs) against A ({len(a)}).", *(f"{r['name'].capitalize()}: {r['told']}." for r in rows)]
    return GroupComparison({"runs": used, "rows": rows, "sentences": sentences, "notes": notes})


def read_values(path: Path) -> dict[str, dict[str, float]]:
    """Return further figures of runs, by column and run id, of a CSV with a column ``run`` (folder or id).

    Raises:
        ConfigError: It cannot be read, has no such columns, or a cell is no number; an empty one is not known.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file, restval=""))
        names = [name for name in lines[0] if name != "run"]
        return {name: {Path(s["run"]).name: float(s[name]) for s in lines if s[name].strip()} for name in names}
    except (OSError, ValueError, LookupError, AttributeError, TypeError, csv.Error) as error:
        raise ConfigError(f"{path} is no CSV with a column run and numbers in others, as run,loss: {error}") from error


def _id(summary: Mapping[str, Any]) -> str:
    return str(summary["run"]["run_id"])


def _tagged(group: Sequence[Any], tag: str) -> dict[str, Any]:
    found = [(summary["run"]["tags"][tag], summary) for summary in group if tag in summary["run"]["tags"]]
    if len(dict(found)) < len(found):
        raise ConfigError(f"two runs of a group have the same tag {tag}: a pair is one of A and one of B")
    return dict(found)


def _usual(a: Sequence[Any], b: Sequence[Any], values: Mapping[str, Any]) -> list[str]:
    names = list(GROUP_METRICS)
    first = next((i for i in (0, 3) if _logarithms(a, b, names[i], {}) is not None), 6)
    return [*names[first : first + 3], *values]


def _logarithms(
    a: Sequence[Any], b: Sequence[Any], name: str, values: Mapping[str, Mapping[str, float]]
) -> tuple[list[float], list[float]] | None:
    """Return logarithms of a figure of all runs; None where one of them is not known or not above 0."""
    found: tuple[list[float], list[float]] = ([], [])
    for group, logs in zip((a, b), found, strict=True):
        for summary in group:
            of_run = values[name].get(_id(summary)) if name in values else summary[GROUP_METRICS[name][1]][name]
            if of_run is None or not 0 < of_run < math.inf:
                return None
            logs.append(math.log(of_run))
    return found


def _group_row(name: str, a: list[float], b: list[float], paired: bool, margin: float, alpha: float) -> dict[str, Any]:
    words, _, text = GROUP_METRICS.get(name, (name, "", quantities.significant))
    found, most = GroupDifference.of(a, b, paired=paired), math.log1p(margin)
    low, high = found.interval(alpha)
    verdict = "higher" if low > 0 else "lower" if high < 0 else "undecided"
    if -most < low <= 0 <= high < most:
        verdict = f"no difference above {100 * margin:g} %"
    more = found.runs_needed(alpha, most)
    more_text = "unknown" if more is None else f"about {more}" if more else "0"
    ratio, *bounds = (math.exp(x) if math.isfinite(x) else None for x in (found.mean, low, high))
    percent, *within = (quantities.signed(x - 1, plus=True) for x in (ratio, *bounds) if x is not None)
    shown = f"{percent} ({' to '.join(within)})" if within else percent
    spreads = [stdev(logs) if len(logs) > 1 else None for logs in (a, b)]
    means = [math.exp(fmean(logs)) for logs in (a, b)]
    return {
        "name": words,
        "key": name,
        "values": means,
        "ratio": ratio,
        "low": bounds[0],
        "high": bounds[1],
        "spreads": spreads,
        "verdict": verdict,
        "more_runs": more,
        "texts": [*map(text, means), shown, *map(quantities.percent, spreads), verdict, more_text],
        "told": f"{verdict}, {shown}"
        + (f", {more_text} more run{'s' * (more != 1)} a group" if verdict == "undecided" else ""),
    }


def _group_caveats(summaries: Sequence[Any]) -> list[str]:
    facts: tuple[tuple[str, Callable[[Any], str], str], ...] = (
        ("sensors", lambda s: ", ".join(sorted(f"{d['host']} {d['uid']}" for d in s["devices"])), "errors differ"),
        ("ways of reading", _ways, "a model's error is in the ratio"),
        ("PUEs", lambda s: pue_text(s["energy"]), "grams differ by them"),
        ("grids", _zones, "compare joules, not grams"),
    )
    out = []
    for what, fact, why in facts:
        if len(several := sorted({fact(summary) for summary in summaries})) > 1:
            out.append(f"runs have several {what}: {why} ({' | '.join(several):.200})")
    if any((summary["energy"]["missing_share_of_device_time"] or 0.0) > _FAR for summary in summaries):
        out.append("device time of some runs has no reading: their energy is too low")
    return out
