"""On a real GPU: the meter reads what it says. Nothing of the card is changed."""

import time
from collections.abc import Iterator

import pytest

from greentrain import GreenSession
from greentrain.errors import MeterError
from greentrain.power.nvml import NvmlMeter
from greentrain.types import Provenance

pytestmark = pytest.mark.gpu


@pytest.fixture
def meter() -> Iterator[NvmlMeter]:
    try:
        meter = NvmlMeter()
    except MeterError as error:
        pytest.skip(f"no NVIDIA GPU here: {error}")
    yield meter
    meter.close()


def test_a_gpu_is_measured_and_its_counter_probed(meter: NvmlMeter) -> None:
    meter.probe()
    sensor = meter.sensors[0]
    assert sensor.provenance is Provenance.MEASURED
    assert sensor.read_cost_s is not None and 0 < sensor.read_cost_s < 0.05
    if sensor.tick_s is not None:
        assert 0.001 < sensor.tick_s < 1.0
    first = meter.read()[0]
    time.sleep(2.0)
    second = meter.read()[0]
    if first.energy_j is None or second.energy_j is None:
        assert second.power_w is not None and 5 < second.power_w < 2000
    else:
        assert 5 < (second.energy_j - first.energy_j) / (second.t_s - first.t_s) < 2000


def test_work_costs_more_than_rest(meter: NvmlMeter, tmp_path_factory: pytest.TempPathFactory) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    config = {
        "run": {"dir": str(tmp_path_factory.mktemp("runs")), "report": False, "live": False},
        "power": {"meters": ["nvml"]},
    }
    with GreenSession(config) as green:
        with green.phase("rest"):
            time.sleep(3.0)
        x = torch.randn(4096, 4096, device="cuda")
        with green.phase("work"):
            until_s = time.monotonic() + 3.0
            while time.monotonic() < until_s:
                for _ in range(20):
                    x = torch.tanh(x @ x)
                torch.cuda.synchronize()
    totals = green.totals()
    assert totals.by_phase["work"] / totals.phase_s["work"] > 1.2 * totals.by_phase["rest"] / totals.phase_s["rest"]
    assert set(totals.by_provenance) == {"measured"}
