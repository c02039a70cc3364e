"""report.html: its text, that it loads nothing, and how it looks in a real browser."""

import html
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from greentrain.report.html import headline
from greentrain.utils import quantities
from tests.report.planned_run import planned
from tests.report.run_folders import GPU, T0_S, Folder, device, entry, one_rank, showcase, write_report

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH: apt-get install chromium")


def _page(folder: Path) -> tuple[str, dict[str, Any]]:
    path = write_report(folder)
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return path.read_text(encoding="utf-8"), summary


def _text_of(page: str, element_id: str) -> str:
    found = re.search(rf'id="{element_id}">([^<]*)<', page)
    assert found is not None, element_id
    return html.unescape(found.group(1))


def test_all_files_are_written_and_no_part_is_left(tmp_path: Path) -> None:
    folder = one_rank(tmp_path)
    assert write_report(folder) == folder / "report.html"
    assert {path.name for path in folder.iterdir()} == {
        "run.json", "rank-00000.jsonl", "summary.json", "emissions.csv", "model_card.yaml", "boamps.json",
        "report.html",
    }  # fmt: skip


def test_the_journals_are_only_read(tmp_path: Path) -> None:
    folder = one_rank(tmp_path)
    before = (folder / "rank-00000.jsonl").read_bytes()
    write_report(folder)
    write_report(folder)
    assert (folder / "rank-00000.jsonl").read_bytes() == before


def test_the_headline_is_the_summary(tmp_path: Path) -> None:
    page, summary = _page(one_rank(tmp_path))
    head = headline(summary)
    assert _text_of(page, "headline-energy") == head["energy"] == "17.5 Wh"
    assert _text_of(page, "headline-emissions") == head["emissions"] == "8.40 g CO\N{SUBSCRIPT TWO}e"
    assert _text_of(page, "headline-per") == head["per"]["value"] == "700 mJ/token"
    assert _text_of(page, "headline-dominates") == "backward"
    sentence = "85.7 % of this energy was read from hardware, 14.3 % is modelled. No reading is missing."
    assert _text_of(page, "headline-provenance") == sentence


def test_devices_and_phases_say_how_far_off_they_may_be(tmp_path: Path) -> None:
    page, summary = _page(one_rank(tmp_path))
    words = html.unescape(page).replace("\N{NO-BREAK SPACE}", " ")
    assert 'class="value">15.0 Wh (14.3 to 15.7)<small>' in words and 'x1="91.4%" x2="100.0%"' in page
    assert 'class="value">2.50 Wh (1.60 to 3.40)<small>' in words and 'x1="10.21%" x2="21.69%"' in page
    for row in summary["phases"]:
        assert f'class="value">{quantities.between(row["energy_j"], row["interval_j"], quantities.ENERGY)}<' in words


def test_joules_a_token_stand_by_stage_and_device(tmp_path: Path) -> None:
    page = write_report(one_rank(tmp_path)).read_text(encoding="utf-8")
    section = page[page.index('id="stages"') : page.index("</section>", page.index('id="stages"'))]
    assert 'GPU <span class="tag measured">' in section and 'CPU <span class="tag modelled">' in section
    assert '<th scope="row">backward</th><td>270\N{NO-BREAK SPACE}mJ (' in section


def test_unknown_is_said_and_never_zero(tmp_path: Path) -> None:
    page, _ = _page(one_rank(tmp_path, g_per_kwh=None))
    assert _text_of(page, "headline-emissions") == "unknown"
    assert "chart-emissions" not in page
    page, _ = _page(Folder(tmp_path / "none").rank(0, [], [entry(T0_S, T0_S + 10, {})]).path)
    assert _text_of(page, "headline-energy") == "unknown"
    assert "<path" not in page


def test_a_run_that_booked_nothing_still_has_a_page(tmp_path: Path) -> None:
    page, _ = _page(Folder(tmp_path).rank(0, [GPU], [], reason=None, t_s=T0_S).path)
    assert "killed" in page


@pytest.mark.parametrize(("tokens", "samples"), [(10, 0), (0, 3), (0, 0)])
def test_work_on_no_energy_has_a_report_without_a_rate(tmp_path: Path, tokens: int, samples: int) -> None:
    items = [entry(T0_S, T0_S + 10, {"GPU-0": device(0.0)}, tokens=tokens, samples=samples, steps=5)]
    page, summary = _page(Folder(tmp_path).rank(0, [GPU], items).path)
    assert (summary["energy"]["energy_j"], summary["work"]["tokens_per_j"]) == (0.0, None)
    one = "token" if tokens else "sample" if samples else "step"
    assert _text_of(page, "headline-per") == headline(summary)["per"]["value"] == f"0 J/{one}"


def test_nothing_is_loaded_from_anywhere(tmp_path: Path) -> None:
    page, _ = _page(showcase(tmp_path, hours=1.0))
    assert not re.findall(r"""(?:src|href|action|data)\s*=\s*["'](?!data:)""", page)
    assert not re.findall(r"@import|url\((?!#)", page)
    assert not re.findall(r"fetch\(|XMLHttpRequest|WebSocket|import\(", page)
    assert "default-src 'none'" in page


def test_text_of_users_is_escaped(tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    folder = Folder(tmp_path, name=evil, tags={"project": evil}, command=[evil])
    entries = [entry(T0_S, T0_S + 10, {"GPU-0": device(100.0)}, zone=evil)]
    events = [{"t": T0_S + 5, "name": "warning", "text": evil}]
    folder.rank(0, [{**GPU, "name": evil, "note": evil}], entries, events=events, host=evil)
    page, _ = _page(folder.path)
    assert "<img" not in page
    assert page.count("</script>") == 2


def test_long_runs_stay_small(tmp_path: Path) -> None:
    page, _ = _page(showcase(tmp_path, hours=48.0, step_s=30.0, ranks=2))
    assert len(page) < 700_000
    for path in re.findall(r' d="([^"]*)"', page):
        assert len(re.findall("[MLHV]", path)) <= 4 * 500
    tips = json.loads(re.findall(r'<script type="application/json" id="tips">(.*?)</script>', page)[0])
    assert all(len(row["values"]) <= 2000 for tip in tips.values() for row in tip["rows"])


def test_importing_the_report_is_cheap() -> None:
    code = "import sys, greentrain.report; print([m for m in ('numpy', 'jinja2', 'yaml', 'rich') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def _chromium(tmp_path: Path, *arguments: str) -> bytes:
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--hide-scrollbars", "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--disable-dev-shm-usage", f"--user-data-dir={tmp_path / 'profile'}", *arguments,
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        out, _ = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 0
    return out


@browser
@pytest.mark.slow
def test_a_browser_shows_the_figures_and_the_charts(tmp_path: Path) -> None:
    folder = showcase(tmp_path, hours=2.0)
    _, summary = _page(folder)
    dom = _chromium(tmp_path, "--dump-dom", (folder / "report.html").as_uri()).decode()
    head = headline(summary)
    assert _text_of(dom, "headline-energy") == head["energy"]
    assert _text_of(dom, "headline-emissions") == head["emissions"]
    assert _text_of(dom, "headline-per") == head["per"]["value"]
    assert dom.count('class="card chart"') == 3
    assert dom.count('class="cross"') == 3, "the script did not run"
    power = dom[dom.index('id="chart-power"') : dom.index('id="chart-energy"')]
    assert len(re.findall(r'<path class="f-(?:gpu|cpu|dram)-\d"', power)) == 6
    assert len(re.findall('<path class="over"', power)) == 2, "the two modelled devices are hatched"
    assert "band-paused" in power and "band-missing" in power


@browser
@pytest.mark.slow
def test_a_browser_shows_the_plan_and_what_ran_at_an_hour(tmp_path: Path) -> None:
    folder = planned(tmp_path)
    page, _ = _page(folder)
    press = (
        "<script>document.querySelector('[data-chart=plan]').dispatchEvent("
        "new KeyboardEvent('keydown', {key: 'PageDown'}))</script>"
    )
    (folder / "report.html").write_text(page.replace("</body>", f"{press}</body>"), encoding="utf-8")
    dom = _chromium(tmp_path, "--dump-dom", (folder / "report.html").as_uri()).decode()
    assert dom.count('class="card chart"') == dom.count('class="cross"') == 4
    plan = dom[dom.index('id="chart-plan"') : dom.index('id="chart-power"')]
    for css in ("gpu-0", "fpga-0", "off", "grid", "runline", "staticline"):
        assert f'<path class="f-{css}"' in plan, css
    tip = re.sub("<[^>]+>", " ", dom[dom.index('id="tip"') : dom.index('id="tips"')])
    words = " ".join(html.unescape(tip).split())
    assert "2022-06-12 14:25 UTC Plan off Grid 450 g/kWh This run 0.3583 g Static bf16" in words


@browser
@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_plan_has_colours_and_fits(tmp_path: Path, width: int, scheme: str) -> None:
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    folder = planned(tmp_path)
    _, summary = _page(folder)
    shot = tmp_path / "shot.png"
    _chromium(
        tmp_path,
        f"--screenshot={shot}",
        f"--window-size={width},1500",
        f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}",
        (folder / "report.html").as_uri(),
    )
    with image.open(shot) as picture:
        colours = picture.convert("RGB").getcolors(maxcolors=1 << 24)
    assert colours is not None and summary["plan"] is not None
    blues = sum(n for n, (r, g, b) in colours if b > g + 40 and b > r + 60)
    assert blues > 0.008 * 1500 * width, "the hours of bf16, which only the plan's chart has, are not drawn"


@browser
@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_page_has_colours_and_fits(
    tmp_path: Path, width: int, scheme: str, record_property: Callable[[str, object], None]
) -> None:
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    folder = showcase(tmp_path, hours=2.0)
    write_report(folder)
    shot = tmp_path / "shot.png"
    _chromium(
        tmp_path,
        f"--screenshot={shot}",
        f"--window-size={width},1500",
        f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}",
        (folder / "report.html").as_uri(),
    )
    with image.open(shot) as picture:
        pixels = picture.convert("RGB")
        colours = pixels.getcolors(maxcolors=1 << 24)
        corner = pixels.getpixel((3, 3))
    assert colours is not None
    assert len(colours) > 200, "blank page"
    assert (sum(corner) < 150) == (scheme == "dark")
    greens = sum(n for n, (r, g, b) in colours if g > r + 25 and g > b + 10)
    assert greens > 0.03 * 1500 * width, "the power chart's area is not drawn"
    record_property("colours", len(colours))
