"""Every policy passes the conformance suite; the rule stays near the oracle on drawn steps."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from greentrain.errors import ConfigError
from greentrain.policy.carl import Network
from greentrain.policy.offload.ppo import FEATURES, HIDDEN, SHIPPED, features
from greentrain.policy.offload.rule import EdiRule, OffloadOracle, candidates
from greentrain.policy.offload.stages import (
    MOVABLE,
    CostTable,
    Hardware,
    Plan,
    Stage,
    StageCost,
    Where,
    all_gpu,
    label,
    plans,
)
from greentrain.policy.offload.timeline import Array, Late, StepShape
from greentrain.policy.offload.view import Objective, OffloadPolicy, OffloadView
from greentrain.testing.offload_policy_contract import OffloadPolicyContract
from greentrain.types import Provenance
from tools.networks import NormedNetwork
from tools.offload_policies import (
    NAMES,
    PPO_PUBLISHED,
    Algorithm1,
    EdiPublished,
    PpoPublished,
    latency_budget_s,
    open_offload_policy,
    regret,
)
from tools.placement_tasks import TASKS


class _Named(OffloadPolicyContract):
    known_as: str

    def make_policy(self) -> OffloadPolicy:
        return open_offload_policy(self.known_as)


class TestEdiRule(_Named):
    known_as = "edi-rule"


class TestOracle(_Named):
    known_as = "oracle"


class TestPpo(_Named):
    known_as = "ppo"


class TestPpoPublished(_Named):
    known_as = "ppo-published"


class TestAlgorithm1(_Named):
    known_as = "algorithm-1"


class TestEdiPublished(_Named):
    known_as = "edi-published"


class TestAllGpu(_Named):
    known_as = "all-gpu"


class TestAllSequential(_Named):
    known_as = "all-sequential"


class TestAllConcurrent(_Named):
    known_as = "all-concurrent"


def step(
    *,
    pass_s: float = 1.0,
    slower: float = 1.0,
    card_w: float = 60.0,
    card_idle_w: float = 20.0,
    card_stays: bool = False,
    known: bool = True,
) -> CostTable:
    """10 s of generation, 8 s of training, and two passes."""

    def cost(duration_s: float, power_w: float) -> StageCost:
        return StageCost(duration_s=duration_s, energy_j=duration_s * power_w, provenance=Provenance.MEASURED)

    costs = {(Stage.GENERATE, Hardware.GPU): cost(10.0, 400.0), (Stage.TRAIN, Hardware.GPU): cost(8.0, 500.0)}
    for stage in (Stage.REWARD, Stage.REFERENCE):
        costs[stage, Hardware.GPU] = cost(pass_s, 400.0)
        costs[stage, Hardware.OFFLOAD] = cost(pass_s * slower, card_w)
    if not known:
        costs[Stage.REWARD, Hardware.OFFLOAD] = StageCost(
            duration_s=pass_s * slower, energy_j=None, provenance=Provenance.MISSING
        )
    return CostTable(
        costs=costs,
        tokens=1000.0,
        gpu_idle_w=100.0,
        gpu_idle_provenance=Provenance.MEASURED,
        card_idle_w=card_idle_w,
        card_idle_provenance=Provenance.MEASURED,
        card_stays=card_stays,
    )


BOTH: Plan = {
    Stage.GENERATE: Where.GPU,
    Stage.REWARD: Where.CONCURRENT,
    Stage.REFERENCE: Where.CONCURRENT,
    Stage.TRAIN: Where.GPU,
}


@pytest.mark.parametrize("policy", [EdiRule(), OffloadOracle()])
def test_a_fast_and_frugal_device_gets_the_passes(policy: OffloadPolicy) -> None:
    assert policy.choose(OffloadView.of(step(slower=0.5), StepShape(chunks=8))) == BOTH


@pytest.mark.parametrize("policy", [EdiRule(), OffloadOracle(), EdiPublished()])
def test_a_slow_device_gets_nothing(policy: OffloadPolicy) -> None:
    assert label(policy.choose(OffloadView.of(step(slower=30.0)))) == "all on gpu"


def test_idle_power_keeps_passes_on_the_gpu_where_the_published_rule_moves_them() -> None:
    dear = OffloadView.of(step(slower=0.5, card_idle_w=55.0))
    assert label(EdiRule().choose(dear)) == label(OffloadOracle().choose(dear)) == "all on gpu"
    published = EdiPublished().choose(dear)
    assert published == BOTH
    assert (regret(dear, published) or 0.0) > 0.02


def test_idle_power_decides_nothing_where_the_device_stays_on() -> None:
    stays = OffloadView.of(step(slower=0.5, card_idle_w=55.0, card_stays=True))
    assert EdiRule().choose(stays) == OffloadOracle().choose(stays) == BOTH


def test_two_passes_pay_for_a_device_that_neither_pays_for_alone() -> None:
    shared = OffloadView.of(step(pass_s=1.0, slower=0.5, card_idle_w=25.0), StepShape(chunks=8))
    gpu_j = shared.step(all_gpu(shared.table)).energy_j
    for stage in (Stage.REWARD, Stage.REFERENCE):
        alone_j = shared.step({stage: Where.CONCURRENT}).energy_j
        assert gpu_j is not None and alone_j is not None and alone_j > gpu_j
    assert EdiRule(margin=0.0).choose(shared) == BOTH


def test_a_plan_stays_until_another_one_is_better_by_the_margin() -> None:
    view = OffloadView.of(step(slower=0.5, card_idle_w=20.0), StepShape(chunks=8))
    gpu_j, both_j = (view.objective.cost_j(view.step(plan)) for plan in (all_gpu(view.table), BOTH))
    assert gpu_j is not None and both_j is not None
    gain = 1 - both_j / gpu_j
    assert gain > 0
    assert label(EdiRule(margin=gain + 0.01).choose(view)) == "all on gpu"
    assert EdiRule(margin=gain - 0.01).choose(view) == BOTH
    back = OffloadView.of(view.table, view.shape, current=BOTH)
    assert EdiRule(margin=0.5).choose(back) == BOTH


def test_a_pass_whose_joules_nobody_knows_stays() -> None:
    view = OffloadView.of(step(slower=0.5, known=False), StepShape(chunks=8))
    plan = EdiRule(margin=0.0).choose(view)
    assert plan[Stage.REWARD] is Where.GPU
    assert "reward: joules not known" in EdiRule().reason(view, plan)


def test_the_price_of_time_buys_a_shorter_step() -> None:
    table = step(slower=0.5, card_idle_w=55.0)
    dear_time = OffloadView.of(table, StepShape(chunks=8), objective=Objective(time_w=1000.0))
    assert EdiRule().choose(dear_time) == OffloadOracle().choose(dear_time) == BOTH


def costs(low_w: float, high_w: float) -> st.SearchStrategy[tuple[float, float]]:
    return st.tuples(st.floats(0.2, 10.0), st.floats(low_w, high_w))


@st.composite
def views(draw: st.DrawFn) -> OffloadView:
    found: dict[tuple[Stage, Hardware], StageCost] = {}
    for stage in Stage:
        duration_s, power_w = draw(costs(200.0, 700.0))
        found[stage, Hardware.GPU] = StageCost(
            duration_s=duration_s, energy_j=duration_s * power_w, provenance=Provenance.MEASURED
        )
        if stage not in (Stage.GENERATE, Stage.TRAIN):
            slower, card_w = draw(st.floats(0.3, 10.0)), draw(st.floats(20.0, 200.0))
            found[stage, Hardware.OFFLOAD] = StageCost(
                duration_s=duration_s * slower,
                energy_j=duration_s * slower * card_w,
                provenance=Provenance.MEASURED,
            )
    table = CostTable(
        costs=found,
        tokens=1000.0,
        gpu_idle_w=draw(st.floats(50.0, 150.0)),
        gpu_idle_provenance=Provenance.MEASURED,
        card_idle_w=draw(st.floats(0.0, 100.0)),
        card_idle_provenance=Provenance.MEASURED,
        card_stays=draw(st.booleans()),
    )
    shape = StepShape(
        micro_batches=draw(st.sampled_from((1, 4, 8))),
        chunks=draw(st.sampled_from((1, 8))),
        late=draw(st.sampled_from(tuple(Late))),
    )
    return OffloadView.of(table, shape)


@settings(max_examples=60, deadline=None)
@given(views())
def test_no_plan_within_the_bound_beats_the_oracle(view: OffloadView) -> None:
    on_gpu = view.step(all_gpu(view.table))
    best_j = view.objective.cost_j(view.step(OffloadOracle().choose(view)))
    assert best_j is not None
    for plan in plans(view.table):
        found = view.step(plan)
        if view.objective.allows(found, on_gpu):
            assert (view.objective.cost_j(found) or 0.0) >= best_j * (1 - 1e-9)


REGRET = 0.30
"""Most that the rule may lose to the oracle on any drawn step. Of 6,000, the worst lost 0.16."""
MEAN_REGRET = 0.003
"""The same in the mean. Of 6,000: 0.0011."""


@settings(max_examples=150, deadline=None, derandomize=True)
@given(views())
def test_the_rule_is_within_its_regret_and_never_late(view: OffloadView) -> None:
    plan = EdiRule().choose(view)
    lost = regret(view, plan)
    assert lost is not None and lost <= REGRET
    assert view.objective.allows(view.step(plan), view.step(all_gpu(view.table)))
    assert len(candidates(view)) <= 7


def test_the_rule_is_near_the_oracle_in_the_mean() -> None:
    rng = np.random.default_rng(0)
    drawn = [OffloadView.of(*task.draw(rng)) for task in TASKS for _ in range(60)]
    assert np.mean([regret(view, EdiRule().choose(view)) for view in drawn]) < MEAN_REGRET
    assert np.mean([regret(view, EdiPublished().choose(view)) for view in drawn]) > 10 * MEAN_REGRET


def test_the_shipped_network_has_the_published_widths_and_is_small() -> None:
    network = Network.load(SHIPPED)
    assert [w.shape for w in network.weights] == [(FEATURES, 256), (256, 128), (128, 64), (64, 9)]
    assert network.about["settings"]["hidden"] == list(HIDDEN)
    assert sum(network.about["tasks"].values()) == pytest.approx(1.0)
    assert SHIPPED.stat().st_size < 200_000


def test_the_published_network_has_relu_behind_layernorm_and_learned_from_the_published_reward() -> None:
    network = NormedNetwork.load(PPO_PUBLISHED)
    assert [norm.shape for norm in network.norms] == [(2, width) for width in HIDDEN]
    assert (network.about["network"], network.about["reward"]) == ("published", "published")
    assert network.about["tasks"] == Network.load(SHIPPED).about["tasks"] == {task.name: task.weight for task in TASKS}
    assert PPO_PUBLISHED.stat().st_size < 200_000
    layers = [torch.nn.Linear(FEATURES, 256), torch.nn.LayerNorm(256), torch.nn.ReLU(), torch.nn.Linear(256, 9)]
    same = torch.nn.Sequential(*layers).double()
    state = {name: tensor.numpy() for name, tensor in same.state_dict().items()}
    small = NormedNetwork(
        weights=(state["0.weight"].T, state["3.weight"].T),
        biases=(state["0.bias"], state["3.bias"]),
        norms=(np.array([state["1.weight"], state["1.bias"]]),),
        about={},
    )
    inputs = np.random.default_rng(0).normal(size=(5, FEATURES))
    assert small(inputs) == pytest.approx(same(torch.from_numpy(inputs)).detach().numpy(), abs=1e-9)


class _Away(Network):
    """Wants every pass beside the training."""

    def __call__(self, inputs: Array) -> Array:
        return np.tile([0.0, 0.0, 1.0], (len(inputs), len(MOVABLE)))


def test_algorithm_1_falls_through_to_the_gpu_where_queue_or_latency_forbid() -> None:
    away = _Away(weights=(), biases=(), about={})
    streams = OffloadView.of(step(slower=1.0), StepShape(chunks=8))
    assert Algorithm1(away).choose(streams) == PpoPublished(away).choose(streams) == BOTH
    assert label(Algorithm1(away, queue_max=8).choose(streams)) == "reward concurrent"
    assert latency_budget_s(streams) == pytest.approx(8.0 / 3)
    assert label(Algorithm1(away).choose(OffloadView.of(step(slower=2.6)))) == label(BOTH)
    assert label(Algorithm1(away).choose(OffloadView.of(step(slower=2.8)))) == "all on gpu"


def test_features_are_finite_whatever_is_unknown() -> None:
    seen = OffloadView.of(step(known=False))
    assert features(seen).shape == (FEATURES,)
    assert np.isfinite(features(seen)).all()


@pytest.mark.parametrize("name", ["edi-rule", "oracle", "ppo"])
def test_nothing_moves_on_joules_that_nobody_knows(name: str) -> None:
    rng, policy, moved = np.random.default_rng(0), open_offload_policy(name), 0
    for task in TASKS * 5:
        table, shape = task.draw(rng)
        moved += label(policy.choose(OffloadView.of(table, shape))) != "all on gpu"
        unknown = StageCost(duration_s=1.0, energy_j=None, provenance=Provenance.MISSING)
        costs = {**table.costs, (Stage.GENERATE, Hardware.GPU): unknown}
        no_idle = {"card_idle_w": None, "card_idle_provenance": Provenance.MISSING, "card_stays": False}
        for dark in (dataclasses.replace(table, costs=costs), dataclasses.replace(table, **no_idle)):  # type: ignore[arg-type]
            assert label(policy.choose(OffloadView.of(dark, shape))) == "all on gpu"
    assert moved > 3


def test_names_open_and_others_are_refused() -> None:
    assert [open_offload_policy(name).name for name in NAMES] == list(NAMES)
    with pytest.raises(ConfigError, match="Did you mean 'edi-rule'"):
        open_offload_policy("edi_rule")
