"""``%load_ext greentrain`` and ``%%green``: what one cell of a notebook takes.

Example::

    %load_ext greentrain

    %%green --name warm-up
    for batch in loader: ...
"""

import argparse
import ast
import contextlib
import dataclasses
import shlex
from typing import Any, Final, NoReturn

from IPython.core import display_functions, magic
from IPython.core.error import UsageError

from greentrain.config.schema import GreenConfig
from greentrain.errors import GreenTrainError
from greentrain.ledger.active_run import ActiveRun
from greentrain.ledger.totals import Totals
from greentrain.session.session import GreenSession, PhaseSpan
from greentrain.types import J_PER_KWH
from greentrain.utils.display import Displayable, View

WAIT_S: Final = 5.0
"""Longest wait for the sensors to report past the end of a cell."""
_display: Final[Any] = display_functions.display


def load_ipython_extension(shell: Any) -> None:
    """Register ``%%green``; called by ``%load_ext greentrain``."""
    own: list[GreenSession] = []  # of the cell that runs, in which another may be run

    def green(line: str, cell: str) -> Any:
        """Measure this cell and show its joules and grams: a run of its own, or a phase of the session that runs.

        %%green [--name NAME] [--config green.yaml]
        """
        __tracebackhide__ = True
        asked = _asked(line)
        code = _Code(shell, cell)
        known = [it for it in shell.user_ns.values() if isinstance(it, GreenSession)]
        for session in reversed([*known, *own]):
            run = session.active()
            if run is not None:
                if asked.config is not None:
                    raise UsageError(f"--config {asked.config}: the cell is a phase of {run.run_id}; leave it out")
                return _within(session, run, asked.name, code)
        return _alone(asked.name, asked.config, code, own)

    silenced = getattr(magic, "output_can_be_silenced", lambda found: found)  # by a ; at the end; from IPython 8 on
    shell.register_magic_function(silenced(green), "cell")


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
    try:
        words = shlex.split(line)
    except ValueError as error:  # a quote that is not closed
        parser.error(f"{line}: {error}")
    return parser.parse_args(words)


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
        except SyntaxError:
            if not _awaits(text, name):
                raise
            raise UsageError("%%green cannot run an await: use it in a cell of its own, or GreenSession") from None

    def __call__(self) -> Any:
        __tracebackhide__ = True
        exec(self._body, self._names)
        return None if self._last is None else eval(self._last, self._names)


def _awaits(text: str, name: str) -> bool:
    """Return True if a cell is right but for an await, async for or async with outside any function."""
    try:
        compile(text, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except SyntaxError:
        return False
    return True


@dataclasses.dataclass(frozen=True, slots=True)
class _Cell(Displayable):
    """What a cell took within a run that goes on."""

    view: View

    def _view(self) -> View:
        return self.view


def _alone(name: str, config: str | None, code: _Code, own: list[GreenSession]) -> Any:
    __tracebackhide__ = True
    try:
        settings = GreenConfig.load(config)
        run = dataclasses.replace(settings.run, name=name, id=None)
        session = GreenSession(dataclasses.replace(settings, run=run)).start()
    except GreenTrainError as error:
        raise UsageError(str(error)) from None
    own.append(session)
    try:
        with contextlib.ExitStack() as ending:
            ending.push(session)
            return code()
    finally:
        own.remove(session)
        _display(session)


def _within(session: GreenSession, run: ActiveRun, name: str, code: _Code) -> Any:
    __tracebackhide__ = True
    block = session.phase(name)
    try:
        with block:
            return code()
    finally:
        _display(_Cell(_cell(run, block)))


def _cell(run: ActiveRun, block: PhaseSpan) -> View:
    from greentrain.ledger.totals import cell_view

    used = block.energy(WAIT_S)
    energy_j = None if used is None else used.energy_j
    if used is None or energy_j is None or run.closed:
        return cell_view(run.run_id, None)
    if run.last_entry is None:
        run.book_now()  # or nobody has asked yet what the grid emits
    by_provenance: dict[str, float] = {}
    for device in used.devices.values():
        by_provenance[device.provenance] = by_provenance.get(device.provenance, 0.0) + device.energy_j
    entry = run.last_entry
    g_per_kwh = None if entry is None else entry.carbon.g_per_kwh
    return cell_view(
        run.run_id,
        Totals(
            energy_j=energy_j,
            duration_s=used.seconds,
            operational_g=0.0 if entry is None or g_per_kwh is None else energy_j * entry.pue * g_per_kwh / J_PER_KWH,
            unpriced_j=energy_j if g_per_kwh is None else 0.0,
            embodied_g=run.embodied_g_per_s * used.seconds,
            by_device={uid: device.energy_j for uid, device in used.devices.items()},
            by_provenance=by_provenance,
        ),
    )
