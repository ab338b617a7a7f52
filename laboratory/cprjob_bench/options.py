"""What options may be."""

from __future__ import annotations

import enum
from typing import Literal

#: The jobs that `cprjob simulate` knows.
SimulatePreset = Literal["paper", "production", "scale"]


class TrainPreset(enum.StrEnum):
    """A model that `cprjob bench train` knows: Criteo Kaggle and Terabyte as in DLRM's own scripts, and MLPerf's."""

    KAGGLE = "kaggle"
    TERABYTE = "terabyte"
    MLPERF = "mlperf"


class RecoveryTier(enum.StrEnum):
    """How a member comes back that `cprjob bench recovery` kills."""

    IN_PLACE = "InPlace"
    SPARE = "Spare"
    NEW_POD = "NewPod"
    TRAINER = "Trainer"
