"""The checker of plans: what the planner writes holds, and no changed number does."""

import copy
import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from greentrain.policy.check_plan import check, main
from greentrain.policy.cluster.planner import solve
from tests.helpers.cluster_cases import cluster


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    problem = cluster(
        4, jobs=12, nodes=16, h=12, pools=2, sites=2, cap=0.7, load=0.9, stay_s=7200.0, running=0.4, mean_h=3
    )
    found: dict[str, Any] = json.loads(json.dumps(solve(problem).to_dict()))
    return found


def signed(document: dict[str, Any]) -> str:
    """Return the text of a document whose digest is right: a forger can do that."""
    plain = {key: value for key, value in document.items() if key != "sha256"}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return json.dumps({**plain, "sha256": hashlib.sha256(text.encode("ascii")).hexdigest()})


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where the leaves of a JSON value are."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from places(one, (*path, key))
    elif isinstance(value, list):
        for i, one in enumerate(value):
            yield from places(one, (*path, i))
    else:
        yield path


def changed(document: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    """Return a document in which one leaf is another."""
    out = copy.deepcopy(document)
    at = out
    for key in path[:-1]:
        at = at[key]
    old = at[path[-1]]
    at[path[-1]] = (
        1.0
        if old is None
        else old + 1
        if isinstance(old, int)
        else old * 1.01 + 0.01
        if isinstance(old, float)
        else old + "1"
    )
    return out


def test_a_plan_holds_and_its_figures_come_back(document: dict[str, Any]) -> None:
    grams, bound = check(json.dumps(document))
    assert float(grams) == pytest.approx(document["grams"], rel=1e-9)
    assert bound == Fraction(document["bound_g"])


def test_every_single_change_is_seen_by_the_digest(document: dict[str, Any]) -> None:
    every = list(places({key: value for key, value in document.items() if key != "sha256"}))
    some = [every[i] for i in np.random.default_rng(1).permutation(len(every))[:300]]
    for path in some:
        with pytest.raises(ValueError, match="SHA-256"):
            check(json.dumps(changed(document, path)))


def test_a_forged_result_is_rejected_though_its_digest_is_right(document: dict[str, Any]) -> None:
    """Every number of the answer (paths, grams, bound, prices that are paid) is held to all others."""
    count, passed, names = 0, 0, [job["name"] for job in document["problem"]["jobs"]]
    for top in ("jobs", "grams", "bound_g", "prices"):
        for path in places(document[top], (top,)):
            if path[:2] == ("prices", "tokens") and names[path[2]] in document["missed"]:
                continue  # its price proves nothing
            forged = changed(document, path)
            if top == "bound_g":
                forged["bound_g"] = f"{float(document['bound_g']) * 1.001:.9e}"
            if top == "prices":
                old = document["prices"]
                at = forged["prices"]
                for key in path[1:-1]:
                    old, at = old[key], at[key]
                if isinstance(old[path[-1]], str):
                    at[path[-1]] = f"{float(old[path[-1]]) * 1.5 + 1.0:.9e}"
            try:
                still = check(signed(forged))[1]
            except ValueError:
                count += 1
            else:  # another price may prove the same, as many are best
                assert top == "prices"
                assert still == Fraction(document["bound_g"])
                passed += 1
    assert passed <= 2
    assert count > 50


@pytest.mark.parametrize(
    ("key", "factor", "words"),
    [("tokens", 1.5, "tokens in time"), ("deadline_s", 0.3, "out of its time")],
)
def test_a_harder_job_is_not_done_by_the_same_path(
    document: dict[str, Any], key: str, factor: float, words: str
) -> None:
    seen = 0
    for i, job in enumerate(document["problem"]["jobs"]):
        if job["name"] in document["missed"]:
            continue
        forged = copy.deepcopy(document)
        forged["problem"]["jobs"][i][key] = job[key] * factor
        with pytest.raises(ValueError) as caught:
            check(signed(forged))
        seen += words in str(caught.value)
    assert seen


def test_less_capacity_is_seen(document: dict[str, Any]) -> None:
    for what, key in (("pools", "nodes"), ("sites", "power_cap_w")):
        forged = copy.deepcopy(document)
        for one in forged["problem"][what]:
            one[key] = [value * 0.4 for value in one[key]]
        with pytest.raises(ValueError, match="in use"):
            check(signed(forged))


def test_a_forged_excuse_is_rejected_though_its_digest_is_right() -> None:
    problem = cluster(8, jobs=6, nodes=20, h=12, mean_h=3, load=0.3)
    plan = solve(replace(problem, budget_g=0.4 * solve(problem).grams))
    document = json.loads(json.dumps(plan.to_dict()))
    check(signed(document))
    least = float(document["misses"]["least"])
    assert least > 0
    for key, value, words in (
        ("least", f"{least * 1.001:.9e}", "proven is"),
        ("gram", "-1.0", "worth"),
        ("tokens", ["0.0"] * 6, "proven is"),
    ):
        forged = copy.deepcopy(document)
        forged["misses"][key] = value
        with pytest.raises(ValueError, match=words):
            check(signed(forged))
    free = copy.deepcopy(document)
    free["problem"]["budget_g"] = None
    with pytest.raises(ValueError, match="no budget"):
        check(signed(free))


def test_a_negative_price_proves_nothing(document: dict[str, Any]) -> None:
    forged = copy.deepcopy(document)
    forged["prices"]["nodes"].append([0, 0, "-5.0"])
    with pytest.raises(ValueError, match="price"):
        check(signed(forged))


@pytest.mark.parametrize("text", ["", "{}", "[]", "{", '{"sha256": 1}', "null", '{"sha256": NaN}'])
def test_what_is_no_plan_is_rejected(text: str) -> None:
    with pytest.raises(ValueError):
        check(text)


def test_the_command_says_what_came_out(
    document: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document))
    assert main([str(path)]) == 0
    assert "of the best possible" in capsys.readouterr().out
    path.write_text(json.dumps(document).replace('"grams": ', '"grams": 1'))
    assert main([str(path)]) == 1
    assert "rejected: its SHA-256" in capsys.readouterr().out
    assert main([str(tmp_path / "none.json")]) == 2
    assert main([]) == 2


def test_it_shares_no_code_with_the_planner() -> None:
    import greentrain.policy.check_plan as module

    lines = Path(module.__file__).read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if line.lstrip().startswith(("import ", "from ")) and "greentrain" in line]
