"""What a session offers to act on its training: gears, plans, pauses. Control does it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from greentrain.action_table import ActionTable
from greentrain.control import Control
from greentrain.watch import Watcher

if TYPE_CHECKING:
    from greentrain.gears import Gears  # loads torch


class Acting:
    """The acting side of a session."""

    _control: Control
    _watcher: Watcher

    def watch(self, model: Any = None, optimizer: Any = None, scaler: Any = None) -> None:
        """Mark the phases forward and optimizer from hooks on a torch model and optimizer, until close.

        Where the configuration names gears, the model gets them, and shifts after steps of the optimizer.

        A DeepSpeed engine may be passed as model: its forward, backward and step are followed, and each real
        optimizer step is counted; then call ``count`` for tokens, not ``step``.

        Args:
            model: A torch module, in its wrappers or not, or a DeepSpeed engine.
            optimizer: The optimizer whose steps are those of the run.
            scaler: The torch.amp.GradScaler in use; the gear fp16 needs one.

        Raises:
            ConfigError: The objects are no torch module, optimizer or engine, or a gear cannot work with them.
        """
        self._watcher.check(model, optimizer)
        boundary = self._control.watch(model, optimizer, scaler)
        self._watcher.watch(model, optimizer, boundary)

    def shift(self, gear: str) -> None:
        """Use a gear from the next optimizer step on, in place of the policy.

        Raises:
            ConfigError: It is not among ``precision.gears``.
        """
        self._control.shift(gear)

    def resume(self) -> None:
        """End a pause of the plan at once, from any thread; so does a SIGCONT. Without a pause, nothing happens."""
        self._control.wake()

    @property
    def checkpoint_due(self) -> bool:
        """True for one step before the plan pauses: write a checkpoint then, and a kill in the pause costs nothing.

        Call ``checkpoint()`` after it, on every rank: where the pause is long and a launcher brings the run back, or
        where the number of ranks is to change, the process ends there. Also true when ``should_stop`` is.
        """
        return self._control.checkpoint_due

    @property
    def should_stop(self) -> bool:
        """True when the carbon budget is spent and the configuration says to end: leave the loop."""
        return self._control.should_stop

    def prewarm(self, run: Callable[[], Any]) -> None:
        """Run something once in every gear, so that torch.compile makes its graphs before training does.

        Args:
            run: Forward and backward of one micro-batch of the usual shape; clear the gradients afterwards.
        """
        self._control.prewarm(run)

    def profile_gears(
        self, step: Callable[[], int | None] | None = None, *, refresh: bool = False, max_steps: int = 200
    ) -> ActionTable | None:
        """Measure speed, power and J/token of every gear, in blocks of ordinary training steps with warm-up.

        Tables are kept by model, layers, device, world size and batch (``GREENTRAIN_CACHE_DIR``, or else the user's
        cache), so the same training is measured once. The policy decides again afterwards.

        Args:
            step: Trains one step of the watched model and optimizer and returns its tokens; it is called until all is
                measured. None: the coming steps of the training are used, and ``action_table`` is set at the end.
            refresh: Measure even if there is a table.
            max_steps: Most steps that it may take, over all gears.

        Returns:
            The table; None without ``step``.

        Raises:
            ConfigError: ``precision.gears`` is empty, or the steps are too few.
            SessionError: The session does not run, or watches no model.
        """
        return self._control.profile_gears(step, refresh=refresh, max_steps=max_steps)

    @property
    def action_table(self) -> ActionTable | None:
        """What ``profile_gears`` has measured; None before."""
        return self._control.action_table

    @property
    def gears(self) -> "Gears | None":
        """The gears of the session; None where the configuration names none. Loads torch."""
        return self._control.gears
