"""Choices of the benches' options."""

from __future__ import annotations

import enum
from typing import Literal

#: The jobs of `cprjob simulate`.
SimulatePreset = Literal["paper", "production", "scale"]


class TrainPreset(enum.StrEnum):
    """A model of `cprjob bench train`: Criteo Kaggle and Terabyte as in DLRM's own scripts, and MLPerf's."""

    KAGGLE = "kaggle"
    TERABYTE = "terabyte"
    MLPERF = "mlperf"


class ScaleCurve(enum.StrEnum):
    """A measurement of `cprjob bench scale`: jobs of processes, documents, passes of the operator, or saves."""

    SHARDS = "shards"
    TRAINERS = "trainers"
    ROWS = "rows"
    FEATURES = "features"
    BATCH = "batch"
    DOCUMENTS = "documents"
    PASSES = "passes"
    SAVES = "saves"


class RedundancyMode(enum.StrEnum):
    """A mode of redundancy in `cprjob bench redundancy`; the number is k."""

    NONE = "none"
    REPLAY = "replay"
    PARITY_1 = "parity-1"
    PARITY_2 = "parity-2"
    PARITY_4 = "parity-4"
    EAGER = "eager"


class RecoveryTier(enum.StrEnum):
    """The way in which a killed member of `cprjob bench recovery` is recovered."""

    IN_PLACE = "InPlace"
    SPARE = "Spare"
    NEW_POD = "NewPod"
    TRAINER = "Trainer"
