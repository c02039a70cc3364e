"""Other numbers in the param groups of an optimizer, for the length of one step."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from greentrain.optim.forms import Form

Group = dict[str, Any]


class TemporaryParamGroups:
    """Puts rescaled lr, eps and weight_decay into groups and takes them back.

    A tensor lr is replaced by another tensor, never written to: it may be shared between groups, belong to a captured
    graph, or have a scheduler that fills it.
    """

    def __init__(self) -> None:
        self._lent: list[tuple[Group, Group, Group]] = []  # group, its own numbers, those lent to it

    def give(self, groups: Sequence[Group], form: Form, gamma: float, *, decoupled: bool) -> None:
        """Rescale the groups until :meth:`end`.

        Args:
            groups: ``optimizer.param_groups``.
            form: How gamma enters.
            gamma: Above 0; nothing is touched where the form leaves it alone.
            decoupled: Where a group does not say itself whether its decay is AdamW's.
        """
        if form.leaves_alone(gamma):
            return
        for group in groups:
            own = {key: group[key] for key in ("lr", "eps", "weight_decay")}
            new = form.numbers(
                own["lr"],
                own["eps"],
                own["weight_decay"],
                gamma,
                decoupled=group.get("decoupled_weight_decay", decoupled),
            )
            lent = dict(zip(own, new, strict=True))
            self._lent.append((group, own, lent))
            group.update(lent)

    def end(self) -> None:
        """Give every group its own numbers back, except one that somebody has set since. Idempotent."""
        while self._lent:
            group, own, lent = self._lent.pop()
            group.update({key: own[key] for key in own if group.get(key) is lent[key]})

    def own(self, group: Group) -> Group:
        """Return a group's own numbers while it holds lent ones, else nothing."""
        return next((own for lender, own, _ in self._lent if lender is group), {})


@contextlib.contextmanager
def rescaled(groups: Sequence[Group], form: Form, gamma: float) -> Iterator[None]:
    """Rescale the groups of an AdamW in a block, whatever happens in it."""
    loan = TemporaryParamGroups()
    try:
        loan.give(groups, form, gamma, decoupled=True)
        yield
    finally:
        loan.end()
