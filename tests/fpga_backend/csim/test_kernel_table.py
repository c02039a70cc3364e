"""The table of kernels, the C++, the documents and the contract say the same."""

import re
from pathlib import Path

import pytest

from greentrain.fpga_backend import contract
from greentrain.fpga_backend.csim import launches
from greentrain.fpga_backend.csim.kernels import KERNELS, REGIONS, KernelSpec
from tools.kernel_documents import FOLDER, link_config, offsets, register_map

MAX_PORTS = 16
"""Half of the AXI ports of the HBM (UG1393, "HBM Configuration and Use"; 2026-11-21): room for a second unit of
products and attention."""
LANES = {
    "gt::floats_t": "float32",
    "gt::doubles_t": "float64",
    "gt::words_t": "int32",
    "gt::halves_t": "int16",
    "gt::bytes_t": "int8",
}
"""Every pointer is one to beats of 64 bytes: ports of one width, which HLS gives bursts (200-451)."""


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_the_source_has_the_tables_arguments(kernel: KernelSpec) -> None:
    text = (FOLDER / kernel.source).read_text()
    found = re.search(rf'extern "C" void {kernel.name}\(([^)]*)\)', text)
    assert found is not None
    declared = [" ".join(part.split()) for part in found[1].split(",")]
    assert len(declared) == len(kernel.arguments)
    for line, argument in zip(declared, kernel.arguments, strict=True):
        kind, name = re.fullmatch(r"(.*?)(\w+)", line).groups()  # type: ignore[union-attr]
        assert name == argument.name
        if argument.kind == "scalar":
            assert kind.strip() == "int32_t"
            assert f"INTERFACE s_axilite port = {name}\n" in text
        else:
            assert kind.strip().endswith("*")
            assert kind.startswith("const ") is not argument.written
            bare = kind.removeprefix("const ").strip(" *")
            assert LANES[bare] == argument.dtype
            assert re.search(rf"INTERFACE m_axi port = {name} bundle = {argument.bundle}\b", text)
    assert "INTERFACE s_axilite port = return" in text


def test_every_source_is_a_kernel_of_the_table() -> None:
    assert {path.name for path in FOLDER.glob("*.cpp")} == {kernel.source for kernel in KERNELS}


def test_ports_reach_one_region_and_are_few_enough() -> None:
    ports = 0
    for kernel in KERNELS:
        reach: dict[str, set[int | None]] = {}
        for argument in kernel.arguments:
            if argument.kind == "pointer":
                reach.setdefault(argument.bundle, set()).add(argument.bank)
        assert all(len(banks) == 1 for banks in reach.values())
        ports += len(reach)
    assert ports <= MAX_PORTS


def test_regions_share_the_cards_banks_without_overlap() -> None:
    banks = [bank for region in REGIONS for bank in range(region.first, region.last + 1)]
    assert sorted(banks) == list(range(32))
    assert [region.bank for region in REGIONS] == list(range(len(REGIONS)))


def test_documents_are_up_to_date() -> None:
    """If not: python -m tools.kernel_documents."""
    assert (FOLDER / "REGISTERS.md").read_text() == register_map()
    assert (FOLDER / "u55c.cfg").read_text() == link_config()


def test_addresses_follow_vitis_rule() -> None:
    """Two pointers and a scalar, as Vitis laid out ``vadd(a, b, n)``: 0x10, 0x1c, 0x28."""
    (kernel,) = (kernel for kernel in KERNELS if kernel.name == "gt_pool")
    assert offsets(kernel)[:4] == (0x10, 0x1C, 0x28, 0x34)
    assert offsets(kernel)[4] - offsets(kernel)[3] == 8


def test_the_headers_constants_are_the_contracts() -> None:
    found = _constants(FOLDER / "numbers.h")
    for name, value in found.items():
        if name == "MAX_ROW":
            assert value == launches.MAX_ROW
        else:
            assert value == getattr(contract, name), name
    assert found.keys() >= {"Q8", "Q16", "Q20", "ROW_FLOOR", "LOG2E", "LN2", "EXP_BITS", "MAX_WIDTH"}
    assert _constants(FOLDER / "attention.cpp")["MAX_HEAD"] == launches.MAX_HEAD


def _constants(path: Path) -> dict[str, float]:
    lines = re.findall(r"^constexpr (?:int|float|double) (\w+) = ([\w.+-]+);", path.read_text(), re.MULTILINE)
    return {name: float.fromhex(value.rstrip("f")) if "0x" in value else float(value) for name, value in lines}
