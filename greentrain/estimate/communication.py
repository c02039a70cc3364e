"""Seconds of traffic between devices: tensor, pipeline, data and expert parallelism."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from greentrain.estimate.gemm import Floats, DeviceRates
from greentrain.estimate.layouts import Layouts
from greentrain.estimate.memory import Held
from greentrain.estimate.model_shape import ModelShape
from greentrain.estimate.practice import Practice
from greentrain.estimate.workload import Workload
from greentrain.types import Gear

LATENCY_S: Final = 20e-6
"""Of one collective inside a node."""
GATHER_BYTES: Final = 2.0
REDUCE_BYTES: Final = 4.0
"""Gradients are summed in FP32."""
FP8_DISPATCH_BYTES: Final = 1.5
"""To the experts in 8 bits, back in 16: on average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGroup:
    """Devices that talk, and how fast."""

    size: Floats
    bytes_s: Floats


def device_group(size: Floats, reach: Floats, node: int, rates: DeviceRates) -> DeviceGroup:
    """Return a group of ``size`` devices that lie within ``reach`` neighbouring ones."""
    return DeviceGroup(size=size, bytes_s=np.where(reach <= node, rates.link_bytes_s, rates.network_bytes_s))


def ring_s(device_group: DeviceGroup, volume_bytes: Floats) -> Floats:
    """Return seconds of one all-gather or reduce-scatter of a volume; an all-reduce is two of them."""
    return volume_bytes * (device_group.size - 1) / device_group.size / device_group.bytes_s


def tensor_s(shape: ModelShape, workload: Workload, layouts: Layouts, node: int, rates: DeviceRates) -> Floats:
    """Return seconds a layer of one forward pass: two all-reduces, each of a micro-batch's hidden states."""
    size = layouts.tensor.astype(float)
    states = rates.result_bytes * layouts.micro.astype(float) * workload.sequence * shape.d_model
    one = 2.0 * ring_s(device_group(size, size, node, rates), states) + LATENCY_S
    return np.where(size > 1, 2.0 * one, 0.0)


def experts_s(
    shape: ModelShape, workload: Workload, layouts: Layouts, node: int, rates: DeviceRates, practice: Practice
) -> Floats:
    """Return seconds a layer with experts, of one forward pass: to the experts and back, nothing hidden.

    A token goes to each other node once, and from there over the links to its experts; both happen at a time.
    """
    if not shape.is_moe:
        return np.zeros(len(layouts))
    size = layouts.expert.astype(float)
    tokens = layouts.micro * workload.sequence / layouts.tensor
    wide = FP8_DISPATCH_BYTES if workload.precision is Gear.FP8 else rates.result_bytes
    copy = 2.0 * tokens * shape.d_model * wide
    nodes = np.minimum(np.minimum(shape.experts_per_token, practice.expert_nodes.value), size / node)
    over_links = copy * shape.experts_per_token * (size - 1) / size / rates.link_bytes_s
    beyond = np.maximum(size - node, 0.0) / size
    over_network = np.where(size > node, copy * nodes * beyond / rates.network_bytes_s, 0.0)
    return np.where(size > 1, np.maximum(over_links, over_network) + 2.0 * LATENCY_S, 0.0)


def pipeline_s(shape: ModelShape, workload: Workload, layouts: Layouts, node: int, rates: DeviceRates) -> Floats:
    """Return seconds a micro-batch of the transfers between neighbouring stages, forward and back, nothing hidden."""
    share = layouts.micro * workload.sequence / layouts.tensor
    bytes_s = device_group(layouts.pipeline.astype(float), layouts.count.astype(float), node, rates).bytes_s
    once = rates.result_bytes * share * shape.d_model / bytes_s
    return np.where(layouts.pipeline > 1, 2.0 * layouts.interleave * once, 0.0)


def data_s(on: Held, layouts: Layouts, batches: Floats, node: int, rates: DeviceRates) -> Floats:
    """Return seconds a step in which replicas sum gradients and hand out weights, nothing hidden.

    ZeRO 0 reduces and gathers gradients; 1 reduces gradients and gathers weights; 2 reduces with every micro-batch;
    3 also gathers the weights twice with every micro-batch.
    """
    wide = rates.result_bytes
    gather = np.select(
        [layouts.zero == 0, layouts.zero == 3], [REDUCE_BYTES, 2.0 * wide * batches], np.full(len(layouts), wide)
    )
    per_parameter = REDUCE_BYTES * np.where(layouts.zero >= 2, batches, 1.0) + gather
    span = layouts.tensor * layouts.data.astype(float)
    shared = ring_s(device_group(on.shared_group, span, node, rates), on.shared * per_parameter)
    experts = ring_s(device_group(on.experts_group, span, node, rates), on.experts * per_parameter)
    return shared + experts


def exposed_data_s(data_s: Floats, busy_s: Floats, layouts: Layouts, batches: Floats, practice: Practice) -> Floats:
    """Return what of :func:`data_s` does not hide behind work.

    Args:
        data_s: Seconds of traffic a step.
        busy_s: Seconds of one micro-batch on one stage: a backward pass hides gradients, a forward pass weights.
        layouts: The layouts.
        batches: Micro-batches a step.
        practice: The least share that stays.
    """
    window = busy_s * np.where(layouts.zero >= 2, batches, 1.0)
    return np.maximum(data_s - window, practice.exposed_data.value * data_s)
