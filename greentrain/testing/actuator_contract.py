"""What every actuator must do, as a pytest class, in one line or to inherit from.

    TestMine = ActuatorContract.of(Mine, setting=what_the_hardware_has, levels=(1.0, 0.8, 0.6))

    class TestMyActuator(ActuatorContract):
        levels = (1.0, 0.8, 0.6)             # what apply() takes; the first leaves everything as it was found

        @pytest.fixture
        def actuator(self) -> Iterator[Actuator]:
            ...

        def setting(self) -> object:         # what the hardware has now
            ...

        def refuse(self) -> None:            # optional: let the hardware refuse from now on
            ...

The module needs pytest only to run, not to import.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from greentrain.testing.suites import filled, opened


@runtime_checkable
class Actuator(Protocol):
    """Sets one thing on this process's own hardware, and undoes itself. No method raises."""

    def apply(self, level: float, /) -> bool:
        """Set a level; True if the hardware has it now."""

    def reset(self) -> None:
        """Put back what was found, exactly. Idempotent."""

    def close(self) -> None:
        """Reset and release everything; later calls do nothing. Idempotent."""


class ActuatorContract:
    """Checks of an actuator. Subclass it as ``Test...`` with a fixture ``actuator``, ``levels`` and ``setting``."""

    levels: tuple[float, ...] = ()
    """What it takes, each to be told from the others by ``setting``; the first leaves everything as it was found."""
    outside: tuple[float, ...] = (-1.0, 2.0, float("nan"), float("inf"))
    """Levels that it must refuse."""
    can_refuse = False
    """True where :meth:`refuse` does something."""

    @classmethod
    def of(
        cls, make: Callable[[], Actuator], *, setting: Callable[[], object], levels: tuple[float, ...], **settings: Any
    ) -> "type[ActuatorContract]":
        """Return the suite for the actuators that ``make`` opens.

        Args:
            make: Opens an actuator; it is closed after each test.
            setting: Returns what the hardware has now, to be compared with ``==``.
            levels: Value of the attribute ``levels``.
            **settings: Other attributes of this class, such as ``outside``.
        """
        members = {"actuator": opened("actuator", make), "setting": lambda _: setting(), "levels": levels}
        return filled(cls, members, settings)

    def setting(self) -> object:
        """Return what the hardware has now, to be compared with ``==``."""
        raise NotImplementedError

    def refuse(self) -> None:
        """Let the hardware refuse every change from now on."""

    def test_is_an_actuator(self, actuator: Actuator) -> None:
        """The object has the methods, and levels to choose from."""
        assert isinstance(actuator, Actuator)
        assert len(self.levels) > 1

    def test_opening_changes_nothing(self, actuator: Actuator) -> None:
        """What was found is there until the first level is applied."""
        found = self.setting()
        assert actuator.apply(self.levels[0])
        assert self.setting() == found

    def test_levels_act_and_are_undone(self, actuator: Actuator) -> None:
        """Each level shows in the hardware, in any order, and ``reset`` brings back what was found."""
        found = self.setting()
        seen = []
        for level in (*self.levels, *reversed(self.levels)):
            assert actuator.apply(level)
            seen.append(self.setting())
        assert seen == seen[::-1]
        assert len({repr(setting) for setting in seen}) == len(self.levels)
        assert actuator.apply(self.levels[-1])
        actuator.reset()
        assert self.setting() == found
        actuator.reset()
        assert self.setting() == found

    def test_the_same_level_twice_is_one_change(self, actuator: Actuator) -> None:
        """A level that is set already is True."""
        assert actuator.apply(self.levels[-1])
        before = self.setting()
        assert actuator.apply(self.levels[-1])
        assert self.setting() == before

    def test_levels_outside_are_refused(self, actuator: Actuator) -> None:
        """What the hardware cannot do is False, without an exception and without a change."""
        assert actuator.apply(self.levels[-1])
        before = self.setting()
        for level in self.outside:
            assert not actuator.apply(level)
            assert self.setting() == before

    def test_close_undoes_and_ends(self, actuator: Actuator) -> None:
        """After ``close`` everything is as found, and nothing acts any more."""
        found = self.setting()
        assert actuator.apply(self.levels[-1])
        actuator.close()
        assert self.setting() == found
        actuator.close()
        assert not actuator.apply(self.levels[-1])
        actuator.reset()
        assert self.setting() == found

    def test_a_refusal_is_false(self, actuator: Actuator) -> None:
        """Hardware that refuses from now on raises nothing, nor does the end."""
        if not self.can_refuse:
            return
        self.refuse()
        assert not actuator.apply(self.levels[-1])
        assert not actuator.apply(self.levels[-1])
        actuator.reset()
        actuator.close()
