"""Two groups of runs: what is said of B, when it is not, and what is left out."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from greentrain.cli.app import app
from greentrain.errors import ConfigError
from greentrain.ledger.reader import read_run
from greentrain.report.compare import compare_groups, read_values
from greentrain.report.summary import summarize
from tests.report.run_folders import GPU, T0_S, Folder, device, entry


def _folder(root: Path, run_id: str, joules: float, *, reason: str | None = "finished", **more: Any) -> Path:
    uid, tokens = more.pop("uid", "GPU-0"), more.pop("tokens", 1000)
    booked = entry(T0_S, T0_S + 100, {uid: device(joules)}, tokens=tokens, **more.pop("booked", {}))
    return Folder(root, run_id, **more).rank(0, [{**GPU, "uid": uid}], [booked], reason=reason).path


def _runs(root: Path, name: str, joules: Sequence[float], **more: Any) -> list[dict[str, Any]]:
    made = [_folder(root, f"{name}{i}", j, tags={"seed": str(i)}, **more) for i, j in enumerate(joules)]
    return [summarize(read_run(path)) for path in made]


A = (1000.0, 1010.0, 990.0, 1005.0, 995.0, 1002.0)


def _shown(found: dict[str, Any], key: str = "j_per_token") -> dict[str, Any]:
    return next(row for row in found["rows"] if row["key"] == key)


def test_b_is_lower_by_a_percentage_with_bounds(tmp_path: Path) -> None:
    found = compare_groups(_runs(tmp_path, "a", A), _runs(tmp_path, "b", [0.9 * x for x in A]))
    row = _shown(found)
    assert [one["key"] for one in found["rows"]] == ["j_per_token", "g_per_ktoken", "tokens_per_s"]
    assert row["ratio"] == pytest.approx(0.9) and row["low"] < 0.9 < row["high"] < 1
    assert (row["verdict"], row["more_runs"]) == ("lower", 0)
    assert row["values"][0] == pytest.approx(math.exp(sum(map(math.log, A)) / 6) / 1000)
    assert "Energy per token: lower, \N{MINUS SIGN}10.0 % (" in str(found)
    assert _shown(found, "tokens_per_s")["verdict"] == "undecided", "speeds are the same to the last digit"
    json.dumps(found, allow_nan=False)
    assert "verdict on B" in found._repr_html_()


def test_all_rows_share_one_probability_of_error(tmp_path: Path) -> None:
    a, b = _runs(tmp_path, "a", A), _runs(tmp_path, "b", [0.98 * x for x in A])
    alone, three = _shown(compare_groups(a, b, metrics=["j_per_token"])), _shown(compare_groups(a, b))
    assert three["low"] < alone["low"] < alone["high"] < three["high"]


def test_what_does_not_matter_is_told_from_what_is_not_known(tmp_path: Path) -> None:
    a, b = _runs(tmp_path, "a", A), _runs(tmp_path, "b", [1003.0, 996.0, 1001.0, 1000.0, 999.0])
    wide = _shown(compare_groups(a, b, metrics=["j_per_token"], margin=0.05))
    assert (wide["verdict"], wide["more_runs"]) == ("no difference above 5 %", 0)
    close = _shown(compare_groups(a, b, metrics=["j_per_token"], margin=0.005))
    assert close["verdict"] == "undecided" and close["more_runs"] > 0
    assert f"about {close['more_runs']} more runs a group" in close["told"]
    two = compare_groups(a[:1], b[:1])
    assert (_shown(two)["low"], _shown(two)["more_runs"], _shown(two)["spreads"]) == (None, None, [None, None])


def test_pairs_are_those_of_one_tag(tmp_path: Path) -> None:
    base = (900.0, 1000.0, 1100.0, 1250.0, 1400.0)
    a = _runs(tmp_path, "a", base)
    b = _runs(
        tmp_path, "b", [0.98 * x * (1 + e) for x, e in zip(base, (0.001, -0.001, 0.0, 0.001, -0.001), strict=True)]
    )
    assert _shown(compare_groups(a, b))["verdict"] == "undecided"
    found = compare_groups(a, b[::-1], pair="seed")
    assert _shown(found)["verdict"] == "lower"
    assert "pairs differ by normal amounts" in found["notes"][0]
    some = compare_groups(a[:4], b, pair="seed")
    assert some["runs"][1] == ["b0", "b1", "b2", "b3"] and "Left out: b4 (" in " ".join(some["notes"])
    with pytest.raises(ConfigError, match="same tag day"):
        compare_groups(a, b, pair="day")
    twin = _runs(tmp_path / "twin", "c", base[:1])
    with pytest.raises(ConfigError, match="two runs of a group have the same tag seed"):
        compare_groups([*a, *twin], b, pair="seed")


def test_runs_that_go_on_are_left_out_and_none_counts_twice(tmp_path: Path) -> None:
    a, b = _runs(tmp_path, "a", A), _runs(tmp_path, "b", A[:3])
    dead = _runs(tmp_path, "killed", [1.0], reason="sigterm")
    found = compare_groups(a, [*b, *dead])
    assert found["runs"][1] == ["b0", "b1", "b2"] and "Left out: killed0 (" in " ".join(found["notes"])
    with pytest.raises(ConfigError, match="left out: killed0"):
        compare_groups(a, dead)
    with pytest.raises(ConfigError, match="a0 is given twice"):
        compare_groups(a, [*b, a[0]])


def test_what_makes_groups_unlike_is_said(tmp_path: Path) -> None:
    a = _runs(tmp_path, "a", A)
    b = _runs(tmp_path, "b", (900.0, 1000.0, 1200.0), uid="GPU-9", booked={"zone": "DEU", "pue": 1.5})
    notes = " ".join(compare_groups(a, b)["notes"])
    for words in ("several sensors", "GPU-9", "several PUEs", "several grids", "DEU | FRA"):
        assert words in notes
    assert "Caveat" not in " ".join(compare_groups(a[:3], a[3:])["notes"])


def test_figures_that_some_run_lacks_have_no_row(tmp_path: Path) -> None:
    a, b = _runs(tmp_path, "a", A, tokens=0), _runs(tmp_path, "b", A, tokens=0)
    assert [row["key"] for row in compare_groups(a, b)["rows"]] == ["energy_j", "emissions_g", "wall_s"]
    loss = {"loss": {s["run"]["run_id"]: 2.0 + i / 100 for i, s in enumerate((*a, *b[1:]))}}
    found = compare_groups(a, b, metrics=["energy_j", "loss"], values=loss)
    assert [row["key"] for row in found["rows"]] == ["energy_j"]
    assert "No row: loss is not known of every run" in " ".join(found["notes"])
    with pytest.raises(ConfigError, match="loss: not known of all runs"):
        compare_groups(a, b, metrics=["loss"], values=loss)
    with pytest.raises(ConfigError, match=r"'j_per_tokn'.*Did you mean 'j_per_token'"):
        compare_groups(a, b, metrics=["j_per_tokn"])
    with pytest.raises(ConfigError, match=r"--margin is 0.0"):
        compare_groups(a, b, margin=0.0)


def test_figures_of_a_csv(tmp_path: Path) -> None:
    path = tmp_path / "losses.csv"
    path.write_text("run,loss,accuracy\nruns/a0,2.5,0.5\na1,2.25,\n", encoding="utf-8")
    assert read_values(path) == {"loss": {"a0": 2.5, "a1": 2.25}, "accuracy": {"a0": 0.5}}
    for text in ("", "name,loss\na0,1\n", "run,loss\na0,good\n", "run,loss\n", "run,loss\na0,1,2\n"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=r"losses\.csv is no CSV with a column run"):
            read_values(path)
    with pytest.raises(ConfigError, match=r"other\.csv is no CSV"):
        read_values(tmp_path / "other.csv")


def test_the_command_takes_two_groups_and_options_anywhere(tmp_path: Path) -> None:
    a = [str(_folder(tmp_path, f"a{i}", x)) for i, x in enumerate(A)]
    b = [str(_folder(tmp_path, f"b{i}", 0.9 * x)) for i, x in enumerate(A)]
    losses = tmp_path / "losses.csv"
    losses.write_text(
        "run,loss\n" + "".join(f"{x}{i},{2 + i / 50}\n" for x in "ab" for i in range(6)), encoding="utf-8"
    )
    words = ["compare", *a, "--", *b, "--metric", "j_per_token", "--metric", "loss", "--values", str(losses)]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [(row["key"], row["verdict"]) for row in found["rows"]] == [("j_per_token", "lower"), ("loss", "undecided")]
    shown = CliRunner().invoke(app, words, env={"COLUMNS": "300"}).stdout
    assert shown.startswith("B (6 runs) against A (6).") and "energy per token" in shown
    for wrong in (["compare", *a], ["compare", *a, "--", *b, "--", *a[:1]]):
        done = CliRunner().invoke(app, wrong)
        assert done.exit_code == 2 and "two groups" in done.output
