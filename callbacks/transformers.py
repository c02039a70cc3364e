"""Energy and carbon of a Hugging Face Trainer run, from one callback.

Example::

    trainer = Trainer(model, args, train_dataset=data, callbacks=[GreenCallback("green.yaml")])
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from greentrain.callbacks.driver import CARD_S, Driver, SessionLike, calling
from greentrain.errors import ConfigError
from greentrain.types import Phase
from greentrain.utils.imports import try_import
from greentrain.utils.never_raise import never_raises

with try_import("transformers") as _imports:
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_callback import DefaultFlowCallback, ExportableState
_imports.check()


STAGES: Final = {"_generate": Phase.GENERATE, "_calculate_rewards": Phase.REWARD}
"""Stages of TRL's online trainers (GRPO, RLOO) that no event tells: trl/trainer/grpo_trainer.py."""


def register() -> None:
    """Let ``report_to="greentrain"``, also of a script's command line, add a GreenCallback to every later Trainer."""
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    INTEGRATION_TO_CALLBACK["greentrain"] = GreenCallback


class GreenCallback(TrainerCallback, ExportableState):
    """Drives a GreenSession from the Trainer's events.

    Each ``train`` is a run; one that resumes from a checkpoint continues the run of the checkpoint. An ``evaluate`` or
    ``predict`` before or after it is a phase ``eval`` of the same run: nothing is booked in between. Every log of
    the Trainer carries ``green/energy_j``, ``green/power_w``, ``green/emissions_g``, ``green/tokens_per_j`` and
    ``green/g_per_ktoken`` to the ``report_to`` loggers, for all ranks whose files rank 0 can see (``green/ranks``
    counts them); ``log_history`` keeps them, and what ``train`` returns has the last. The Trainer's own state and
    what ``evaluate`` returns hold none: two equal trainings compare equal, no search sums joules into its objective,
    and no table of a model card gets a column more.

    Gears are on the model while ``train`` runs, also on one that ``model_init`` has made for it. An exception that
    leaves ``train`` ends the run; where the callback came with ``add_callback``, the next ``train`` does, or the
    process. An ``evaluate`` outside ``train`` is measured from its second batch, its first event. Gradient clipping
    counts as backward.

    Args:
        session: A finished GreenSession, or anything GreenSession accepts.

    Raises:
        ConfigError: The configuration is wrong.
    """

    def __init__(self, session: SessionLike = None) -> None:
        self._driver = Driver(session)
        self.session = self._driver.session
        """The session, with its totals, run folder and report path."""
        self.log_history: list[dict[str, float]] = []
        """Figures of each log, with its ``step``."""
        self._training = False
        self._seen_tokens = 0
        self._counts_unasked = False
        self._engine = False

    def phase(self, phase: Phase) -> AbstractContextManager[None]:
        """Return a block that is a phase with all the model's forwards in it, for trainers that generate or score."""
        return self._driver.alone(phase)

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = calling(Trainer)
        if trainer is not None:
            # No event tells of an exception, nor of the model that model_init has made before it is prepared: then its
            # forward is replaced. Every loop begins with its data loader, also one with a smaller batch after an OOM.
            trainer.train = self._ended(trainer.train)  # type: ignore[method-assign]
            trainer.get_train_dataloader = self._geared(trainer)  # type: ignore[method-assign]
            for name in ("save_model", "create_model_card"):
                setattr(trainer, name, self._carded(trainer, name))

    def _carded(self, trainer: Any, name: str) -> Callable[..., Any]:
        """Return a method that saves, such that the footprint is among the metadata of the README.md beside it."""
        save = getattr(trainer, name)

        @functools.wraps(save)
        def saved(*args: Any, **kwargs: Any) -> Any:
            result = save(*args, **kwargs)
            told = kwargs.get("output_dir") or (args[0] if args else None) if name == "save_model" else None
            folder = Path(told or trainer.args.output_dir)
            if self.session.folder is not None and folder.is_dir():
                # Behind the training somebody may upload the folder next.
                self.session.write_card(folder / "README.md", wait_s=0.0 if self._training else CARD_S)
            return result

        return saved

    def _ended(self, train: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(train)
        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return train(*args, **kwargs)
            except BaseException:
                self._training = False
                self._driver.stop("exception")
                raise

        vars(run)["green"] = self
        return run

    def _geared(self, trainer: Any) -> Callable[[], Any]:
        load = trainer.get_train_dataloader

        @functools.wraps(load)
        def loader() -> Any:
            self._gear(trainer, trainer.model)
            return load()

        return loader

    def _gear(self, trainer: Any, model: Any) -> None:
        own, before = vars(model), vars(model).get("_original_forward")
        if self.session.gears is not None and before is not None and not hasattr(before, "_green_geared"):
            # An evaluate has prepared the model, whose autocast would stand inside of ours. train prepares it again.
            own["forward"] = own.pop("_original_forward")
            if getattr(before, "__func__", None) is type(model).forward:
                del own["forward"]
        self._driver.gear(model, device=trainer.args.device, scaler=trainer.accelerator.scaler)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = calling(Trainer)
        made = getattr(getattr(trainer, "train", None), "green", self)
        if trainer is not None and made is not self and made not in trainer.callback_handler.callbacks:
            self.__dict__ = vars(made)  # the Trainer has restored its callbacks: this one takes the hooked one's place
        gears = self.session.gears
        if self._driver.owned:  # a training that was left by an exception, or goes on with smaller batches
            geared = gears is not None and gears.box.model is not None
            self._driver.stop("exception")
            if geared:
                self._gear(trainer, kwargs["model"])
        self._resume(args, state)
        self._bind(kwargs["model"], kwargs["optimizer"])  # may raise: the Trainer has no event to close a run then
        self._start(args, kwargs["model"], trainer)
        self._hook(kwargs["model"])
        self._training = True
        self._counts_unasked = hasattr(trainer, "_total_train_tokens")
        self._seen_tokens = self._counted(args, state) or 0

    def _counted(self, args: Any, state: Any) -> int | None:
        """Return the tokens that the trainer itself has counted so far, over all ranks; None: it counts none."""
        if args.include_num_input_tokens_seen not in ("no", False):
            return int(state.num_input_tokens_seen) * self._driver.ulysses  # before context parallel cuts sequences
        # TRL counts unasked, without padding (1.16): GRPO and RLOO in the state, the others here (GOLD not: 0).
        own = getattr(calling(Trainer), "_total_train_tokens", None) if self._counts_unasked else None
        return None if own is None else int(own or state.num_input_tokens_seen) or None

    def _start(self, args: Any, model: Any, trainer: Any, *, training: bool = True) -> None:
        accelerator = getattr(trainer, "accelerator", None)
        self._driver.start(
            rank=args.process_index,
            world_size=args.world_size,
            local_rank=args.local_process_index,
            data_parallel=self._driver.batches_of(accelerator),
            model=model,
            training=training,
        )

    @never_raises
    def _resume(self, args: Any, state: Any) -> None:
        told = state.stateful_callbacks.get(type(self).__name__, [])
        self._forget(state)
        saved = [each["attributes"].get("saved") for each in (told if isinstance(told, list) else [told])]
        if state.global_step > 0:
            self._driver.load(next(filter(None, saved), {}), args.process_index)

    def _forget(self, state: Any) -> None:
        """Leave in the Trainer's state what equal trainings have in common: the totals are in a checkpoint's file."""
        name, told = type(self).__name__, state.stateful_callbacks.get(type(self).__name__)
        several = isinstance(told, list) and [each for each in told if not each["attributes"].get("saved")]
        state.stateful_callbacks[name] = several or self._state({})

    def _bind(self, model: Any, optimizer: Any) -> None:
        gears = self.session.gears
        if gears is None:
            return
        if gears.box.model is None:
            raise ConfigError(
                "precision.gears needs the model before the Trainer prepares it: pass GreenCallback in"
                " Trainer(callbacks=[...]), not to add_callback()"
            )
        trainer = calling(Trainer)
        wrapped = model if trainer is None else trainer.model_wrapped
        gears.check(wrapped)
        self._engine = hasattr(wrapped, "global_steps")  # DeepSpeed's optimizer steps once a sub-group
        self._driver.bind(optimizer, counts=not self._engine)

    @never_raises
    def _hook(self, model: Any) -> None:
        trainer = calling(Trainer)  # callbacks see neither the wrapped model nor one another
        if trainer is not None:
            model = trainer.model_wrapped
            handler = trainer.callback_handler
            others = [callback for callback in handler.callbacks if callback is not self]
            flow = sum(isinstance(callback, DefaultFlowCallback) for callback in others[:1])
            handler.callbacks = [*others[:flow], self, *others[flow:]]  # the loggers then see what we add to a log
            if not hasattr(trainer, "offload_mode"):  # it marks its stages itself
                for name, stage in STAGES.items():
                    if hasattr(trainer, name):
                        self._driver.wrap(trainer, name, stage, alone=True)
        self._driver.tap(model, counts=True, after=Phase.BACKWARD)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._training = False
        self._driver.stop("finished")

    def _next(self, control: Any) -> None:
        rest = Phase.CHECKPOINT if control.should_save else Phase.DATA
        self._driver.enter(Phase.EVAL if control.should_evaluate else rest)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._driver.enter(Phase.DATA)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._driver.enter(Phase.FORWARD)

    on_substep_end = on_step_begin  # the batches of an accumulated step are fetched together

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._driver.enter(Phase.OPTIMIZER)

    @never_raises
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        tokens, seen = None, self._counted(args, state)
        if seen is not None:
            share = [(count + args.process_index) // args.world_size for count in (self._seen_tokens, seen)]
            tokens, self._seen_tokens = share[1] - share[0], seen
        if self._engine:
            self._driver.boundary()
        self._driver.step(tokens)
        if self.session.checkpoint_due:
            control.should_save = True  # the plan pauses after the next step, or the budget is spent
        if self.session.should_stop:
            control.should_training_stop = True
        self._next(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._next(control)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self._training:
            self._start(args, kwargs["model"], calling(Trainer), training=False)
            self._driver.enter(Phase.EVAL)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        metrics = kwargs.get("metrics") or {}
        for key in [key for key in metrics if key.startswith("green/")]:
            del metrics[key]  # the loggers have it; whoever sums or tabulates what was evaluated means no joules
        if self._training:
            self._next(control)
        else:
            self._driver.stop("finished")

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any) -> None:
        self.on_evaluate(args, state, control)

    @never_raises
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._forget(state)
        self._next(control)
        self.session.checkpoint()

    @never_raises
    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        last = self._training and "train_loss" in kwargs["logs"]  # nothing is computed behind the Trainer's last log
        if last:
            self._driver.stop("finished")
        metrics = self.session.metrics() if last or self.session.running else {}
        kwargs["logs"].update(metrics)
        if metrics:
            self.log_history.append({**metrics, "step": state.global_step})

    def state(self) -> dict[str, Any]:
        saved = self._training and never_raises(self.session.state_dict)()
        return self._state({"saved": saved} if saved else {})

    def _state(self, attributes: dict[str, Any]) -> dict[str, Any]:
        return {"args": {"session": self.session.config.to_dict()}, "attributes": attributes}
