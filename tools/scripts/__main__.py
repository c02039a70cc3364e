"""Real training scripts of other projects, plain and with GreenTrain's lines in them: what differs.

    python tools/scripts                                  # every script of scripts.toml: an hour of one core
    python tools/scripts nanogpt                          # one
    python tools/scripts nanogpt --source nanogpt=DIR     # its source from a folder instead of its archive
    python tools/scripts nanogpt --variant compile

A script runs twice on the CPU, in a copy of its project, on data that data.py makes: as it is, and with
patches/NAME.diff, which holds what README says to add and none of its text. Compared are the losses bit for bit,
what it prints, the weights that it saves, steps, tokens and samples against its arguments, what it leaves behind
(threads, processes, open files, hooks, models that nobody frees, files), and the lines of standard error. The exit
status is 1 where something differs that scripts.toml does not know with its reason.
"""

import argparse
import collections
import hashlib
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.sources import ROOT, install, unpacked

HERE: Final = Path(__file__).resolve().parent
RUN_S: Final = 600
"""Longest time of one run (s)."""
GONE_S: Final = 5.0
"""Longest time in which a process that the script has started may end after it (s)."""
CHANCE: Final = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?")
"""What differs from run to run in a warning or in the name of a file: addresses, numbers of processes, times."""
TORCHRUN: Final = "-m torch.distributed.run --standalone --nproc-per-node=2"
OURS: Final = re.compile(r"^greentrain: report ")
"""The one line that GreenTrain prints at the end of a run (``name_report``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to run a script, and what its arguments imply."""

    run: str
    """Words after ``python``; {args} stands for what variants share, {torchrun} for a launcher of two processes."""
    steps: int
    tokens: int = 0
    samples: int = 0
    then: str = ""
    """Words of a second command in the same folder, as of one that resumes; {run} stands for the first; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Scripts of one project."""

    name: str
    archive: str
    """Address of the archive of the commit for which the diff was made."""
    data: str
    """Function of data.py that makes the data."""
    variants: Mapping[str, Variant]
    folder: str = "."
    """Where the scripts are; the diff, the edits and the data are in there, too."""
    args: str = ""
    """What variants share."""
    edits: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    """By file: texts to replace in both runs, where a script would insist on a GPU."""
    chance: str = r"(?!)"
    """What differs from run to run in what it prints, as a regular expression."""
    needs: Sequence[str] = ()
    """Packages that only its scripts need; installed for the time of the run, without what they depend on."""
    known: Mapping[str, str] = field(default_factory=dict)
    """Why something may differ, by a part of the difference's text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one run did."""

    exit_code: int = 0
    losses: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By command and rank (``0-1``), as hexadecimal numbers: every tensor on which backward was called."""
    printed: Counter[str] = field(default_factory=Counter)
    weights: Sequence[str] = ()
    """A SHA-256 for each file of tensors, in the order of their names."""
    told: Counter[str] = field(default_factory=Counter)
    """Lines of standard error."""
    left: Counter[str] = field(default_factory=Counter)
    """What the script's processes held when they ended, and what was there after it."""
    work: Mapping[str, int] | None = None
    """Steps, tokens and samples as GreenTrain reports them; None: it did not run."""


def main(argv: Sequence[str] | None = None) -> int:
    """Compare what is asked for, and return 1 where something differs for a reason that nobody knows."""
    scripts = read_scripts(HERE / "scripts.toml")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*", choices=[[], *scripts], help="scripts to run; all without one")
    parser.add_argument("--variant", action="append", help="all without one")
    parser.add_argument("--source", action="append", default=[], metavar="NAME=DIR", help="a folder of a project")
    parser.add_argument("--keep", type=Path, help="leave the folders of all runs here")
    args = parser.parse_args(argv)
    sources = dict(told.split("=", 1) for told in args.source)
    unknown = 0
    print("| script | variant | losses | steps | tokens | samples | differ | known |", flush=True)
    print("| --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for name in args.name or scripts:
        script = scripts[name]
        with tempfile.TemporaryDirectory(prefix="scripts-") as scratch:
            given = sources.get(name)
            remedy = f"give a folder of that commit, --source {name}=DIR"
            source = Path(given).resolve() if given else unpacked(script.archive, Path(scratch), remedy)
            folder = (args.keep or Path(scratch)).resolve() / name
            prepare(script, source, folder / "project")
            install(script.needs, folder / "needs")
            for told, variant in script.variants.items():
                if told in (args.variant or script.variants):
                    unknown += compare(script, told, variant, folder)
    return int(unknown > 0)


def read_scripts(path: Path) -> dict[str, Script]:
    """Return the entries of scripts.toml by name."""
    scripts = {}
    for name, told in tomllib.loads(path.read_text(encoding="utf-8")).items():
        variants = {each: Variant(**of) for each, of in told.pop("variants").items()}
        scripts[name] = Script(name=name, variants=variants, **told)
    return scripts


def prepare(script: Script, source: Path, folder: Path) -> None:
    """Copy the scripts of a project, edit them as both runs need it, and make their data."""
    shutil.copytree(source / script.folder, folder, ignore=shutil.ignore_patterns(".git"))
    for name, edits in script.edits.items():
        text = (folder / name).read_text(encoding="utf-8")
        for before, after in edits:
            if before not in text:
                raise SystemExit(f"{script.name}: {name} of {source} has no {before!r}: is it of another commit?")
            text = text.replace(before, after)
        (folder / name).write_text(text, encoding="utf-8")
    subprocess.run(
        [sys.executable, str(HERE / "data.py"), script.data, str(folder)], check=True, stderr=subprocess.DEVNULL
    )


def compare(script: Script, told: str, variant: Variant, folder: Path) -> int:
    """Run one variant twice, print its row and what differs, and return for how much of that nobody knows a reason."""
    plain = run(script, variant, folder / told / "plain")
    green = Outcome() if plain.exit_code else run(script, variant, folder / told / "green")
    differ = differences(plain, green, variant)
    reasons = {text: next((why for part, why in script.known.items() if part in text), None) for text in differ}
    known = sum(why is not None for why in reasons.values())
    work = green.work or {}
    figures = [str(work.get(each, "-")) for each in ("steps", "tokens", "samples")]
    losses = sum(len(of) for of in plain.losses.values())
    print(f"| {' | '.join([script.name, told, str(losses), *figures, str(len(differ)), str(known)])} |", flush=True)
    for text, why in reasons.items():
        print(f"{script.name} {told}: {text}{f' ({why})' if why else ''}", file=sys.stderr, flush=True)
    return len(differ) - known


def differences(plain: Outcome, green: Outcome, variant: Variant) -> list[str]:
    """Return in words what the run with GreenTrain did otherwise; nothing where it did the same."""
    found = []
    if plain.exit_code:
        return [f"it fails plainly, with exit status {plain.exit_code}: {_last(plain.told)}"]
    if green.exit_code:
        found.append(f"exit status {green.exit_code}: {_last(green.told - plain.told)}")
    for place, before in plain.losses.items():
        after = green.losses.get(place, ())
        if list(before) != list(after):
            at = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(after))
            found.append(f"losses {place}: {len(before)} and {len(after)}, the first that differs is {at}")
    seen = [float.fromhex(loss) for of in plain.losses.values() for loss in of]
    if not seen or not all(map(math.isfinite, seen)):
        found.append(f"{len(seen)} losses were seen plainly, or some are no numbers: there is nothing to compare")
    if list(plain.weights) != list(green.weights):
        found.append(f"weights: {len(plain.weights)} files and {len(green.weights)}, whose values differ")
    found += [f"printed only plainly: {line}" for line in plain.printed - green.printed]
    found += [f"printed only with it: {line}" for line in green.printed - plain.printed]
    found += [f"left behind: {what} x {count}" for what, count in (green.left - plain.left).items()]
    found += [f"gone: {what} x {count}" for what, count in (plain.left - green.left).items()]
    found += [f"standard error: {line}" for line in green.told if line not in plain.told and not OURS.match(line)]
    if green.work is None:
        found.append("no report")
    else:
        told = {each: int(getattr(variant, each)) for each in ("steps", "tokens", "samples")}
        found += [f"{each}: {green.work[each]} for {n}" for each, n in told.items() if green.work[each] != n]
    return found


def _last(lines: Iterable[str]) -> str:
    return " / ".join(list(lines)[-3:])


def run(script: Script, variant: Variant, folder: Path) -> Outcome:
    """Run a variant in a copy of its project, and return what it did.

    Args:
        script: The script.
        variant: How it is run.
        folder: Folder of this run, whose name says whether GreenTrain's lines are in: ``plain`` or ``green``.
    """
    place = folder / "project"
    shutil.copytree(folder.parent.parent / "project", place)
    if folder.name == "green":
        patch = HERE / "patches" / f"{script.name}.diff"
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder)}  # in no repository, whatever stands above
        subprocess.run(["git", "apply", "--unidiff-zero", str(patch)], cwd=place, env=environment, check=True)
    at_first = set(_files(place))
    for each in ("home", "tmp", "probes"):
        (folder / each).mkdir()
    exit_code, left, words = 0, Counter[str](), ""
    for number, command in enumerate(filter(None, (variant.run, variant.then))):
        words = command.format(args=script.args, torchrun=TORCHRUN, run=words)
        exit_code, there = _run([sys.executable, *shlex.split(words)], place, folder, number)
        left += there
        if exit_code:
            break
    outputs = {name: (folder / name).read_text(encoding="utf-8", errors="replace") for name in ("stdout", "stderr")}
    chance = re.compile(script.chance)
    losses = {}
    for path in sorted((folder / "probes").iterdir()):
        probed = json.loads(path.read_text(encoding="utf-8"))
        losses[path.stem] = probed["losses"]
        for what, n in probed["left"].items():
            left[f"{CHANCE.sub('N', what.replace(str(folder), ''))} (rank {probed['rank']})"] += n
    for name in ("home", "tmp"):
        left.update(f"file {CHANCE.sub('N', f'{name}/{each}')}" for each in _files(folder / name))
    made = [each for each in _files(place) if each not in at_first and not each.startswith("runs/")]
    left.update(f"file {CHANCE.sub('N', each)}" for each in made)
    return Outcome(
        exit_code=exit_code,
        losses=losses,
        printed=Counter(filter(None, (chance.sub("", line) for line in outputs["stdout"].splitlines()))),
        weights=[_of_tensors(place / each) for each in sorted(made) if each.endswith((".pt", ".bin", ".safetensors"))],
        told=Counter(CHANCE.sub("N", line.replace(str(folder), "")) for line in outputs["stderr"].splitlines() if line),
        left=left,
        work=_work(place / "runs"),
    )


def _run(words: Sequence[str], place: Path, folder: Path, number: int) -> tuple[int, Counter[str]]:
    """Run one of a variant's commands and return its exit status, and the processes that are there after it, ended."""
    mark = f"SCRIPTS_RUN={folder}"
    cache = folder.parent / "cache"  # what torch.compile and datasets make, for both
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([str(HERE / "site"), str(ROOT), str(place), str(folder.parents[1] / "needs")]),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "HF_HOME": str(cache),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",  # which share a line with what two processes say
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "WANDB_MODE": "disabled",
        "SCRIPTS_PROBES": str(folder / "probes" / str(number)),
        "SCRIPTS_RUN": str(folder),
    }
    with (folder / "stdout").open("a") as out, (folder / "stderr").open("a") as err:
        child = subprocess.Popen(words, cwd=place, env=environment, stdout=out, stderr=err, start_new_session=True)
        try:
            exit_code = child.wait(RUN_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            exit_code = child.wait()
    until_s = time.monotonic() + GONE_S
    while (there := dict(_marked(mark))) and time.monotonic() < until_s:
        time.sleep(0.1)
    for process in there:
        os.kill(process, signal.SIGKILL)
    return exit_code, Counter(f"process {CHANCE.sub('N', command)}" for command in there.values())


def _marked(mark: str) -> Iterator[tuple[int, str]]:
    """Yield the processes whose environment has a mark, with their commands."""
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (each / "environ").read_bytes().split(b"\0"):
                yield int(each.name), (each / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it has ended, or is another user's


def _files(folder: Path) -> list[str]:
    return [str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()]


def _of_tensors(path: Path) -> str:
    """Return the SHA-256 over the values in a file of tensors, whatever else stands in it."""
    import torch

    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(value, collections.abc.Mapping):
            for key in value:
                digest.update(str(key).encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            for each in value:
                add(each)

    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        add(load_file(path))
    else:
        add(torch.load(path, map_location="cpu", weights_only=False))
    return digest.hexdigest()


def _work(runs: Path) -> dict[str, int] | None:
    """Return steps, tokens and samples of all runs in a folder."""
    from greentrain.ledger.reader import read_run

    totals = [read_run(each).totals for each in sorted(runs.glob("*/")) if (each / "run.json").exists()]
    return (
        {name: sum(getattr(of, name) for of in totals) for name in ("steps", "tokens", "samples")} if totals else None
    )


if __name__ == "__main__":
    raise SystemExit(main())
