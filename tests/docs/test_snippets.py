"""What the documentation shows works: scripts run, code uses what exists, commands and configurations are accepted."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from greentrain.config.schema import GreenConfig
from tests.docs.command_lines import in_shell, inline, wrong
from tests.docs.lookup import Lookup
from tests.docs.pages import ALL, PAGES, ROOT, Block, blocks, label, of

SECTIONS = set(GreenConfig.__dataclass_fields__)
RUN = [block for block in of("python") if block.runs]
SHOWN = sorted({block.page for block in of("python")})
SHELL = [block for block in of("bash") if block.runs]
TESTED = sorted({block.page for block in ALL if (block.file or "").startswith("test_")})


def environment(folder: Path) -> dict[str, str]:
    """Return variables for a child whose caches are in its own folder, and which asks no network."""
    own = {"GREENTRAIN_CACHE_DIR": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    own["OMP_NUM_THREADS"] = "1"  # tests run two at a time: threads that wait for a core spin
    return {**os.environ, **own, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def write_files(page: str, folder: Path) -> None:
    """Write the files that a page shows."""
    for block in ALL:
        if block.page == page and block.file is not None:
            (folder / block.file).write_text(block.text, encoding="utf-8")


def test_every_word_behind_a_language_means_something() -> None:
    for block in ALL:
        for word in block.words:
            assert word == "run" or word.startswith("file="), f"{block.name}: {word}"


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Look up all Python and run what is marked, in one process; return what is wrong by block or page."""
    run = []
    asked = {item.name for item in request.session.items}
    for block in (block for block in RUN if f"test_scripts_run[{block.name}]" in asked):
        folder = tmp_path_factory.mktemp("block")
        write_files(block.page, folder)
        run.append([block.name, str(folder), block.text])
    read = {page: [block.text for block in of("python") if block.page == page] for page in SHOWN}
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.run_blocks"],
        input=json.dumps({"read": read, "run": run}),
        text=True,
        capture_output=True,
        env=environment(tmp_path_factory.mktemp("home")),
        cwd=ROOT,
        timeout=600,
    )
    told = {line["name"]: line["wrong"] for line in map(json.loads, done.stdout.splitlines())}
    return {name: told.get(name, f"not reached: {done.stderr[-3000:]}") for name in (*SHOWN, *(b.name for b in RUN))}


@pytest.mark.long
@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.parametrize("name", [block.name for block in RUN])
def test_scripts_run(name: str, found: Mapping[str, str]) -> None:
    assert not found[name]


@pytest.mark.slow
@pytest.mark.parametrize("page", SHOWN)
def test_python_uses_what_exists(page: str, found: Mapping[str, str]) -> None:
    assert not found[page]


@pytest.mark.slow
@pytest.mark.parametrize("block", SHELL, ids=lambda block: block.name)
def test_shell_lines_run(block: Block, tmp_path: Path) -> None:
    write_files(block.page, tmp_path)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("page", TESTED)
def test_files_with_tests_pass(page: str, tmp_path: Path) -> None:
    write_files(page, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "."],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-5000:]


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_commands_are_accepted(page: Path) -> None:
    shown = [line for block in blocks(page) if block.language in ("bash", "console") for line in in_shell(block.text)]
    refused = {line: wrong(line) for line in shown}
    for line in inline(page.read_text(encoding="utf-8")):  # where an option may be named without its value
        refused[line] = "" if (why := wrong(line)).startswith("BadOptionUsage") else why
    assert not {line: why for line, why in refused.items() if why}


@pytest.mark.parametrize("block", of("yaml", "json"), ids=lambda block: block.name)
def test_data_is_valid(block: Block) -> None:
    if block.language == "json":
        json.loads(block.text)
        return
    for thing in yaml.safe_load_all(block.text):
        if isinstance(thing, dict) and set(thing) & SECTIONS:
            GreenConfig.load(thing)


def test_the_checks_see_what_is_wrong() -> None:
    lookup = Lookup()
    lookup.follow("from greentrain import GreenSession, Nothing\nwith GreenSession(colour=1) as g:\n    g.stop()")
    assert lookup.wrong == ["greentrain has no Nothing", "GreenSession takes no colour", "GreenSession has no stop"]
    assert wrong("greentrain doctor --loud")
    assert wrong("greentrain repot runs/ID")
    assert not wrong("greentrain measure -- python train.py --anything")
