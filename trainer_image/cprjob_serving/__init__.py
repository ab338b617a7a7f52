"""Serves a model that `cprjob export` wrote: from columns of raw data to what its network takes. It needs numpy alone.

`Model` is the way in. docs/serving.md describes the files and the transform.
"""

from cprjob_serving.model import DeltaError, Model, NoModelError, apply_delta, current, tensors
from cprjob_serving.transform import EncodeError, Transform

__all__ = ["DeltaError", "EncodeError", "Model", "NoModelError", "Transform", "apply_delta", "current", "tensors"]
