"""The noise of the gears: what is measured, when, and that training does not notice."""

import itertools
import json
import math
import os
import random
import socket
import subprocess
import sys
import time
import types
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]

from greentrain.config.schema import PrecisionConfig
from greentrain.control import coordination
from greentrain.control.coordination import LEAD
from greentrain.control.precision import noise as module
from greentrain.control.precision.gearbox import GearBox
from greentrain.control.precision.layers import LayerPlan
from greentrain.control.precision.noise import ELEMENTS, PATIENCE, WARM_UP, Noise, NoiseProbe, _tf32, probed_weights
from greentrain.control.precision.recorder import CallRecorder
from greentrain.errors import GreenTrainWarning
from greentrain.types import Gear, Topology
from recipes.common.model import GPT, Size

WIDTH, BATCH = 32, 8
ALWAYS = 1e9  # a share that allows a probe whenever ``every`` does


def recorded(net: nn.Module) -> bool:
    """Return whether somebody watches the calls of a model."""
    return net._compiled_call_impl is not None


class Net(nn.Module):
    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.reduction = reduction
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return F.mse_loss(self.down(torch.tanh(self.up(x))), x.roll(1, -1), reduction=self.reduction)


class Noisy(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(2 * WIDTH), nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.drop(self.norm(self.up(x))) + 0.01 * random.random() + 0.01 * float(np.random.rand())
        return F.mse_loss(self.down(hidden), x)


def batch(step: int, size: int = BATCH) -> Tensor:
    return torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(step))


def build(
    net: nn.Module, *gears: str, every: int = 1, share: float = ALWAYS, beta: float = 0.9
) -> tuple[GearBox, NoiseProbe]:
    box = GearBox(PrecisionConfig(gears=gears or ("bf16", "fp8"), min_features=16))
    box.attach(net)
    return box, NoiseProbe(box, CallRecorder(net), every, share, beta)


def train(
    net: nn.Module,
    steps: int,
    probe: NoiseProbe | None,
    *,
    size: int = BATCH,
    start: int = 0,
    box: GearBox | None = None,
) -> tuple[list[float], list[Noise]]:
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    losses, found = [], []
    for step in range(start, start + steps):
        loss = net(batch(step, size))
        loss.backward()
        optimizer.step()
        if probe is not None:
            noise = probe.step(step + 1)
            found += [noise] if noise is not None else []
        optimizer.zero_grad()
        losses.append(loss.item())
        if box is not None:
            box.request("fp8" if step % 3 else "bf16")
            box.commit()
    return losses, found


def by_hand(net: Net, box: GearBox, gear: str, x: Tensor) -> Tensor:
    weights = [net.up.weight, net.down.weight]
    with box.at(Gear(gear)):
        return torch.cat([g.flatten() for g in torch.autograd.grad(net(x), weights)])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_sigma_is_the_norm_of_the_gradients_deviation(reduction: str) -> None:
    net = Net(reduction)
    box, probe = build(net, "fp8", "fp16", "fp32")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    for step in range(WARM_UP + 2):
        optimizer.zero_grad()
        net(batch(step)).backward()
        noise = probe.step(step + 1)
    assert noise is not None and noise is probe.noise and noise.step == WARM_UP + 2
    both = batch(step)[:2]
    exact = by_hand(net, box, "fp32", both)
    assert noise.grad_norm == pytest.approx(exact.norm().item(), rel=1e-5)
    assert set(noise.sigma) == {Gear.BF16, Gear.FP16, Gear.FP8}
    for gear, sigma in noise.sigma.items():
        assert sigma == pytest.approx((by_hand(net, box, gear, both) - exact).norm().item(), rel=1e-5)
    apart = (by_hand(net, box, "bf16", both[:1]) - by_hand(net, box, "bf16", both[1:])).norm().item()
    batch_sigma = apart if reduction == "sum" else apart / 2
    assert noise.sigma_batch == pytest.approx(batch_sigma, rel=1e-5)
    assert noise.sigma_ratio == pytest.approx(noise.sigma[Gear.FP8] / noise.sigma[Gear.BF16])
    total = [math.hypot(batch_sigma, noise.sigma[gear]) for gear in (Gear.FP8, Gear.BF16)]
    assert noise.gamma == pytest.approx(total[0] / total[1]) and noise.gamma > 1 and not noise.note
    assert noise.sigma[Gear.BF16] < 0.02 * noise.grad_norm and 2 < noise.sigma_ratio < 40  # type: ignore[operator]


def test_a_small_gpt_has_the_noise_of_the_literature() -> None:
    torch.manual_seed(0)
    net = GPT(Size(vocab=64, context=32, width=64, layers=2, heads=2))
    _, probe = build(net)
    ids = torch.randint(64, (8, 33), generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for step in range(20):
        optimizer.zero_grad()
        net(ids[:, :-1], ids[:, 1:]).backward()
        optimizer.step()
        probe.step(step + 1)
    noise = probe.noise
    assert noise is not None and noise.sigma_ratio is not None and noise.sigma_batch is not None
    assert 4 < noise.sigma_ratio < 40
    assert 0.01 < noise.sigma[Gear.FP8] / noise.grad_norm < 0.3
    assert 1.0 < noise.gamma < 1.1


def test_training_is_bit_identical_with_and_without_probes() -> None:
    def run(probing: bool) -> tuple[list[float], list[Any]]:
        net = Noisy()
        box, probe = build(net)
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(1)
        losses, found = train(net, 30, probe if probing else None, box=box)
        assert not probe.problem and len(found) == (10 if probing else 0)
        state = [t.clone() for t in net.state_dict().values()]
        grads = [p.grad is None for p in net.parameters()]
        return losses, [*state, *grads, torch.get_rng_state(), random.getstate(), str(np.random.get_state())]

    losses, state = run(False)
    probed_losses, probed_state = run(True)
    assert losses == probed_losses
    for a, b in zip(state, probed_state, strict=True):
        assert torch.equal(a, b) if isinstance(a, Tensor) else a == b


def test_gradients_are_not_touched_and_no_hook_is_left() -> None:
    net = Net()
    _, probe = build(net)
    fired: list[int] = []
    for parameter in net.parameters():
        # where DDP and others wait
        parameter.register_post_accumulate_grad_hook(lambda p: fired.append(1))  # type: ignore[no-untyped-call]
    for step in range(WARM_UP + 2):
        net.zero_grad()
        net(batch(step)).backward()
        before = [p.grad.clone() for p in net.parameters() if p.grad is not None]
        count = len(fired)
        noise = probe.step(step + 1)
        assert len(fired) == count
        assert all(torch.equal(p.grad, g) for p, g in zip(net.parameters(), before, strict=True) if p.grad is not None)
    assert noise is not None
    assert not recorded(net)
    assert net.training and not [m for m in net.modules() if m._forward_hooks]


def test_dropout_is_no_noise_of_a_gear() -> None:
    net = Noisy()
    _, probe = build(net)
    (noise,) = train(net, WARM_UP + 2, probe)[1]
    assert noise.sigma[Gear.BF16] < 0.05 * noise.grad_norm and noise.sigma_batch > 0.5 * noise.grad_norm  # type: ignore[operator]


def test_a_scaled_loss_or_part_of_one_gives_the_same_noise() -> None:
    found = []
    for factor in (1.0, 1024.0 / 4):
        _, probe = build(net := Net(), "bf16", "fp16", "fp8")
        for step in range(WARM_UP + 2):
            (net(batch(step)) * factor).backward()
            noise = probe.step(step + 1)
        assert noise is not None
        found.append(noise)
    for gear in (Gear.BF16, Gear.FP8):  # FP16 has what a scaler is for
        assert found[0].sigma[gear] == pytest.approx(found[1].sigma[gear], rel=1e-6)
    assert found[0].grad_norm == pytest.approx(found[1].grad_norm, rel=1e-6)
    assert found[0].sigma_batch == pytest.approx(found[1].sigma_batch, rel=1e-6)


def test_a_framework_that_enters_the_gear_itself_offers_its_training_step() -> None:
    net, wrapped = Net(), Net()
    box = GearBox(PrecisionConfig(gears=("bf16", "fp8"), min_features=16))
    box.attach(net, wrap_forward=False)
    recorder = CallRecorder(net)
    probe = NoiseProbe(box, recorder, 1, ALWAYS)
    for step in range(WARM_UP + 2):
        recorder.offer(net.forward, batch(step))
        with box.context("cpu"):
            loss = net.forward(batch(step))
        loss.backward()  # type: ignore[no-untyped-call]
        noise = probe.step(step + 1)
    _, other = build(wrapped)
    for step in range(WARM_UP + 2):
        wrapped(batch(step)).backward()
        expected = other.step(step + 1)
    assert noise is not None and expected is not None and noise.sigma == expected.sigma


def test_what_dropout_does_to_two_samples_counts_as_what_samples_differ_by() -> None:
    class Drops(Net):
        def forward(self, x: Tensor) -> Tensor:
            return F.mse_loss(self.down(F.dropout(torch.tanh(self.up(x)), 0.5)), x.roll(1, -1))

    _, probe = build(net := Drops())
    for step in range(WARM_UP + 2):
        net(batch(0)[:1].expand(BATCH, -1)).backward()  # one sample eight times, under masks of its own each time
        noise = probe.step(step + 1)
    assert noise is not None and noise.sigma_batch is not None
    assert noise.sigma_batch > 0.1 * noise.grad_norm > 2 * noise.sigma[Gear.BF16]


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_a_layer_that_the_samples_do_not_use_is_left_out(scale: float) -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.idle, self.busy = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return F.mse_loss(self.busy(x), x.roll(1, -1))

    box, probe = build(net := Experts())
    for step in range(WARM_UP + 2):
        net.zero_grad()
        (net(batch(step)) * scale).backward()
        noise = probe.step(step + 1)
    assert noise is not None and not probe.problem
    with box.at(Gear.FP32):
        (exact,) = torch.autograd.grad(net(batch(step)[:2]), [net.busy.weight])
    assert noise.grad_norm == pytest.approx(exact.norm().item(), rel=1e-5)


def test_what_is_not_known_of_the_gears_gives_no_ratio_and_no_gamma() -> None:
    def noise(sigma_batch: float | None = 12.0, **sigma: float) -> Noise:
        by_gear = {Gear(gear): value for gear, value in sigma.items()}
        return Noise(step=1, sigma=by_gear, sigma_batch=sigma_batch, grad_norm=1.0, cost_s=0.0)

    known = noise(fp8=16.0, bf16=5.0)
    assert known.gamma == pytest.approx(20.0 / 13.0, rel=1e-12)  # hypotenuses over 12
    assert known.sigma_ratio == 3.2 and known.note == ""
    for unknown in (noise(fp8=16.0), noise(bf16=5.0), noise()):
        assert unknown.gamma == 1.0 and unknown.sigma_ratio is None
    exact = noise(fp8=16.0, bf16=0.0)  # nothing was rounded: weights that BF16 holds
    assert exact.sigma_ratio is None and exact.gamma == pytest.approx(20.0 / 12.0, rel=1e-12)
    for alone in (noise(None, fp8=16.0, bf16=5.0), noise(0.0, fp8=16.0, bf16=5.0)):
        assert alone.gamma == 1.0 and alone.sigma_ratio == 3.2


def test_batch_norm_gets_more_samples() -> None:
    net = Noisy()
    _, probe = build(net)
    recorded: list[int] = []
    arm = probe._recorder.arm
    probe._recorder.arm = lambda keep=2: (recorded.append(keep), arm(keep))[1]  # type: ignore[method-assign,func-returns-value]
    _, found = train(net, WARM_UP + 2, probe, size=12)
    assert recorded == [module.SAMPLES_WITH_BATCH_NORM] and found[0].sigma_batch is not None
    net.eval()
    probe._arm()
    assert recorded[-1] == module.SAMPLES


def test_a_batch_of_one_knows_no_noise_between_samples() -> None:
    net = Net()
    _, probe = build(net)
    _, found = train(net, WARM_UP + 2, probe, size=1)
    assert found[0].sigma_batch is None and found[0].gamma == 1.0 and "one sample" in found[0].note
    assert found[0].sigma_ratio is not None and 2 < found[0].sigma_ratio < 40


def test_the_mean_over_probes() -> None:
    net = Net()
    _, probe = build(net, beta=0.5)
    _, (first, second) = train(net, WARM_UP + 4, probe)
    _, single = build(other := Net(), beta=0.0)
    _, (_, alone) = train(other, WARM_UP + 4, single)
    # without the pull of the start, two values with beta 0.5 weigh 1 to 2
    expected = math.sqrt((first.grad_norm**2 + 2 * alone.grad_norm**2) / 3)
    assert second.grad_norm == pytest.approx(expected, rel=1e-9) and first.grad_norm != alone.grad_norm


def test_an_overflow_counts_for_nothing() -> None:
    mean = module._Mean()
    for value in (4.0, math.inf, math.nan, 4.0):
        mean.add(value, 0.9)
    assert mean.value == pytest.approx(4.0)
    assert module._mean([1.0, math.nan, 3.0, math.inf]) == 2.0, "nor does that of one rank"
    assert math.isnan(module._mean([math.nan, math.inf]))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("size", "expected"),
    # First: with 32 samples one step of 100. Second: 2 s spent and to come are 1 % of 200 s, of which 90 have passed
    # since the warm-up. Fourth: 10 + 8 s. With 4 samples the first is expected to cost 4 steps, and costs 1.
    [(32, [100, 210, 310, 1810]), (4, [400, 420, 440, 1810])],
)
def test_probes_keep_to_their_share_of_the_time(
    size: int, expected: list[int], clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Net()
    _, probe = build(net, every=20, share=0.01)
    compare = module.compare_gradients
    costs = itertools.chain([1.0, 1.0, 8.0, 1.0], itertools.repeat(0.001))
    spent: list[float] = []

    def slow(*args: Any) -> Any:
        spent.append(next(costs))
        clock[0] += spent[-1]
        return compare(*args)

    monkeypatch.setattr(module, "compare_gradients", slow)
    steps: list[int] = []
    for step in range(1, 2500):
        clock[0] += 1.0
        if probe.next_step is not None and step + 1 >= probe.next_step:
            net.zero_grad()
            net(batch(step, size)).backward()
        if probe.step(step) is not None:
            steps.append(step)
            # Probes before the last one: what this one costs was not known.
            assert len(spent) < 2 or sum(spent) - max(0.0, spent[-1] - spent[-2]) <= 0.0101 * clock[0]
    assert steps[:4] == expected
    assert {b - a for a, b in itertools.pairwise(steps[3:])} == {20}
    assert sum(spent) <= 0.0101 * clock[0]


def test_by_default_probes_take_half_a_percent_of_the_time_and_ten_of_them_are_averaged() -> None:
    net = Net()
    box = GearBox(PrecisionConfig(gears=("bf16", "fp8"), min_features=16))
    box.attach(net)
    usual = NoiseProbe(box, CallRecorder(net), every=1)
    assert usual.next_step == 200, "a probe of a single step, in 200"
    _, likewise = build(Net(), beta=0.9)
    values = [1.0] * len(usual._means)
    for probe in (usual, likewise):
        probe._window = (0.0, 0)
    assert usual._after(5, 6, 0.0, 5.0, values)["means"] == likewise._after(5, 6, 0.0, 5.0, values)["means"]


def test_a_clock_that_stands_still_plans_the_next_probe_all_the_same(clock: list[float]) -> None:
    _, probe = build(net := Net(), every=3)
    _, found = train(net, 20, probe)
    assert [n.step for n in found] == [12, 15, 18] and not probe.problem


def test_what_was_recorded_is_let_go_of_after_the_probe() -> None:
    _, probe = build(net := Net(), every=50)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    held = []
    for step in range(55):
        optimizer.zero_grad()
        net(batch(step)).backward()
        held.append(probe._recorder.rows)
        probe.step(step + 1)
    assert sum(held) == 2 and probe._recorder.rows == 0 and probe.noise is not None


def test_a_forward_without_a_backward_is_no_step_of_training_and_the_next_is_recorded() -> None:
    _, probe = build(net := Net())
    found = []
    for step in range(WARM_UP + 4):
        loss = net(batch(step))
        if step != WARM_UP + 1:  # the step that is armed
            loss.backward()
        found.append(probe.step(step + 1))
    assert [n.step for n in found if n is not None] == [WARM_UP + 3]


def test_a_fault_of_ours_while_it_records_leaves_no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    _, probe = build(net := Net())
    for step in range(WARM_UP + 1):
        net(batch(step)).backward()
        probe.step(step + 1)
    assert recorded(net), "armed"

    def broken() -> Any:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(probe, "_tell_what_is_recorded", broken)
    with pytest.warns(GreenTrainWarning, match="not measured any more: ZeroDivisionError: a bug of ours"):
        probe.step(WARM_UP + 2)
    assert not recorded(net) and probe.next_step is None


def test_on_a_gpu_no_step_is_disturbed_that_a_graph_captures_and_the_step_before_is_not_the_probes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    capturing, waited, step = [True], list[int](), 0
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: waited.append(step))
    for gpu, expected in ((False, [WARM_UP + 2]), (True, [WARM_UP + 7])):
        _, probe = build(net := Net(), every=1000)
        probe._next, capturing[0] = 1, True
        if gpu:
            monkeypatch.setattr(NoiseProbe, "_device", types.SimpleNamespace(type="cuda"))
        found = list[int]()
        for step in range(1, WARM_UP + 10):
            capturing[0] = step < WARM_UP + 6
            net(batch(step)).backward()
            found += [noise.step] if (noise := probe.step(step)) is not None else []
        assert found == expected and waited == (expected if gpu else [])


def test_no_probe_in_the_first_steps_of_a_process_nor_without_any() -> None:
    _, probe = build(net := Net(), every=3)
    _, found = train(net, 40, probe)
    assert [n.step for n in found][:3] == [12, 15, 18]
    _, probe = build(net := Net(), every=0)
    assert probe.next_step is None
    assert train(net, 15, probe)[1] == [] and not recorded(net)


def test_a_step_without_a_probe_costs_less_than_a_microsecond() -> None:
    _, probe = build(Net(), every=10**9)
    costs = []
    for _ in range(20):
        begin = time.perf_counter()
        for step in range(1000):
            probe.step(step)
        costs.append((time.perf_counter() - begin) / 1000)
    assert min(costs) < 1e-6


def test_what_is_known_survives_a_checkpoint_exactly() -> None:
    net = Net()
    _, probe = build(net, "bf16", "fp16", "fp8", every=2)
    train(net, 17, probe)
    state = json.loads(json.dumps(probe.state_dict(), allow_nan=False))
    _, other = build(Net(), "bf16", "fp16", "fp8", every=2)
    other.load_state_dict(state)
    assert other.state_dict() == probe.state_dict() and other.noise == probe.noise and other.noise is not None
    assert other.next_step == probe.next_step
    _, fewer = build(Net(), "bf16", "fp8", every=2)  # gears may change between two runs
    fewer.load_state_dict(state)
    assert fewer.noise is not None and set(fewer.noise.sigma) == {Gear.BF16, Gear.FP8}
    _, more = build(Net(), "bf16", "fp16", "fp8", every=2)
    more.load_state_dict(fewer.state_dict())
    assert more.noise == fewer.noise and more.state_dict()["means"]["fp16"] == [0.0, 0.0], "of a new gear nothing"


def test_a_new_run_starts_from_nothing() -> None:
    _, probe = build(net := Net(), every=2)
    _, other = build(Net(), every=2)
    train(net, 17, probe)
    other.load_state_dict(probe.state_dict())
    probe._recorder.arm()
    probe.restart()
    assert probe.noise is None and probe.next_step == 2 != other.next_step and not recorded(net)
    empty = probe.state_dict()
    other.load_state_dict(json.loads(json.dumps(empty, allow_nan=False)))
    assert other.noise is None and other.state_dict() == empty


def test_a_probe_that_raises_ends_probing_and_not_training() -> None:
    class Fragile(Net):
        def forward(self, x: Tensor) -> Tensor:
            if len(x) < BATCH:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return super().forward(x)

    net, plain = Fragile(), Net()
    box, probe = build(net)
    build(plain)
    with pytest.warns(GreenTrainWarning, match="not measured any more: OutOfMemoryError: CUDA out of memory") as seen:
        losses, found = train(net, WARM_UP + 10, probe)
    assert len(seen) == 1 and found == [] and probe.next_step is None and probe.noise is None
    assert box.gear is Gear.BF16 and not recorded(net)
    assert losses == train(plain, WARM_UP + 10, None)[0]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing(use_reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    class Saving(Net):
        def forward(self, x: Tensor) -> Tensor:
            loss: Any = checkpoint(super().forward, x.requires_grad_(), use_reentrant=use_reentrant)
            return loss  # type: ignore[no-any-return]

    net = Saving()
    _, probe = build(net)
    if use_reentrant:  # has no torch.autograd.grad for what is inside
        with pytest.warns(GreenTrainWarning, match="use_reentrant"):
            train(net, WARM_UP + 2, probe)
    else:
        (noise,) = train(net, WARM_UP + 2, probe)[1]
        _, plain = build(other := Net())
        assert noise.sigma == train(other, WARM_UP + 2, plain)[1][0].sigma


def test_weights_in_low_precision_have_no_reference() -> None:
    net = Net().to(torch.bfloat16)
    _, probe = build(net)
    with pytest.warns(GreenTrainWarning, match="up.weight is stored in bfloat16"):
        for step in range(WARM_UP + 3):
            net(batch(step).bfloat16()).backward()
            probe.step(step + 1)
    assert "bfloat16" in probe.problem


def test_a_model_that_is_never_called_ends_probing() -> None:
    net = Net()
    _, probe = build(net)
    for step in range(WARM_UP + PATIENCE):
        probe.step(step + 1)
    assert not probe.problem and recorded(net), "armed after the step that follows the warm-up"
    with pytest.warns(GreenTrainWarning, match=f"no forward and backward pass of the model was seen in {PATIENCE}"):
        probe.step(WARM_UP + PATIENCE + 1)
    assert not recorded(net)


def test_compiled_models_are_probed_in_eager_and_not_compiled_again() -> None:
    from torch._dynamo.testing import CompileCounter

    net = Net()
    box = GearBox(PrecisionConfig(gears=("bf16", "fp8"), min_features=16))
    box.attach(net)
    counter = CompileCounter()
    net.up.compile(backend=counter)  # one region, and the whole
    model = torch.compile(net, backend=counter)
    probe = NoiseProbe(box, CallRecorder(model), 1, ALWAYS)  # type: ignore[arg-type]
    found = []
    for step in range(WARM_UP + 4):
        model(batch(step)).backward()
        if step == 0:
            frames = counter.frame_count
        found.append(probe.step(step + 1))
    assert sum(one is not None for one in found) == 2 and not probe.problem
    assert counter.frame_count == frames
    torch.compiler.reset()


def test_lora_sees_the_noise_of_frozen_layers_in_what_is_trained() -> None:
    class Lora(Net):
        def __init__(self) -> None:
            super().__init__()
            self.requires_grad_(False)
            self.a = nn.Parameter(torch.randn(4, WIDTH) * 0.1)
            self.b = nn.Parameter(torch.randn(2 * WIDTH, 4) * 0.1)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.up(x) + F.linear(F.linear(x, self.a), self.b)
            return F.mse_loss(self.down(torch.tanh(hidden)), x.roll(1, -1))

    net = Lora()
    box, probe = build(net)
    assert [w.shape for w in probed_weights(net, box.plan)] == [net.a.shape, net.b.shape]
    (noise,) = train(net, WARM_UP + 2, probe)[1]
    assert 2 < (noise.sigma_ratio or 0) < 60


def plan(*names: str) -> list[LayerPlan]:
    sides = {"in_features": 1, "out_features": 1, "parameters": 1}
    return [LayerPlan(name=n, chosen=n != "skipped", reason="", **sides) for n in names]


def test_probed_weights_are_spread_over_depth_and_kinds_and_bounded() -> None:
    with torch.device("meta"):
        layers = {f"{depth}{kind}": nn.Linear(2048, 1024, bias=False) for depth in range(32) for kind in "qkvo"}
        net = nn.ModuleDict({**layers, "skipped": nn.Linear(8, 8), "large": nn.Linear(2**16, 2**16, bias=False)})
    weights = probed_weights(net, plan(*layers, "skipped"))
    assert sum(w.numel() for w in weights) == ELEMENTS, "sixteen layers fill it"
    names = [name for name, layer in layers.items() if any(layer.weight is w for w in weights)]
    assert {name[-1] for name in names} == set("qkvo")
    depths = [int(name[:-1]) for name in names]
    assert min(depths) <= 3 and max(depths) >= 28 and max(b - a for a, b in itertools.pairwise(depths)) <= 4
    assert len(probed_weights(net, plan("large"))) == 1  # at least one
    net["large"].requires_grad_(False)
    hooked = layers["0q"].weight
    hooked.register_hook(lambda g: g)  # type: ignore[no-untyped-call]
    assert [w is layers["0k"].weight for w in probed_weights(net, plan("0q", "0k", "large"))] == [True]
    net.requires_grad_(False)
    with pytest.raises(RuntimeError, match="no weight"):
        probed_weights(net, plan("0k"))


def test_of_a_very_large_model_two_percent_of_the_weights_are_probed() -> None:
    with torch.device("meta"):
        net = nn.ModuleDict({f"{depth}": nn.Linear(2**13, 2**12, bias=False) for depth in range(100)})
    probed = sum(w.numel() for w in probed_weights(net, plan(*net)))
    assert probed == 2 * 2**25 > ELEMENTS, "one layer in fifty: two"


@pytest.mark.parametrize("user_allows", [False, True])
def test_before_torch_2_9_there_is_one_flag_for_tf32(user_allows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = types.SimpleNamespace(allow_tf32=user_allows)
    monkeypatch.setattr(torch.backends.cuda, "matmul", flags)
    with _tf32("cpu"):
        assert flags.allow_tf32 is user_allows
    with _tf32("cuda"):
        assert flags.allow_tf32
    assert flags.allow_tf32 is user_allows


@pytest.mark.parametrize("before", ["none", "ieee", "tf32", "high"])
def test_tf32_is_on_for_a_gpus_reference_and_as_it_was_again(before: str) -> None:
    flags: Any = torch.backends.cuda.matmul  # can be set without a GPU
    if before == "high":
        torch.set_float32_matmul_precision("high")
    elif not hasattr(flags, "fp32_precision"):
        pytest.skip("torch 2.9 and newer")
    else:
        flags.fp32_precision = before
    try:
        precision = getattr(flags, "fp32_precision", None)
        with _tf32("cuda"):
            assert getattr(flags, "fp32_precision", "tf32") == "tf32"
        assert getattr(flags, "fp32_precision", None) == precision
        with _tf32("cpu"):
            assert getattr(flags, "fp32_precision", None) == precision
    finally:
        torch.set_float32_matmul_precision("highest")
        if precision is not None:
            cpu: Any = torch.backends.mkldnn
            flags.fp32_precision = cpu.matmul.fp32_precision = "none"


class Ranks:
    """Two ranks of a job in one process: each has its replica, its samples and its probe; one store joins them."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, batches: tuple[int, int] = (BATCH, BATCH), net: Any = Net, **how: Any
    ) -> None:
        self.rank = self.reads = self.steps = 0
        self.gone = False
        store = HashStore()

        def called(name: str) -> Any:
            if self.gone:
                raise ConnectionError("rank 0 has left")
            self.reads += name == "check"
            return getattr(store, name)

        proxy = type("Store", (), {"__getattr__": lambda _, name: called(name)})()
        monkeypatch.setattr(coordination, "job_store", lambda: proxy)
        monkeypatch.setattr(module, "topology_from_process_group", lambda: Topology(rank=self.rank, world_size=2))
        self.samples = [batch(rank, size) for rank, size in enumerate(batches)]
        self.nets = [net() for _ in batches]
        self.boxes, self.probes = zip(*(build(net, **how) for net in self.nets), strict=True)
        self.found: list[list[tuple[int, Noise]]] = [[], []]

    def run(self, steps: int, *, order: tuple[int, int] = (0, 1), trains: tuple[bool, bool] = (True, True)) -> None:
        """Take steps, the ranks one after the other; the weights stay as they are."""
        for _ in range(steps):
            self.steps += 1
            for self.rank in order:
                if trains[self.rank]:
                    self.nets[self.rank].zero_grad()
                    self.nets[self.rank](self.samples[self.rank]).backward()
                if (noise := self.probes[self.rank].step(self.steps)) is not None:
                    self.found[self.rank].append((self.steps, noise))

    @property
    def problems(self) -> set[str]:
        return {probe.problem for probe in self.probes}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_ranks_probe_after_the_same_step_and_take_over_the_mean_of_all(
    order: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = Ranks(monkeypatch)
    ranks.run(50, order=order)
    assert ranks.found[0] == ranks.found[1] and len(ranks.found[0]) >= 2 and ranks.problems == {""}
    (at, noise), *_ = ranks.found[0]
    assert noise.step < at <= WARM_UP + 1 + 4 * (LEAD + 1), "to arm, to probe and to tell are one agreement each"
    alone = [by_hand(ranks.nets[0], ranks.boxes[0], "fp32", samples[:2]).norm().item() for samples in ranks.samples]
    assert alone[0] != pytest.approx(alone[1], rel=0.01)
    assert noise.grad_norm == pytest.approx(math.hypot(*alone) / math.sqrt(2), rel=1e-5)
    assert ranks.probes[0].state_dict() == ranks.probes[1].state_dict()


def test_a_rank_with_one_sample_decides_for_all_that_the_noise_between_samples_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = Ranks(monkeypatch, batches=(BATCH, 1))
    ranks.run(35)
    assert ranks.found[0] == ranks.found[1] and ranks.problems == {""}
    (_, noise), *_ = ranks.found[0]
    assert noise.sigma_batch is None and noise.gamma == 1.0


def test_the_smallest_batch_says_what_a_first_probe_may_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch, batches=(16, 4), share=0.05)
    ranks.run(110)
    assert ranks.found[0] == ranks.found[1]
    (_, noise), *_ = ranks.found[0]  # two of four samples in eight passes are four steps, so one step in eighty
    assert 80 <= noise.step <= 80 + 3 * LEAD


def test_between_two_probes_ranks_look_seldom_and_are_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch, every=100)
    ranks.run(99)
    assert ranks.reads < 25, "a look costs"
    ranks.run(15)
    (_, noise), *_ = ranks.found[0]
    assert ranks.found[0] == ranks.found[1] and 100 <= noise.step <= 100 + 3 * LEAD


class Fragile(Net):
    """Cannot be called with fewer samples than in training, once it is told so."""

    fails = False

    def forward(self, x: Tensor) -> Tensor:
        if self.fails and len(x) < BATCH:
            raise RuntimeError("only here")
        return super().forward(x)


@pytest.mark.parametrize("rank", [0, 1])
def test_what_ends_probing_on_one_rank_ends_it_on_all(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch, net=Fragile)
    ranks.nets[rank].fails = True
    with pytest.warns(GreenTrainWarning, match="not measured any more: RuntimeError: only here") as told:
        ranks.run(40)
    assert len(told) == 2 and ranks.found == [[], []] and ranks.problems == {"RuntimeError: only here"}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_whose_model_is_never_called_ends_probing_on_all(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch)
    with pytest.warns(GreenTrainWarning, match="not measured any more") as told:
        ranks.run(WARM_UP + PATIENCE + 20, trains=(rank != 0, rank != 1))
    assert ranks.problems == {f"no forward and backward pass of the model was seen in {PATIENCE} steps"}
    assert len(told) == 2 and not any(recorded(net) for net in ranks.nets)


def test_a_rank_that_tells_nothing_is_waited_for_a_while_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch)
    monkeypatch.setattr(ranks.probes[1], "_tell_what_is_recorded", lambda: None)
    ranks.run(WARM_UP + 2 * PATIENCE)
    assert ranks.problems == {""}
    with pytest.warns(GreenTrainWarning, match="not measured any more"):
        ranks.run(PATIENCE + 4 * LEAD)
    assert ranks.problems == {"not all ranks told what they saw"} and ranks.found == [[], []]


def test_a_store_that_is_gone_ends_probing_and_not_training(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch, every=30)
    ranks.run(20)
    ranks.gone = True
    with pytest.warns(GreenTrainWarning, match="not measured any more: not all ranks take part") as told:
        ranks.run(80)
    assert len(told) == 2 and ranks.problems == {"not all ranks take part"}
    assert not any(recorded(net) for net in ranks.nets)


RANKS = """
import json, os, sys
import torch, torch.distributed as dist
from torch import nn
from greentrain.config import PrecisionConfig
from greentrain.control.precision.gearbox import GearBox
from greentrain.control.precision.noise import NoiseProbe
from greentrain.control.precision.recorder import CallRecorder

torch.set_num_threads(1)
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")

class Net(nn.Module):
    def __init__(self, mode):
        super().__init__()
        torch.manual_seed(0)
        self.mode = mode
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        if self.mode == "fails" and rank == 1 and len(x) < 8:
            raise RuntimeError("only here")
        if self.mode == "talks":  # as SyncBatchNorm does
            mean = x.detach().mean(0)
            dist.all_reduce(mean)
            x = x - mean / 2
        return (self.down(torch.tanh(self.up(x))) - x.roll(1, -1)).square().mean()

def run(mode):
    net = Net(mode)
    box = GearBox(PrecisionConfig(gears=("bf16", "fp8"), min_features=16))
    box.attach(net)
    model = nn.parallel.DistributedDataParallel(net)
    probe = NoiseProbe(box, CallRecorder(model), 4, 0.5)
    seen = []
    for step in range(60):
        x = torch.randn(8 + rank, 32, generator=torch.Generator().manual_seed(100 * step + rank))
        if mode == "uneven" and rank == 1:
            x = x[:1]
        model.zero_grad()
        model(x).backward()
        noise = probe.step(step + 1)
        if noise is not None:
            seen.append([step + 1, noise.gamma, noise.sigma_ratio, noise.grad_norm, probe.next_step])
    grads = sum(p.grad.double().sum() for p in net.parameters()).item()
    return {"seen": seen, "problem": probe.problem, "grads": grads}

print(json.dumps({mode: run(mode) for mode in ("plain", "talks", "uneven", "fails")}))
dist.destroy_process_group()
"""
Answers = tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def ranks() -> Answers:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    command = [sys.executable, "-W", "ignore", "-c", RANKS]
    jobs = [
        subprocess.Popen(command, env=os.environ | place | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        first, second = (json.loads(job.communicate(timeout=400)[0].strip().splitlines()[-1]) for job in jobs)
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    return first, second


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["plain", "talks", "uneven"])
def test_ranks_agree_on_gamma_and_on_the_next_probe(mode: str, ranks: Answers) -> None:
    first, second = (answer[mode] for answer in ranks)
    assert first == second and first["seen"] and first["problem"] == ""
    for _, gamma, ratio, *_ in first["seen"]:
        assert (gamma == 1.0) is (mode == "uneven")
        assert 2 < ratio < 100


@pytest.mark.slow
def test_a_failure_on_one_rank_ends_probing_on_all(ranks: Answers) -> None:
    first, second = (answer["fails"] for answer in ranks)
    assert first["seen"] == second["seen"] == [] and first["grads"] == second["grads"]
    assert first["problem"] == second["problem"] == "RuntimeError: only here"
