"""Serves a model that `cprjob export` wrote: from columns of raw data to the inputs of its network.

It needs only numpy. Start at `Model`, or at `Follower` for the models that a job publishes while it trains.
docs/serving.md describes the files and the transform, docs/publish.md the chain of published models.
"""

from cprjob_serving.chain import ChainError
from cprjob_serving.exported import DeltaError, Model, NoModelError, apply_delta, current
from cprjob_serving.follower import Follower
from cprjob_serving.sources import SourceError
from cprjob_serving.tensor_files import tensors
from cprjob_serving.transform import EncodeError, Transform

__all__ = [
    "ChainError",
    "DeltaError",
    "EncodeError",
    "Follower",
    "Model",
    "NoModelError",
    "SourceError",
    "Transform",
    "apply_delta",
    "current",
    "tensors",
]
