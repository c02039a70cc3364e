"""Where the tables of the benchmarks go in a document."""

from pathlib import Path

import pytest

from benchmarks.marks import facts, put, replaced, table

TEXT = """before
<!-- results: search -->
old
<!-- end of search -->
between
<!-- results -->
<!-- end of results -->
after
"""


def test_a_table_replaces_the_one_between_its_marks_alone(tmp_path: Path) -> None:
    text = tmp_path / "text.md"
    text.write_text(TEXT, encoding="utf-8")
    put("one", text, "search")
    put("two", text)
    put("three", text, "search")
    words = [line for line in text.read_text(encoding="utf-8").splitlines() if line and "<!--" not in line]
    assert words == ["before", "three", "between", "two", "after"]


@pytest.mark.parametrize(
    ("text", "section", "lacks"),
    [
        ("nothing", "bars", "<!-- results: bars -->"),
        ("nothing", "", "<!-- results -->"),
        ("<!-- end of results --><!-- results -->", "", "behind it, <!-- end of results -->"),
    ],
)
def test_a_text_without_both_marks_in_order_is_left_alone(tmp_path: Path, text: str, section: str, lacks: str) -> None:
    path = tmp_path / "text.md"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit, match=lacks):
        put("new", path, section)
    assert path.read_text(encoding="utf-8") == text


def test_a_mark_is_not_found_in_that_of_another_section() -> None:
    with pytest.raises(SystemExit, match="lacks <!-- results -->"):
        replaced("<!-- results: search --><!-- end of search -->", "new")


def test_markdown() -> None:
    assert table(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
    assert facts({"date": "today", "command": "python x.py"}) == "- date: today\n- command: python x.py"
