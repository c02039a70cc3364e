"""The files at the root say what is so: versions, commands; and every page names files that there are."""

import re
from pathlib import Path

import pytest
import yaml

import greentrain
from greentrain.utils.moved import MOVED
from tests.docs.pages import PAGES, ROOT, label


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load(_text("CITATION.cff"))
    assert citation["version"] == greentrain.__version__ and citation["license"] == "Apache-2.0"
    assert f"## [{citation['version']}] - {citation['date-released']}" in _text("CHANGELOG.md")


def test_the_changelog_has_a_section_for_each_version_and_one_ahead() -> None:
    versions = re.findall(r"^## \[([^]]+)\]", _text("CHANGELOG.md"), flags=re.MULTILINE)
    assert versions[:2] == ["Unreleased", greentrain.__version__] and len(set(versions)) == len(versions)


def test_the_changelog_tells_where_paths_are_now() -> None:
    told: dict[str, str] = {}
    for line in re.findall(r"^ +\| (`greentrain\..*) \|$", _text("CHANGELOG.md"), flags=re.MULTILINE):
        olds, new = (re.findall(r"`([^`]+)`", cell) for cell in line.split(" | "))
        told |= dict.fromkeys(olds, new[0])
    assert told == dict(MOVED)


@pytest.mark.parametrize("name", ["AGENTS.md", "CONTRIBUTING.md"])
def test_a_command_names_files_that_exist(name: str) -> None:
    words = [word for word in re.findall(r"`[^`\n]+`", _text(name)) if "ROOM" not in word]
    paths = {
        path for word in words for path in re.findall(r"(?<![\w/-])(?:\.ci|docs|benchmarks|tools|tests)/[\w./-]+", word)
    }
    assert paths and [path for path in paths if not (ROOT / path).exists()] == []


FOLDERS = "greentrain|callbacks|optim|fpga_backend|tests|benchmarks|recipes|tools|docs"
FILE = re.compile(rf"(?<![\w/.:-])((?:{FOLDERS})/[\w/.-]+\.(?:py|json|toml|yaml|md|h|cpp|v|c|npz|html))\b")
FOLDER = re.compile(rf"`((?:{FOLDERS})/[\w/]+)/?`")
METRICS = {"greentrain/reference_wait_s"}
"""Names in a tracker that look like paths."""
READMES = sorted(path for folder in ("recipes", "fpga_backend") for path in (ROOT / folder).rglob("*.md"))


@pytest.mark.parametrize("page", [*PAGES, *READMES], ids=label)
def test_a_page_names_files_that_there_are(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(FILE.findall(text)) | set(FOLDER.findall(text))
    assert [path for path in sorted(named - METRICS) if not (ROOT / path).exists()] == []


def test_the_workflow_calls_the_commands_of_readme() -> None:
    workflow = yaml.safe_load(_text(".github/workflows/ci.yml"))
    runs = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    called = [re.search(r"bash (\.ci/\w+)$", run) for run in runs]
    assert {found[1] for found in called if found} == {".ci/test", ".ci/run", ".ci/demo"} and all(called)
    assert all((ROOT / found[1]).exists() for found in called if found)
