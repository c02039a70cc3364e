"""Which backend is picked, what the trial catches, and what the refusals say."""

import importlib.util
import logging
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.torch_version import TorchVersion

from greentrain.control.precision import backends, fp8
from greentrain.control.precision.backends import ScaledMm, choose_backend, slower_compiled, trial
from greentrain.control.precision.fp8 import Gemm
from greentrain.errors import ConfigError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class Exact:
    """A backend whose results can be spoiled."""

    name = "exact"
    reason = "for tests"

    def __init__(self, spoil: float = 1.0) -> None:
        self._spoil = spoil

    def linear(self, layer: nn.Linear, x: Tensor) -> Tensor:
        return F.linear(x, layer.weight * self._spoil, layer.bias)


@pytest.mark.parametrize("scaling", ["tensorwise", "rowwise"])
def test_auto_takes_torchs_own_product_where_it_runs(scaling: str) -> None:
    backend = choose_backend("auto", CPU, scaling)
    assert isinstance(backend, ScaledMm) and backend.name == "scaled_mm" and backend.scaling == scaling
    assert backend.gemm == Gemm.on("cpu")
    assert backend.reason == f"torch.nn.functional.scaled_mm of torch {torch.__version__} works on cpu"


def test_an_older_call_is_taken_where_the_public_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> Tensor:
        raise NotImplementedError("no _scaled_mm_v2 here")

    monkeypatch.setattr(F, "scaled_mm", broken)
    backend = choose_backend("auto", CPU, "rowwise")
    assert isinstance(backend, ScaledMm) and not backend.gemm.public
    assert backend.reason.startswith("torch._scaled_mm of torch ")
    assert backend.reason.endswith("works on cpu; passed over: scaled_mm: no _scaled_mm_v2 here")
    assert backend.linear(nn.Linear(32, 16), torch.ones(2, 32)).shape == (2, 16)


def test_a_trial_draws_no_random_number_and_leaves_no_mode() -> None:
    before = torch.random.get_rng_state()
    with torch.no_grad():
        choose_backend("auto", CPU, "tensorwise")
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.random.get_rng_state(), before) and not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("spoil", [2.0, 0.0, float("nan")])
def test_a_trial_finds_wrong_numbers(spoil: float) -> None:
    trial(Exact(), CPU)
    with pytest.raises(ArithmeticError, match=r"off by .* at most 0\.3"):
        trial(Exact(spoil), CPU)


def test_where_nothing_works_every_reason_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def trial(backend: Any, device: torch.device) -> None:
        raise RuntimeError(f"{backend.name} has no kernel\nat a long stack")

    monkeypatch.setattr(backends, "trial", trial)
    with pytest.raises(ConfigError) as caught:
        choose_backend("auto", CPU, "tensorwise")
    assert str(caught.value) == (
        "FP8 does not run on cpu (precision.backend auto): scaled_mm: scaled_mm has no kernel; transformer_engine:"
        " Transformer Engine runs on CUDA only, and the device is cpu; torchao: torchao has no kernel;"
        " drop fp8 from precision.gears"
    )
    with pytest.raises(ConfigError, match=r"backend torchao\): torchao: .*; set precision\.backend to auto"):
        choose_backend("torchao", CPU, "tensorwise")


def test_a_gpu_without_fp8_units_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    with pytest.raises(ConfigError) as caught:
        choose_backend("auto", CUDA, "tensorwise")
    assert str(caught.value) == (
        "FP8 needs compute capability 8.9 or newer (Ada); NVIDIA A100-SXM4-80GB is 8.0: drop fp8 from precision.gears"
    )

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    backends._check_capability(CUDA, backends.FORMATS["tensorwise"])  # Ada, the oldest that has them: L4, RTX 4090


def test_a_torch_without_the_public_call_tries_the_older_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8, "_CPU", fp8._CPU._replace(public=False))  # torch before 2.10
    backend = choose_backend("scaled_mm", CPU, "tensorwise")
    assert backend.reason == f"torch._scaled_mm of torch {torch.__version__} works on cpu"


def test_a_trial_multiplies_known_numbers_and_not_what_lies_in_memory() -> None:
    seen: list[Tensor] = []

    class Looks(Exact):
        def linear(self, layer: nn.Linear, x: Tensor) -> Tensor:
            seen.extend(t.detach().clone() for t in (x, layer.weight, layer.bias))
            return super().linear(layer, x)

    for _ in range(2):
        trial(Looks(), CPU)
    assert all(torch.equal(a, b) for a, b in zip(seen[:3], seen[3:], strict=True))
    assert all(0.7 < float(one.std()) < 1.3 for one in seen), "normally distributed"


def test_a_build_without_the_device_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("this torch has CUDA")
    with pytest.raises(ConfigError, match="FP8 does not run on cuda"):
        choose_backend("scaled_mm", CUDA, "tensorwise")


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="'cublas'; known: auto, scaled_mm, transformer_engine, torchao"):
        choose_backend("cublas", CPU, "tensorwise")


def test_picking_the_usual_backend_imports_no_optional_package(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        choose_backend("auto", CPU, "tensorwise")
    assert not caplog.records


@pytest.mark.parametrize(
    ("fp8_s", "said"), [(0.5, ""), (1.5, "compiled, FP8 by exact takes 1.5 times as long as BF16")]
)
def test_a_backend_that_compiles_to_something_slower_than_bf16_is_named(
    fp8_s: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Any] = []

    def compiles(call: Any) -> Any:
        compiled.append(call)
        return call

    monkeypatch.setattr(torch, "compile", compiles)
    before = torch.random.get_rng_state()
    clock = iter([0.0, 1.0, 1.0, 1.0 + fp8_s])
    with torch.no_grad():
        assert slower_compiled(Exact(), CPU, width=16, clock=clock.__next__) == said
    assert len(compiled) == 2 and torch.equal(torch.random.get_rng_state(), before)


def test_a_backend_that_does_not_compile_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(call: Any) -> Any:
        raise RuntimeError("Dynamo does not know how to trace\na long explanation")

    monkeypatch.setattr(torch, "compile", unknown)
    said = "FP8 by exact does not compile (Dynamo does not know how to trace)"
    assert slower_compiled(Exact(), CPU, width=16) == said


@pytest.mark.parametrize("version", ["2.10.0", "2.12.1+cu130"])
def test_the_public_call_waits_for_a_compiler_that_knows_it(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    spec = importlib.util.spec_from_file_location("fp8_of_an_older_torch", fp8.__file__)
    assert spec is not None and spec.loader is not None
    older = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(older)
    assert not older.Gemm.on("cuda").public
    assert Gemm.on("cuda").public
