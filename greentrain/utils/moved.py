"""Old paths of modules that documents named before they moved: importing one warns and gives the module of today."""

import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

MOVED: Final[Mapping[str, str]] = {
    "greentrain.config_actuators": "greentrain.config.schema",
    "greentrain.config_export": "greentrain.config.schema",
    "greentrain.config_values": "greentrain.utils.validation",
    "greentrain.elastic": "greentrain.control.elastic",
    "greentrain.estimate.projection": "recipes.estimate.projection",
    "greentrain.estimate.scaling_laws": "recipes.estimate.scaling_laws",
    "greentrain.estimate.sweeps": "recipes.estimate.footprints",
    "greentrain.fleet": "greentrain.report.fleet",
    "greentrain.fpga_backend.csim.documents": "tools.kernel_documents",
    "greentrain.fpga_backend.devices.unmetered": "greentrain.fpga_backend.devices.base",
    "greentrain.fpga_backend.devices.openvino_device": "recipes.common.openvino_device",
    "greentrain.fpga_backend.in_process": "greentrain.fpga_backend.devices.base",
    "greentrain.fpga_backend.quality.bootstrap": "benchmarks.fpga_quality_figures",
    "greentrain.fpga_backend.quality.gate": "recipes.common.rank_gate",
    "greentrain.fpga_backend.quality.groups": "benchmarks.fpga_quality_figures",
    "greentrain.fpga_backend.quality.logprobs": "benchmarks.fpga_quality_figures",
    "greentrain.fpga_backend.quality.measure": "benchmarks.fpga_quality_common",
    "greentrain.fpga_backend.quality.pairs": "greentrain.fpga_backend.quality.flips",
    "greentrain.fpga_backend.quality.reward_model": "recipes.common.reward_model",
    "greentrain.fpga_backend.quality.shift": "benchmarks.fpga_quality_figures",
    "greentrain.fpga_backend.quality.snippets": "recipes.common.rated_snippets",
    "greentrain.fpga_backend.quality.training": "recipes.common.reward_model",
    "greentrain.fpga_backend.rtl.area": "tools.rtl_area",
    "greentrain.fpga_backend.xrt.parallel": "recipes.common.data_parallel",
    "greentrain.precision": "greentrain.control.precision",
    "greentrain.report.units_text": "greentrain.utils.quantities",
    "greentrain.rlhf.advantages": "recipes.common.advantages",
    "greentrain.rlhf.opening": "greentrain.rlhf.offload",
    "greentrain.rlhf.placement": "greentrain.rlhf.scheduler",
    "greentrain.rlhf.stats": "greentrain.rlhf.engine",
    "greentrain.rlhf.step_rewards": "recipes.common.step_rewards",
    "greentrain.rlhf.surrogates": "recipes.common.surrogates",
    "greentrain.simulator.env": "tools.job_env",
    "greentrain.simulator.palette": "greentrain.simulator.picture",
    "greentrain.units": "greentrain.types",
}
"""Old path and new path; the modules below an old path moved with it. What recipes and benchmarks alone used is in
``recipes``, ``benchmarks`` and ``tools`` now, which a clone has and an installation has not. Kept until version 0.3
(docs/architecture.md)."""


def new_path(name: str) -> str | None:
    """Return where a module is today, or None if it never had another path.

    Args:
        name: Dotted path that was asked for.
    """
    old, below = name, ""
    while old not in MOVED:
        old, _, last = old.rpartition(".")
        if not old:
            return None
        below = f".{last}{below}"
    return MOVED[old] + below


class MovedModules:
    """Finds modules by their old paths.

    It is asked first: a package that moved still finds its modules, and would load them a second time under their old
    names. It does not inherit from ``importlib.abc``, whose import takes longer than all of ``import greentrain``.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for an old path, None for every other name."""
        if not fullname.startswith("greentrain.") or new_path(fullname) is None:
            return None
        return ModuleSpec(fullname, self)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python to make a module, which ``exec_module`` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the module at its new path under the old name, and warn."""
        old = module.__name__
        new = new_path(old)
        assert new is not None
        warnings.warn(f"{old} is {new} now: the old path goes in version 0.3", DeprecationWarning, stacklevel=2)
        sys.modules[old] = import_module(new)  # importlib hands out what stands here after this call


def install() -> None:
    """Let old paths be found; called once, by ``import greentrain``."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.insert(0, MovedModules())
