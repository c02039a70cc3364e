"""tools/scripts finds what a run with GreenTrain did otherwise."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tools.scripts.__main__ import HERE, Outcome, Variant, differences, read_scripts

VARIANT = Variant(run="train.py", steps=2, tokens=8)
PLAIN = Outcome(
    losses={"0": ["0x1.8p+1", "0x1.4p+1"]}, printed=Counter(["loss 2.5"]), weights=["ab"], told=Counter(["a warning"])
)
GREEN = replace(PLAIN, work={"steps": 2, "tokens": 8, "samples": 0})


def test_equal_runs_do_not_differ() -> None:
    assert differences(PLAIN, replace(GREEN, told=PLAIN.told + Counter(["greentrain: report x.html"])), VARIANT) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"exit_code": 1, "told": Counter(["boom"])}, "exit status 1: boom"),
        ({"losses": {"0": ["0x1.8p+1", "0x1.5p+1"]}}, "losses of rank 0: 2 and 2, the first that differs is 1"),
        ({"losses": {"0": ["0x1.8p+1"]}}, "losses of rank 0: 2 and 1, the first that differs is 1"),
        ({"losses": {}}, "losses of rank 0: 2 and 0, the first that differs is 0"),
        ({"printed": Counter(["loss 2.5", "hello"])}, "printed only with it: hello"),
        ({"printed": Counter()}, "printed only plainly: loss 2.5"),
        ({"weights": ["cd"]}, "weights: 1 files and 1, whose values differ"),
        ({"left": Counter({"thread greentrain": 1})}, "left behind: thread greentrain x 1"),
        ({"told": Counter(["a warning", "another"])}, "standard error: another"),
        ({"work": {"steps": 1, "tokens": 8, "samples": 0}}, "steps: 1 for 2"),
        ({"work": None}, "no report"),
    ],
)
def test_each_difference_is_named(change: dict[str, object], told: str) -> None:
    assert told in differences(PLAIN, replace(GREEN, **change), VARIANT)  # type: ignore[arg-type]


def test_a_script_that_fails_plainly_or_never_trains_proves_nothing() -> None:
    assert differences(replace(PLAIN, exit_code=1), GREEN, VARIANT) == [
        "it fails plainly, with exit status 1: a warning"
    ]
    for losses in ({}, {"0": ["0x1.8p+1", "nan"]}):
        (told,) = differences(replace(PLAIN, losses=losses), replace(GREEN, losses=losses), VARIANT)
        assert "nothing to compare" in told


def test_patches_hold_no_text_of_others() -> None:
    for name in read_scripts(HERE / "scripts.toml"):
        lines = (Path(HERE) / "patches" / f"{name}.diff").read_text(encoding="utf-8").splitlines()
        assert all(line.startswith(("+", "@@", "--- a/")) for line in lines), name
