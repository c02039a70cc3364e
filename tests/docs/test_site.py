"""The site builds from what is installed, without a warning, and asks no network."""

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.pages import DOCS, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.long]
FRONT = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


class Page(HTMLParser):
    """Collects what a page links to, loads, and offers as an anchor."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value for key, value in attrs if value}
        self.anchors |= {values[key] for key in ("id", "name") if key in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and "href" in values:
            self.loads.append(values["href"])
        if "src" in values:
            self.loads.append(values["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site once."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-n", "-b", "html", str(DOCS), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html") if "_static" not in path.parts}


def test_every_page_is_there(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        assert (site / page.relative_to(DOCS)).with_suffix(".html").is_file()
    assert (site / "searchindex.js").is_file()


def test_the_reference_says_what_docstrings_say(site: Path) -> None:
    callbacks = text_of(site / "reference" / "callbacks.html")
    assert "lightning.GreenCallback(session=None)" in callbacks
    assert "A finished GreenSession, or anything GreenSession accepts." in callbacks
    suites = text_of(site / "reference" / "testing.html")
    assert "False for a meter that reads some sensors less often than others: a read may" in suites  # no "Type:"


def text_of(path: Path) -> str:
    """Return a page's text without its tags."""
    return " ".join(re.sub(r"<[^>]+>", "", path.read_text(encoding="utf-8")).split())


def test_internal_links_and_anchors_exist(pages: dict[Path, Page], site: Path) -> None:
    dead = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target.is_file() or (anchor and target in pages and anchor not in pages[target].anchors):
                dead.append(f"{path.relative_to(site)}: {link}")
    assert len(pages) > 30
    assert not dead


def test_nothing_is_loaded_from_elsewhere(pages: dict[Path, Page], site: Path) -> None:
    for path, page in pages.items():
        assert not [link for link in page.loads if urlsplit(link).netloc], path
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(\s*[\"']?|@import\s+[\"'])(https?:)?//", style.read_text(encoding="utf-8")), style


@pytest.mark.parametrize("page", FRONT, ids=lambda page: page.name)
def test_front_pages_link_to_what_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        parts = urlsplit(link)
        if parts.scheme:
            continue
        target = page.parent / parts.path if parts.path else page
        assert target.exists(), link
        if parts.fragment:
            assert parts.fragment in headings(target), link


def headings(page: Path) -> set[str]:
    """Return the anchors that a Markdown page gets, by GitHub's rule, which is MyST's."""
    prose = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ +(.*?) *$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_a_dead_link_ends_the_build(tmp_path: Path) -> None:
    shutil.copy(DOCS / "conf.py", tmp_path)
    (tmp_path / "index.md").write_text("# Page\n\n[gone](gone.md) and [nowhere](#nowhere)\n")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-n", "-b", "html", ".", "out"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode != 0
    assert "gone.md" in done.stderr and "nowhere" in done.stderr
