"""``benchmarks/all.py`` makes every table that the documents quote."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import all as every

ROOT = Path(__file__).resolve().parents[2]
NOT_IN_IT = {"all", "figures", "forecasting_fit", "rlhf_frameworks", "rlhf_kills"}
"""Itself, the command line of the scripts of figures, and scripts that made constants once, want checkouts of other
projects, or print no table."""
FIGURES = "arguments(parser, FIGURES, argv)"
"""What a script of figures says to have its options, ``--into`` among them, from ``benchmarks/figures.py``."""


def test_every_document_with_results_is_made_by_a_benchmark() -> None:
    made = re.compile(r"<!-- results(?!: quoted)")  # quoted figures are those of another page's table
    marked = {path.name for path in (ROOT / "docs").rglob("*.md") if made.search(path.read_text("utf-8"))}
    assert marked == {each.document for each in every.BENCHMARKS}


def test_every_script_that_writes_into_a_document_is_in_the_list() -> None:
    scripts = {path.stem: path.read_text("utf-8") for path in (ROOT / "benchmarks").glob("*.py")}
    writers = {name for name, text in scripts.items() if '"--into"' in text or FIGURES in text}
    assert writers - NOT_IN_IT == {each.name for each in every.BENCHMARKS}


@pytest.mark.parametrize("benchmark", every.BENCHMARKS, ids=lambda each: each.name)
def test_commands_are_those_that_the_scripts_take(benchmark: every.Benchmark) -> None:
    text = (ROOT / benchmark.script).read_text("utf-8")
    if FIGURES in text:
        text += (ROOT / "benchmarks" / "figures.py").read_text("utf-8")
    words = [*benchmark.command(quick=True), *benchmark.command(quick=False)]
    options = {word for word in words if word.startswith("--")}
    assert all(f'"{option}"' in text for option in options)
    assert (ROOT / "docs" / benchmark.document).is_file()


@pytest.mark.long
def test_a_page_names_machine_versions_and_date_and_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = next(each for each in every.BENCHMARKS if each.name == "rlhf_pipeline")
    broken = replace(steps, name="rlhf_server", quick=("--no-such-option",))
    monkeypatch.setattr(every, "BENCHMARKS", (steps, broken))
    assert every.main(["--quick", "--out", str(tmp_path)]) == 1
    page = (tmp_path / "index.md").read_text("utf-8")
    assert re.search(r"- date: 20\d\d-\d\d-\d\d", page)
    assert "- versions: torch " in page
    assert re.search(r"\[rlhf_pipeline\].* fine \|", page)
    assert re.search(r"\[rlhf_server\].* exit 2: .*unrecognized arguments", page)
    assert "| " in (tmp_path / "rlhf_pipeline.md").read_text("utf-8")
    assert page.strip() in capsys.readouterr().out


def test_list_runs_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(every, "run", pytest.fail)
    assert every.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(every.BENCHMARKS)
    assert all("--into docs/" in line for line in lines)
