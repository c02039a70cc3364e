"""Notebooks: what a cell shows, ``%%green``, and sessions over several cells, in real kernels."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import KernelManager, start_new_kernel
from nbclient import NotebookClient

from greentrain import GreenSession
from greentrain.cli.notebook import _cell
from greentrain.estimate import shapes
from greentrain.estimate.api import estimate
from greentrain.estimate.cluster import Cluster
from greentrain.estimate.workload import Workload
from greentrain.ledger import active_run
from greentrain.ledger.reader import read_run
from greentrain.ledger.totals import Totals, books_view, session_view
from greentrain.report.compare import compare
from greentrain.report.summary import summarize
from greentrain.utils.display import Table, View, to_html
from tests.helpers.flat_meter import FlatMeter

CONFIG = "carbon: {g_per_kwh: 100}\npower: {meters: cpu_model}\n"
CELLS = {
    "load": "%load_ext greentrain",
    "alone": "%%green --name warm --config green.yaml\nimport time\ntime.sleep(0.3)\nx = 20\nx + 1",
    "fails": "%%green -n broken\ntime.sleep(0.1)\n1 / 0",
    "await": "%%green\nawait nothing()",
    "async with": "%%green\nasync with nothing():\n    pass",
    "misplaced await": "%%green\ndef f():\n    await nothing()",
    "quote": "%%green --name 'a\n1",
    "quiet": "%%green --name quiet --config green.yaml\n5;",
    "fixed": "%%green --name fixed --config fixed.yaml\ntime.sleep(0.3)",
    "fixed again": "%%green --name fixed --config fixed.yaml\n1",
    "nested": "%%green -n outer -c green.yaml\nget_ipython().run_cell_magic('green', '-n inner', 'time.sleep(0.3)')",
    "exit": "%%green -n ended -c green.yaml\nraise SystemExit(0)",
    "usage": "%%green --nope\n1",
    "config": "%%green --config absent.yaml\n1",
    "start": "from greentrain import GreenSession\ngreen = GreenSession('green.yaml').start()\ntime.sleep(0.3)\ngreen",
    "step": "for _ in range(3):\n    time.sleep(0.1)\n    green.step(tokens=10)",
    "within": "%%green --name middle\ntime.sleep(0.5)",
    "config within": "%%green --config green.yaml\n1",
    "close": "green.close()\ngreen",
    "totals": "green.totals()",
    "with": "with GreenSession('green.yaml') as second:\n    time.sleep(0.2)\n    second.step()\nsecond",
    "raises": "with GreenSession('green.yaml') as third:\n    raise KeyError('lost')",
}


class _Html(HTMLParser):
    """Collects what a cell's HTML is made of, and fails where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            if name in ("href", "src"):
                self.links.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def _html(shown: Any) -> _Html:
    return _Html(shown._repr_html_())


# -- without a kernel -----------------------------------------------------------------------------------------------

TOTALS = Totals(
    energy_j=7200.0,
    duration_s=60.0,
    operational_g=0.5,
    embodied_g=0.25,
    steps=4,
    tokens=2000,
    by_device={"GPU-1": 7000.0, "cpu": 200.0},
    by_phase={"forward": 7200.0},
    by_provenance={"measured": 7000.0, "modelled": 200.0},
)


def test_totals_are_a_line_and_tables() -> None:
    line = str(TOTALS)
    carbon = "7.20 kJ (97.2 % measured, 2.8 % modelled), 500 mg CO₂e"
    assert line == f"{carbon}, 1 min, 4 steps, 2\N{THIN SPACE}000 tokens: 3.60 J/token"
    page = _html(TOTALS)
    for text in ("2.00 Wh", "120 W", "500 mg", "electricity; beside it embodied 250 mg", "GPU-1", "97.2 %", "forward"):
        assert text in page.text
    assert TOTALS._repr_mimebundle_() == {"text/plain": line, "text/html": TOTALS._repr_html_()}
    assert repr(TOTALS).startswith("Totals(energy_j=7200.0")


def test_what_nobody_knows_is_no_zero() -> None:
    blind = Totals(duration_s=5.0, missing_s={"GPU-1": 5.0}, embodied_g=0.1)
    assert str(blind) == (
        "unknown (missing: no device could be read or modelled), unknown, 5.00 s; missing: GPU-1 for 5.00 s"
    )
    assert "mean power unknown" in _html(blind).text
    assert "the energy is not known" in _html(blind).text and "intensity" not in _html(blind).text
    idle = Totals(duration_s=5.0, embodied_g=0.1, by_device={"GPU-1": 0.0}, by_provenance={"measured": 0.0})
    assert str(idle) == "0 J (measured), 0 g CO₂e, 5.00 s" and "intensity" not in _html(idle).text
    unpriced = dataclasses.replace(TOTALS, unpriced_j=7200.0, operational_g=0.0)
    assert "the grid's intensity is not known" in _html(unpriced).text and "CO₂e" not in str(unpriced)
    partly = dataclasses.replace(TOTALS, unpriced_j=100.0)
    assert "at least 500 mg" in str(partly)
    assert str(Totals()) == "nothing is booked yet"


def test_html_is_escaped_and_loads_nothing(tmp_path: Path) -> None:
    bad = "<script>alert('1')</script>&\""
    view = View(
        line=bad,
        title=bad,
        grids=[Table(rows=[(bad, bad, bad)], head=(bad, bad), title=bad), Table(rows=[(bad,)], title=bad, folded=True)],
        notes=[bad],
        page=tmp_path / "a b#c\"'<" / "report.html",
    )
    page = _Html(to_html(view))
    assert not {"script", "img", "link", "iframe"} & set(page.tags)
    assert page.text.count("<script>") == 10 and page.tags.count("style") == 1
    assert page.links == [(tmp_path / "a b#c\"'<" / "report.html").as_uri()]
    assert "url(" not in to_html(view) and "http" not in to_html(view)


def test_a_link_is_from_where_the_kernel_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    view = dataclasses.replace(books_view("Totals", TOTALS), page=Path("runs") / "100 %" / "report.html")
    assert _Html(to_html(view)).links == ["runs/100%20%25/report.html"]


def test_a_running_session_says_that_its_figures_are_not_final(tmp_path: Path) -> None:
    view = session_view(TOTALS, state="running", folder=tmp_path / "train-1", page=None)
    page = _Html(to_html(view))
    assert "train-1, running" in page.text and "close() makes them final" in page.text and not page.links


def test_an_estimate_in_a_cell() -> None:
    found = estimate(
        shapes.find("llama-3-8b"), Workload(tokens=1e9), Cluster(device="h100", count=8, zone="FRA"), method="mfu"
    )
    assert "1 G tokens in bf16 on 8 x" in str(found) and "kWh" in str(found) and "CO2e" in str(found)
    page = _html(found)
    assert "Device-hours" in page.text and f"{len(found.assumptions)} assumptions" in page.text
    assert all(one.value in page.text for one in found.assumptions)
    assert page.tags.count("details") == 2


def test_a_session_and_a_comparison(tmp_path: Path) -> None:
    config = {"run": {"dir": str(tmp_path / "runs"), "live": False}, "power": {"meters": "cpu_model"}}
    green = GreenSession(config)
    assert str(green) == "GreenSession, not started"
    folders = []
    for _ in range(2):
        with green:
            time.sleep(0.1)
            green.step(tokens=7)
        assert green.folder is not None and green.report_path is not None
        folders.append(green.folder)
        told = _html(green)
        assert told.links == [green.report_path.absolute().as_uri()]
    page = _html(green)
    assert f"{folders[1].name}, closed" in page.text and "7 tokens" in page.text
    found = compare([summarize(read_run(folder)) for folder in folders])
    assert json.loads(json.dumps(found)) == found and str(found) == found["sentences"][0]
    told = _html(found)
    assert all(folder.name in told.text for folder in folders) and "B / A" in told.text


def test_a_cell_before_the_first_booking_has_grams_and_one_after_the_end_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(active_run, "FIRST_BOOK_S", 60.0)
    config = {"run": {"dir": str(tmp_path), "report": False, "live": False}, "carbon": {"g_per_kwh": 360}}
    with GreenSession(config | {"power": {"sample_s": 0.02}}, meter=FlatMeter()) as green:
        run = green.active()
        assert run is not None
        while run.now()[0] <= 0:  # a counter's first joules are known with its second reading
            time.sleep(0.01)
        with green.phase("cell") as block:
            time.sleep(0.1)
        assert run.last_entry is None
        cell = _cell(run, block)
        used = block.energy(60.0)
    found = re.match(r"([\d.]+) J \(\d\d\.\d % measured, \d\d\.\d % modelled\), [\d.]+ mg CO₂e", cell.line)
    assert found is not None and used is not None, cell.line
    assert float(found[1]) == pytest.approx(250.0 * used.seconds, rel=0.2), cell.line
    assert "the run ended in it" in _cell(run, block).line


def test_the_package_alone_loads_no_ipython(tmp_path: Path) -> None:
    code = "import greentrain, greentrain.session, sys; print('IPython' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout.strip() == "False", done.stderr


# -- in real kernels ------------------------------------------------------------------------------------------------


def _env(folder: Path) -> dict[str, str]:
    return os.environ | {"GREENTRAIN_CLAIMS_DIR": str(folder / "claims"), "IPYTHONDIR": str(folder / "ipython")}


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The cells of a notebook that was run, by name, and ``folder``."""
    folder = tmp_path_factory.mktemp("notebook")
    (folder / "green.yaml").write_text(CONFIG, encoding="utf-8")
    (folder / "fixed.yaml").write_text(CONFIG + "run: {id: fixed}\n", encoding="utf-8")
    form: Any = nbformat.v4
    made = form.new_notebook(cells=[form.new_code_cell(source) for source in CELLS.values()])
    client = NotebookClient(
        made, timeout=200, kernel_name="python3", allow_errors=True, resources={"metadata": {"path": str(folder)}}
    )
    client.execute(env=_env(folder))
    return {"folder": folder, **{name: cell.outputs for name, cell in zip(CELLS, made.cells, strict=True)}}


def _shown(outputs: Sequence[Any]) -> list[Any]:
    return [output["data"] for output in outputs if "data" in output]


def _run(notebook: dict[str, Any], name: str) -> Any:
    (folder,) = notebook["folder"].glob(f"runs/{name}-*")
    return read_run(folder)


@pytest.mark.slow
def test_a_measured_cell_shows_joules_and_grams_and_its_value(notebook: dict[str, Any]) -> None:
    measured, value = _shown(notebook["alone"])
    assert value["text/plain"] == "21"
    run = _run(notebook, "warm")
    assert re.fullmatch(r".* (m|µ)?J \(modelled\), .*g CO₂e, .*s", measured["text/plain"])
    page = _Html(measured["text/html"])
    assert run.run_id in page.text and page.links == [f"runs/{run.run_id}/report.html"]
    assert run.wall_s == pytest.approx(0.3, abs=0.25)
    assert run.run["command"] == ["notebook"] and run.run["name"] == "warm"
    assert not [output for output in notebook["alone"] if output["output_type"] == "stream"]  # no live line


@pytest.mark.slow
def test_an_exception_in_a_measured_cell_is_shown_once_and_booked(notebook: dict[str, Any]) -> None:
    (error,) = [output for output in notebook["fails"] if output["output_type"] == "error"]
    assert error["ename"] == "ZeroDivisionError" and len(_shown(notebook["fails"])) == 1
    traceback = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error["traceback"]))
    assert "1 / 0" in traceback and "greentrain/cli/notebook.py" not in traceback
    close = _run(notebook, "broken").ranks[0].close
    assert close is not None and close["reason"] == "exception"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("await", "cannot run an await"),
        ("async with", "cannot run an await"),
        ("usage", "unrecognized arguments: --nope"),
        ("quote", "'a: No closing quotation"),
        ("config", "absent.yaml"),
        ("config within", "--config green.yaml: the cell is a phase of train-"),
    ],
)
def test_wrong_use_is_a_line(notebook: dict[str, Any], cell: str, text: str) -> None:
    (output,) = notebook[cell]
    assert output["name"] == "stderr" and text in output["text"]
    assert output["text"].startswith("UsageError: ") and output["text"].strip().count("\n") == 0


@pytest.mark.slow
def test_a_mistake_in_a_measured_cell_is_shown_as_always(notebook: dict[str, Any]) -> None:
    (error,) = notebook["misplaced await"]
    assert error["ename"] == "SyntaxError" and "outside async function" in error["evalue"]


@pytest.mark.slow
def test_a_semicolon_keeps_the_value_and_not_the_figures(notebook: dict[str, Any]) -> None:
    (measured,) = _shown(notebook["quiet"])
    assert _run(notebook, "quiet").run_id in measured["text/html"]


@pytest.mark.slow
def test_each_measured_cell_is_a_run_of_its_own(notebook: dict[str, Any]) -> None:
    runs = [read_run(folder) for folder in notebook["folder"].glob("runs/fixed*")]
    assert len(runs) == 2 and min(run.wall_s for run in runs) < 0.3 <= max(run.wall_s for run in runs)


@pytest.mark.slow
def test_a_measured_cell_in_another_is_one_of_its_phases(notebook: dict[str, Any]) -> None:
    inner, _ = _shown(notebook["nested"])
    outer = _run(notebook, "outer")
    assert outer.run_id in inner["text/html"] and outer.totals.phase_s["inner"] == pytest.approx(0.3, abs=0.2)
    assert not list(notebook["folder"].glob("runs/inner-*"))


@pytest.mark.slow
def test_a_cell_that_exits_well_has_finished(notebook: dict[str, Any]) -> None:
    close = _run(notebook, "ended").ranks[0].close
    assert close is not None and close["reason"] == "finished"


@pytest.mark.slow
def test_a_session_over_several_cells(notebook: dict[str, Any]) -> None:
    (started,), (closed,), (totals,) = (_shown(notebook[name]) for name in ("start", "close", "totals"))
    assert ", running" in started["text/html"] and "report.html" not in started["text/html"]
    assert "closed" in closed["text/html"] and "30 tokens" in closed["text/html"]
    assert totals["text/plain"] == closed["text/plain"] and "3 steps, 30 tokens" in totals["text/plain"]
    assert not notebook["step"]


@pytest.mark.slow
def test_a_measured_cell_of_a_running_session_is_one_of_its_phases(notebook: dict[str, Any]) -> None:
    (shown,) = _shown(notebook["within"])
    (folder,) = (f for f in notebook["folder"].glob("runs/train-*") if read_run(f).totals.tokens == 30)
    assert folder.name in shown["text/html"] and "J (modelled), " in shown["text/plain"]
    totals = read_run(folder).totals
    assert totals.phase_s["middle"] == pytest.approx(0.5, abs=0.2)
    told, unit = re.match(r"([\d.]+) (m?)J", shown["text/plain"]).groups()  # type: ignore[union-attr]
    assert float(told) * (1e-3 if unit else 1.0) == pytest.approx(totals.by_phase["middle"], rel=0.1)
    assert not list(notebook["folder"].glob("runs/middle-*"))


@pytest.mark.slow
def test_a_with_block_in_a_cell(notebook: dict[str, Any]) -> None:
    (shown,) = _shown(notebook["with"])
    assert ", 1 step: " in shown["text/plain"] and "report.html" in shown["text/html"]
    (error,) = notebook["raises"]
    assert error["ename"] == "KeyError"
    reasons = sorted(read_run(f).ranks[0].close["reason"] for f in notebook["folder"].glob("runs/train-*"))  # type: ignore[index]
    assert reasons == ["exception", "finished", "finished"]


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[tuple[KernelManager, Any]]:
    manager, client = start_new_kernel(
        cwd=str(tmp_path), env=_env(tmp_path) | {"JPY_SESSION_NAME": "home/me/train.ipynb"}
    )
    try:
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
        manager.cleanup_resources()


@pytest.mark.slow
def test_a_session_that_is_never_closed_is_booked_when_the_kernel_restarts(
    tmp_path: Path, kernel: tuple[KernelManager, Any]
) -> None:
    manager, client = kernel
    begin = "import time\nfrom greentrain import GreenSession\ngreen = GreenSession().start()\ntime.sleep(0.2)"
    for run in (1, 2):
        reply = client.execute_interactive(
            begin + "\ngreen.step(tokens=5)", timeout=200, output_hook=lambda message: None
        )
        assert reply["content"]["status"] == "ok", reply
        assert len(list((tmp_path / "runs").iterdir())) == run
        if run == 1:
            manager.restart_kernel()
            client.wait_for_ready(timeout=200)
            (folder,) = (tmp_path / "runs").iterdir()
            record = read_run(folder)
            assert record.totals.tokens == 5 and record.totals.energy_j > 0
            assert record.ranks[0].close is not None and record.ranks[0].close["reason"] == "exit"
            assert record.run["command"] == ["train.ipynb"] and (folder / "report.html").exists()
