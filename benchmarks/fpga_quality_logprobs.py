"""Case logprobs: what an offloaded reference policy answers, and what that does to the KL penalty."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from benchmarks.fpga_quality_common import BF16, Bench, figure, ways
from benchmarks.fpga_quality_common import logprobs as logprobs_of
from benchmarks.fpga_quality_figures import kl, logprob_shift, penalty_bias
from benchmarks.tables import Table
from greentrain.fpga_backend.batch import Ids
from greentrain.fpga_backend.quality.flips import Floats
from recipes.common.data import corpus
from recipes.common.rated_snippets import read, split, thinned

PROMPT: Final = 8
"""Tokens of each prompt."""
LENGTH: Final = 40
"""Tokens of each sequence, its prompt included."""
MOVE_RATE: Final = 2e-5
"""Learning rate of the steps that make the policy another one than its reference."""
MOVE_STEPS: Final = 12
SMALL_STEPS: Final = 400
"""Of the small model that is trained here."""
SMALL_RATE: Final = 2e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A reference policy, prompts, and other text to move a policy with."""

    name: str
    model: Any
    prompts: list[Ids]
    seen: list[Ids]


def logprobs(bench: Bench) -> list[Table]:
    """Compare a reference's log-probabilities, and KL penalties made of them, between FP32 and others."""
    subject = _small(bench) if bench.lm is None else _from_gguf(bench)
    policy = _moved(subject, bench.pick(MOVE_STEPS, 2))
    own = _drawn(subject.model, subject.prompts, seed=1)
    moved = _drawn(policy, subject.prompts, seed=2)
    reference = _logprobs(subject.model, own), _logprobs(subject.model, moved)
    drew, true = _logprobs(policy, moved), _true_kl(policy, subject.model, moved)
    half = copy.deepcopy(subject.model).to(torch.bfloat16)
    found = {BF16: (_logprobs(half, own), _logprobs(half, moved))}
    prompts = [PROMPT] * len(own)
    for way, run in ways(subject.model, max_tokens=LENGTH, head="logprob", calibration=subject.seen):
        a, b = (logprobs_of(run, part, prompt_tokens=prompts) for part in (own, moved))
        found[way] = a, b
        bench.say(f"logprobs: {way}: {np.abs(a - reference[0]).mean():.4f} nats")
    penalty = kl(drew, reference[1])
    rows = []
    for way, (a, b) in found.items():
        moves, own_kl = logprob_shift(reference[0], a), kl(reference[0], a)
        bias = penalty_bias(drew, reference[1], b)
        cells = [figure(value) for value in (moves.mean, moves.p99, moves.most)]
        cells += [f"{figure(own_kl.k3)} +- {figure(own_kl.k3_error)}", figure(own_kl.k1)]
        cells += [figure(kl(drew, b).k3), f"{bias.mean:+.1e} +- {bias.error:.0e}"]
        cells += [f"{100 * bias.mean / penalty.k3:+.1f}"]
        rows.append([way, *cells])
    return [
        Table(
            case="logprobs",
            title=f"Reference policy: {subject.name}",
            head=[
                "computed in",
                "change of a log-probability, mean (nats)",
                "p99",
                "largest",
                "KL from FP32, k3 +- its error",
                "k1",
                "penalty of a moved policy, k3",
                "its bias",
                "in %",
            ],
            rows=rows,
            notes=[
                f"{len(reference[0]):,} tokens that the FP32 reference drew, {len(drew):,} that the moved policy drew.",
                f"The moved policy, in FP32: KL over the whole vocabulary {true:.3g} nats a token; by its tokens k1"
                f" {penalty.k1:.3g}, k2 {penalty.k2:.3g}, k3 {penalty.k3:.3g} +- {penalty.k3_error:.1g}.",
            ],
        )
    ]


def _from_gguf(bench: Bench) -> Subject:
    assert bench.lm is not None
    model: Any = AutoModelForCausalLM.from_pretrained(bench.lm.parent, gguf_file=bench.lm.name, dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(bench.lm.parent, gguf_file=bench.lm.name)
    train, test = (thinned(part, bench.pick(64, 8)) for part in split(read(bench.snippets), 0.25))
    ids = [[np.array(tokenizer(s.text).input_ids, dtype=np.int32) for s in part] for part in (train, test)]
    return Subject(
        name=f"{bench.lm.stem}, dequantised, prompts from the rated texts",
        model=model.eval(),
        prompts=[row[:PROMPT] for row in ids[1] if len(row) >= PROMPT][: bench.pick(64, 8)],
        seen=[row[:LENGTH] for row in ids[0] if len(row) >= PROMPT],
    )


def _small(bench: Bench) -> Subject:
    text = corpus(vocab=2048, max_bytes=4_000_000)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=text.vocab,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    steps = bench.pick(SMALL_STEPS, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=SMALL_RATE)
    draw = np.random.default_rng(0)
    last = 0.0
    for step in range(steps):
        starts = draw.integers(0, len(text.train) - 128, 16)
        ids = torch.from_numpy(np.stack([text.train[s : s + 128] for s in starts]).astype(np.int64))
        optimizer.param_groups[0]["lr"] = SMALL_RATE * min(1.0, (step + 1) / 20) * (1 - step / steps)
        last = _step(model, optimizer, ids)
        if step % 50 == 0:
            bench.say(f"logprobs: small model, step {step} of {steps}, {last:.2f} nats a token")
    starts = draw.integers(0, len(text.val) - LENGTH, 2 * bench.pick(64, 8))
    rows = [text.val[s : s + LENGTH].astype(np.int32) for s in starts]
    half = len(rows) // 2
    return Subject(
        name=f"a Llama of {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters, trained here for"
        f" {steps} steps on Python's source to {last:.2f} nats a token",
        model=model.eval(),  # type: ignore[no-untyped-call]
        prompts=[row[:PROMPT] for row in rows[:half]],
        seen=rows[half:],
    )


def _moved(subject: Subject, steps: int) -> Any:
    """Return the policy after some steps on other text: near its reference, as in training."""
    policy = copy.deepcopy(subject.model)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=MOVE_RATE)
    full = [row for row in subject.seen if len(row) >= 16]
    for step in range(steps):
        rows = [full[(8 * step + i) % len(full)][:16] for i in range(8)]
        _step(policy, optimizer, torch.from_numpy(np.stack(rows).astype(np.int64)))
    return policy.eval()


def _step(model: Any, optimizer: torch.optim.Optimizer, ids: Tensor) -> float:
    loss = model(input_ids=ids, labels=ids).loss
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())


@torch.inference_mode()
def _drawn(model: Any, prompts: Sequence[Ids], *, seed: int) -> list[Ids]:
    """Return prompts continued by tokens drawn from the model, at temperature 1, to LENGTH tokens."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.from_numpy(np.stack(prompts).astype(np.int64))
    cache, fresh = None, ids
    while ids.shape[1] < LENGTH:
        out = model(input_ids=fresh, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        fresh = torch.multinomial(out.logits[:, -1].float().softmax(-1), 1, generator=generator)
        ids = torch.cat([ids, fresh], dim=1)
    return [row.numpy().astype(np.int32) for row in ids]


def _logprobs(model: Any, sequences: Sequence[Ids]) -> Floats:
    """Return ln p of each drawn token, sequence after sequence [tokens]."""
    found = [
        logs[:, PROMPT - 1 : -1].gather(-1, ids[:, PROMPT:].unsqueeze(-1)).reshape(-1).double().numpy()
        for ids, logs in _distributions(model, sequences)
    ]
    return np.concatenate(found)


def _true_kl(policy: Any, reference: Any, sequences: Sequence[Ids]) -> float:
    """Return KL(policy || reference) at the drawn tokens' places, over the whole vocabulary (nats a token)."""
    total, count = 0.0, 0
    for (_, q), (_, p) in zip(_distributions(policy, sequences), _distributions(reference, sequences), strict=True):
        own = (q.exp() * (q - p)).sum(-1)[:, PROMPT - 1 : -1]
        total, count = total + float(own.double().sum()), count + own.numel()
    return total / count


def _distributions(model: Any, sequences: Sequence[Ids]) -> Any:
    """Yield token ids and log-probabilities [sequences, tokens, vocabulary] of a few sequences at a time."""
    for start in range(0, len(sequences), 4):
        ids = torch.from_numpy(np.stack(sequences[start : start + 4]).astype(np.int64))
        with torch.inference_mode():
            yield ids, model(input_ids=ids).logits.float().log_softmax(-1)
