"""Which rows a batch needs. Each row is fetched and pushed once, however many samples use it."""

from __future__ import annotations

from cpr_trainer.access.band import Access, access_of_band
from cpr_trainer.access.banded import BandedAccess, access_of_bands
from cpr_trainer.access.features import FeatureAccess, access_of_features
from cpr_trainer.access.rows import Embeddings, Rows, each, of_bands, the_only
from cpr_trainer.arrays import Ints
from cpr_trainer.bags import Bags
from cpr_trainer.placement import Placement

__all__ = [
    "Access",
    "AnyAccess",
    "BandedAccess",
    "Embeddings",
    "FeatureAccess",
    "Rows",
    "each",
    "find_access",
    "of_bands",
    "the_only",
]

#: The rows that a batch needs: of tables of one dim, of several, or of features.
AnyAccess = Access | BandedAccess | FeatureAccess


def find_access(placement: Placement, ids: Ints | Bags) -> AnyAccess:
    """Return the access of a batch. ids: int64 [n, T], 0 <= ids[:, t] < rows of table t, or bags; n may be 0.

    Raises ValueError if there are more than 2**31 - 1 ids.
    """
    if isinstance(ids, Bags) and ids.features is not None:
        return access_of_features(placement, ids, ids.features)
    if placement.bands == 1:
        return access_of_band(placement, ids, placement.offsets)
    return access_of_bands(placement, ids)
