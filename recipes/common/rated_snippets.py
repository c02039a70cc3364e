"""Short texts that people rated, for real preference pairs.

They are the ground truth of Hutto and Gilbert, "VADER: A Parsimonious Rule-based Model for Sentiment Analysis of
Social Media Text", ICWSM 2014: tweets, film reviews, product reviews and newspaper editorials, sentence by sentence,
each with the mean of at least 20 ratings (some film snippets have fewer) from -4, extremely negative, to 4. They come
inside the source distribution of vaderSentiment 3.3.2 on PyPI (MIT), in ``additional_resources``.

The authors of tweets and reviews have given no licence: nothing of it is kept in this repository.

    python -m pip download --no-deps --no-binary :all: --no-build-isolation -d FOLDER vaderSentiment==3.3.2
"""

import hashlib
import io
import math
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REQUIREMENT: Final = "vaderSentiment==3.3.2"
SDIST: Final = "vaderSentiment-3.3.2.tar.gz"
SDIST_SHA256: Final = "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"
"""Of that file, as PyPI lists it and as downloaded on 2026-11-21."""
INNER: Final = "hutto_ICWSM_2014.tar.gz"
"""The archive within the archive."""
FILES: Final[Mapping[str, str]] = {
    "tweets": "tweets_GroundTruth.txt",
    "films": "movieReviewSnippets_GroundTruth.txt",
    "products": "amazonReviewSnippets_GroundTruth.txt",
    "editorials": "nytEditorialSnippets_GroundTruth.txt",
}
"""File of each source. Lines: identity, mean rating, text; separated by tabs."""
RATING_BOUND: Final = 4.0
"""Ratings lie within plus and minus this (_README_.txt beside the files)."""
DOWNLOAD_S: Final = 300.0
"""Longest wait for pip (s)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """One text and what people thought of it."""

    source: str
    """A key of FILES."""
    document: str
    """The review or article that it is from: snippets of one document lie on one side of a split."""
    rating: float
    """Mean of the raters, -4 to 4."""
    text: str


def parse(lines: Iterable[str], source: str, place: str) -> Iterator[Snippet]:
    """Yield the snippets of one file.

    Args:
        lines: Identity, mean rating and text, separated by tabs. An identity with an underscore is a document's and a
            snippet's number.
        source: A key of FILES.
        place: Names the file in errors.

    Raises:
        ValueError: A line is something else; names place, line and what was found.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        fields = line.rstrip("\r\n").split("\t")
        if len(fields) != 3 or not fields[2].strip():
            raise ValueError(
                f"{place}, line {number}: {len(fields)} fields; identity, rating and a text are expected, separated by"
                f" tabs: take the files of {REQUIREMENT} unchanged"
            )
        identity, mean, text = fields
        try:
            rating = float(mean)
        except ValueError:
            rating = math.nan
        if not abs(rating) <= RATING_BOUND:
            raise ValueError(
                f"{place}, line {number}: rating {mean!r}; a number from -{RATING_BOUND:g} to {RATING_BOUND:g} is"
                f" expected: take the files of {REQUIREMENT} unchanged"
            )
        yield Snippet(source=source, document=identity.partition("_")[0], rating=rating, text=text.strip())


def read(place: Path) -> list[Snippet]:
    """Return all snippets; a text that occurs twice only once.

    Args:
        place: The source distribution, the inner archive, or a folder that holds the files of FILES (at any depth), the
            inner archive or the source distribution.

    Raises:
        FileNotFoundError: Nothing of it is there; says how to get it.
        ValueError: A file is not what it should be.
    """
    found: dict[str, Snippet] = {}
    for source, (name, content) in _contents(place).items():
        # utf-8-sig: some of the data set's files begin with a byte order mark
        with io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="\n") as lines:
            for snippet in parse(lines, source, name):
                found.setdefault(snippet.text, snippet)
    return list(found.values())


def download(folder: Path) -> Path:
    """Let pip put the source distribution into a folder, unless it is there, and return its path.

    pip's own settings say where from. It runs the package's setup.py for its metadata.

    Args:
        folder: Made where it is missing.

    Raises:
        OSError: pip failed, or took more than DOWNLOAD_S.
        ValueError: The file is another one than SDIST_SHA256.
    """
    path = folder / SDIST
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        options = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--disable-pip-version-check"]
        command = [sys.executable, "-m", "pip", "download", *options, "-d", str(folder), REQUIREMENT]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=DOWNLOAD_S)
        except subprocess.CalledProcessError as error:
            raise OSError(f"{' '.join(command)} failed; run it by hand. It said: {error.stderr[-1000:]}") from error
        except subprocess.TimeoutExpired as error:
            raise OSError(f"{' '.join(command)} took more than {DOWNLOAD_S:g} s; run it by hand") from error
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != SDIST_SHA256:
        raise ValueError(f"{path} has SHA-256 {found}, not {SDIST_SHA256}: delete it and get {REQUIREMENT} again")
    return path


def split(snippets: Iterable[Snippet], test_share: float) -> tuple[list[Snippet], list[Snippet]]:
    """Return snippets to train with and to test with; no document is in both, and the same are drawn everywhere.

    Args:
        snippets: Of any sources.
        test_share: Share of the documents to test with, 0 to 1.
    """
    parts: tuple[list[Snippet], list[Snippet]] = [], []
    for snippet in snippets:
        drawn = hashlib.sha256(f"{snippet.source}/{snippet.document}".encode()).digest()
        parts[int.from_bytes(drawn[:8], "big") < test_share * 2**64].append(snippet)
    return parts


def thinned(snippets: Iterable[Snippet], per_source: int) -> list[Snippet]:
    """Return at most so many snippets of each source, drawn by a hash of the text: the same everywhere."""
    by_source: dict[str, list[Snippet]] = {}
    for snippet in snippets:
        by_source.setdefault(snippet.source, []).append(snippet)
    return [
        snippet
        for some in by_source.values()
        for snippet in sorted(some, key=lambda s: hashlib.sha256(s.text.encode()).digest())[:per_source]
    ]


def _contents(place: Path) -> dict[str, tuple[str, bytes]]:
    """Return (name, bytes) of each source's file."""
    if place.is_dir():
        files = {source: next(iter(sorted(place.rglob(name))), None) for source, name in FILES.items()}
        if present := {source: (str(path), path.read_bytes()) for source, path in files.items() if path is not None}:
            return present
        for name in (INNER, SDIST):
            for archive in sorted(place.rglob(name)):
                return _contents(archive)
    elif place.is_file():
        return _unpacked(place.read_bytes(), str(place))
    raise FileNotFoundError(
        f"{place} holds none of {', '.join(FILES.values())}: get them with"
        f" python -m pip download --no-deps --no-binary :all: -d FOLDER {REQUIREMENT}"
    )


def _unpacked(archive: bytes, name: str) -> dict[str, tuple[str, bytes]]:
    """Return the files of an archive, in memory: nothing of it is written anywhere."""
    found: dict[str, tuple[str, bytes]] = {}
    wanted = {file: source for source, file in FILES.items()}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
            for member in opened:
                base = member.name.rpartition("/")[2]
                if base not in wanted and base != INNER:
                    continue
                file = opened.extractfile(member)
                if file is None:
                    continue
                if base == INNER:
                    return _unpacked(file.read(), f"{name}/{member.name}")
                found[wanted[base]] = (f"{name}/{member.name}", file.read())
    except tarfile.TarError as error:
        raise ValueError(f"{name} is no tar archive, or a torn one ({error}): get {REQUIREMENT} again") from error
    if not found:
        raise ValueError(f"{name} holds none of {', '.join(FILES.values())}: get {REQUIREMENT} again")
    return found
