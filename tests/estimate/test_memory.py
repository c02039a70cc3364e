import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from greentrain.errors import ConfigError
from greentrain.estimate import hardware, shapes
from greentrain.estimate.hardware import practice_of
from greentrain.estimate.layouts import (
    Layouts,
    MemoryUse,
    ParallelLayout,
    Recompute,
    activation_bytes_per_token,
    capacity_bytes,
    held,
    memory,
)
from greentrain.estimate.model_shape import ModelShape
from greentrain.estimate.search import cost, search
from greentrain.estimate.workload import Workload
from greentrain.types import Gear

A100 = hardware.find("A100-80GB")
PRACTICE = practice_of(A100, Gear.BF16)
GPT = shapes.find("gpt-3-175b")
MOE = shapes.find("mixtral-8x7b")
WORK = Workload(tokens=3e11, sequence=2048, batch_tokens=2048 * 1536)


def of(shape: ModelShape, *layouts: ParallelLayout, workload: Workload = WORK) -> MemoryUse:
    return memory(shape, workload, Layouts.of(layouts), PRACTICE)


def test_a_layer_without_a_gate_keeps_34_bytes_a_hidden_element() -> None:
    assert activation_bytes_per_token(GPT, Recompute.SELECTIVE) == 34 * GPT.d_model


@pytest.mark.parametrize("shape", [GPT, MOE, shapes.find("deepseek-v3"), shapes.find("llama-3-8b")])
def test_computing_more_again_keeps_less(shape: ModelShape) -> None:
    kept = [activation_bytes_per_token(shape, each) for each in Recompute]
    assert kept[0] > kept[1] > kept[2] == 2 * shape.d_model


def test_the_table_of_megatron_lm_fits_where_it_ran() -> None:
    layout = ParallelLayout(tensor=8, pipeline=8, data=1, interleave=3)
    workload = dataclasses.replace(WORK, batch_tokens=64 * 2048)
    needed = of(GPT, layout, workload=workload)
    states = needed.weights + needed.gradients + needed.optimizer
    assert states[0] == pytest.approx(18 * GPT.total_parameters / 64, rel=0.03)
    assert needed.total[0] < capacity_bytes(A100, PRACTICE)


@pytest.mark.parametrize("shape", [GPT, MOE], ids=["dense", "moe"])
def test_all_devices_together_hold_every_parameter_and_not_only_the_active_ones(shape: ModelShape) -> None:
    spread = Layouts.of([ParallelLayout(tensor=1, pipeline=1, data=8, expert=8 if shape.is_moe else 1)])
    on = held(shape, spread)
    total = on.shared[0] + on.experts[0] * (8 if shape.is_moe else 1)
    assert total == pytest.approx(shape.total_parameters, rel=0.001)
    if shape.is_moe:
        assert total > 3 * shape.active_parameters


def test_experts_are_shared_out_over_those_that_hold_the_same_ones() -> None:
    layout = ParallelLayout(tensor=2, pipeline=1, data=8, expert=8, zero=1)
    on = held(MOE, Layouts.of([layout]))
    experts = 32 * 8 * 3 * 4096 * 14336
    assert on.experts[0] == experts / 8
    assert (on.shared_group[0], on.experts_group[0]) == (8, 2)
    assert of(MOE, layout).optimizer[0] == pytest.approx(12 * (on.shared[0] / 8 + experts / 16))


def test_zero_shares_out_one_term_after_another() -> None:
    plain, *shared = (of(GPT, ParallelLayout(tensor=8, pipeline=1, data=16, zero=zero)) for zero in range(4))
    gigabytes = [each.bytes_by_term(0) for each in (plain, *shared)]
    assert gigabytes[1]["optimizer"] == pytest.approx(gigabytes[0]["optimizer"] / 16)
    assert gigabytes[1]["gradients"] == gigabytes[0]["gradients"]
    assert gigabytes[2]["gradients"] == pytest.approx(gigabytes[0]["gradients"] / 16)
    assert gigabytes[3]["weights"] < gigabytes[2]["weights"]


@settings(max_examples=25)
@given(
    tensor=st.sampled_from([1, 2, 4, 8]),
    pipeline=st.sampled_from([1, 2, 4, 8]),
    data=st.sampled_from([1, 2, 16]),
    zero=st.sampled_from([0, 1, 2, 3]),
    micro=st.sampled_from([1, 2, 4]),
    recompute=st.sampled_from(list(Recompute)),
    moe=st.booleans(),
)
def test_memory_shrinks_with_every_way_to_share_and_grows_with_the_micro_batch(
    tensor: int, pipeline: int, data: int, zero: int, micro: int, recompute: Recompute, moe: bool
) -> None:
    layout = ParallelLayout(tensor=tensor, pipeline=pipeline, data=data, zero=zero, micro=micro, recompute=recompute)
    shape = MOE if moe else GPT
    leaner = [
        dataclasses.replace(layout, tensor=2 * tensor),
        dataclasses.replace(layout, data=2 * data),
        dataclasses.replace(layout, zero=min(3, zero + 1)),
    ]
    total = of(shape, layout, *leaner, dataclasses.replace(layout, micro=2 * micro)).total
    slack = 2 * 2.0 * held(shape, Layouts.of([layout])).all[0] * pipeline / shape.layers  # layers that ZeRO 3 gathers
    assert np.all(total[1:4] <= total[0] + slack * (zero >= 2))
    assert total[4] > total[0]


def test_what_does_not_fit_is_refused_with_the_largest_term() -> None:
    with pytest.raises(ConfigError, match=r"8 x A100-80GB: the leanest layout .*largest term is optimizer"):
        search(GPT, WORK, A100, 8)
    long = dataclasses.replace(WORK, sequence=131_072, batch_tokens=131_072 * 64)
    with pytest.raises(ConfigError, match=r"largest term is activations .*Give shorter sequences"):
        cost(shapes.find("llama-3-8b"), long, A100, ParallelLayout(tensor=1, pipeline=4, data=1))
    with pytest.raises(ConfigError, match=r"needs 3\d\d\d\.\d GB of 73\.6 GB a device"):
        cost(GPT, WORK, A100, ParallelLayout(tensor=1, pipeline=1, data=1))


def test_the_terms_add_up_and_none_is_negative() -> None:
    layouts = [
        ParallelLayout(tensor=t, pipeline=p, data=4, zero=z) for t, p, z in itertools.product((1, 8), (1, 12), (0, 3))
    ]
    needed = of(MOE, *layouts)
    for index in range(len(layouts)):
        terms = needed.bytes_by_term(index)
        assert min(terms.values()) >= 0
        assert sum(terms.values()) == pytest.approx(float(needed.total[index]))
