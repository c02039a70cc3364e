import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import estimator_steps
from benchmarks.estimator_runs import read_runs
from greentrain.errors import ConfigError
from greentrain.estimate import hardware, roofline, shapes
from greentrain.estimate.hardware import ETA, peak_flop_s, practice_of
from greentrain.estimate.layouts import Held, Layouts, ParallelLayout, Recompute, enumerate_layouts
from greentrain.estimate.roofline import Parts, gemm_s, rates, step_parts
from greentrain.estimate.workload import Workload
from greentrain.types import Gear
from greentrain.utils.quantities import SourceKind

H100 = hardware.find("H100")
A100 = hardware.find("A100-80GB")
LLAMA = shapes.find("llama-3-8b")
MOE = shapes.find("deepseek-v3")
WORK = Workload(tokens=1e12, sequence=4096, batch_tokens=4096 * 1024)


def parts(*layouts: ParallelLayout, shape: object = LLAMA, workload: Workload = WORK) -> Parts:
    assert isinstance(shape, type(LLAMA))
    return step_parts(shape, workload, H100, Layouts.of(layouts), practice_of(H100, workload.precision))


def test_a_large_product_reaches_the_share_of_the_peak_and_never_the_peak() -> None:
    device = rates(A100, Gear.BF16, practice_of(A100, Gear.BF16))
    size = np.array([128.0, 1024.0, 8192.0, 65536.0])
    flop_s = 2 * size**3 / gemm_s(device, size, size, size)
    assert np.all(np.diff(flop_s) > 0)
    assert 0.95 * 0.71 * 312e12 < flop_s[-1] < 0.71 * 312e12


def test_one_tile_more_than_a_wave_takes_another_wave() -> None:
    device = rates(A100, Gear.BF16, practice_of(A100, Gear.BF16))
    one, more = gemm_s(device, np.array([128.0 * 108, 128.0 * 109]), np.array([128.0]), 65536.0)
    assert 1.9 < more / one < 2.1


def test_products_of_one_launch_share_its_waves() -> None:
    device = rates(A100, Gear.BF16, practice_of(A100, Gear.BF16))
    side = np.array([512.0])  # 16 tiles: six products fill a wave of 108, the seventh begins another
    one, six, seven = (gemm_s(device, side, side, 4096.0, groups)[0] for groups in (1.0, 6.0, 7.0))
    assert six == one
    assert seven > 1.8 * six


def test_a_thin_product_waits_for_memory() -> None:
    device = rates(A100, Gear.BF16, practice_of(A100, Gear.BF16))
    took = gemm_s(device, np.array([1.0]), np.array([8192.0]), 8192.0)[0]
    assert took == pytest.approx(2 * 8192**2 / (0.85 * 2039e9), rel=0.1)


@settings(max_examples=20)
@given(
    count=st.sampled_from([1, 6, 8, 64, 96, 1000]),
    name=st.sampled_from(["llama-3-8b", "mixtral-8x7b", "deepseek-v3", "gpt-3-175b"]),
    sequence=st.sampled_from([512, 4096]),
    batch=st.sampled_from([64, 977]),
)
def test_parts_of_every_layout_are_not_negative_and_add_up(count: int, name: str, sequence: int, batch: int) -> None:
    workload = Workload(tokens=1e12, sequence=sequence, batch_tokens=sequence * batch)
    shape = shapes.find(name)
    every = enumerate_layouts(shape, workload, H100.node, [count])
    if not len(every):
        return
    found = step_parts(shape, workload, H100, every, practice_of(H100, Gear.BF16))
    columns = np.array([getattr(found, field.name) for field in dataclasses.fields(found)])
    assert np.all(np.isfinite(columns))
    assert np.all(columns >= 0)
    assert np.allclose(columns.sum(axis=0), found.step_s)
    tokens = workload.sequences * workload.sequence
    floor_s = shape.flop_per_token(sequence) * tokens / (count * peak_flop_s(H100, Gear.BF16))
    assert np.all(found.step_s > floor_s)


@settings(max_examples=20)
@given(
    tensor=st.sampled_from([1, 2, 4, 8]),
    pipeline=st.sampled_from([1, 2, 4]),
    data=st.sampled_from([1, 4, 32]),
    micro=st.sampled_from([1, 2]),
    recompute=st.sampled_from(list(Recompute)),
)
def test_twice_the_replicas_halve_the_work_and_full_recompute_adds_a_third(
    tensor: int, pipeline: int, data: int, micro: int, recompute: Recompute
) -> None:
    one = ParallelLayout(tensor=tensor, pipeline=pipeline, data=data, micro=micro, recompute=recompute)
    found = parts(one, dataclasses.replace(one, data=2 * data), dataclasses.replace(one, recompute=Recompute.FULL))
    assert found.products[1] == pytest.approx(found.products[0] / 2)
    assert found.attention[1] == pytest.approx(found.attention[0] / 2)
    assert found.bubble[1] == pytest.approx(found.bubble[0])
    again = found.recompute[2] / (found.products[2] + found.attention[2] + found.elementwise[2])
    assert 0.25 < again < 1 / 3


def test_interleaving_shortens_the_bubble_and_lengthens_the_transfers() -> None:
    one, two = ParallelLayout(tensor=1, pipeline=4, data=1), ParallelLayout(tensor=1, pipeline=4, data=1, interleave=2)
    found = parts(one, two)
    assert found.bubble[1] == pytest.approx(found.bubble[0] / 2)
    assert found.pipeline[1] == pytest.approx(2 * found.pipeline[0])


def test_one_micro_batch_through_a_pipeline_takes_as_long_as_without_it() -> None:
    one = dataclasses.replace(WORK, batch_tokens=4096)
    whole, staged = (parts(ParallelLayout(tensor=1, pipeline=p, data=1), workload=one) for p in (1, 3))
    work_s = [p.products[0] + p.attention[0] + p.elementwise[0] + p.bubble[0] for p in (whole, staged)]
    assert work_s[0] == pytest.approx(work_s[1])
    assert whole.bubble[0] == 0 < staged.bubble[0]


def test_a_shorter_last_stage_makes_room_for_the_head() -> None:
    large = shapes.find("llama-3.1-405b")
    layout = ParallelLayout(tensor=8, pipeline=16, data=1)
    short, even = (parts(layout, shape=dataclasses.replace(large, layers=n)).products[0] for n in (126, 128))
    assert 0.9 * even < short < even


def test_the_fullest_replica_counts() -> None:
    odd, even = (dataclasses.replace(WORK, batch_tokens=4096 * n) for n in (977, 1024))
    layout = ParallelLayout(tensor=1, pipeline=1, data=128)
    assert parts(layout, workload=odd).products == parts(layout, workload=even).products


def test_compressed_attention_is_known_by_the_stated_parameters_and_rounding_is_not() -> None:
    layout = ParallelLayout(tensor=1, pipeline=1, data=64)
    plain = dataclasses.replace(MOE, published_active=None, published_total=None)
    attention_share = 61 * MOE.attention_parameters / plain.active_parameters
    fewer = 1 - parts(layout, shape=MOE).products[0] / parts(layout, shape=plain).products[0]
    assert 0.1 * attention_share < fewer < 0.4 * attention_share  # 187 M a layer, where heads and widths say 237 M
    rounded = dataclasses.replace(LLAMA, published_active=7.5e9)
    assert parts(layout, shape=rounded).products == parts(layout).products


def test_a_pipeline_hides_more_of_the_traffic_to_experts() -> None:
    layout = ParallelLayout(tensor=1, pipeline=1, data=64, expert=64)
    found = parts(layout, dataclasses.replace(layout, pipeline=61), shape=MOE)
    assert found.experts[1] * 61 == pytest.approx(found.experts[0] * 0.3 / 0.5)


def test_bytes_of_replicas_by_zero() -> None:
    device = rates(H100, Gear.BF16, practice_of(H100, Gear.BF16))
    four = Layouts.of([ParallelLayout(tensor=1, pipeline=1, data=2, zero=zero) for zero in range(4)])
    none = np.zeros(4)
    on = Held(shared=none + 1e9, experts=none, shared_group=none + 2, experts_group=none + 2)
    took = roofline.data_s(on, four, none + 5, 8, device)
    assert took * device.link_bytes_s == pytest.approx(0.5e9 * np.array([4 + 4, 4 + 2, 5 * 4 + 2, 5 * (4 + 4)]))
    far = dataclasses.replace(four, tensor=four.tensor * 8)
    slower = device.link_bytes_s / device.network_bytes_s
    assert roofline.data_s(on, far, none + 5, 8, device) == pytest.approx(took * slower)


def test_gradients_hide_behind_one_micro_batch_or_behind_each() -> None:
    practice = practice_of(H100, Gear.BF16)
    two = Layouts.of([ParallelLayout(tensor=1, pipeline=1, data=2, zero=zero) for zero in (1, 3)])
    for data_s, left_s in ((10.0, (6.0, 2.0)), (1.0, (0.08, 0.08))):
        exposed = roofline.exposed_data_s(np.full(2, data_s), np.full(2, 4.0), two, np.full(2, 2.0), practice)
        assert tuple(exposed) == pytest.approx(left_s)


def test_the_work_of_a_mixture_is_that_of_its_active_parameters() -> None:
    layout = ParallelLayout(tensor=1, pipeline=1, data=1)
    found = parts(layout, shape=MOE, workload=dataclasses.replace(WORK, batch_tokens=64 * 4096))
    active = 6 * MOE.active_parameters * 64 * 4096 / 989e12
    total = 6 * MOE.total_parameters * 64 * 4096 / 989e12
    assert active < found.products[0] < 3 * active
    assert found.products[0] < total / 5


def test_experts_beyond_the_node_cost_the_network_and_few_nodes_bound_it() -> None:
    practice = practice_of(H100, Gear.BF16)
    device = rates(H100, Gear.BF16, practice)
    spread = Layouts.of([ParallelLayout(tensor=1, pipeline=1, data=256, expert=each) for each in (1, 8, 16, 64, 256)])
    took = roofline.experts_s(MOE, WORK, spread, H100.node, device, practice)
    assert took[0] == 0
    assert np.all(np.diff(took) > 0)
    everywhere = dataclasses.replace(practice, expert_nodes=dataclasses.replace(practice.expert_nodes, value=1e9))
    assert roofline.experts_s(MOE, WORK, spread, H100.node, device, everywhere)[-1] > 1.5 * took[-1]


def test_zero_three_moves_the_weights_with_every_micro_batch() -> None:
    found = parts(*(ParallelLayout(tensor=1, pipeline=1, data=64, zero=zero) for zero in range(4)))
    assert found.data[3] > found.data[1]
    assert found.optimizer[0] == pytest.approx(64 * found.optimizer[1])


def test_fp8_is_faster_where_a_device_has_it_and_refused_elsewhere() -> None:
    layout = ParallelLayout(tensor=1, pipeline=1, data=8)
    wide, narrow = (parts(layout, workload=dataclasses.replace(WORK, precision=gear)) for gear in (Gear.BF16, Gear.FP8))
    assert 1.3 < wide.products[0] / narrow.products[0] < 2.0
    assert wide.attention[0] == narrow.attention[0]
    practice = practice_of(H100, Gear.FP8)
    assert practice.eta.value == pytest.approx(0.85 * ETA["h100"].value)
    thin = [
        gemm_s(rates(H100, g, practice), np.array([1.0]), np.array([8192.0]), 8192.0)[0] for g in (Gear.BF16, Gear.FP8)
    ]
    assert thin[0] > 1.7 * thin[1]
    with pytest.raises(ConfigError, match=r"A100-80GB has no peak in fp8; known: .*bf16"):
        peak_flop_s(A100, Gear.FP8)


def test_bf16_stands_for_fp16_on_devices_of_before() -> None:
    assert peak_flop_s(hardware.find("V100"), Gear.BF16) == 125e12


def test_the_steps_that_the_a100s_share_is_fitted_to_come_out_within_five_percent() -> None:
    steps = [s for s in estimator_steps.published(read_runs()) if s.group == estimator_steps.FITTED_TO]
    found = estimator_steps.fit(steps)
    assert len(steps) == 8
    assert ETA["a100"].kind is SourceKind.FITTED
    assert found.eta == pytest.approx(ETA["a100"].value, abs=0.006)
    assert found.mean < 0.05
    assert found.left_out < 0.06
