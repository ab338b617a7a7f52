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


class RedundancyMode(enum.StrEnum):
    """How `cprjob bench redundancy` lets a job keep what a lost shard had learnt; the number is k."""

    NONE = "none"
    REPLAY = "replay"
    PARITY_1 = "parity-1"
    PARITY_2 = "parity-2"
    PARITY_4 = "parity-4"
    EAGER = "eager"


class RecoveryTier(enum.StrEnum):
    """How a member comes back that `cprjob bench recovery` kills."""

    IN_PLACE = "InPlace"
    SPARE = "Spare"
    NEW_POD = "NewPod"
    TRAINER = "Trainer"
