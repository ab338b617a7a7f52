"""Reads data from code of the user: `data.entrypoint` names a factory of an indexable dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from cpr_trainer.data.arrow_types import normalized
from cpr_trainer.data.files import Block, Index, Parsed, SourceFile, is_outage
from cpr_trainer.data.schema import Columns, check_columns
from cpr_trainer.entrypoints import load, user_code
from cpr_trainer.errors import DataError
from cpr_trainer.store import Version

#: Rows of a request. It is part of the order of samples: blocks of another size are shuffled in another way.
BLOCK_ROWS = 2**13
_DETERMINISTIC = "Every trainer, and every one that replaces it, must get the same rows."
_REMEDY = "Return a pyarrow table, or a mapping of columns, with exactly these rows."


class Indexable(Protocol):
    """A finite number of rows in a fixed order, the same in every process. One thread reads them."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> pa.Table | Mapping[str, Sequence[Any]]:
        """Return the rows of a slice of step 1: a pyarrow table, or the values of each column by its name.

        After an OSError with a number (errno), as of a network, the trainer waits and retries. Any other error fails
        the job.
        """
        ...


#: The factory that an entrypoint names: called with `data.uri`, None if the job states none.
UserData = Callable[[str | None], Indexable]


class UserFormat:
    """Reads blocks of `BLOCK_ROWS` rows of a dataset. `entrypoint` is its name in messages and in frozen inputs."""

    def __init__(self, entrypoint: str, uri: str | None, columns: Columns | None) -> None:
        """Make the dataset. Raises DataError if that fails, and OSError if its source cannot be reached."""
        self._entrypoint = entrypoint
        self._columns = columns
        factory: UserData = load(entrypoint, "spec.data.entrypoint", DataError)
        remedy = "It is called with data.uri, and has to return a dataset with len() and rows by slices."
        with user_code(f"The entrypoint {entrypoint} failed", remedy, DataError, is_outage):
            self._dataset = factory(uri)
            len(self._dataset)

    def index(self, uri: str) -> Index:
        """Find the blocks, and check the types of the first one. Raises DataError and OSError as `fetch` does."""
        rows = self._rows()
        file = SourceFile(uri, Version(rows, ""))
        firsts = range(0, rows, BLOCK_ROWS)
        blocks = tuple(Block(file, first, min(BLOCK_ROWS, rows - first), first, 0) for first in firsts)
        if blocks and self._columns is not None:
            table = self.fetch(blocks[0])
            check_columns(self._columns, table.column_names, uri, table.schema)
        return Index(file, blocks, sequential=False)

    def fetch(self, block: Block) -> Any:
        """Return the rows of a block as a pyarrow table. Raises DataError or OSError, see `Indexable`."""
        if (rows := self._rows()) != block.file.version.size_bytes:
            raise DataError(
                f"{self._entrypoint} has {rows} rows, and the job began with {block.file.version.size_bytes}.",
                f"It has to return the same rows as then. {_DETERMINISTIC}",
            )
        failed = f"{self._entrypoint} failed at [{block.first}:{block.first + block.rows}]"
        with user_code(failed, _REMEDY, DataError, is_outage):
            found = self._dataset[block.first : block.first + block.rows]
            if isinstance(found, pa.Table):
                table = found
            else:
                table = pa.table({name: _plain(values) for name, values in dict(found).items()})
            table = normalized(table, self._columns)
        if table.num_rows != block.rows:
            raise DataError(f"{failed}: {table.num_rows} rows came instead of {block.rows}.", _REMEDY)
        return table

    def _rows(self) -> int:
        """Return the number of rows. Raises DataError and OSError as `fetch` does."""
        with user_code(f"len() of {self._entrypoint} failed", _DETERMINISTIC, DataError, is_outage):
            return len(self._dataset)

    def parse(self, block: Block, fetched: Any) -> Parsed:
        """Check the columns of this block. Raises DataError."""
        check_columns(self._columns, fetched.column_names, self.location(block, 0), fetched.schema)
        return Parsed(fetched, {})

    def location(self, block: Block, row: int) -> str:
        return f"{block.uri}, row {block.first + row + 1}"


def _plain(values: Any) -> Any:
    """Return values that pyarrow converts: tensors become arrays, and an empty bag has no type of its own."""
    values = _array_of(values)
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype != np.object_:
        return values
    if not isinstance(values, (list, tuple, np.ndarray)):
        return values
    cells = (_array_of(each) for each in values)
    return [each if not isinstance(each, np.ndarray) or (each.ndim and each.size) else each.tolist() for each in cells]


def _array_of(value: Any) -> Any:
    """Return a tensor of torch as an array, and any other value unchanged."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value
