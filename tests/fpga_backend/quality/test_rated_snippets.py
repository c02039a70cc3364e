import hashlib
import io
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.common import rated_snippets as module
from recipes.common.rated_snippets import (
    FILES,
    INNER,
    RATING_BOUND,
    SDIST,
    Snippet,
    download,
    parse,
    read,
    split,
    thinned,
)

TWEETS = b"\xef\xbb\xbf1\t2.726315789\tYay. Another good phone interview.\r\n2\t-1.5\tNo &amp; no.\r\n"
PRODUCTS = b"1_1\t-0.9\tno picture.\r\n1_2\t0.15\tit fits\tx\r\n"


def _packed(files: dict[str, bytes]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return written.getvalue()


def _sdist() -> bytes:
    inner = _packed({"hutto_ICWSM_2014/_README_.txt": b"x", f"hutto_ICWSM_2014/{FILES['tweets']}": TWEETS})
    return _packed({"v-1/PKG-INFO": b"Name: v", f"v-1/additional_resources/{INNER}": inner})


def test_lines_become_snippets() -> None:
    lines = ["7_3\t-0.9\t no picture. \r\n", "\r\n", "8\t4.0\tGreat\r\n"]
    assert list(parse(lines, "products", "here")) == [
        Snippet(source="products", document="7", rating=-0.9, text="no picture."),
        Snippet(source="products", document="8", rating=4.0, text="Great"),
    ]


@pytest.mark.parametrize(
    "line, said",
    [
        ("1\t0.5", "line 2: 2 fields"),
        ("1\t0.5\ta\tb", "line 2: 4 fields"),
        ("1\t0.5\t ", "line 2"),
        ("1\tgood\ttext", "rating 'good'"),
        ("1\tnan\ttext", "rating 'nan'"),
        ("1\t4.01\ttext", "rating '4.01'"),
    ],
)
def test_a_line_of_another_kind_is_named(line: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"here.*{said}"):
        list(parse(["1\t1\tfine\r\n", line], "tweets", "here"))


def test_the_archive_in_the_archive_is_read_in_memory(tmp_path: Path) -> None:
    (tmp_path / SDIST).write_bytes(_sdist())
    for place in (tmp_path / SDIST, tmp_path):
        found = [(s.source, s.document, s.rating) for s in read(place)]
        assert found == [("tweets", "1", 2.726315789), ("tweets", "2", -1.5)]
    assert sorted(tmp_path.rglob("*")) == [tmp_path / SDIST]


def test_an_unpacked_folder_is_read_and_a_text_counts_once(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "er"
    folder.mkdir(parents=True)
    (folder / FILES["tweets"]).write_bytes(TWEETS)
    (folder / FILES["films"]).write_bytes("5\t1.0\tNo &amp; no.\r\n6\t2.0\tOù ?\r\n".encode())
    found = read(tmp_path)
    assert [(s.source, s.text) for s in found] == [
        ("tweets", "Yay. Another good phone interview."),
        ("tweets", "No &amp; no."),
        ("films", "Où ?"),
    ]


def test_a_broken_file_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / FILES["products"]).write_bytes(PRODUCTS)
    with pytest.raises(ValueError, match=rf"{FILES['products']}, line 2: 4 fields"):
        read(tmp_path)


def test_what_is_not_there_says_how_to_get_it(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match="pip download"):
            read(place)


def test_torn_and_foreign_archives_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"no archive")
    (tmp_path / "b").write_bytes(_packed({"x.txt": b"x"}))
    for name, said in (("a", "no tar archive"), ("b", "holds none of")):
        with pytest.raises(ValueError, match=said):
            read(tmp_path / name)


SNIPPETS = st.lists(
    st.builds(
        Snippet,
        source=st.sampled_from(sorted(FILES)),
        document=st.integers(0, 30).map(str),
        rating=st.floats(-RATING_BOUND, RATING_BOUND),
        text=st.text("abcdefgh", min_size=1, max_size=5),
    ),
    max_size=40,
    unique_by=lambda snippet: snippet.text,
)


@given(SNIPPETS, st.floats(0, 1))
def test_a_document_is_on_one_side_of_the_split(snippets: list[Snippet], share: float) -> None:
    train, test = split(snippets, share)
    assert len(train) + len(test) == len(snippets)
    assert not {(s.source, s.document) for s in train} & {(s.source, s.document) for s in test}


def test_the_split_has_its_share_and_is_always_the_same() -> None:
    rated = [Snippet(source="tweets", document=str(i), rating=0.0, text=str(i)) for i in range(2000)]
    test = split(rated, 0.25)[1]
    assert 440 < len(test) < 560
    # fixed by a hash, not by the process
    first = [i for i in range(40) if hashlib.sha256(f"tweets/{i}".encode()).digest()[0] < 64]
    assert [s.document for s in test if int(s.document) < 40] == [str(i) for i in first]
    assert split(rated, 0.0)[1] == [] and split(rated, 1.0)[0] == []


@given(SNIPPETS, st.integers(0, 5))
def test_thinning_keeps_so_many_of_each_source(snippets: list[Snippet], count: int) -> None:
    kept = thinned(snippets, count)
    for source in FILES:
        own = sum(s.source == source for s in snippets)
        assert sum(s.source == source for s in kept) == min(own, count)
    assert sorted(map(repr, kept)) == sorted(map(repr, thinned(snippets[::-1], count)))


PYTHON = sys.executable
PIP = """
import sys, pathlib
arguments = sys.argv[1:]
assert arguments[:3] == ["-m", "pip", "download"] and arguments[-1] == "vaderSentiment==3.3.2", arguments
assert "--no-deps" in arguments and arguments[arguments.index("--no-binary") + 1] == ":all:"
folder = pathlib.Path(arguments[arguments.index("-d") + 1])
{}
"""


def _pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str) -> None:
    """Put a pip in place that does something else than download."""
    script = tmp_path / "python"
    script.write_text(f"#!{PYTHON}\n{PIP.format(does)}")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


def test_pip_gets_the_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SDIST_SHA256", hashlib.sha256(b"it").hexdigest())
    _pip(tmp_path, monkeypatch, f"(folder / {SDIST!r}).write_bytes(b'it')")
    folder = tmp_path / "made"
    assert download(folder) == folder / SDIST
    _pip(tmp_path, monkeypatch, "raise SystemExit('asked twice')")
    assert download(folder).read_bytes() == b"it"


def test_another_file_than_the_known_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pip(tmp_path, monkeypatch, f"(folder / {SDIST!r}).write_bytes(b'other')")
    with pytest.raises(ValueError, match="delete it"):
        download(tmp_path)


def test_a_pip_that_fails_or_hangs_is_an_error_that_says_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pip(tmp_path, monkeypatch, "raise SystemExit('no matching distribution')")
    with pytest.raises(OSError, match="no matching distribution"):
        download(tmp_path)
    monkeypatch.setattr(module, "DOWNLOAD_S", 0.5)
    _pip(tmp_path, monkeypatch, "import time; time.sleep(60)")
    with pytest.raises(OSError, match=r"more than 0\.5 s"):
        download(tmp_path)


@pytest.mark.long
def test_the_real_files(tmp_path: Path) -> None:
    """23,703 lines, 84 of them texts that occur before."""
    try:
        path = download(tmp_path)
    except OSError as error:
        pytest.skip(f"the package index cannot be reached: {error}")
    found = read(path)
    counts = {source: sum(s.source == source for s in found) for source in FILES}
    assert sum(counts.values()) == 23619
    assert counts["tweets"] == 4200
