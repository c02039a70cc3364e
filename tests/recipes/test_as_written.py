"""What documents and recipes show can be used as it stands: configurations, options, links."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from greentrain.cli.app import app
from greentrain.config.schema import GreenConfig

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("recipes/**/*.md")])
FILES = sorted(path for path in ROOT.glob("recipes/**/*") if path.suffix in (".yaml", ".sbatch", ".py"))
SECTIONS = {"run", "power", "carbon", "precision", "policy", "actuators"}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def sections(path: Path) -> Iterator[dict[str, Any]]:
    """Yield GreenTrain's configurations of a page or a YAML file; others are only read."""
    text = path.read_text(encoding="utf-8")
    blocks = [text] if path.suffix == ".yaml" else re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for block in blocks:
        for thing in yaml.safe_load_all(block):
            assert isinstance(thing, dict), block
            if set(thing) & SECTIONS:
                yield thing


@pytest.mark.parametrize("path", [*PAGES, *(path for path in FILES if path.suffix == ".yaml")], ids=name)
def test_configurations_are_valid(path: Path) -> None:
    for config in sections(path):
        GreenConfig.load(config)


@cache
def options() -> dict[str, set[str]]:
    """Return the options of each command."""
    group = typer.main.get_command(app)
    assert hasattr(group, "commands")
    return {
        name: {opt for parameter in command.params for opt in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
        for name, command in group.commands.items()
    }


@pytest.mark.parametrize("path", [*PAGES, *FILES], ids=name)
def test_options_of_the_command_line_exist(path: Path) -> None:
    known = options()
    text = re.sub(r'",\s*"', " ", path.read_text(encoding="utf-8")).replace("\\\n", " ")
    words = r"greentrain (\w+)((?:\s+-{1,2}[a-z][a-z-]*(?:[ =][^\s-][^\s`]*)?)+)"
    for command, shown in re.findall(words, text):
        assert set(re.findall(r"(?<=\s)-{1,2}[a-z][a-z-]*", shown)) <= known[command], (command, shown)


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text(encoding="utf-8")):
        assert re.match(r"https?://", link) or (path.parent / link).exists(), link
