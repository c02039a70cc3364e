"""Case ranks: does a reward model in INT8 still prefer what it preferred in FP32?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.fpga_quality_common import (
    BF16,
    PER_TENSOR,
    PER_TOKEN,
    SMOOTH,
    TWO_DIGITS,
    Bench,
    Run,
    figure,
    percent,
    ways,
)
from benchmarks.fpga_quality_common import scores as scores_of
from benchmarks.fpga_quality_figures import (
    accuracy,
    advantage_shift,
    company_shift,
    drawn,
    interval,
    kendall_tau,
    resampled,
    shift,
)
from benchmarks.tables import Table
from greentrain.fpga_backend.batch import Ids
from greentrain.fpga_backend.quality.flips import Floats, Pairs, by_margin, flip_rate, flips
from recipes.common.rated_snippets import Snippet, read, split, thinned
from recipes.common.reward_model import (
    LEAST_MARGIN,
    RewardModel,
    fine_tune,
    fit_head,
    minilm,
    preferences,
    tokenise,
    torch_scores,
)

TEST_SHARE: Final = 0.25
EASY_MARGIN: Final = 2.0
"""Rating points that make a choice easy for people: more than twice the standard deviation of raters (0.8)."""
SURE: Final = 0.75
"""Probability, by Bradley and Terry, from which on the FP32 model is sure of a pair."""
GROUP: Final = 8
"""Answers a group, as GRPO draws them."""
MAX_TOKENS: Final = 128
BATCH: Final = 32
COMPANY: Final = 48
"""Texts that are scored alone and in batches."""
TOKEN_OVER_TENSOR: Final = 0.5
EASY_BAR: Final = 0.002
DRAWS: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One reward model's scores by every way, and what belongs to them."""

    name: str
    reference: Floats
    found: Mapping[str, Floats]
    sets: Mapping[str, Pairs]
    """All pairs, those easy for people, those that the model is sure of."""
    groups: npt.NDArray[np.intp]
    company: Mapping[str, float]
    """Largest change of a score by the batch's other texts, by way."""

    def rates(self, name: str) -> Mapping[str, Floats]:
        """Return each way's flip rates in other draws of the texts [draws]."""
        pairs = self.sets[name]
        counts = [flips(self.reference, scores, pairs) for scores in self.found.values()]
        found = resampled(counts, pairs, len(self.reference), draws=DRAWS)
        return dict(zip(self.found, found, strict=True))


ALL, EASY, SURE_OF = "all pairs", "easy for people", "the model is sure"


def ranks(bench: Bench) -> list[Table]:
    """Train a reward model on real preferences and compare the ranks that it gives in each precision."""
    train, test = split(read(bench.snippets), TEST_SHARE)
    train, test = thinned(train, bench.pick(1000, 32)), thinned(test, bench.pick(300, 32))
    texts = [tokenise([snippet.text for snippet in part]) for part in (train, test)]
    model = minilm()
    loss = fit_head(model, texts[0], train)
    bench.say(f"ranks: head fitted to {len(train)} texts, {loss:.3f} nats a pair")
    judged = [_judged(bench, "head only", model, texts, test)]
    loss = fine_tune(model, texts[0], train, say=bench.say)
    bench.say(f"ranks: fine-tuned, {loss:.3f} nats a pair at the end")
    judged.append(_judged(bench, "fine-tuned", model, texts, test))
    return [_bars(judged), *(_table(one) for one in judged), _margins(judged[-1])]


def _judged(
    bench: Bench, name: str, model: RewardModel, texts: Sequence[Sequence[Ids]], test: Sequence[Snippet]
) -> Judged:
    seen, unseen = texts
    reference = torch_scores(model, unseen)
    found = {BF16: torch_scores(model, unseen, dtype=torch.bfloat16)}
    company = {}
    for way, run in ways(model, max_tokens=MAX_TOKENS, head="score", calibration=seen):
        found[way] = scores_of(run, unseen, size=BATCH)
        some = unseen[:: max(1, len(unseen) // COMPANY)][:COMPANY]

        def score(items: Sequence[int], run: Run = run, some: Sequence[Ids] = some) -> Floats:
            return scores_of(run, [some[i] for i in items], size=len(items))

        if way in (PER_TOKEN, TWO_DIGITS, SMOOTH, PER_TENSOR):
            company[way] = company_shift(score, len(some), (7, BATCH)) / float(reference.std())
        bench.say(f"ranks: {name}, {way}: {flip_rate(reference, found[way]):.3%} of all pairs flip")
    kinds = [snippet.source for snippet in test]
    pairs = preferences([snippet.rating for snippet in test], kinds, least_margin=LEAST_MARGIN)
    sure = np.abs(reference[pairs.better] - reference[pairs.worse]) >= np.log(SURE / (1 - SURE))
    sets = {
        ALL: pairs,
        EASY: _some(pairs, pairs.margin >= EASY_MARGIN),
        SURE_OF: _some(pairs, sure),
    }
    groups = drawn(kinds, GROUP, seed=0)
    return Judged(name=name, reference=reference, found=found, sets=sets, groups=groups, company=company)


def _some(pairs: Pairs, kept: npt.NDArray[np.bool_]) -> Pairs:
    return Pairs(better=pairs.better[kept], worse=pairs.worse[kept], margin=pairs.margin[kept])


def _table(judged: Judged) -> Table:
    pairs = judged.sets
    intervals = {name: {way: interval(rates) for way, rates in judged.rates(name).items()} for name in pairs}
    floor = flip_rate(judged.reference, judged.found[BF16], pairs[ALL])
    rows = []
    for way, scores in judged.found.items():
        cells = [percent(flip_rate(judged.reference, scores, pairs[n]), intervals[n][way]) for n in pairs]
        moved = shift(judged.reference, scores)
        group = advantage_shift(judged.reference, scores, judged.groups)
        company = judged.company.get(way)
        cells += [figure(flip_rate(judged.reference, scores, pairs[ALL]) / floor) if floor else "unknown"]
        cells += [f"{kendall_tau(judged.reference, scores):.4f}"]
        cells += [figure(value) for value in (moved.mean, moved.p99, moved.most)]
        cells += [percent(group.sign_flips), percent(group.best_changed)]
        cells += ["" if company is None else figure(company)]
        rows.append([way, *cells])
    spread = float(judged.reference.std())
    right = ", ".join(
        f"{accuracy(judged.reference, pairs[name]):.1%} of {len(pairs[name]):,} ({name})" for name in pairs
    )
    return Table(
        case="ranks",
        title=f"Reward model, {judged.name}",
        head=[
            "computed in",
            *(f"flips, {name} (%)" for name in pairs),
            "times the floor",
            "Kendall tau-b",
            "shift, mean",
            "p99",
            "largest",
            "advantage signs (%)",
            "best of a group (%)",
            "moved by company",
        ],
        rows=rows,
        notes=[
            f"FP32 on {len(judged.reference)} texts that training did not see gets right: {right}.",
            f"Shifts are in standard deviations of FP32's scores, which is {spread:.3g}. In brackets: 95 % of {DRAWS}"
            " other draws of the texts.",
        ],
    )


def _margins(judged: Judged) -> Table:
    parts = {way: by_margin(judged.reference, scores, judged.sets[ALL]) for way, scores in judged.found.items()}
    first = next(iter(parts.values()))
    return Table(
        case="ranks",
        title=f"Flips by margin of FP32 (%), all pairs, {judged.name}",
        head=["computed in", *(f"{part.low:.2f} to {part.high:.2f}" for part in first)],
        rows=[[way, *(percent(part.rate) for part in found)] for way, found in parts.items()],
        notes=["Margins are in standard deviations of FP32's scores; each column holds a tenth of the pairs."],
    )


def _bars(judged: Sequence[Judged]) -> Table:
    rows, verdicts = [], []
    for one in judged:
        for name in (ALL, EASY):
            own, other = (flip_rate(one.reference, one.found[way], one.sets[name]) for way in (PER_TOKEN, PER_TENSOR))
            rates = one.rates(name)
            with np.errstate(divide="ignore", invalid="ignore"):
                span = interval(rates[PER_TOKEN] / rates[PER_TENSOR])
            verdicts.append(own <= TOKEN_OVER_TENSOR * other)
            text = f"{figure(own / other) if other else 'unknown'} [{figure(span.low)}, {figure(span.high)}]"
            rows.append([one.name, f"flips per token over per tensor, {name}", text, f"<= {TOKEN_OVER_TENSOR}"])
        for way in (PER_TOKEN, TWO_DIGITS, SMOOTH):
            for name in (EASY, SURE_OF):
                rate = flip_rate(one.reference, one.found[way], one.sets[name])
                floor = flip_rate(one.reference, one.found[BF16], one.sets[name])
                verdicts.append(rate <= EASY_BAR)
                text = f"{percent(rate, interval(one.rates(name)[way]))} %; BF16 {percent(floor)} %"
                rows.append([one.name, f"flips, {name}, {way}", text, f"<= {percent(EASY_BAR)} %"])
        for way in (PER_TOKEN, TWO_DIGITS, SMOOTH):
            verdicts.append(one.company[way] == 0)
            rows.append([one.name, f"shift by company, {way}", figure(one.company[way]), "= 0"])
        verdicts.append(one.company[PER_TENSOR] > 0)
        rows.append([one.name, f"shift by company, {PER_TENSOR}", figure(one.company[PER_TENSOR]), "> 0: it is seen"])
    return Table(
        case="ranks",
        title="Bars",
        head=["reward model", "figure", "measured", "bar", "verdict"],
        rows=[[*row, "PASS" if passed else "MISS"] for row, passed in zip(rows, verdicts, strict=True)],
        passed=sum(verdicts),
        missed=len(verdicts) - sum(verdicts),
    )
