"""Imports are lazy: torch, pandas and the frameworks are only imported by who uses them."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "pandas", "codecarbon", "lightning", "transformers", "accelerate"}


def _modules_after(code: str, cwd: Path) -> set[str]:
    """Return the top-level modules that a fresh interpreter holds after running code."""
    code += "\nimport sys; print('MODULES', *sorted({m.partition('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("MODULES"))
    return set(line.split()[1:])


def test_the_package_alone_imports_next_to_nothing(tmp_path: Path) -> None:
    modules = _modules_after("import greentrain; assert greentrain.__version__", tmp_path)
    assert not modules & (HEAVY | {"numpy", "rich", "typer", "yaml", "psutil", "pynvml"})


def test_the_session_imports_no_framework(tmp_path: Path) -> None:
    assert not _modules_after("from greentrain import GreenSession", tmp_path) & (HEAVY | {"rich", "typer", "pynvml"})


@pytest.mark.parametrize("meters", ["cpu_model", "auto"])
def test_a_whole_session_with_its_report_imports_no_framework(tmp_path: Path, meters: str) -> None:
    code = f"""
import time
from greentrain import GreenSession
config = {{"power": {{"meters": {meters!r}}}, "carbon": {{"zone": "FR"}}, "run": {{"live": False}}}}
with GreenSession(config) as green:
    with green.phase("forward"):
        time.sleep(0.3)
    green.step(tokens=3)
assert green.totals().energy_j > 0 and green.report_path.exists()
"""
    assert not _modules_after(code, tmp_path) & HEAVY


def test_the_command_line_starts_without_a_framework(tmp_path: Path) -> None:
    assert not _modules_after("import greentrain.cli", tmp_path) & (HEAVY | {"numpy"})


def test_an_unknown_name_is_an_attribute_error() -> None:
    import greentrain

    with pytest.raises(AttributeError, match="GreenSesion"):
        getattr(greentrain, "GreenSesion")  # noqa: B009


def test_what_a_package_says_of_its_modules_is_there() -> None:
    said = 0
    for init in (path for top in ("greentrain", "callbacks", "optim", "fpga_backend") for path in _inits(top)):
        for line in init.read_text(encoding="utf-8").splitlines():
            listed = re.match(r"\* ((?:[a-z_0-9]+, )*[a-z_0-9]+)  ", line)
            for name in listed[1].split(", ") if listed else ():
                said += 1
                assert (init.parent / name).exists() or (init.parent / f"{name}.py").exists(), f"{init}: {name}"
    assert said > 10


def _inits(top: str) -> Iterator[Path]:
    return (ROOT / top).rglob("__init__.py")


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "use"),
    [
        ("lightning", "from greentrain.callbacks.lightning import GreenCallback; GreenCallback()"),
        ("transformers", "from greentrain.callbacks.transformers import GreenCallback; GreenCallback()"),
        ("accelerate", "from greentrain.callbacks.accelerate import GreenAccelerator; GreenAccelerator()"),
    ],
)
def test_a_missing_framework_names_its_extra(tmp_path: Path, framework: str, use: str) -> None:
    hidden = f"import sys; sys.modules[{framework!r}] = None; sys.modules['pytorch_lightning'] = None\n"
    code = f"""{hidden}
from greentrain.errors import MissingExtraError
try:
    {use}
except MissingExtraError as error:
    assert "greentrain-torch[{framework}]" in str(error), error
else:
    raise SystemExit("no error")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-1500:]
