"""The dynamic table that a seed draws, and the keys that its trainers push and look up.

A few keys meet in few buckets, and which of them are pushed changes from step to step: keys are admitted and evicted
and expire all the time.
"""

from __future__ import annotations

import random
from typing import get_args

import numpy as np

from cpr_contract.model import PAGE_SLOTS, DynamicSpec, EvictionScore, FirstValue, SparseOptimizerSpec, TableSpec
from cprjob_serving.hashes import U64

#: The portion of jobs that have a table.
SHARE = 0.4
#: A page has so many keys. One in eight of them has another pair of buckets, which shares one with that of all others.
_KEYS, _OTHERS = 128, np.uint64(8)
#: For each page so many keys may be pushed in a step, and so many others in the next one; a rank pushes fewer.
_NEAR, _MOVES, _MOST = 60, 3, 24
#: Each of these steps pushes more keys than there are slots.
_FLOOD_STEPS = 16


def draw_table(seed: int, share: float) -> TableSpec | None:
    """Draw the dynamic table of a seed, which this portion of all seeds has."""
    rng = random.Random(f"dynamic tables of {seed}")
    if rng.random() >= share:
        return None
    rules = DynamicSpec(
        min_steps=rng.randint(1, 3),
        score=rng.choice(get_args(EvictionScore)),
        halving_steps=rng.choice((0, 3, 8)),
        ttl_steps=rng.choice((0, 5, 9, 14)),
        default=rng.choice(get_args(FirstValue)),
    )
    return TableSpec(
        "dynamic",
        PAGE_SLOTS * rng.randint(1, 2) - rng.choice((0, 5)),
        optimizer=rng.choice((None, SparseOptimizerSpec("RowWiseAdagrad", 0.1))),
        ids="Dynamic",
        precision=rng.choice(("fp32", "bf16")),
        dynamic=rules,
    )


def universe(pages: int) -> U64:
    """Return all keys that are pushed, ascending. None is as small as the number of a row.

    Those of a page have three buckets and two groups of cells. Some share a fingerprint, and some a tag.
    """
    page, key = np.divmod(np.arange(pages * _KEYS, dtype=np.uint64), np.uint64(_KEYS))
    other = (key % _OTHERS == 0).astype(np.uint64)
    fingerprint = np.where(other, key + np.uint64(1), key)
    position = page << np.uint64(32) | (fingerprint & np.uint64(1)) << np.uint64(24) | fingerprint
    low = (key // np.uint64(4) + np.uint64(1)) << np.uint64(23) | other << np.uint64(17)
    return np.sort(position << np.uint64(33 - pages) | low)


def draw_keys(rng: np.random.Generator, keys: U64, step: int) -> U64:
    """Return the keys that a rank pushes in a step, without an order. All ranks draw from the same ones."""
    if step % _FLOOD_STEPS == 0:
        return rng.choice(keys, len(keys) * 3 // 4, replace=False)
    pages = len(keys) // _KEYS
    mixed = np.random.default_rng(0).permutation(keys)  # neighbours are of different buckets and pages
    near = mixed[(np.arange(pages * _NEAR) + pages * _MOVES * step) % len(keys)]
    return rng.choice(near, rng.integers(0, pages * _MOST), replace=False)


def draw_others(rng: np.random.Generator, keys: U64) -> U64:
    """Return further keys of a lookup: some of all, and one that is never pushed."""
    return np.append(rng.choice(keys, 5, replace=False), rng.integers(2**40, 2**64, 1, np.uint64))
