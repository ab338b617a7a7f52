"""Serves a model that `cprjob export` wrote: from columns of raw data to the inputs of its network.

It needs only numpy. Start at `Model`. docs/serving.md describes the files and the transform.
"""

from cprjob_serving.exported import DeltaError, Model, NoModelError, apply_delta, current
from cprjob_serving.tensor_files import tensors
from cprjob_serving.transform import EncodeError, Transform

__all__ = ["DeltaError", "EncodeError", "Model", "NoModelError", "Transform", "apply_delta", "current", "tensors"]
