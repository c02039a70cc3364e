"""EcoRL-Sched's figures of a card: what they say holds together, on a small model."""

import pytest

from benchmarks import fpga_figures
from benchmarks.fpga_figures import _crossing
from greentrain.fpga_backend.explore.space import open_subject
from greentrain.fpga_backend.roofline.cards import LIMITS

PROGRAM = open_subject("minilm").program


def test_no_point_is_above_the_roof() -> None:
    sheet = fpga_figures.roofline(PROGRAM)
    roofs = {line.name: max(line.y) for line in sheet.panels[0].lines if line.dashed}
    flat = roofs["roof at TDP, 8-bit products"]
    assert flat == pytest.approx(2 * roofs["roof at TDP, 16-bit products"], rel=0.01)
    tdp_w = fpga_figures.CARD.value("tdp_w")
    bandwidth = fpga_figures.CARD.value("memory_bytes_per_s")
    for row in sheet.rows:
        assert row["op_per_j"] * fpga_figures.CARD.value("idle_power_w") < bandwidth * row["op_per_byte"]
        assert row["op_per_j"] < flat * tdp_w / fpga_figures.CARD.value("idle_power_w")
    assert {row["precision"] for row in sheet.rows} == set(fpga_figures.PRECISIONS)


def test_larger_batches_take_fewer_joules_a_token() -> None:
    sheet = fpga_figures.batch(PROGRAM)
    for precision in fpga_figures.PRECISIONS:
        found = [row["tokens_per_j"] for row in sheet.rows if row["precision"] == precision]
        assert len(found) == len(fpga_figures.BATCHES) and found == sorted(found)


def test_the_parts_of_a_batch_sum_to_its_time_and_copies_take_what_the_link_takes() -> None:
    for row in fpga_figures.latency(PROGRAM).rows:
        whole = row["in_ms"] + row["kernel_ms"] + row["out_ms"]
        assert row["copy_share"] == pytest.approx(1 - row["kernel_ms"] / whole)
        least_ms = 1000 * row["batch"] * fpga_figures.SEQUENCE * 4 / LIMITS["pcie_bytes_per_s"].value
        assert least_ms * 0.5 < row["in_ms"]


def test_more_cards_are_faster_until_the_batch_does_not_divide() -> None:
    rows = fpga_figures.cards(PROGRAM).rows
    speeds = [row["tokens_per_s"] for row in rows]
    assert speeds == sorted(speeds)
    at = {row["cards"]: row for row in rows}
    assert at[24]["gain_of_a_card"] == pytest.approx(0.0, abs=1e-9), "32 over 24 cards take as long as over 16"
    assert at[2]["tokens_per_s"] == pytest.approx(2 * at[1]["tokens_per_s"], rel=0.1)


def test_a_length_beyond_the_model_is_left_out_and_a_crossing_is_found() -> None:
    sheet = fpga_figures.sequence(PROGRAM)
    assert [row["sequence"] for row in sheet.rows] == [n for n in fpga_figures.LENGTHS if n <= PROGRAM.max_tokens]
    for row in sheet.rows:
        assert row["card_over_gpu"] == pytest.approx(row["card_tokens_per_j"] / row["gpu_tokens_per_j"])
    assert _crossing([1, 2, 4], [0.5, 0.8, 1.2]) == pytest.approx(3.0)
    assert _crossing([1, 2, 4], [2.0, 3.0, 4.0]) is None
