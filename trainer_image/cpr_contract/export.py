"""What `cprjob export` asks of the trainer image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: How the dense network is written beside the tables.
ExportFormat = Literal["safetensors", "torch-export", "onnx"]
#: The file that the formats have which write it as a program.
PROGRAMS: dict[ExportFormat, str] = {"torch-export": "network.pt2", "onnx": "network.onnx"}


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """The model of which anchor, and how: with `since`, another anchor's key, only the rows that changed after it."""

    anchor: str
    format: ExportFormat = "safetensors"
    since: str | None = None
