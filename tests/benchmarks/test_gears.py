"""benchmarks/gears.py stays alive, its GPU part too; figures are not judged, a loaded machine would decide them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gears_common import Row, in_worker
from benchmarks.gears_gpu import METRICS, rows_of

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gears.py"
DOCS = SCRIPT.parents[1] / "docs" / "gears-benchmarks.md"


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)


@pytest.mark.long
def test_quick_cases_give_a_figure_in_every_row(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = _run("--quick", "--only", "step", "--only", "shift", "--only", "gpu", "--json", str(out))
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert {row["case"] for row in rows} == {"step", "shift", "gpu"}
    assert all(isinstance(row["ours"], float) for row in rows if row["case"] != "gpu"), rows
    assert all(0 < row["ours"] < 1 for row in rows if "request()" in row["what"]), rows
    steps = [row["ours"] / row["plain"] for row in rows if row["case"] == "step" and row["plain"]]
    assert len(steps) == 3 and all(0.2 < ratio < 5 for ratio in steps), steps
    assert all(f"| {row['what']} |" in done.stdout for row in rows)


@pytest.mark.long
@pytest.mark.slow
def test_every_way_to_train_blocks_works_or_says_why_not(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"width": 128, "blocks": 1, "batch": 2, "context": 16, "measure_s": 0.02}
    where: dict[str, Any] = {"device": "cpu", "compiled": False, "folder": str(tmp_path)}
    words = in_worker("gpu", 120.0, environ=None, time_s=100.0, **where, **sizes)
    ways = words["variants"]
    for name in ("plain bf16", "bf16", "fp16", "fp32", "fp8 tensorwise", "fp8 rowwise"):
        assert ways[name]["tokens_per_s"] > 0
        assert ways[name]["rounds"] == 2
        assert "power_w" not in ways[name]  # no meter: no figure
    assert words["notes"] == []
    for name in ("torchao tensorwise", "transformer_engine"):
        assert isinstance(ways[name], dict) or ways[name].startswith("n/a: ")


def test_rows_of_a_gpu_hold_reasons_where_there_is_no_figure() -> None:
    figures = {"step_ms": 10.0, "tokens_per_s": 1600.0, "power_w": 500.0, "mj_per_token": 312.5}
    rows = rows_of(4096, {"variants": {"plain bf16": figures, "bf16": figures, "fp8 tensorwise": "n/a: OOM"}})
    assert len(rows) == 1 + 4 * len(METRICS)
    assert (rows[0].ratio, rows[0].verdict) == (1.0, "PASS")
    by_what = {(row.what.split(", ")[1], row.unit): row for row in rows[1:]}
    fp8 = by_what["fp8 tensorwise beside plain BF16", "W"]
    assert (fp8.ours, fp8.plain, fp8.ratio) == ("n/a: OOM", 500.0, None)
    assert set(fp8.peers) == {"torchao", "transformer_engine"}
    assert by_what["fp16 beside plain BF16", "W"].ours == "n/a: not reached in time"
    assert {row.ours for row in rows_of(1024, {"error": "n/a: more than 60 s"})} == {"n/a: more than 60 s"}


def test_verdicts() -> None:
    def row(ours: float | str, plain: float | None, bar: float | None) -> Row:
        return Row(case="step", what="it", unit="ms", ours=ours, plain=plain, bar=bar)

    assert row(1.01, 1.0, 1.01).verdict == "PASS"
    assert row(1.02, 1.0, 1.01).verdict == "MISS"
    assert row(0.5, None, 1.0).verdict == "PASS"
    assert row("n/a: no such thing", 1.0, 1.01).verdict == "n/a"
    assert row(2.0, 1.0, None).verdict == ""


@pytest.mark.long
def test_a_part_of_a_table_does_not_replace_it() -> None:
    done = _run("--only", "step", "--into", str(DOCS))
    assert done.returncode == 2
    assert "--only shift" in done.stderr


@pytest.mark.parametrize("section", ["cpu", "gpu", "quality", "ablation"])
def test_the_documentation_has_a_place_for_every_table(section: str) -> None:
    from benchmarks.marks import replaced

    text = DOCS.read_text(encoding="utf-8")
    changed = replaced(text, "THE TABLE", section)
    assert changed.count("THE TABLE") == 1
    assert replaced(changed, "THE TABLE", section) == changed
    head, tail = changed.split("THE TABLE")
    assert text.startswith(head.rstrip("\n"))
    assert text.endswith(tail.lstrip("\n"))
