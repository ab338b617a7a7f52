"""A tensor that another system saved, read row by row, and the error for one that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from cpr_trainer.errors import TrainerError

#: The types that vectors may have.
FLOATS = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


class SourceError(TrainerError):
    """The source of an import is not there, is damaged, or does not fit the job."""

    reason = "BadSource"


def inside(folder: Path, name: str) -> Path:
    """Return the file of a folder that a source names. Raises SourceError for one outside, also by a link."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise SourceError(
            f"{folder} names a file outside of itself: {name}.", "Copy the files that belong to it into the folder."
        )
    return path


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """A tensor in a file: `read(first, last)` returns those rows, [last - first, ...], or the scalar; a copy or a view.

    `dtype` is torch's, or another system's name of a type that torch does not have. `source` is the file or the folder.
    `read` raises SourceError if that is damaged.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype | str
    source: str
    read: Callable[[int, int], Tensor]

    @property
    def description(self) -> str:
        """Its name and shape, for a message."""
        return f"{self.name} {list(self.shape)}"

    def whole(self) -> Tensor:
        """Return all of it. Raises SourceError."""
        return self.read(0, self.shape[0] if self.shape else 1)
