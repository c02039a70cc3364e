"""Phases from hooks on torch objects. Hooks only mark timestamps; numbers in the model are not touched."""

import functools
from collections.abc import Callable
from typing import Any, Protocol

from greentrain.control.interfaces import is_engine
from greentrain.errors import ConfigError
from greentrain.types import Phase


class Marks(Protocol):
    """The part of a session that hooks use."""

    parameters: int | None

    def begin(self, name: str) -> int:
        """Enter a phase."""
        ...

    def end(self, name: str, token: int = 0) -> None:
        """Leave a phase."""
        ...

    def step(self, tokens: int = 0, samples: int = 0) -> None:
        """Mark the end of a step."""
        ...


class PhaseHooks:
    """Holds the hooks of one session and takes them off again.

    Args:
        session: Where phases and steps are marked.
    """

    def __init__(self, session: Marks) -> None:
        self._session = session
        self._undo: list[Callable[[], None]] = []

    def check(self, model: Any, optimizer: Any) -> None:
        """Check what is to be watched before anything is changed.

        Raises:
            ConfigError: An object is neither module, engine nor optimizer.
        """
        if model is not None and not is_engine(model) and not hasattr(model, "register_forward_pre_hook"):
            raise ConfigError(
                f"watch(model=...) got a {type(model).__name__}; pass a torch.nn.Module or a DeepSpeed engine"
            )
        if optimizer is not None and not hasattr(optimizer, "register_step_pre_hook"):
            raise ConfigError(f"watch(optimizer=...) got a {type(optimizer).__name__}; pass a torch.optim.Optimizer")

    def watch(self, model: Any, optimizer: Any, stepped: Callable[[], None] | None = None) -> None:
        """Hook a model and an optimizer; a DeepSpeed engine as model brings its own optimizer.

        Args:
            model: A torch module or an engine; None: no model.
            optimizer: A torch optimizer; None: no optimizer.
            stepped: Called after each optimizer step of an engine, which is no optimizer's step hook: ZeRO-3 steps
                once a sub-group.

        Raises:
            ConfigError: An object is neither module, engine nor optimizer.
        """
        self.check(model, optimizer)
        if model is not None and is_engine(model):
            self._watch_engine(model, stepped)
        elif model is not None:
            self._watch_module(model)
        if optimizer is not None:
            self._watch_optimizer(optimizer)

    def release(self) -> None:
        """Take every hook off. Idempotent."""
        while self._undo:
            self._undo.pop()()

    def _watch_module(self, module: Any) -> None:
        session = self._session
        session.parameters = sum(p.numel() for p in module.parameters())
        open_tokens: list[tuple[str, int]] = []

        def before(module: Any, args: Any) -> None:
            name = Phase.FORWARD.value if module.training else Phase.EVAL.value
            open_tokens.append((name, session.begin(name)))

        def after(module: Any, args: Any, output: Any) -> None:
            if open_tokens:
                session.end(*open_tokens.pop())

        self._undo.append(module.register_forward_pre_hook(before).remove)
        self._undo.append(module.register_forward_hook(after, always_call=True).remove)

    def _watch_optimizer(self, optimizer: Any) -> None:
        session = self._session
        name = Phase.OPTIMIZER.value
        self._undo.append(optimizer.register_step_pre_hook(lambda *_: _drop(session.begin(name))).remove)
        self._undo.append(optimizer.register_step_post_hook(lambda *_: session.end(name)).remove)

    def _watch_engine(self, engine: Any, stepped: Callable[[], None] | None) -> None:
        def on_step() -> None:
            if stepped is not None:
                stepped()
            self._session.step()

        self._watch_module(engine)
        self._wrap(engine, "backward", Phase.BACKWARD.value)
        self._wrap(engine, "step", Phase.OPTIMIZER.value, steps=lambda: int(engine.global_steps), on_step=on_step)

    def _wrap(
        self,
        engine: Any,
        method: str,
        phase: str,
        steps: Callable[[], int] = lambda: 0,
        on_step: Callable[[], None] = lambda: None,
    ) -> None:
        session, original = self._session, getattr(engine, method)
        own = method in vars(engine)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            before = steps()
            token = session.begin(phase)
            try:
                return original(*args, **kwargs)
            finally:
                session.end(phase, token)
                if steps() > before:
                    on_step()

        def undo() -> None:
            if own:
                setattr(engine, method, original)
            else:
                vars(engine).pop(method, None)

        setattr(engine, method, wrapped)
        self._undo.append(undo)


def _drop(value: object) -> None:
    """Return None, as optimizer hooks must."""
