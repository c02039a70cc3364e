"""A Transformer Engine that runs on CPU, with the signatures and the refusals of the real one, 2.20.2.

It multiplies with GreenTrain's own FP8 product and writes down every call. ``te_2_20_signatures.json`` holds the real
signatures; ``test_te.py`` compares them with these.
"""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from greentrain.control.precision.fp8 import fp8_linear


class Float8CurrentScaling:
    def __init__(
        self,
        use_power_2_scales: bool = False,
        fp8_format: Any = "HYBRID",
        fp8_gemm_fprop: Any = None,
        fp8_gemm_dgrad: Any = None,
        fp8_gemm_wgrad: Any = None,
        fp8_dpa: bool = False,
        fp8_mha: bool = False,
        backward_override: str | None = None,
    ) -> None:
        pass


class Stub:
    """The package: its modules, and what was called on them.

    Attributes:
        calls: (name as in the record of signatures, positional arguments, keyword arguments).
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.recipe: Any = None
        """Recipe of the autocast that is entered; None outside."""
        self.fp8 = (True, "")
        stub = self

        class autocast:
            def __new__(cls, *args: Any, **kwargs: Any) -> "autocast":
                stub.calls.append(("transformer_engine.pytorch.autocast.__init__", args, kwargs))
                return super().__new__(cls)

            def __init__(
                self,
                enabled: bool = True,
                calibrating: bool = False,
                recipe: Any = None,
                amax_reduction_group: Any = None,
                _graph: bool = False,
            ) -> None:
                self._recipe = recipe if enabled else None

            def __enter__(self) -> "autocast":
                stub.recipe = self._recipe
                return self

            def __exit__(self, *error: object) -> None:
                stub.recipe = None

        class Linear(nn.Module):
            def __new__(cls, *args: Any, **kwargs: Any) -> "Linear":
                stub.calls.append(("transformer_engine.pytorch.Linear.__init__", args, kwargs))
                return super().__new__(cls)

            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                stub.calls.append(("transformer_engine.pytorch.Linear.forward", args, kwargs))
                return super().__call__(*args, **kwargs)

            def __init__(
                self,
                in_features: int,
                out_features: int,
                sequence_parallel: bool = False,
                fuse_wgrad_accumulation: bool = False,
                tp_group: Any = None,
                tp_size: int = 1,
                get_rng_state_tracker: Any = None,
                rng_tracker_name: str | None = None,
                init_method: Any = None,
                bias: bool = True,
                return_bias: bool = False,
                params_dtype: torch.dtype | None = None,
                parallel_mode: str | None = None,
                parameters_split: Any = None,
                device: Any = "cuda",
                ub_overlap_ag: bool = False,
                ub_overlap_rs: bool = False,
                ub_overlap_rs_dgrad: bool = False,
                ub_bulk_dgrad: bool = False,
                ub_bulk_wgrad: bool = False,
                ub_name: str | None = None,
                delay_wgrad_compute: bool = False,
                symmetric_ar_type: str | None = None,
                save_original_input: bool = False,
                name: str | None = None,
            ) -> None:
                super().__init__()
                assert device == "meta", "anything else draws random numbers and allocates"
                self.in_features = in_features
                self.weight = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=params_dtype))
                self.bias: Any
                if bias:
                    self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=params_dtype))
                else:
                    self.bias = torch.empty(0, device=device, dtype=params_dtype)

            def forward(
                self,
                inp: Tensor,
                is_first_microbatch: bool | None = None,
                fp8_output: bool | None = False,
                fp8_grad: bool | None = False,
            ) -> Tensor:
                if torch.is_autocast_enabled(inp.device.type):
                    inp = inp.to(torch.get_autocast_dtype(inp.device.type))
                elif any(parameter.dtype is not inp.dtype for parameter in self.parameters()):
                    raise TypeError("Data types for parameters must match when outside of autocasted region.")
                if stub.recipe is None:
                    return F.linear(inp, self.weight, self.bias if self.bias.numel() else None)
                if inp.shape[-1] % 16 or inp.numel() // inp.shape[-1] % 16 or inp.numel() == 0:
                    raise AssertionError(f"FP8 execution requires dimensions divisible by 16, got {tuple(inp.shape)}")
                y = fp8_linear(inp, self.weight)
                return y + self.bias.to(y.dtype) if self.bias.numel() else y

        def is_fp8_available(return_reason: bool = False) -> bool | tuple[bool, str]:
            return stub.fp8 if return_reason else stub.fp8[0]

        def noted(*args: Any, **kwargs: Any) -> bool | tuple[bool, str]:
            stub.calls.append(("transformer_engine.pytorch.is_fp8_available", args, kwargs))
            return is_fp8_available(*args, **kwargs)

        self.signed: dict[str, Any] = {
            "transformer_engine.pytorch.Linear.__init__": Linear.__init__,
            "transformer_engine.pytorch.Linear.forward": Linear.forward,
            "transformer_engine.pytorch.autocast.__init__": autocast.__init__,
            "transformer_engine.pytorch.is_fp8_available": is_fp8_available,
            "transformer_engine.common.recipe.Float8CurrentScaling.__init__": Float8CurrentScaling.__init__,
        }
        self.package = ModuleType("transformer_engine")
        self.package.__version__ = "2.20.2"  # type: ignore[attr-defined]
        self.pytorch: Any = ModuleType("transformer_engine.pytorch")
        vars(self.pytorch).update(autocast=autocast, Linear=Linear, is_fp8_available=noted)
        self.common = ModuleType("transformer_engine.common")
        self.recipes: Any = ModuleType("transformer_engine.common.recipe")
        vars(self.recipes).update(Float8CurrentScaling=Float8CurrentScaling)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the package be imported for one test."""
        for module in (self.package, self.pytorch, self.common, self.recipes):
            monkeypatch.setitem(sys.modules, module.__name__, module)
