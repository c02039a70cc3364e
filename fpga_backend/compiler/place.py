"""Where in a model something is that cannot be compiled."""

from dataclasses import dataclass
from typing import Any, NoReturn

from torch.fx import Node

from greentrain.fpga_backend.errors import UnsupportedModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A node of a traced graph, in words."""

    path: str
    """Dotted path of the innermost module, "" for the model itself."""
    module: str
    """Its class."""
    op: str
    """ATen operator, as ``aten.topk.default``."""

    @classmethod
    def of(cls, node: Node) -> "Place":
        """Return the place of a node."""
        stack: dict[str, Any] = node.meta.get("nn_module_stack") or {}
        path, kind = list(stack.values())[-1] if stack else ("", "")
        name = kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
        return cls(path=path.removeprefix("L['self']."), module=name.rpartition(".")[2], op=str(node.target))

    def refuse(self, why: str) -> NoReturn:
        """Raise UnsupportedModelError that names the place.

        Raises:
            UnsupportedModelError: Always.
        """
        where = f"{self.path} ({self.module})" if self.path else self.module or "the model"
        raise UnsupportedModelError(f"{where}: {self.op}: {why}")
