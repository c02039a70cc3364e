"""Recipes whose parts other tests hold against what is known, started here by their own commands, at their smallest."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from greentrain.ledger.reader import read_run
from recipes import check_configs
from recipes.raw import ppo_offload, reinforce_offload
from recipes.raw.ppo_offload import Settings

ROOT = Path(__file__).resolve().parents[2]
TINY = replace(ppo_offload.SMALL, warm_steps=2, steps=1, rollouts=8, epochs=1, minibatches=2)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Make the small size of both recipes a tiny one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    for recipe in (ppo_offload, reinforce_offload):
        monkeypatch.setattr(recipe, "SMALL", TINY)
    threads = torch.get_num_threads()
    yield TINY
    torch.set_num_threads(threads)


@pytest.mark.long
@pytest.mark.slow
def test_rl_in_a_loop_of_ones_own(tiny: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ways = {"ppo": ppo_offload.main, "reinforce": reinforce_offload.main, "process": reinforce_offload.main}
    more = {"process": ["--algorithm", "process", "--sequential"]}
    for name, main in ways.items():
        main(["--small", "--steps", "2", "--out", str(tmp_path / name), *more.get(name, [])])
        said = capsys.readouterr().out
        assert said.startswith("2 steps: reward ")
        judged = "step_reward" if name == "process" else "reward"
        assert re.search(rf"^{judged}: \d+ sequences in \d+ batches", said, re.MULTILINE), said
        run = read_run(Path(re.findall(r"report: (.+)$", said, re.MULTILINE)[0]).parent)
        assert run.totals.steps == 2 and run.folder.parent == tmp_path / name
        assert "train" in run.totals.by_phase and ("critic" in run.totals.by_phase) is (name == "ppo")


def check(checkout: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "recipes/check_configs.py", f"openrlhf={checkout}@abc"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_check_of_keys_ends_with_what_it_found(tmp_path: Path) -> None:
    keys = json.loads(check_configs.RECORD.read_text(encoding="utf-8"))["openrlhf"]["keys"]
    parser = tmp_path / "openrlhf" / "cli" / "train_ppo_ray.py"
    parser.parent.mkdir(parents=True)
    parser.write_text("".join(f'p.add_argument("--{key}")\n' for key in keys))
    (tmp_path / "version.txt").write_text("0.0.1\n")
    done = check(tmp_path)
    assert (done.returncode, done.stdout) == (0, f"openrlhf 0.0.1 abc: {len(keys)} keys, 0 unknown\n")
    gone = "ref.num_nodes"
    parser.write_text("".join(f'p.add_argument("--{key}")\n' for key in keys if key != gone))
    done = check(tmp_path)
    assert done.returncode == 1
    assert f"{len(keys)} keys, 2 unknown" in done.stdout and f"  grpo.sh: {gone}\n  ppo.sh: {gone}\n" in done.stdout
