"""tools/frameworks names what a suite does otherwise with GreenTrain in it; suite and framework are made up."""

import os
from pathlib import Path

import pytest

import tools.frameworks.__main__ as frameworks
from tools.frameworks.__main__ import main

SITE = Path(frameworks.__file__).parent / "site" / "sitecustomize.py"
FRAMEWORK = """
class Trainer:
    def __init__(self, steps=1, callbacks=None):
        self.callbacks = callbacks or []
"""
GREEN = """
class GreenCallback:
    pass
"""
TESTS = """
from pathlib import Path
from framework import Trainer
import pytest

def test_trains():
    assert Trainer(steps=2)
def test_counts_callbacks():
    assert len(Trainer().callbacks) == 0
@pytest.mark.parametrize("which", ["a", "b"])
def test_is_alone(which):
    assert which == "a" or not any(type(each).__name__ == "GreenCallback" for each in Trainer(1, []).callbacks), "boom"
def test_fails_plainly():
    assert Trainer().callbacks
def test_fails_once():
    if Trainer().callbacks:
        seen = Path(__file__).with_name("seen")
        there = seen.exists()
        seen.touch()
        assert there, "first"
"""
SUITES = """
[pytest]
archive = "nowhere"
inject = ["framework"]
tests = ["test_made_up.py"]
modes = ["measure"]
[pytest.known]
test_counts_callbacks = "it counts callbacks"
"""
# the site of the tool, which knows one framework more
HOOK = f"""
import os, runpy
told = os.environ.pop("GREENTRAIN_INJECT", "")
its = runpy.run_path({str(SITE)!r})
if told:
    import sys
    put = lambda module: its["_with_callback"](module.Trainer, "made_up_green")
    sys.meta_path.insert(0, its["_Finder"]({{told: put}}))
"""


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tool with one suite of one file, and the folder of that."""
    files = {
        "site/sitecustomize.py": HOOK,
        "suites.toml": SUITES,
        "suite/framework.py": FRAMEWORK,
        "suite/made_up_green.py": GREEN,
        "suite/test_made_up.py": TESTS,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(frameworks, "HERE", tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # a second for each run of pytest
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p pytest_timeout")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path / "suite"


def run(suite: Path, *more: str) -> int:
    return main(["pytest", "--source", f"pytest={suite}", *more])


def test_what_differs_is_known_or_named(suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(suite) == 1
    told = capsys.readouterr()
    row = f"| pytest | {pytest.__version__} | measure | test_made_up.py | 5 | 3 | 2 | 1 |"
    assert told.out.splitlines()[-1] == row  # one of the five failed once only
    named = [line for line in told.err.splitlines() if line.startswith("pytest measure: ")]
    assert [line.split(": ", 2)[1:] for line in named] == [
        ["test_made_up::test_counts_callbacks", "it counts callbacks"],
        ["test_made_up::test_is_alone[b]", "AssertionError: boom"],
        ["test_made_up::test_fails_once", "once among the others, not alone: AssertionError: first"],
    ]


@pytest.mark.parametrize(
    ("first", "again", "status"),
    [
        ("passed", {}, 0),
        ("boom: green/energy_j", {"plain": "passed", "measure": "boom: green/energy_j"}, 0),
        ("boom", {"plain": "passed", "measure": "boom"}, 1),
        ("skipped", {"plain": "passed", "measure": "skipped"}, 1),
        (None, {"plain": "passed", "measure": None}, 1),
        ("boom", {"plain": "passed", "measure": "passed"}, 0),
        ("boom", {"plain": "boom", "measure": "boom"}, 0),
        ("boom", {"plain": None, "measure": None}, 1),  # its name alone finds it no more: that is no pass
    ],
)
def test_a_test_counts_as_lost_unless_alone_it_does_not_differ(
    suite: Path, monkeypatch: pytest.MonkeyPatch, first: str | None, again: dict[str, str | None], status: int
) -> None:
    runs = {"plain": ["passed", again.get("plain")], "measure": [first, again.get("measure")]}

    def outcomes(self: object, mode: str, tests: object, select: str | None, workers: object = None) -> dict[str, str]:
        outcome = runs[mode].pop(0)
        return {} if outcome is None else {"made::test_up": outcome}

    text = SUITES.replace("test_counts_callbacks", '"green/"')
    (suite.parent / "suites.toml").write_text(text)
    monkeypatch.setattr(frameworks.Runs, "outcomes", outcomes)
    assert run(suite) == status


def test_a_mode_for_some_tests_runs_only_where_it_is_asked_for(suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (suite.parent / "suites.toml").write_text(SUITES.replace("[pytest.known]", 'asked = ["bf16"]\n[pytest.known]'))
    ran: list[str] = []

    def outcomes(self: object, mode: str, *_: object) -> dict[str, str]:
        ran.append(mode)
        return {"made::test_up": "passed"}

    monkeypatch.setattr(frameworks.Runs, "outcomes", outcomes)
    assert run(suite) == 0 and run(suite, "--mode", "bf16") == 0
    assert ran == ["plain", "measure", "plain", "bf16"]


def test_a_suite_that_fails_plainly_proves_nothing(suite: Path) -> None:
    with pytest.raises(SystemExit, match=r"of 1 tests in test_made_up\.py none passes plainly"):
        run(suite, "--select", "fails_plainly")


def test_a_suite_that_never_met_greentrain_proves_nothing(suite: Path) -> None:
    (suite / "test_other.py").write_text("def test_of_nothing():\n    pass\n")
    with pytest.raises(SystemExit, match="pytest measure: no process imported what GreenTrain is put into"):
        run(suite, "--tests", "test_other.py")


def test_a_pytest_that_makes_no_report_is_an_error(suite: Path) -> None:
    (suite / "test_other.py").write_text("import os\nos._exit(3)\n")
    with pytest.raises(SystemExit, match="pytest made no report"):
        run(suite, "--tests", "test_other.py")


def test_every_suite_says_where_greentrain_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    import runpy
    import tomllib

    monkeypatch.delenv("GREENTRAIN_INJECT", raising=False)
    assert "GREENTRAIN_INJECT" not in os.environ
    places = runpy.run_path(str(SITE))["PLACES"]
    for name, told in tomllib.loads((SITE.parents[1] / "suites.toml").read_text()).items():
        suite = frameworks.Suite(name=name, **told)
        assert set(suite.inject or suite.modes) <= set(places), name
        assert {*suite.modes, *suite.asked} <= set(frameworks.MODES), name
