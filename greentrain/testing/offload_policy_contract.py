"""Conformance suite for policies that place the stages of an RLHF step.

For a policy of your own, in a test file::

    TestMine = OffloadPolicyContract.of(Mine)

or, to override more::

    class TestMine(OffloadPolicyContract):
        def make_policy(self) -> OffloadPolicy:
            return Mine()
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from greentrain.policy.offload.rule import OffloadOracle
from greentrain.policy.offload.stages import CostTable, Hardware, Stage, StageCost, Where, all_gpu, check
from greentrain.policy.offload.timeline import Late, StepShape
from greentrain.policy.offload.view import OffloadPolicy, OffloadView
from greentrain.testing.suites import filled
from greentrain.types import Provenance

STEPS = 24


class OffloadPolicyContract:
    """Tests that every policy must pass. Subclass it in a test file and give the method below."""

    @classmethod
    def of(cls, make: Callable[[], OffloadPolicy]) -> "type[OffloadPolicyContract]":
        """Return the suite for the policies that ``make`` returns, a fresh one at each call."""
        return filled(cls, {"make_policy": lambda _: make()}, {})

    def make_policy(self) -> OffloadPolicy:
        """Return a fresh policy."""
        raise NotImplementedError

    def make_views(self) -> list[OffloadView]:
        """Return steps of many kinds: with and without a critic, cheap and dear devices, late and early barriers."""
        return [_view(np.random.default_rng(seed)) for seed in range(STEPS)]

    def test_follows_the_protocol(self) -> None:
        """The object has a name, chooses and says why."""
        policy = self.make_policy()
        assert isinstance(policy, OffloadPolicy)
        assert policy.name

    def test_every_plan_is_legal_and_names_every_stage(self) -> None:
        """What must stay stays, what the framework cannot do is not asked for."""
        for view in self.make_views():
            for wheres in (tuple(Where), (Where.GPU, Where.SEQUENTIAL), (Where.GPU,)):
                seen = replace(view, wheres=wheres)
                plan = self.make_policy().choose(seen)
                check(plan, seen.table)
                assert set(plan) == set(seen.table.stages)
                assert set(plan.values()) <= set(wheres)

    def test_the_same_view_gives_the_same_plan(self) -> None:
        """A policy that was asked before agrees with a fresh one, and leaves the view as it was."""
        used = self.make_policy()
        for view in self.make_views():
            used.choose(view)
        for view, again in zip(self.make_views(), self.make_views(), strict=True):
            assert used.choose(view) == self.make_policy().choose(again)
            assert view == again

    def test_unknown_joules_raise_nothing(self) -> None:
        """Where joules, or idle watts, are not known, there is a legal plan and a reason all the same."""
        for view in self.make_views():
            costs = {
                key: StageCost(duration_s=cost.duration_s, energy_j=None, provenance=Provenance.MISSING)
                for key, cost in view.table.costs.items()
            }
            nothing = replace(
                view.table,
                costs=costs,
                card_idle_w=None,
                card_idle_provenance=Provenance.MISSING,
                gpu_idle_w=None,
                gpu_idle_provenance=Provenance.MISSING,
            )
            seen = OffloadView.of(nothing, view.shape)
            policy = self.make_policy()
            plan = policy.choose(seen)
            check(plan, nothing)
            assert policy.reason(seen, plan)

    def test_every_reason_can_be_read(self) -> None:
        """One line with figures in it."""
        for view in self.make_views():
            policy = self.make_policy()
            text = policy.reason(view, policy.choose(view))
            assert "\n" not in text
            assert "J" in text

    def test_a_plan_in_force_that_nobody_can_carry_out_is_no_trouble(self) -> None:
        """A stage that has gone, or moved although it must not."""
        for view in self.make_views():
            strange = {**all_gpu(view.table), Stage.GENERATE: Where.CONCURRENT}
            seen = replace(view, current=strange)
            check(self.make_policy().choose(seen), seen.table)

    def test_nothing_that_is_allowed_beats_the_oracle(self) -> None:
        """In its own model."""
        for view in self.make_views():
            step = view.step(self.make_policy().choose(view))
            best_j = view.objective.cost_j(view.step(OffloadOracle().choose(view)))
            cost_j = view.objective.cost_j(step)
            assert best_j is not None and cost_j is not None
            if view.objective.allows(step, view.step(all_gpu(view.table))):
                assert cost_j >= best_j * (1 - 1e-9)


def _view(rng: np.random.Generator) -> OffloadView:
    costs: dict[tuple[Stage, Hardware], StageCost] = {}
    slower = float(np.exp(rng.uniform(-1.0, 2.0)))
    for stage in Stage:
        if stage is Stage.CRITIC and rng.random() < 0.5:
            continue
        busy_s = float(rng.uniform(0.5, 5.0))
        costs[stage, Hardware.GPU] = _cost(busy_s, float(rng.uniform(300, 600)))
        if stage not in (Stage.GENERATE, Stage.TRAIN):
            costs[stage, Hardware.OFFLOAD] = _cost(busy_s * slower, float(rng.uniform(30, 150)))
    table = CostTable(
        costs=costs,
        tokens=1e4,
        gpu_idle_w=float(rng.uniform(60, 140)),
        gpu_idle_provenance=Provenance.MEASURED,
        card_idle_w=float(rng.uniform(5, 100)),
        card_idle_provenance=Provenance.MODELLED,
        card_stays=bool(rng.random() < 0.3),
    )
    late = (Late.NONE, Late.REFERENCE, Late.ALL)[int(rng.integers(3))]
    shape = StepShape(late=late, chunks=int(rng.choice((1, 8))), micro_batches=int(rng.choice((1, 8))))
    return OffloadView.of(table, shape)


def _cost(duration_s: float, power_w: float) -> StageCost:
    return StageCost(duration_s=duration_s, energy_j=duration_s * power_w, provenance=Provenance.MEASURED)
