"""The pages of the documentation and their fenced blocks.

What stands behind a fence's language says what the tests do with it: ``run`` runs the block in an empty folder,
``file=NAME`` writes it into its page's folder, where files named ``test_*.py`` are given to pytest. A Python block
without a word is compiled, and its imports from greentrain, calls and attributes are looked up.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")])

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<info>[a-z][^\n`]*)\n(?P<text>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block."""

    page: str
    line: int
    language: str
    words: tuple[str, ...]
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def runs(self) -> bool:
        return "run" in self.words

    @property
    def file(self) -> str | None:
        return next((word.removeprefix("file=") for word in self.words if word.startswith("file=")), None)


def label(page: Path) -> str:
    """Return a page's name for people."""
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page that name a language."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        language, *words = match["info"].split()
        indent = len(match["indent"])
        found.append(
            Block(
                page=label(page),
                line=text.count("\n", 0, match.start()) + 2,
                language=language,
                words=tuple(words),
                text="".join(line[indent:] for line in match["text"].splitlines(keepends=True)),
            )
        )
    return found


ALL = [block for page in PAGES for block in blocks(page)]


def of(*languages: str) -> list[Block]:
    """Return the blocks of these languages."""
    return [block for block in ALL if block.language in languages]
