"""Every family and head against the model's own code: the lowering in floating point, and the bits of the contract."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from greentrain.fpga_backend.batch import Batch
from greentrain.fpga_backend.compiler import compile
from greentrain.fpga_backend.compiler.compiling import named_parameters
from greentrain.fpga_backend.compiler.quantize import tensors_of
from greentrain.fpga_backend.compiler.recipe import Recipe
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.fpga_backend.errors import UnsupportedModelError
from greentrain.fpga_backend.program import Attention, Linear, LogProb, Norm, Pool, Program, Rotary, Score, read_by
from tests.fpga_backend.compiler.tiny_models import (
    BUILDERS,
    LLAMA,
    MAX_TOKENS,
    build,
    compiled,
    flat,
    hf,
    own,
    own_scores,
    randomise,
    sequences,
)
from tests.helpers.float_engine import run_float

CAUSAL = ["llama score", "llama reward", "smollm", "qwen2", "gpt2", "gemma3", "gemma2 score", "phi3 long"]


@pytest.mark.sweep
@pytest.mark.parametrize("name", BUILDERS)
def test_program_is_the_model_in_floating_point(name: str) -> None:
    model, artifact = compiled(name)
    batch = Batch.of(sequences())
    exact = tensors_of(Recipe.from_json(artifact.recipe), named_parameters(model), "fp32")
    tables = {k: v for k, v in artifact.tensors.items() if k.endswith((".cos", ".sin"))}
    wanted = own(model, batch)
    got = flat(run_float(artifact.program, {**exact, **tables}, batch))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4 * float(np.ptp(wanted)))


@pytest.mark.sweep
@pytest.mark.parametrize("name", BUILDERS)
def test_integers_stay_near_the_model(name: str) -> None:
    model, artifact = compiled(name)
    batch = Batch.of(sequences())
    wanted, got = own(model, batch), flat(Engine(artifact).run(batch))
    assert np.abs(got - wanted).mean() < 0.04 * np.ptp(wanted)
    assert np.corrcoef(got, wanted)[0, 1] > 0.98


@pytest.mark.parametrize("name", CAUSAL)
def test_a_shared_prompt_is_computed_once_with_the_same_bits(name: str) -> None:
    _, artifact = compiled(name)
    prompt, *tails = sequences(seed=5, count=4)
    ids = [np.concatenate([prompt, tail])[:MAX_TOKENS] for tail in tails]
    engine = Engine(artifact)
    shared = engine.run(Batch.of(ids, prompt_tokens=[len(prompt)] * 3))
    alone = [engine.run(Batch.of([row], prompt_tokens=[len(prompt)])) for row in ids]
    assert shared.rows == sum(len(row) for row in ids) - 2 * len(prompt)
    assert flat(shared).tobytes() == b"".join(flat(one).tobytes() for one in alone)


def test_token_types_reach_the_model() -> None:
    model, artifact = compiled("bert 3 labels")
    assert artifact.program.types == 2
    ids = sequences()
    batch = Batch.of(ids, types=[np.arange(len(row)) % 2 for row in ids])
    recipe = Recipe.from_json(artifact.recipe)
    got = run_float(artifact.program, tensors_of(recipe, named_parameters(model), "fp32"), batch)
    np.testing.assert_allclose(flat(got), own_scores(model, batch, mask=False).reshape(-1), atol=1e-4)


def test_layers_that_read_the_same_rows_are_one() -> None:
    _, artifact = compiled("smollm")
    linears = [op for op in artifact.program.ops if isinstance(op, Linear)]
    assert [op.outputs for op in linears[:4]] == [48 + 16 + 16, 48, 80 + 80, 48]
    attention = next(op for op in artifact.program.ops if isinstance(op, Attention))
    assert attention.v.register == linears[0].out and attention.v.start == 64


def test_the_longest_sequence_has_its_positions() -> None:
    model, artifact = compiled("llama3 positions")
    (rotary, *_) = (op for op in artifact.program.ops if isinstance(op, Rotary))
    assert artifact.tensors[f"{rotary.weight}.cos"].shape == (MAX_TOKENS, 4)
    batch = Batch.of([np.arange(3, 3 + MAX_TOKENS)])
    wanted, got = own(model, batch), flat(Engine(artifact).run(batch))
    assert np.corrcoef(got, wanted)[0, 1] > 0.98


@pytest.mark.parametrize(
    ("name", "windows"),
    [("mistral", [7, 7]), ("gemma3", [6, 0, 6]), ("modernbert", [0, 5]), ("phi3", [0, 0]), ("gemma2 score", [6, 0])],
)
def test_each_attention_has_its_window(name: str, windows: list[int]) -> None:
    _, artifact = compiled(name)
    attentions = [op for op in artifact.program.ops if isinstance(op, Attention)]
    assert [op.window for op in attentions] == windows
    assert {op.causal for op in attentions} == {name != "modernbert"}
    assert {op.softcap for op in attentions} == {2.0 if name == "gemma2 score" else 0.0}


def test_heads_are_normalised_each_by_itself() -> None:
    _, artifact = compiled("qwen3")
    norms = [op for op in artifact.program.ops if isinstance(op, Norm) and op.groups > 1]
    assert [(op.groups, op.x.width) for op in norms] == [(6, 60), (2, 20)] * 2
    assert len({op.x.register for op in norms[:2]}) == 1, "q, k and v are one product"
    assert [type(op) for op in artifact.program.ops if norms[0].out in {c.register for c in read_by(op)}] == [Rotary]
    held = Program.from_json(artifact.program.to_json())
    assert held == artifact.program


def test_a_recipe_of_older_programs_stays_the_same() -> None:
    _, artifact = compiled("llama score")
    text = artifact.program.to_json()
    assert not any(f'"{name}"' in text for name in ("groups", "window", "softcap", "activation_bits"))


def test_long_rope_holds_where_its_angles_do() -> None:
    with pytest.raises(UnsupportedModelError, match=r"max_tokens=31.*angles that hold.*for 30 tokens"):
        compile(build("phi3 long"), max_tokens=31)


class GatingNetwork(nn.Module):
    """Weights of objectives, as ArmoRM's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 5))

    def forward(self, row: torch.Tensor) -> torch.Tensor:
        return functional.softmax(self.layers(row) / 10.0, dim=-1)


class At(nn.Module):
    """A layer on the last row of a tower."""

    def __init__(self, tower: nn.Module, layer: nn.Module) -> None:
        super().__init__()
        self.tower, self.layer = tower, layer

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layer(self.tower(input_ids).last_hidden_state[:, -1])
        return scores


def test_objectives_and_their_gate_are_two_models_that_are_mixed_at_home() -> None:
    """ArmoRM's shape: several objectives at the answer's end, mixed by a gate that reads the prompt's end."""
    tower, objectives, gate = hf.LlamaModel(hf.LlamaConfig(**LLAMA)), nn.Linear(48, 5, bias=False), GatingNetwork()
    whole = nn.ModuleList([tower, objectives, gate])
    randomise(whole, 4)
    whole.eval()
    parts = (compile(At(tower, part), max_tokens=24, activation_bits=16) for part in (objectives, gate.layers))
    scorer, gating = map(Engine, parts)
    rows = sequences(count=6)
    prompts = [row[: len(row) // 2 + 1] for row in rows]
    scores, logits = (engine.run(Batch.of(ids)).scores for engine, ids in ((scorer, rows), (gating, prompts)))
    assert scores is not None and logits is not None and scores.shape == (6, 5)
    mixed = (torch.from_numpy(logits / 10.0).softmax(-1).numpy() * scores).sum(-1)
    with torch.no_grad():
        ends = [
            [tower(torch.from_numpy(ids)[None]).last_hidden_state[0, -1] for ids in some] for some in (rows, prompts)
        ]
        exact = objectives(torch.stack(ends[0]))
        wanted = (exact * gate(torch.stack(ends[1]))).sum(-1).numpy()
    assert np.abs(mixed - wanted).mean() < 0.04 * np.ptp(exact.numpy())
    assert np.corrcoef(mixed, wanted)[0, 1] > 0.98
    with pytest.raises(UnsupportedModelError, match=r"layer \(GatingNetwork\).*softmax.*each as a model"):
        compile(At(tower, gate), max_tokens=24)


class TokenScores(nn.Module):
    """A score a token; their first, last or mean is the sequence's."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.inner = nn.Linear(16, 16)
        self.head = nn.Linear(16, 2)
        self.how = how

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.inner(self.words(ids)).tanh())
        return {"first": scores[:, 0], "last": scores[:, -1], "mean": scores.mean(1)}[self.how]


@pytest.mark.parametrize("how", ["first", "last", "mean"])
def test_pooling_behind_the_head_goes_before_it(how: str) -> None:
    program = compile(TokenScores(how), max_tokens=8).program
    *_, pool, score = program.ops
    assert isinstance(pool, Pool) and pool.how == how and pool.x.width == 16
    assert isinstance(score, Score) and score.labels == 2


@pytest.mark.parametrize(("name", "last"), [("qwen2", LogProb), ("qwen2 score", Score), ("bert mean", Score)])
def test_the_head_is_what_the_model_returns(name: str, last: type) -> None:
    _, artifact = compiled(name)
    assert isinstance(artifact.program.ops[-1], last)
    assert artifact.program.causal is (name != "bert mean")
    assert artifact.program.layers == 2 and artifact.program.hidden == 48
