"""What the adapters share: hooks come one after the other, so one phase is open at a time.

Once training runs, nothing here raises.
How many tokens and samples a batch holds is counted from shapes alone: nothing waits for the device.
"""

import contextlib
import functools
import json
import os
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar

import torch

from greentrain.callbacks import CONFIG
from greentrain.config.schema import GreenConfig
from greentrain.control.precision.gearbox import around_calls, unwrap
from greentrain.errors import GreenTrainError
from greentrain.report.live.terminal import name_report
from greentrain.session.session import GreenSession
from greentrain.session.work_count import BatchGroup
from greentrain.types import Phase, Topology
from greentrain.utils.background import BackgroundCall
from greentrain.utils.files import write_json
from greentrain.utils.never_raise import never_raises, warn
from greentrain.utils.topology import local_size

_TOKEN_TYPES = (torch.int64, torch.int32)
_MAX_DEPTH = 3
CARD_S = 5.0
"""Longest wait for the model card of what is saved behind a training (s)."""


def count(batch: Any) -> tuple[int, int]:
    """Return tokens and samples of a batch.

    ``input_ids``, wherever it is found, is tokens. Otherwise the first tensor decides: integers of shape (batch,
    time) are tokens, anything else is samples. Padding counts: whether a token is padding only the device knows.

    Args:
        batch: A tensor, or mappings and sequences of tensors as data loaders make them.

    Returns:
        (tokens, samples); 0 where the batch does not tell.
    """
    ids = _input_ids(batch)
    if ids is not None:
        return ids.numel(), ids.shape[0] if ids.dim() > 1 else 1
    first = next(_tensors(batch), None)
    if first is None or first.dim() == 0:
        return 0, 0
    tokens = first.numel() if first.dim() == 2 and first.dtype in _TOKEN_TYPES else 0
    return tokens, first.shape[0]


def _input_ids(batch: Any) -> torch.Tensor | None:
    found = batch.get("input_ids") if isinstance(batch, Mapping) else getattr(batch, "input_ids", None)
    if isinstance(found, torch.Tensor):
        return found
    if isinstance(batch, (list, tuple)):
        for item in batch[:8]:
            if isinstance(item, Mapping) and isinstance(item.get("input_ids"), torch.Tensor):
                ids: torch.Tensor = item["input_ids"]
                return ids
    return None


def _tensors(batch: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif depth < _MAX_DEPTH:
        if isinstance(batch, Mapping):
            items: Iterable[Any] = batch.values()
        elif isinstance(batch, (list, tuple)):
            items = batch
        else:
            return
        for item in items:
            yield from _tensors(item, depth + 1)


T = TypeVar("T")


def calling(kind: type[T]) -> T | None:
    """Return the nearest ``self`` of a class among the callers, or None."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, kind):
            return found
        frame = frame.f_back
    return None


KEPT_S: Final = 5.0
"""Longest wait for the totals of the last checkpoint (s), at the end and before they are read."""
SessionLike = GreenSession | GreenConfig | Mapping[str, Any] | str | Path | None
"""A finished session, or anything GreenSession accepts."""


class _CardedSave:
    """The ``save_pretrained`` of one model, with the footprint in a README.md beside it; a copy has the plain one."""

    def __init__(self, model: Any, session: GreenSession) -> None:
        self._model, self._session = weakref.ref(model), weakref.ref(session)

    def __call__(self, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
        model: Any = self._model()
        session = self._session()
        result = type(model).save_pretrained(model, save_directory, *args, **kwargs)
        if session is not None and session.folder is not None and Path(save_directory).is_dir():
            session.write_card(Path(save_directory) / "README.md", wait_s=0.0 if session.running else CARD_S)
        return result

    def __reduce__(self) -> Any:
        return getattr, (self._model(), "save_pretrained")  # of a model whose attributes come only then


class Driver:
    """Drives a session from hooks.

    Args:
        session: A finished session, or anything GreenSession accepts; None: what GREENTRAIN_CONFIG names, if
            anything. A session that is running already when
            training starts is used and left running: whoever started it closes it.

    Raises:
        ConfigError: The configuration is wrong.
    """

    def __init__(self, session: SessionLike) -> None:
        told = os.environ.get(CONFIG) if session is None else session
        self.session = told if isinstance(told, GreenSession) else GreenSession(told)
        self.owned = False
        """True while the session runs and this driver started it."""
        self._place: tuple[int, int] | None = None
        """Rank and number of processes of the run that was finished last; None: it is not to be gone on with."""
        self._trained = False
        """Whether that run holds a training."""
        self._phase: str | None = None
        self._token = 0
        self._tokens = 0
        self._samples = 0
        self._keeping: BackgroundCall[None] | None = None
        self._undo: list[Callable[[], None]] = []
        self._alone = 0
        self.shards = self.ulysses = 1
        """Parts of every sequence, of which a rank's forwards get one each, and its data loader (Ulysses)."""

    def __reduce__(self) -> Any:
        """Copy and pickle without hooks, for a training of its own."""
        return Driver, (self.session,)

    def start(
        self,
        *,
        rank: int,
        world_size: int,
        local_rank: int,
        local_world_size: int | None = None,
        data_parallel: Any = None,
        model: torch.nn.Module | None = None,
        training: bool = True,
    ) -> None:
        """Start the session unless it runs. What the user got wrong is raised here, before training.

        Evaluations around a training are phases of its run: what is finished is gone on with, until a second training.

        Args:
            rank: Rank of this process.
            world_size: Number of processes.
            local_rank: Rank on this node.
            local_world_size: Number of processes on this node; None: the launcher knows better than the framework.
            data_parallel: As in ``GreenSession``, but what says nothing is no error; None: the framework does not say.
            model: Model whose parameters are counted; None: there is none to count.
            training: False: what starts is an evaluation, a test or a prediction alone.

        Raises:
            MeterError: A meter that was asked for by name cannot be opened.
            RunFolderError: The run folder cannot be written.
        """
        if self.session.running:
            return
        try:
            if model is not None:  # DeepSpeed keeps the size of a sharded ZeRO-3 parameter in ds_numel
                self.session.parameters = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
                own = vars(model := unwrap(model))
                if hasattr(type(model), "save_pretrained") and type(own.get("save_pretrained")) in (
                    type(None),
                    _CardedSave,
                ):
                    own["save_pretrained"] = _CardedSave(model, self.session)
            place = Topology(
                rank=rank,
                world_size=world_size,
                local_rank=local_rank,
                local_world_size=max(local_world_size or local_size(rank, world_size, local_rank), local_rank + 1),
                host=socket.gethostname(),
            )
            goes_on = self._place == (rank, world_size) and not (training and self._trained)
            if goes_on:
                self.session.load_state_dict(self.session.state_dict())
            self.session.start(place, BatchGroup.find(data_parallel, place) or BatchGroup.find(model, place))
            self.owned, self._place = True, (rank, world_size)
            self._trained = training or (goes_on and self._trained)
        except GreenTrainError:
            raise
        except Exception as error:
            warn(f"the session could not be started ({error!r})")

    def batches_of(self, accelerator: Any) -> Any:
        """Return which ranks share a batch as an Accelerator says, for ``start``; note how it cuts sequences.

        Args:
            accelerator: Of Accelerate, or None.
        """
        config = getattr(accelerator, "parallelism_config", None)  # accelerate/parallelism_config.py, from 1.10 on
        if config is None:
            return getattr(accelerator, "torch_device_mesh", None)
        self.ulysses = getattr(config, "sp_size", 1)  # from 1.12 on
        self.shards = self.ulysses * config.cp_size
        ranks = self.shards * config.tp_size  # neighbours: the mesh's last dimensions
        return None if ranks == 1 else (accelerator.process_index // ranks, accelerator.num_processes // ranks)

    def gear(self, model: torch.nn.Module, *, device: torch.device, scaler: Any, wrap_forward: bool = True) -> None:
        """Give the model its gears, where the configuration names any; a model that had them before is plain again.

        Args:
            model: The model, before the framework replaces its forward.
            device: Device that the model will run on.
            scaler: The framework's GradScaler; None: it uses none.
            wrap_forward: False where the framework enters the gears' autocast context itself.

        Raises:
            ConfigError: A gear cannot work here.
        """
        gears = self.session.gears
        if gears is not None:
            if gears.box.model is not unwrap(model):
                gears.detach()  # no framework has a hook for every end of a training
            gears.attach(model, device=device, scaler=scaler, wrap_forward=wrap_forward)

    def bind(self, optimizer: Any, *, counts: bool = True) -> None:
        """Shift after the steps of an optimizer.

        Args:
            optimizer: The optimizer, in its framework's wrapper or not.
            counts: Whether its steps are those of the run; False where :meth:`boundary` is called.

        Raises:
            ConfigError: gamma is asked for and this is no Adam.
        """
        if self.session.gears is not None:
            self.session.gears.bind(optimizer, counts=counts)

    def boundary(self) -> None:
        """Note the end of an optimizer step that no optimizer's hook tells: a DeepSpeed engine's."""
        if self.session.gears is not None:
            self.session.gears.boundary()

    @never_raises
    def enter(self, phase: Phase | None) -> None:
        """Leave the current phase and enter another one; None enters none."""
        name = None if phase is None else phase.value
        if name == self._phase:
            return
        if self._phase is not None:
            self.session.end(self._phase, self._token)
        self._phase = name
        if name is not None:
            self._token = self.session.begin(name)

    @never_raises
    def add(self, batch: Any) -> None:
        """Count a batch towards the next step."""
        tokens, samples = count(batch)
        self._tokens += tokens * self.shards
        self._samples += samples

    @never_raises
    def step(self, tokens: int | None = None) -> None:
        """Mark the end of an optimizer step with what was counted since the last one.

        Args:
            tokens: Tokens of the step, where the framework counts them itself.
        """
        self.session.step(self._tokens if tokens is None else tokens, self._samples)
        self._tokens = self._samples = 0

    def tap(
        self,
        module: torch.nn.Module,
        *,
        counts: bool,
        after: Phase | None,
        first: Callable[[], None] = lambda: None,
    ) -> None:
        """Hook a module: its forward is a phase, and what it is given in training is counted.

        Args:
            module: The outermost module that training calls (as wrapped by DDP or torch.compile): what is inside a
                compiled module is part of its graph.
            counts: Count its inputs.
            after: Phase to enter when a training forward ends.
            first: Called before each forward.
        """

        def before(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            first()
            if counts and module.training and torch.is_grad_enabled():
                self.add(kwargs if "input_ids" in kwargs else (*args, *kwargs.values()))
            if not self._alone:
                self.enter(Phase.FORWARD if module.training else Phase.EVAL)

        def behind(module: torch.nn.Module, output: Any) -> None:
            if module.training and not self._alone:
                self.enter(after)

        self._undo.append(around_calls(module, before, behind))

    def hook(self, register: Callable[[Any], Any], call: Callable[[], object]) -> None:
        """Have an optimizer call something before or after each step, until ``release``.

        Args:
            register: The optimizer's method that registers such a hook.
            call: Called without arguments; dynamo does not follow a compiled step into it.
        """

        def hooked(*_: Any) -> None:
            call()

        disable: Any = torch.compiler.disable
        self._undo.append(register(disable(hooked)).remove)

    def wrap(
        self, owner: Any, method: str, phase: Phase, then: Callable[[], None] = lambda: None, *, alone: bool = False
    ) -> None:
        """Spend a method of an object in a phase, where its framework has no hook for it.

        Args:
            owner: The object; only this one changes, until ``stop``.
            method: Name of the method.
            phase: Phase; nested in what is open.
            then: Called when the method returned.
            alone: Whether all the forwards in it are of the phase.
        """
        original = getattr(owner, method)

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.alone(phase) if alone else self.nested(phase):
                result = original(*args, **kwargs)
            never_raises(then)()
            return result

        self.replace(owner, method, timed)

    def replace(self, owner: Any, method: str, function: Callable[..., Any]) -> None:
        """Put a function in place of a method of one object, until ``release``."""
        before = vars(owner).get(method)
        setattr(owner, method, function)
        self._undo.append(lambda: vars(owner).pop(method, None) if before is None else setattr(owner, method, before))

    @contextlib.contextmanager
    def nested(self, phase: Phase) -> Iterator[None]:
        """Spend a block in a phase, nested in what is open."""
        token = never_raises(self.session.begin)(phase.value)
        try:
            yield
        finally:
            never_raises(self.session.end)(phase.value, token or 0)

    @contextlib.contextmanager
    def alone(self, phase: Phase) -> Iterator[None]:
        """Spend a block in a phase with all the forwards in it: what generates or scores is no training."""
        self._alone += 1
        try:
            with self.nested(phase):
                yield
        finally:
            self._alone -= 1

    @never_raises
    def load(self, state: Mapping[str, Any], rank: int) -> None:
        """Continue the run of a checkpoint written by rank 0: the totals are rank 0's, the run is everybody's."""
        if state and not self.session.running:
            self._place = None
            self.session.load_state_dict(state if rank == 0 else {**state, "totals": {}})

    @never_raises
    def keep(self, folder: Any, rank: int, step: int) -> None:
        """Let a thread write the totals as of a step's checkpoint, one of the last ten, into the folder of all of them.

        The disk may hang: only :meth:`stop` and :meth:`resume` wait for it, and not for long.
        """
        path, state, before = Path(folder) / f"greentrain_{rank}.json", self.session.state_dict(), self._keeping
        before = None if before is None or before.has_ended else before

        @never_raises
        def write() -> None:
            if before is not None:  # one after the other: each reads what the last one wrote
                before.result(threading.TIMEOUT_MAX)
            states = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            newest = sorted(states, key=int)[-9:]  # a file's keys are in the order of letters
            write_json(path, {**{of: states[of] for of in newest}, str(step): state})

        self._keeping = BackgroundCall("greentrain-keep", write)

    def _kept(self) -> None:
        """Wait until what was kept is on the disk, KEPT_S at most."""
        if self._keeping is not None and not self._keeping.has_ended:
            try:
                self._keeping.result(KEPT_S)
            except TimeoutError:
                warn("the totals of the last checkpoint may not be kept, as the disk hangs")

    @never_raises
    def resume(self, folder: Any, rank: int, step: int) -> None:
        """Go on with the totals that :meth:`keep` wrote there, if a step was loaded; of more ranks, new ones have 0."""
        self._kept()
        for of in (rank, 0) if step else ():
            path = Path(folder) / f"greentrain_{of}.json"
            if path.exists():
                self.load(json.loads(path.read_text(encoding="utf-8")).get(str(step), {}), 0 if of == rank else rank)
                return

    @never_raises
    def release(self) -> None:
        """Take every hook off, and make the model plain again; the run goes on. Idempotent."""
        self.enter(None)
        while self._undo:
            never_raises(self._undo.pop())()
        if self.session.gears is not None:
            self.session.gears.detach()
        self._tokens = self._samples = 0

    @never_raises
    def stop(self, reason: str) -> None:
        """Release; close the session if this driver started it, and name its report. Idempotent."""
        self.release()
        if self.owned:
            self.owned = False
            self._place = self._place if reason == "finished" else None
            self.session.close(reason)
            name_report(self.session.report_path)
        self._kept()
