"""Runs the programs of exported networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime
import torch


def run_program(path: Path, inputs: dict[str, Any]) -> Any:
    """Return the logits of a program, by torch.export or ONNX, from its inputs by name."""
    if path.suffix == ".onnx":
        return onnxruntime.InferenceSession(path).run(None, inputs)[0]
    with torch.no_grad():
        return torch.export.load(path).module()(*map(torch.from_numpy, inputs.values())).numpy()
