"""How an artifact's tensors are made of a model's parameters: what synchronising new weights needs, and no more.

It travels in the artifact as JSON. Constants that no parameter enters, as tables of rotary positions, are not in it.
"""

import base64
import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from greentrain.fpga_backend.errors import ArtifactError

FORMAT = 1
Kind = Literal["linear", "embed", "norm", "score", "logprob"]
Step = tuple[str, float | str]
"""A change of a tensor on its way in, with its argument:

* ``transpose`` (0): rows become columns
* ``add``, ``multiply``, ``fill``: a number to each element, times each element, in place of each element
* ``divide rows``, ``multiply columns``: by a vector of the recipe, along the first dimension, along the last
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSource:
    """A parameter and what happens to it."""

    parameter: str
    steps: tuple[Step, ...] = ()

    def then(self, name: str, argument: float | str = 0.0) -> "ParameterSource":
        """Return the source with a further step."""
        return dataclasses.replace(self, steps=(*self.steps, (name, argument)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Consecutive rows of a weight, and of its bias."""

    weight: ParameterSource
    bias: ParameterSource | None = None

    def then(self, name: str, argument: float | str) -> "Part":
        """Return the part with a further step of weight and bias."""
        return Part(weight=self.weight.then(name, argument), bias=self.bias and self.bias.then(name, argument))


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRecipe:
    """One stem of the program: parts, one below the other."""

    kind: Kind
    parts: tuple[Part, ...]
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All stems, and what the model must look like."""

    model: str
    """Class of the model that was compiled."""
    entries: Mapping[str, TensorRecipe]
    shapes: Mapping[str, tuple[int, ...]]
    """Of every parameter that is read."""
    buffers: Mapping[str, str] = field(default_factory=dict)
    """Checksums of the buffers whose values went into the program."""
    vectors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Binary32 vectors that steps name."""

    def to_json(self) -> str:
        """Return the recipe as JSON."""
        vectors = {
            name: base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode()
            for name, vector in self.vectors.items()
        }
        entries = {stem: dataclasses.asdict(entry) for stem, entry in self.entries.items()}
        fields = {"format": FORMAT, "model": self.model, "buffers": dict(self.buffers), "vectors": vectors}
        return json.dumps({**fields, "shapes": {k: list(v) for k, v in self.shapes.items()}, "entries": entries})

    @classmethod
    def from_json(cls, text: str) -> "Recipe":
        """Read what :meth:`to_json` wrote.

        Raises:
            ArtifactError: It is no recipe, or one of another version.
        """
        try:
            fields = json.loads(text)
            if fields["format"] != FORMAT:
                raise ArtifactError(
                    f"the recipe is of format {fields['format']}, this version reads {FORMAT}: compile again"
                )
            return cls(
                model=fields["model"],
                entries={stem: _entry(entry) for stem, entry in fields["entries"].items()},
                shapes={name: tuple(shape) for name, shape in fields["shapes"].items()},
                buffers=fields["buffers"],
                vectors={name: _vector(value) for name, value in fields["vectors"].items()},
            )
        except ArtifactError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ArtifactError(f"the artifact's recipe cannot be read ({error!r}): compile the model again") from error


def _entry(item: dict[str, Any]) -> TensorRecipe:
    parts = tuple(Part(weight=_source(p["weight"]), bias=p["bias"] and _source(p["bias"])) for p in item["parts"])
    return TensorRecipe(kind=item["kind"], parts=parts, bias=item["bias"])


def _source(item: dict[str, Any]) -> ParameterSource:
    return ParameterSource(parameter=item["parameter"], steps=tuple((str(n), a) for n, a in item["steps"]))


def _vector(text: str) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), dtype="<f4").astype(np.float32))
