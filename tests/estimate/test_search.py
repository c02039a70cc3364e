import dataclasses
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from greentrain.errors import ConfigError
from greentrain.estimate import hardware, shapes
from greentrain.estimate.hardware import Accelerator
from greentrain.estimate.layouts import Layouts, ParallelLayout, enumerate_layouts
from greentrain.estimate.search import cost, search, smallest_count, sweep
from greentrain.estimate.workload import Workload
from greentrain.utils.quantities import SourcedNumber, SourceKind

H100 = hardware.find("H100")
LLAMA = shapes.find("llama-3-8b")
LARGE = shapes.find("llama-3.1-405b")
MOE = shapes.find("deepseek-v3")
WORK = Workload(tokens=1e12, sequence=4096, batch_tokens=4096 * 1024)


def free_of_traffic(accelerator: Accelerator) -> Accelerator:
    """Return a device whose links and network cost nothing and whose memory holds all: the ideal one."""
    much = SourcedNumber(unit="1", value=1e30, kind=SourceKind.ASSUMED, source="the ideal device")
    return dataclasses.replace(accelerator, link_bytes_s=much, network_bytes_s=much, memory_bytes=much)


@settings(max_examples=12)
@given(
    name=st.sampled_from(["llama-3-8b", "gpt-3-175b", "mixtral-8x7b"]),
    count=st.sampled_from([1, 3, 8, 24, 64, 256]),
    times=st.sampled_from([2, 3, 4]),
)
def test_more_devices_never_lengthen_the_ideal_time(name: str, count: int, times: int) -> None:
    shape, ideal = shapes.find(name), free_of_traffic(H100)
    few, many = search(shape, WORK, ideal, count), search(shape, WORK, ideal, count * times)
    assert many.step_s <= few.step_s * (1 + 1e-9)
    assert many.ideal_step_s == pytest.approx(few.ideal_step_s / times)
    assert few.step_s > few.ideal_step_s


def test_the_layout_of_llama_3_405b_is_found() -> None:
    workload = Workload(tokens=15.6e12, sequence=8192, batch_tokens=2048 * 8192)
    found = search(LARGE, workload, H100, 16_384)
    assert (found.layout.tensor, found.layout.pipeline, found.layout.data) == (8, 16, 128)
    assert 0.35 < found.mfu < 0.45  # arXiv 2407.21783, table 4, recalled: 0.41


def test_what_is_found_adds_up() -> None:
    found = search(MOE, WORK, H100, 512)
    assert found.layout.count == found.count == 512
    assert sum(found.parts_s.values()) == pytest.approx(found.step_s)
    assert found.mfu == pytest.approx(found.ideal_step_s / found.step_s)
    assert found.run_s == pytest.approx(found.step_s * WORK.steps)
    assert found.gpu_hours == pytest.approx(found.run_s * 512 / 3600)
    assert sum(found.memory_bytes.values()) <= 0.92 * 80e9
    assert 0 < found.fitting < found.tried
    assert all(each.source and each.value for each in found.assumptions)
    assert len({each.name for each in found.assumptions}) == len(found.assumptions) > 10


def test_nothing_that_fits_is_faster() -> None:
    found, every = search(LLAMA, WORK, H100, 64), sweep(LLAMA, WORK, H100, [64])
    assert found.step_s == pytest.approx(every.step_s.min())
    assert (found.tried, found.fitting) == (every.tried, len(every.layouts))
    again = cost(LLAMA, WORK, H100, found.layout)
    assert again.step_s == found.step_s
    assert again.memory_bytes == found.memory_bytes


def test_the_experts_network_takes_the_total_and_the_mfu_the_active_parameters() -> None:
    found = search(MOE, WORK, H100, 512)
    tokens = WORK.sequences * WORK.sequence
    assert found.ideal_step_s * 512 * 989e12 / tokens < 6.5 * 1.3 * MOE.active_parameters
    states = sum(found.memory_bytes[term] for term in ("weights", "gradients", "optimizer"))
    assert states * 512 > 6 * MOE.total_parameters


@settings(max_examples=15)
@given(count=st.integers(1, 600), sequences=st.integers(1, 1000), name=st.sampled_from(["llama-3-8b", "mixtral-8x7b"]))
def test_every_layout_obeys_the_divisors(count: int, sequences: int, name: str) -> None:
    shape = shapes.find(name)
    every = enumerate_layouts(shape, Workload(tokens=1e9, sequence=64, batch_tokens=64.0 * sequences), 8, [count])
    assert np.all(every.count == count)
    assert np.all(shape.heads % every.tensor == 0)
    assert np.all(every.tensor <= 8)
    assert np.all(every.pipeline * every.interleave <= shape.layers)
    assert np.all(every.data <= sequences)
    assert np.all(every.tensor * every.data % every.expert == 0)
    assert np.all((every.zero == 0) | (every.tensor * every.data > 1))
    batches = every.micro_batches(sequences)
    assert np.all(batches * every.micro * every.data >= sequences)
    assert np.all((batches - 1) * every.micro < -(-sequences // every.data))
    assert np.all(every.micro <= -(-sequences // every.data))
    assert np.all((every.interleave == 1) | (batches >= every.pipeline))
    assert np.all((every.zero < 2) | (every.pipeline == 1))
    if len(every):
        rows = np.stack([getattr(every, field.name) for field in dataclasses.fields(every)])
        assert np.unique(rows, axis=1).shape == rows.shape
        assert Layouts.of([every.at(0)]).at(0) == every.at(0)


def test_a_number_that_splits_nowhere_is_refused_with_a_remedy() -> None:
    with pytest.raises(ConfigError, match=r"16381 x H100-SXM: no way to split llama-3-8b.*more divisors"):
        search(LLAMA, WORK, H100, 16_381)
    with pytest.raises(ConfigError, match="none below 1"):
        search(LLAMA, WORK, H100, 0)


def test_the_smallest_number_keeps_the_limit_and_the_next_below_does_not() -> None:
    limit_s = 10 * 86_400.0
    found = smallest_count(LLAMA, WORK, H100, limit_s)
    assert found.run_s <= limit_s
    assert found.count % 8 == 0
    for fewer in range(8, found.count, 8):
        assert search(LLAMA, WORK, H100, fewer).run_s > limit_s


def test_much_time_takes_a_part_of_a_node_and_no_less_than_memory_wants() -> None:
    assert smallest_count(LLAMA, WORK, H100, 1e9).count == 4
    with pytest.raises(ConfigError, match="largest term is optimizer"):
        search(LLAMA, WORK, H100, 2)
    small = shapes.find("gpt2")
    assert smallest_count(small, WORK, H100, 1e9).count == 1


def test_an_hour_more_never_takes_more_devices() -> None:
    counts = [smallest_count(LLAMA, WORK, H100, days * 86_400.0).count for days in (2, 4, 8, 16, 32, 64)]
    assert counts == sorted(counts, reverse=True)


def test_a_limit_that_no_number_keeps_is_refused_with_a_remedy() -> None:
    with pytest.raises(
        ConfigError, match=r"ends 1e\+12 tokens of llama-3-8b within .*Give more time or a larger batch"
    ):
        smallest_count(LLAMA, WORK, H100, 3600.0)
    with pytest.raises(ConfigError, match="give seconds above 0"):
        smallest_count(LLAMA, WORK, H100, 0.0)


def test_a_search_of_16384_devices_is_quick() -> None:
    work = Workload(tokens=15e12, sequence=8192, batch_tokens=2048 * 8192)
    for shape, most_s in ((LARGE, 0.020), (MOE, 0.100)):
        took = []
        for _ in range(5):
            start_s = time.thread_time()  # of this thread alone, whatever else the machine does
            search(shape, work, H100, 16_384)
            took.append(time.thread_time() - start_s)
        assert min(took) < most_s


def test_a_layout_says_itself_in_one_line() -> None:
    assert str(ParallelLayout(tensor=8, pipeline=2, data=4)) == (
        "tp=8 pp=2 dp=4 ep=1 zero=0 micro=1 recompute=selective interleave=1"
    )
