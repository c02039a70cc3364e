"""Products of 8-bit integers are exact, whatever the processor."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from greentrain.fpga_backend.emulator import arithmetic
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.testing.offload_models import decoder, sequences

SCRIPT = """
import torch
from greentrain.fpga_backend.emulator import arithmetic
from greentrain.fpga_backend.emulator.engine import Engine
from greentrain.testing.offload_models import decoder, sequences
artifact = decoder()
result = Engine(artifact).run(sequences(artifact))
print(arithmetic.int_mm_is_exact(), b"".join(row.tobytes() for row in result.logprobs).hex())
"""


@settings(deadline=None, max_examples=40)
@given(
    m=st.integers(1, 40),
    k=st.integers(1, 3000),
    n=st.integers(1, 40),
    seed=st.integers(0, 2**31),
    extreme=st.booleans(),
)
def test_both_products_are_exact(m: int, k: int, n: int, seed: int, extreme: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    q = torch.randint(-127, 128, (m, k), dtype=torch.int8, generator=generator)
    w = torch.randint(-127, 128, (n, k), dtype=torch.int8, generator=generator)
    if extreme:
        q, w = torch.full_like(q, -127), torch.full_like(w, 127)
    expected = q.double() @ w.double().t()
    assert torch.equal(arithmetic.float_product(q, w).double(), expected)
    assert torch.equal(arithmetic.exact_product()(q, w).double(), expected)


@pytest.mark.sweep
@pytest.mark.parametrize("isa", ["AVX2", "AVX512_CORE"])
def test_where_int_mm_saturates_the_result_is_still_the_same(isa: str) -> None:
    """oneDNN told to use an older instruction set, as on older processors, sums in 16 bits."""
    artifact = decoder()
    here = Engine(artifact).run(sequences(artifact))
    assert here.logprobs is not None
    said = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": isa, "DNNL_MAX_CPU_ISA": isa},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert said[1] == b"".join(row.tobytes() for row in here.logprobs).hex()
    if arithmetic.int_mm_is_exact() and "avx512" in torch.backends.cpu.get_cpu_capability().lower():
        assert said[0] == "False", "the self-test believes a product that saturates"


def test_a_product_that_raises_is_not_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("not on this processor")

    monkeypatch.setattr(arithmetic, "int_mm", broken)
    arithmetic.int_mm_is_exact.cache_clear()
    arithmetic.exact_product.cache_clear()
    try:
        assert not arithmetic.int_mm_is_exact()
        assert arithmetic.exact_product() is arithmetic.float_product
    finally:
        arithmetic.int_mm_is_exact.cache_clear()
        arithmetic.exact_product.cache_clear()


@pytest.mark.parametrize(("int_mm_s", "float_s"), [(1.0, 27.0), (27.0, 1.0)])
def test_an_exact_product_that_is_a_plain_loop_is_not_taken(int_mm_s: float, float_s: float) -> None:
    """torch._int_mm is exact without VNNI, too, and there 27 times slower than binary32."""
    clock = [0.0]

    def taking(product: arithmetic.Product, took_s: float) -> arithmetic.Product:
        def run(q: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            clock[0] += took_s
            return product(q, weights)

        return run

    products = (taking(arithmetic.int_mm, int_mm_s), taking(arithmetic.float_product, float_s))
    assert arithmetic.faster(products, lambda: clock[0]) is products[int_mm_s > float_s]
