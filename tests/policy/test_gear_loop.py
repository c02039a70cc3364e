"""Static and scripted policies, and what the shield lets through."""

from collections import Counter
from dataclasses import replace

import pytest

from greentrain.config.schema import GreenConfig, PolicyConfig, PrecisionConfig
from greentrain.control.gears import GearLoop, ScriptedPolicy, StaticPolicy, open_policy
from greentrain.errors import ConfigError
from greentrain.types import Decision, Gear, Observation, Policy


def at(step: int, gear: Gear = Gear.BF16) -> Observation:
    return Observation(step=step, gear=gear)


def test_a_schedule_holds_from_its_step_on() -> None:
    policy = ScriptedPolicy([(0, Gear.BF16), (3, Gear.FP8), (5, Gear.FP32)])
    assert [policy.decide(at(step)).gear for step in range(7)] == ["bf16"] * 3 + ["fp8"] * 2 + ["fp32"] * 2
    assert policy.decide(at(4)).reason == "schedule"


def test_the_configuration_opens_its_policy() -> None:
    precision = PrecisionConfig(gears=("bf16", "fp8"))
    assert open_policy(PolicyConfig(), precision).decide(at(0)).gear is Gear.BF16
    assert open_policy(PolicyConfig(gear="fp8"), precision).decide(at(0)).gear is Gear.FP8
    scripted = open_policy(PolicyConfig(name="scripted", schedule=((0, "fp8"), (2, "bf16"))), precision)
    assert isinstance(scripted, Policy)
    assert [scripted.decide(at(i)).gear for i in range(3)] == ["fp8", "fp8", "bf16"]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.37, 0.5, 1.0])
def test_fp8_keeps_to_its_share_at_every_step(share: float) -> None:
    loop = GearLoop(StaticPolicy(Gear.FP8), (Gear.FP8, Gear.BF16), fp8_max_share=share)
    done: Counter[Gear] = Counter()
    for step in range(200):
        done[loop.decide(at(step), done, {}).gear] += 1
        assert done[Gear.FP8] <= share * (step + 1) + 1e-9
    assert done[Gear.FP8] == pytest.approx(200 * share, abs=1)


def test_a_vetoed_gear_is_replaced_and_the_reason_told() -> None:
    loop = GearLoop(StaticPolicy(Gear.FP8), (Gear.FP8, Gear.FP32, Gear.BF16))
    assert loop.decide(at(0), {}, {Gear.FP8: "too noisy"}) == Decision(gear=Gear.BF16, reason="too noisy")
    assert loop.decide(at(0), {}, {Gear.FP8: "too noisy", Gear.BF16: "broken"}).gear is Gear.FP32


@pytest.mark.parametrize(
    ("bound", "extra", "asked", "share"),
    [
        (0.002, 0.008, 1.0, 0.25),
        (0.002, 0.008, 0.1, 0.1),
        (0.01, 0.008, 1.0, 1.0),
        (0.0, -0.003, 1.0, 1.0),
        (0.0, 0.1, 1.0, 0.0),
    ],
)
def test_a_bound_on_the_loss_bounds_the_share_of_fp8(bound: float, extra: float, asked: float, share: float) -> None:
    given = PrecisionConfig(max_extra_nats=bound, fp8_extra_nats=extra, fp8_max_share=asked)
    assert given.fp8_max_share == pytest.approx(share)
    assert replace(given, probe_every=5).fp8_max_share == given.fp8_max_share
    loop = GearLoop(StaticPolicy(Gear.FP8), (Gear.FP8, Gear.BF16), given.fp8_max_share)
    assert loop.decide(at(99), {Gear.FP8: 26, Gear.BF16: 74}, {}).gear is (Gear.FP8 if share == 1.0 else Gear.BF16)


def test_a_run_of_fp8_alone_has_nothing_to_go_back_to() -> None:
    loop = GearLoop(StaticPolicy(Gear.FP8), (Gear.FP8,))
    assert loop.decide(at(0), {}, {Gear.FP8: "too noisy"}).gear is Gear.FP8


def test_where_every_precise_gear_is_ruled_out_fp8_stands_in() -> None:
    loop = GearLoop(StaticPolicy(Gear.BF16), (Gear.BF16, Gear.FP8))
    assert loop.decide(at(0), {}, {Gear.BF16: "budget"}) == Decision(gear=Gear.FP8, reason="budget")
    assert loop.decide(at(0), {}, {Gear.BF16: "budget", Gear.FP8: "noise"}).gear is Gear.BF16
    limited = GearLoop(StaticPolicy(Gear.BF16), (Gear.BF16, Gear.FP8), fp8_max_share=0.5)
    assert limited.decide(at(9), {Gear.FP8: 8, Gear.BF16: 1}, {Gear.BF16: "budget"}).gear is Gear.BF16


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"precision": {"gears": ["bf17"]}}, ["precision.gears", "bf17", "Did you mean 'bf16'"]),
        ({"precision": {"gears": ["bf16", "bf16"]}}, ["twice"]),
        ({"precision": {"gears": ["fp8"], "fp8_max_share": 0.4}}, ["only gear", "add bf16"]),
        ({"precision": {"gears": ["fp8"], "fp8_max_share": 1.2}}, ["fp8_max_share", "1.2", "between 0 and 1"]),
        ({"precision": {"max_extra_nats": 0.01}}, ["max_extra_nats is 0.01", "not guessed", "greentrain compare"]),
        (
            {"precision": {"gears": ["fp8"], "max_extra_nats": 0.01, "fp8_extra_nats": 0.02}},
            ["fp8_max_share is 0.5", "only gear"],
        ),
        ({"policy": {"shift_s": 30.0, "decide_s": 10.0}}, ["policy.shift_s is 30", "decide_s, which is 10"]),
        ({"precision": {"gears": ["fp8"], "gamma": 0}}, ["precision.gamma is 0.0", "between"]),
        ({"precision": {"gears": ["fp8"], "gamma": "measure"}}, ["Did you mean 'measured'"]),
        ({"precision": {"gears": ["fp8"], "backend": "te"}}, ["precision.backend", "transformer_engine"]),
        ({"precision": {"gears": ["fp8"], "eval_gear": "bf16"}}, ["eval_gear", "not among"]),
        ({"policy": {"gear": "fp8"}}, ["policy asks for the gear 'fp8'", "add it"]),
        ({"precision": {"gears": ["bf16"]}, "policy": {"name": "scripted"}}, ["policy.schedule", "[[0, bf16]"]),
        (
            {"precision": {"gears": ["bf16"]}, "policy": {"name": "scripted", "schedule": [[1, "bf16"]]}},
            ["start at 0"],
        ),
        (
            {"precision": {"gears": ["bf16"]}, "policy": {"name": "scripted", "schedule": ["bf16"]}},
            ["policy.schedule", "list of [step, gear]"],
        ),
        (
            {"precision": {"gears": ["bf16"]}, "policy": {"name": "scripted", "schedule": [[0, "bf16"], [5, "fp8"]]}},
            ["'fp8'", "precision.gears"],
        ),
        ({"policy": {"name": "mcp"}}, ["policy.name", "static, scripted", "Did you mean 'mpc'"]),
        ({"policy": {"name": "mpc"}}, ["policy.tokens and policy.deadline_h must be set"]),
        ({"policy": {"name": "mpc", "tokens": 0.0, "deadline_h": 1}}, ["policy.tokens is 0.0", "between 1 and"]),
        ({"policy": {"name": "mpc", "tokens": 1e9, "deadline_h": -1}}, ["policy.deadline_h is -1.0"]),
        ({"carbon": {"signal": "gb", "zone": "GB", "speed": 10}}, ["'gb' is asked as it is now"]),
        ({"carbon": {"replay_start": "2022-06-01T00:00"}}, ["carbon.replay_start", "append Z"]),
    ],
)
def test_wrong_sections_fail_at_once(sections: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        GreenConfig.load(sections)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_schedule_may_be_a_mapping() -> None:
    loaded = GreenConfig.load(
        {"precision": {"gears": ["bf16", "fp8"]}, "policy": {"name": "scripted", "schedule": {0: "bf16", 9: "fp8"}}}
    )
    assert loaded.policy.schedule == ((0, "bf16"), (9, "fp8"))


def test_gears_of_8_and_4_bits_share_one_share_and_none_stands_in_for_another() -> None:
    gears = (Gear.NVFP4, Gear.MXFP8, Gear.BF16)
    loop = GearLoop(StaticPolicy(Gear.NVFP4), gears, fp8_max_share=0.5)
    done = {Gear.NVFP4: 1, Gear.MXFP8: 1, Gear.BF16: 1}
    said = loop.decide(Observation(step=3, gear=Gear.NVFP4), done, {})
    assert said.gear is Gear.BF16 and said.reason == "NVFP4 has had its share of 50% of the steps"
    free = GearLoop(StaticPolicy(Gear.NVFP4), (Gear.NVFP4, Gear.MXFP8))
    assert free.decide(Observation(step=3, gear=Gear.NVFP4), done, {Gear.NVFP4: "noise"}).gear is Gear.MXFP8


def test_a_bound_on_the_loss_asks_for_the_cost_of_every_gear_and_keeps_to_the_largest() -> None:
    gears = ("bf16", "mxfp8", "nvfp4")
    kept = PrecisionConfig(gears=gears, max_extra_nats=0.01, mxfp8_extra_nats=0.01, nvfp4_extra_nats=0.05)
    assert kept.fp8_max_share == pytest.approx(0.2)
    with pytest.raises(ConfigError, match=r"nobody says what NVFP4 costs .*precision\.nvfp4_extra_nats"):
        PrecisionConfig(gears=gears, max_extra_nats=0.01, mxfp8_extra_nats=0.01, fp8_extra_nats=0.0)
    with pytest.raises(ConfigError, match=r"fp8_max_share is 0\.5, but no gear has more than 8 bits: add bf16"):
        PrecisionConfig(gears=("mxfp8", "nvfp4"), fp8_max_share=0.5)
