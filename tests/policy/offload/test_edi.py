"""The Energy Density Index against means worked out by hand."""

import dataclasses

import pytest

from greentrain.errors import ConfigError
from greentrain.policy.offload.edi import Basis, EdiMatrix, EdiReading, measured_table, readings
from greentrain.policy.offload.stages import CostTable, Hardware, Stage, StageCost, Where
from greentrain.policy.offload.timeline import Late, StepShape
from greentrain.types import Provenance

AT = (Stage.REWARD, Hardware.OFFLOAD)


def reading(
    active_j: float | None, idle_j: float | None = 0.0, provenance: Provenance = Provenance.MEASURED
) -> EdiReading:
    return EdiReading(
        stage=Stage.REWARD,
        hardware=Hardware.OFFLOAD,
        tokens=10.0,
        busy_s=1.0,
        active_j=active_j,
        idle_j=idle_j,
        provenance=Provenance.MISSING if active_j is None else provenance,
    )


def test_the_published_mean_begins_with_the_first_step() -> None:
    matrix = EdiMatrix(alpha=0.05, averaged=False)
    for joules in (100.0, 200.0, 300.0):
        matrix.update(reading(joules))
    by_hand = 10.0
    for value in (20.0, 30.0):
        by_hand = 0.95 * by_hand + 0.05 * value
    assert matrix.value(*AT) == pytest.approx(by_hand) == pytest.approx(11.475)


def test_ours_is_the_plain_mean_until_a_step_weighs_alpha() -> None:
    matrix = EdiMatrix(alpha=0.25)
    for joules in (100.0, 200.0, 300.0, 400.0):
        matrix.update(reading(joules))
    assert matrix.value(*AT) == pytest.approx(25.0)
    matrix.update(reading(500.0))
    assert matrix.value(*AT) == pytest.approx(0.75 * 25.0 + 0.25 * 50.0)
    assert matrix.cell(*AT).count == 5
    assert matrix.cell(*AT).s_per_token == pytest.approx(0.1)


def test_idle_joules_count_in_ours_and_not_in_the_published_index() -> None:
    matrix = EdiMatrix()
    matrix.update(reading(100.0, 50.0))
    assert matrix.value(*AT, Basis.ACTIVE) == pytest.approx(10.0)
    assert matrix.value(*AT, Basis.WHOLE) == pytest.approx(15.0)


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -1.0])
def test_joules_that_are_none_are_unknown_and_spoil_no_mean(broken: float) -> None:
    matrix = EdiMatrix()
    matrix.update(reading(100.0, 50.0))
    matrix.update(reading(broken, provenance=Provenance.MEASURED))
    matrix.update(reading(100.0, broken))
    assert matrix.value(*AT) == pytest.approx(15.0)
    assert (matrix.cell(*AT).count, matrix.cell(*AT).unknown) == (2, 1)
    assert matrix.cell(*AT).provenance is Provenance.MEASURED
    with pytest.raises(ConfigError, match="busy_s"):
        matrix.update(dataclasses.replace(reading(1.0), busy_s=broken))


def test_what_nobody_knows_stays_unknown_and_changes_nothing() -> None:
    matrix = EdiMatrix()
    assert matrix.value(*AT) is None
    matrix.update(reading(None))
    assert matrix.value(*AT) is None
    assert (matrix.cell(*AT).count, matrix.cell(*AT).unknown) == (0, 1)
    matrix.update(reading(100.0, None))
    assert matrix.value(*AT, Basis.ACTIVE) == pytest.approx(10.0)
    assert matrix.value(*AT, Basis.WHOLE) is None
    matrix.update(reading(None))
    assert matrix.value(*AT, Basis.ACTIVE) == pytest.approx(10.0)


def test_the_least_certain_joule_names_the_origin() -> None:
    matrix = EdiMatrix()
    assert matrix.cell(*AT).provenance is Provenance.MISSING
    matrix.update(reading(1.0))
    assert matrix.cell(*AT).provenance is Provenance.MEASURED
    matrix.update(reading(1.0, provenance=Provenance.MODELLED))
    assert matrix.cell(*AT).provenance is Provenance.MODELLED


def test_wrong_values_are_refused() -> None:
    with pytest.raises(ConfigError, match="alpha=0"):
        EdiMatrix(alpha=0)
    with pytest.raises(ConfigError, match="above 0"):
        EdiMatrix().update(
            EdiReading(
                stage=Stage.REWARD,
                hardware=Hardware.GPU,
                tokens=0.0,
                busy_s=1.0,
                active_j=1.0,
                provenance=Provenance.MEASURED,
            )
        )


def cost(duration_s: float, power_w: float) -> StageCost:
    return StageCost(duration_s=duration_s, energy_j=duration_s * power_w, provenance=Provenance.MEASURED)


def two_passes() -> CostTable:
    return CostTable(
        costs={
            (Stage.GENERATE, Hardware.GPU): cost(10.0, 400.0),
            (Stage.REWARD, Hardware.GPU): cost(1.0, 400.0),
            (Stage.REWARD, Hardware.OFFLOAD): cost(1.0, 50.0),
            (Stage.REFERENCE, Hardware.GPU): cost(2.0, 400.0),
            (Stage.REFERENCE, Hardware.OFFLOAD): cost(3.0, 60.0),
            (Stage.TRAIN, Hardware.GPU): cost(6.0, 400.0),
        },
        tokens=100.0,
        gpu_idle_w=100.0,
        gpu_idle_provenance=Provenance.MEASURED,
        card_idle_w=20.0,
        card_idle_provenance=Provenance.MODELLED,
    )


def test_idle_joules_of_the_step_are_booked_to_what_the_device_is_kept_for() -> None:
    plan = {Stage.REWARD: Where.SEQUENTIAL, Stage.REFERENCE: Where.SEQUENTIAL}
    found = {(r.stage, r.hardware): r for r in readings(two_passes(), plan, StepShape(late=Late.NONE))}
    # 20 s, in which the device computes 4 s and draws 20 W for 16 s; the GPU waits for 1 s and 3 s at 100 W
    assert found[Stage.REWARD, Hardware.OFFLOAD].idle_j == pytest.approx(320.0 / 4 + 100.0)
    assert found[Stage.REFERENCE, Hardware.OFFLOAD].idle_j == pytest.approx(320.0 * 3 / 4 + 300.0)
    assert found[Stage.REFERENCE, Hardware.OFFLOAD].provenance is Provenance.MODELLED
    assert found[Stage.GENERATE, Hardware.GPU].idle_j == 0.0


def test_a_table_comes_back_out_of_what_was_measured() -> None:
    table, shape, matrix = two_passes(), StepShape(), EdiMatrix()
    for plan in ({}, {Stage.REWARD: Where.SEQUENTIAL}, {Stage.REFERENCE: Where.CONCURRENT}):
        for one in readings(table, plan, shape):
            matrix.update(one)
    back = measured_table(
        matrix.cells,
        100.0,
        gpu_idle_w=100.0,
        gpu_idle_provenance=Provenance.MEASURED,
        card_idle_w=20.0,
        card_idle_provenance=Provenance.MODELLED,
    )
    for key, known in table.costs.items():
        assert back.costs[key].duration_s == pytest.approx(known.duration_s)
        assert back.costs[key].energy_j == pytest.approx(known.energy_j)
