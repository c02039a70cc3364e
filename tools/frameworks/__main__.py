"""The own test suites of frameworks, plain and with GreenTrain in every Trainer and Accelerator: what differs, by name.

    python tools/frameworks                                    # every suite of suites.toml, in every mode: hours
    python tools/frameworks accelerate --mode measure          # one suite, measured only
    python tools/frameworks lightning --source lightning=DIR   # a checkout of its repository instead of its archive
    python tools/frameworks accelerate --select test_hooks     # as pytest's -k
    python tools/frameworks lightning --tests tests_pytorch/tuner --tests tests_pytorch/loops/test_fetchers.py

The suites are those of the installed versions: their archives are fetched, unpacked in a temporary folder, and never
kept. Each folder of a suite is a run of pytest and a row of the table. A test that passes plainly and not in a mode
runs once more in both, alone; if it differs again, it is named, and if not, as one that did so once: it may rest on
what a test before it has left. The exit status is 1 where one differs again and suites.toml does not know its reason,
where no test passes plainly, and where GreenTrain was put into nothing.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.sources import ROOT, fetch, install, unpacked

HERE: Final = Path(__file__).resolve().parent
MODES: Final[Mapping[str, str | None]] = {
    "plain": None,
    "measure": "",
    "gear": "precision: {gears: [fp32]}\n",
    "bf16": "precision: {gears: [bf16]}\n",
    "plan": "precision: {gears: [fp32, bf16]}\npolicy: {name: static, gear: fp32}\n",
    "subclass": "",
    "hooks": "",
}
"""Configuration of each mode: nothing but measured, with the layers of one gear (``bf16`` where weights are stored so),
with a plan that stays in a gear; of torch's own tests GearAdamW in place of AdamW, and ``adapt`` on every Adam(W),
at gamma 1."""
COLUMNS: Final = ("suite", "version", "mode", "tests", "pass plainly", "pass with it", "differ", "known")
PASSED: Final = "passed"
TEST_S: Final = 240
"""Longest time of one test (s)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Tests of another project."""

    name: str
    archive: str
    """Address of the archive of a version."""
    inject: Sequence[str]
    """Frameworks into which GreenTrain is put; none: what the mode names."""
    tests: Sequence[str]
    leave: Sequence[str] = ()
    """Files that need what is not here: several GPUs, the network, a cluster."""
    needs: Sequence[str] = ()
    """Packages that only its tests need; installed for the time of the run, without what they depend on."""
    folder: str = "."
    """Where pytest starts."""
    files: Sequence[str] = ()
    """Single files of a repository that is too large to be fetched; ``archive`` is then the address of each."""
    modes: Sequence[str] = ("measure", "gear", "plan")
    asked: Sequence[str] = ()
    """Modes for some of its tests: only ``--mode`` runs them."""
    select: str | None = None
    """Only tests whose names fit, as pytest's -k."""
    prepare: str | None = None
    """Script beside this one that makes in the folder what the tests would load from elsewhere."""
    known: Mapping[str, str] = field(default_factory=dict)
    """Why a test that passes plainly may fail with GreenTrain, by a part of its name or of what it then says."""


def main(argv: Sequence[str] | None = None) -> int:
    """Compare what is asked for, and return 1 where a test fails for a reason that nobody knows."""
    suites = {
        name: Suite(name=name, **told) for name, told in tomllib.loads((HERE / "suites.toml").read_text()).items()
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", nargs="*", choices=[[], *suites], help="what to run; all without one")
    parser.add_argument(
        "--mode", action="append", choices=[m for m in MODES if m != "plain"], help="the suite's own without one"
    )
    parser.add_argument("--source", action="append", default=[], metavar="NAME=DIR", help="a checkout of a suite")
    parser.add_argument("--tests", action="append", metavar="PATH", help="these files and folders, not the suite's own")
    parser.add_argument("--select", help="only tests whose names fit, as pytest's -k")
    parser.add_argument("--workers", type=int, default=1, help="processes that run tests side by side")
    args = parser.parse_args(argv)
    sources = dict(told.split("=", 1) for told in args.source)
    unknown = 0
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}")
    for name in args.suite or suites:
        suite = suites[name] if args.tests is None else replace(suites[name], tests=args.tests)
        with tempfile.TemporaryDirectory(prefix="frameworks-") as scratch:
            modes = [mode for mode in (*suite.modes, *suite.asked) if mode in (args.mode or suite.modes)]
            select = args.select or suite.select
            unknown += _compare(suite, modes, sources.get(name), Path(scratch), select, args.workers)
    return int(unknown > 0)


def _compare(suite: Suite, modes: Sequence[str], given: str | None, scratch: Path, select: str | None, n: int) -> int:
    """Print what differs in each mode, and return how many tests nobody knows."""
    folder = Path(given).resolve() if given else fetched(suite, scratch)
    runs = Runs(suite=suite, folder=folder / suite.folder, scratch=scratch, workers=n)
    install(suite.needs, scratch / "needs")
    if suite.prepare:
        subprocess.run([sys.executable, str(HERE / suite.prepare), str(runs.folder)], check=True)
    return sum(_compare_some(runs, modes, tests, select) for tests in suite.tests)


def _compare_some(runs: "Runs", modes: Sequence[str], tests: str, select: str | None) -> int:
    """Print what differs in each mode in one file or folder, and return how many tests nobody knows."""
    suite = runs.suite
    plain = runs.outcomes("plain", [tests], select)
    passed = {test for test, outcome in plain.items() if outcome == PASSED}
    if not passed:
        raise SystemExit(f"{suite.name}: of {len(plain)} tests in {tests} none passes plainly: nothing can differ")
    unknown = 0
    for mode in modes:
        found = runs.outcomes(mode, [tests], select)
        lost = [test for test in sorted(passed) if found.get(test) != PASSED]
        again: dict[str, dict[str, str]] = {}
        first = lost
        if lost:
            names = dict.fromkeys(test.rpartition("::")[2].partition("[")[0] for test in lost)
            again = {each: runs.outcomes(each, [tests], " or ".join(names), 1) for each in ("plain", mode)}
            lost = [
                test
                for test in lost
                if again["plain"].get(test, PASSED) == PASSED != again[mode].get(test, found.get(test))
            ]
        said = {test: f"{test}: {again[mode].get(test) or found.get(test, 'did not run')}" for test in lost}
        reasons = {test: next((why for part, why in suite.known.items() if part in said[test]), None) for test in lost}
        known = sum(why is not None for why in reasons.values())
        unknown += len(lost) - known
        kept = len(passed) - len(lost)
        row = (suite.name, version(suite.name), mode, tests, len(passed), kept, len(lost), known)
        print(f"| {' | '.join(map(str, row))} |", flush=True)
        for test, why in reasons.items():
            told = f"{test}: {why}" if why else said[test].splitlines()[0][:500]
            print(f"{suite.name} {mode}: {told}", file=sys.stderr, flush=True)
        for test in sorted({*first} - {*lost}):  # by chance, or by what a test before it left
            told = found.get(test, "did not run").splitlines()[0][:500]
            print(f"{suite.name} {mode}: {test}: once among the others, not alone: {told}", file=sys.stderr, flush=True)
    return unknown


def fetched(suite: Suite, scratch: Path) -> Path:
    """Return the folder of the suite's own repository at the version that is installed."""
    address = suite.archive.format(version=version(suite.name).partition("+")[0])
    remedy = f"give a checkout, --source {suite.name}=DIR"
    if not suite.files:
        return unpacked(address, scratch, remedy)
    source = scratch / "source"
    for file in suite.files:
        fetch(f"{address}/{file}", source / file, remedy)
    for folder in {(source / file).parent for file in suite.files} - {source / suite.folder}:
        (folder / "__init__.py").touch()  # test/optim: without one our optim goes before it, wherever on the path
    return source


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Runs of one suite."""

    suite: Suite
    folder: Path
    scratch: Path
    workers: int

    def outcomes(
        self, mode: str, tests: Iterable[str], select: str | None, workers: int | None = None
    ) -> dict[str, str]:
        """Return each test's outcome in a mode: passed, skipped, or what it says why not."""
        report = self.scratch / f"{mode}.xml"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", "--junitxml", str(report)]
        command += ["--timeout", str(TEST_S), "--continue-on-collection-errors", "-W", "default", "--tb=line"]
        command += ["-n", str(workers or self.workers), "--dist", "loadfile"] if (workers or self.workers) > 1 else []
        command += [*(f"--ignore={each}" for each in self.suite.leave), *(["-k", select] if select else []), *tests]
        log = self.scratch / f"{mode}.log"
        with log.open("w", encoding="utf-8") as file, contextlib.suppress(KeyboardInterrupt):
            subprocess.run(command, cwd=self.folder, env=self._environment(mode), stdout=file, stderr=file, check=False)
        if not report.exists():
            raise SystemExit(f"{self.suite.name}: pytest made no report:\n{log.read_text(encoding='utf-8')[-4000:]}")
        if mode != "plain" and not (self.scratch / f"{mode}.injected").exists():
            raise SystemExit(f"{self.suite.name} {mode}: no process imported what GreenTrain is put into")
        return dict(_outcomes(report))

    def _environment(self, mode: str) -> dict[str, str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        environment["HF_HOME"] = str(self.scratch / "hub")
        paths = [str(self.scratch / "needs"), *filter(None, [os.environ.get("PYTHONPATH")])]
        told = MODES[mode]
        if told is not None:
            path = self.scratch / f"{mode}.yaml"
            path.write_text(f"run: {{dir: {self.scratch / 'runs'}}}\n{told}", encoding="utf-8")
            environment |= {"GREENTRAIN_CONFIG": str(path), "GREENTRAIN_INJECT": ",".join(self.suite.inject or [mode])}
            environment["GREENTRAIN_INJECTED"] = str(self.scratch / f"{mode}.injected")
            paths = [str(HERE / "site"), str(ROOT), *paths]
        return environment | {"PYTHONPATH": os.pathsep.join(paths)}


def _outcomes(report: Path) -> Iterable[tuple[str, str]]:
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        ill = [each for each in case if each.tag in ("failure", "error", "skipped")]
        if not ill:
            yield name, PASSED
        elif ill[0].tag == "skipped":
            yield name, "skipped"
        else:
            yield name, (ill[0].get("message") or ill[0].tag).strip()


if __name__ == "__main__":
    raise SystemExit(main())
