"""Completion by the shell: the protocol of each, without a shell."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from greentrain.cli import completion, rlhf
from greentrain.cli.completion import run_folders
from greentrain.config.schema import SCHEDULERS
from greentrain.fpga_backend.roofline.cards import CARDS
from greentrain.simulator.pipeline.simulate import EAGER, Mode
from tests.helpers.command_line import environment

HEAVY = {"torch", "numpy", "pandas", "codecarbon", "transformers", "matplotlib", "duckdb", "fastapi"}
CODE = """
import sys
from greentrain.cli import main
sys.argv[0] = 'greentrain'
try:
    main()
finally:
    print('MODULES', *{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Hold three runs of different age, a folder that is none, and one run beside them."""
    for age, name in enumerate(("runs/train-1", "runs/train-2", "runs/other-3", "mine")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "run.json").write_text("{}", encoding="utf-8")
        os.utime(tmp_path / name, (1000 + age, 1000 + age))
    (tmp_path / "runs" / "trash").mkdir()
    return tmp_path


def _complete(shell: str, line: str, cwd: Path) -> list[str]:
    """Return what a shell is told for a line; the last word is the one that is typed."""
    words = f"greentrain {line}"
    count = len(words.split())
    environ = {
        "_GREENTRAIN_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": words,
        "COMP_CWORD": str(count if words.endswith(" ") else count - 1),
        "_TYPER_COMPLETE_ARGS": words,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=environment(**environ),
        timeout=240,
    )
    assert not done.stderr.partition("MODULES")[0], done.stderr
    assert not HEAVY & set(done.stderr.split())
    if shell == "zsh":
        _, arguments, text = done.stdout.partition("_arguments '*: :((")
        if not arguments:
            assert done.stdout.strip() == "_files"
            return []
        return [part.split('"')[1] for part in text.rstrip().removesuffix("))'").splitlines()]
    return [part.partition("\t")[0] for part in done.stdout.splitlines() if part]


@pytest.mark.sweep
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("report ", ["mine"]),
        ("report runs/t", ["runs/train-2", "runs/train-1"]),
        ("estimate --zone FR", ["FRA", "FRO"]),
        ("estimate --device h100-s", ["h100-sXM"]),
        ("estimate --config llama-3-8", ["llama-3-8b"]),
        ("estimate --precision fp", ["fp32", "fp16", "fp8"]),
        ("simulate --policy mp", ["mpc"]),
    ],
)
def test_values(folder: Path, shell: str, line: str, found: list[str]) -> None:
    assert _complete(shell, line, folder) == found


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("plan --zones US-CAL-CISO,US-MIDA", ["US-CAL-CISO,US-MIDA-PJM"]),
        ("fpga explore --precision int8,f", ["int8,fp16"]),
        ("fpga explore --card u", ["u55C"]),
        ("rlhf simulate published --mode late,stream-", ["late,stream-late"]),
        ("plan --actions re", ["reference"]),
        ("watch runs/o", ["runs/other-3"]),
        ("doctor -c ", []),
        ("estimate --zone nowhere", []),
        ("fpg", ["fpga"]),
        ("rlhf w", ["waterfall"]),
    ],
)
def test_lists_files_and_commands(folder: Path, line: str, found: list[str]) -> None:
    assert _complete("bash", line, folder) == found


def test_run_folders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert run_folders("m") == ["mine"] and run_folders("runs") == [
        "runs/other-3",
        "runs/train-2",
        "runs/train-1",
    ]
    assert run_folders(f"{folder}/runs/train-1") == [f"{folder}/runs/train-1"]
    assert run_folders("absent/") == [] and run_folders("x") == []
    monkeypatch.setattr(completion, "MOST_RUNS", 1)
    assert run_folders("runs/") == ["runs/other-3"]


def test_a_table_that_is_gone_completes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> None:
        raise OSError("gone")

    monkeypatch.setattr("greentrain.carbon.regions.CodecarbonData.installed", gone)
    assert completion.zones("") == []


def test_the_words_are_those_of_the_commands() -> None:
    assert set(rlhf.MODES) == {*Mode, EAGER}
    assert completion.policies("") == ["static", "carbon_blind", *SCHEDULERS]
    assert completion.gears("b") == ["bf16"]
    assert set(completion.CARDS) == set(CARDS)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_the_shell_is_printed(tmp_path: Path, shell: str) -> None:
    code = "import sys; from greentrain.cli import main; sys.argv[0] = 'greentrain'; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--show-completion", shell],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1"),
        timeout=240,
    )
    assert done.returncode == 0 and "_GREENTRAIN_COMPLETE" in done.stdout
