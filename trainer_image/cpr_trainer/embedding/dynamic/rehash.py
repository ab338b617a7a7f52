"""The entries of a table in another number of pages, for another capacity.

Pages that move between shards need none of it: restores copy them bit for bit, by their places.
"""

from __future__ import annotations

import numpy as np

from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.dynamic.entries import Rules
from cpr_trainer.embedding.dynamic.insertion import Buckets
from cpr_trainer.embedding.dynamic.pages import BUCKET_SLOTS, U32, Pages
from cprjob_serving.hashes import U64


def slots_in(  # noqa: PLR0913 -- the columns of entries
    pages: Pages, table: int, keys: U64, steps: U32, counts: U32, *, rules: Rules, step: int
) -> Ints:
    """Return the slot of each entry in empty pages, int64 [m]; -1 for one that finds both of its buckets full.

    table: the place of the table in its band. keys: uint64 [m], different, all of these pages. steps, counts: uint32
    [m]. Entries are inserted in the order of falling score at `step`, and of rising key where scores tie, so the result
    is equal on any number of shards. Raises ValueError for a key of other pages.
    """
    ascending = np.argsort(keys)
    pairs = pages.locate(keys[ascending], np.full(len(keys), table)).buckets()
    scores = rules.scores(counts, steps, step)[ascending].astype(np.int64)
    order = np.argsort(-scores, kind="stable")
    slots = np.empty(len(keys), np.int64)
    slots[ascending[order]] = Buckets(pages.slots // BUCKET_SLOTS).insert(pairs.take(order, axis=1)).slots
    return slots
