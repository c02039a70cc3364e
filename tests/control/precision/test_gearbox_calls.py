"""Watched calls of a module: no copy, pickle, script or graph sees that somebody watches."""

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from greentrain.control.precision.gearbox import around_calls, compiled_call, in_graph

X = torch.ones(2, 3)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rectified: torch.Tensor = self.layer(x).relu()
        return rectified


class Heard(list[str]):
    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.append(f"before {len(args)} {sorted(kwargs)}")

    def after(self, module: nn.Module, output: Any) -> None:
        self.append("after" if output is not None else "raised")


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def watched() -> tuple[Net, Heard, Any]:
    net, heard = Net(), Heard()
    return net, heard, around_calls(net, heard.before, heard.after)


def test_both_sides_of_each_call_are_seen_until_they_are_taken_off() -> None:
    net, heard, remove = watched()
    plain = Net.forward(net, X)
    assert torch.equal(net(X), plain) and torch.equal(net(x=X), plain)
    with pytest.raises(TypeError):
        net(X, nonsense=1)
    assert heard == ["before 1 []", "after", "before 0 ['x']", "after", "before 1 ['nonsense']", "raised"]
    remove()
    remove()
    assert torch.equal(net(X), plain) and len(heard) == 6
    assert vars(net).keys() == vars(Net()).keys()


def test_who_came_last_is_nearest_to_the_call_and_each_leaves_alone() -> None:
    net, order = Net(), list[str]()

    def watcher(name: str) -> Any:
        return around_calls(net, lambda *_: order.append("+" + name), lambda *_: order.append("-" + name))

    first, second = watcher("a"), watcher("b")
    net(X)
    first()
    net(X)
    second()
    net(X)
    assert order == ["+a", "+b", "-b", "-a", "+b", "-b"]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("kind", ["deepcopy", "copy", "pickle", "torch.save", "script", "trace"])
def test_a_copy_of_any_kind_is_plain(kind: str) -> None:
    net, heard, _ = watched()
    if kind == "torch.save":
        file = io.BytesIO()
        torch.save(net, file)
        file.seek(0)
    kinds: dict[str, Callable[[], Any]] = {
        "deepcopy": lambda: copy.deepcopy(net),
        "copy": lambda: copy.copy(net),
        "pickle": lambda: pickle.loads(pickle.dumps(net)),
        "torch.save": lambda: torch.load(file, weights_only=False),
        "script": lambda: torch.jit.script(net),
        "trace": lambda: torch.jit.trace(net, X),  # type: ignore[no-untyped-call]
    }
    made = kinds[kind]()
    heard.clear()
    assert torch.equal(made(X), Net.forward(net, X)) and not heard
    net(X)
    assert heard == ["before 1 []", "after"]


def test_a_copy_and_its_pickle_need_nothing_of_ours() -> None:
    class Bare(Net):
        """Keeps all attributes, as DDP does."""

        def __getstate__(self) -> dict[str, Any]:
            return dict(vars(self))

    net = Bare()
    around_calls(net, lambda *_: None, lambda *_: None)
    other = copy.deepcopy(net)
    assert other._compiled_call_impl is None and vars(other)["compile"] == other.compile
    assert vars(other)["compile"].__self__ is other and b"greentrain" not in pickle.dumps(Net() and watched()[0])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, inside its compiler
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_module_compiled_in_place_is_seen_from_outside(fresh_compiler: None, when: str) -> None:
    net, heard = Net(), Heard()
    plain = net(X)
    if when == "before":
        net.compile(backend="eager", fullgraph=True)
    remove = around_calls(net, heard.before, heard.after)
    if when == "after":
        copy.deepcopy(net).compile(backend="eager")
        assert compiled_call(net) is None, "a copy is compiled by itself"
        net.compile(backend="eager", fullgraph=True)
    call = compiled_call(net)
    assert call is not None and torch.equal(net(X), plain)
    assert heard == ["before 1 []", "after"]
    remove()
    assert net._compiled_call_impl is call and "compile" not in vars(net)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_larger_graph_is_whole_and_hides_the_calls(fresh_compiler: None) -> None:
    net, heard, _ = watched()
    plain = net(X)
    heard.clear()
    assert not in_graph(net)
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), plain) and not heard and in_graph(net)
    counted = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    around_calls(net, heard.before, heard.after)()  # one that comes and goes compiles nothing again
    compiled(X)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == counted
    outer = torch.compile(nn.Sequential(net, nn.ReLU()), backend="eager", fullgraph=True)
    assert torch.equal(outer(X), plain) and not heard


def test_a_wrapper_of_torch_compile_is_seen_and_its_model_is_not(fresh_compiler: None) -> None:
    net, heard = Net(), Heard()
    compiled: Any = torch.compile(net, backend="eager")
    remove = around_calls(compiled, heard.before, heard.after)
    compiled(X)
    assert heard == ["before 1 []", "after"] and net._compiled_call_impl is None
    remove()
    assert "_compiled_call_impl" not in vars(compiled)


def test_a_replica_of_data_parallel_computes_with_its_own_weights() -> None:
    net, heard, _ = watched()
    replica: Any = net._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
    replica.layer = nn.Linear(3, 2)
    with torch.no_grad():
        replica.layer.bias.fill_(9.0)
    assert torch.equal(replica(X), Net.forward(replica, X)) and not torch.equal(replica(X), Net.forward(net, X))
    assert not heard


def test_a_watched_module_is_freed_as_soon_as_nobody_has_it() -> None:
    gc.disable()
    try:
        net = watched()[0]
        gone = weakref.ref(net)
        del net
        assert gone() is None
    finally:
        gc.enable()
