"""tools/scripts finds what a run with GreenTrain did otherwise."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import tools.scripts.__main__ as scripts
from tools.scripts.__main__ import HERE, Outcome, Variant, differences, main, read_scripts

VARIANT = Variant(run="train.py", steps=2, tokens=8)
PLAIN = Outcome(
    losses={"0-0": ["0x1.8p+1", "0x1.4p+1"]}, printed=Counter(["loss 2.5"]), weights=["ab"], told=Counter(["a warning"])
)
GREEN = replace(PLAIN, work={"steps": 2, "tokens": 8, "samples": 0})


def test_equal_runs_do_not_differ() -> None:
    assert differences(PLAIN, replace(GREEN, told=PLAIN.told + Counter(["greentrain: report x.html"])), VARIANT) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"exit_code": 1, "told": Counter(["boom"])}, "exit status 1: boom"),
        (
            {"losses": {"0-0": ["0x1.8p+1", "0x1.5p+1"]}},
            "losses 0-0: 2 and 2, the first that differs is 1",
        ),
        ({"losses": {"0-0": ["0x1.8p+1"]}}, "losses 0-0: 2 and 1, the first that differs is 1"),
        ({"losses": {}}, "losses 0-0: 2 and 0, the first that differs is 0"),
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
    for losses in ({}, {"0-0": ["0x1.8p+1", "nan"]}):
        (told,) = differences(replace(PLAIN, losses=losses), replace(GREEN, losses=losses), VARIANT)
        assert "nothing to compare" in told


def test_patches_hold_no_text_of_others() -> None:
    for name in read_scripts(HERE / "scripts.toml"):
        lines = (Path(HERE) / "patches" / f"{name}.diff").read_text(encoding="utf-8").splitlines()
        assert all(line.startswith(("+", "@@", "--- a/")) for line in lines), name


TORCH = """
from types import SimpleNamespace as Space

class Tensor(float):
    detach = double = sum = lambda self: self
class Kind:
    pass
autograd = Space(backward=lambda *_: None)
nn = Space(Module=Kind, parallel=Space(DistributedDataParallel=Kind))
optim, utils = Space(Optimizer=Kind), Space(data=Space(DataLoader=Kind))
"""
TRAIN = """
import sys
import torch

for step in range(3):
    loss = torch.Tensor(1 / (1 + step))
    torch.autograd.backward(loss)
    print(f"loss {loss}")
print("done", id(loss))
"""
RUN = Path(__file__).parents[1] / "data" / "run-format-1" / "first"
STEPS, TOKENS, SAMPLES = 12, 3072, 0
PATCH = f"""--- a/train.py
+++ b/train.py
@@ -6,0 +7,2 @@
+    if "otherwise" in sys.argv:
+        loss = torch.Tensor(loss + step)
@@ -9,0 +12,6 @@
+import shutil
+shutil.copytree({str(RUN)!r}, "runs/x" + "".join(sys.argv[1:]))
+if "otherwise" in sys.argv:
+    print("a word of ours", file=sys.stderr)
+    open("left.txt", "w").close()
+    import threading; threading.Thread(target=threading.Event().wait, daemon=True, name="ours").start()
"""


def test_a_script_is_run_twice_and_what_differs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "project/torch.py": TORCH,  # of which only what the probes need: the real one takes seconds to import
        "project/train.py": TRAIN,
        "patches/tiny.diff": PATCH,
        "data.py": "",
        "scripts.toml": f"""
[tiny]
archive = "nowhere"
data = "none"
chance = "done .*"
known."left.txt" = "the one file that is known"
variants.alike = {{ run = "train.py", steps = {STEPS}, tokens = {TOKENS} }}
variants.twice = {{ run = "train.py", then = "{{run}} again", steps = {2 * STEPS}, tokens = {2 * TOKENS} }}
variants.otherwise = {{ run = "train.py otherwise", steps = {STEPS + 1}, tokens = {TOKENS} }}
""",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "site").symlink_to(HERE / "site")
    monkeypatch.setattr(scripts, "HERE", tmp_path)
    told = ["tiny", "--source", f"tiny={tmp_path / 'project'}"]
    assert main([*told, "--variant", "alike", "--variant", "twice"]) == 0
    assert main([*told, "--variant", "otherwise"]) == 1
    said = capsys.readouterr()
    rows = [line for line in said.out.splitlines() if line.startswith("| tiny")]
    work = f"| {STEPS} | {TOKENS} | {SAMPLES} |"
    twice = f"| {2 * STEPS} | {2 * TOKENS} | {2 * SAMPLES} |"
    assert rows == [
        f"| tiny | alike | 3 {work} 0 | 0 |",
        f"| tiny | twice | 6 {twice} 0 | 0 |",
        f"| tiny | otherwise | 3 {work} 9 | 1 |",
    ]
    assert {line.split(": ", 1)[1] for line in said.err.splitlines()} == {
        "losses 0-0: 3 and 3, the first that differs is 1",
        "printed only plainly: loss 0.5",
        "printed only plainly: loss 0.3333333333333333",
        "printed only with it: loss 1.5",
        "printed only with it: loss 2.3333333333333335",
        "left behind: thread ours (rank 0) x 1",
        "left behind: file left.txt x 1 (the one file that is known)",
        "standard error: a word of ours",
        f"steps: {STEPS} for {STEPS + 1}",
    }
