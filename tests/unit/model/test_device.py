"""A job that requests a GPU on a machine without one."""

from __future__ import annotations

import pytest
import torch

from cpr_contract.choices import Device
from cpr_trainer.errors import ModelError
from cpr_trainer.model.entrypoint import open_device
from support.devices import on_each_device


@on_each_device
def test_available_device_is_opened(device: Device) -> None:
    assert torch.zeros(1, device=open_device(device)).device.type == device


def test_missing_gpu_error_names_the_field_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelError, match=r"^spec\.trainers\.device is cuda, .* finds no GPU\.") as caught:
        open_device("cuda")
    assert "nvidia.com/gpu" in caught.value.remedy
    assert "set spec.trainers.device to cpu" in caught.value.remedy
