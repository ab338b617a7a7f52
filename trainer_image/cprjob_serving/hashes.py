"""The hashes of ids, by the names that jobs give them."""

from __future__ import annotations

from cprjob_serving.cells import Cells
from cprjob_serving.cpr64 import U64
from cprjob_serving.murmur3 import murmur3
from cprjob_serving.xxh64 import xxh64


def hashes(cells: Cells, ids: str, seed: int) -> U64:
    """Return the hash of each cell, uint64 [n]. ids: `CPR64`, which has no seed, `XXH64` or `Murmur3`.

    Raises ValueError for any other name.
    """
    match ids:
        case "CPR64":
            return cells.hashes()
        case "XXH64":
            return xxh64(cells, seed)
        case "Murmur3":
            return murmur3(cells, seed)[0]
        case _:
            raise ValueError(f"{ids!r} is no hash")
