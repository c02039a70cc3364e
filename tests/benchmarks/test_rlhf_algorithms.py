"""The trainings of ``benchmarks/rlhf_algorithms.py``, at their smallest."""

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import rlhf_algorithms
from benchmarks.rlhf_algorithms import ARMS, SETTINGS, SFT, Study, spread


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Study]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with closing(Study(replace(SETTINGS, steps=3, warm_steps=2, rollouts=8, minibatches=2, epochs=1), 1)) as made:
        yield made
    torch.set_num_threads(threads)


@pytest.mark.long
def test_every_arm_is_trained_and_its_joules_are_its_stages(study: Study) -> None:
    rows = {row["algorithm"]: row for row in study.algorithms().rows}
    assert tuple(rows) == ARMS and all(row["provenance"] == "modelled" for row in rows.values())
    for row in rows.values():
        assert row["tokens_per_j"] > 0 and math.isfinite(row["reward"]) and 4 < row["nats_a_token"] < 7
    shares = {row["algorithm"]: row for row in study.stages().rows}
    for row in shares.values():
        assert sum(row[name] for name in rlhf_algorithms.STAGES) == pytest.approx(1)
    assert shares["dapo"]["reference"] == 0 < shares["grpo"]["reference"] and shares[SFT]["generate"] == 0
    runs = study.runs["reinforce++"]
    assert study.varied(SETTINGS.beta) is runs, "the weight of the arms is not trained twice"


def test_an_interval_is_students() -> None:
    found = spread("x", [1.0, 2.0, 3.0])
    assert found["x"] == 2 and found["x_high"] == pytest.approx(2 + 4.3027 / math.sqrt(3), abs=1e-4)
    assert spread("x", []) == {"x": "", "x_low": "", "x_high": ""}
