"""Time of one optimizer step for many layouts at once, part by part.

A micro-batch's time on the slowest stage, times micro-batches; the pipeline's bubble; traffic that does not hide; the
optimizer's pass over its states. It is the time of a step in which nothing goes wrong: an optimistic floor. Matrix
products take what tiles and waves of the device, the inner dimension's ramp and the memory below them allow; traffic is
that of tensor, pipeline, data and expert parallelism.
"""

from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from greentrain.estimate.hardware import Accelerator, Practice, peak_flop_s
from greentrain.estimate.layouts import Floats, Held, Layouts, Recompute, held, stage_layers
from greentrain.estimate.model_shape import ModelShape
from greentrain.estimate.values import Assumption
from greentrain.estimate.workload import Workload
from greentrain.types import Gear
from greentrain.utils.quantities import SourceKind

TILE: Final = 128
"""Rows and columns of an output that one unit computes at a time."""
RAMP: Final = 192.0
"""Inner dimension at which half of the rate is reached: filling and draining a tile."""
LAUNCH_S: Final = 4e-6
LONG_WAVES: Final = 4
"""From here on kernels hide the last, half-filled wave."""
LONG_QUALITY: Final = 0.9
LEAST_QUALITY: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRates:
    """What a device does in practice, in one precision."""

    product_flop_s: float
    attention_flop_s: float
    units: float
    memory_bytes_s: float
    link_bytes_s: float
    network_bytes_s: float
    operand_bytes: float
    """Of one operand of a product."""
    result_bytes: float


def rates(accelerator: Accelerator, precision: Gear, practice: Practice) -> DeviceRates:
    """Return a device's rates.

    Raises:
        ConfigError: The device has no such precision.
    """
    around = Gear.BF16 if precision.is_low else precision
    wide = 4.0 if precision is Gear.FP32 else 2.0
    return DeviceRates(
        product_flop_s=peak_flop_s(accelerator, precision) * practice.eta.value,
        attention_flop_s=peak_flop_s(accelerator, around) * practice.attention.value,
        units=practice.units.value,
        memory_bytes_s=accelerator.memory_bytes_s.value * practice.memory_rate.value,
        link_bytes_s=accelerator.link_bytes_s.value * practice.link_rate.value,
        network_bytes_s=accelerator.network_bytes_s.value * practice.network_rate.value,
        operand_bytes=OPERAND_BYTES.get(precision, wide),
        result_bytes=wide,
    )


def gemm_s(rates: DeviceRates, m: Floats, n: Floats, k: Floats | float, groups: Floats | float = 1.0) -> Floats:
    """Return seconds of ``groups`` products of [m, k] by [k, n] in one launch.

    Args:
        rates: The device.
        m: Rows of the first matrix.
        n: Columns of the second matrix.
        k: Inner dimension.
        groups: Products that share the launch, such as the experts of a layer.
    """
    tiles = groups * np.ceil(m / TILE) * np.ceil(n / TILE)
    waves = np.ceil(tiles / rates.units)
    used = groups * m * n / (waves * rates.units * TILE**2)
    used = np.where(waves >= LONG_WAVES, np.maximum(used, LONG_QUALITY), np.maximum(used, LEAST_QUALITY))
    flop = 2.0 * groups * m * n * k
    computing_s = flop / (rates.product_flop_s * np.minimum(used, 1.0) * (k / (k + RAMP)))
    moved = groups * (rates.operand_bytes * (m * k + n * k) + rates.result_bytes * m * n)
    slowest: Floats = np.maximum(computing_s, moved / rates.memory_bytes_s) + LAUNCH_S
    return slowest


LATENCY_S: Final = 20e-6
"""Of one collective inside a node."""
REDUCE_BYTES: Final = 4.0
"""Gradients are summed in FP32."""
OPERAND_BYTES: Final = {Gear.FP8: 1.0, Gear.MXFP8: 1 + 1 / 32, Gear.NVFP4: 1 / 2 + 1 / 16}
"""An element and its share of the scale of its block."""
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
    wide = FP8_DISPATCH_BYTES if workload.precision.is_low else rates.result_bytes
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
        practice: Constants, with the least share of the traffic that stays.
    """
    window = busy_s * np.where(layouts.zero >= 2, batches, 1.0)
    return np.maximum(data_s - window, practice.exposed_data.value * data_s)


BACKWARD: Final = 2.0
"""Of a forward product: gradients of inputs and of weights."""
ATTENTION_BACKWARD: Final = 2.5
"""Five products for two, the scores computed again (arXiv 2205.14135, appendix B)."""
STATE_BYTES: Final = 30.0
"""Element-wise traffic a hidden element of a layer, forward: norms, residuals, rotary, dropout."""
INNER_BYTES: Final = 6.0
"""And an inner element: activation function."""
ROUTING_BYTES: Final = 12.0
"""And a hidden element of a token sent to an expert: permutation and weighted sum."""
LIGHT_SHARE: Final = 0.5
"""Of the element-wise forward work, what norms and activation functions are."""
LAYER_S: Final = 25e-6
"""Launches of a layer's small kernels."""
ROUTING_S: Final = 35e-6
ROUNDED: Final = 0.03
"""Share by which a published number of parameters may differ from the shape's and mean nothing."""
OPTIMIZER_BYTES: Final = 50.0
"""Read and written a parameter: norm of gradients 4, clipping 8, AdamW 28 in FP32, copy to 16 bits 6, zeroing 4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Seconds of a step by cause; arrays of one length. They add up to the step."""

    products: Floats
    """Matrix products of layers and head, forward and backward."""
    attention: Floats
    elementwise: Floats
    recompute: Floats
    """Forward passes that are run again."""
    tensor: Floats
    experts: Floats
    """All-to-all that does not hide."""
    bubble: Floats
    """Waiting while the pipeline fills and drains."""
    pipeline: Floats
    data: Floats
    optimizer: Floats

    @property
    def step_s(self) -> Floats:
        """Seconds of a step."""
        total: Floats = np.sum([getattr(self, field.name) for field in fields(self)], axis=0)
        return total

    def seconds_by_part(self, index: int) -> dict[str, float]:
        """Return one layout's seconds by name."""
        return {field.name: float(getattr(self, field.name)[index]) for field in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """Seconds of an average layer's forward pass, one micro-batch."""

    products: Floats
    attention: Floats
    elementwise: Floats
    tensor: Floats
    experts: Floats
    head: Floats
    """Of the output head, whole."""


def step_parts(
    shape: ModelShape, workload: Workload, accelerator: Accelerator, layouts: Layouts, practice: Practice
) -> Parts:
    """Return the seconds of a step for each layout.

    Raises:
        ConfigError: The device has no such precision.
    """
    device = rates(accelerator, workload.precision, practice)
    key = (layouts.tensor << 40) + (layouts.micro << 30) + (layouts.expert << 1) + (layouts.pipeline > 1)
    _, which, of = np.unique(key, return_index=True, return_inverse=True)
    few = _layer(shape, workload, layouts.take(which), accelerator.node, device, practice)
    layer = _Layer(**{field.name: getattr(few, field.name)[of] for field in fields(few)})

    again = (layouts.recompute == Recompute.FULL).astype(float)
    lightly = LIGHT_SHARE * (layouts.recompute == Recompute.LIGHT)
    products = (1 + BACKWARD) * layer.products
    attention = (1 + ATTENTION_BACKWARD) * layer.attention
    elementwise = (1 + BACKWARD) * layer.elementwise
    recompute = again * (layer.products + layer.attention) + (again + lightly) * layer.elementwise
    tensor = practice.exposed_tensor.value * (2 + again) * layer.tensor
    experts = (2 + again) * layer.experts
    one = products + attention + elementwise + recompute + tensor + experts
    head = (1 + BACKWARD) * layer.head

    depth = stage_layers(shape, layouts)
    last_depth = depth - (shape.layers % layouts.pipeline > 0)
    at_head = last_depth * one + head >= depth * one
    slowest = np.where(at_head, last_depth, depth)
    busy = slowest * one + at_head * head
    batches = layouts.micro_batches(workload.sequences).astype(float)
    times = batches * slowest
    on = held(shape, layouts)
    traffic = data_s(on, layouts, batches, accelerator.node, device)
    share = np.where(layouts.zero >= 1, on.shared / on.shared_group + on.experts / on.experts_group, on.all)
    between = pipeline_s(shape, workload, layouts, accelerator.node, device)
    return Parts(
        products=times * products + batches * at_head * head,
        attention=times * attention,
        elementwise=times * elementwise,
        recompute=times * recompute,
        tensor=times * tensor,
        experts=times * experts,
        bubble=np.maximum(shape.layers * one + head - busy, 0.0) / layouts.interleave,
        pipeline=practice.exposed_pipeline.value * batches * between,
        data=exposed_data_s(traffic, busy, layouts, batches, practice),
        optimizer=OPTIMIZER_BYTES * share / device.memory_bytes_s,
    )


def assumptions(shape: ModelShape) -> tuple[Assumption, ...]:
    """Return the constants of kernels that no device changes, and how tokens reach the experts of a model."""
    kernels = (
        f"tiles of {TILE}, inner dimension of {RAMP:g} at half rate, last wave hidden from {LONG_WAVES} on, "
        f"{LAUNCH_S * 1e6:g} us a launch"
    )
    moved = (
        f"{STATE_BYTES:g} bytes a hidden and {INNER_BYTES:g} an inner element of a layer, {ROUTING_BYTES:g} a routed "
        f"one, {OPTIMIZER_BYTES:g} a parameter in the optimizer"
    )
    counted = "counted from the kernels of a layer; no profile of a device stands behind it"
    even = Assumption(
        name="roofline.routing",
        value=f"each of {shape.experts} experts gets as many tokens as any other",
        source="no imbalance is modelled; a layer waits for its fullest expert, so that uneven routing takes longer",
        kind=SourceKind.ASSUMED,
    )
    return (
        Assumption(name="roofline.kernels", value=kernels, source=counted, kind=SourceKind.ASSUMED),
        Assumption(name="roofline.traffic", value=moved, source=counted, kind=SourceKind.ASSUMED),
        *((even,) if shape.is_moe else ()),
    )


def _layer(
    shape: ModelShape, workload: Workload, layouts: Layouts, node: int, device: DeviceRates, practice: Practice
) -> _Layer:
    split = layouts.tensor.astype(float)
    tokens = (layouts.micro * workload.sequence).astype(float)
    sparse = shape.expert_layers / shape.layers
    heads = shape.heads * shape.head_dim
    kv = np.ceil(shape.kv_heads / split) * shape.head_dim
    projections = gemm_s(device, tokens, heads / split + 2 * kv, shape.d_model)
    projections = (projections + gemm_s(device, tokens, np.full_like(split, shape.d_model), heads / split)) * _stated(
        shape
    )
    perceptron = (1 - sparse) * _perceptron_s(device, shape, tokens, shape.d_ff, split)
    routed, routing = np.zeros_like(split), np.zeros_like(split)
    inner = (1 - sparse) * shape.d_ff
    if shape.is_moe:
        perceptron = perceptron + sparse * _perceptron_s(device, shape, tokens, shape.d_shared, split)
        own = tokens / split
        local = shape.experts / layouts.expert
        each = own * layouts.expert * shape.experts_per_token / shape.experts
        routed = sparse * _perceptron_s(device, shape, each, shape.d_expert, np.ones_like(split), local)
        routing = ROUTING_BYTES * own * shape.experts_per_token * shape.d_model / device.memory_bytes_s + ROUTING_S
        inner += sparse * (shape.d_shared + shape.experts_per_token * shape.d_expert)
    moved = tokens / split * (STATE_BYTES * shape.d_model + INNER_BYTES * inner) * device.result_bytes / 2.0
    hidden = np.where(layouts.pipeline > 1, practice.exposed_experts_pipelined.value, practice.exposed_experts.value)
    return _Layer(
        products=projections + perceptron + routed,
        attention=2.0 * workload.sequence * tokens * heads / split / device.attention_flop_s,
        elementwise=moved / device.memory_bytes_s + LAYER_S + sparse * routing,
        tensor=tensor_s(shape, workload, layouts, node, device),
        experts=sparse * hidden * experts_s(shape, workload, layouts, node, device, practice),
        head=gemm_s(device, tokens, shape.vocabulary / split, shape.d_model),
    )


def _perceptron_s(
    device: DeviceRates, shape: ModelShape, tokens: Floats, inner: int, split: Floats, groups: Floats | float = 1.0
) -> Floats:
    """Return seconds of a perceptron's products; none has no inner width."""
    if not inner:
        return np.zeros_like(tokens)
    up = gemm_s(device, tokens, (2.0 if shape.gated else 1.0) * inner / split, shape.d_model, groups)
    return up + gemm_s(device, tokens, np.full_like(tokens, shape.d_model), inner / split, groups)


def _stated(shape: ModelShape) -> float:
    """Return how large attention's products are of what the shape says, by the makers' count of active parameters.

    The mixtures whose makers compress attention have fewer parameters than heads and widths tell; nothing else of a
    shape can stand for it. A count within rounding of the shape's own says nothing, nor does that of a dense model: it
    differs by what is tied or left out.
    """
    if not shape.is_moe or shape.published_active is None:
        return 1.0
    sparse = shape.expert_layers
    met = sparse * shape.experts_per_token * shape.perceptron_parameters(shape.d_expert)
    met += sparse * shape.perceptron_parameters(shape.d_shared)
    met += (shape.layers - sparse) * shape.perceptron_parameters(shape.d_ff)
    attention = shape.layers * shape.attention_parameters
    own = met + attention + shape.embedding_parameters
    beyond = shape.published_active - own
    if abs(beyond) < ROUNDED * own:
        return 1.0
    return float(np.clip(1.0 + beyond / attention, 0.1, 2.0))
