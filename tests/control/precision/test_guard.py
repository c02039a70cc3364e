"""FP8 is left under sqrt(3) and comes back above 1.5 sqrt(3)."""

import json
import math
import subprocess
import sys

import pytest

from greentrain.control.precision.guard import LEAVE, RETURN, QualityGuard
from greentrain.control.precision.noise import Noise
from greentrain.types import Gear


def noise(ratio: float, sigma: float = 2.0) -> Noise:
    return Noise(step=1, sigma={Gear.FP8: sigma}, sigma_batch=1.0, grad_norm=ratio * sigma, cost_s=0.0)


@pytest.mark.parametrize("sigma", [2.0, 1e-6])  # a large model's gradient is short
def test_hysteresis(sigma: float) -> None:
    guard = QualityGuard()
    ratios = [2.0, 9.0, 1.74, 1.73, 2.5, 2.59, 2.6, 1.8, 1.0, 3.0]
    said = [guard.judge(noise(ratio, sigma)) is not None for ratio in ratios]
    assert said == [False, False, False, True, True, True, False, False, True, False]
    assert pytest.approx(3) == LEAVE**2 and pytest.approx(1.5 * LEAVE) == RETURN


def test_it_says_why() -> None:
    guard = QualityGuard()
    assert guard.judge(noise(1.6)) == "gradient norm is 1.6 x FP8's noise, under sqrt(3) (arXiv 2505.19115)"
    assert guard.judge(noise(2.1)) == (
        "gradient norm is 2.1 x FP8's noise; it fell under sqrt(3) (arXiv 2505.19115), and FP8 comes back above 2.6"
    )


def test_what_is_not_known_is_no_veto_and_changes_nothing() -> None:
    guard = QualityGuard()
    unknown = [
        Noise(step=1, sigma={Gear.BF16: 1.0}, sigma_batch=None, grad_norm=0.1, cost_s=0.0),
        noise(math.nan),
        noise(1.0, sigma=0.0),
    ]
    assert [guard.judge(one) for one in unknown] == [None] * 3
    guard.judge(noise(1.0))
    assert [guard.judge(one) for one in unknown] == [None] * 3
    assert guard.judge(noise(2.0)) is not None


def test_it_survives_a_checkpoint() -> None:
    guard, other = QualityGuard(), QualityGuard()
    guard.judge(noise(1.0))
    other.load_state_dict(json.loads(json.dumps(guard.state_dict())))
    assert other.judge(noise(2.0)) is not None
    other.load_state_dict({})
    assert other.judge(noise(2.0)) is None


def test_it_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import greentrain.control.precision.guard"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=400)


def test_each_gear_has_a_guard_and_the_noise_of_its_own() -> None:
    seen = Noise(
        step=1, sigma={Gear.BF16: 0.1, Gear.MXFP8: 1.0, Gear.NVFP4: 4.0}, sigma_batch=3.0, grad_norm=5.0, cost_s=0.1
    )
    assert QualityGuard(Gear.MXFP8).judge(seen) is None and QualityGuard(Gear.FP8).judge(seen) is None
    assert QualityGuard(Gear.NVFP4).judge(seen) == (
        "gradient norm is 1.2 x NVFP4's noise, under sqrt(3) (arXiv 2505.19115)"
    )
    assert seen.riskiest is Gear.NVFP4 and seen.gamma == seen.gamma_in(Gear.NVFP4) > seen.gamma_in(Gear.MXFP8) > 1.0
    assert seen.sigma_ratio == pytest.approx(40.0) and seen.gamma_in(Gear.FP8) == 1.0
