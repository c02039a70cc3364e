"""The page of an estimate in a real browser: its bars, that nothing is fetched, and how it fits."""

import dataclasses
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from greentrain.estimate import shapes
from greentrain.estimate.api import estimate
from greentrain.estimate.cluster import Cluster
from greentrain.estimate.result import Estimate, relation_rows, render_html, rows
from greentrain.estimate.workload import Workload
from tests.report.test_html import _chromium, browser

pytestmark = [browser, pytest.mark.slow]
EVIL = "</title><img src=http://127.0.0.1:9/x.png onerror=alert(1)><script>throw new Error('ran')</script>" + "x" * 300
PROBE = """<script>
const box = found => found.getBoundingClientRect();
const widths = query => [...document.querySelectorAll(query)].map(found => box(found).width);
addEventListener("load", () => {
  const told = document.createElement("pre");
  const inside = [...document.querySelectorAll("main :is(h1, h2, p, th, td)")].filter(f => !f.closest(".scroll"));
  told.id = "told";
  told.textContent = JSON.stringify({
    width: innerWidth,
    scroll: document.documentElement.scrollWidth,
    right: Math.max(...inside.map(found => box(found).right)),
    grams: widths(".f-carbon, .f-embodied"),
    whiskers: widths(".whisker:nth-of-type(1)"),
    relations: widths(".f-other"),
    text: document.querySelector("main").innerText,
    page: getComputedStyle(document.body).backgroundColor,
    ink: getComputedStyle(document.body).color,
    fetched: performance.getEntriesByType("resource").map(found => found.name),
    alien: document.querySelectorAll("img, link, iframe, object, script:not([data-probe])").length,
  });
  parent.document.body.append(told);
});
</script>""".replace("<script>", "<script data-probe>")


@pytest.fixture(scope="module")
def found() -> Estimate:
    cluster = Cluster(device="h100", count=1024, zone="US-CAL-CISO", market_g_per_kwh=20.0)
    return estimate(shapes.find("llama-3-8b"), Workload(tokens=15e12), cluster)


def looked_at(tmp_path: Path, page: str, width: int = 1280, scheme: str = "light") -> dict[str, Any]:
    """Return what a script sees of a page whose policy was taken away: nothing hides what it would fetch."""
    path = tmp_path / "probed.html"
    bare = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    assert bare != page
    inner = html.escape(bare.replace("</body>", f"{PROBE}</body>"))
    frame = (
        f'<iframe width={width} height=1500 style="border: 0" srcdoc="{inner}"></iframe>'  # a window has 500 at least
    )
    path.write_text(f"<!doctype html><html style='color-scheme: light dark'>{frame}</html>", encoding="utf-8")
    dom = _chromium(
        tmp_path,
        "--dump-dom",
        f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}",
        path.as_uri(),
    ).decode()
    told = re.search('<pre id="told">([^<]*)</pre>', dom)
    assert told is not None, "the script did not run"
    seen: dict[str, Any] = json.loads(html.unescape(told.group(1)))
    return seen


def console(tmp_path: Path, page: str) -> list[str]:
    """Return what the browser says on its console of a page as it is."""
    path, log = tmp_path / "page.html", tmp_path / "console.log"
    path.write_text(page, encoding="utf-8")
    _chromium(tmp_path, "--enable-logging", f"--log-file={log}", "--dump-dom", path.as_uri())
    return [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory, found: Estimate) -> dict[str, Any]:
    return looked_at(tmp_path_factory.mktemp("wide"), render_html(found))


def test_a_browser_draws_the_bars_and_the_page_fits(found: Estimate, wide: dict[str, Any]) -> None:
    check_bars(found, wide, 1280, dark=False)


def test_the_same_on_a_phone_in_the_dark(tmp_path: Path, found: Estimate) -> None:
    check_bars(found, looked_at(tmp_path, render_html(found), 390, "dark"), 390, dark=True)


def check_bars(found: Estimate, seen: dict[str, Any], width: int, *, dark: bool) -> None:
    assert seen["width"] == width
    assert seen["scroll"] == width, "the page is wider than its window"
    assert seen["right"] <= width, "text is cut off"
    grams = (found.operational.location_g, found.operational.market_g, found.embodied_g, found.total_g)
    mids = [value.mid for value in grams if value is not None]
    assert len(mids) == 4
    longest = max(seen["grams"])
    assert longest > 0.2 * width
    assert [drawn / longest for drawn in seen["grams"]] == pytest.approx([g / max(mids) for g in mids], abs=0.01)
    assert len(seen["whiskers"]) == 4 and min(seen["whiskers"]) > 3
    times = [relation.times for relation in found.relations]
    shares = [drawn / max(seen["relations"]) for drawn in seen["relations"]]
    assert shares == pytest.approx([ratio / max(times) for ratio in times], abs=0.02)
    assert seen["fetched"] == [] and seen["alien"] == 0
    page, ink = (sum(map(int, re.findall(r"\d+", seen[key])[:3])) for key in ("page", "ink"))
    assert (page < 150 and ink > 600) if dark else (page > 600 and ink < 150)


def test_ranges_and_assumptions_are_seen(found: Estimate, wide: dict[str, Any]) -> None:
    text = " ".join(wide["text"].split())
    for name, figure, remark in (*rows(found), *relation_rows(found)):
        assert all(" ".join(word.split()) in text for word in (name, figure, remark)), name
    assert found.total_g is not None
    for said in found.assumptions:
        assert all(" ".join(word.split()) in text for word in (said.name, said.value, said.source)), said.name
        assert said.kind in text


def test_a_hostile_name_is_text(tmp_path: Path, found: Estimate) -> None:
    page = render_html(dataclasses.replace(found, shape=dataclasses.replace(found.shape, name=EVIL)))
    assert console(tmp_path, page) == []
    seen = looked_at(tmp_path, page, 390)
    assert EVIL in seen["text"]
    assert seen["scroll"] == 390, "a long word widens the page"
    assert seen["fetched"] == [] and seen["alien"] == 0


def test_what_would_be_fetched_or_run_is_noticed_and_stopped(tmp_path: Path, found: Estimate) -> None:
    """So that the tests above can fail; nothing listens on port 9."""
    page = render_html(found).replace("</main>", "<img src=http://127.0.0.1:9/x.png><script>boom()</script></main>")
    said = "\n".join(console(tmp_path, page))
    assert "Loading the image" in said and "Executing inline script" in said
    seen = looked_at(tmp_path, page)
    assert seen["fetched"] == ["http://127.0.0.1:9/x.png"] and seen["alien"] == 2
