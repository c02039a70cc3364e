"""A recorded call made again gives the gradient of training."""

import socket
import warnings
from collections import UserDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from greentrain.control.precision import recorder as recorder_module
from greentrain.control.precision.recorder import CallRecorder, KeptSamples, _Call
from greentrain.errors import GreenTrainWarning

B, T, V = 6, 4, 10
X = torch.randn(B, T, 8, generator=torch.Generator().manual_seed(1))
Y = torch.randint(V, (B, T), generator=torch.Generator().manual_seed(2))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, V)

    def logits(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)))  # type: ignore[no-any-return]


class Loss(Net):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(x).flatten(0, 1), y.flatten())


class Logits(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x)


class Flat(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x).flatten(0, 1)


class Both(Net):
    def forward(self, x: Tensor, y: Tensor, mean: bool = True) -> dict[str, Tensor]:
        hidden = torch.tanh(self.body(x))
        logits = self.head(hidden)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        return {"loss": loss, "logits": logits, "hidden": hidden}


class Auxiliary(Net):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.body(x))
        return self.head(hidden), hidden.square().mean()


class AuxiliaryFirst(Auxiliary):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits, auxiliary = super().forward(x)
        return auxiliary, logits


class Halves(Net):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.logits(x).chunk(2, dim=-1)


class HuggingFace(Net):
    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        from transformers.modeling_outputs import CausalLMOutput

        logits = self.logits(input_ids)
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return CausalLMOutput(loss=loss, logits=logits)


def outside(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits.reshape(-1, V), Y.flatten())


CASES: dict[str, tuple[type[Net], Callable[[nn.Module], Tensor]]] = {
    "loss": (Loss, lambda m: m(X, Y)),
    "logits": (Logits, lambda m: outside(m(X))),
    "flat logits": (Flat, lambda m: outside(m(X))),
    "loss and logits": (Both, lambda m: m(X, Y)["loss"]),
    "logits beside the loss": (Both, lambda m: outside(m(X, Y)["logits"])),
    "auxiliary loss": (Auxiliary, lambda m: (lambda o: outside(o[0]) + 0.3 * o[1])(m(X))),
    "auxiliary loss, in front": (AuxiliaryFirst, lambda m: (lambda o: outside(o[1]) + 0.3 * o[0])(m(X))),
    "two views": (Halves, lambda m: outside(torch.cat(m(X), dim=-1))),
    "keywords": (Loss, lambda m: m(y=Y, x=X)),
    "mixed": (Both, lambda m: m(X, mean=True, y=Y)["loss"]),
    "ModelOutput, loss": (HuggingFace, lambda m: m(input_ids=X, labels=Y).loss),
    "ModelOutput, logits": (HuggingFace, lambda m: outside(m(input_ids=X).logits)),
}


def replayed(recorder: CallRecorder, net: nn.Module, rows: int | range = B) -> list[Tensor]:
    replay = recorder.call(rows)
    assert replay is not None
    outputs, sent_back, factor = replay.run(net)
    return [g / factor for g in torch.autograd.grad(outputs, list(net.parameters()), sent_back)]


def same(a: list[Tensor], b: list[Tensor], factor: float = 1.0) -> bool:
    return all(torch.allclose(x, factor * y, rtol=1e-4, atol=1e-7) for x, y in zip(a, b, strict=True))


def grads(net: nn.Module) -> list[Tensor]:
    return [p.grad for p in net.parameters() if p.grad is not None]


def plain(net: nn.Module) -> bool:
    return not net._forward_hooks and not net._forward_pre_hooks and net._compiled_call_impl is None


COMPILED = ("loss", "logits", "ModelOutput, loss")


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("case", "wrapper"),
    [(case, "none") for case in CASES]
    + [(case, wrapper) for case in COMPILED for wrapper in ("compile", "compiled in place")],
)
def test_the_gradient_of_training_comes_back(case: str, wrapper: str) -> None:
    kind, compute = CASES[case]
    net = kind()
    model: Any = net
    if wrapper == "compile":
        model = torch.compile(net, backend="eager")
    elif wrapper == "compiled in place":
        net.compile(backend="eager")
    recorder, called = CallRecorder(model), model._compiled_call_impl
    assert recorder.batch == 0
    recorder.arm(keep=B)
    loss = compute(model)
    assert recorder.rows == 0 and not recorder.problem and recorder.batch == B
    loss.backward()  # type: ignore[no-untyped-call]
    before = [g.clone() for g in grads(net)]
    assert recorder.rows == B
    assert same(replayed(recorder, net), before)
    assert all(torch.equal(a, b) for a, b in zip(grads(net), before, strict=True))
    assert plain(net) if wrapper == "none" else model._compiled_call_impl is called
    recorder.clear()
    assert recorder.rows == 0 and recorder.call(1) is None
    torch.compiler.reset()


@pytest.fixture
def one_rank() -> Iterator[None]:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    dist.init_process_group("gloo", init_method=f"tcp://localhost:{port}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("case", ["loss", "logits"])
def test_ddp(case: str, one_rank: None) -> None:
    kind, compute = CASES[case]
    net = kind()
    model = nn.parallel.DistributedDataParallel(net)
    recorder = CallRecorder(model)
    for _ in range(2):
        model.zero_grad()
        recorder.arm(keep=B)
        compute(model).backward()  # type: ignore[no-untyped-call]
        before = [g.clone() for g in grads(net)]
        assert same(replayed(recorder, net), before)
        assert all(torch.equal(a, b) for a, b in zip(grads(net), before, strict=True))


def test_loss_scale_and_accumulation_are_told_apart_from_the_gradient() -> None:
    net = Loss()
    recorder = CallRecorder(net, lambda: 1024.0)
    recorder.arm(keep=B)
    loss = net(X, Y)
    (loss * 1024.0 / 4).backward()
    replay = recorder.call(B)
    assert replay is not None
    assert replay.run(net)[2] == 256.0
    assert same(replayed(recorder, net), grads(net), 1 / 256)

    net = Logits()  # type: ignore[assignment]
    recorder = CallRecorder(net, lambda: 1024.0)
    recorder.arm(keep=B)
    (outside(net(X)) * 1024.0).backward()  # type: ignore[no-untyped-call]
    assert same(replayed(recorder, net), grads(net), 1 / 1024)


def test_samples_of_logits_add_up_and_those_of_a_mean_loss_average() -> None:
    for kind, factor in ((Logits, 1.0), (Loss, 0.5)):
        net = kind()
        recorder = CallRecorder(net)
        recorder.arm(keep=2)
        CASES["logits" if kind is Logits else "loss"][1](net).backward()  # type: ignore[no-untyped-call]
        assert recorder.rows == 2 and recorder.call(3) is None
        first, second, both = (replayed(recorder, net, rows) for rows in (range(1), range(1, 2), 2))
        assert same(both, [a + b for a, b in zip(first, second, strict=True)], factor)
        assert not same(first, second)


def test_two_backward_passes_through_one_output_are_added() -> None:
    net = Logits()
    recorder = CallRecorder(net)
    recorder.arm(keep=B)
    logits = net(X)
    outside(logits).backward(retain_graph=True)  # type: ignore[no-untyped-call]
    logits.square().mean().backward()
    assert same(replayed(recorder, net), grads(net))


def test_what_happens_to_the_batch_after_the_forward_does_not_matter() -> None:
    net = Loss()
    x = X.clone()
    recorder = CallRecorder(net)
    recorder.arm(keep=B)
    net(x, Y).backward()
    x.zero_()
    assert same(replayed(recorder, net), grads(net))


def test_only_the_next_training_forward_is_recorded() -> None:
    net = Loss()
    recorder = CallRecorder(net)
    recorder.arm()
    with torch.no_grad():
        net(X, Y)
    net.eval()
    net(X, Y).backward()
    net.train()
    assert recorder.rows == 0 and not plain(net)
    net(X[:4], Y[:4]).backward()
    assert recorder.rows == 2 and plain(net)
    replay = recorder.call(1)
    net(X, Y).backward()
    assert replay is not None and replay.batch == 4


def test_armed_twice_it_records_once() -> None:
    net = Logits()
    recorder = CallRecorder(net)
    recorder.arm(keep=B)
    recorder.arm(keep=B)  # the probe asks again where the step before was none of training
    CASES["logits"][1](net).backward()  # type: ignore[no-untyped-call]
    assert plain(net) and same(replayed(recorder, net), grads(net))
    recorder.arm()
    recorder.clear()
    assert plain(net)


class OnGpu:
    """A tensor on a GPU, as far as a recorder looks at one; it has no memory."""

    is_cuda = True

    def __init__(self, rows: int, bytes_a_row: int) -> None:
        self.shape, self.bytes_a_row, self.place = (rows,), bytes_a_row, "in training's hands"

    def detach(self) -> "OnGpu":
        return self

    def dim(self) -> int:
        return 1

    def __getitem__(self, rows: slice) -> "OnGpu":
        return OnGpu(rows.stop, self.bytes_a_row)

    def numel(self) -> int:
        return self.shape[0] * self.bytes_a_row // 2

    def element_size(self) -> int:
        return 2

    def cpu(self) -> "OnGpu":
        self.place = "host"
        return self

    def clone(self) -> "OnGpu":
        self.place = "GPU"
        return self


@pytest.mark.parametrize(("mib_a_row", "place"), [(128, "GPU"), (129, "host"), (1, "GPU")])
def test_a_large_gradient_waits_in_host_memory_and_a_small_one_where_it_is(mib_a_row: int, place: str) -> None:
    call = _Call(KeptSamples(X, 2), None, 1.0, 0)
    call.arrive(0, OnGpu(B, mib_a_row * 2**20))  # type: ignore[arg-type]
    kept: Any = call.gradients[0]
    assert kept.shape == (2,) and kept.place == place, "of two samples, 256 MiB or less stay"


@pytest.mark.parametrize("large", [False, True])
def test_a_gradient_is_kept_as_it_was_and_of_the_kept_samples_alone(
    large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("greentrain.control.precision.recorder.LARGE_BYTES", 0 if large else 2**28)
    call, gradient = _Call(KeptSamples(X, 2), None, 1.0, 0), torch.ones(B * T, V)
    call.arrive(0, gradient)
    gradient.zero_()  # autograd may use its memory again
    assert torch.equal(call.gradients[0], torch.ones(2 * T, V)), "two samples of T positions each"


def test_disarmed_it_leaves_no_hook() -> None:
    net = Loss()
    recorder = CallRecorder(net)
    assert plain(net)
    recorder.arm()
    recorder.disarm()
    assert plain(net)
    net(X, Y).backward()
    assert recorder.rows == 0


def test_a_framework_without_a_forward_offers_its_loss() -> None:
    net = Loss()
    recorder = CallRecorder(net, lambda: 8.0)

    def step(batch: tuple[Tensor, Tensor]) -> Tensor:
        return net.forward(*batch)

    recorder.offer(step, (X, Y))
    assert recorder.rows == 0  # not armed
    recorder.arm(keep=3)
    recorder.offer(step, (X, Y))
    assert recorder.rows == 3 and plain(net)
    step((X[:3], Y[:3])).backward()  # type: ignore[no-untyped-call]
    assert same(replayed(recorder, net, 3), grads(net))
    recorder.arm()
    recorder.disarm()
    recorder.offer(step, (X, Y))
    assert recorder.rows == 0, "disarmed, nothing is kept of what a framework offers"


class Momentum(Net):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.body.weight.mul_(0.99)
        return self.logits(x)


def test_what_cannot_be_called_again_says_so() -> None:
    net: Any = nn.Linear(8, 2)
    recorder = CallRecorder(net)
    recorder.arm()
    net.forward = lambda x: F.linear(torch.ones(1, 8) * x, net.weight)
    net(torch.tensor(1.0)).sum().backward()
    assert "no tensor with a batch dimension" in recorder.problem and recorder.rows == 0 and plain(net)

    net = Momentum()
    recorder = CallRecorder(net)
    recorder.arm()
    net(X).sum().backward()
    assert "changes parameters in place" in recorder.problem and recorder.rows == 0

    net = Loss()
    net.head.weight.ds_numel = 160
    recorder = CallRecorder(net)
    recorder.arm()
    assert "ZeRO-3" in recorder.problem and plain(net)

    class FullyShardedDataParallel(nn.Sequential):
        """FSDP 1, as far as its name goes."""

    net = nn.Sequential(FullyShardedDataParallel(nn.Linear(2, 2)))
    recorder = CallRecorder(net)
    recorder.arm()
    assert "split over ranks by FSDP, and one pass alone would gather them" in recorder.problem and plain(net)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, inside its compiler
def test_a_model_that_is_compiled_whole_after_it_was_watched_is_trained_and_not_recorded() -> None:
    net = Logits()
    recorder = CallRecorder(net)
    recorder.arm()
    torch.compiler.reset()
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    outside(compiled(X)).backward()  # type: ignore[no-untyped-call]
    torch.compiler.reset()
    assert len(grads(net)) == 4 and recorder.rows == 0
    assert recorder.problem == "it was compiled after it was watched: watch what torch.compile returned"


class Strict(UserDict[str, Tensor]):
    """Settings that nobody may change any more."""

    closed = False

    def __setitem__(self, key: str, value: Tensor) -> None:
        if self.closed:
            raise TypeError("read-only")
        super().__setitem__(key, value)


@dataclass
class Unfinished:
    logits: Tensor
    loss: Tensor = field(init=False)


@pytest.mark.parametrize("what", ["input", "offer", "output", "gradient"])
def test_what_cannot_be_recorded_is_trained_all_the_same(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Takes(Net):
        def forward(self, x: Any) -> Unfinished:
            return Unfinished(self.logits(x["x"]))

    net, x = Takes(), Strict(x=X)
    x.closed = what in ("input", "offer")
    if what == "gradient":
        monkeypatch.setattr(Unfinished, "loss", None, raising=False)  # finished, or the output would not be looked at
        monkeypatch.setattr(recorder_module, "LARGE_BYTES", None)  # a bug of ours
    recorder = CallRecorder(net)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        recorder.arm()
        if what == "offer":
            recorder.offer(lambda batch: outside(net(batch).logits), x)
        outside(net(x).logits).backward()  # type: ignore[no-untyped-call]
        assert len(grads(net)) == 4 and recorder.rows == 0
    if x.closed:
        assert recorder.problem == "what it is called with cannot be kept (TypeError('read-only'))" and plain(net)
        assert not told, "the probe says it"
    else:
        assert [one.category for one in told] == [GreenTrainWarning]


def test_parameters_split_by_fsdp_2(one_rank: None) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net = Loss()
    fully_shard(net, mesh=init_device_mesh("cpu", (1,)))
    recorder = CallRecorder(net)
    recorder.arm()
    assert "FSDP 2" in recorder.problem


class Sum(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x).sum((0, 1))


class TimeFirst(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x).transpose(0, 1)


def test_an_output_that_is_a_sum_over_samples_has_one_gradient_for_all() -> None:
    net = Sum()
    recorder = CallRecorder(net)
    recorder.arm(keep=B)
    net(X).square().sum().backward()
    assert same(replayed(recorder, net), grads(net))


@pytest.mark.parametrize("again", ["fewer", "constant"])
def test_a_model_that_gives_other_outputs_when_it_is_called_again_is_an_error_of_the_replay(again: str) -> None:
    class Fickle(Net):
        fewer = constant = False

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return (x, x)[: 1 if self.fewer else 2] if self.fewer or self.constant else (x, self.logits(x))

    net = Fickle()
    recorder = CallRecorder(net)
    recorder.arm(keep=B)
    outside(net(X)[1]).backward()  # type: ignore[no-untyped-call]
    setattr(net, again, True)
    with pytest.raises(RuntimeError, match="called again, the model gives no output of those that had a gradient"):
        replayed(recorder, net)


def test_an_output_whose_batch_is_not_its_first_dimension_is_an_error_of_the_replay() -> None:
    net = TimeFirst()
    recorder = CallRecorder(net)
    recorder.arm()
    net(X).square().sum().backward()
    with pytest.raises(RuntimeError, match="first dimension is not the batch"):
        replayed(recorder, net, 2)
