"""The path of `Batch` that the documentation of release 0.1.0 names."""

from cpr_trainer.data.dataset import Batch

__all__ = ["Batch"]
