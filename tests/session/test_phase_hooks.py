"""Hooks mark phases on real torch objects and on an engine with DeepSpeed's methods, and come off again."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from greentrain import GreenSession
from greentrain.errors import ConfigError
from greentrain.session.session import PhaseHooks


class Marks:
    """A session that only remembers."""

    def __init__(self) -> None:
        self.parameters: int | None = None
        self.heard: list[str] = []
        self.open: dict[int, str] = {}
        self.steps = 0

    def begin(self, name: str) -> int:
        token = len(self.heard) + 1
        self.open[token] = name
        self.heard.append(f"+{name}")
        return token

    def end(self, name: str, token: int = 0) -> None:
        if not token:
            token = next(t for t in reversed(self.open) if self.open[t] == name)
        assert self.open.pop(token) == name
        self.heard.append(f"-{name}")

    def step(self, tokens: int = 0, samples: int = 0) -> None:
        self.steps += 1
        self.heard.append("step")


class DeepSpeedLike(torch.nn.Module):
    """What a watcher sees of DeepSpeedEngine (deepspeed 0.19, deepspeed/runtime/engine.py): names, signatures,
    return values, counters, and attributes of the module passed through."""

    def __init__(self, module: torch.nn.Module, gas: int) -> None:
        super().__init__()
        self.module = module
        self.optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        self.gas = gas
        self.global_steps = 0
        self.micro_steps = 0

    def __getattr__(self, name: str) -> Any:
        modules = self.__dict__["_modules"]
        if name in modules:
            return modules[name]
        return getattr(modules["module"], name)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.module(*inputs, **kwargs)

    def is_gradient_accumulation_boundary(self) -> bool:
        return (self.micro_steps + 1) % self.gas == 0

    def backward(self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True) -> torch.Tensor:
        loss.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]
        return loss / self.gas if scale_wrt_gas else loss

    def step(self, lr_kwargs: Any = None) -> None:
        if self.is_gradient_accumulation_boundary():
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.global_steps += 1
        self.micro_steps += 1


@pytest.fixture
def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(3, 1)


@pytest.fixture
def marks() -> Marks:
    return Marks()


@pytest.fixture
def watcher(marks: Marks) -> Iterator[PhaseHooks]:
    watcher = PhaseHooks(marks)
    yield watcher
    watcher.release()
    assert not marks.open


def test_a_model_and_its_optimizer_mark_their_phases(net: torch.nn.Module, marks: Marks, watcher: PhaseHooks) -> None:
    optimizer = torch.optim.AdamW(net.parameters())
    watcher.watch(net, optimizer)
    net(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    net.eval()
    net(torch.ones(2, 3))
    assert marks.heard == ["+forward", "-forward", "+optimizer", "-optimizer", "+eval", "-eval"]
    assert marks.parameters == 4


def test_after_release_nothing_is_left_on_the_objects(net: torch.nn.Module, marks: Marks, watcher: PhaseHooks) -> None:
    optimizer = torch.optim.SGD(net.parameters())
    watcher.watch(net, optimizer)
    watcher.release()
    watcher.release()
    net(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert not marks.heard
    assert "_compiled_call_impl" not in vars(net)
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks


def test_a_forward_that_raises_leaves_no_phase_open(marks: Marks, watcher: PhaseHooks) -> None:
    net = torch.nn.Linear(3, 1)
    watcher.watch(net, None)
    with pytest.raises(RuntimeError):
        net(torch.ones(2, 99))
    assert not marks.open
    net(torch.ones(2, 3))
    assert marks.heard[-2:] == ["+forward", "-forward"]


class Timed(Marks):
    """Looks at a clock, as a session does: nothing that dynamo can trace."""

    def begin(self, name: str) -> int:
        time.monotonic()
        return super().begin(name)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, inside its compiler
def test_a_compiled_step_is_a_phase_and_dynamo_does_not_follow_it_into_the_session(net: torch.nn.Module) -> None:
    marks = Timed()
    watcher, optimizer = PhaseHooks(marks), torch.optim.SGD(net.parameters(), lr=0.1)
    watcher.watch(None, optimizer)
    torch.compiler.reset()
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(2):
        net(torch.ones(2, 3)).sum().backward()
        step()
    torch.compiler.reset()
    watcher.release()
    assert marks.heard == ["+optimizer", "-optimizer"] * 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("in_place", [False, True])
def test_a_model_that_is_compiled_whole_after_it_was_watched_holds_no_clock(in_place: bool) -> None:
    class Net(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).relu()

    marks, net = Timed(), Net(3, 1)
    watcher = PhaseHooks(marks)
    watcher.watch(net, None)
    expected = net(torch.ones(2, 3))
    assert marks.heard == ["+forward", "-forward"]
    torch.compiler.reset()
    if in_place:
        net.compile(backend="eager", fullgraph=True)
    model: Any = net if in_place else torch.compile(net, backend="eager", fullgraph=True)
    assert torch.equal(model(torch.ones(2, 3)), expected)
    torch.compiler.reset()
    watcher.release()
    seen = 2 if in_place else 1  # from outside of the graph, where the module itself is called
    assert marks.heard == ["+forward", "-forward"] * seen


def test_a_module_that_calls_itself_nests(marks: Marks, watcher: PhaseHooks) -> None:
    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor, again: bool = True) -> torch.Tensor:
            return torch.as_tensor(self(x, again=False)) + 1 if again else x

    net = Twice()
    watcher.watch(net, None)
    net(torch.ones(1))
    assert marks.heard == ["+forward", "+forward", "-forward", "-forward"]


@pytest.mark.parametrize(
    ("model", "optimizer", "name"),
    [("net", None, "str"), (None, "sgd", "str"), (3, None, "int"), (None, torch.nn.Linear(1, 1), "Linear")],
)
def test_other_objects_are_refused_by_name(watcher: PhaseHooks, model: Any, optimizer: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=f"got a {name}"):
        watcher.watch(model, optimizer)


def test_a_refused_pair_hooks_neither(net: torch.nn.Module, marks: Marks, watcher: PhaseHooks) -> None:
    with pytest.raises(ConfigError):
        watcher.watch(net, "no optimizer")
    net(torch.ones(2, 3))
    assert not marks.heard


@pytest.mark.parametrize("gas", [1, 3])
def test_an_engines_steps_are_counted_at_the_boundaries(
    net: torch.nn.Module, marks: Marks, watcher: PhaseHooks, gas: int
) -> None:
    engine = DeepSpeedLike(net, gas)
    watcher.watch(engine, None)
    for _ in range(6):
        loss = engine(torch.ones(2, 3)).mean()
        scaled = engine.backward(loss, retain_graph=False, scale_wrt_gas=True)
        assert torch.equal(scaled, loss / gas)
        assert engine.step(lr_kwargs=None) is None  # type: ignore[func-returns-value]
    assert marks.steps == engine.global_steps == 6 // gas
    micro = ["+forward", "-forward", "+backward", "-backward", "+optimizer", "-optimizer"]
    assert [word for word in marks.heard if word != "step"] == micro * 6
    assert marks.heard[len(micro) * gas] == "step"


def test_an_engine_is_given_back_as_it_was(net: torch.nn.Module, marks: Marks, watcher: PhaseHooks) -> None:
    engine = DeepSpeedLike(net, 1)
    before = set(vars(engine))
    watcher.watch(engine, None)
    assert engine.backward.__name__ == "backward" and engine.step.__doc__ == DeepSpeedLike.step.__doc__
    watcher.release()
    assert set(vars(engine)) == before
    assert engine.step.__func__ is DeepSpeedLike.step  # type: ignore[attr-defined]


def test_an_engine_whose_backward_raises_passes_it_on(net: torch.nn.Module, marks: Marks, watcher: PhaseHooks) -> None:
    engine = DeepSpeedLike(net, 1)
    watcher.watch(engine, None)
    with pytest.raises(RuntimeError):
        engine.backward(torch.ones(1))
    assert marks.heard == ["+backward", "-backward"] and marks.steps == 0


def test_closing_a_session_takes_its_hooks_off(net: torch.nn.Module, tmp_path: Any) -> None:
    config = {"run": {"dir": str(tmp_path), "report": False, "live": False}, "power": {"meters": "cpu_model"}}
    optimizer = torch.optim.SGD(net.parameters())
    with GreenSession(config) as green:
        green.watch(net, optimizer)
        net(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        green.step(samples=2)
    assert "_compiled_call_impl" not in vars(net) and not optimizer._optimizer_step_post_hooks
    assert green.parameters == 4
    assert {"forward", "optimizer"} <= green.totals().phase_s.keys()


def test_what_is_watched_twice_is_hooked_once(net: torch.nn.Module) -> None:
    marks = Marks()
    hooks = PhaseHooks(marks)
    engine = DeepSpeedLike(net, gas=1)
    for _ in range(2):
        hooks.watch(engine, None)
    engine.backward(engine(torch.ones(2, 3)).sum())
    engine.step()
    assert marks.steps == 1
    assert marks.heard == ["+forward", "-forward", "+backward", "-backward", "+optimizer", "-optimizer", "step"]
    hooks.release()
    hooks.watch(net, None)
    net(torch.ones(2, 3))
    assert marks.heard[-2:] == ["+forward", "-forward"]


def test_the_number_of_parameters_is_that_of_the_whole_model_where_zero_3_shards_it(marks: Marks) -> None:
    net = torch.nn.Linear(3, 1)
    vars(net.weight)["ds_numel"] = 300
    hooks = PhaseHooks(marks)
    hooks.watch(net, None)
    assert marks.parameters == 301
    hooks.release()


def test_an_engine_whose_methods_were_exchanged_by_somebody_else_gets_those_back(
    net: torch.nn.Module, marks: Marks
) -> None:
    engine = DeepSpeedLike(net, 1)
    own = engine.step

    def patched() -> None:
        own()

    vars(engine)["step"] = patched
    hooks = PhaseHooks(marks)
    hooks.watch(engine, None)
    engine.step()
    assert marks.steps == 1 and engine.step is not patched
    hooks.release()
    assert vars(engine)["step"] is patched and "backward" not in vars(engine)


def test_who_wants_each_step_of_an_engine_is_told_before_it_is_counted(net: torch.nn.Module, marks: Marks) -> None:
    engine = DeepSpeedLike(net, 2)
    hooks = PhaseHooks(marks)
    hooks.watch(engine, None, lambda: marks.heard.append("stepped"))
    for _ in range(4):
        engine.step()
    assert [word for word in marks.heard if word in ("stepped", "step")] == ["stepped", "step"] * 2
    hooks.release()


def test_a_model_that_is_watched_between_two_calls_of_its_own_ends_no_phase_that_it_did_not_begin(
    marks: Marks, watcher: PhaseHooks
) -> None:
    class Watching(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not watcher.watched:
                watcher.watch(self, None)
            return x

    net = Watching()
    net(torch.ones(1))
    assert marks.heard == []
    net(torch.ones(1))
    assert marks.heard == ["+forward", "-forward"]


def test_two_optimizers_of_one_model_are_both_phases_and_count_no_step(net: torch.nn.Module, marks: Marks) -> None:
    hooks = PhaseHooks(marks)
    optimizers = [torch.optim.SGD([parameter], lr=0.1) for parameter in net.parameters()]
    for optimizer in optimizers:
        hooks.watch(net, optimizer)
    assert hooks.watched == [net, *optimizers]
    net(torch.ones(2, 3)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    assert marks.heard == ["+forward", "-forward", *["+optimizer", "-optimizer"] * 2] and marks.steps == 0
    hooks.release()
