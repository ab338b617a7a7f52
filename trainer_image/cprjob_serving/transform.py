"""The feature transform of a model, as `transform.json` has it: which columns feed it, and which rows ids lead to."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

#: The version of the document. A reader refuses any other.
VERSION = 1

Pooling = Literal["Sum", "Mean", "None"]


@dataclass(frozen=True, slots=True)
class Numeric:
    """A column of numbers x. `Count` is log(1 + max(x, 0)), `Number` is x."""

    column: str
    kind: Literal["Count", "Number"]


@dataclass(frozen=True, slots=True)
class Table:
    """An embedding table: vectors of `dim` values in `file`, and how ids become its rows.

    `seed` is for the ids `XXH64` and `Murmur3`, `outOfRange` for `RowNumber`.
    """

    name: str
    file: str
    rows: int
    dim: int
    ids: Literal["CPR64", "XXH64", "Murmur3", "RowNumber"]
    seed: int
    outOfRange: Literal["Fail", "DefaultRow"]  # noqa: N815 -- as the document names it


@dataclass(frozen=True, slots=True)
class Feature:
    """What a network gets by a name: vectors of `table` for the ids in `column`.

    Without a `pooling` a sample has exactly one id. `Sum` and `Mean` make one vector of any number of ids, `None` is a
    sequence. Of more than `maxLength` ids the last ones are kept. `weights` is a column with a weight for each id.
    """

    name: str
    column: str
    table: str
    pooling: Pooling | None = None
    maxLength: int | None = None  # noqa: N815
    weights: str | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of what the network gets of it."""
        if self.pooling != "None":
            return (self.name,)
        return (self.name, f"{self.name}.lengths", *([f"{self.name}.weights"] if self.weights else []))


@dataclass(frozen=True, slots=True)
class Transform:
    """From the columns of raw data to the inputs of a network.

    The numeric features are those of `numeric`, then zeros up to `width`. `separator` stands between the ids of a bag,
    and between their weights, in text. `outputs` are the labels and targets, one logit each.
    """

    width: int
    numeric: tuple[Numeric, ...]
    tables: tuple[Table, ...]
    features: tuple[Feature, ...]
    outputs: tuple[str, ...]
    separator: str | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the network's inputs, in their order."""
        return ("dense", *(name for feature in self.features for name in feature.inputs))

    def to_json(self) -> str:
        """Return the document. `inputs` is there for readers of other languages."""
        return json.dumps({"version": VERSION, **asdict(self), "inputs": self.inputs}, indent=2) + "\n"

    @classmethod
    def of_json(cls, text: str) -> Self:
        """Read the document. Raises ValueError if it is of another version."""
        found: dict[str, Any] = json.loads(text)
        if found.get("version") != VERSION:
            raise ValueError(
                f"transform.json is of version {found.get('version')}; this cprjob_serving reads {VERSION}"
            )
        return cls(
            found["width"],
            tuple(Numeric(**each) for each in found["numeric"]),
            tuple(Table(**each) for each in found["tables"]),
            tuple(Feature(**each) for each in found["features"]),
            tuple(found["outputs"]),
            found["separator"],
        )
