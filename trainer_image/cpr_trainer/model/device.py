"""Where the dense network is computed: on the processors, or on a GPU."""

from __future__ import annotations

import torch

from cpr_contract.spec import Device
from cpr_trainer.errors import ModelError


def open_device(name: Device) -> torch.device:
    """Return a job's device. Raises ModelError if it is a GPU and torch sees none."""
    if name == "cuda" and not torch.cuda.is_available():
        built = "with" if torch.version.cuda else "without"
        raise ModelError(
            f"spec.trainers.device is cuda, and torch, built {built} CUDA, sees no GPU.",
            "Let spec.trainers.template ask for nvidia.com/gpu in the resources of main, and use a trainer image with "
            "a CUDA build of torch; or set spec.trainers.device to cpu.",
        )
    return torch.device(name)
