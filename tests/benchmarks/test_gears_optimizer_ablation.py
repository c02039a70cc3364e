"""``benchmarks/gears_optimizer_ablation.py``: its arms are what they say, and its figures what they should be."""

import csv
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from benchmarks import gears_optimizer_ablation as ablation
from benchmarks.gears_optimizer_ablation import ARMS, PLAIN, Bench, Trained
from recipes.common.data import Corpus
from recipes.common.model import Llama, LlamaBlock, Size

SIZE = Size(vocab=64, width=64, layers=1, heads=2, context=16)


@pytest.fixture(scope="module")
def bench() -> Bench:
    """Hold a text of one word after another, and shifts after 4, 6 and 8 steps."""
    words = (np.arange(4000) * 7 % 64).astype(np.uint16)
    text = Corpus(train=words, val=words[:600], vocab=64, tokenizer=Path("none"))
    return Bench(text=text, size=SIZE, seeds=2, segments=4, segment=2, window=2)


def test_gears_change_at_the_same_steps_in_all_arms(bench: Bench) -> None:
    assert bench.steps == 10
    assert bench.shifts == [(0, "bf16"), (4, "fp8"), (6, "bf16"), (8, "fp8")]
    assert [bench.gear(step) for step in (0, 3, 4, 5, 6, 9)] == ["bf16", "bf16", "fp8", "fp8", "bf16", "fp8"]
    assert bench.windows("fp8") == [slice(4, 6), slice(8, 10)] and bench.windows("bf16") == [slice(6, 8)]
    full = Bench(text=bench.text, size=SIZE, seeds=1, segments=5)
    assert (len(full.windows("fp8")), len(full.windows("bf16"))) == (2, 2)


def test_the_model_sees_no_later_token_and_knows_places() -> None:
    torch.manual_seed(0)
    model = Llama(SIZE)
    seen: list[Tensor] = []
    model.norm.register_forward_hook(lambda *args: seen.append(args[2].detach()))
    ids = torch.randint(64, (1, 16))
    other = ids.clone()
    other[0, -1] = (ids[0, -1] + 1) % 64
    with torch.no_grad():
        for text in (ids, other, torch.full((1, 16), 5), torch.roll(ids, 1, dims=1)):
            model(text, text)
    assert torch.equal(seen[0][0, :-1], seen[1][0, :-1]) and not torch.equal(seen[0][0, -1], seen[1][0, -1])
    assert not torch.allclose(seen[0][0, 5], seen[3][0, 6], atol=1e-5), "a place is known by what stood before it"
    block = model.blocks[0]
    assert isinstance(block, LlamaBlock)
    turned = block._turned(torch.ones(1, 2, 16, 32))
    assert torch.allclose(turned.norm(dim=-1), torch.full((1, 2, 16), math.sqrt(32)))
    dot = (turned[0, 0, 3] @ turned[0, 0, 1], turned[0, 0, 9] @ turned[0, 0, 7])
    assert dot[0].item() == pytest.approx(dot[1].item(), rel=1e-5), "rotary positions are relative"


def test_arms_take_the_steps_that_they_are_named_for(bench: Bench) -> None:
    plain = bench.train(1, None)
    runs = {name: bench.train(1, arm) for name, arm in ARMS.items() if "measured" not in name}
    first = 4  # step: until then all but those without decay are the same
    update = {name: run.update[first] / plain.update[first] for name, run in runs.items()}
    assert update["gamma off (1)"] == pytest.approx(1.0, rel=0.05)
    assert update["gamma 4"] == pytest.approx(0.25, rel=0.05)
    assert update["control: gamma 4 at the same steps, all in BF16"] == pytest.approx(0.25, rel=0.05)
    assert update["Eq. (11) as printed, without decay"] == pytest.approx(4.0, rel=0.05)
    assert update["control: Eq. (11) so, without decay"] == pytest.approx(4.0, rel=0.05)
    assert runs["gamma 4"].gamma.tolist() == [1, 1, 1, 1, 4, 4, 1, 1, 4, 4]
    for name in ("gamma off (1)", "gamma 4", "control: gamma 4 at the same steps, all in BF16"):
        assert (runs[name].loss[:4] == plain.loss[:4]).all(), name
    assert runs["gamma off (1)"].loss[6] != plain.loss[6], "FP8 was used"
    grown = math.sqrt(runs["Eq. (11) as printed, decay 0.1"].update[0] ** 2 - plain.update[0] ** 2)
    torch.manual_seed(1)
    weights = [p.detach() for p in Llama(SIZE).parameters()]
    matrices = math.sqrt(
        sum(float(p.square().sum()) for p in weights if p.dim() == 2) / sum(p.numel() for p in weights)
    )
    assert grown == pytest.approx(0.1 * matrices, rel=0.15), "matrices grow by a tenth a step, in BF16 too"


def _trained(**series: Any) -> Trained:
    one = np.ones(10)
    given = {name: np.asarray(value, dtype=float) for name, value in series.items() if name != "final"}
    made: Mapping[str, Any] = {"loss": one, "gradient": one, "update": one, "gamma": one, **given}
    return Trained(final=series.get("final", 1.0), diverged=None, **made)


def test_figures_are_ratios_to_the_same_seed_in_bf16(bench: Bench) -> None:
    noise = np.array([1.0, 2.0] * 5)
    plain = _trained(gradient=noise, update=np.full(10, 3.0), loss=np.full(10, 2.0), final=1.5)
    run = _trained(
        gradient=np.where(np.arange(10) < 6, 2 * noise, noise),
        update=np.full(10, 6.0),
        loss=np.full(10, 2.5),
        final=1.75,
    )
    found = ablation.figures_of(bench, run, plain)
    to_fp8 = (math.log(4) + 0) / 2  # the first of two windows has twice the deviation
    assert found == pytest.approx([to_fp8, 0.0, math.log(2), math.log(2), 0.5, 0.5, 0.25])
    mean, low, high = ablation.interval([1.0, 2.0, 4.0], 10)
    expected = stats.ttest_1samp([1.0, 2.0, 4.0], 0.0).confidence_interval(0.995)
    assert (mean, low, high) == pytest.approx((7 / 3, expected.low, expected.high))


def test_the_table_has_every_arm_and_says_which_diverged(bench: Bench) -> None:
    rng = np.random.default_rng(0)

    def some() -> Trained:
        return _trained(gradient=rng.random(10), update=rng.random(10), loss=rng.random(10), final=rng.random())

    runs = {name: [some(), some()] for name in (PLAIN, *ARMS)}
    last = "Eq. (11) as printed, decay 0.1"
    runs[last] = [replace(run, diverged=7 + i) for i, run in enumerate(runs[last])]
    table, rows = ablation.ablation_table(bench, runs)
    names = [row[0] for row in table.rows]
    assert set(ARMS) | {"gamma off against gamma 4"} == set(names)
    assert table.rows[names.index(last)][1] == "diverged in 2 of 2 seeds, step 7 to 8"
    assert len(rows) == len(ARMS) * len(ablation.FIGURES) + 1
    assert f"{len(ARMS) * len(ablation.FIGURES)} intervals together" in table.markdown()
    off = [row for row in rows if row["arm"] == "gamma off (1)" and row["figure"] == "validation loss at the end"]
    gaps = [a.final - b.final for a, b in zip(runs["gamma off (1)"], runs[PLAIN], strict=True)]
    assert off[0]["mean"] == pytest.approx(np.mean(gaps))


def test_curvature_is_the_largest_eigenvalue(bench: Bench) -> None:
    class Bowl(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))

        def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
            return 0.5 * (torch.tensor([1.0, 9.0, 4.0]) * self.x.square()).sum()

    assert ablation.largest_curvature(Bowl(), bench) == pytest.approx(9.0, rel=1e-3)


@pytest.mark.long
def test_quick_writes_tables_figures_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ablation.main(["--quick", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert all(f"| {name} |" in said for name in ARMS) and "Lemma B.3" in said
    with (tmp_path / "steps.csv").open(encoding="utf-8") as file:
        assert sum(1 for _ in csv.DictReader(file)) == 2 * 16 * (1 + len(ARMS))
    assert (tmp_path / "figures.csv").exists() and (tmp_path / "ablation.png").read_bytes()[:4] == b"\x89PNG"
