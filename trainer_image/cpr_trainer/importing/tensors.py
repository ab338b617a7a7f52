"""A tensor that another system saved, read row by row; and the refusal of one that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from cpr_trainer.errors import TrainerError

#: What vectors may be stored as.
FLOATS = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


class SourceError(TrainerError):
    """What is to be imported is not there, is damaged, or does not fit the job."""

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
    """`read(first, last)` returns those rows, [last - first, ...], a copy or a view; of a scalar itself.

    `dtype` is torch's, or another system's name of a type that torch has not. `origin` is the file or the folder.
    `read` raises SourceError if that is damaged.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype | str
    origin: str
    read: Callable[[int, int], Tensor]

    @property
    def told(self) -> str:
        """Its name and shape, for a person."""
        return f"{self.name} {list(self.shape)}"

    def whole(self) -> Tensor:
        """Return all of it. Raises SourceError."""
        return self.read(0, self.shape[0] if self.shape else 1)
