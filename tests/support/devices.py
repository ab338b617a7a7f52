"""The devices that a test runs on: the processors, and a GPU where there is one."""

from __future__ import annotations

import pytest
import torch

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: torch.cuda.is_available() is false")
DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
on_each_device = pytest.mark.parametrize("device", DEVICES)
