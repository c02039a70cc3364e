"""``%load_ext greentrain`` and ``%%green``: what one cell of a notebook takes.

Example::

    %load_ext greentrain

    %%green --name warm-up
    for batch in loader: ...
"""

import argparse
import ast
import dataclasses
import shlex
import time
from typing import Any, Final, NoReturn

from IPython.core import display_functions
from IPython.core.error import UsageError

from greentrain.config import GreenConfig
from greentrain.errors import GreenTrainError
from greentrain.ledger import Totals
from greentrain.session import GreenSession
from greentrain.shown import Shown, View
from greentrain.units import J_PER_KWH

WAIT_S: Final = 5.0
"""Longest wait for the sensors to report past the end of a cell."""
_display: Final[Any] = display_functions.display


def load_ipython_extension(shell: Any) -> None:
    """Register ``%%green``; called by ``%load_ext greentrain``."""

    def green(line: str, cell: str) -> Any:
        """Measure this cell and show its joules and grams: a run of its own, or a phase of the session that runs.

        %%green [--name NAME] [--config green.yaml]
        """
        __tracebackhide__ = True
        asked = _asked(line)
        code = _Code(shell, cell)
        running = [it for it in shell.user_ns.values() if isinstance(it, GreenSession) and it.running]
        if running:
            return _within(running[-1], asked.name, code)
        return _alone(asked.name, asked.config, code)

    shell.register_magic_function(green, "cell")


def unload_ipython_extension(shell: Any) -> None:
    """Take ``%%green`` back; called by ``%unload_ext greentrain``."""
    shell.magics_manager.magics["cell"].pop("green", None)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; usage: %%green [--name NAME] [--config green.yaml]")


def _asked(line: str) -> argparse.Namespace:
    parser = _Parser(prog="%%green", add_help=False)
    parser.add_argument("-n", "--name", default="cell")
    parser.add_argument("-c", "--config")
    return parser.parse_args(shlex.split(line))


class _Code:
    """A cell's code, as IPython would run it; the value of a last expression is returned."""

    def __init__(self, shell: Any, cell: str) -> None:
        self._names = shell.user_ns
        text = shell.transform_cell(cell)
        name = shell.compile.cache(text, shell.execution_count - 1, raw_code=cell)  # tracebacks show its lines
        try:
            tree = shell.transform_ast(ast.parse(text, name))
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            self._body = shell.compile(tree, name, "exec")
            self._last = None if last is None else shell.compile(ast.Expression(last.value), name, "eval")
        except SyntaxError as error:
            if "await" not in str(error):
                raise
            raise UsageError("%%green cannot run an await: use it in a cell of its own, or GreenSession") from None

    def __call__(self) -> Any:
        __tracebackhide__ = True
        exec(self._body, self._names)
        return None if self._last is None else eval(self._last, self._names)


@dataclasses.dataclass(frozen=True, slots=True)
class _Cell(Shown):
    """What a cell took within a run that goes on."""

    view: View

    def _view(self) -> View:
        return self.view


def _alone(name: str, config: str | None, code: _Code) -> Any:
    __tracebackhide__ = True
    try:
        settings = GreenConfig.load(config)
        run = dataclasses.replace(settings.run, name=name)
        session = GreenSession(dataclasses.replace(settings, run=run)).start()
    except GreenTrainError as error:
        raise UsageError(str(error)) from None
    reason = "exception"
    try:
        out = code()
        reason = "finished"
        return out
    finally:
        session.close(reason)
        _display(session)


def _within(session: GreenSession, name: str, code: _Code) -> Any:
    __tracebackhide__ = True
    t0_s = time.monotonic()
    try:
        with session.phase(name):
            return code()
    finally:
        t1_s = time.monotonic()
        _display(_Cell(_cell(session, t0_s, t1_s)))


def _cell(session: GreenSession, t0_s: float, t1_s: float) -> View:
    from greentrain.report.notebook import cell_view

    name = "a session" if session.folder is None else session.folder.name
    energies = session.energy(t0_s, t1_s, wait_s=WAIT_S)
    run = session.active()
    if not energies or run is None:
        return cell_view(name, None)
    energy_j = sum(energies.values())
    by_provenance: dict[str, float] = {}
    for sensor in run.sensors:
        known_j = energies.get(sensor.device.uid)
        if known_j is not None:
            by_provenance[sensor.provenance] = by_provenance.get(sensor.provenance, 0.0) + known_j
    entry = run.last_entry
    g_per_kwh = None if entry is None else entry.carbon.g_per_kwh
    return cell_view(
        name,
        Totals(
            energy_j=energy_j,
            duration_s=t1_s - t0_s,
            operational_g=0.0 if entry is None or g_per_kwh is None else energy_j * entry.pue * g_per_kwh / J_PER_KWH,
            unpriced_j=energy_j if g_per_kwh is None else 0.0,
            embodied_g=run.embodied_g_per_s * (t1_s - t0_s),
            by_device=energies,
            by_provenance=by_provenance,
        ),
    )
