"""Batches as most tests have them: each table takes one id a sample, and all tables have one dim."""

from typing import Any

from numpy.typing import NDArray

from cpr_trainer.arrays import Ints
from cpr_trainer.data.dataset import Batch
from cpr_trainer.data.decode import Rows
from cpr_trainer.embedding.access import Access, find_access
from cpr_trainer.embedding.bags import Bags
from cpr_trainer.embedding.placement import Placement


def single_ids(batch: Batch | Rows) -> NDArray[Any]:
    """The ids [n, T], which are no bags."""
    assert not isinstance(batch.ids, Bags)
    return batch.ids


def access_of(placement: Placement, ids: Ints | Bags) -> Access:
    """The rows that a batch needs, which layout one band."""
    access = find_access(placement, ids)
    assert isinstance(access, Access)
    return access
