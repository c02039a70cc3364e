import subprocess
import sys

import pytest

from greentrain.power.cpu_model import cpu_power, find_tdp, listed_tdp, read_table

XEON = "Intel(R) Xeon(R) Platinum 8358 CPU @ 2.60GHz"


def cpuinfo(model: str, *, packages: int = 1, threads: int = 4, flags: str = "fpu sse") -> str:
    blocks = [
        f"processor\t: {i}\nmodel name\t: {model}\nphysical id\t: {i % packages}\nflags\t\t: {flags}\n"
        for i in range(threads)
    ]
    return "\n".join(blocks)


@pytest.mark.parametrize(
    ("model", "tdp_w"),
    [
        ("AMD EPYC 9654 96-Core Processor", 360.0),
        ("Intel(R) Xeon(R) Platinum 8480+", 350.0),
        ("AMD EPYC 7713 64-Core Processor", 225.0),
        (XEON, 250.0),
        ("Intel(R) Xeon(R) CPU E5-2640 v4 @ 2.40GHz", 90.0),
        ("Intel(R) Xeon(R) CPU E5-2640 0 @ 2.50GHz", 95.0),
        ("AMD FX(tm)-8350 Eight-Core Processor", 125.0),
        ("AMD Ryzen 9 7950X 16-Core Processor", 170.0),
    ],
)
def test_codecarbons_table_knows_the_part(model: str, tdp_w: float) -> None:
    found = find_tdp(model)
    assert found is not None
    assert found[1] == tdp_w


@pytest.mark.parametrize(
    "model", ["AMD EPYC", "Intel(R) Xeon(R) CPU @ 2.20GHz", "Intel Xeon Processor (Skylake, IBRS)", "unknown CPU", ""]
)
def test_generic_names_match_nothing(model: str) -> None:
    assert find_tdp(model) is None


def test_the_longest_entry_wins_and_a_generation_must_agree() -> None:
    table = {"Xeon E5-2640": 95.0, "Intel Xeon E5-2640 v3": 90.0}
    assert find_tdp("Intel(R) Xeon(R) CPU E5-2640 v3 @ 2.6GHz", table) == ("Intel Xeon E5-2640 v3", 90.0)
    assert find_tdp("Intel(R) Xeon(R) CPU E5-2640 v4 @ 2.4GHz", table) is None


def test_entries_that_disagree_match_nothing() -> None:
    assert find_tdp("Foo 100 200", {"Foo 100": 10.0, "Foo 200": 20.0}) is None
    assert find_tdp("Foo 100 200", {"Foo 100": 10.0, "Foo 200": 10.0}) == ("Foo 100", 10.0)


def test_packages_of_bare_metal_add_up() -> None:
    power = cpu_power(cpuinfo(XEON, packages=2, threads=128), 128)
    assert power.tdp_w == 500.0
    assert "2 packages" in power.note


def test_a_virtual_machine_gets_its_share_of_the_package() -> None:
    milan = "AMD EPYC 7713 64-Core Processor"
    power = cpu_power(cpuinfo(milan, packages=8, threads=8, flags="fpu hypervisor"), 8)
    assert power.tdp_w == pytest.approx(225.0 * 8 / 128)
    assert "8 of about 128 threads" in power.note
    unsaid = cpu_power(cpuinfo(XEON, threads=4, flags="fpu hypervisor"), 4)
    assert unsaid.tdp_w == 16.0
    assert unsaid.uncertainty > cpu_power(cpuinfo(XEON), 64).uncertainty


def test_unknown_part_is_four_watts_a_thread_with_a_remedy() -> None:
    power = cpu_power(cpuinfo("AMD EPYC"), 2)
    assert (power.model, power.tdp_w) == ("AMD EPYC", 8.0)
    assert "power.cpu_tdp_w" in power.note
    assert power.uncertainty > cpu_power(cpuinfo("AMD EPYC"), 2, tdp_w=60.0).uncertainty


def test_given_tdp_overrides_the_table() -> None:
    assert cpu_power(cpuinfo(XEON, packages=2), 4, tdp_w=61.5).tdp_w == 61.5


def test_the_table_is_read_without_codecarbon_or_pandas() -> None:
    assert len(read_table()) > 4000
    code = (
        "import sys; from greentrain.power.cpu_model import find_tdp;"
        "assert find_tdp('AMD EPYC 9654 96-Core Processor')[1] == 360;"
        "print([m for m in ('codecarbon', 'pandas', 'numpy', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_codecarbon_means_an_empty_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert read_table() == {}
    assert find_tdp(XEON) is None


def test_a_part_is_looked_up_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    found = listed_tdp("AMD EPYC 9654 96-Core Processor")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert found is not None
    assert listed_tdp("AMD EPYC 9654 96-Core Processor") is found
