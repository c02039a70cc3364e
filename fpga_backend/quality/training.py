"""Training of the reward model on what people prefer.

A Bradley-Terry model (R. A. Bradley, M. E. Terry, Biometrika 39 (1952) 324-345) says how likely people prefer one text
to another, p = 1 / (1 + exp(s_worse - s_better)); training makes their choices likely. First only the score head is
fitted, a convex problem; then, where wanted, all weights are trained for one pass, as reward models are.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from greentrain.fpga_backend.batch import Ids
from greentrain.fpga_backend.quality.pairs import Pairs, preferences
from greentrain.fpga_backend.quality.reward_model import RewardModel, in_batches, mean, padded
from greentrain.fpga_backend.quality.snippets import Snippet

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
