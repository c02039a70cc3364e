"""Power limits: from the value found, within the range, not too often, and undone."""

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from greentrain.config.schema import PowerCapConfig
from greentrain.control.actuators import driver as driver_of_settings
from greentrain.control.actuators.driver import GpuKnobs
from greentrain.control.actuators.guardian import Guardian
from greentrain.control.actuators.power_cap import open_power_cap
from greentrain.errors import ConfigError
from greentrain.testing.fake_nvml import LEAD_S, FakeDriver, FakeGpu, NvmlCode, Wave
from greentrain.types import Topology
from tests.control.actuators.on_fake import ADMIN_W, Node, Said, alive, capping, wait_until

SET = "nvmlDeviceSetPowerManagementLimit"


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def limit_w(driver: FakeDriver, gpu: int = 0) -> float:
    return driver.state(gpu).power_limit_w


def test_fractions_are_of_the_limit_found_and_reset_gives_exactly_that(node: Node) -> None:
    driver, said = node(FakeGpu(limit_w=650.125)), Said()
    with capping(said) as cap:
        assert cap.fractions == (1.0, 0.8, 0.6) and cap.fraction == 1.0
        assert limit_w(driver) == 650.125
        assert cap.apply(0.8) and limit_w(driver) == 520.0 and cap.fraction == 0.8
        assert cap.apply(0.6) and limit_w(driver) == 390.0
        assert cap.apply(1.0) and limit_w(driver) == 650.125 and cap.fraction == 1.0
        assert cap.apply(0.6)
        cap.reset()
        cap.reset()
        assert limit_w(driver) == 650.125 and cap.fraction == 1.0
        assert cap.apply(0.8)
    assert limit_w(driver) == 650.125
    assert said == [] and driver.init_depth == 0


def test_each_change_is_marked_as_devices_draw_another_power_then(node: Node) -> None:
    node(FakeGpu(limit_w=650.0))
    marks: list[tuple[str, str]] = []
    with capping(Said()) as cap:
        cap.mark = lambda kind, name: marks.append((kind, name))
        assert cap.apply(0.8) and cap.apply(0.8)
        cap.reset()
        assert marks == [("cap", "0.8"), ("cap", "1")]


def test_close_is_idempotent_and_ends_the_guardian(node: Node) -> None:
    driver, said = node(FakeGpu(limit_w=ADMIN_W)), Said()
    with capping(said) as cap:
        assert cap.guardian.pid is None, "nothing is started before the first change"
        cap.apply(0.6)
        guardian = cap.guardian.pid
        assert alive(guardian)
        cap.close()
        cap.close()
        assert not cap.apply(0.8) and limit_w(driver) == ADMIN_W
    assert wait_until(lambda: not alive(guardian)) and said == []


def test_what_an_interrupt_leaves_of_a_close_the_next_one_does(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, said = node(FakeGpu(limit_w=ADMIN_W)), Said()
    with capping(said) as cap:
        cap.apply(0.6)
        guardian = cap.guardian.pid

        def interrupt(*_: object) -> bool:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(cap, "_beside", interrupt)
            with pytest.raises(KeyboardInterrupt):
                cap.close()
        assert not cap.apply(0.8)
        cap.close()
        assert limit_w(driver) == ADMIN_W
    assert wait_until(lambda: not alive(guardian)) and said == []


def test_a_limit_lowered_before_the_first_change_is_the_one_to_put_back(node: Node) -> None:
    driver, said = node(FakeGpu(limit_w=ADMIN_W)), Said()
    with capping(said) as cap:
        driver.update(0, limit_w=500)
        assert cap.apply(0.8) and limit_w(driver) == 400
    assert limit_w(driver) == 500 and said == []


def test_a_lower_limit_in_force_is_what_fractions_are_of(node: Node) -> None:
    driver, said = node(FakeGpu(limit_w=ADMIN_W, enforced_w=500.0)), Said()
    with capping(said) as cap:
        assert cap.apply(0.8) and limit_w(driver) == 400
    assert limit_w(driver) == ADMIN_W


def test_fractions_below_the_cards_range_are_left_out_and_told(node: Node) -> None:
    said = Said()
    node(FakeGpu(limits_w=(500.0, 700.0, 700.0), limit_w=ADMIN_W))
    with capping(said) as cap:
        assert cap.fractions == (1.0, 0.8)
        assert "0.6 of the limit found are left out" in said[0] and "500 to 700 W" in said[0]
        assert not cap.apply(0.6) and not cap.apply(0.6) and not cap.apply(1.2) and not cap.apply(float("nan"))
        assert sum("outside the range" in sentence for sentence in said) == 3


def test_fractions_that_are_all_outside_are_an_error(node: Node) -> None:
    driver = node(FakeGpu(limits_w=(600.0, 700.0, 700.0), limit_w=ADMIN_W))
    with pytest.raises(ConfigError, match=r"0\.5, 0\.2 of the limit found is outside .* 600 to 700 W.*0\.923 to 1"):
        open_power_cap(PowerCapConfig(fractions=(1.0, 0.5, 0.2)), Topology(), Said())
    assert driver.init_depth == 0
    with capping(Said()) as cap:  # the default list is nobody's wish
        assert cap.fractions == (1.0,)


def test_too_soon_is_false_but_the_way_back_is_open(node: Node) -> None:
    driver, said, hand = node(FakeGpu(limit_w=ADMIN_W)), Said(), Hand()
    with capping(said, dwell_s=10.0, clock=hand) as cap:
        assert cap.apply(0.8)
        hand.now_s += 9.9
        assert cap.apply(0.8), "what is set is set"
        assert not cap.apply(0.6) and not cap.apply(1.0) and limit_w(driver) == 520
        assert cap.apply(0.6, at_once=True) and limit_w(driver) == 390
        cap.reset()
        assert limit_w(driver) == ADMIN_W
        assert not cap.apply(0.6)
        hand.now_s += 10.0
        assert cap.apply(0.6)
    assert said == []


def test_small_changes_are_not_made(node: Node) -> None:
    driver, said = node(FakeGpu(limit_w=ADMIN_W)), Said()
    with capping(said, fractions=(1.0, 0.8, 0.79, 0.78)) as cap:
        assert cap.apply(0.8)
        sets = driver.state(0).power_limit_sets
        assert cap.apply(0.79)  # 6.5 W; 2 % of the range are 10 W
        assert limit_w(driver) == 520 and driver.state(0).power_limit_sets == sets
        assert cap.apply(0.78) and limit_w(driver) == 507


def test_a_driver_that_rounds_is_read_back(node: Node) -> None:
    driver, said = node(FakeGpu(limit_w=ADMIN_W, limit_step_w=5.0)), Said()
    with capping(said, fractions=(1.0, 0.801, 0.62)) as cap:
        assert cap.apply(0.62) and limit_w(driver) == 400  # 403 W were said
        assert cap.apply(0.801) and limit_w(driver) == 520
    assert limit_w(driver) == ADMIN_W and said == []


def test_a_limit_that_is_not_what_was_set_is_somebody_elses(node: Node) -> None:
    driver, said = node(FakeGpu(limit_w=600.0, limit_step_w=300.0)), Said()
    with capping(said) as cap:
        assert not cap.apply(0.8)
        assert "was set to 480 W and reads 300 W" in said[0]
    assert limit_w(driver) == 300 and len(said) == 1


def test_energy_falls_with_the_limit(node: Node) -> None:
    driver, said = node(FakeGpu(limit_w=ADMIN_W, power=(Wave(low_w=600.0),), obeys_limit=True)), Said()
    with capping(said) as cap:
        cap.apply(0.6)
        capped_s = driver.update(0)
        assert driver.true_energy_j(0, capped_s, capped_s + 1.0) == pytest.approx(390.0)
        cap.apply(1.0)
        freed_s = driver.update(0)
        assert driver.true_energy_j(0, freed_s, freed_s + 1.0) == pytest.approx(600.0)


def test_an_administrators_hand_is_final(node: Node) -> None:
    driver, said = node(FakeGpu(limit_w=ADMIN_W), FakeGpu(limit_w=600.0)), Said()
    with capping(said) as cap:
        assert cap.limit_w == ADMIN_W + 600
        assert cap.apply(0.6) and limit_w(driver, 1) == 360
        driver.update(0, limit_w=555)
        assert not cap.apply(0.8)
        assert (limit_w(driver, 0), limit_w(driver, 1)) == (555, 600), "his stays, the other is put back"
        assert not cap.apply(0.8) and cap.fraction == 1.0
        cap.reset()
    assert limit_w(driver) == 555
    assert len(said) == 1 and "is now 555 W, neither the 650 W that were found nor 390 W" in said[0]


def test_his_hand_is_seen_at_the_end_too(node: Node) -> None:
    driver, said = node(FakeGpu(limit_w=ADMIN_W)), Said()
    with capping(said) as cap:
        assert cap.apply(0.6)
        driver.update(0, limit_w=555)
    assert limit_w(driver) == 555
    assert len(said) == 1 and "it stays" in said[0]


def test_his_hand_is_seen_while_the_limit_is_to_stay(node: Node) -> None:
    driver, said, hand = node(FakeGpu(limit_w=ADMIN_W)), Said(), Hand()
    with capping(said, clock=hand) as cap:
        assert cap.apply(0.6)
        driver.update(0, limit_w=555)
        hand.now_s += 2.0
        assert not cap.apply(0.6)
    assert limit_w(driver) == 555


def test_his_way_back_to_what_was_found_is_no_quarrel(node: Node) -> None:
    driver, said = node(FakeGpu(limit_w=ADMIN_W)), Said()
    with capping(said) as cap:
        assert cap.apply(0.6)
        driver.update(0, limit_w=ADMIN_W)
        assert cap.apply(0.8) and limit_w(driver) == 520
    assert limit_w(driver) == ADMIN_W and said == []


def opened_none(said: Said, **config: Any) -> None:
    assert open_power_cap(PowerCapConfig(**config), Topology(), said) is None
    assert len(said) == 1, said


def test_a_missing_right_is_named_with_its_remedy(node: Node) -> None:
    driver, said = node(FakeGpu(may_set=False, limit_w=ADMIN_W)), Said()
    opened_none(said)
    for word in ("may not set them", "CAP_SYS_ADMIN", "--cap-add SYS_ADMIN", "sudo nvidia-smi -i <uuid> -pl <watts>"):
        assert word in said[0]
    assert driver.init_depth == 0 and limit_w(driver) == ADMIN_W


def test_a_card_without_limits_is_told(node: Node) -> None:
    said = Said()
    node(FakeGpu(errors={"nvmlDeviceGetPowerManagementLimitConstraints": NvmlCode.NOT_SUPPORTED}))
    opened_none(said)
    assert "has none that can be set" in said[0]


def test_no_driver_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    def absent() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    said = Said()
    opened_none(said)
    assert "power limits are left alone: NVML cannot be initialised" in said[0]


def test_a_folder_that_cannot_be_written_is_told(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, said = node(FakeGpu(limit_w=ADMIN_W)), Said()
    (tmp_path / "file").touch()
    monkeypatch.setenv("GREENTRAIN_CLAIMS_DIR", str(tmp_path / "file" / "claims"))
    opened_none(said)
    assert "GREENTRAIN_CLAIMS_DIR names a folder" in said[0] and driver.init_depth == 0


def test_a_gpu_that_is_lost_costs_one_warning(node: Node) -> None:
    driver, said = node(FakeGpu(limit_w=ADMIN_W)), Said()
    with capping(said) as cap:
        assert cap.apply(0.6)
        driver.update(0, lost=True)
        time.sleep(2 * LEAD_S)
        assert not cap.apply(0.8) and not cap.apply(0.6)
        assert cap.fraction == 1.0
        assert len(said) == 1 and "power limits cannot be set" in said[0] and "guardian tries again" in said[0]
        driver.update(0, lost=False)  # a card that comes back keeps nothing, so the guardian finds what is not ours
        driver.update(0, limit_w=700.0)


def test_a_right_that_is_taken_away_mid_run_costs_one_warning(node: Node) -> None:
    driver, said = node(FakeGpu(limit_w=ADMIN_W)), Said()
    with capping(said) as cap:
        assert cap.apply(0.6)
        driver.update(0, may_set=False)
        assert not cap.apply(0.8) and not cap.apply(0.6)
        assert len(said) == 1 and limit_w(driver) == 390
        driver.update(0, may_set=True)
    assert limit_w(driver) == ADMIN_W, "close tries once more"


def test_the_guardian_goes_on_trying_after_a_close_that_failed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_of_settings, "CLOSE_S", 300.0)
    driver, said = node(FakeGpu(limit_w=ADMIN_W)), Said()
    with capping(said) as cap:
        assert cap.apply(0.6)
        guardian = cap.guardian.pid
        driver.update(0, may_set=False)
        begun_s = time.monotonic()
        cap.close()
        assert time.monotonic() - begun_s < 60.0, "the end of a training does not wait for a driver that refuses"
        assert alive(guardian) and limit_w(driver) == 390
        driver.update(0, may_set=True)
        assert wait_until(lambda: limit_w(driver) == ADMIN_W and not alive(guardian))
    assert len(said) == 1 and "guardian tries again" in said[0]


@pytest.mark.parametrize(("then", "watts"), [(1.0, ADMIN_W), (0.8, 520.0), (0.6, 390.0)])
def test_after_an_error_that_passes_nothing_is_taken_for_set(node: Node, then: float, watts: float) -> None:
    driver, said = node(FakeGpu(limit_w=ADMIN_W)), Said()
    with capping(said) as cap:
        assert cap.apply(0.6)
        driver.update(0, errors={SET: NvmlCode.UNKNOWN})
        time.sleep(2 * LEAD_S)
        assert not cap.apply(0.8) and limit_w(driver) == 390
        driver.update(0, errors={SET: NvmlCode.SUCCESS})
        time.sleep(2 * LEAD_S)
        assert cap.apply(then) and cap.fraction == then and limit_w(driver) == watts
    assert limit_w(driver) == ADMIN_W


def test_one_bad_card_brings_the_others_back(node: Node) -> None:
    driver, said = node(FakeGpu(limit_w=ADMIN_W), FakeGpu(limit_w=600.0)), Said()
    with capping(said) as cap:
        assert cap.apply(0.8)
        driver.update(1, errors={SET: NvmlCode.UNKNOWN})
        time.sleep(2 * LEAD_S)
        assert not cap.apply(0.6)
        assert limit_w(driver, 0) == ADMIN_W and limit_w(driver, 1) == 480
        driver.update(1, errors={SET: NvmlCode.SUCCESS})
        time.sleep(2 * LEAD_S)
        assert cap.apply(0.6) and limit_w(driver, 1) == 360, "an error that passes is no end"
    assert (limit_w(driver, 0), limit_w(driver, 1)) == (ADMIN_W, 600.0)


def test_a_second_job_leaves_the_first_ones_gpu_alone(node: Node) -> None:
    driver, said, other = node(FakeGpu(limit_w=ADMIN_W), FakeGpu(limit_w=ADMIN_W)), Said(), Said()
    with capping(said, devices=(driver.uuid(0),)) as first:
        assert first.apply(0.6)
        with capping(other, guardian=Guardian(library=str(driver.library))) as second:
            assert second.uuids == (driver.uuid(1),)
            assert len(other) == 1 and f"process {os.getpid()} has set its power limit" in other[0]
            assert "not the administrator's" in other[0]
            assert second.apply(0.8)
            assert (limit_w(driver, 0), limit_w(driver, 1)) == (390, 520)
        assert limit_w(driver, 0) == 390
    assert limit_w(driver, 0) == ADMIN_W


def test_two_jobs_that_open_together_do_not_both_set(node: Node) -> None:
    driver, said, other = node(FakeGpu(limit_w=ADMIN_W)), Said(), Said()
    with capping(said) as first, capping(other, guardian=Guardian(library=str(driver.library))) as second:
        assert first.apply(0.6)
        assert not second.apply(0.8) and not second.apply(0.8)
        assert len(other) == 1 and "is held by" in other[0]
        assert limit_w(driver) == 390
    assert limit_w(driver) == ADMIN_W


def test_a_forked_child_can_neither_set_nor_reset(node: Node) -> None:
    driver, said = node(FakeGpu(limit_w=ADMIN_W)), Said()
    with capping(said) as cap:
        assert cap.apply(0.6)
        child = os.fork()
        if child == 0:
            done = cap.apply(0.8)
            cap.reset()
            cap.close()
            os._exit(int(done))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert limit_w(driver) == 390 and alive(cap.guardian.pid)
        assert cap.apply(0.8)


def test_a_signal_handler_that_closes_in_the_middle_wins(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, said = node(FakeGpu(limit_w=ADMIN_W)), Said()
    with capping(said) as cap:
        tell, handler = cap.guardian.tell_limit, threading.Thread(target=cap.close)

        def interrupted(*args: Any) -> None:
            tell(*args)
            handler.start()
            assert wait_until(lambda: cap._closed)

        monkeypatch.setattr(cap.guardian, "tell_limit", interrupted)
        assert not cap.apply(0.6)
        handler.join()
        assert limit_w(driver) == ADMIN_W and said == []


def test_a_driver_that_hangs_holds_the_training_up_for_a_second_once_and_is_said(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, said, answers = node(FakeGpu(limit_w=ADMIN_W)), Said(), threading.Event()
    with capping(said) as cap:
        assert cap.apply(0.8)
        monkeypatch.setattr(driver_of_settings, "CHANGE_S", 0.01)
        set_limit, calls = GpuKnobs.set_limit_mw, list[int]()

        def hang(self: GpuKnobs, limit_mw: int) -> None:
            calls.append(limit_mw)
            answers.wait(60)
            set_limit(self, limit_mw)

        monkeypatch.setattr(GpuKnobs, "set_limit_mw", hang)
        assert not cap.apply(0.6) and wait_until(lambda: bool(calls))
        assert not cap.apply(1.0), "nothing is begun beside a change that is under way"
        assert calls == [390_000] and cap.fraction == 0.8
        monkeypatch.setattr(driver_of_settings, "CHANGE_S", 60.0)
        answers.set()
        assert wait_until(lambda: cap.fraction == 0.6 and not cap._is_changing), "set late"
        assert cap.apply(0.8) and limit_w(driver) == 520
    assert limit_w(driver) == ADMIN_W
    assert len(said) == 1 and "not answered within 0.01 s: training goes on, and power limits" in said[0]


def test_a_driver_that_hangs_at_the_end_is_left_to_itself_and_the_limit_is_put_back_when_it_answers(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, said, answers = node(FakeGpu(limit_w=ADMIN_W)), Said(), threading.Event()
    with capping(said) as cap:
        assert cap.apply(0.8)
        monkeypatch.setattr(driver_of_settings, "CLOSE_S", 0.01)
        read_limit = GpuKnobs.limit_mw

        def hang(self: GpuKnobs) -> int:
            answers.wait(60)
            return read_limit(self)

        monkeypatch.setattr(GpuKnobs, "limit_mw", hang)
    guardian = cap.guardian.pid
    assert limit_w(driver) == 520 and alive(guardian) and len(said) == 1
    answers.set()
    assert wait_until(lambda: not alive(guardian)) and limit_w(driver) == ADMIN_W
