"""The page in a real Chromium: its views by clicks and keys, hostile names, what it fetches, and how it fits."""

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from greentrain.report.ui.server import Listening, PageServer
from greentrain.types import DeviceEnergy, Provenance
from greentrain.utils import quantities
from tests.helpers.hand_clock import HandClock
from tests.report.cluster_plans import HOUR_S, controlled, small, written
from tests.report.run_folders import CPU, GPU, T0_S, Folder, device, entry, one_rank, sensor
from tests.report.test_html import browser
from tests.report.ui.chrome import Chrome

pytestmark = [browser, pytest.mark.slow]
EVIL = "<img src=x onerror=alert(1)>\"'&lt;<script>throw new Error('ran')<" + "x" * 200
ROWS = "[...document.querySelectorAll('#rows tr')].map(row => row.querySelector('.name small').textContent)"
BOARD = "[...document.querySelectorAll('#board tr')].map(row => [row.querySelector('.place').textContent,"
BOARD += (
    " row.querySelector('.who small').textContent.split(' ')[0], row.querySelector('.value').firstChild.textContent])"
)
FITS = "[innerWidth, document.documentElement.scrollWidth]"


def rows_are(chrome: Chrome, names: list[str]) -> None:
    """Check that the table comes to hold some runs in this order: it is drawn when the browser finds time."""
    chrome.wait(f"JSON.stringify({ROWS}) === {json.dumps(json.dumps(names, separators=(',', ':')))}")


def run(
    root: Path, name: str, energy_j: float, *, tokens: int = 1000, priced: int = 2, cpu_j: float = 0.0, **more: Any
) -> Folder:
    """Write a run of two entries; energy and tokens are of each."""
    devices: dict[str, DeviceEnergy] = {"GPU-0": device(energy_j)}
    if cpu_j:
        devices["cpu"] = device(cpu_j, Provenance.MODELLED)
    day_s = T0_S + 86_400.0 * more.pop("day", 0)
    zone, reason = more.pop("zone", "FRA"), more.pop("reason", "finished")
    entries = [
        entry(
            day_s + 10 * i,
            day_s + 10 * (i + 1),
            devices,
            tokens=tokens,
            zone=zone,
            g_per_kwh=360.0 if i < priced else None,
            pue=1.0,
            embodied_g=0.001,
        )
        for i in range(2)
    ]
    folder = Folder(root, name, name="gpt", created_unix_s=day_s, **more)
    return folder.rank(0, [GPU, CPU] if cpu_j else [GPU], entries, reason=reason)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Five runs of one model: two with a place, one partly modelled, one with a lower bound, one unknown."""
    root = tmp_path / "many"
    run(root, "clean", 1000.0, tags={"project": "atlas", "user": "ann"}, day=3)
    run(root, "dirty", 9000.0, tags={"project": "beacon", "user": "bo"}, day=1, zone="DEU", reason="exception")
    run(root, "partly", 2000.0, cpu_j=1000.0, tags={"project": "atlas", "user": "bo"}, day=2)
    run(root, "bound", 900.0, priced=1, tags={"project": "atlas"}, day=4)
    run(root, "dark", 100.0, tokens=0, day=5)
    return root


@pytest.fixture
def served(runs: Path, tmp_path: Path) -> Iterator[PageServer]:
    with PageServer(runs, cache=tmp_path / "cache.duckdb", every_s=0.1) as server:
        yield server


@pytest.fixture
def chrome(tmp_path: Path) -> Iterator[Chrome]:
    with Chrome(tmp_path / "profile") as one:
        yield one


def come_in(chrome: Chrome, server: PageServer, count: int, view: str = "") -> None:
    """Open the link and wait for the runs."""
    chrome.open(server.link + view)
    chrome.wait(f"document.getElementById('sum-runs')?.textContent === '{count}'")


def check(chrome: Chrome, server: PageServer, allowed: Sequence[str] = ()) -> None:
    """Nothing went wrong, and nothing was fetched from elsewhere."""
    assert [text for text in chrome.troubles if not any(word in text for word in allowed)] == []
    assert [url for url in chrome.asked if not url.startswith((server.url, "data:"))] == []
    assert any(url.startswith(f"{server.url}/api/runs?after=") for url in chrome.asked), "it does not follow"


def test_one_finds_sorts_compares_and_opens_runs(served: PageServer, chrome: Chrome) -> None:
    come_in(chrome, served, 5)
    assert "token" not in chrome.run("location.href")
    rows_are(chrome, ["dark", "bound", "clean", "partly", "dirty"])  # the newest first
    chrome.click("[data-key=sort-energy_j]")
    chrome.wait("location.hash.includes('energy_j')")
    rows_are(chrome, ["dirty", "partly", "clean", "bound", "dark"])
    assert chrome.run("document.activeElement.dataset.key") == "sort-energy_j"
    for ways in range(2):
        chrome.click("[data-key=sort-g_per_token]")
        known = ["bound", "clean", "partly", "dirty"]
        order = [*(reversed(known) if ways else known), "dark"]
        rows_are(chrome, order)  # unknown is last both ways
    assert "unknown" in chrome.run("document.querySelector('#rows tr:last-child').textContent")

    chrome.press("/")
    chrome.write("FRA atlas")
    chrome.wait("document.getElementById('count').textContent === '3 of 5 runs'")
    chrome.choose("#f-user", "=bo")
    rows_are(chrome, ["partly"])
    assert chrome.run("document.getElementById('sum-energy').textContent") == quantities.energy(6000.0)
    chrome.click("#clear")
    chrome.choose("#f-state", "unfinished")
    rows_are(chrome, ["dirty"])
    chrome.click("#clear")
    chrome.run("(() => { const from = document.getElementById('f-from'); from.value = '2026-01-04'; })()")
    chrome.choose("#f-to", "2026-01-05")
    chrome.choose("#f-from", "2026-01-04")
    chrome.wait(f"({ROWS}).length === 2")
    assert sorted(chrome.run(ROWS)) == ["bound", "clean"]
    chrome.click("#clear")

    for name in ("clean", "partly"):
        chrome.click(f"tr:has(small) input[data-key='choose-{chrome.run(_id_of(name))}']")
    chrome.wait("document.getElementById('basket-text').textContent === '2 runs chosen'")
    chrome.click("#basket-compare")
    chrome.wait("document.querySelectorAll('.sides thead th').length === 2")
    cells = chrome.run(
        "Object.fromEntries([...document.querySelectorAll('.sides tbody tr')].map(row =>"
        " [row.cells[0].textContent, [...row.cells].slice(1).map(cell => cell.textContent)]))"
    )
    assert cells["Energy"] == [quantities.energy(2000.0), f"{quantities.energy(6000.0)}× 3.00"]
    assert cells["Energy/token"] == ["1.00 J", "3.00 J× 3.00"]
    assert cells["of it measured"] == ["100 %", "66.7 %"]
    assert cells["To keep in mind"] == ["", "33.3 % modelled"]
    bars = chrome.run(
        "[...document.querySelectorAll('.chart-card')].map(card => [card.querySelector('h2').textContent,"
        " [...card.querySelectorAll('.bar')].map(bar => [...bar.querySelectorAll('rect[class]')].map(rect =>"
        " [rect.getAttribute('class'), parseFloat(rect.getAttribute('width'))]))])"
    )
    charts = {title: found for title, found in bars}
    assert list(charts) == ["Energy per token", "CO₂e per token", "Operational and embodied CO₂e", "Energy"]
    (clean,), partly = charts["Energy per token"]
    assert clean == ["f-measured", pytest.approx(100 / 3)]
    assert partly == [["f-measured", pytest.approx(200 / 3)], ["f-modelled", pytest.approx(100 / 3)]]
    assert [name for name, _ in charts["Operational and embodied CO₂e"][0]] == ["f-carbon", "f-embodied"]

    chrome.click(".sides thead a")
    address = chrome.other_page()
    assert address.endswith("/report.html")
    chrome.wait("document.querySelectorAll('.cross').length > 0")
    assert chrome.run("document.querySelector('h1').textContent") == "gpt"
    assert chrome.run("origin") == "null", "a report has no part in the page's origin"
    assert chrome.run("fetch('/api/runs').then(() => 'told', () => 'refused')") == "refused"
    check(chrome, served, ["/api/runs"])


def _id_of(name: str) -> str:
    return f"[...document.querySelectorAll('#rows tr')].find(row => row.querySelector('small').textContent === '{name}').dataset.id"  # noqa: E501


def test_the_leaderboard_has_no_unknown_before_a_known_run(served: PageServer, chrome: Chrome) -> None:
    come_in(chrome, served, 5, "&view=board")
    chrome.wait("document.querySelectorAll('#board tr').length === 5")
    found = chrome.run(BOARD)
    assert [line[:2] for line in found] == [
        ["1", "clean"],
        ["2", "partly"],
        ["3", "dirty"],
        ["≥", "bound"],
        ["–", "dark"],
    ]
    assert found[0][2] == quantities.mass((2000.0 / 1e4 + 0.002) / 2000)
    assert found[3][2].startswith("≥ ") and found[4][2] == "unknown"
    text = chrome.run("document.getElementById('board').innerText")
    for words in ("33.3 % modelled", "50.0 % without intensity", "no tokens counted", "exception"):
        assert words in text
    chrome.click("#only-measured")
    assert [line[1] for line in chrome.run(BOARD)] == ["clean", "dirty", "bound", "dark"]
    chrome.click("#only-complete")
    assert [line[1] for line in chrome.run(BOARD)] == ["clean", "dirty", "dark"]
    chrome.choose("#within", "project")
    heads = "[...document.querySelectorAll('#board h2')].map(head => head.textContent)"
    assert sorted(chrome.run(heads)) == ["(no project)", "atlas", "beacon"]
    hash_ = chrome.run("location.hash")
    chrome.open("about:blank")
    chrome.wait("location.href === 'about:blank'")
    chrome.open(f"{served.url}/{hash_}")
    chrome.wait("document.querySelectorAll('#board tr').length === 3")
    assert chrome.run("document.getElementById('only-complete').checked"), "a link shows the same view"
    check(chrome, served)


def test_missing_readings_are_told_in_every_view(tmp_path: Path, chrome: Chrome) -> None:
    root = tmp_path / "many"
    lines = [entry(T0_S, T0_S + 10, {"GPU-0": device(1000.0, missing_s=5.0)}, tokens=100, embodied_g=0.01)]
    Folder(root, "holes").rank(0, [GPU], lines)
    lines = [entry(T0_S, T0_S + 10, {"GPU-0": device(1000.0)}, tokens=100, embodied_g=0.01)]
    Folder(root, "half", world_size=2).rank(0, [GPU], lines)
    with PageServer(root, cache=tmp_path / "cache.duckdb", every_s=0.1) as server:
        come_in(chrome, server, 2)
        cells = chrome.run(
            "Object.fromEntries([...document.querySelectorAll('#rows tr')].map(row =>"
            " [row.querySelector('.name small').textContent, [...row.cells].map(cell => cell.textContent)]))"
        )
        assert "100 % measured, 50.0 % missing" in cells["holes"][8]
        assert "100 % measured, 1 of 2 ranks missing" in cells["half"][8]
        assert all(cells[name][column].startswith("≥ ") for name in cells for column in (9, 10)), cells
        told = chrome.run("document.getElementById('sum-provenance').textContent")
        assert told == "100 % measured; 25.0 % of the device time missing; ranks of 1 run missing"
        assert chrome.run("document.getElementById('sum-mass').textContent").startswith("≥ ")
        chrome.run("location.hash = '#view=totals'")
        chrome.wait("document.querySelectorAll('#totals .card').length === 4")
        value = chrome.run("document.querySelector('#totals .value').textContent")
        assert value.startswith("≥ ") and value.endswith("2 runs, 25.0 % missing")
        check(chrome, server)


def test_totals_follow_the_filters_that_they_know(served: PageServer, chrome: Chrome) -> None:
    come_in(chrome, served, 5, "&view=totals")
    chrome.wait("document.querySelectorAll('#totals .card').length === 4")
    rows = (
        "Object.fromEntries([...document.querySelectorAll('#totals .card')].map(card => [card.querySelector('h2')"
        ".textContent, [...card.querySelectorAll('tr')].map(row => row.cells[0].textContent)]))"
    )
    assert chrome.run(rows)["By project"] == ["beacon", "atlas", "(no project)"]
    chrome.choose("#measure", "energy_j")
    chrome.wait("document.querySelector('#totals .f-measured')")
    chrome.choose("#f-project", "=atlas")
    chrome.wait("document.querySelectorAll('#totals .card')[1].querySelectorAll('tr').length === 1")
    assert chrome.run(rows)["By zone"] == ["FRA"]
    chrome.press("/")
    chrome.write("gpt")
    chrome.wait("document.getElementById('totals-hint').textContent.includes('The filter search does not hold here')")
    check(chrome, served)


def test_a_running_run_moves_and_the_keyboard_stays(served: PageServer, chrome: Chrome, runs: Path) -> None:
    come_in(chrome, served, 5)
    now_s = time.time()
    going = Folder(runs, "going", created_unix_s=now_s)
    going.rank(0, [GPU], [entry(now_s - 20, now_s - 10, {"GPU-0": device(36_000.0)}, tokens=10)], reason=None)
    chrome.wait("document.getElementById('pulse').textContent === '1 running'")
    cell = "document.querySelector('#rows tr td:nth-child(9)').firstChild.textContent"
    assert chrome.run(cell) == "10.0 Wh"
    chrome.run("document.querySelector('#rows tr input').focus()")
    more = [entry(now_s - 10, now_s, {"GPU-0": device(36_000.0)}, tokens=10)]
    going.rank(0, [GPU], more)
    chrome.wait(f"{cell} === '20.0 Wh'")
    assert chrome.run("document.querySelector('#rows tr .state').textContent") == "finished"
    assert chrome.run("document.activeElement === document.querySelector('#rows tr input')")
    chrome.press(" ", 32)
    chrome.wait("document.getElementById('basket-text').textContent === '1 run chosen'")
    check(chrome, served)


def test_names_are_never_markup(tmp_path: Path, chrome: Chrome) -> None:
    root = tmp_path / "many"
    folder = EVIL[:90].replace("/", "")
    tags = {"project": EVIL, "user": EVIL, EVIL: EVIL, "model": EVIL, "__proto__": "constructor"}
    evil = sensor("GPU-0", "gpu", EVIL)
    for name in (folder, "=none"):
        lines = [entry(T0_S, T0_S + 10, {"GPU-0": device(100.0)}, zone=EVIL, tokens=5, gears={})]
        Folder(root, name, name=EVIL, tags=tags, packages={"torch": EVIL}, greentrain_version=EVIL).rank(
            0, [evil], lines
        )
    broken = Folder(root, "broken")
    (broken.path / "run.json").write_text(json.dumps({"run_id": EVIL}))
    broken.rank(0, [GPU], [entry(T0_S, T0_S + 10, {"GPU-0": device(1.0)})])
    with PageServer(root, cache=tmp_path / "cache.duckdb", every_s=0.1) as server:
        come_in(chrome, server, 3)
        ids = chrome.run(
            "[...document.querySelectorAll('#rows input:not(:disabled)')].map(box => box.dataset.key.slice(7))"
        )
        assert len(ids) == 2
        seen = 0
        for view in ("runs", "compare", "board", "totals"):
            chrome.run(f"location.hash = '#view={view}&sel={','.join(ids)}'")
            chrome.wait(f"document.getElementById('view-{view}').textContent.includes('onerror=alert')")
            assert chrome.run("document.querySelectorAll('main img, main script, main iframe').length") == 0
            assert len(set(chrome.run(FITS))) == 1, view
            seen += chrome.run("document.querySelector('main').innerText.split('onerror=alert').length - 1")
        assert seen > 10
        for name in ("project", "tag", "device", "zone"):
            chrome.run("location.hash = ''")
            values = chrome.run(f"[...document.getElementById('f-{name}').options].map(one => one.value)")
            for value in values[1:]:
                chrome.choose(f"#f-{name}", value)
                assert chrome.run("document.querySelectorAll('#rows tr').length") in (1, 2), (name, value)
            chrome.click("#clear")
        odd = "&".join(f"{key}={EVIL[:40]}" for key in ("sel", "within", "sort", "measure", "from", "page"))
        chrome.run("location.hash = '#view=totals'")
        values = chrome.run("[...document.getElementById('f-tag').options].map(one => one.value)")
        chrome.choose("#f-tag", next(value for value in values if value.startswith("=%3Cimg")))
        chrome.wait("document.getElementById('totals-hint').textContent.includes('The filter tag does not hold here')")
        chrome.click("#clear")
        for within, head in (
            ("tag:constructor", "(no tag constructor)"),
            ("tag:other", "(no tag other)"),
            ("tags", "(no tags)"),
        ):
            chrome.run(f"location.hash = '#view=board&within={within}'")
            chrome.wait(f"document.querySelector('#board h2')?.textContent === '{head}'")
            assert chrome.run("document.getElementById('within').value") == within
        chrome.run("location.hash = '#view=totals&measure=energy_j'")
        chrome.wait("document.getElementById('measure').value === 'energy_j'")
        chrome.run("location.hash = '#view=totals&measure=constructor'")
        chrome.wait("document.getElementById('measure').value === 'total_g'")
        for view in ("runs", "compare", "board", "totals", "constructor"):
            chrome.run(f"location.hash = {json.dumps(f'#view={view}&tag==%25zz&{odd}')}")
            chrome.wait("document.getElementById('f-tag').value.startsWith('=%zz')")
            assert chrome.run("document.querySelectorAll('main > #content:not([hidden])').length") == 1
        check(chrome, server)


def test_nobody_sees_a_run_without_the_word(served: PageServer, chrome: Chrome) -> None:
    chrome.open(served.url)
    chrome.wait("document.getElementById('login') && !document.getElementById('login').hidden")
    assert chrome.run("document.getElementById('content').hidden")
    assert chrome.run("document.body.innerText").count("clean") == 0
    old = served.link
    chrome.run("document.getElementById('token').value = 'wrong'")
    chrome.click("#login button")
    chrome.wait("document.getElementById('login-wrong').textContent === 'This is not the token.'")
    chrome.run("document.getElementById('login-wrong').textContent = ''")
    chrome.run("document.getElementById('token').value = 'слово'")
    chrome.click("#login button")
    chrome.wait("document.getElementById('login-wrong').textContent === 'This is not the token.'")
    chrome.run(f"document.getElementById('token').value = '{old.partition('=')[2]}'")
    chrome.click("#login button")
    chrome.wait("document.querySelectorAll('#rows tr').length === 5")
    assert served.link != old
    assert chrome.run("document.cookie") == "", "no script reads the session"


def test_a_link_opens_in_a_tab_that_shows_the_page(served: PageServer, chrome: Chrome) -> None:
    chrome.open(served.url)
    chrome.wait("document.getElementById('login') && !document.getElementById('login').hidden")
    come_in(chrome, served, 5)
    assert "token" not in chrome.run("location.href")


def test_a_page_of_another_port_gets_nothing(served: PageServer, chrome: Chrome, tmp_path: Path) -> None:
    """Cookies know no ports: the other page's questions do carry the session."""
    come_in(chrome, served, 5)
    one_rank(tmp_path / "theirs")
    with PageServer(tmp_path / "theirs", Listening(), cache=tmp_path / "b.duckdb") as other:
        chrome.open(f"{other.url}/static/page.css")
        chrome.wait(f"location.href.startsWith('{other.url}')")
        chrome("Page.setBypassCSP", enabled=True)
        chrome.open(f"{other.url}/static/page.css?again")
        chrome.wait("location.search === '?again'")
        for mode in ("cors", "no-cors"):
            asked = f"fetch('{served.url}/api/runs', {{mode: '{mode}', credentials: 'include'}})"
            assert chrome.run(
                f"{asked}.then(found => found.text(), () => 'refused').then(text => text || 'opaque')"
            ) in (
                "refused",
                "opaque",
            )


def test_a_cluster_shows_its_jobs_caps_and_prices(tmp_path: Path, chrome: Chrome) -> None:
    start_s = time.time() // HOUR_S * HOUR_S
    root = written(tmp_path / "fleet", small(start_s, name=EVIL))
    with PageServer(root, cache=tmp_path / "cache.duckdb", every_s=0.1) as server:
        chrome.open(server.link)  # there is no run: the cluster is what is shown
        chrome.wait("document.querySelectorAll('#cluster-jobs tr').length === 6")
        assert chrome.run("document.querySelectorAll('main img, main script, main iframe').length") == 0
        figures = chrome.run("document.getElementById('cluster-figures').innerText")
        for words in (
            "5.00 kW",
            "of a cap of 6.00 kW",
            "modelled",
            "within 4.0 %",
            "budget of 20.0 kg",
            "1 deadline missed",
        ):
            assert words in figures, words
        rows = chrome.run(
            "Object.fromEntries([...document.querySelectorAll('#cluster-jobs tr')].map(row =>"
            " [row.dataset.job.slice(0, 6), row.cells[2].innerText]))"
        )
        assert (
            "running fp8 on 4 until " in rows[EVIL[:6]]
            and "until then nodes are worth more to others" in rows["vision"]
        )
        assert "at 100 g/kWh in place of 400 now" in rows["night"] and "left out" in rows["rest"]
        (night,) = chrome.run(
            "[...document.querySelectorAll('tr[data-job=night] rect[class^=f-]')].map(one =>"
            " [one.getAttribute('class'), parseFloat(one.getAttribute('x')), parseFloat(one.getAttribute('width'))])"
        )
        assert night == ["f-gpu-0", pytest.approx(50.0), pytest.approx(100 / 6)]
        heads = chrome.run("[...document.querySelectorAll('#cluster-charts h2')].map(head => head.textContent)")
        begin = time.strftime("%Y-%m-%d %H:%M", time.gmtime(start_s))
        assert heads == [
            "Power at oslo", f"CO₂e since {begin} UTC", "What a kWh costs at oslo", "Nodes of gpu (h100)",
            "What a node costs in gpu",
        ]  # fmt: skip
        chrome.run("document.querySelector('[role=slider]').focus()")
        value = "document.activeElement.getAttribute('aria-valuetext')"
        assert chrome.run(value).endswith("planned 5.00 kW, cap 6.00 kW")
        chrome.press("End", 35)
        assert chrome.run(value).endswith("planned 0 W, cap 6.00 kW")
        chrome.press("ArrowLeft", 37)
        assert chrome.run(value).endswith("planned 1.88 kW, cap 6.00 kW")
        prices = [one for one in chrome.run("[...document.querySelectorAll('.told')].map(one => one.textContent)")]
        assert prices[2].endswith("with the price of scarce watts 550 g/kWh, grid, with PUE 500 g/kWh")
        assert prices[4].endswith("price 250 g/h")
        chrome.click("#c-job")
        chrome.write("in place of 400")
        chrome.wait("document.querySelectorAll('#cluster-jobs tr').length === 1")
        assert chrome.run("document.activeElement.id") == "c-job" and "job=in" in chrome.run("location.hash")
        chrome.run("document.getElementById('c-job').blur()")
        chrome.run("location.hash = '#view=cluster&doing=waiting'")
        chrome.wait("document.getElementById('cluster-count').textContent === '2 of 6 jobs'")
        (root / "plan.json").write_text("{")
        chrome.wait("!document.getElementById('cluster-trouble').hidden")
        written(root, small(start_s))
        chrome.wait("document.getElementById('cluster-trouble').hidden")
        assert chrome.run("document.querySelectorAll('#cluster-jobs tr').length") == 2
        check(chrome, server, ["/api/cluster"])


def test_a_controller_is_seen_with_what_was_measured_and_done(tmp_path: Path, chrome: Chrome) -> None:
    clock = HandClock(1.7e9)  # of a replay: far from that of this machine
    root = tmp_path / "fleet"
    root.mkdir()
    with (
        controlled(root / "fleet.db", clock, name=EVIL) as state,
        PageServer(root, cache=tmp_path / "cache.duckdb", every_s=0.1) as server,
    ):
        chrome.open(server.link)
        chrome.wait("document.querySelectorAll('#cluster-jobs tr').length === 7")
        assert chrome.run("document.querySelectorAll('main img, main script, main iframe').length") == 0
        told = chrome.run("document.getElementById('cluster-controller').textContent")
        assert "host:7 controls it" in told and "The plan is of: an arrival." in told
        figures = chrome.run("document.getElementById('cluster-figures').innerText")
        for words in ("4.50 kW", "measured, above idle nodes", "planned: 5.00 kW", "emitted 4.00 kg", "1 held"):
            assert words in figures, words
        chrome.run("document.querySelector('[role=slider]').focus()")
        value = "document.activeElement.getAttribute('aria-valuetext')"
        assert "planned 5.00 kW, modelled none, measured none" in chrome.run(value)
        chrome.press("ArrowLeft", 37)
        assert "planned none, modelled none, measured 4.50 kW, cap 6.00 kW" in chrome.run(value)
        chrome.press("ArrowLeft", 37)
        assert "modelled 4.00 kW, measured none" in chrome.run(value)
        row = "document.querySelector('tr[data-job=vision]').cells[2].innerText"
        assert chrome.run(row).startswith("held waits: nodes: ann is first until ")
        acts = "[...document.querySelectorAll('#cluster-actions tbody tr')].map(row => row.innerText)"
        first, second = chrome.run(acts)
        assert "release" in first and "not known: cut off" in first and "cleaner hours" in second
        state.write(note="the grid does not answer")
        chrome.wait("document.getElementById('cluster-controller').textContent.includes('does not answer')")
        assert chrome.run("document.getElementById('cluster-controller').className") == "notice"
        check(chrome, server)


@pytest.mark.sweep
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)])
def test_every_view_fits_and_has_its_colours(
    served: PageServer, runs: Path, tmp_path: Path, width: int, dark: bool
) -> None:
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    written(runs, small())
    with Chrome(tmp_path / "narrow", width, dark=dark) as chrome:
        come_in(chrome, served, 5)
        ids = chrome.run("[...document.querySelectorAll('#rows tr')].slice(0, 2).map(row => row.dataset.id)")
        for view in ("runs", "compare", "board", "totals", "cluster"):
            chrome.run(f"location.hash = '#view={view}&sel={','.join(ids)}'")
            chrome.wait(f"document.querySelector('#view-{view} :is(.card, .runs) tr')")
            assert chrome.run(FITS) == [width, width], view
            assert chrome.run("document.querySelectorAll('svg rect').length") > 6 or view == "runs"
            with image.open(chrome.picture(tmp_path / f"{view}.png")) as picture:
                corner = picture.convert("RGB").getpixel((3, 3))
                colours = picture.convert("RGB").getcolors(maxcolors=1 << 24)
            assert (sum(corner) < 150) == dark
            assert colours is not None and len(colours) > 100, "blank"
        tiny = chrome.run(
            "[...document.querySelectorAll('button, select, input')].filter(found => found.offsetParent)"
            ".map(found => Math.min(found.offsetWidth, found.offsetHeight)).filter(size => size < 16).length"
        )
        assert tiny == 0


def test_figures_are_written_as_everywhere_else(served: PageServer, chrome: Chrome) -> None:
    come_in(chrome, served, 5)
    values = [0.0, 1e-9, 9.996e-4, 0.001, 0.0499, 0.5, 0.9994, 0.99951, 1.0, 3.6, 9.995, 59.99, 60.0, 99.95, 123.456]
    values += [999.4, 999.6, 3599.6, 3600.0, 86_399.0, 123_456.0, 1e6, 9.9951e8, 3.6e9, 1.2345e13]
    for name in ("energy", "mass", "joules", "percent", "duration"):
        found = chrome.run(
            f"import('/static/units.js').then(units => [...{values}, null].map(value => units.{name}(value)))"
        )
        assert found == [getattr(quantities, name)(value) for value in [*values, None]], name
    counts = [0, 1, 999, 1000, 12_345, 999_499, 10**6, 123_456_789, 10**13]
    found = chrome.run(f"import('/static/units.js').then(units => {counts}.map(units.count))")
    assert found == [quantities.count(value) for value in counts]
