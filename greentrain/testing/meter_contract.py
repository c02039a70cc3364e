"""What every power meter must do, as a pytest class, in one line or to inherit from.

    TestMyMeter = MeterContract.of(MyMeter)

    class TestMyMeter(MeterContract):
        @pytest.fixture
        def meter(self) -> Iterator[PowerMeter]:
            ...

        def vanish(self) -> None:        # optional: take the hardware away
            ...

The module needs pytest only to run, not to import.
"""

import math
import threading
import time
from collections.abc import Callable
from typing import Any

from greentrain.testing.suites import filled, opened
from greentrain.types import PowerMeter, PowerSample, Provenance


class MeterContract:
    """Checks of the PowerMeter protocol. Subclass it as ``Test...`` and give it a fixture ``meter``."""

    reads = 5
    """How often a check reads the meter."""
    all_at_once = True
    """False for a meter that reads some sensors less often than others: a read may then leave sensors out."""
    threads_end_s = 5.0
    """Threads must be gone this long after ``close`` (s)."""

    @classmethod
    def of(cls, make: Callable[[], PowerMeter], **settings: Any) -> "type[MeterContract]":
        """Return the suite for the meters that ``make`` opens.

        Args:
            make: Opens a meter; it is closed after each test.
            **settings: Attributes of this class, such as ``reads``.
        """
        return filled(cls, {"meter": opened("meter", make)}, settings)

    def vanish(self) -> None:
        """Take the source away, as when a driver unloads or a file disappears; default: nothing happens."""

    def advance(self) -> None:
        """Let time pass between two reads; override where the meter runs on a test's clock."""
        time.sleep(0.01)

    def test_is_a_power_meter(self, meter: PowerMeter) -> None:
        """The object has the protocol's members."""
        assert isinstance(meter, PowerMeter)

    def test_sensors_are_unique_and_stable(self, meter: PowerMeter) -> None:
        """Uids are non-empty and unique, and neither they nor their order change by reading."""
        uids = [sensor.device.uid for sensor in meter.sensors]
        assert len(set(uids)) == len(uids)
        assert all(uids)
        for _ in range(self.reads):
            meter.read()
            self.advance()
        assert [sensor.device.uid for sensor in meter.sensors] == uids

    def test_sensors_are_described(self, meter: PowerMeter) -> None:
        """Every sensor says how it is read, how often, and, if it is missing, why."""
        for sensor in meter.sensors:
            assert sensor.method
            assert sensor.device.name
            assert math.isfinite(sensor.period_s) and sensor.period_s > 0
            assert sensor.averaging_s >= 0
            if sensor.provenance is Provenance.MISSING:
                assert sensor.note

    def test_one_sample_a_sensor_in_order(self, meter: PowerMeter) -> None:
        """A read gives one sample for each sensor, in the order of the sensors."""
        uids = [sensor.device.uid for sensor in meter.sensors]
        for _ in range(self.reads):
            got = [sample.device_uid for sample in meter.read()]
            if self.all_at_once:
                assert got == uids
            else:
                assert got == [uid for uid in uids if uid in set(got)]
            self.advance()

    def test_samples_are_well_formed(self, meter: PowerMeter) -> None:
        """A sample has joules or watts, finite and not negative, or a note that says why it has none."""
        missing = {s.device.uid for s in meter.sensors if s.provenance is Provenance.MISSING}
        for _ in range(self.reads):
            for sample in meter.read():
                _check(sample)
                if sample.device_uid in missing:
                    assert sample.missing
            self.advance()

    def test_counters_and_times_never_fall(self, meter: PowerMeter) -> None:
        """Cumulative joules and the times of the readings of one device are monotone."""
        last: dict[str, PowerSample] = {}
        for _ in range(self.reads):
            for sample in meter.read():
                before = last.get(sample.device_uid)
                if before is not None:
                    assert sample.t_s >= before.t_s
                    if sample.energy_j is not None and before.energy_j is not None:
                        assert sample.energy_j >= before.energy_j
                last[sample.device_uid] = sample
            self.advance()

    def test_never_raises_after_its_source_vanished(self, meter: PowerMeter) -> None:
        """Without its source the meter gives well-formed samples, and closes."""
        meter.read()
        self.vanish()
        for _ in range(self.reads):
            for sample in meter.read():
                _check(sample)
            self.advance()
        meter.close()

    def test_close_twice_and_read_after(self, meter: PowerMeter) -> None:
        """``close`` is idempotent; a read after it does not raise."""
        meter.read()
        meter.close()
        meter.close()
        for sample in meter.read():
            _check(sample)

    def test_leaves_no_thread(self, meter: PowerMeter) -> None:
        """Threads that the meter started, also before this test, end when it is closed."""
        before = {t for t in threading.enumerate() if not t.name.startswith("greentrain")}
        meter.read()
        meter.close()
        end_s = time.monotonic() + self.threads_end_s
        while set(threading.enumerate()) - before and time.monotonic() < end_s:
            time.sleep(0.01)
        assert set(threading.enumerate()) - before == set()


def _check(sample: PowerSample) -> None:
    assert math.isfinite(sample.t_s)
    assert sample.energy_j is None or sample.power_w is None
    for value in (sample.energy_j, sample.power_w):
        assert value is None or (math.isfinite(value) and value >= 0)
    if sample.missing:
        assert sample.note
