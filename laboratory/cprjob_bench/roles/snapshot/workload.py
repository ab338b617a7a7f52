"""Rows as training asks for them: few of them often, most of them seldom."""

from __future__ import annotations

import math

import numpy as np

from cpr_trainer.access import find_access
from cpr_trainer.arrays import Floats
from cpr_trainer.placement import Placement
from cpr_trainer.rows import UniqueRows

#: Ids that a step draws: what one of several shards has to serve of a batch of some thousands.
STEP_IDS = 4096


def step_rows(placement: Placement, rng: np.random.Generator) -> UniqueRows:
    """Return the different rows of one step. Their ranks follow Zipf's law with exponent 1, cut off at the table."""
    rows = placement.total
    ranks = np.exp(rng.random(STEP_IDS) * math.log(rows + 1)).astype(np.int64) - 1
    return find_access(placement, np.minimum(ranks, rows - 1)[:, np.newaxis]).unique


def gradients_for(rows: UniqueRows, dim: int) -> Floats:
    """Return small gradients that differ from row to row, float32 [u, dim]."""
    scale = (rows.places % 97 + 1).astype(np.float32) * np.float32(1e-4)
    return np.repeat(scale[:, np.newaxis], dim, axis=1)
