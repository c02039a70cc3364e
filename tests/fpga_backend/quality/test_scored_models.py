"""From rated texts to a verdict, on MiniLM's real weights, and scores of whatever computes a batch."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import fpga_quality_common as measure
from benchmarks.fpga_quality_figures import accuracy, company_shift
from greentrain.fpga_backend.artifact import Artifact
from greentrain.fpga_backend.batch import Batch, Ids, Result
from greentrain.fpga_backend.compiler import compile as compile_model
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.fpga_backend.quality.flips import Floats, flip_rate
from recipes.common.rank_gate import gate
from recipes.common.rated_snippets import Snippet
from recipes.common.reward_model import (
    GROUP,
    RewardModel,
    fine_tune,
    fit_head,
    minilm,
    padded,
    preferences,
    tokenise,
    torch_scores,
)

WORDS = {
    3.0: ["wonderful", "superb", "delightful", "excellent", "amazing"],
    1.0: ["decent", "pleasant", "fine", "likeable", "solid"],
    -1.0: ["dull", "mediocre", "weak", "forgettable", "bland"],
    -3.0: ["awful", "horrible", "disgusting", "terrible", "dreadful"],
}
THINGS = ["film", "meal", "hotel", "book", "journey", "phone"]


def _rated(words: slice, things: slice) -> list[Snippet]:
    return [
        Snippet(source="made up", document=thing, rating=rating, text=f"The {thing} was {word}.")
        for rating, some in WORDS.items()
        for word, thing in itertools.product(some[words], THINGS[things])
    ]


TRAIN, TEST = _rated(slice(0, 3), slice(0, 4)), _rated(slice(3, 5), slice(0, 6))
"""No word of a rating is in both."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The models are small: two threads on busy cores wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def judge() -> RewardModel:
    model = minilm()
    fit_head(model, tokenise([s.text for s in TRAIN]), TRAIN)
    return model


@pytest.fixture(scope="module")
def artifact(judge: RewardModel) -> Artifact:
    return compile_model(judge, max_tokens=32)


def test_from_rated_texts_to_a_verdict(judge: RewardModel, artifact: Artifact) -> None:
    ids = tokenise([s.text for s in TEST])
    pairs = preferences([s.rating for s in TEST], [s.source for s in TEST], least_margin=1.0)
    reference = torch_scores(judge, ids)
    floor = torch_scores(judge, ids, dtype=torch.bfloat16)
    token = measure.scores(Engine(artifact).run, ids)
    tensor = measure.scores(Engine(_per_tensor(artifact)).run, ids)
    assert accuracy(reference, pairs) > 0.9
    assert 0 < np.abs(floor - reference).max() < np.abs(token - reference).max() < np.abs(tensor - reference).max()
    assert flip_rate(reference, token, pairs) <= 0.01
    assert flip_rate(reference, token) < flip_rate(reference, tensor)
    assert gate(reference, floor, token, pairs, k=20).offload
    assert not gate(reference, floor, -token, pairs, k=20).offload


def test_company_moves_a_score_only_where_the_batch_has_one_scale(artifact: Artifact) -> None:
    ids = tokenise([s.text for s in TEST[::8]])
    moved = {}
    for name, compiled in (("token", artifact), ("tensor", _per_tensor(artifact))):
        engine = Engine(compiled)

        def score(items: Sequence[int], engine: Engine = engine) -> Floats:
            return measure.scores(engine.run, [ids[i] for i in items], size=len(items))

        moved[name] = company_shift(score, len(ids), (4,))
    assert moved["token"] == 0.0
    assert moved["tensor"] > 0.001


def test_a_pass_over_all_weights_lowers_the_loss_and_is_repeatable() -> None:
    rated = TRAIN[:: len(TRAIN) // (2 * GROUP)][: 2 * GROUP]
    ids = tokenise([s.text for s in rated])
    losses, scores = [], []
    for _ in range(2):
        torch.manual_seed(3)
        model = RewardModel(_TinyEncoder(), 8).requires_grad_(False)
        losses.append([fit_head(model, ids, rated), fine_tune(model, ids, rated)])
        scores.append(torch_scores(model, ids))
        assert not any(p.requires_grad or p.grad is not None for p in model.parameters())
    assert losses[0] == losses[1]
    preferred = preferences([s.rating for s in rated], [s.source for s in rated], least_margin=1.0)
    assert accuracy(scores[0], preferred) > 0.7
    np.testing.assert_array_equal(scores[0], scores[1])


def test_training_without_a_preference_is_refused() -> None:
    alike = [dataclasses.replace(s, rating=0.0) for s in TRAIN[:GROUP]]
    ids = [np.array([1, 2], dtype=np.int32)] * GROUP
    model = RewardModel(_TinyEncoder(), 8)
    with pytest.raises(ValueError, match="no pairs"):
        fit_head(model, ids, alike)
    with pytest.raises(ValueError, match=r"differ by 0\.5"):
        fine_tune(model, ids, alike)


def test_padding_and_batch_mates_do_not_move_torchs_scores_by_more_than_rounding() -> None:
    torch.manual_seed(0)
    model = RewardModel(_TinyEncoder(), 8)
    torch.nn.init.normal_(model.head.weight)
    ids = [np.arange(1, n, dtype=np.int32) for n in (2, 9, 4, 7)]
    together, alone = torch_scores(model, ids), torch_scores(model, ids, size=1)
    np.testing.assert_allclose(together, alone, atol=1e-5)
    with torch.no_grad():
        np.testing.assert_allclose([float(model(*padded([row]))) for row in ids], alone, atol=1e-5)
    assert len(np.unique(alone)) == 4
    assert 1e-5 < np.abs(torch_scores(model, ids, dtype=torch.bfloat16) - alone).max() < 0.1


def test_padded_rows() -> None:
    ids, mask = padded([np.array([5, 6], dtype=np.int32), np.array([7], dtype=np.int32)])
    assert ids.tolist() == [[5, 6], [7, 0]]
    assert mask.tolist() == [[1, 1], [1, 0]]


def test_scores_come_back_in_order_whatever_the_batches() -> None:
    sizes = []

    def run(batch: Batch) -> Result:
        sizes.append(len(batch.ids))
        return Result(scores=np.array([[0, row[0]] for row in batch.ids], dtype=np.float32), run_s=0.0, rows=1)

    ids: list[Ids] = [np.array([i], dtype=np.int32) for i in range(7)]
    np.testing.assert_array_equal(measure.scores(run, ids, size=3, label=1), np.arange(7.0))
    assert sizes == [3, 3, 1]
    with pytest.raises(ValueError, match="no score 2"):
        measure.scores(run, ids, label=2)
    with pytest.raises(ValueError, match="no log-probabilities"):
        measure.logprobs(run, ids)


def test_logprobs_come_back_token_by_token() -> None:
    asked: list[tuple[int, ...] | None] = []

    def run(batch: Batch) -> Result:
        asked.append(batch.prompt_tokens)
        return Result(logprobs=tuple(-row[1:].astype(np.float32) for row in batch.ids), run_s=0.0, rows=1)

    ids: list[Ids] = [np.arange(n, dtype=np.int32) for n in (3, 2, 4)]
    np.testing.assert_array_equal(measure.logprobs(run, ids, prompt_tokens=[1, 0, 1], size=2), [-1, -2, -1, -1, -2, -3])
    assert asked == [(1, 0), (1,)]
    with pytest.raises(ValueError, match="no score 0"):
        measure.scores(run, ids)


class _TinyEncoder(torch.nn.Module):
    """An embedding that knows where it stands; called and answering as Hugging Face's encoders."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(30522, 8)
        self.mix = torch.nn.Linear(8, 8)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> object:
        made = torch.tanh(self.mix(self.words(input_ids)))

        @dataclasses.dataclass
        class Output:
            last_hidden_state: torch.Tensor

        return Output(made)


RATED = st.lists(st.tuples(st.integers(-8, 8), st.sampled_from("ab")), min_size=0, max_size=20)


@given(RATED)
def test_preferences_are_all_pairs_of_one_kind_that_differ_enough(rated: list[tuple[int, str]]) -> None:
    ratings, kinds = [float(r) for r, _ in rated], [k for _, k in rated]
    found = preferences(ratings, kinds, least_margin=2.0)
    expected = {
        (i, j)
        for i in range(len(rated))
        for j in range(len(rated))
        if kinds[i] == kinds[j] and ratings[i] - ratings[j] >= 2.0
    }
    assert len(found) == len(expected)
    assert set(zip(found.better.tolist(), found.worse.tolist(), strict=True)) == expected
    assert all(ratings[i] - ratings[j] == m for i, j, m in zip(found.better, found.worse, found.margin, strict=True))


def test_no_margin_is_no_preference() -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        preferences([1.0], ["a"], least_margin=0.0)
    with pytest.raises(ValueError, match="1 ratings for 2 kinds"):
        preferences([1.0], ["a", "b"], least_margin=1.0)


def _per_tensor(artifact: Artifact) -> Artifact:
    return Artifact.of(dataclasses.replace(artifact.program, activations="tensor"), artifact.tensors)
