"""What the frameworks' own loggers wrote is what was booked; there is no network where the kernel can take it away."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path

import pytest

from greentrain.ledger.reader import read_run
from tests.recipes.logged import read_logged

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
LOGGERS = ("tensorboard", "wandb", "mlflow")
KEYS = {f"green/{key}" for key in ("energy_j", "power_w", "emissions_g", "tokens_per_j", "g_per_ktoken")}
STEPS = 30
FRAMEWORKS = ("accelerate", "lightning", "transformers")
NO_NETWORK = ("unshare", "--net", "--map-root-user")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of tokens that the recipes share."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def alone() -> tuple[str, ...]:
    """Return the words that start a command without a network; none where that is not allowed."""
    if shutil.which(NO_NETWORK[0]) is None:
        return ()
    tried = subprocess.run([*NO_NETWORK, "true"], capture_output=True, check=False)
    return () if tried.returncode else NO_NETWORK


@pytest.fixture(scope="module", params=FRAMEWORKS)
def out(
    request: pytest.FixtureRequest, cache: Path, alone: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """Run a framework's recipe with all loggers that are installed; return the framework and its folder."""
    framework, folder = str(request.param), tmp_path_factory.mktemp("out")
    loggers = [name for name in LOGGERS if find_spec(name)] + ["csv"] * (framework == "lightning")
    words = ["--small", "--steps", str(STEPS), "--out", str(folder), "--logger", *loggers]
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("WANDB", "MLFLOW", "RANK", "LOCAL_", "WORLD"))}
    done = subprocess.run(
        [*alone, sys.executable, f"recipes/{framework}/loggers.py", *words],
        cwd=ROOT,
        env=keep | {"XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1", "HOME": str(cache)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr and "GreenTrainWarning" not in done.stderr
    assert f"logged by {', '.join(loggers)} below {folder}" in done.stdout
    return framework, folder


@pytest.mark.long
@pytest.mark.parametrize("logger", [*LOGGERS, "csv"])
def test_what_was_logged_is_what_was_booked(logger: str, out: tuple[str, Path]) -> None:
    framework, folder = out
    if logger == "csv" and framework != "lightning":
        pytest.skip(f"{framework} has no logger for CSV")
    if logger != "csv":
        pytest.importorskip(logger, reason=f"{logger} is not installed")
    found = read_logged(logger, folder)
    assert set(found) >= KEYS
    assert {"loss", "train_loss"} & set(found), "beside the framework's own figures"

    (path,) = folder.glob("gpt-*/summary.json")
    summary = json.loads(path.read_text())
    entries = read_run(path.parent).ranks[0].entries
    booked_j = list(accumulate(entry.energy_j for entry in entries))
    logged_j = found["green/energy_j"]
    assert logged_j == sorted(logged_j)
    for value in logged_j:  # each is what stood in the books at a time; TensorBoard keeps 32 bits
        assert min(abs(value / booked - 1) for booked in booked_j) < 1e-6

    energy_j, emissions_g = summary["energy"]["energy_j"], summary["carbon"]["emissions_g"]
    assert logged_j[-1] == pytest.approx(energy_j, rel=1e-6)
    assert found["green/emissions_g"][-1] == pytest.approx(emissions_g, rel=1e-6)
    assert found["green/tokens_per_j"][-1] == pytest.approx(summary["work"]["tokens_per_j"], rel=1e-6)
    assert found["green/g_per_ktoken"][-1] == pytest.approx(summary["work"]["g_per_ktoken"], rel=1e-6)


@pytest.mark.long
def test_nothing_is_written_elsewhere(out: tuple[str, Path]) -> None:
    framework, folder = out
    kinds = {path.name for path in folder.iterdir()}
    assert any(name.startswith(f"gpt-{framework}-loggers-") for name in kinds)
    for place in ("mlruns", "wandb", "lightning_logs"):
        assert not (ROOT / place).exists(), "below --out, not where the recipe was started"


def test_a_logger_that_is_not_installed_is_named(tmp_path: Path) -> None:
    script = (
        "import importlib.util as u, sys; real = u.find_spec; "
        "u.find_spec = lambda name, *rest: None if name == 'mlflow' else real(name, *rest); "
        f"sys.path.insert(0, {str(ROOT)!r}); from recipes.common.settings import parse; "
        "parse('x', ['--logger', 'mlflow'], loggers=('tensorboard', 'mlflow'))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip() == "--logger mlflow needs the package mlflow: pip install mlflow"
