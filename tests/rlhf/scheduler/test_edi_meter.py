"""Steps become readings: what lies within a window is not counted twice, and what is not known is not booked as 0."""

import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from greentrain import GreenSession
from greentrain.carbon.constant import ConstantSignal
from greentrain.fpga_backend.device import EnergyReading
from greentrain.fpga_backend.emulator.device import Emulator
from greentrain.fpga_backend.roofline.cards import U55C, assume
from greentrain.policy.offload.edi import Basis, EdiMatrix
from greentrain.policy.offload.stages import Hardware, Stage
from greentrain.rlhf.edi_meter import UNKNOWN, EdiMeter, SessionEnergy, StepRecord, StepWindow
from greentrain.types import Provenance
from tests.helpers.flat_meter import FlatMeter


class Ramp:
    """A GPU of 100 W and a card of 10 W, known up to a time."""

    def __init__(self, known_s: float = 1e9, card: bool = True) -> None:
        self.known_s, self.card = known_s, card

    def between(self, t0_s: float, t1_s: float) -> Mapping[Hardware, EnergyReading] | None:
        if t1_s > self.known_s:
            return None
        card = EnergyReading(energy_j=10.0 * (t1_s - t0_s), provenance=Provenance.MODELLED) if self.card else UNKNOWN
        return {
            Hardware.GPU: EnergyReading(energy_j=100.0 * (t1_s - t0_s), provenance=Provenance.MEASURED),
            Hardware.OFFLOAD: card,
        }


def record(*windows: StepWindow, offload_s: Mapping[Stage, float] | None = None, t0_s: float = 0.0) -> StepRecord:
    return StepRecord(t0_s=t0_s, t1_s=t0_s + 10.0, tokens=100.0, windows=windows, offload_s=offload_s or {})


def window(stage: Stage, t0_s: float, t1_s: float, waits: bool = False) -> StepWindow:
    return StepWindow(stage=stage, t0_s=t0_s, t1_s=t1_s, waits=waits)


def test_nested_windows_are_counted_once_and_the_rest_is_generation() -> None:
    matrix = EdiMatrix()
    EdiMeter(Ramp(), matrix).add(
        record(
            window(Stage.REWARD, 1.0, 2.0),
            window(Stage.GENERATE, 0.0, 4.0),
            window(Stage.REFERENCE, 7.0, 7.5, waits=True),
            window(Stage.TRAIN, 5.0, 9.0),
        )
    )
    seconds = {stage: matrix.cell(stage, Hardware.GPU).s_per_token * 100 for stage in Stage}
    assert seconds[Stage.GENERATE] == pytest.approx(3.0 + 1.0 + 1.0)
    assert seconds[Stage.REWARD] == pytest.approx(1.0)
    assert seconds[Stage.TRAIN] == pytest.approx(3.5)
    assert matrix.value(Stage.TRAIN, Hardware.GPU) == pytest.approx(3.5)
    assert matrix.value(Stage.REFERENCE, Hardware.GPU) is None


def test_a_card_is_booked_what_it_draws_above_idle_and_idle_beside_it() -> None:
    matrix = EdiMatrix()
    meter = EdiMeter(Ramp(), matrix)
    meter.add(record())
    assert (round(meter.card_idle[0] or 0.0, 6), meter.card_idle[1]) == (10.0, Provenance.MODELLED)
    assert meter.gpu_idle == (None, Provenance.MISSING)
    meter.add(record(window(Stage.REWARD, 11.0, 13.0, waits=True), offload_s={Stage.REWARD: 2.0}, t0_s=10.0))
    cell = matrix.cell(Stage.REWARD, Hardware.OFFLOAD)
    assert cell.value(Basis.ACTIVE) == pytest.approx(20.0 / 100)  # 100 J, of which 80 J idle in 8 s
    assert cell.value(Basis.WHOLE) == pytest.approx((20.0 + 80.0 + 200.0) / 100)
    assert meter.gpu_idle[0] == pytest.approx(100.0)


def test_two_cards_are_booked_no_joule_twice() -> None:
    matrix = EdiMatrix()
    meter = EdiMeter(Ramp(), matrix, cards=2)
    meter.add(record())
    busy_s = {Stage.REWARD: 6.0, Stage.REFERENCE: 6.0}  # 12 s of the 20 s that two cards have in a step
    meter.add(record(offload_s=busy_s, t0_s=10.0))
    cells = [matrix.cell(stage, Hardware.OFFLOAD) for stage in busy_s]
    assert [cell.value(Basis.ACTIVE) for cell in cells] == [pytest.approx(0.3)] * 2  # 100 J less 10 W x (10 - 12/2) s
    assert [cell.value() for cell in cells] == [pytest.approx(0.5)] * 2


def test_without_the_idle_watts_or_the_joules_of_a_card_its_index_is_unknown() -> None:
    for source in (Ramp(), Ramp(card=False)):
        matrix = EdiMatrix()
        meter = EdiMeter(source, matrix)
        if not source.card:
            meter.add(record())
        meter.add(record(offload_s={Stage.REWARD: 2.0}))
        cell = matrix.cell(Stage.REWARD, Hardware.OFFLOAD)
        assert cell.value() is None
        assert cell.unknown == 1
        assert cell.s_per_token == pytest.approx(0.02)


def test_steps_wait_for_their_joules_and_are_booked_in_order() -> None:
    matrix, source = EdiMatrix(), Ramp(known_s=5.0)
    meter = EdiMeter(source, matrix)
    meter.add(record())
    meter.add(record(t0_s=10.0))
    assert matrix.cell(Stage.GENERATE, Hardware.GPU).count == 0
    source.known_s = 12.0
    meter.settle()
    assert matrix.cell(Stage.GENERATE, Hardware.GPU).count == 1
    source.known_s = 20.0
    meter.settle()
    assert matrix.cell(Stage.GENERATE, Hardware.GPU).count == 2


def test_a_session_and_a_device_are_read_together(tmp_path: Path) -> None:
    device = Emulator(card=assume(U55C))
    config = {"run": {"dir": str(tmp_path), "report": False}, "power": {"sample_s": 0.02}}
    try:
        session = GreenSession(
            config,
            meter=FlatMeter(),
            extra_meters=[device.meter],
            signal=ConstantSignal(360.0, zone="test", source="test"),
        )
        with session:
            source = SessionEnergy(session, [device])
            t0_s = time.monotonic()
            time.sleep(0.05)
            t1_s = time.monotonic()
            found = source.between(t0_s, t1_s)
            while found is None:
                time.sleep(0.02)
                found = source.between(t0_s, t1_s)
        gpu, card = found[Hardware.GPU], found[Hardware.OFFLOAD]
        assert gpu.energy_j == pytest.approx(250.0 * (t1_s - t0_s), rel=0.05)
        assert gpu.provenance is Provenance.MODELLED  # the CPU's share is
        assert card.energy_j == pytest.approx(30.0 * (t1_s - t0_s), rel=0.2)
        assert card.provenance is Provenance.MODELLED
        assert SessionEnergy(session, [device]).between(t0_s, t1_s) == {
            Hardware.GPU: UNKNOWN,
            Hardware.OFFLOAD: UNKNOWN,
        }
    finally:
        device.close()
