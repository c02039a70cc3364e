"""FSDP 2's all-gather of the weights that run in FP8, as FP8 bytes (``FSDPModule.set_custom_all_gather``).

It sees the shards of all weights of a module in a row. In the gear FP8 a chosen weight goes as one byte an element:
e4m3 of 448 / amax times the shard, with the largest amax of all ranks (one all-reduce, a float32 a weight), among the
rest as stored. What comes is q / 448 * amax in the buffer that FSDP itself has made. The layer's own cast gives q and
the factor again: the largest element is amax exactly, the others are within a rounding finer than e4m3's. (Below an
amax of 2^-76 TINY counts, and it need not.) Read of FSDP's own state (torch 2.13, torch/distributed/fsdp/_fully_shard):
a module's parameters, their order and padded sizes, its all-gather, and whether a pass runs. Experimental on GPUs.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from greentrain.control.precision.fp8 import E4M3, TINY
from greentrain.errors import ConfigError
from greentrain.utils.never_raise import warn_experimental


def _runs(layer: Any) -> bool:
    return hasattr(layer, "_green") and layer._green.box.gathers_fp8(layer.training)


class _AllGather:
    """That of one module. ``inner`` is the one before, which sends whatever is sent."""

    def __init__(self, group: Any) -> None:
        self.inner = group._all_gather_comm
        self.allocate = self.inner.allocate
        self._group, self._rounded = group, list[nn.Module]()  # layers whose weights the last gather has rounded
        self._sizes = [held.padded_sharded_param_size.numel() for held in group.fsdp_params]
        owners = enumerate(held._module_info for held in group.fsdp_params)  # experts hold no ``weight``
        self.layers = {n: o.module for n, o in owners if o.param_name == "weight" and "_green" in vars(o.module)}

    def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, async_op: bool = False) -> Any:
        # Outside a pass somebody reads the weights. Other sizes are those of ``reshard_after_forward=2``, or bytes.
        fits = input_tensor.dtype in (torch.float32, torch.bfloat16) and input_tensor.numel() == sum(self._sizes)
        used = fits and self._group._training_state.name != "IDLE"
        low = [n for n, layer in self.layers.items() if used and _runs(layer)]
        self._rounded = [self.layers[n] for n in low]
        if not low:
            return self.inner(output_tensor, input_tensor, group, async_op)
        parts, largest = input_tensor.split(self._sizes), torch.finfo(E4M3).max
        amax = torch.stack([torch.linalg.vector_norm(parts[n], float("inf")) for n in low]).float()
        dist.all_reduce(amax, dist.ReduceOp.MAX, group=group)
        units: Any = dict(zip(low, torch.split(amax + TINY, 1), strict=True))  # no numbers: BF16 would stay BF16
        cast = {n: (parts[n] * (largest / units[n])).to(E4M3) for n in low}
        order = [n for n in range(len(parts)) if n not in cast] + low
        sent = [cast.get(n, parts[n]).view(torch.uint8) for n in order]
        sent.append(sent[0].new_zeros(-sum(map(len, sent)) % 4))  # so that each rank's float32 can be read in place
        widths = [len(piece) for piece in sent]
        got = self.allocate((group.size() * sum(widths),), dtype=torch.uint8, device=amax.device)
        mine = torch.cat(sent, out=got.view(group.size(), -1)[group.rank()])
        self.inner(got, mine, group, False)
        outputs = output_tensor.view(group.size(), -1).split(self._sizes, dim=1)
        for n, piece in zip(order, got.view(group.size(), -1).split(widths, dim=1), strict=False):
            low_values = piece.view(E4M3).float().div_(largest).mul_(units[n]) if n in cast else None
            outputs[n].copy_(piece.view(input_tensor.dtype) if low_values is None else low_values)

    def settle(self, module: Any, *_: Any) -> None:
        """Drop what a forward without backward has left rounded, where a layer is in another gear now."""
        if any(not _runs(layer) for layer in self._rounded):
            module.reshard()


def gather_fp8(model: nn.Module) -> list[Callable[[], object]]:
    """Take over the all-gathers of layers that shift under ``fully_shard``; return what puts them back, last first."""
    from torch.distributed.fsdp import FSDPModule

    if not torch.__version__.startswith("2.13."):
        why = f"reads the state of FSDP 2 as torch 2.13 has it, and this is {torch.__version__}"
        raise ConfigError(f"precision.fp8_all_gather {why}: install torch 2.13, or set it to false")
    undo: list[Callable[[], object]] = []
    disable: Any = torch.compiler.disable  # as FSDP's own hooks
    for module in list[Any](model.modules()):
        groups = module._get_fsdp_state()._fsdp_param_groups if isinstance(module, FSDPModule) else []
        if len(groups) == 1:  # torch replaces none where parameters of one module are on several meshes
            known = groups[0]._all_gather_comm  # ours already in the second of modules that were sharded as one
            comm = known if isinstance(known, _AllGather) else _AllGather(groups[0])
            if comm.layers:
                undo.append(module.register_forward_pre_hook(disable(comm.settle), prepend=True).remove)
                module.set_custom_all_gather(comm)
                undo += [partial(module.set_custom_all_gather, comm.inner), partial(comm.settle, module)]
    if undo and dist.get_backend() != "gloo":
        warn_experimental("precision.fp8_all_gather", "two ranks under gloo on CPUs")
    return undo
