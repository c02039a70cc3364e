"""The wheel ships every package on disk with its data, and nothing else at top level."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = CONFIG["tool"]["setuptools"]
ESTIMATED = ("--config", "llama-3-8b", "--tokens", "1e9", "--device", "h100", "--count", "8", "--zone", "FR")
VERSION = re.compile(r'__version__ = "(.+)"')
TRAIN = """
import time
import torch
from greentrain import GreenSession

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
config = {"run": {"book_s": 0.5}, "power": {"meters": ["cpu_model"], "cpu_tdp_w": 65.0}, "carbon": {"zone": "FR"}}
with GreenSession(config) as green:
    green.watch(model, optimizer)
    for _ in range(5):
        model(torch.zeros(8, 64)).sum().backward()
        optimizer.step()
        time.sleep(0.1)
        green.step(samples=8)
print(green.folder)
"""


def _packages_on_disk(mapping: dict[str, str]) -> set[str]:
    roots = {"greentrain": "greentrain"} | mapping
    found = set()
    for name, folder in roots.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            rel = init.parent.relative_to(ROOT / folder)
            dotted = ".".join((name, *rel.parts))
            owner = max((r for r in roots if (dotted + ".").startswith(r + ".")), key=len)
            if owner == name:
                found.add(dotted)
    return found


def _tracked() -> list[str]:
    done = subprocess.run(["git", "ls-files", "-s"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [line.split("\t")[1] for line in done.stdout.splitlines() if not line.startswith("120000")]


def test_every_package_on_disk_is_listed() -> None:
    assert set(SETUPTOOLS["packages"]) == _packages_on_disk(SETUPTOOLS["package-dir"])


@pytest.mark.parametrize(("package", "folder"), SETUPTOOLS["package-dir"].items())
def test_mapped_packages_have_a_link_for_static_tools(package: str, folder: str) -> None:
    link = ROOT.joinpath(*package.split("."))
    assert link.resolve() == ROOT / folder
    if link.is_symlink():  # else a clone without links: builds work, static tools do not
        assert not link.readlink().is_absolute()


def test_every_extra_names_the_file_that_needs_it_and_all_has_no_unknown_one() -> None:
    extras = CONFIG["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    assert set(everything.partition("[")[2].rstrip("]").split(",")) <= extras.keys()
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    for extra in extras.keys() - {"all", "dev"}:
        line = next(line for line in lines if line.startswith(f"{extra} = "))
        assert "#" in line, f"the extra {extra} gives no reason"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build an sdist from a clean copy of the tracked files, and a wheel from that sdist."""
    pytest.importorskip("build")
    source, dist = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in _tracked():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return dist


@pytest.mark.slow
def test_the_wheel_holds_every_module_its_data_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        entry_points = archive.read(next(n for n in names if n.endswith("entry_points.txt"))).decode()
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"greentrain"}
    folders = {"greentrain": "greentrain"} | {k.replace(".", "/"): v for k, v in SETUPTOOLS["package-dir"].items()}
    wanted = set()
    for name in _tracked():
        for target, folder in folders.items():
            if name.startswith(f"{folder}/"):
                wanted.add(target + name.removeprefix(folder))
    files = {name for name in names if name.startswith("greentrain/")}
    assert files == wanted
    assert {
        "greentrain/py.typed",
        "greentrain/carbon/typical.json",
        "greentrain/report/report.html",
        "greentrain/report/report.css",
        "greentrain/report/report.js",
        "greentrain/testing/fake_nvml.c",
        "greentrain/callbacks/__init__.py",
    } <= files
    assert "greentrain = greentrain.cli:main" in entry_points


@pytest.mark.slow
def test_the_sdist_has_the_licence_and_no_stray_folder(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "callbacks/__init__.py"} <= names
    assert not {name for name in names if name.startswith(("benchmarks", "recipes", "docs", "runs"))}


def _installed(folder: Path, archive: Path) -> Path:
    """Install an archive alone into a fresh environment that borrows its dependencies; return its programs."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    programs = folder / "bin"
    (site,) = folder.glob("lib/python*/site-packages")
    # A .pth in it is not read: the checkout, which stands in one, is not found by way of it.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    install = ["install", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python"), *install, str(archive)]
    done = subprocess.run(pip, capture_output=True, text=True, check=False, env=_environment(folder))
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
    return programs


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_", "GREENTRAIN_"))}
    return {**kept, "GREENTRAIN_CACHE_DIR": str(folder / "cache"), "GREENTRAIN_CLAIMS_DIR": str(folder / "claims")}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_what_is_installed_works_far_from_the_checkout(built: Path, tmp_path: Path, kind: str) -> None:
    (archive,) = built.glob(kind)
    programs = _installed(tmp_path / "venv", archive)
    (tmp_path / "elsewhere").mkdir()

    def told(*words: str) -> str:
        environment = _environment(tmp_path) | {"PATH": f"{programs}:{os.environ['PATH']}"}
        done = subprocess.run(
            words, cwd=tmp_path / "elsewhere", env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stdout[-1000:]}{done.stderr[-2000:]}"
        return done.stdout

    where = "import greentrain.callbacks, greentrain.fpga_backend.contract, greentrain.optim as o; print(o.__file__)"
    assert told("python", "-c", where).startswith(str(tmp_path / "venv"))
    version = VERSION.search((ROOT / "greentrain" / "utils" / "version.py").read_text(encoding="utf-8"))
    assert version is not None and told("greentrain", "--version") == f"greentrain-torch {version[1]}\n"
    if kind == "*.tar.gz":
        return  # the wheel was made from it, and both have the same files: see above
    assert "estimate" in told("greentrain", "--help")
    assert json.loads(told("greentrain", "doctor", "--json"))["sensors"]
    (tmp_path / "elsewhere" / "train.py").write_text(TRAIN, encoding="utf-8")
    folder = told("python", "train.py").strip().splitlines()[-1]
    summary = json.loads(told("greentrain", "report", "--json", folder))
    assert summary["work"]["steps"] == 5 and summary["energy"]["energy_j"] > 0
    assert (tmp_path / "elsewhere" / folder / "report.html").stat().st_size > 10_000
    assert "CO2e" in told("greentrain", "estimate", *ESTIMATED)
    assert json.loads(told("greentrain", "config", "schema"))["properties"]["carbon"]
    assert "power.sample_s" in told("greentrain", "config", "docs")
